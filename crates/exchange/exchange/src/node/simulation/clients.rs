//! Clients that send sequences of orders on all instruments and ask for the events that they miss.
//! Also an operator that moves instruments and changes the network.

use std::collections::{BTreeMap, VecDeque};

use nm_book::order::{
    Command, Event, InstrumentId, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce,
    UserId,
};
use nm_book::testing::Random;
use nm_wire::{Frame, Heartbeat, Logon, Message, Reply, Request, ResendRequest, Series, Who};

use crate::client::say_hello;
use crate::control::{
    AdminRequest, AdminResponse, InstrumentMap, RoutingTable, State, addresses_of,
};
use crate::network::{Network, Node, NodeId, Role};
use crate::testing;

use super::oracle::{self, Answer, Histories, Seen};

/// Requests of a session on an instrument without a reply.
const WINDOW: usize = 4;

/// Pause until the same events are asked for again, ns.
const ASK_AGAIN_NS: u64 = 300_000_000;

/// How long after it is linked it asks again for all that it lacks, ns: longer than a gateway
/// stands still here.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;

/// How often its ends of a link send heartbeats, ms.
const HEARTBEAT_MS: u32 = 500;

/// After how long without a link its orders are cancelled, s: longer than any fault lasts.
pub const CANCEL_AFTER_S: u32 = 5;

/// What a client sends on one instrument.
#[derive(Debug, Default)]
struct Stream {
    seen: Seen,
    /// Number of the last request.
    last: u64,
    /// Requests without a reply.
    pending: VecDeque<(u64, Vec<u8>)>,
    /// The number of the last event of which it knows that there is one.
    last_event: u64,
    /// When events were asked for that it misses, ns.
    asked_ns: Option<u64>,
}

impl Stream {
    /// Events come, the first one with the number behind `previous`; whether some are missing
    /// before them.
    fn take(&mut self, previous: u64, events: Series<'_, Event>) -> bool {
        let events: Vec<Event> = events.map(|event| event.expect("an event")).collect();
        self.last_event = self.last_event.max(previous + events.len() as u64);
        if previous > self.seen.events.len() as u64 {
            return true;
        }
        for (event, at) in events.into_iter().zip(previous as usize..) {
            match self.seen.events.get(at) {
                Some(known) => assert_eq!(*known, event, "event {} came twice", at + 1),
                None => self.seen.events.push(event),
            }
        }
        // Else it asks again.
        if self.seen.events.len() as u64 >= self.last_event {
            self.asked_ns = None;
        }
        false
    }
}

/// A client with some sessions and a link to one gateway.
#[derive(Debug)]
pub struct Client {
    /// Which gateway.
    pub gateway: u16,
    /// Its link, while it is connected.
    pub wire: Option<usize>,
    sessions: BTreeMap<UserId, u64>,
    streams: BTreeMap<(UserId, InstrumentId), Stream>,
    /// Requests that it sends on each instrument.
    count: u64,
    /// Whether it has left for good.
    pub has_left: bool,
    /// When its gateway sent a heartbeat last, or it connected, ns.
    contact_ns: u64,
    /// When it asks again for all that it lacks, ns: the gateway that it has left may have read its
    /// requests late, and got events that nobody took.
    look_ns: Option<u64>,
}

/// What a client does about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    None,
    /// It asks for events.
    Ask(UserId, InstrumentId),
    /// It asks for all events that it misses.
    AskAll,
    /// It goes to another gateway.
    Leave,
}

impl Client {
    /// A client that sends so many requests of each session on each instrument.
    pub fn new(gateway: u16, sessions: &[UserId], instruments: u32, count: u64) -> Client {
        let streams =
            sessions.iter().flat_map(|session| (0..instruments).map(|it| ((*session, it), ())));
        Client {
            gateway,
            wire: None,
            sessions: sessions.iter().map(|session| (*session, 0)).collect(),
            streams: streams.map(|(key, ())| (key, Stream::default())).collect(),
            count,
            has_left: false,
            contact_ns: 0,
            look_ns: None,
        }
    }

    /// Whether all of its requests were sent, and answered.
    pub fn is_done(&self) -> bool {
        let is_done =
            |it: &Stream| it.seen.requests.len() as u64 == self.count && it.pending.is_empty();
        self.streams.values().all(is_done)
    }

