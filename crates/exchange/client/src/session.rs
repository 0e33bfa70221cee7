//! A session of the exchange, without I/O and clocks: its requests, its events and its orders.
//!
//! Whoever uses it hands it messages and times, sends its `frames`, and keeps its `changes` before.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use nm_book::order::{Command, Event, NewOrder, RejectReason, Side};
use nm_wire::{
    Message, Owner, RefusalReason, Request, ResendRequest, Resent, Series, SessionPosition,
};

use crate::change::Change;
use crate::open_order::OpenOrder;

/// Requests of a session on an instrument that are in flight: the exchange keeps the outcomes of so
/// many.
const IN_FLIGHT_MAX: usize = 64;

/// After how long a resend request without an answer is repeated, ns.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How long after it is linked a session asks again for all that it lacks, ns. The gateway that it
/// has left may have read its requests late: then the exchange sent events there that nobody took.
/// The second time is longer than any gateway may stand still with heartbeats of 2 s.
const LOOK_AGAIN_NS: [u64; 2] = [2_000_000_000, 8_000_000_000];

/// What the exchange has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// An event of the session.
    Event {
        /// Its instrument.
        instrument: u32,
        /// Its number among the session's events there.
        number: u64,
        /// What it is.
        event: Event,
    },
    /// A request is not executed, and never will be.
    Refused {
        /// Its instrument.
        instrument: u32,
        /// Its number.
        seq: u64,
        /// Why.
        reason: RefusalReason,
        /// The request that the next one on the instrument names as its predecessor.
        previous_seq: u64,
    },
    /// Nobody keeps some events any more: orders may have changed without a word.
    EventsLost {
        /// Their instrument.
        instrument: u32,
        /// Number of the last one.
        last: u64,
    },
    /// The exchange knows more of the session than this client: its state is lost or old, or
    /// somebody else uses the session. Nothing is sent there until it takes over.
    UsedBefore {
        /// The instrument.
        instrument: u32,
        /// Number of the last request that was executed.
        executed_seq: u64,
        /// Number of the last request that this client knows of.
        known_seq: u64,
        /// The session's live orders on the instrument.
        live_orders: u32,
    },
}

impl Happened {
    fn instrument(&self) -> u32 {
        match self {
            Happened::Event { instrument, .. }
            | Happened::Refused { instrument, .. }
            | Happened::EventsLost { instrument, .. }
            | Happened::UsedBefore { instrument, .. } => *instrument,
        }
    }
}

/// A sentence for people.
impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Happened::Event { instrument, number, event } => {
                write!(f, "event {number} on instrument {instrument}: {event:?}")?;
                match event {
                    Event::Rejected { reason, most, asked, .. } => {
                        write!(f, ": {}", reason.sentence(*most, *asked))
                    }
                    Event::Cancelled { reason, .. } => write!(f, ": {}", reason.words()),
                    _ => Ok(()),
                }
            }
            Happened::Refused { instrument, seq, reason, previous_seq } => write!(
                f,
                "request {seq} on instrument {instrument} is refused: {reason}; the next one \
                 follows request {previous_seq}"
            ),
            Happened::EventsLost { instrument, last } => write!(
                f,
                "events on instrument {instrument} up to number {last} are lost: cancel all orders \
                 there to know them again"
            ),
            Happened::UsedBefore { instrument, executed_seq, known_seq, live_orders } => write!(
                f,
                "the exchange has executed request {executed_seq} of this session on instrument \
                 {instrument}, and this client knows of none after {known_seq}: its state is lost \
                 or old, or another client uses the session; {live_orders} orders are live there; \
                 take over to go on"
            ),
        }
    }
}

#[derive(Debug)]
struct Pending {
    seq: u64,
    previous: u64,
    command: Command,
}

/// What is known of a session on an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Knowledge {
    /// Not known: nothing new is sent.
    #[default]
    Unknown,
    /// The exchange knows no more than this client.
    Proven,
    /// It does: the last request that was executed, and the last event.
    UsedBefore(u64, u64),
}

/// A session on an instrument.
#[derive(Debug, Default)]
struct Stream {
    knowledge: Knowledge,
    /// The last request that was submitted and not refused.
    last: u64,
    /// The highest number of a request that was answered, or behind which this client goes on.
    answered: u64,
    pending: VecDeque<Pending>,
    /// How many of them, from the front on, were sent over this link.
    sent: usize,
    /// The last event that was received, and the last one that was handled.
    seen: u64,
    handled: u64,
    asked_ns: Option<u64>,
}

