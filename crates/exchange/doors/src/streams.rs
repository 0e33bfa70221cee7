//! The client of the gateways, as `docs/wire.md` describes it: one session of the exchange, without
//! I/O.
//!
//! What is submitted is executed once, and each event is taken once, whatever dies: requests
//! without an answer are sent again over the next link, unchanged, and events are numbered. What
//! must survive a restart is a [`Change`].
//!
//! Before the first request on an instrument, the session asks what the exchange knows of it there.
//! If that is anything, somebody else has used it: a request would be taken for one of his that
//! was executed long ago. So it is not sent.

use std::collections::{BTreeMap, VecDeque};

use nm_book::codec;
use nm_book::order::{Command, Event};
use nm_codec::{Reader, hex};
use nm_wire::{Message, Owner, RefusalReason, Request, ResendRequest, Series};
use serde::{Deserialize, Serialize};

/// Requests of a session on an instrument that are in flight: the exchange keeps the outcomes of so
/// many.
const IN_FLIGHT_MAX: usize = 64;

/// After how long a resend request without an answer is repeated, ns.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// A change that must survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The session has used a number for a request.
    Numbered(u64),
    /// A request: instrument, number, and the bytes of the command in hexadecimal digits.
    Submitted(u32, u64, String),
    /// A request was answered: instrument and number.
    Answered(u32, u64),
    /// A request was refused: instrument and number.
    Refused(u32, u64),
    /// The events on an instrument are known up to this one.
    Seen(u32, u64),
    /// Nobody else has used the session on an instrument; and the number of its last request there
    /// that was executed.
    Proven(u32, u64),
}

/// What the exchange has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// An event of the session on an instrument, and its number.
    Event(u32, u64, Event),
    /// A request is not executed.
    Refused(u64, RefusalReason),
    /// Events on an instrument are lost: nobody keeps them.
    EventsLost(u32),
    /// Somebody else has used the session on this instrument.
    Foreign(u32),
}

#[derive(Debug)]
struct Pending {
    seq: u64,
    previous: u64,
    command: Command,
}

/// A session on an instrument.
#[derive(Debug, Default)]
struct Stream {
    last: u64,
    pending: VecDeque<Pending>,
    /// How many of them, from the front on, were sent over this link.
    sent: usize,
    seen: u64,
    asked_ns: Option<u64>,
    is_proven: bool,
    is_foreign: bool,
}

/// A session of the exchange.
#[derive(Debug)]
pub struct Streams {
    session: u32,
    last_seq: u64,
    streams: BTreeMap<u32, Stream>,
    is_connected: bool,
    /// Frames for the gateway.
    pub frames: Vec<u8>,
    /// Changes that must be written before the frames are sent.
    pub changes: Vec<Change>,
}

impl Streams {
    /// A session that has sent nothing.
    pub fn new(session: u32) -> Streams {
        Streams {
            session,
            last_seq: 0,
            streams: BTreeMap::new(),
            is_connected: false,
            frames: vec![],
            changes: vec![],
        }
    }

    /// Its number.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Takes over what was kept.
    pub fn restore(&mut self, change: Change) {
        match change {
            Change::Numbered(seq) => self.last_seq = seq,
            Change::Submitted(instrument, seq, hex) => {
                if let Some(command) = command_of(&hex) {
                    self.last_seq = self.last_seq.max(seq);
                    self.stream(instrument).submit(seq, command);
                }
            }
            Change::Answered(instrument, seq) => {
                self.stream(instrument).take(seq);
            }
            Change::Refused(instrument, seq) => {
                self.stream(instrument).refuse(seq);
            }
            Change::Seen(instrument, event) => self.stream(instrument).seen = event,
            Change::Proven(instrument, last) => {
                let stream = self.stream(instrument);
                stream.is_proven = true;
                if stream.pending.is_empty() {
                    stream.last = last;
                }
            }
        }
    }

