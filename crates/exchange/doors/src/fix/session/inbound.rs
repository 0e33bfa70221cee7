//! Messages that come.

use super::{Output, Session, State, Version};
use crate::fix::check::{Fault, FaultReason, check};
use crate::fix::dictionary::{dictionary, is_type};
use crate::fix::message::{Body, Message};
use crate::fix::{tag, time};
use crate::limits::EARLY_MESSAGES_MAX;

/// BusinessRejectReason: a type that is not supported.
const UNSUPPORTED_TYPE: u32 = 3;

impl Session {
    pub(super) fn receive(&mut self, message: &Message) {
        match self.state {
            State::Away => return self.log_on(message),
            State::LoggingOut(_) if message.kind() == "5" => {
                return self.close("both sides have logged out");
            }
            State::LoggingOut(_) => return,
            State::LoggedOn => {}
        }
        (self.received_ns, self.tests) = (self.now_ns, 0);
        if message.get(tag::BEGIN_STRING) != Some(self.profile.version.begin_string()) {
            return self.log_out_at_once("Incorrect BeginString");
        }
        if message.get(tag::MSG_SEQ_NUM).is_none() {
            return self.log_out_at_once("Received message without MsgSeqNum");
        }
        let is_reset = message.kind() == "4" && !message.is_set(tag::GAP_FILL_FLAG);
        let is_new = message.kind() == "A" && message.is_set(tag::RESET_SEQ_NUM_FLAG);
        if is_reset || is_new {
            match self.check_peer(message) {
                Err(fault) => self.reject_and_log_out(message, &fault),
                Ok(()) if is_reset => self.reset_sequence(message),
                Ok(()) => self.log_on_again(message),
            }
        } else {
            self.in_order(message);
        }
        self.take_early();
    }

    fn in_order(&mut self, message: &Message) {
        let (seq, next) = (message.seq(), self.next_in);
        if seq == next {
            return self.accept(message);
        }
        if seq > next {
            return self.receive_early(message);
        }
        if !message.is_set(tag::POSS_DUP_FLAG) {
            let text = format!("MsgSeqNum too low, expecting {next} but received {seq}");
            return self.log_out_at_once(&text);
        }
        if message.kind() != "4" {
            self.check_duplicate(message);
        }
    }

    /// Checks the times of a message that may have been sent before; whether it can be handled.
    fn check_duplicate(&mut self, message: &Message) -> bool {
        let Some(first) = message.get(tag::ORIG_SENDING_TIME) else {
            self.reject(message, &Fault::of(FaultReason::RequiredMissing, tag::ORIG_SENDING_TIME));
            return false;
        };
        let sent = message.get(tag::SENDING_TIME).and_then(time::parse);
        if time::parse(first) > sent {
            let fault = Fault::of(FaultReason::SendingTime, tag::ORIG_SENDING_TIME);
            self.reject_and_log_out(message, &fault);
            return false;
        }
        true
    }

    /// A message whose predecessors are missing waits for them. What concerns the numbers
    /// themselves is acted on at once, or two sides would wait for each other.
    fn receive_early(&mut self, message: &Message) {
        let seq = message.seq();
        let is_good = check(message).is_ok() && self.check_peer(message).is_ok();
        match message.kind() {
            "2" if is_good => {
                self.answer_resend_request(message);
                self.early.insert(seq, None);
            }
            "5" if is_good => return self.answer_logout(),
            _ => {
                self.early.entry(seq).or_insert_with(|| Some(message.clone()));
            }
        }
        if self.early.len() > EARLY_MESSAGES_MAX {
            let next = self.next_in;
            let text = format!("more than {EARLY_MESSAGES_MAX} messages wait for number {next}");
            return self.log_out_at_once(&text);
        }
        self.ask(seq, message.is_set(tag::POSS_DUP_FLAG));
    }

    /// Handles messages that have waited.
    fn take_early(&mut self) {
        while self.state == State::LoggedOn {
            while self.early.first_key_value().is_some_and(|(seq, _)| *seq < self.next_in) {
                self.early.pop_first();
            }
            match self.early.remove(&self.next_in) {
                None => return,
                Some(None) => self.expect(self.next_in + 1),
                Some(Some(message)) => self.accept(&message),
            }
        }
    }