/// A session of the exchange.
#[derive(Debug)]
pub struct Session {
    number: u32,
    last_seq: u64,
    streams: BTreeMap<u32, Stream>,
    /// Those that are open or on their way, if it keeps them.
    orders: BTreeMap<(u32, u64), OpenOrder>,
    has_orders: bool,
    queue: VecDeque<Happened>,
    /// What was given out last, and counts as handled when the next one is asked for.
    handling: Option<Happened>,
    is_connected: bool,
    /// When it asks again for all that it lacks, the latest time first, ns.
    looks_ns: Vec<u64>,
    /// Frames for the gateway.
    pub frames: Vec<u8>,
    /// Changes that must be kept before the frames are sent.
    pub changes: Vec<Change>,
}

impl Session {
    /// A session that has sent nothing.
    pub fn new(number: u32) -> Session {
        Session { has_orders: true, ..Session::without_orders(number) }
    }

    /// A session that has sent nothing, and leaves its orders to its user.
    pub fn without_orders(number: u32) -> Session {
        Session {
            number,
            last_seq: 0,
            streams: BTreeMap::new(),
            orders: BTreeMap::new(),
            has_orders: false,
            queue: VecDeque::new(),
            handling: None,
            is_connected: false,
            looks_ns: vec![],
            frames: vec![],
            changes: vec![],
        }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Requests on an instrument without an answer.
    pub fn pending(&self, instrument: u32) -> usize {
        self.streams.get(&instrument).map_or(0, |stream| stream.pending.len())
    }

    /// Whether the exchange knows more of the session on an instrument than this client, which has
    /// not taken over.
    pub fn is_used_by_others(&self, instrument: u32) -> bool {
        let stream = self.streams.get(&instrument);
        stream.is_some_and(|stream| matches!(stream.knowledge, Knowledge::UsedBefore(..)))
    }

    /// Its orders that are open or on their way, by instrument and id, as of the events that were
    /// handled.
    pub fn orders(&self) -> impl Iterator<Item = (u32, u64, &OpenOrder)> {
        self.orders.iter().map(|((instrument, id), order)| (*instrument, *id, order))
    }

    /// Takes over what was kept.
    pub fn restore(&mut self, change: Change) {
        match change {
            Change::Numbered(seq) => self.last_seq = self.last_seq.max(seq),
            Change::Base(on, seq) => {
                let stream = self.stream(on);
                (stream.last, stream.answered) = (seq, stream.answered.max(seq));
            }
            Change::Submitted(on, seq, command) => {
                self.last_seq = self.last_seq.max(seq);
                self.stream(on).submit(seq, command);
            }
            Change::Answered(on, seq) => {
                self.stream(on).answer(seq);
            }
            Change::Refused(on, seq) => {
                self.stream(on).refuse(seq);
            }
            Change::Handled(on, event) => {
                let stream = self.stream(on);
                (stream.seen, stream.handled) = (event, event);
            }
            Change::Order(on, id, order) => {
                self.orders.insert((on, id), order);
            }
            Change::Gone(on, id) => {
                self.orders.remove(&(on, id));
            }
        }
    }

    /// All that must be kept of it.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![Change::Numbered(self.last_seq)];
        for (on, stream) in &self.streams {
            let last = stream.pending.front().map_or(stream.last, |first| first.previous);
            // Of what nobody has used there is nothing to keep.
            changes.extend((last > 0).then_some(Change::Base(*on, last)));
            changes.extend((stream.handled > 0).then_some(Change::Handled(*on, stream.handled)));
            let pending = stream.pending.iter();
            changes.extend(pending.map(|it| Change::Submitted(*on, it.seq, it.command)));
        }
        let orders = self.orders.iter();
        changes.extend(orders.map(|((on, id), order)| Change::Order(*on, *id, *order)));
        changes
    }

    fn stream(&mut self, instrument: u32) -> &mut Stream {
        self.streams.entry(instrument).or_default()
    }

    /// The number of the next request: the wall clock's, so that no client which has lost its state
    /// uses one again. It serves as the id of a new order as well.
    pub fn next_seq(&self, wall_ns: u64) -> u64 {
        wall_ns.max(self.last_seq + 1)
    }

