//! Clients that send sequences of orders on all instruments, and an operator that moves these.

use std::collections::{BTreeMap, VecDeque};

use nm_book::order::{
    Command, InstrumentId, NewOrder, OrderType, PostOnly, SelfTrade, Side, TimeInForce, UserId,
};
use nm_book::testing::Random;
use nm_wire::{Frame, Kind, Reply, Request, Who};

use crate::client::say_hello;
use crate::control::{AdminRequest, AdminResponse, InstrumentMap};
use crate::testing;

use super::audit::Audit;

/// Requests of a session on an instrument without a reply.
const WINDOW: usize = 4;

/// What a client sends on one instrument.
#[derive(Debug, Default)]
struct Stream {
    sent: u64,
    /// Number of the last request.
    last: u64,
    /// Requests without a reply.
    pending: VecDeque<(u64, Vec<u8>)>,
    replies: u64,
}

/// A client with some sessions and a link to one gateway.
#[derive(Debug)]
pub struct Client {
    /// Which gateway.
    pub gateway: usize,
    /// Its link, while it is connected.
    pub wire: Option<usize>,
    sessions: BTreeMap<UserId, u64>,
    streams: BTreeMap<(UserId, InstrumentId), Stream>,
    /// Requests that it sends on each instrument.
    count: u64,
}

impl Client {
    /// A client that sends so many requests of each session on each instrument.
    pub fn new(gateway: usize, sessions: &[UserId], instruments: u32, count: u64) -> Client {
        let streams =
            sessions.iter().flat_map(|session| (0..instruments).map(|it| ((*session, it), ())));
        Client {
            gateway,
            wire: None,
            sessions: sessions.iter().map(|session| (*session, 0)).collect(),
            streams: streams.map(|(key, ())| (key, Stream::default())).collect(),
            count,
        }
    }

    /// Whether all of its requests were sent, and answered.
    pub fn is_done(&self) -> bool {
        let is_done = |stream: &Stream| stream.sent == self.count && stream.pending.is_empty();
        self.streams.values().all(is_done)
    }

    /// Whether there was a reply on every instrument.
    pub fn has_begun(&self) -> bool {
        self.streams.values().all(|stream| stream.replies > 0)
    }

    /// Sessions and instruments on which requests have no reply.
    pub fn waiting(&self) -> Vec<(UserId, InstrumentId)> {
        let waiting = self.streams.iter().filter(|(_, stream)| !stream.pending.is_empty());
        waiting.map(|(key, _)| *key).collect()
    }

    /// What it sends first on a link.
    pub fn hello(&self) -> Vec<u8> {
        let mut bytes = vec![];
        let hello = |session: &UserId| Who::Client { session: *session };
        self.sessions.keys().for_each(|session| say_hello(hello(session), None, &mut bytes));
        for (_, pending) in self.streams.values().flat_map(|stream| &stream.pending) {
            bytes.extend_from_slice(pending);
        }
        bytes
    }

    /// The next request, if there is one to be sent.
    pub fn next_request(&mut self, random: &mut Random) -> Option<Vec<u8>> {
        let has_room = |stream: &Stream| stream.sent < self.count && stream.pending.len() < WINDOW;
        let open: Vec<(UserId, InstrumentId)> =
            self.streams.iter().filter(|(_, it)| has_room(it)).map(|(key, _)| *key).collect();
        let (session, instrument) = *random.of(&open)?;
        let seq = self.sessions.entry(session).or_default();
        *seq += 1;
        let stream = self.streams.entry((session, instrument)).or_default();
        let is_first = stream.pending.is_empty();
        let request = Request {
            client_seq: *seq,
            previous_seq: stream.last,
            is_previous_answered: is_first,
            ..testing::request(session, instrument, order(session, *seq, random))
        };
        let mut bytes = vec![];
        nm_wire::write(&request, &mut bytes);
        stream.sent += 1;
        stream.last = *seq;
        stream.pending.push_back((*seq, bytes.clone()));
        Some(bytes)
    }

    /// A frame comes from its gateway.
    pub fn receive(&mut self, frame: Frame<'_>, audit: &Audit) {
        assert_ne!(frame.kind(), Kind::Refused);
        if frame.kind() != Kind::Reply {
            return;
        }
        let header: Reply<'_> = frame.read().expect("a reply");
        let Reply { session, instrument, client_seq, output_seq, .. } = header;
        assert!(!header.is_expired, "{header:?}");
        let stream = self.streams.get_mut(&(session, instrument)).expect("a session of its own");
        let first = stream.pending.front().map(|(seq, _)| *seq);
        if first != Some(client_seq) {
            assert!(first.is_none_or(|first| first > client_seq), "{header:?} before {first:?}");
            return;
        }
        let outcome = audit.outcome(instrument, session, client_seq);
        assert_eq!(outcome.map(|outcome| outcome.output_seq), Some(output_seq), "{header:?}");
        stream.pending.pop_front();
        stream.replies += 1;
    }

    /// Requests that it has sent.
    pub fn sent(&self) -> u64 {
        self.streams.values().map(|stream| stream.sent).sum()
    }
}

/// An order that rests, or trades with others.
fn order(session: UserId, seq: u64, random: &mut Random) -> Command {
    if random.chance(100) {
        return Command::Cancel { id: u64::from(session) << 32 | random.below(seq), user: session };
    }
    Command::New(NewOrder {
        id: u64::from(session) << 32 | seq,
        user: session,
        side: if random.chance(500) { Side::Buy } else { Side::Sell },
        order_type: OrderType::Limit,
        time_in_force: TimeInForce::GoodTillCancelled,
        price: 100 + random.below(7) as i64,
        stop_price: 0,
        quantity: 1 + random.below(5),
        display: 0,
        minimum: 0,
        post_only: PostOnly::No,
        self_trade: SelfTrade::CancelOldest,
    })
}

/// An operator that moves instruments at random, one move of each at a time.
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
}

impl Operator {
    /// An operator that makes so many moves.
    pub fn new(moves: usize) -> Operator {
        let under_way = BTreeMap::new();
        Operator { mediator: 0, wire: None, under_way, left: moves, moved: 0, refused: 0 }
    }

    /// Whether all of its moves have ended.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.under_way.is_empty()
    }

    /// What it sends first on a link.
    pub fn hello(&self) -> Vec<u8> {
        let mut bytes = vec![];
        say_hello(Who::Operator, None, &mut bytes);
        self.under_way.iter().for_each(|(it, cell)| bytes.extend(request(*it, *cell)));
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
        self.left -= 1;
        let cells = map.cells();
        let by = random.between(1, u64::from(cells)) as u16;
        let cell = (map.cell_of(instrument) + by) % cells;
        self.under_way.insert(instrument, cell);
        Some(request(instrument, cell))
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
            other => panic!("{other:?}"),
        }
        false
    }
}

fn request(instrument: InstrumentId, cell: u16) -> Vec<u8> {
    let mut bytes = vec![];
    nm_wire::write(&AdminRequest::Move { instrument, cell }, &mut bytes);
    bytes
}
