//! FIX as a protocol of a door: the session layer and the orders of one session.

use super::desk::{Desk, Effect};
use super::framer::{FrameFault, Framer};
use super::message::Message;
use super::record::Record;
use super::session::{self, Profile, Session};
use super::tag;
use crate::line::{self, Cut, Input, Next, Output};
use crate::settings::Settings;
use nm_client::Change;

impl Cut for Framer {
    type Message = Message;

    fn push(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }

    fn next(&mut self) -> Option<Next<Message>> {
        Some(match self.next_message()? {
            Ok(message) => Next::Message(message),
            Err(FrameFault::Garbled(_)) => Next::Ignored,
            Err(fault @ FrameFault::TooLong) => Next::Fault(fault.to_string()),
        })
    }
}

/// A session of FIX.
#[derive(Debug)]
pub struct Line {
    session: Session,
    desk: Desk,
    outputs: Vec<Output<Record>>,
}

impl Line {
    /// Lets the session layer handle something, and the orders what follows.
    fn session(&mut self, input: session::Input<'_>, now_ns: u64) {
        let mut delivered = vec![];
        for output in self.session.step(input, now_ns) {
            match output {
                session::Output::Keep(change) => {
                    self.outputs.push(Output::Keep(Record::Session(change)));
                }
                session::Output::Send(bytes) => self.outputs.push(Output::Send(bytes)),
                // What follows has later numbers than what the session has sent already.
                session::Output::Deliver(message) => delivered.push(message),
                session::Output::Close(why) => self.outputs.push(Output::Close(why)),
            }
        }
        for message in delivered {
            let effects = self.desk.receive(&message, now_ns);
            self.follow(effects, now_ns);
        }
    }

    /// Does what follows from a message or an event.
    fn follow(&mut self, effects: Vec<Effect>, now_ns: u64) {
        for effect in effects {
            match effect {
                Effect::Keep(record) => self.outputs.push(Output::Keep(record)),
                Effect::Report(kind, body) => {
                    self.session(session::Input::Send(kind, body), now_ns);
                }
            }
        }
    }
}

impl line::Line for Line {
    type Cut = Framer;
    type Profile = Profile;
    type Record = Record;

    const PROTOCOL: &str = "fix";

    fn new(settings: &Settings<Profile>, at: usize) -> Line {
        let one = &settings.sessions[at];
        Line {
            session: Session::new(one.profile.clone()),
            desk: Desk::new(one.session, settings.symbols.clone()),
            outputs: vec![],
        }
    }

    fn names(profile: &Profile) -> (&str, &str) {
        (&profile.peer, &profile.own)
    }

    fn is_named_by(&self, first: &Message) -> bool {
        let profile = self.session.profile();
        first.kind() == "A"
            && first.get(tag::BEGIN_STRING) == Some(profile.version.begin_string())
            && first.get(tag::SENDER_COMP_ID) == Some(&profile.peer)
            && first.get(tag::TARGET_COMP_ID) == Some(&profile.own)
    }

    /// Nothing: a Logout would take a number from the session.
    fn refusal(_: bool) -> Vec<u8> {
        vec![]
    }

    fn refusal_when_over(message: &Message) -> Option<&'static str> {
        let text = "the store of this session is full: log on with ResetSeqNumFlag";
        (!message.is_set(tag::RESET_SEQ_NUM_FLAG)).then_some(text)
    }

    fn forget_ended(&mut self) {
        self.desk.forget_ended();
    }

    fn has_live_orders(&self) -> bool {
        self.desk.has_live_orders()
    }

    fn is_logged_on(&self) -> bool {
        self.session.is_connected()
    }

    fn step(&mut self, input: Input<'_, Message>, now_ns: u64) -> Vec<Output<Record>> {
        match input {
            Input::Message(message) => self.session(session::Input::Message(message), now_ns),
            Input::Frame(frame) => {
                let effects = self.desk.hear(frame, now_ns);
                self.follow(effects, now_ns);
            }
            Input::Tick => self.session(session::Input::Tick, now_ns),
            Input::Disconnected => self.session(session::Input::Disconnected, now_ns),
            Input::CancelAll => {
                let effects = self.desk.cancel_live(now_ns);
                self.follow(effects, now_ns);
            }
            Input::End(why) => self.session(session::Input::End(why), now_ns),
        }
        std::mem::take(&mut self.outputs)
    }

    fn exchange(&mut self) -> &mut nm_client::Session {
        &mut self.desk.exchange
    }

    fn record(change: Change) -> Record {
        Record::Exchange(change)
    }

    fn is_reset(record: &Record) -> bool {
        *record == Record::Session(session::Change::Reset)
    }

    fn restore(&mut self, record: Record) {
        match record {
            Record::Session(change) => self.session.restore(change),
            Record::Exchange(change) => self.desk.exchange.restore(change),
            Record::Order(order) => self.desk.restore_order(*order),
            Record::Forgotten(number) => self.desk.forget(number),
            Record::Numbered(number) => self.desk.restore_number(number),
        }
    }

    fn snapshot(&self) -> impl Iterator<Item = Record> {
        let of_session = self.session.snapshot().map(Record::Session);
        let of_exchange = self.desk.exchange.snapshot().into_iter().map(Record::Exchange);
        of_session.chain(of_exchange).chain(self.desk.snapshot())
    }

    fn lost_symbol(&self) -> Option<&str> {
        self.desk.lost_symbol()
    }

    fn set_full(&mut self, is_full: bool) {
        self.desk.is_full = is_full;
    }
}