    /// Submits a command under a number of [`Session::next_seq`]. Where the exchange knows more of
    /// the session, it is refused until the session takes over.
    ///
    /// # Panics
    /// If the number is not above all before.
    pub fn submit(&mut self, instrument: u32, seq: u64, command: Command, now_ns: u64) {
        assert!(seq > self.last_seq, "request {seq} comes after {}", self.last_seq);
        self.last_seq = seq;
        if let Knowledge::UsedBefore(previous_seq, _) = self.stream(instrument).knowledge {
            self.changes.push(Change::Numbered(seq));
            let reason = RefusalReason::UnknownPredecessor;
            let refused = Happened::Refused { instrument, seq, reason, previous_seq };
            return self.queue.push_back(refused);
        }
        self.changes.push(Change::Submitted(instrument, seq, command));
        if let Command::New(NewOrder { id, side, price, quantity, .. }) = command
            && self.has_orders
            && !self.orders.contains_key(&(instrument, id))
        {
            let order = OpenOrder { side, price, left: quantity, is_open: false };
            self.keep_order(instrument, id, Some(order));
        }
        let stream = self.stream(instrument);
        stream.submit(seq, command);
        if stream.knowledge == Knowledge::Unknown && stream.asked_ns.is_none() {
            self.ask(instrument, now_ns);
        }
        self.send_waiting(instrument);
    }

    /// Goes on behind the last request that the exchange has executed on an instrument. Earlier
    /// events are skipped, and earlier orders stay live: a mass cancel ends them. Whether there was
    /// anything to take over.
    pub fn take_over(&mut self, instrument: u32) -> bool {
        let stream = self.stream(instrument);
        let Knowledge::UsedBefore(executed, event) = stream.knowledge else { return false };
        stream.knowledge = Knowledge::Proven;
        (stream.last, stream.answered) = (executed, executed);
        (stream.seen, stream.handled) = (event, event);
        self.last_seq = self.last_seq.max(executed);
        self.changes.push(Change::Numbered(self.last_seq));
        self.changes.push(Change::Base(instrument, executed));
        self.changes.push(Change::Handled(instrument, event));
        self.handling = None;
        self.queue.retain(|it| it.instrument() != instrument);
        true
    }

    /// Goes on where the exchange says that the session stands on an instrument, with the orders
    /// that it has there, unless this client knows of requests there that the exchange does not.
    pub fn resume(&mut self, standing: &SessionPosition) {
        let SessionPosition { instrument, executed_seq, last_event, orders, .. } = standing;
        let stream = self.stream(*instrument);
        if !stream.pending.is_empty() || stream.answered > *executed_seq {
            return;
        }
        stream.knowledge = Knowledge::Unknown;
        (stream.last, stream.answered) = (*executed_seq, *executed_seq);
        (stream.seen, stream.handled) = (*last_event, *last_event);
        self.last_seq = self.last_seq.max(*executed_seq);
        self.changes.push(Change::Numbered(self.last_seq));
        self.changes.push(Change::Base(*instrument, *executed_seq));
        self.changes.push(Change::Handled(*instrument, *last_event));
        self.handling = None;
        self.queue.retain(|it| it.instrument() != *instrument);
        let known = self.orders.keys().filter(|(on, _)| on == instrument);
        for (on, id) in known.copied().collect::<Vec<_>>() {
            self.keep_order(on, id, None);
        }
        let has_orders = self.has_orders;
        for order in orders.iter().filter(|_| has_orders) {
            let side = if order.is_buy { Side::Buy } else { Side::Sell };
            let open = OpenOrder { side, price: order.price, left: order.left, is_open: true };
            self.keep_order(*instrument, order.id, Some(open));
        }
    }

    /// The exchange knows more. What waits for an answer is dropped: it was executed or not, and a
    /// number below that of an executed one would be taken for an old request.
    fn find_used(&mut self, resent: &Resent<'_>, last_event: u64) {
        let Resent { instrument, executed_seq, live_orders, .. } = *resent;
        let stream = self.streams.entry(instrument).or_default();
        let knowledge = Knowledge::UsedBefore(executed_seq, last_event);
        if std::mem::replace(&mut stream.knowledge, knowledge) == knowledge {
            return;
        }
        let known_seq = stream.answered;
        while let Some(seq) = stream.pending.back().map(|last| last.seq) {
            stream.refuse(seq);
            self.changes.push(Change::Refused(instrument, seq));
        }
        let of_it = self.orders.keys().filter(|(on, _)| *on == instrument);
        for (on, id) in of_it.copied().collect::<Vec<_>>() {
            self.keep_order(on, id, None);
        }
        let used = Happened::UsedBefore { instrument, executed_seq, known_seq, live_orders };
        self.queue.push_back(used);
    }