    /// All that must be kept of it.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![Change::Numbered(self.last_seq)];
        for (instrument, stream) in &self.streams {
            if stream.is_proven {
                let last = stream.pending.front().map_or(stream.last, |first| first.previous);
                changes.push(Change::Proven(*instrument, last));
            }
            changes.push(Change::Seen(*instrument, stream.seen));
            changes.extend(stream.pending.iter().map(|pending| {
                Change::Submitted(*instrument, pending.seq, hex_of(&pending.command))
            }));
        }
        changes
    }

    fn stream(&mut self, instrument: u32) -> &mut Stream {
        self.streams.entry(instrument).or_default()
    }

    /// Whether somebody else has used the session on an instrument.
    pub fn is_foreign(&self, instrument: u32) -> bool {
        self.streams.get(&instrument).is_some_and(|stream| stream.is_foreign)
    }

    /// Submits a command; the number of the request.
    pub fn submit(&mut self, instrument: u32, command: Command, now_ns: u64) -> u64 {
        self.last_seq += 1;
        let seq = self.last_seq;
        self.changes.push(Change::Submitted(instrument, seq, hex_of(&command)));
        let stream = self.stream(instrument);
        stream.submit(seq, command);
        if stream.is_proven {
            self.send_waiting(instrument);
        } else if self.is_connected && self.stream(instrument).asked_ns.is_none() {
            self.ask(instrument, now_ns);
        }
        seq
    }

    /// There is a link to a gateway over which the session has said hello.
    pub fn connected(&mut self, now_ns: u64) {
        self.is_connected = true;
        self.frames.clear();
        let instruments: Vec<u32> = self.streams.keys().copied().collect();
        for instrument in instruments {
            self.stream(instrument).sent = 0;
            self.send_waiting(instrument);
            self.ask(instrument, now_ns);
        }
    }

    /// The link has ended.
    pub fn disconnected(&mut self) {
        self.is_connected = false;
        self.frames.clear();
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64) {
        let is_late = |stream: &Stream| {
            stream.asked_ns.is_some_and(|asked| now_ns.saturating_sub(asked) >= ASK_AGAIN_NS)
        };
        let late = self.streams.iter().filter(|(_, stream)| is_late(stream));
        let late: Vec<u32> = late.map(|(instrument, _)| *instrument).collect();
        if self.is_connected {
            late.into_iter().for_each(|instrument| self.ask(instrument, now_ns));
        }
    }

    /// Handles a message of the gateway.
    pub fn receive(&mut self, message: &Message<'_>, now_ns: u64) -> Vec<Happened> {
        let mut happened = vec![];
        match message {
            Message::Reply(it) if it.session == self.session => {
                self.take_events(
                    it.instrument,
                    it.previous_event,
                    it.events,
                    now_ns,
                    &mut happened,
                );
                if self.stream(it.instrument).take(it.client_seq) {
                    self.changes.push(Change::Answered(it.instrument, it.client_seq));
                    self.send_waiting(it.instrument);
                }
            }
            Message::Private(it) if it.session == self.session => {
                self.take_events(
                    it.instrument,
                    it.previous_event,
                    it.events,
                    now_ns,
                    &mut happened,
                );
            }
            Message::Resent(it) if it.session == self.session => {
                self.take_resent(it, now_ns, &mut happened);
            }
            Message::Refused(it)
                if it.session == self.session
                    && self.stream(it.instrument).refuse(it.client_seq) =>
            {
                self.changes.push(Change::Refused(it.instrument, it.client_seq));
                happened.push(Happened::Refused(it.client_seq, it.reason));
                self.send_waiting(it.instrument);
            }
            Message::EventsLost(_) => {
                let instruments: Vec<u32> = self.streams.keys().copied().collect();
                instruments.into_iter().for_each(|instrument| self.ask(instrument, now_ns));
            }
            _ => {}
        }
        happened
    }

    fn take_resent(
        &mut self,
        resent: &nm_wire::Resent<'_>,
        now_ns: u64,
        happened: &mut Vec<Happened>,
    ) {
        let instrument = resent.instrument;
        let stream = self.stream(instrument);
        stream.asked_ns = None;
        // A request may have had no event.
        let is_used = resent.executed_seq > 0
            || resent.previous_event > 0
            || resent.has_gap
            || !resent.events.bytes.is_empty();
        if !stream.is_proven {
            if is_used {
                stream.is_foreign = true;
                let pending: Vec<u64> = stream.pending.drain(..).map(|it| it.seq).collect();
                let refused = |seq| Change::Refused(instrument, seq);
                self.changes.extend(pending.into_iter().rev().map(refused));
                return happened.push(Happened::Foreign(instrument));
            }
            stream.is_proven = true;
            self.changes.push(Change::Proven(instrument, 0));
            return self.send_waiting(instrument);
        }
        if resent.has_gap && resent.previous_event > stream.seen {
            stream.seen = resent.previous_event;
            self.changes.push(Change::Seen(instrument, resent.previous_event));
            happened.push(Happened::EventsLost(instrument));
        }
        self.take_events(instrument, resent.previous_event, resent.events, now_ns, happened);
    }

    /// Takes the events that are new, unless earlier ones are missing.
    fn take_events(
        &mut self,
        instrument: u32,
        previous: u64,
        events: Series<'_, Event>,
        now_ns: u64,
        happened: &mut Vec<Happened>,
    ) {
        let stream = self.stream(instrument);
        if previous > stream.seen {
            if stream.asked_ns.is_none() {
                self.ask(instrument, now_ns);
            }
            return;
        }
        let before = stream.seen;
        for (number, event) in (previous + 1..).zip(events) {
            let Ok(event) = event else { break };
            if number > stream.seen {
                stream.seen = number;
                happened.push(Happened::Event(instrument, number, event));
            }
        }
        let seen = stream.seen;
        if seen > before {
            self.changes.push(Change::Seen(instrument, seen));
        }
    }

    fn ask(&mut self, instrument: u32, now_ns: u64) {
        let session = self.session;
        let stream = self.stream(instrument);
        stream.asked_ns = Some(now_ns);
        let acknowledged = stream.seen;
        let request = ResendRequest { instrument, session, acknowledged, gateway: 0, cell: 0 };
        nm_wire::write(&request, &mut self.frames);
    }

    fn send_waiting(&mut self, instrument: u32) {
        let session = self.session;
        let Some(stream) = self.streams.get_mut(&instrument) else { return };
        while self.is_connected && stream.is_proven && stream.sent < IN_FLIGHT_MAX {
            let Some(next) = stream.pending.get(stream.sent) else { return };
            let request = Request {
                instrument,
                session,
                // The gateway knows whose it is.
                owner: Owner::NOBODY,
                client_seq: next.seq,
                previous_seq: next.previous,
                acknowledged: stream.seen,
                intended_ns: 0,
                map_version: 0,
                gateway: 0,
                cell: 0,
                attempt: 0,
                is_public: false,
                is_previous_answered: stream.sent == 0,
                breach: 0,
                command: next.command,
            };
            nm_wire::write(&request, &mut self.frames);
            stream.sent += 1;
        }
    }
}

