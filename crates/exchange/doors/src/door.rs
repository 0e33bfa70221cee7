//! The door without I/O: connections, sessions, and the link to the exchange.
//!
//! Whoever drives it does what [`Door::take_acts`] returns, in order: it writes what is to be kept
//! before it sends anything.

use std::collections::BTreeMap;

use nm_wire::Message as Frame;

use crate::fix::desk::{Desk, Effect};
use crate::fix::framer::{FrameFault, Framer};
use crate::fix::message::Message;
use crate::fix::record::Record;
use crate::fix::session::{Input, Output, Session};
use crate::fix::tag;
use crate::limits::{LOGON_LIMIT_NS, MESSAGES_PER_SECOND, UNKNOWN_CONNECTIONS_MAX};
use crate::settings::Settings;

/// ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Number of a connection.
pub type ConnectionId = u64;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Write this to the store of a session.
    Keep(usize, Record),
    /// Send these bytes to a client.
    Send(ConnectionId, Vec<u8>),
    /// Send these frames to the gateway.
    SendFrames(Vec<u8>),
    /// End a connection once all is sent.
    Close(ConnectionId),
    /// Tell whoever runs the door.
    Note(String),
}

/// One connection.
#[derive(Debug)]
struct Connection {
    framer: Framer,
    /// The session that has logged on over it.
    line: Option<usize>,
    since_ns: u64,
    /// The second in which messages are counted, and how many there were.
    second: u64,
    messages: u32,
}

/// One session on both sides.
#[derive(Debug)]
struct Line {
    session: Session,
    desk: Desk,
    connection: Option<ConnectionId>,
    /// Whether the store has more bytes than it may, however it is made smaller.
    is_over: bool,
}

/// What a client hears whose store has no room for answers.
const STORE_IS_FULL: &str = "the store of this session is full: log on with ResetSeqNumFlag";

/// The door.
#[derive(Debug)]
pub struct Door {
    lines: Vec<Line>,
    connections: BTreeMap<ConnectionId, Connection>,
    acts: Vec<Act>,
}

impl Door {
    /// A door whose sessions nobody has used.
    pub fn new(settings: &Settings) -> Door {
        let line = |one: &crate::settings::SessionSettings| Line {
            session: Session::new(one.profile.clone()),
            desk: Desk::new(one.session, settings.symbols.clone()),
            connection: None,
            is_over: false,
        };
        Door {
            lines: settings.sessions.iter().map(line).collect(),
            connections: BTreeMap::new(),
            acts: vec![],
        }
    }

    /// Takes over what was kept of a session.
    pub fn restore(&mut self, line: usize, record: Record) {
        let Line { session, desk, .. } = &mut self.lines[line];
        match record {
            Record::Session(change) => session.restore(change),
            Record::Exchange(change) => desk.streams.restore(change),
            Record::Order(order) => desk.restore_order(*order),
            Record::Forgotten(number) => desk.forget(number),
            Record::Numbered(number) => desk.restore_number(number),
        }
    }

    /// All that must be kept of a session.
    pub fn snapshot(&self, line: usize) -> impl Iterator<Item = Record> {
        let Line { session, desk, .. } = &self.lines[line];
        let of_session = session.snapshot().map(Record::Session);
        let of_exchange = desk.streams.snapshot().into_iter().map(Record::Exchange);
        of_session.chain(of_exchange).chain(desk.snapshot())
    }

    /// A symbol of a live order that the sessions file lacks.
    pub fn lost_symbol(&self, line: usize) -> Option<&str> {
        self.lines[line].desk.lost_symbol()
    }

    /// Whether the store of a session takes no new orders, and whether it takes nothing.
    pub fn set_full(&mut self, line: usize, is_full: bool, is_over: bool) {
        self.lines[line].desk.is_full = is_full;
        self.lines[line].is_over = is_over;
    }

    /// Forgets the orders of a session that have ended.
    pub fn forget_ended(&mut self, line: usize) {
        self.lines[line].desk.forget_ended();
    }

    /// What is to be done since the last call.
    pub fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    /// A client connects; whether it may.
    pub fn connected(&mut self, id: ConnectionId, now_ns: u64) -> bool {
        let unknown = self.connections.values().filter(|it| it.line.is_none()).count();
        if unknown >= UNKNOWN_CONNECTIONS_MAX {
            return false;
        }
        let framer = Framer::default();
        let (line, since_ns, second, messages) = (None, now_ns, 0, 0);
        self.connections.insert(id, Connection { framer, line, since_ns, second, messages });
        true
    }

    /// A connection has ended.
    pub fn disconnected(&mut self, id: ConnectionId, now_ns: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(line) = connection.line {
            self.lines[line].connection = None;
            self.step(line, Input::Disconnected, now_ns);
            self.note(line, "the connection has ended");
        }
    }

    fn note(&mut self, line: usize, what: &str) {
        let peer = &self.lines[line].session.profile().peer;
        self.acts.push(Act::Note(format!("{peer}: {what}")));
    }