    /// There is a link to a gateway over which the session has said hello.
    pub fn connected(&mut self, now_ns: u64) {
        self.is_connected = true;
        self.looks_ns = LOOK_AGAIN_NS.iter().rev().map(|after_ns| now_ns + after_ns).collect();
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
        let looks_again = self.looks_ns.pop_if(|at_ns| *at_ns <= now_ns).is_some();
        let is_late = |stream: &Stream| {
            let asked = stream.asked_ns;
            looks_again || asked.is_some_and(|ns| now_ns.saturating_sub(ns) >= ASK_AGAIN_NS)
        };
        let late = self.streams.iter().filter(|(_, stream)| is_late(stream));
        let late: Vec<u32> = late.map(|(instrument, _)| *instrument).collect();
        late.into_iter().for_each(|instrument| self.ask(instrument, now_ns));
    }

    /// What has happened next. What was given before counts as handled from now on: until then it
    /// comes again after a restart.
    pub fn next_happened(&mut self) -> Option<Happened> {
        match self.handling.take() {
            Some(Happened::Event { instrument, number, event }) => {
                self.track(instrument, &event);
                self.handled(instrument, number);
            }
            Some(Happened::EventsLost { instrument, last }) => self.handled(instrument, last),
            _ => {}
        }
        self.handling = self.queue.pop_front();
        self.handling.clone()
    }

    fn handled(&mut self, instrument: u32, number: u64) {
        self.stream(instrument).handled = number;
        self.changes.push(Change::Handled(instrument, number));
    }

    /// Handles a message of the gateway.
    pub fn receive(&mut self, message: &Message<'_>, now_ns: u64) {
        match message {
            Message::Reply(it) if it.session == self.number => {
                self.take_events(it.instrument, it.previous_event, it.events, now_ns);
                if self.stream(it.instrument).answer(it.client_seq) {
                    self.changes.push(Change::Answered(it.instrument, it.client_seq));
                    self.send_waiting(it.instrument);
                }
            }
            Message::Private(it) if it.session == self.number => {
                self.take_events(it.instrument, it.previous_event, it.events, now_ns);
            }
            Message::Resent(it) if it.session == self.number => self.take_resent(it, now_ns),
            Message::Refused(it) if it.session == self.number => {
                self.take_refused(it.instrument, it.client_seq, it.reason, now_ns);
            }
            Message::EventsLost(_) => {
                let instruments: Vec<u32> = self.streams.keys().copied().collect();
                instruments.into_iter().for_each(|instrument| self.ask(instrument, now_ns));
            }
            _ => {}
        }
    }

    fn take_refused(&mut self, instrument: u32, seq: u64, reason: RefusalReason, now_ns: u64) {
        let Some(command) = self.stream(instrument).refuse(seq) else { return };
        self.changes.push(Change::Refused(instrument, seq));
        if let Command::New(NewOrder { id, .. }) = command {
            self.drop_draft(instrument, id);
        }
        let stream = self.streams.entry(instrument).or_default();
        let previous_seq = stream.last;
        self.queue.push_back(Happened::Refused { instrument, seq, reason, previous_seq });
        if reason == RefusalReason::UnknownPredecessor && stream.knowledge == Knowledge::Proven {
            // Perhaps somebody else has sent requests.
            stream.knowledge = Knowledge::Unknown;
            self.ask(instrument, now_ns);
        }
        self.send_waiting(instrument);
    }

    fn take_resent(&mut self, resent: &Resent<'_>, now_ns: u64) {
        let Resent { instrument, previous_event, executed_seq, .. } = *resent;
        let last_event = previous_event.saturating_add(resent.events.count() as u64);
        let stream = self.stream(instrument);
        stream.asked_ns = None;
        if executed_seq > stream.answered
            && stream.pending.iter().all(|pending| pending.seq != executed_seq)
        {
            return self.find_used(resent, last_event);
        }
        if stream.knowledge == Knowledge::Unknown {
            stream.knowledge = Knowledge::Proven;
        }
        if resent.has_gap && previous_event > stream.seen {
            stream.seen = previous_event;
            self.queue.push_back(Happened::EventsLost { instrument, last: previous_event });
        }
        self.take_events(instrument, previous_event, resent.events, now_ns);
        self.send_waiting(instrument);
    }

    /// Takes the events that are new, unless earlier ones are missing.
    fn take_events(
        &mut self,
        instrument: u32,
        previous: u64,
        events: Series<'_, Event>,
        now_ns: u64,
    ) {
        let stream = self.streams.entry(instrument).or_default();
        if matches!(stream.knowledge, Knowledge::UsedBefore(..)) {
            return;
        }
        if previous > stream.seen {
            if stream.asked_ns.is_none() {
                self.ask(instrument, now_ns);
            }
            return;
        }
        let mut number = previous;
        for event in events {
            let (Ok(event), Some(next)) = (event, number.checked_add(1)) else { break };
            number = next;
            if number > stream.seen {
                stream.seen = number;
                self.queue.push_back(Happened::Event { instrument, number, event });
            }
        }
    }

