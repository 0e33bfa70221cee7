//! The door without I/O: connections, sessions, and the link to the exchange.
//!
//! Whoever drives it does what [`Door::take_acts`] returns, in order: it writes what is to be kept
//! before it sends anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nm_wire::Message as Frame;

use nm_exchange::limits::is_within_quota;
use nm_exchange::node::Warnings;
use nm_exchange::refusals::Refusals;
use nm_wire::Owner;

use crate::limits::{LOGON_LIMIT_NS, MARKET_SLOW_NS, MESSAGES_PER_SECOND, UNKNOWN_CONNECTIONS_MAX};
use crate::line::{Cut as _, Input, Line, MessageOf, Next, Output};
use crate::market::{Market, Views};
use crate::settings::{SessionSettings, Settings};
use crate::symbols::Symbols;

/// How often requests for market data that wait are looked at, ns.
const TELL_NS: u64 = 100_000_000;

/// ns of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Number of a connection.
pub type ConnectionId = u64;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act<R> {
    /// Write this to the store of a session.
    Keep(usize, R),
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
struct Connection<C> {
    cut: C,
    /// Who has connected.
    owner: Owner,
    /// The session that has logged on over it.
    line: Option<usize>,
    since_ns: u64,
    /// The second in which messages are counted, and how many there were.
    second: u64,
    messages: u32,
}

/// A session, and the connection over which its client has logged on.
#[derive(Debug)]
struct Place<L> {
    name: String,
    line: L,
    connection: Option<ConnectionId>,
    /// How long its client may be away, ns, if that has an end.
    cancel_after_ns: Option<u64>,
    away: Away,
    /// Whether the store has more bytes than it may, however it is made smaller.
    is_over: bool,
    /// Since when its client has read too little to be notified of the market.
    slow_ns: Option<u64>,
}

/// Where the client of a session is.
#[derive(Debug, Clone, Copy)]
enum Away {
    /// It has logged on, or the door has just begun.
    No,
    /// It is away since then, ns.
    Since(u64),
    /// It was away for too long, and its live orders were cancelled.
    TooLong,
}

/// The door of a protocol.
#[derive(Debug)]
pub struct Door<L: Line> {
    places: Vec<Place<L>>,
    connections: BTreeMap<ConnectionId, Connection<L::Cut>>,
    refusals: Refusals,
    /// Lines that strangers cause.
    warnings: Warnings,
    symbols: Arc<Symbols>,
    market: Market,
    /// When all clients were notified of the market last, ns.
    notified_ns: u64,
    acts: Vec<Act<L::Record>>,
}

impl<L: Line> Door<L> {
    /// A door whose sessions nobody has used.
    pub fn new(settings: &Settings<L::Profile>) -> Door<L> {
        let place = |(at, one): (usize, &SessionSettings<L::Profile>)| Place {
            name: L::names(&one.profile).0.to_string(),
            line: L::new(settings, at),
            connection: None,
            cancel_after_ns: one.cancel_after_ns,
            away: Away::No,
            is_over: false,
            slow_ns: None,
        };
        Door {
            places: settings.sessions.iter().enumerate().map(place).collect(),
            connections: BTreeMap::new(),
            refusals: Refusals::default(),
            warnings: Warnings::default(),
            symbols: Arc::clone(&settings.symbols),
            market: Market::default(),
            notified_ns: 0,
            acts: vec![],
        }
    }

    /// Takes over what was kept of a session.
    pub fn restore(&mut self, at: usize, record: L::Record) {
        self.places[at].line.restore(record);
    }

    /// All that must be kept of a session.
    pub fn snapshot(&self, at: usize) -> impl Iterator<Item = L::Record> {
        self.places[at].line.snapshot()
    }

    /// A symbol of a live order that the sessions file lacks.
    pub fn lost_symbol(&self, at: usize) -> Option<&str> {
        self.places[at].line.lost_symbol()
    }

    /// Whether the store of a session takes no new orders, and whether it takes nothing.
    pub fn set_full(&mut self, at: usize, is_full: bool, is_over: bool) {
        self.places[at].line.set_full(is_full);
        self.places[at].is_over = is_over;
    }

    /// Whether a session gets copies: what it keeps is written before what the others keep.
    pub fn gets_copies(&self, at: usize) -> bool {
        self.places[at].line.gets_copies()
    }

    /// Makes the store of a session smaller, if that can be done without its client.
    pub fn make_room(&mut self, at: usize) {
        self.places[at].line.make_room();
    }

    /// Other symbols are traded from now on.
    pub fn set_symbols(&mut self, symbols: &Arc<Symbols>) {
        self.symbols = Arc::clone(symbols);
        self.places.iter_mut().for_each(|place| place.line.set_symbols(Arc::clone(symbols)));
    }

    /// Forgets the orders of a session that have ended.
    pub fn forget_ended(&mut self, at: usize) {
        self.places[at].line.forget_ended();
    }

    /// What is to be done since the last call.
    pub fn take_acts(&mut self) -> Vec<Act<L::Record>> {
        std::mem::take(&mut self.acts)
    }

    /// Somebody connects; whether they may. An owner may have as many connections without a logon
    /// as are free, so nobody keeps others out. One that was refused too often is not answered.
    pub fn connected(&mut self, id: ConnectionId, owner: Owner, now_ns: u64) -> bool {
        if self.refusals.is_too_often(owner, now_ns) {
            let message = format!("{owner} was refused too often; it is not answered for now");
            self.warnings.push_limited(("refused", owner), now_ns, message);
            return false;
        }
        let strangers = || self.connections.values().filter(|it| it.line.is_none());
        let unknown = strangers().count();
        let own = strangers().filter(|it| it.owner == owner).count();
        if unknown >= UNKNOWN_CONNECTIONS_MAX
            || !is_within_quota(owner, (own, unknown), 1, UNKNOWN_CONNECTIONS_MAX)
        {
            return false;
        }
        self.refusals.count(owner, now_ns);
        let cut = L::Cut::default();
        let (line, since_ns, second, messages) = (None, now_ns, 0, 0);
        self.connections.insert(id, Connection { cut, owner, line, since_ns, second, messages });
        true
    }

    /// A connection has ended.
    pub fn disconnected(&mut self, id: ConnectionId, now_ns: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(line) = connection.line {
            (self.places[line].connection, self.places[line].slow_ns) = (None, None);
            self.step(line, Input::Disconnected, now_ns);
            self.note(line, "the connection has ended");
        }
    }

    fn note(&mut self, line: usize, what: &str) {
        let name = &self.places[line].name;
        self.acts.push(Act::Note(format!("{name}: {what}")));
    }

    /// A client has sent bytes.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now_ns: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.cut.push(bytes);
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
            let Some(next) = connection.cut.next() else { return };
            let second = now_ns / SECOND_NS;
            if connection.second != second {
                (connection.second, connection.messages) = (second, 0);
            }
            connection.messages += 1;
            match (next, connection.line) {
                (Next::Message(message), Some(line)) => {
                    let refusal = L::refusal_when_over(&message);
                    let input = match refusal.filter(|_| self.places[line].is_over) {
                        Some(why) => Input::End(why),
                        None => Input::Message(&message),
                    };
                    self.step(line, input, now_ns);
                    self.tell_market(line, now_ns);
                }
                (Next::Message(message), None) => self.begin(id, &message, now_ns),
                (Next::Ignored, _) => {}
                (Next::Fault(why), Some(line)) => self.step(line, Input::End(&why), now_ns),
                (Next::Fault(_), None) => self.refuse(id, now_ns, "what it sends is no message"),
            }
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.acts.push(Act::Close(id));
    }

    /// Ends a connection without a logon.
    fn refuse(&mut self, id: ConnectionId, now_ns: u64, why: &str) {
        if let Some(connection) = self.connections.get(&id) {
            let owner = connection.owner;
            let message = format!("a connection of {owner} was refused: {why}");
            self.warnings.push_limited(("stranger", owner), now_ns, message);
        }
        self.close(id);
    }

    /// The first message of a connection: it names a session that nobody has, or the connection
    /// ends.
    fn begin(&mut self, id: ConnectionId, message: &MessageOf<L>, now_ns: u64) {
        let named = self.places.iter().position(|place| place.line.is_named_by(message));
        let Some(line) = named.filter(|line| self.places[*line].connection.is_none()) else {
            let refusal = L::refusal(named.is_some());
            if !refusal.is_empty() {
                self.acts.push(Act::Send(id, refusal));
            }
            return self.refuse(id, now_ns, "it is of no free session");
        };
        self.places[line].connection = Some(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.line = Some(line);
        }
        self.step(line, Input::Message(message), now_ns);
        if self.places[line].line.is_logged_on() {
            if let Some(connection) = self.connections.get(&id) {
                self.refusals.forgive(connection.owner);
            }
            self.note(line, "logged on");
        }
    }

    /// Lets a session handle something.
    fn step(&mut self, line: usize, input: Input<'_, MessageOf<L>>, now_ns: u64) {
        let outputs = self.places[line].line.step(input, now_ns);
        self.send_frames(line);
        self.follow(line, outputs, now_ns);
    }

    /// Does what a session says.
    fn follow(&mut self, line: usize, outputs: Vec<Output<L::Record>>, now_ns: u64) {
        for output in outputs {
            let connection = self.places[line].connection;
            match (output, connection) {
                (Output::Keep(record), _) => self.acts.push(Act::Keep(line, record)),
                (Output::Send(bytes), Some(id)) => self.acts.push(Act::Send(id, bytes)),
                (Output::Note(text), _) => self.note(line, &text),
                (Output::Copy(report), _) => self.copy(line, &report, now_ns),
                (Output::Close(why), Some(id)) => {
                    self.note(line, &why);
                    (self.places[line].connection, self.places[line].slow_ns) = (None, None);
                    self.close(id);
                }
                (Output::Send(_) | Output::Close(_), None) => {}
            }
        }
    }

    /// Gives a report to the sessions that get copies of it.
    fn copy(&mut self, from: usize, report: &str, now_ns: u64) {
        for to in 0..self.places.len() {
            if self.places[to].line.gets_copies_of(&self.places[from].line) {
                self.step(to, Input::Copy(report), now_ns);
            }
        }
    }

    /// The instruments of which sessions want to know what their books show.
    pub fn wanted(&self) -> BTreeSet<u32> {
        let mut wanted = BTreeSet::new();
        self.places.iter().for_each(|place| place.line.wanted(&mut wanted));
        wanted
    }

    /// Books show something else than before.
    pub fn market_changed(&mut self, changed: Views, now_ns: u64) {
        self.market.show(changed.clone());
        for line in 0..self.places.len() {
            if self.places[line].slow_ns.is_none() {
                let place = &mut self.places[line];
                let outputs = place.line.tell_market(&self.market, Some(&changed), now_ns);
                self.follow(line, outputs, now_ns);
            }
        }
    }

    /// Nobody wants to know of other instruments than these.
    pub fn forget_views(&mut self, wanted: &BTreeSet<u32>) {
        self.market.views.retain(|instrument, _| wanted.contains(instrument));
    }

    /// Tells a client all that it does not know of the market.
    fn tell_market(&mut self, line: usize, now_ns: u64) {
        if self.places[line].slow_ns.is_none() {
            let outputs = self.places[line].line.tell_market(&self.market, None, now_ns);
            self.follow(line, outputs, now_ns);
        }
    }

    /// Whether the client of a connection has left much unread. It is notified of the market again
    /// once it has read that, or never if that takes too long.
    pub fn set_slow(&mut self, id: ConnectionId, is_slow: bool, now_ns: u64) {
        let Some(line) = self.connections.get(&id).and_then(|it| it.line) else { return };
        match (is_slow, self.places[line].slow_ns) {
            (true, None) => self.places[line].slow_ns = Some(now_ns),
            (false, Some(_)) => {
                self.places[line].slow_ns = None;
                self.tell_market(line, now_ns);
            }
            (true, Some(since_ns)) if now_ns.saturating_sub(since_ns) >= MARKET_SLOW_NS => {
                self.places[line].slow_ns = Some(now_ns);
                let why = "the client reads too slowly for market data";
                let outputs = self.places[line].line.end_market(why, now_ns);
                if !outputs.is_empty() {
                    self.note(line, why);
                    self.follow(line, outputs, now_ns);
                }
            }
            _ => {}
        }
    }

    /// What the client of the gateways has to keep and to send.
    fn send_frames(&mut self, line: usize) {
        let exchange = self.places[line].line.exchange();
        let (changes, frames) =
            (std::mem::take(&mut exchange.changes), std::mem::take(&mut exchange.frames));
        let keep = |change| Act::Keep(line, L::record(change));
        self.acts.extend(changes.into_iter().map(keep));
        if !frames.is_empty() {
            self.acts.push(Act::SendFrames(frames));
        }
    }

    /// There is a link to a gateway, over which all sessions have said hello.
    pub fn link_up(&mut self, now_ns: u64) {
        for line in 0..self.places.len() {
            self.places[line].line.exchange().connected(now_ns);
            self.send_frames(line);
        }
    }

    /// The link has ended.
    pub fn link_down(&mut self) {
        self.market.forget_phases();
        self.places.iter_mut().for_each(|place| place.line.exchange().disconnected());
    }

    /// The gateway has sent a message.
    pub fn received_frame(&mut self, frame: &Frame<'_>, now_ns: u64) {
        self.market.hear(frame);
        if matches!(frame, Frame::BestPrices(_)) {
            return;
        }
        let session = match frame {
            Frame::Reply(it) => Some(it.session),
            Frame::Private(it) => Some(it.session),
            Frame::Resent(it) => Some(it.session),
            Frame::Refused(it) => Some(it.session),
            Frame::Standing(it) => Some(it.session),
            _ => None,
        };
        for line in 0..self.places.len() {
            let own = self.places[line].line.exchange().number();
            if session.is_none_or(|session| session == own) {
                self.step(line, Input::Frame(frame), now_ns);
            }
        }
    }

    /// Cancels the live orders of a session whose client is away for too long. Who connects and
    /// does not log on is away.
    fn check_away(&mut self, line: usize, now_ns: u64) {
        let place = &mut self.places[line];
        let Some(cancel_after_ns) = place.cancel_after_ns else { return };
        if place.line.is_logged_on() {
            place.away = Away::No;
            return;
        }
        let since_ns = match place.away {
            Away::No => now_ns,
            Away::Since(since_ns) => since_ns,
            Away::TooLong => return,
        };
        place.away = Away::Since(since_ns);
        if now_ns.saturating_sub(since_ns) >= cancel_after_ns {
            place.away = Away::TooLong;
            if self.places[line].line.has_live_orders() {
                self.step(line, Input::CancelAll, now_ns);
                self.note(line, "is away: its live orders are cancelled");
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64) {
        self.acts.extend(self.warnings.take(now_ns).into_iter().map(Act::Note));
        let is_telling = now_ns.saturating_sub(self.notified_ns) >= TELL_NS;
        if is_telling {
            self.notified_ns = now_ns;
            self.market.look(self.symbols.0.values().map(|symbol| symbol.instrument));
        }
        for line in 0..self.places.len() {
            self.check_away(line, now_ns);
            self.step(line, Input::Tick, now_ns);
            self.places[line].line.exchange().tick(now_ns);
            self.send_frames(line);
            if is_telling {
                self.tell_market(line, now_ns);
            }
        }
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get(&id) else { continue };
            let is_late = now_ns.saturating_sub(connection.since_ns) >= LOGON_LIMIT_NS;
            if connection.line.is_none() && is_late {
                self.refuse(id, now_ns, "it has not logged on in time");
            } else {
                self.read(id, now_ns);
            }
        }
    }

    /// Ends all sessions.
    pub fn end(&mut self, now_ns: u64) {
        for line in 0..self.places.len() {
            self.step(line, Input::End("the door closes"), now_ns);
        }
    }
}