    /// A client has sent bytes.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now_ns: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.framer.push(bytes);
        }
        self.read(id, now_ns);
    }

    /// Whether a connection has sent as many messages in this second as it may.
    pub fn is_throttled(&self, id: ConnectionId, now_ns: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            connection.second == now_ns / SECOND_NS && connection.messages >= MESSAGES_PER_SECOND
        })
    }

    /// Handles messages of a connection, as many as it may send in this second.
    fn read(&mut self, id: ConnectionId, now_ns: u64) {
        while !self.is_throttled(id, now_ns) {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let Some(next) = connection.framer.next_message() else { return };
            let second = now_ns / SECOND_NS;
            if connection.second != second {
                (connection.second, connection.messages) = (second, 0);
            }
            connection.messages += 1;
            match (next, connection.line) {
                (Ok(message), Some(line))
                    if self.lines[line].is_over && !message.is_set(tag::RESET_SEQ_NUM_FLAG) =>
                {
                    self.step(line, Input::End(STORE_IS_FULL), now_ns);
                }
                (Ok(message), Some(line)) => self.step(line, Input::Message(&message), now_ns),
                (Ok(message), None) => self.begin(id, &message, now_ns),
                (Err(FrameFault::Garbled(_)), _) => {}
                (Err(fault @ FrameFault::TooLong), Some(line)) => {
                    self.step(line, Input::End(&fault.to_string()), now_ns);
                }
                (Err(FrameFault::TooLong), None) => self.close(id),
            }
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.acts.push(Act::Close(id));
    }

    /// The first message of a connection: a Logon of a session that nobody has, or nothing is
    /// answered. A Logout would take a number from the session.
    fn begin(&mut self, id: ConnectionId, message: &Message, now_ns: u64) {
        let is_named = |line: &Line| {
            let profile = line.session.profile();
            message.get(tag::BEGIN_STRING) == Some(profile.version.begin_string())
                && message.get(tag::SENDER_COMP_ID) == Some(&profile.peer)
                && message.get(tag::TARGET_COMP_ID) == Some(&profile.own)
        };
        let line = self.lines.iter().position(is_named).filter(|_| message.kind() == "A");
        let Some(line) = line.filter(|line| self.lines[*line].connection.is_none()) else {
            self.acts.push(Act::Note("a connection was refused: it is of no free session".into()));
            return self.close(id);
        };
        self.lines[line].connection = Some(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.line = Some(line);
        }
        self.step(line, Input::Message(message), now_ns);
        if self.lines[line].session.is_connected() {
            self.note(line, "logged on");
        }
    }

    /// Lets a session handle something, and its orders what follows.
    fn step(&mut self, line: usize, input: Input<'_>, now_ns: u64) {
        let outputs = self.lines[line].session.step(input, now_ns);
        let mut delivered = vec![];
        for output in outputs {
            let connection = self.lines[line].connection;
            match (output, connection) {
                (Output::Keep(change), _) => {
                    self.acts.push(Act::Keep(line, Record::Session(change)))
                }
                (Output::Send(bytes), Some(id)) => self.acts.push(Act::Send(id, bytes)),
                (Output::Send(_), None) => {}
                // What follows has later numbers than what the session has sent already.
                (Output::Deliver(message), _) => delivered.push(message),
                (Output::Close(why), Some(id)) => {
                    self.note(line, &why);
                    self.lines[line].connection = None;
                    self.close(id);
                }
                (Output::Close(_), None) => {}
            }
        }
        for message in delivered {
            let effects = self.lines[line].desk.receive(&message, now_ns);
            self.follow(line, effects, now_ns);
        }
    }

    /// Does what follows from a message or an event.
    fn follow(&mut self, line: usize, effects: Vec<Effect>, now_ns: u64) {
        self.send_frames(line);
        for effect in effects {
            match effect {
                Effect::Keep(record) => self.acts.push(Act::Keep(line, record)),
                Effect::Report(kind, body) => self.step(line, Input::Send(kind, body), now_ns),
            }
        }
    }

    /// What the client of the gateways has to keep and to send.
    fn send_frames(&mut self, line: usize) {
        let streams = &mut self.lines[line].desk.streams;
        let (changes, frames) =
            (std::mem::take(&mut streams.changes), std::mem::take(&mut streams.frames));
        let keep = |change| Act::Keep(line, Record::Exchange(change));
        self.acts.extend(changes.into_iter().map(keep));
        if !frames.is_empty() {
            self.acts.push(Act::SendFrames(frames));
        }
    }

    /// There is a link to a gateway, over which all sessions have said hello.
    pub fn link_up(&mut self, now_ns: u64) {
        for line in 0..self.lines.len() {
            self.lines[line].desk.streams.connected(now_ns);
            self.send_frames(line);
        }
    }

    /// The link has ended.
    pub fn link_down(&mut self) {
        self.lines.iter_mut().for_each(|line| line.desk.streams.disconnected());
    }

    /// The gateway has sent a message.
    pub fn received_frame(&mut self, frame: &Frame<'_>, now_ns: u64) {
        let session = match frame {
            Frame::Reply(it) => Some(it.session),
            Frame::Private(it) => Some(it.session),
            Frame::Resent(it) => Some(it.session),
            Frame::Refused(it) => Some(it.session),
            _ => None,
        };
        for line in 0..self.lines.len() {
            let own = self.lines[line].desk.streams.session();
            if session.is_none_or(|session| session == own) {
                let effects = self.lines[line].desk.hear(frame, now_ns);
                self.follow(line, effects, now_ns);
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64) {
        for line in 0..self.lines.len() {
            self.step(line, Input::Tick, now_ns);
            self.lines[line].desk.streams.tick(now_ns);
            self.send_frames(line);
        }
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get(&id) else { continue };
            let is_late = now_ns.saturating_sub(connection.since_ns) >= LOGON_LIMIT_NS;
            if connection.line.is_none() && is_late {
                self.acts.push(Act::Note("a connection was ended: it has not logged on".into()));
                self.close(id);
            } else {
                self.read(id, now_ns);
            }
        }
    }

    /// Ends all sessions.
    pub fn end(&mut self, now_ns: u64) {
        for line in 0..self.lines.len() {
            self.step(line, Input::End("the door closes"), now_ns);
        }
    }
}
