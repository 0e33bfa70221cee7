//! What is sent again, and what is asked for again.

use super::{ASK_AGAIN_NS, OpenRequest, Output, Sent, Session};
use crate::fix::message::{Body, Message};
use crate::fix::tag;

impl Session {
    /// Answers a ResendRequest.
    pub(super) fn answer_resend_request(&mut self, message: &Message) {
        let number = |tag| message.number(tag).unwrap_or(0);
        let (from, to, last) =
            (number(tag::BEGIN_SEQ_NO).max(1), number(tag::END_SEQ_NO), self.next_out - 1);
        let to = if to == 0 { last } else { to.min(last) };
        if from <= to {
            self.send_again(from, to);
        }
    }

    /// Sends messages again. Those of the session layer are left out: a gap fill goes over them.
    pub(super) fn send_again(&mut self, from: u64, to: u64) {
        let known: Vec<(u64, Sent)> =
            self.sent.range(from..=to).map(|(seq, sent)| (*seq, sent.clone())).collect();
        let mut next = from;
        for (seq, sent) in known {
            self.fill_gap(next, seq);
            let bytes = self.frame(seq, &sent, true);
            self.outputs.push(Output::Send(bytes));
            next = seq + 1;
        }
        self.fill_gap(next, to + 1);
        self.sent_ns = self.now_ns;
    }

    /// One gap fill from a number up to the next one that is a message.
    fn fill_gap(&mut self, from: u64, next: u64) {
        if from == next {
            return;
        }
        let body = Body::default().with(tag::NEW_SEQ_NO, next).with(tag::GAP_FILL_FLAG, "Y");
        let fill = Sent { kind: "4".to_string(), fields: body.0, at_ns: self.now_ns };
        let bytes = self.frame(from, &fill, true);
        self.outputs.push(Output::Send(bytes));
    }

    /// Asks for what is missing before a message, unless that was asked for.
    pub(super) fn ask(&mut self, before: u64, is_again: bool) {
        let from = self.next_in;
        let is_open = self.asked.is_some_and(|asked| {
            // A message that is sent again behind a hole shows that its predecessor was lost again.
            let is_lost = is_again && asked.from < from;
            !is_lost && self.now_ns.saturating_sub(asked.at_ns) < ASK_AGAIN_NS
        });
        if !is_open {
            self.asked = Some(OpenRequest { from, to: before - 1, at_ns: self.now_ns });
            let body = Body::default().with(tag::BEGIN_SEQ_NO, from).with(tag::END_SEQ_NO, 0);
            self.emit("2", body, false);
        }
    }
}