    /// Whether there was a reply on every instrument.
    pub fn has_begun(&self) -> bool {
        let has = |it: &Stream| it.seen.requests.first().is_some_and(|it| it.answer.is_some());
        self.streams.values().all(has)
    }

    /// Sessions and instruments on which requests have no reply.
    pub fn waiting(&self) -> Vec<(UserId, InstrumentId)> {
        let waiting = self.streams.iter().filter(|(_, stream)| !stream.pending.is_empty());
        waiting.map(|(key, _)| *key).collect()
    }

    /// What its sessions have seen.
    pub fn histories(&self) -> Histories<'_> {
        let streams = self.streams.iter();
        streams.map(|((session, it), stream)| ((*it, *session), &stream.seen)).collect()
    }

    /// What it sends first on a link.
    pub fn hello(&mut self, now_ns: u64) -> Vec<u8> {
        let mut bytes = vec![];
        let hello = |session: &UserId| Who::Client { session: *session };
        self.sessions.keys().for_each(|session| say_hello(hello(session), None, &mut bytes));
        for session in self.sessions.keys() {
            let (heartbeat_ms, cancel_after_s) = (HEARTBEAT_MS, CANCEL_AFTER_S);
            let logon = Logon { session: *session, heartbeat_ms, cancel_after_s };
            nm_wire::write(&logon, &mut bytes);
        }
        self.contact_ns = now_ns;
        self.look_ns = Some(now_ns + LOOK_AGAIN_NS);
        for (_, pending) in self.streams.values().flat_map(|stream| &stream.pending) {
            bytes.extend_from_slice(pending);
        }
        // Events may have been lost with the link before.
        bytes.extend(self.ask_all(now_ns));
        bytes
    }

    /// Asks for the events of a session on an instrument that it does not have.
    pub fn ask(&mut self, (session, instrument): (UserId, InstrumentId), now_ns: u64) -> Vec<u8> {
        let mut bytes = vec![];
        let stream = self.streams.get_mut(&(session, instrument)).expect("a session of its own");
        stream.asked_ns = Some(now_ns);
        let acknowledged = stream.seen.events.len() as u64;
        let (gateway, cell) = (0, 0);
        nm_wire::write(
            &ResendRequest { instrument, session, acknowledged, gateway, cell },
            &mut bytes,
        );
        bytes
    }

    /// What it sends to show that it is there.
    pub fn heartbeat(&self) -> Vec<u8> {
        let mut bytes = vec![];
        nm_wire::write(&Heartbeat { number: 1 }, &mut bytes);
        bytes
    }

    /// Whether its gateway has sent no heartbeat for three intervals.
    pub fn misses_gateway(&self, now_ns: u64) -> bool {
        now_ns > self.contact_ns + 3 * u64::from(HEARTBEAT_MS) * 1_000_000
    }

    /// Its sessions.
    pub fn sessions(&self) -> impl Iterator<Item = UserId> {
        self.sessions.keys().copied()
    }

    /// Asks for all events that it does not have.
    pub fn ask_all(&mut self, now_ns: u64) -> Vec<u8> {
        let begun = self.streams.iter().filter(|(_, stream)| stream.last > 0);
        let keys: Vec<(UserId, InstrumentId)> = begun.map(|(key, _)| *key).collect();
        keys.into_iter().flat_map(|key| self.ask(key, now_ns)).collect()
    }

    /// Asks again for what it has asked for long ago, and for all some time after it was linked.
    pub fn ask_again(&mut self, now_ns: u64) -> Vec<u8> {
        if self.look_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            return self.ask_all(now_ns);
        }
        let is_late = |it: &Stream| it.asked_ns.is_some_and(|ns| now_ns > ns + ASK_AGAIN_NS);
        let late = self.streams.iter().filter(|(_, stream)| is_late(stream));
        let keys: Vec<(UserId, InstrumentId)> = late.map(|(key, _)| *key).collect();
        keys.into_iter().flat_map(|key| self.ask(key, now_ns)).collect()
    }

    /// The next request, if there is one to be sent.
    pub fn next_request(&mut self, now_ns: u64, random: &mut Random) -> Option<Vec<u8>> {
        let has_room = |stream: &Stream| {
            (stream.seen.requests.len() as u64) < self.count && stream.pending.len() < WINDOW
        };
        let open: Vec<(UserId, InstrumentId)> =
            self.streams.iter().filter(|(_, it)| has_room(it)).map(|(key, _)| *key).collect();
        let (session, instrument) = *random.of(&open)?;
        let seq = self.sessions.entry(session).or_default();
        *seq += 1;
        let stream = self.streams.entry((session, instrument)).or_default();
        let command = order(session, *seq, random);
        let request = Request {
            client_seq: *seq,
            previous_seq: stream.last,
            acknowledged: stream.seen.events.len() as u64,
            is_previous_answered: stream.pending.is_empty(),
            ..testing::request(session, instrument, command)
        };
        let mut bytes = vec![];
        nm_wire::write(&request, &mut bytes);
        let sent = oracle::Request { client_seq: *seq, command, sent_ns: now_ns, answer: None };
        stream.seen.requests.push(sent);
        stream.last = *seq;
        stream.pending.push_back((*seq, bytes.clone()));
        Some(bytes)
    }

    /// A frame comes from its gateway.
    pub fn receive(&mut self, frame: Frame<'_>, now_ns: u64) -> Reaction {
        let (key, previous, events) = match Message::read(frame).expect("a message") {
            Message::Reply(reply) => return self.on_reply(&reply, now_ns),
            Message::Private(it) => ((it.session, it.instrument), it.previous_event, it.events),
            Message::Resent(it) => {
                let stream = &self.streams[&(it.session, it.instrument)];
                // It may have got events since it asked.
                let known = stream.seen.events.len() as u64;
                assert!(!it.has_gap || it.previous_event <= known, "{it:?} behind {known}");
                ((it.session, it.instrument), it.previous_event, it.events)
            }
            Message::BestPrices(it) => {
                let mut own = self.streams.iter_mut();
                let first = own.find(|((_, instrument), _)| *instrument == it.instrument);
                let best = (it.output_seq, [it.bid, it.offer]);
                first.into_iter().for_each(|(_, stream)| stream.seen.best.push(best));
                return Reaction::None;
            }
            Message::Refused(refused) => panic!("{refused:?}"),
            Message::EventsLost(_) => return Reaction::AskAll,
            Message::Heartbeat(_) => {
                self.contact_ns = now_ns;
                return Reaction::None;
            }
            Message::GoAway(_) | Message::Close(_) => return Reaction::Leave,
            _ => return Reaction::None,
        };
        let stream = self.streams.get_mut(&key).expect("a session of its own");
        match stream.take(previous, events) {
            true => Reaction::Ask(key.0, key.1),
            false => Reaction::None,
        }
    }

    fn on_reply(&mut self, reply: &Reply<'_>, now_ns: u64) -> Reaction {
        let Reply { session, instrument, client_seq, output_seq, events_hash, .. } = *reply;
        assert!(!reply.is_expired, "{reply:?}");
        let stream = self.streams.get_mut(&(session, instrument)).expect("a session of its own");
        let known = stream.seen.requests.iter_mut().find(|it| it.client_seq == client_seq);
        let known = known.expect("a request that was sent");
        let answer = Answer { at_ns: now_ns, output_seq, events_hash };
        assert_eq!(known.answer, None, "a reply that was delivered before: {reply:?}");
        let first = stream.pending.pop_front().map(|(seq, _)| seq);
        assert_eq!(first, Some(client_seq), "{reply:?} before others");
        known.answer = Some(answer);
        match stream.take(reply.previous_event, reply.events) {
            true => Reaction::Ask(session, instrument),
            false => Reaction::None,
        }
    }

    /// Requests that it has sent.
    pub fn sent(&self) -> u64 {
        self.streams.values().map(|stream| stream.seen.requests.len() as u64).sum()
    }
}