    fn ask(&mut self, instrument: u32, now_ns: u64) {
        let (session, is_connected) = (self.number, self.is_connected);
        let stream = self.streams.entry(instrument).or_default();
        if !is_connected {
            return;
        }
        stream.asked_ns = Some(now_ns);
        let acknowledged = stream.seen;
        let request = ResendRequest { instrument, session, acknowledged, gateway: 0, cell: 0 };
        nm_wire::write(&request, &mut self.frames);
    }

    fn send_waiting(&mut self, instrument: u32) {
        let session = self.number;
        let Some(stream) = self.streams.get_mut(&instrument) else { return };
        while self.is_connected
            && stream.knowledge == Knowledge::Proven
            && stream.sent < IN_FLIGHT_MAX
        {
            let Some(next) = stream.pending.get(stream.sent) else { return };
            let request = Request {
                instrument,
                session,
                client_seq: next.seq,
                previous_seq: next.previous,
                acknowledged: stream.handled,
                intended_ns: 0,
                owner: Owner::default(),
                map_version: 0,
                gateway: 0,
                cell: 0,
                attempt: 0,
                is_previous_answered: stream.sent == 0,
                breach: 0,
                command: next.command,
            };
            nm_wire::write(&request, &mut self.frames);
            stream.sent += 1;
        }
    }

    /// Keeps what an event says of the session's orders.
    fn track(&mut self, on: u32, event: &Event) {
        let number = self.number;
        match *event {
            Event::Accepted { id, .. } => self.change_order(on, id, |order| order.is_open = true),
            Event::Rejected { id, reason, .. } if reason != RejectReason::DuplicateId => {
                self.drop_draft(on, id);
            }
            Event::Traded { maker, taker, maker_user, taker_user, .. } => {
                let Event::Traded { maker_left, taker_left, .. } = *event else { return };
                let sides = [(maker, maker_user, maker_left), (taker, taker_user, taker_left)];
                for (id, _, left) in sides.into_iter().filter(|(_, user, _)| *user == number) {
                    self.change_order(on, id, |order| order.left = left);
                }
            }
            Event::Cancelled { id, .. } => self.change_order(on, id, |order| order.left = 0),
            Event::Replaced { id, price, quantity, .. } => {
                self.change_order(on, id, |order| (order.price, order.left) = (price, quantity));
            }
            Event::Reduced { id, left, .. } => self.change_order(on, id, |it| it.left = left),
            Event::Slid { id, price, .. } => self.change_order(on, id, |it| it.price = price),
            _ => {}
        }
    }

    fn change_order(&mut self, on: u32, id: u64, change: impl FnOnce(&mut OpenOrder)) {
        let Some(mut order) = self.orders.get(&(on, id)).copied() else { return };
        change(&mut order);
        self.keep_order(on, id, (order.left > 0).then_some(order));
    }

    /// Drops an order that never was open.
    fn drop_draft(&mut self, on: u32, id: u64) {
        if self.orders.get(&(on, id)).is_some_and(|order| !order.is_open) {
            self.keep_order(on, id, None);
        }
    }

    fn keep_order(&mut self, on: u32, id: u64, order: Option<OpenOrder>) {
        match order {
            Some(order) => {
                self.orders.insert((on, id), order);
                self.changes.push(Change::Order(on, id, order));
            }
            None => {
                self.orders.remove(&(on, id));
                self.changes.push(Change::Gone(on, id));
            }
        }
    }
}

impl Stream {
    fn submit(&mut self, seq: u64, command: Command) {
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

    /// Removes a request that was answered; whether it was pending.
    fn answer(&mut self, seq: u64) -> bool {
        let is_pending = self.take(seq);
        if is_pending {
            self.answered = self.answered.max(seq);
        }
        is_pending
    }

    /// Removes a request that was refused: what follows it names the one before it.
    fn refuse(&mut self, seq: u64) -> Option<Command> {
        let &Pending { previous, command, .. } = self.pending.iter().find(|it| it.seq == seq)?;
        if self.last == seq {
            self.last = previous;
        }
        for next in self.pending.iter_mut().filter(|next| next.previous == seq) {
            next.previous = previous;
        }
        self.take(seq).then_some(command)
    }
}
