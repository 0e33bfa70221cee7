//! Sessions move from link to link at random moments, on a simulated network: no request is lost,
//! doubled or reordered, and every event arrives.

use std::collections::{BTreeMap, VecDeque};

use nm_book::codec;
use nm_book::order::{Command, Event};
use nm_codec::{FNV1A, fnv1a_on};
use nm_exchange::wire::{self, FrameKind, Header};
use nm_load::OrderRequest;
use nm_load::clients::Clients;
use nm_load::log::Record;
use proptest::prelude::*;

const SESSIONS: u32 = 4;
const INSTRUMENTS: u32 = 2;

/// A session on an instrument.
type Pair = (u32, u32);

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A session sends a request.
    Submit(u32, u32),
    /// The network takes a frame from the link, or from the link before.
    Execute { is_before: bool },
    /// It takes a frame from a link that is gone.
    ExecuteLate,
    /// The client receives a frame over the link, or over the link before.
    Receive { is_before: bool },
    /// The gateway leaves, and there is a new link.
    Move,
    /// Sessions wait no longer.
    End,
    /// The link before breaks.
    BreakBefore,
    /// The link breaks, and is made again.
    Break,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..=SESSIONS, 0..INSTRUMENTS).prop_map(|(at, on)| Step::Submit(at, on)),
        8 => any::<bool>().prop_map(|is_before| Step::Execute { is_before }),
        2 => Just(Step::ExecuteLate),
        8 => any::<bool>().prop_map(|is_before| Step::Receive { is_before }),
        2 => Just(Step::Move),
        1 => Just(Step::End),
        1 => Just(Step::BreakBefore),
        1 => Just(Step::Break),
    ]
}

/// A link to a gateway: frames on their way, and the last request that came of each pair.
#[derive(Debug, Default)]
struct Wire {
    id: u16,
    up: VecDeque<Header>,
    down: VecDeque<(Header, Vec<u8>)>,
    last: BTreeMap<Pair, u64>,
}

/// What a cell knows of a pair.
#[derive(Debug, Default)]
struct Known {
    last_seq: u64,
    /// The link of its last request.
    link: u16,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Simulation {
    clients: Clients,
    out: Vec<u8>,
    current: Wire,
    before: Option<Wire>,
    /// Links that are gone, whose gateways still have requests.
    gone: Vec<Wire>,
    pairs: BTreeMap<Pair, Known>,
    executed: u64,
    /// By pair: numbers of the requests that were answered.
    answered: BTreeMap<Pair, Vec<u64>>,
    is_smooth: bool,
}

fn encoded(events: &[Event]) -> Vec<u8> {
    let mut bytes = vec![];
    events.iter().for_each(|event| codec::write_event(event, &mut bytes));
    bytes
}

impl Simulation {
    fn new() -> Simulation {
        Simulation {
            clients: Clients::new(SESSIONS, INSTRUMENTS, 1, false),
            out: vec![],
            current: Wire::default(),
            before: None,
            gone: vec![],
            pairs: BTreeMap::new(),
            executed: 0,
            answered: BTreeMap::new(),
            is_smooth: true,
        }
    }

    /// What the client has written is on its way over the link.
    fn send(&mut self) {
        let mut bytes = &self.out[..];
        while let Some(frame) = wire::read(bytes).unwrap() {
            self.current.up.push_back(frame.header);
            bytes = &bytes[frame.bytes.len()..];
        }
        self.out.clear();
    }

