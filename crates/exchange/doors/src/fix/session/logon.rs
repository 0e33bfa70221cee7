//! Logons.

use sha2::{Digest as _, Sha256};

use super::{Change, Output, Session, State, Version};
use crate::fix::check::{Fault, FaultReason, check};
use crate::fix::message::{Body, Message};
use crate::fix::tag;
use crate::limits::HEARTBEAT_S_MAX;

/// Versions of the application that FIXT carries here: FIX 5.0, its SP1 and SP2.
const APPLICATION_VERSIONS: [&str; 3] = ["7", "8", "9"];

/// SessionStatus: the name or the password is wrong.
const BAD_PASSWORD: u32 = 5;

impl Session {
    /// Handles the first message of a connection, a Logon.
    pub(super) fn log_on(&mut self, message: &Message) {
        (self.received_ns, self.sent_ns) = (self.now_ns, self.now_ns);
        // From here on there is somebody to whom a Logout can be sent.
        self.state = State::LoggedOn;
        let is_reset = message.is_set(tag::RESET_SEQ_NUM_FLAG);
        if let Err(text) = self.check_logon(message) {
            return self.log_out_at_once(&text);
        }
        if !self.proves_itself(message) {
            let text = "the name or the password is wrong";
            let status = match self.profile.version {
                Version::Fixt11 => Body::default().with(tag::SESSION_STATUS, BAD_PASSWORD),
                Version::Fix44 => Body::default(),
            };
            self.emit("5", status.with(tag::TEXT, text), false);
            return self.close(text);
        }
        if is_reset {
            self.reset();
        }
        let (seq, first_out) = (message.seq(), self.next_out);
        if seq < self.next_in {
            let next = self.next_in;
            let text = format!("MsgSeqNum too low, expecting {next} but received {seq}");
            return self.log_out_at_once(&text);
        }
        let wanted = message.number(tag::NEXT_EXPECTED_MSG_SEQ_NUM);
        if let Some(wanted) = wanted.filter(|wanted| *wanted > first_out) {
            let text = format!(
                "NextExpectedMsgSeqNum too high, expecting {first_out} at most but \
                                received {wanted}"
            );
            return self.log_out_at_once(&text);
        }
        let is_next = seq == self.next_in;
        if is_next {
            self.expect(seq + 1);
        } else {
            self.early.insert(seq, None);
        }
        self.answer_logon(message);
        match wanted {
            Some(wanted) if wanted < first_out => self.send_again(wanted, first_out - 1),
            Some(_) => {}
            None if is_next => {}
            None => self.ask(seq, false),
        }
    }

    /// A Logon within a session: both sides begin again.
    pub(super) fn log_on_again(&mut self, message: &Message) {
        if let Err(text) = self.check_logon(message) {
            return self.log_out_at_once(&text);
        }
        self.reset();
        self.expect(2);
        self.answer_logon(message);
    }

    fn answer_logon(&mut self, message: &Message) {
        let seconds = message.number(tag::HEART_BT_INT).unwrap_or(0);
        self.heartbeat_ns = seconds * 1_000_000_000;
        let mut body = Body::default().with(tag::ENCRYPT_METHOD, 0);
        body.push(tag::HEART_BT_INT, seconds);
        if message.is_set(tag::RESET_SEQ_NUM_FLAG) {
            body.push(tag::RESET_SEQ_NUM_FLAG, "Y");
        }
        if message.get(tag::NEXT_EXPECTED_MSG_SEQ_NUM).is_some() {
            body.push(tag::NEXT_EXPECTED_MSG_SEQ_NUM, self.next_in);
        }
        if let Some(version) = message.get(tag::DEFAULT_APPL_VER_ID) {
            body.push(tag::DEFAULT_APPL_VER_ID, version);
        }
        self.emit("A", body, false);
    }

    fn reset(&mut self) {
        (self.next_in, self.next_out) = (1, 1);
        self.sent.clear();
        self.early.clear();
        self.asked = None;
        self.outputs.push(Output::Keep(Change::Reset));
    }

    /// What is wrong with a Logon, if anything is.
    fn check_logon(&self, message: &Message) -> Result<(), String> {
        check(message).map_err(|fault| fault.text())?;
        self.check_time(message).map_err(|fault| fault.text())?;
        if message.get(tag::ENCRYPT_METHOD) != Some("0") {
            return Err("EncryptMethod must be 0".to_string());
        }
        let heartbeat: i64 =
            message.get(tag::HEART_BT_INT).and_then(|text| text.parse().ok()).unwrap_or(-1);
        if heartbeat < 0 {
            return Err("HeartBtInt must not be negative".to_string());
        }
        if heartbeat as u64 > HEARTBEAT_S_MAX {
            return Err(format!("HeartBtInt must not be above {HEARTBEAT_S_MAX}"));
        }
        let version = message.get(tag::DEFAULT_APPL_VER_ID);
        let is_known = version.is_some_and(|version| APPLICATION_VERSIONS.contains(&version));
        if self.profile.version == Version::Fixt11 && !is_known {
            return Err("DefaultApplVerID must be 7, 8 or 9".to_string());
        }
        match message.is_set(tag::RESET_SEQ_NUM_FLAG) && message.seq() != 1 {
            true => Err("a Logon with ResetSeqNumFlag must have MsgSeqNum 1".to_string()),
            false => Ok(()),
        }
    }

    fn proves_itself(&self, message: &Message) -> bool {
        let name = message.get(tag::USERNAME);
        let is_named = self.profile.username.as_deref().is_none_or(|it| name == Some(it));
        let given = message.get(tag::PASSWORD).unwrap_or_default();
        // Of hashes, because how long it takes to compare them says nothing of the password.
        let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        is_named && self.profile.password.is_none_or(|password| given == password)
    }

    /// SendingTime is near the time of this machine.
    pub(super) fn check_time(&self, message: &Message) -> Result<(), Fault> {
        let sent_ns = message.get(tag::SENDING_TIME).and_then(crate::fix::time::parse);
        match sent_ns {
            Some(sent_ns) if sent_ns.abs_diff(self.now_ns) <= super::ACCURACY_NS => Ok(()),
            Some(_) => Err(Fault::of(FaultReason::SendingTime, tag::SENDING_TIME)),
            // The check of fields says more.
            None => Ok(()),
        }
    }
}