/// An order that rests or trades with others, or a change of orders that were sent before.
pub fn order(session: UserId, seq: u64, random: &mut Random) -> Command {
    let id = |seq: u64| u64::from(session) << 32 | seq;
    let price = 100 + random.below(7) as i64;
    match random.below(100) {
        0..8 => return Command::Cancel { id: id(random.below(seq)), user: session },
        8..14 => {
            let (id, quantity) = (id(random.below(seq)), 1 + random.below(4));
            return Command::Replace { id, user: session, price, quantity };
        }
        14 => return Command::MassCancel { user: session },
        _ => {}
    }
    let kind = random.below(100);
    let (order_type, stop_price) = match kind {
        0..5 => (OrderType::Market, 0),
        5..10 => (OrderType::StopLimit, 100 + random.below(7) as i64),
        _ => (OrderType::Limit, 0),
    };
    let is_immediate = kind < 5 || (10..25).contains(&kind);
    let quantity = 1 + random.below(5);
    Command::New(NewOrder {
        id: id(seq),
        user: session,
        side: if random.chance(500) { Side::Buy } else { Side::Sell },
        order_type,
        time_in_force: match kind {
            _ if is_immediate => TimeInForce::ImmediateOrCancel,
            25..30 => TimeInForce::AtClose,
            _ => TimeInForce::GoodTillCancelled,
        },
        price: if order_type == OrderType::Market { 0 } else { price },
        stop_price,
        quantity,
        display: if kind >= 90 { 1 } else { 0 },
        minimum: 0,
        is_hidden: (30..35).contains(&kind),
        peg: match kind {
            35..38 => Peg::Mid,
            38..40 => Peg::Primary { offset: random.below(2) as u16 },
            _ => Peg::No,
        },
        post_only: if (80..90).contains(&kind) { PostOnly::Slide } else { PostOnly::No },
        self_trade: SelfTrade::CancelOldest,
    })
}