    /// CompIDs, and the time.
    fn check_peer(&self, message: &Message) -> Result<(), Fault> {
        let ids =
            [(tag::SENDER_COMP_ID, &self.profile.peer), (tag::TARGET_COMP_ID, &self.profile.own)];
        for (tag, expected) in ids {
            if message.get(tag).is_some_and(|it| !it.is_empty() && it != expected) {
                return Err(Fault::of(FaultReason::CompId, tag));
            }
        }
        self.check_time(message)
    }

    fn reject_and_log_out(&mut self, message: &Message, fault: &Fault) {
        self.reject(message, fault);
        self.log_out(&fault.text());
    }

    /// Handles the message that is expected.
    fn accept(&mut self, message: &Message) {
        let seq = message.seq();
        if message.kind() == "4" {
            return self.accept_gap_fill(message);
        }
        self.expect(seq + 1);
        if let Err(fault) = self.check_peer(message) {
            return self.reject_and_log_out(message, &fault);
        }
        if message.is_set(tag::POSS_DUP_FLAG) && !self.check_duplicate(message) {
            return;
        }
        let kind = message.kind();
        if is_type(kind) && dictionary().spec(kind).is_none() {
            return self.refuse_type(message);
        }
        if let Err(fault) = check(message).and_then(|()| self.check_version(message)) {
            return self.reject(message, &fault);
        }
        match kind {
            "0" | "3" | "j" => {}
            "1" => {
                let id = message.get(tag::TEST_REQ_ID).unwrap_or_default();
                self.emit("0", Body::default().with(tag::TEST_REQ_ID, id), false);
            }
            "2" => self.answer_resend_request(message),
            "5" => self.answer_logout(),
            "A" => {
                let fault = Fault::because(FaultReason::Other, "the session is logged on already");
                self.reject(message, &fault);
            }
            _ => self.outputs.push(Output::Deliver(message.clone())),
        }
    }

    /// A message may name a version of its own; only those of FIX 5.0 are here.
    fn check_version(&self, message: &Message) -> Result<(), Fault> {
        let own = message.get(tag::APPL_VER_ID);
        let is_known = own.is_none_or(|version| ["7", "8", "9"].contains(&version));
        match self.profile.version == Version::Fix44 || is_known {
            true => Ok(()),
            false => Err(Fault::of(FaultReason::Version, tag::APPL_VER_ID)),
        }
    }

    fn accept_gap_fill(&mut self, message: &Message) {
        let faults = check(message).and_then(|()| self.check_peer(message));
        match (faults, message.number(tag::NEW_SEQ_NO)) {
            (Err(fault), _)
                if matches!(fault.reason, FaultReason::CompId | FaultReason::SendingTime) =>
            {
                self.reject_and_log_out(message, &fault);
            }
            (Err(fault), _) => self.reject(message, &fault),
            (Ok(()), Some(next)) if next > self.next_in => self.expect(next),
            (Ok(()), _) => {
                self.reject(message, &Fault::of(FaultReason::WrongValue, tag::NEW_SEQ_NO))
            }
        }
    }

    /// SequenceReset without a gap fill: its own number does not matter.
    fn reset_sequence(&mut self, message: &Message) {
        if let Err(fault) = check(message) {
            return self.reject(message, &fault);
        }
        match message.number(tag::NEW_SEQ_NO) {
            Some(next) if next >= self.next_in => {
                self.asked = None;
                self.expect(next);
            }
            _ => self.reject(message, &Fault::of(FaultReason::WrongValue, tag::NEW_SEQ_NO)),
        }
    }

    fn answer_logout(&mut self) {
        self.emit("5", Body::default(), false);
        self.close("the client has logged out");
    }

    fn refuse_type(&mut self, message: &Message) {
        let body = message
            .route_back()
            .with(tag::REF_SEQ_NUM, message.seq())
            .with(tag::REF_MSG_TYPE, message.kind())
            .with(tag::BUSINESS_REJECT_REASON, UNSUPPORTED_TYPE)
            .with(tag::TEXT, "this type of message is not supported here");
        self.emit("j", body, true);
    }
}
