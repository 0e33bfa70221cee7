//! The session layer: the numbers of both sides, what was sent, and whether the other side lives.
//!
//! A session is a value. [`Session::step`] takes what happened and when, and returns what is to be
//! done, in order. The caller writes what is to be kept before it sends anything. So a session that
//! is [restored](Session::restore) from what was kept knows all that the client knows.

mod inbound;
mod logon;
mod resend;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::check::Fault;
use super::market::FirmUse;
use super::message::{Body, Message, seal};
use super::{tag, time};

/// How far SendingTime may be off, ns.
const ACCURACY_NS: u64 = 120_000_000_000;

/// How long a Logout may be without an answer, ns.
const LOGOUT_LIMIT_NS: u64 = 2_000_000_000;

/// Least time after which a gap is asked for again, ns.
const ASK_AGAIN_NS: u64 = 10_000_000_000;

/// Text of a TestRequest.
const TEST: &str = "TEST";

/// Version of the session layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// FIX 4.4.
    Fix44,
    /// FIXT 1.1.
    Fixt11,
}

impl Version {
    /// Field 8.
    pub fn begin_string(self) -> &'static str {
        match self {
            Version::Fix44 => "FIX.4.4",
            Version::Fixt11 => "FIXT.1.1",
        }
    }
}

/// Who talks to whom, and how the client proves who it is.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The version.
    pub version: Version,
    /// CompID of the door.
    pub own: String,
    /// CompID of the client.
    pub peer: String,
    /// The name that the client must give, if any.
    pub username: Option<String>,
    /// SHA-256 of the password that the client must give, if any.
    pub password: Option<[u8; 32]>,
    /// The firm of the client, if the file names one.
    pub firm: Option<String>,
    /// Symbols that its firm asks for; its own, if it has none.
    pub firm_use: FirmUse,
    /// Whether it gets a copy of the reports of its firm, and cannot trade.
    pub is_drop_copy: bool,
}

/// A message of the application that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its type.
    pub kind: String,
    /// Its fields behind those of the session.
    pub fields: String,
    /// When it was made, ns since 1970.
    pub at_ns: u64,
}

/// A change that must survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The number of the next message that is expected.
    Incoming(u64),
    /// A message was sent under a number; of the application, if it can be sent again.
    Outgoing(u64, Option<Sent>),
    /// Both sides begin again with 1.
    Reset,
}