/// A change of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node is to carry nothing, or to work again.
    Drain(NodeId, bool),
    /// A node comes.
    Add(Role, Node),
    /// A node that was added goes. A gateway is drained before, and the cell of a mediator emptied.
    Remove(NodeId),
}

/// An operator that moves instruments at random, one move of each at a time, and changes the nodes,
/// one after the other.
#[derive(Debug)]
pub struct Operator {
    /// Which mediator it is connected to.
    pub mediator: usize,
    /// Its link, while it is connected.
    pub wire: Option<usize>,
    /// Where instruments are to go that are under way.
    pub under_way: BTreeMap<InstrumentId, u16>,
    /// Moves that it has still to begin.
    pub left: usize,
    /// Moves that ended in the new cell, and that were refused.
    pub moved: usize,
    /// See [`Operator::moved`].
    pub refused: usize,
    /// Changes that it has still to begin, and the present one.
    pub changes_left: usize,
    /// See [`Operator::changes_left`].
    pub change: Option<Change>,
    /// Changes that were made.
    pub changed: usize,
    /// Nodes that it has added.
    added: u16,
}

impl Operator {
    /// An operator that makes so many moves and changes.
    pub fn new(moves: usize, changes: usize) -> Operator {
        Operator {
            mediator: 0,
            wire: None,
            under_way: BTreeMap::new(),
            left: moves,
            moved: 0,
            refused: 0,
            changes_left: changes,
            change: None,
            changed: 0,
            added: 0,
        }
    }