    /// The gateway of a link, and the cell, have a frame; what they send.
    fn execute(&mut self, link: &mut Wire, header: &Header) -> Vec<(Header, Vec<u8>)> {
        let pair = (header.session, header.instrument);
        if header.kind == FrameKind::ResendRequest {
            let events = self.pairs.get(&pair).map_or(&[][..], |known| &known.events[..]);
            let from = events.len().min(header.output_seq as usize);
            let (kind, flags, previous_seq) = (FrameKind::Private, wire::RESENT, from as u64);
            let body = encoded(&events[from..]);
            return vec![(Header { kind, flags, previous_seq, ..*header }, body)];
        }
        // As a gateway has it: the first is the oldest without a reply, each names the one before.
        let last = link.last.insert(pair, header.client_seq);
        assert!(last.is_none_or(|last| header.previous_seq == last), "{header:?} after {last:?}");
        let known = self.pairs.entry(pair).or_default();
        known.link = link.id;
        let reply = Header { kind: FrameKind::Reply, output_seq: 1, ..*header };
        if header.client_seq <= known.last_seq {
            let previous_seq = known.events.len() as u64;
            return vec![(Header { flags: wire::RESENT, previous_seq, ..reply }, vec![0; 8])];
        }
        assert_eq!(header.previous_seq, known.last_seq, "a request is missing before {header:?}");
        known.last_seq = header.client_seq;
        self.executed += 1;
        let event = Event::Accepted { id: self.executed, user: header.session };
        known.events.push(event);
        let previous_seq = known.events.len() as u64 - 1;
        let body = [vec![0; 8], encoded(&[event])].concat();
        let mut sent = vec![(Header { previous_seq, ..reply }, body)];
        // Another session on the instrument has an event as well.
        let other = (header.session + 1) % (SESSIONS + 1);
        if let Some(known) = self.pairs.get_mut(&(other, header.instrument)) {
            let event = Event::Accepted { id: self.executed, user: other };
            let previous_seq = known.events.len() as u64;
            known.events.push(event);
            let (kind, gateway) = (FrameKind::Private, known.link);
            let private = Header { kind, session: other, gateway, previous_seq, ..reply };
            sent.push((private, encoded(&[event])));
        }
        sent
    }

    /// Puts events of other sessions on the link of their last request; if that is gone, on the
    /// present one.
    fn distribute(&mut self, sent: Vec<(Header, Vec<u8>)>, link: &mut Wire) {
        for (header, body) in sent {
            let is_other = header.kind == FrameKind::Private && header.flags & wire::RESENT == 0;
            let before = self.before.as_mut().filter(|before| before.id == header.gateway);
            match (is_other, before) {
                (false, _) => link.down.push_back((header, body)),
                (true, _) if header.gateway == link.id => link.down.push_back((header, body)),
                (true, Some(before)) => before.down.push_back((header, body)),
                (true, None) => self.current.down.push_back((header, body)),
            }
        }
    }

    fn receive(&mut self, (header, body): (Header, Vec<u8>), is_before: bool) {
        let out = &mut self.out;
        let (reply, record) = match is_before {
            true => self.clients.receive_late(0, &header, &body, 1, out),
            false => self.clients.receive(0, &header, &body, 1, out),
        };
        if let Some(reply) = reply {
            assert!(matches!(record, Some(Record::Answered(_))), "{record:?}");
            assert_eq!(reply.refused, None);
            let pair = (header.session, header.instrument);
            self.answered.entry(pair).or_default().push(header.client_seq);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit(session, instrument) => {
                let (command, size_bytes, is_public) = (Command::Tick, 9_000, false);
                let request = OrderRequest { session, instrument, command, size_bytes, is_public };
                assert!(self.clients.submit(&request, 1, &mut self.out).is_some());
            }
            Step::Execute { is_before: true } => {
                let Some(mut link) = self.before.take() else { return };
                let sent = link.up.pop_front().map(|header| self.execute(&mut link, &header));
                self.distribute(sent.unwrap_or_default(), &mut link);
                self.before = Some(link);
            }
            Step::Execute { is_before: false } => {
                let mut link = std::mem::take(&mut self.current);
                let sent = link.up.pop_front().map(|header| self.execute(&mut link, &header));
                self.current = link;
                let mut own = Wire { id: self.current.id, ..Wire::default() };
                self.distribute(sent.unwrap_or_default(), &mut own);
                self.current.down.append(&mut own.down);
            }
            Step::ExecuteLate => self.execute_late(),
            Step::Receive { is_before } => {
                let link = if is_before { self.before.as_mut() } else { Some(&mut self.current) };
                if let Some(frame) = link.and_then(|link| link.down.pop_front()) {
                    self.receive(frame, is_before);
                }
            }
            Step::Move if self.before.is_none() => {
                let next = Wire { id: self.current.id + 1, ..Wire::default() };
                self.before = Some(std::mem::replace(&mut self.current, next));
                self.clients.begin_move(0, &mut self.out);
            }
            Step::End if self.clients.is_moving(0) => {
                self.is_smooth = false;
                self.clients.end_move(0, &mut self.out);
            }
            Step::BreakBefore if self.before.is_some() => {
                self.is_smooth = false;
                self.gone.extend(self.before.take());
                self.clients.end_move(0, &mut self.out);
                self.clients.request_resends(0, None, &mut self.out);
            }
            Step::Break => {
                self.is_smooth = false;
                self.gone.extend(self.before.take());
                let next = Wire { id: self.current.id + 1, ..Wire::default() };
                self.gone.push(std::mem::replace(&mut self.current, next));
                self.out.clear();
                self.clients.connected(0, &mut self.out);
            }
            Step::Move | Step::End | Step::BreakBefore => {}
        }
        self.send();
    }

