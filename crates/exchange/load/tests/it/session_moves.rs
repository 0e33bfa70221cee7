//! Sessions move from link to link at random moments, on a simulated network: no request is lost,
//! doubled or reordered, and every event arrives.

use std::collections::{BTreeMap, VecDeque};

use nm_book::order::{Command, Event};
use nm_codec::{FNV1A, fnv1a_on};
use nm_load::OrderRequest;
use nm_load::clients::Clients;
use nm_load::log::Record;
use nm_wire::{Frame, Message, Private, Reply, Request, ResendRequest, Resent, Series};
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

/// What a client sends.
#[derive(Debug, Clone, Copy)]
enum Up {
    Request(Request),
    Resend(ResendRequest),
}

/// A frame for a session, and the gateway of its last request if another session caused it.
type Down = (Option<u16>, Vec<u8>);

fn frame(message: Message<'_>) -> Vec<u8> {
    let mut bytes = vec![];
    message.write(nm_wire::Shape::default(), &mut bytes);
    bytes
}

/// A link to a gateway: frames on their way, and the last request that came of each pair.
#[derive(Debug, Default)]
struct Wire {
    id: u16,
    up: VecDeque<Up>,
    /// Frames.
    down: VecDeque<Vec<u8>>,
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
    events.iter().for_each(|event| bytes.extend(nm_wire::encode(event)));
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
        while let Some(frame) = nm_wire::read(bytes).unwrap() {
            self.current.up.push_back(match Message::read(frame).unwrap() {
                Message::Request(request) => Up::Request(request),
                Message::ResendRequest(request) => Up::Resend(request),
                other => panic!("{other:?}"),
            });
            bytes = &bytes[frame.bytes.len()..];
        }
        self.out.clear();
    }

    /// The gateway of a link, and the cell, have a frame; what they send.
    fn execute(&mut self, link: &mut Wire, up: Up) -> Vec<Down> {
        match up {
            Up::Request(request) => self.execute_request(link, &request),
            Up::Resend(request) => {
                let ResendRequest { instrument, session, acknowledged, gateway, cell } = request;
                let known = self.pairs.get(&(session, instrument));
                let events = known.map_or(&[][..], |known| &known.events[..]);
                let from = events.len().min(acknowledged as usize);
                let bytes = encoded(&events[from..]);
                let resent = Resent {
                    instrument,
                    session,
                    previous_event: from as u64,
                    executed_seq: 0,
                    live_orders: 0,
                    gateway,
                    cell,
                    has_gap: false,
                    events: Series::of(&bytes),
                };
                vec![(None, frame(Message::Resent(resent)))]
            }
        }
    }

    fn execute_request(&mut self, link: &mut Wire, request: &Request) -> Vec<Down> {
        let Request { instrument, session, client_seq, previous_seq, .. } = *request;
        let pair = (session, instrument);
        // As a gateway has it: the first is the oldest without a reply, each names the one before.
        let last = link.last.insert(pair, client_seq);
        assert!(last.is_none_or(|last| previous_seq == last), "{request:?} after {last:?}");
        let known = self.pairs.entry(pair).or_default();
        known.link = link.id;
        let reply = Reply {
            instrument,
            session,
            client_seq,
            output_seq: 1,
            previous_event: known.events.len() as u64,
            events_hash: 0,
            intended_ns: request.intended_ns,
            map_version: 0,
            gateway: link.id,
            cell: 0,
            is_repeated: false,
            is_expired: false,
            events: Series::of(&[]),
        };
        if client_seq <= known.last_seq {
            return vec![(None, frame(Message::Reply(Reply { is_repeated: true, ..reply })))];
        }
        assert_eq!(previous_seq, known.last_seq, "a request is missing before {request:?}");
        known.last_seq = client_seq;
        self.executed += 1;
        let event = Event::Accepted { id: self.executed, user: session };
        known.events.push(event);
        let bytes = encoded(&[event]);
        let reply = Reply { events: Series::of(&bytes), ..reply };
        let mut sent = vec![(None, frame(Message::Reply(reply)))];
        // Another session on the instrument has an event as well.
        let other = (session + 1) % (SESSIONS + 1);
        if let Some(known) = self.pairs.get_mut(&(other, instrument)) {
            let event = Event::Accepted { id: self.executed, user: other };
            let bytes = encoded(&[event]);
            let private = Private {
                instrument,
                session: other,
                output_seq: 1,
                previous_event: known.events.len() as u64,
                gateway: known.link,
                cell: 0,
                is_astray: false,
                events: Series::of(&bytes),
            };
            known.events.push(event);
            sent.push((Some(known.link), frame(Message::Private(private))));
        }
        sent
    }

    /// Puts events of other sessions on the link of their last request; if that is gone, on the
    /// present one.
    fn distribute(&mut self, sent: Vec<Down>, link: &mut Wire) {
        for (of_other, bytes) in sent {
            let before = self.before.as_mut().filter(|before| Some(before.id) == of_other);
            match (of_other, before) {
                (None, _) => link.down.push_back(bytes),
                (Some(gateway), _) if gateway == link.id => link.down.push_back(bytes),
                (Some(_), Some(before)) => before.down.push_back(bytes),
                (Some(_), None) => self.current.down.push_back(bytes),
            }
        }
    }

    fn receive(&mut self, bytes: &[u8], is_before: bool) {
        let frame: Frame<'_> = nm_wire::read(bytes).unwrap().unwrap();
        let (message, out) = (Message::read(frame).unwrap(), &mut self.out);
        let (reply, record) = match is_before {
            true => self.clients.receive_late(0, &message, 1, out),
            false => self.clients.receive(0, &message, 1, out),
        };
        if let Some(reply) = reply {
            assert!(matches!(record, Some(Record::Answered(_))), "{record:?}");
            assert_eq!(reply.refused, None);
            let Message::Reply(Reply { session, instrument, client_seq, .. }) = message else {
                panic!("{message:?}");
            };
            self.answered.entry((session, instrument)).or_default().push(client_seq);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit(session, instrument) => {
                let (command, size_bytes) = (Command::Tick, 9_000);
                let request = OrderRequest { session, instrument, command, size_bytes };
                assert!(self.clients.submit(&request, 1, &mut self.out).is_some());
            }
            Step::Execute { is_before: true } => {
                let Some(mut link) = self.before.take() else { return };
                let sent = link.up.pop_front().map(|up| self.execute(&mut link, up));
                self.distribute(sent.unwrap_or_default(), &mut link);
                self.before = Some(link);
            }
            Step::Execute { is_before: false } => {
                let mut link = std::mem::take(&mut self.current);
                let sent = link.up.pop_front().map(|up| self.execute(&mut link, up));
                self.current = link;
                let mut own = Wire { id: self.current.id, ..Wire::default() };
                self.distribute(sent.unwrap_or_default(), &mut own);
                self.current.down.append(&mut own.down);
            }
            Step::ExecuteLate => self.execute_late(),
            Step::Receive { is_before } => {
                let link = if is_before { self.before.as_mut() } else { Some(&mut self.current) };
                if let Some(frame) = link.and_then(|link| link.down.pop_front()) {
                    self.receive(&frame, is_before);
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
        if let Some(Up::Request(request)) = link.up.pop_front() {
            let mut sent = self.execute_request(&mut link, &request);
            sent.retain(|(of_other, _)| of_other.is_some());
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