    /// Whether all of its moves and changes have ended.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.under_way.is_empty() && !self.is_changing()
    }

    /// Whether it has changes to make.
    pub fn is_changing(&self) -> bool {
        self.changes_left > 0 || self.change.is_some()
    }

    /// What it sends first on a link.
    pub fn hello(&self) -> Vec<u8> {
        let mut bytes = vec![];
        say_hello(Who::Operator, None, &mut bytes);
        self.under_way.iter().for_each(|(it, cell)| bytes.extend(request_move(*it, *cell)));
        bytes
    }

    /// Begins a move, if it has one left and few are under way; it is to be sent.
    pub fn next_move(
        &mut self,
        map: &InstrumentMap,
        instruments: u32,
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        let instrument = random.below(u64::from(instruments)) as u32;
        if self.left == 0 || self.under_way.contains_key(&instrument) {
            return None;
        }
        let emptied = self.emptied();
        let is_open = |cell: &u16| map.has_cell(*cell) && Some(*cell) != emptied;
        let cells = (0..map.cells()).filter(is_open);
        let cells: Vec<u16> = cells.filter(|cell| *cell != map.cell_of(instrument)).collect();
        let cell = *random.of(&cells)?;
        self.left -= 1;
        self.under_way.insert(instrument, cell);
        Some(request_move(instrument, cell))
    }

    /// The cell that is to have no instruments, because its mediator is to go.
    fn emptied(&self) -> Option<u16> {
        match self.change {
            Some(Change::Remove(NodeId { class: Role::Mediator, index })) => Some(index),
            _ => None,
        }
    }

    /// What it asks for next, if anything: it begins a change, or asks again until control has it.
    pub fn next_change(
        &mut self,
        control: &State,
        network: &Network,
        instruments: u32,
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        if self.change.as_ref().is_some_and(|change| is_made(change, control)) {
            self.change = None;
            self.changed += 1;
        }
        if self.change.is_none() {
            self.changes_left = self.changes_left.checked_sub(1)?;
            self.change = self.draw(control.routes(), network, random);
        }
        let request = match self.change.clone()? {
            Change::Drain(node, is_drained) => AdminRequest::Drain { node, is_drained },
            Change::Add(class, node) => AdminRequest::Add { class, addresses: addresses_of(&node) },
            Change::Remove(node) if node.class == Role::Gateway => {
                let is_drained = control.routes().map.drained().contains(&node);
                match is_drained {
                    true => AdminRequest::Remove { node },
                    false => AdminRequest::Drain { node, is_drained: true },
                }
            }
            Change::Remove(node) => {
                let map = &control.routes().map;
                let is_there = |it: &u32| map.cell_of(*it) == node.index;
                let mut rest = (0..instruments).filter(|_| node.class == Role::Mediator);
                if let Some(instrument) = rest.find(is_there) {
                    let takes_it = |cell: &u16| {
                        let mediator = Role::Mediator.node(*cell);
                        *cell != node.index && !map.drained().contains(&mediator)
                    };
                    // At most one node is drained, and there are three founders.
                    let cell = (0..map.cells()).find(takes_it).unwrap_or(0);
                    self.under_way.entry(instrument).or_insert(cell);
                    return Some(request_move(instrument, self.under_way[&instrument]));
                }
                AdminRequest::Remove { node }
            }
        };
        let mut bytes = vec![];
        nm_wire::write(&request, &mut bytes);
        Some(bytes)
    }

    /// Any change that makes sense now.
    fn draw(
        &mut self,
        routes: &RoutingTable,
        network: &Network,
        random: &mut Random,
    ) -> Option<Change> {
        let map = &routes.map;
        let present: Vec<NodeId> =
            network.all().map(|(id, _)| id).filter(|id| !network.is_removed(*id)).collect();
        let drained: Vec<NodeId> =
            present.iter().copied().filter(|id| map.drained().contains(id)).collect();
        let added: Vec<NodeId> =
            present.iter().copied().filter(|id| network.was_added(*id)).collect();
        match random.below(100) {
            0..25 if drained.is_empty() => {
                let is_it = |id: &NodeId| matches!(id.class, Role::Gateway | Role::Mediator);
                let can_be: Vec<NodeId> = present.into_iter().filter(is_it).collect();
                random.of(&can_be).map(|id| Change::Drain(*id, true))
            }
            0..45 => random.of(&drained).map(|id| Change::Drain(*id, false)),
            45..75 if added.len() < 3 => {
                self.added += 1;
                let address = format!("127.0.0.1:{}", 20_000 + self.added).parse().ok()?;
                let replication = format!("/added-{}", self.added).into();
                let replication = Some(nm_replica::Address::Unix(replication));
                let class = *random.of(Role::ALL)?;
                Some(Change::Add(class, Node { address, replication }))
            }
            _ => random.of(&added).map(|id| Change::Remove(*id)),
        }
    }

    /// An answer; whether another node is to be asked.
    pub fn receive(&mut self, response: AdminResponse) -> bool {
        match response {
            AdminResponse::Moved { instrument, .. } => {
                self.moved += usize::from(self.under_way.remove(&instrument).is_some());
            }
            AdminResponse::Refused { instrument, .. } => {
                self.refused += usize::from(self.under_way.remove(&instrument).is_some());
            }
            AdminResponse::NotLeading => return true,
            AdminResponse::Status { .. } => {}
            other => panic!("{other:?}"),
        }
        false
    }
}

/// Whether control has a change.
fn is_made(change: &Change, control: &State) -> bool {
    let map = &control.routes().map;
    match change {
        Change::Drain(node, is_drained) => map.drained().contains(node) == *is_drained,
        Change::Add(class, node) => matches!(control.plan_add(*class, node), Ok(Some(_))),
        Change::Remove(node) => map.lacks(*node),
    }
}

fn request_move(instrument: InstrumentId, cell: u16) -> Vec<u8> {
    let mut bytes = vec![];
    nm_wire::write(&AdminRequest::Move { instrument, cell }, &mut bytes);
    bytes
}