impl Stream {
    fn submit(&mut self, seq: u64, command: Command) {
        if self.pending.iter().any(|pending| pending.seq == seq) {
            return;
        }
        let previous = std::mem::replace(&mut self.last, seq);
        self.pending.push_back(Pending { seq, previous, command });
    }

    /// Removes a request that is pending; whether it was.
    fn take(&mut self, seq: u64) -> bool {
        let Some(at) = self.pending.iter().position(|pending| pending.seq == seq) else {
            return false;
        };
        self.pending.remove(at);
        self.sent -= usize::from(at < self.sent);
        true
    }

    /// Removes a request that was refused: what follows it names the one before it.
    fn refuse(&mut self, seq: u64) -> bool {
        let Some(refused) = self.pending.iter().find(|pending| pending.seq == seq) else {
            return false;
        };
        let previous = refused.previous;
        if self.last == seq {
            self.last = previous;
        }
        for next in self.pending.iter_mut().filter(|next| next.previous == seq) {
            next.previous = previous;
        }
        self.take(seq)
    }
}

fn hex_of(command: &Command) -> String {
    let mut bytes = vec![];
    codec::write_command(command, &mut bytes);
    hex::write(&bytes)
}

fn command_of(text: &str) -> Option<Command> {
    codec::read_command(&mut Reader::new(&hex::read(text)?)).ok()
}