    /// The gateway of a link that is gone sends on what it has; nobody gets its replies.
    fn execute_late(&mut self) {
        let Some(mut link) = self.gone.pop() else { return };
        if let Some(header) = link.up.pop_front().filter(|it| it.kind == FrameKind::Request) {
            let mut sent = self.execute(&mut link, &header);
            sent.retain(|(header, _)| header.kind == FrameKind::Private);
            let mut nowhere = Wire { id: u16::MAX, ..Wire::default() };
            self.distribute(sent, &mut nowhere);
        }
        if !link.up.is_empty() {
            self.gone.insert(0, link);
        }
    }

    /// The move that is under way ends, and the link before is closed.
    fn finish_before(&mut self) {
        while self.before.as_ref().is_some_and(|it| !it.up.is_empty() || !it.down.is_empty()) {
            self.step(Step::Execute { is_before: true });
            self.step(Step::Receive { is_before: true });
        }
        assert!(!self.clients.is_moving(0), "sessions wait for nothing");
        self.before = None;
    }

    /// Everything that is on its way arrives.
    fn finish(&mut self) {
        let is_idle = |it: &Wire| it.up.is_empty() && it.down.is_empty();
        while !is_idle(&self.current)
            || !self.gone.is_empty()
            || !self.before.as_ref().is_none_or(is_idle)
        {
            for is_before in [true, false] {
                self.step(Step::Execute { is_before });
                self.step(Step::Receive { is_before });
            }
            self.step(Step::ExecuteLate);
        }
    }

    fn check(&self) {
        assert_eq!((self.clients.pending(), self.clients.is_moving(0)), (0, false));
        assert_eq!(self.executed, self.clients.submitted());
        for pair in self.pairs.keys() {
            let answered = &self.answered[pair];
            assert!(answered.is_sorted_by(|a, b| a < b), "{pair:?}: {answered:?}");
        }
        let answered: usize = self.answered.values().map(Vec::len).sum();
        assert_eq!(answered as u64, self.executed, "each has one reply");
        for record in self.clients.all_delivered() {
            let Record::Delivered(delivered) = record else { panic!("{record:?}") };
            let known = &self.pairs[&(delivered.session, delivered.instrument)];
            let hash = fnv1a_on(FNV1A, &encoded(&known.events));
            assert_eq!(
                (delivered.events, delivered.events_hash, delivered.has_gap),
                (known.events.len() as u64, hash, false),
            );
        }
        if self.is_smooth {
            assert_eq!((self.clients.counts.resent, self.clients.counts.repeats), (0, 0));
        }
    }
}

proptest! {
    /// Where nothing breaks and sessions have the time that they need, nothing is even sent twice.
    #[test]
    fn sessions_that_move_lose_double_and_reorder_nothing(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut simulation = Simulation::new();
        steps.into_iter().for_each(|step| simulation.step(step));
        simulation.finish();
        simulation.check();
    }

    #[test]
    fn sessions_that_have_time_to_move_send_nothing_twice(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut simulation = Simulation::new();
        let is_smooth = |step: &Step| !matches!(step, Step::End | Step::Break | Step::BreakBefore);
        for step in steps.into_iter().filter(is_smooth) {
            if matches!(step, Step::Move) {
                simulation.finish_before();
            }
            simulation.step(step);
        }
        simulation.finish();
        simulation.check();
        assert!(simulation.is_smooth);
    }
}