/// What happens to a session.
#[derive(Debug)]
pub enum Input<'a> {
    /// A message came, the first one a Logon for this session.
    Message(&'a Message),
    /// A message of the application is to be sent: its type, and its fields.
    Send(&'a str, Body),
    /// As `Send`, but only if a client is there, and never again: a gap fill goes over it.
    SendOnce(&'a str, Body),
    /// Time has passed.
    Tick,
    /// The connection has ended.
    Disconnected,
    /// The session is to end, with a sentence for the client.
    End(&'a str),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this before anything is sent.
    Keep(Change),
    /// Send these bytes.
    Send(Vec<u8>),
    /// Hand this message to the application.
    Deliver(Message),
    /// End the connection once all is sent; why.
    Close(String),
}

/// Whether a client is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Away,
    LoggedOn,
    /// The door has sent a Logout that the client has not answered; since when.
    LoggingOut(u64),
}

/// A request for missing messages that is not fulfilled.
#[derive(Debug, Clone, Copy)]
struct OpenRequest {
    from: u64,
    to: u64,
    at_ns: u64,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    profile: Profile,
    state: State,
    next_in: u64,
    next_out: u64,
    sent: BTreeMap<u64, Sent>,
    /// Messages that came before those that they follow; none if they were acted on at once.
    early: BTreeMap<u64, Option<Message>>,
    asked: Option<OpenRequest>,
    heartbeat_ns: u64,
    received_ns: u64,
    sent_ns: u64,
    /// TestRequests since something came.
    tests: u64,
    now_ns: u64,
    outputs: Vec<Output>,
}

impl Session {
    /// A session that nobody has used.
    pub fn new(profile: Profile) -> Session {
        Session {
            profile,
            state: State::Away,
            next_in: 1,
            next_out: 1,
            sent: BTreeMap::new(),
            early: BTreeMap::new(),
            asked: None,
            heartbeat_ns: 0,
            received_ns: 0,
            sent_ns: 0,
            tests: 0,
            now_ns: 0,
            outputs: vec![],
        }
    }

    /// Takes over what was kept.
    pub fn restore(&mut self, change: Change) {
        match change {
            Change::Incoming(next) => self.next_in = next,
            Change::Outgoing(seq, sent) => {
                self.next_out = seq + 1;
                sent.map(|sent| self.sent.insert(seq, sent));
            }
            Change::Reset => {
                (self.next_in, self.next_out) = (1, 1);
                self.sent.clear();
            }
        }
    }

    /// All that must be kept of it, in the least number of changes.
    pub fn snapshot(&self) -> impl Iterator<Item = Change> {
        let sent = self.sent.iter().map(|(seq, sent)| Change::Outgoing(*seq, Some(sent.clone())));
        // The number of the last message that was sent may be that of no kept one.
        let last = (self.next_out > 1).then(|| {
            let seq = self.next_out - 1;
            Change::Outgoing(seq, self.sent.get(&seq).cloned())
        });
        [Change::Reset, Change::Incoming(self.next_in)].into_iter().chain(sent).chain(last)
    }

    /// Forgets the older half of what it could send again.
    pub fn forget_half(&mut self) {
        if let Some(middle) = self.sent.keys().nth(self.sent.len() / 2).copied() {
            self.sent = self.sent.split_off(&middle);
        }
    }

    /// Who talks to whom.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether a client has the session.
    pub fn is_connected(&self) -> bool {
        self.state != State::Away
    }

    /// Handles what happened at a time, ns since 1970.
    pub fn step(&mut self, input: Input<'_>, now_ns: u64) -> Vec<Output> {
        self.now_ns = now_ns;
        match input {
            Input::Message(message) => self.receive(message),
            Input::Send(kind, body) => self.emit(kind, body, true),
            Input::SendOnce(kind, body) if self.state == State::LoggedOn => {
                self.emit(kind, body, false);
            }
            Input::SendOnce(..) => {}
            Input::Tick => self.tick(),
            Input::Disconnected => self.disconnected(),
            Input::End(text) if self.is_connected() => self.log_out_at_once(text),
            Input::End(_) => {}
        }
        std::mem::take(&mut self.outputs)
    }

    fn disconnected(&mut self) {
        self.state = State::Away;
        self.early.clear();
        (self.asked, self.tests) = (None, 0);
    }

    /// Sends a message under the next number; one of the application also if nobody is there, who
    /// asks for it later.
    fn emit(&mut self, kind: &str, body: Body, is_application: bool) {
        let seq = self.next_out;
        self.next_out += 1;
        let sent = Sent { kind: kind.to_string(), fields: body.0, at_ns: self.now_ns };
        if self.is_connected() {
            let bytes = self.frame(seq, &sent, false);
            self.outputs
                .push(Output::Keep(Change::Outgoing(seq, is_application.then(|| sent.clone()))));
            self.outputs.push(Output::Send(bytes));
            self.sent_ns = self.now_ns;
        } else {
            let kept = is_application.then(|| sent.clone());
            self.outputs.push(Output::Keep(Change::Outgoing(seq, kept)));
        }
        if is_application {
            self.sent.insert(seq, sent);
        }
    }

    /// The bytes of a message, which may be sent again.
    fn frame(&self, seq: u64, sent: &Sent, is_again: bool) -> Vec<u8> {
        let Profile { version, own, peer, .. } = &self.profile;
        let mut fields = Body::default().with(tag::MSG_TYPE, &sent.kind);
        fields.push(tag::MSG_SEQ_NUM, seq);
        if is_again {
            fields.push(tag::POSS_DUP_FLAG, "Y");
        }
        fields.push(tag::SENDER_COMP_ID, own);
        fields.push(tag::SENDING_TIME, time::format(self.now_ns));
        fields.push(tag::TARGET_COMP_ID, peer);
        if is_again {
            fields.push(tag::ORIG_SENDING_TIME, time::format(sent.at_ns));
        }
        fields.0.push_str(&sent.fields);
        seal(version.begin_string(), &fields.0)
    }

    /// The next message has this number.
    fn expect(&mut self, next: u64) {
        self.next_in = next;
        self.outputs.push(Output::Keep(Change::Incoming(next)));
        if self.asked.is_some_and(|asked| asked.to < next) {
            self.asked = None;
        }
    }

    /// Rejects a message in the session layer.
    fn reject(&mut self, message: &Message, fault: &Fault) {
        let mut body = message.route_back().with(tag::REF_SEQ_NUM, message.seq());
        if let Some(tag) = &fault.tag {
            body.push(tag::REF_TAG_ID, tag);
        }
        body.push(tag::REF_MSG_TYPE, message.kind());
        body.push(tag::SESSION_REJECT_REASON, fault.reason as u32);
        body.push(tag::TEXT, fault.text());
        self.emit("3", body, false);
    }

    /// Sends a Logout, and waits for its answer.
    fn log_out(&mut self, text: &str) {
        self.emit("5", Body::default().with(tag::TEXT, text), false);
        self.state = State::LoggingOut(self.now_ns);
    }

    /// Sends a Logout, and ends the connection.
    fn log_out_at_once(&mut self, text: &str) {
        self.log_out(text);
        self.close(text);
    }

    fn close(&mut self, why: &str) {
        self.outputs.push(Output::Close(why.to_string()));
        self.disconnected();
    }

    fn tick(&mut self) {
        match self.state {
            State::Away => {}
            State::LoggingOut(since_ns)
                if self.now_ns.saturating_sub(since_ns) < LOGOUT_LIMIT_NS => {}
            State::LoggingOut(_) => self.close("the client does not answer the Logout"),
            State::LoggedOn if self.heartbeat_ns > 0 => self.keep_alive(),
            State::LoggedOn => {}
        }
    }

    /// Heartbeats, TestRequests, and the end of a client that is silent.
    fn keep_alive(&mut self) {
        let silence_ns = self.now_ns.saturating_sub(self.received_ns);
        if silence_ns * 10 >= self.heartbeat_ns * 24 {
            return self.close("the client is silent");
        }
        if silence_ns * 10 >= self.heartbeat_ns * 12 * (self.tests + 1) {
            self.tests += 1;
            self.emit("1", Body::default().with(tag::TEST_REQ_ID, TEST), false);
        } else if self.now_ns.saturating_sub(self.sent_ns) >= self.heartbeat_ns {
            self.emit("0", Body::default(), false);
        }
    }
}
