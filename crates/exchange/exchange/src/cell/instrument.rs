//! One instrument of a cell: its book, and its sessions.

use std::collections::BTreeMap;

use nm_book::codec;
use nm_book::limits::PEGS_MAX;
use nm_book::order::{
    CancelReason, Command, Event, InstrumentId, Matching, Price, RejectReason, Side, SnapshotError,
    UserId,
};
use nm_codec::{Put, Reader, fnv1a, fnv1a_on};

use crate::background::Background;
use crate::limits::{ORDERS_MAX, SESSION_ORDERS_MAX};
use crate::moves::CopyStart;

use super::copy::InstrumentCopy;
use super::exposure::Exposure;
use super::handled::{CellLoadError, Handled};
use super::holdings::OwnerLedger;
use nm_wire::{Holdings, LimitCheck, OrdersLimit, Owner, Request, Value};

use super::request::{DESK, authorized_command, is_broadcast, rejection};
use super::session::{Outcome, Session, event_recipients, read_session, write_session};
use super::watched::EXCHANGE_SEQ;

/// Live orders from which on a book is saved and loaded by another thread. With fewer it takes less
/// than 2 ms.
const LARGE_ORDERS_MIN: usize = 4_096;

/// About how many bytes an order has in a saved book.
const ORDER_BYTES: usize = 100;

/// Buffers that are used for one request after the other.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Events of the present request, as bytes.
    codes: Vec<u8>,
    /// Recipients and events of the present request, by recipient and then in order.
    pub notifications: Vec<(UserId, Event)>,
    /// What the book executed of the present request.
    pub applied: Applied,
    /// By how much the present request has changed the live orders of owners.
    pub order_changes: Vec<(Owner, i64)>,
    /// The best prices, if the present request has changed them.
    pub new_best: Option<Best>,
}

/// The best bid and the best offer.
pub type Best = [Option<Price>; 2];

/// What a book executed of a request.
#[derive(Debug, Clone, Copy, Default)]
pub enum Applied {
    /// Its command.
    #[default]
    Command,
    /// A tick in its place, because a limit was reached.
    Tick,
    /// Nothing.
    Nothing,
}

/// What the execution of a request depends on beside the instrument.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The time of the request's batch, ns since 1970.
    pub now_ns: u64,
    /// Whether a session that is not known may begin at any sequence number.
    pub accepts_unknown_sessions: bool,
    /// What the cell says to one more order of the session, or to a change of one.
    pub check: LimitCheck,
}

/// One instrument.
#[derive(Debug)]
pub struct InstrumentState<M> {
    /// Its order book.
    pub book: M,
    /// Sequence number of the last request that was executed.
    pub output_seq: u64,
    /// Sequence number of the last broadcast. It begins at the time of the first request, ns,
    /// so that a book that begins again does not repeat the numbers of the one before.
    pub public_seq: u64,
    /// Hash of all requests that were executed, in order, and of their events. The state follows
    /// from them, so copies of an instrument with equal history are equal.
    pub history: u64,
    /// Whose request made it, until an operator removes what that owner has.
    pub maker: Owner,
    /// Its sessions.
    pub sessions: BTreeMap<UserId, Session>,
    /// Live orders of each owner. Not saved: the book has them.
    orders_of: BTreeMap<Owner, u32>,
    /// What firms with limits have here.
    pub exposure: Exposure,
}

impl<M: Matching> InstrumentState<M> {
    /// One without requests, whose first one gets the number after `output_seq`.
    pub fn new(now_ns: u64, output_seq: u64) -> InstrumentState<M> {
        InstrumentState {
            book: M::new(),
            output_seq,
            public_seq: now_ns,
            history: 0,
            maker: Owner::NOBODY,
            sessions: BTreeMap::new(),
            orders_of: BTreeMap::new(),
            exposure: Exposure::default(),
        }
    }

    /// Whether a request is the next one of its session.
    fn is_due(known: Option<&Session>, request: &Request, at: Circumstances) -> bool {
        let last_request_seq = known.map_or(0, |session| session.last_request_seq);
        let is_cut = known.is_some_and(Session::is_cut) && request.previous_seq > last_request_seq;
        let is_unknown = at.accepts_unknown_sessions && last_request_seq == 0;
        let is_accepted = (is_unknown || is_cut) && request.is_previous_answered;
        request.previous_seq == last_request_seq || is_accepted
    }

    /// Whether a request would be executed on an instrument without sessions.
    pub fn is_first(request: &Request, at: Circumstances) -> bool {
        Self::is_due(None, request, at)
    }

    /// Handles a request. `copy` gets what it is about to change.
    pub fn handle(
        &mut self,
        request: &Request,
        at: Circumstances,
        buffers: &mut Buffers,
        mut copy: Option<&mut InstrumentCopy>,
        emit: impl FnMut(&Event),
    ) -> Handled {
        let known = self.sessions.get_mut(&request.session);
        if let Some(copy) = &mut copy {
            copy.before_change(request.session, known.as_deref());
        }
        if let Some(session) = known {
            if request.client_seq <= session.last_request_seq {
                if request.client_seq == EXCHANGE_SEQ {
                    return self.cancel_away(request, at, buffers, copy, emit);
                }
                session.gateway = request.gateway;
                session.acknowledge(request.acknowledged);
                return Handled::Duplicate(session.outcome(request.client_seq));
            }
            session.gateway = request.gateway;
            session.acknowledge(request.acknowledged);
        } else if request.client_seq == EXCHANGE_SEQ {
            return Handled::Duplicate(None);
        }
        if !Self::is_due(self.sessions.get(&request.session), request, at) {
            return Handled::SequenceGap;
        }
        let session = self.sessions.entry(request.session);
        let session = session.or_insert_with(|| Session::new(request.owner, request.gateway));
        // A session that was cut has its gap already.
        if request.previous_seq != session.last_request_seq && !session.is_cut() {
            session.begin_after_lost_books(request.acknowledged);
        }
        let outcome = self.execute::<true>(request, at, buffers, copy, emit);
        self.sessions.entry(request.session).or_default().push_outcome(outcome);
        Handled::Executed(outcome)
    }

    /// Cancels the orders of a session that is away, if it has any. Nothing else of it changes: its
    /// next request is the one behind its last one.
    fn cancel_away(
        &mut self,
        request: &Request,
        at: Circumstances,
        buffers: &mut Buffers,
        copy: Option<&mut InstrumentCopy>,
        emit: impl FnMut(&Event),
    ) -> Handled {
        let known = self.sessions.get(&request.session);
        if known.is_none_or(|session| session.live_orders == 0) {
            return Handled::Duplicate(None);
        }
        Handled::Executed(self.execute::<false>(request, at, buffers, copy, emit))
    }

    /// Executes a request whose turn it is; `IS_OWN`: the session has sent it.
    fn execute<const IS_OWN: bool>(
        &mut self,
        request: &Request,
        at: Circumstances,
        Buffers { codes, notifications, order_changes, applied, new_best }: &mut Buffers,
        mut copy: Option<&mut InstrumentCopy>,
        mut emit: impl FnMut(&Event),
    ) -> Outcome {
        let now_ns = at.now_ns;
        let full = self.full(request, at.check);
        let mut events = 0;
        codes.clear();
        notifications.clear();
        order_changes.clear();
        *applied = Applied::Command;
        let best_before = self.best();
        let mut on_event = |event: Event| {
            let event = match request.session {
                _ if !IS_OWN => cancelled_by(CancelReason::Disconnected, event),
                DESK => cancelled_by(CancelReason::Operator, event),
                _ => event,
            };
            codec::write_event(&event, codes);
            events += u64::from(is_broadcast(&event));
            let recipients = event_recipients(&event, request.session);
            notifications.extend(recipients.map(|user| (user, event)));
            emit(&event);
        };
        match authorized_command(request) {
            Ok(_) if let Some(rejected) = full => {
                // Its orders that have expired leave all the same.
                *applied = Applied::Tick;
                self.book.apply(&Command::Tick, now_ns, &mut on_event);
                on_event(rejected);
            }
            Ok(command) => self.book.apply(&command, now_ns, &mut on_event),
            Err(rejected) => {
                *applied = Applied::Nothing;
                on_event(rejected);
            }
        }
        self.output_seq += 1;
        let outcome = Outcome {
            client_seq: request.client_seq,
            output_seq: self.output_seq,
            events_hash: fnv1a(codes),
        };
        self.record(request, &outcome);
        let best = self.best();
        *new_best = (best != best_before).then_some(best);
        self.public_seq += events + u64::from(new_best.is_some());
        notifications.sort_by_key(|(user, _)| *user);
        for (user, event) in notifications.iter() {
            // The owner of an order has sent a request here before.
            let session = self.sessions.entry(*user).or_default();
            if let Some(copy) = &mut copy {
                copy.before_change(*user, Some(session));
            }
            let before = session.live_orders;
            session.push_event(*user, *event);
            if session.live_orders != before {
                let change = i64::from(session.live_orders) - i64::from(before);
                order_changes.push((session.owner, change));
            }
        }
        for (owner, change) in order_changes.iter() {
            self.change_orders(*owner, *change);
        }
        outcome
    }

    fn best(&self) -> Best {
        [Side::Buy, Side::Sell].map(|side| self.book.best_price(side))
    }

    /// The rejection of a new order or of a replacement, if a limit is reached: `check` is what
    /// the cell says.
    fn full(&self, request: &Request, check: LimitCheck) -> Option<Event> {
        let of_owner = of_owner(check.limit);
        let reason = match request.command {
            Command::New(_) | Command::Replace { .. } if of_owner.is_some() => of_owner?,
            Command::New(order) if order.may_rest(self.book.phase()) => {
                self.too_many(request, check.limit).or_else(|| {
                    order.is_pegged().then(|| self.too_many_pegs(request.session)).flatten()
                })?
            }
            _ => return None,
        };
        let Event::Rejected { id, user, .. } = rejection(request, reason) else { return None };
        Some(Event::Rejected { id, user, reason, most: check.most, asked: check.asked })
    }

    /// Why a new order that may rest is rejected, if so: `limit` is what the cell says.
    fn too_many(&self, request: &Request, limit: OrdersLimit) -> Option<RejectReason> {
        let session = self.sessions.get(&request.session)?;
        let own = self.orders_of(session.owner);
        let has_room = || OwnerLedger::has_room(session.owner, own, self.book.len(), ORDERS_MAX);
        match limit {
            _ if session.live_orders >= SESSION_ORDERS_MAX => Some(RejectReason::TooManyOwnOrders),
            _ if !has_room() => Some(RejectReason::TooManyOwnerOrders),
            OrdersLimit::OwnerInCell => Some(RejectReason::TooManyOwnerCellOrders),
            OrdersLimit::Cell => Some(RejectReason::TooManyCellOrders),
            _ => None,
        }
    }

    /// Why a new pegged order is rejected, if so. The book has few of them, so they are counted.
    fn too_many_pegs(&self, user: UserId) -> Option<RejectReason> {
        let owner = self.sessions.get(&user)?.owner;
        let (mut own, mut all) = (0, 0);
        self.book.visit_pegged(&mut |user| {
            let is_own = self.sessions.get(&user).is_some_and(|known| known.owner == owner);
            (own, all) = (own + u64::from(is_own), all + 1);
        });
        let has_room = OwnerLedger::has_room(owner, own, all, PEGS_MAX);
        (!has_room && all < PEGS_MAX).then_some(RejectReason::TooManyOwnerPegs)
    }

    /// Live orders of an owner.
    pub fn orders_of(&self, owner: Owner) -> u64 {
        self.orders_of.get(&owner).copied().unwrap_or_default().into()
    }

    fn change_orders(&mut self, owner: Owner, change: i64) {
        let known = self.orders_of.entry(owner).or_default();
        *known = (i64::from(*known) + change) as u32;
        if *known == 0 {
            self.orders_of.remove(&owner);
        }
    }

    /// What each owner has of it.
    pub fn holdings(&self) -> BTreeMap<Owner, Holdings> {
        let mut all = BTreeMap::<Owner, Holdings>::new();
        all.entry(self.maker).or_default().instruments += 1;
        for session in self.sessions.values() {
            let known = all.entry(session.owner).or_default();
            known.sessions += 1;
            known.orders += u64::from(session.live_orders);
        }
        all
    }

    /// Removes a session, and its orders: they are cancelled, and there is nobody to tell. `copy`
    /// gets what it is about to change. The session is no more; how many orders it had.
    pub fn retire(&mut self, user: UserId, copy: Option<&mut InstrumentCopy>) -> Option<Session> {
        let session = self.sessions.remove(&user)?;
        if let Some(copy) = copy {
            copy.before_change(user, Some(&session));
        }
        if session.live_orders > 0 {
            self.book.cancel_all_of(user, &mut |_| {});
            self.change_orders(session.owner, -i64::from(session.live_orders));
        }
        self.history = fnv1a_on(self.history, b"retired");
        self.history = fnv1a_on(self.history, &user.to_le_bytes());
        Some(session)
    }

    /// Adds an executed request to the history.
    fn record(&mut self, request: &Request, outcome: &Outcome) {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&request.session.to_le_bytes());
        bytes[4..12].copy_from_slice(&outcome.client_seq.to_le_bytes());
        bytes[12..].copy_from_slice(&outcome.events_hash.to_le_bytes());
        self.history = fnv1a_on(self.history, &bytes);
    }

    /// Puts a book in the place of the empty one.
    pub fn set_book(&mut self, loaded: LoadedBook<M>) {
        self.book = loaded.book;
        for (user, orders) in loaded.live_orders {
            // The owner of an order has sent a request here before.
            let session = self.sessions.entry(user).or_default();
            session.live_orders += orders;
            let owner = session.owner;
            self.change_orders(owner, orders.into());
        }
    }

    /// Begins a copy.
    pub fn begin_copy(&self) -> InstrumentCopy {
        let start = CopyStart {
            output_seq: self.output_seq,
            public_seq: self.public_seq,
            history: self.history,
            sessions: self.sessions.len() as u32,
            maker: self.maker,
        };
        InstrumentCopy::new(start, self.append_book(vec![]))
    }

    /// Appends the saved book to bytes; a large one in another thread, from a copy in memory.
    fn append_book(&self, mut bytes: Vec<u8>) -> Background<Vec<u8>> {
        if self.book.len() < LARGE_ORDERS_MIN {
            self.book.save(&mut bytes);
            return Background::Ready(bytes);
        }
        let book = self.book.clone();
        Background::start(move || {
            book.save(&mut bytes);
            bytes
        })
    }

    /// All of it but the book, as bytes.
    fn save_sessions(&self) -> Vec<u8> {
        let mut bytes = vec![];
        let sessions = self.sessions.len() as u64;
        bytes.put_u64s(&[self.output_seq, self.public_seq, self.history]);
        self.maker.put(&mut bytes);
        self.exposure.save(&mut bytes);
        bytes.put_u64(sessions);
        for (session, known) in &self.sessions {
            write_session(*session, known, &mut bytes);
        }
        bytes
    }

    /// All of it as bytes.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = self.save_sessions();
        self.book.save(&mut bytes);
        bytes
    }

    /// The same as [`InstrumentState::save`], where another thread saves a large book.
    pub fn begin_save(&self) -> Background<Vec<u8>> {
        self.append_book(self.save_sessions())
    }

    /// Drops it; in another thread if its book is large.
    pub fn drop_elsewhere(self) {
        if self.book.len() >= LARGE_ORDERS_MIN {
            Background::start(move || drop(self));
        }
    }

    /// An instrument from what [`InstrumentState::save`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a saved instrument.
    pub fn load(
        instrument: InstrumentId,
        bytes: &[u8],
    ) -> Result<InstrumentState<M>, CellLoadError> {
        let mut reader = Reader::new(bytes);
        let mut state = InstrumentState::new(0, 0);
        state.output_seq = reader.u64("output_seq")?;
        state.public_seq = reader.u64("public_seq")?;
        state.history = reader.u64("history")?;
        state.maker = Owner::take("maker", &mut reader)?;
        state.exposure = Exposure::load(&mut reader)?;
        for _ in 0..reader.u64("sessions")? {
            let (session, known) = read_session(&mut reader)?;
            state.sessions.insert(session, known);
        }
        let loaded = LoadedBook::load(reader.rest());
        state.set_book(loaded.map_err(|source| CellLoadError::Book { instrument, source })?);
        Ok(state)
    }
}

/// Why a new order or a replacement is rejected by what holds for the firm or owner of its session,
/// if so.
#[inline]
fn of_owner(limit: OrdersLimit) -> Option<RejectReason> {
    match limit {
        OrdersLimit::None | OrdersLimit::OwnerInCell | OrdersLimit::Cell => None,
        OrdersLimit::Stopped => Some(RejectReason::OwnerStopped),
        OrdersLimit::FirmQuantity => Some(RejectReason::FirmQuantity),
        OrdersLimit::FirmOrderValue => Some(RejectReason::FirmOrderValue),
        OrdersLimit::FirmOrders => Some(RejectReason::FirmOrders),
        OrdersLimit::FirmValue => Some(RejectReason::FirmValue),
        OrdersLimit::FirmPosition => Some(RejectReason::FirmPosition),
        OrdersLimit::FirmNeedsPrice => Some(RejectReason::FirmNeedsPrice),
    }
}

/// The same event, where not the session itself cancels all of its orders: its owner learns why.
fn cancelled_by(reason: CancelReason, event: Event) -> Event {
    match event {
        Event::Cancelled { id, user, left, reason: CancelReason::Mass } => {
            Event::Cancelled { id, user, left, reason }
        }
        other => other,
    }
}

/// A book that was loaded, with what its sessions have to know of it.
#[derive(Debug)]
pub struct LoadedBook<M> {
    book: M,
    /// Live orders of each user.
    live_orders: BTreeMap<UserId, u32>,
}

impl<M: Matching> LoadedBook<M> {
    /// # Errors
    /// If the bytes are not a saved book.
    pub fn load(bytes: &[u8]) -> Result<LoadedBook<M>, SnapshotError> {
        let book = M::load(bytes)?;
        let mut live_orders = BTreeMap::new();
        book.visit_users(&mut |user| *live_orders.entry(user).or_default() += 1);
        Ok(LoadedBook { book, live_orders })
    }

    /// The same, where another thread loads a large book.
    pub fn begin_load(bytes: Vec<u8>) -> Background<Result<LoadedBook<M>, SnapshotError>> {
        if bytes.len() < LARGE_ORDERS_MIN * ORDER_BYTES {
            return Background::Ready(LoadedBook::load(&bytes));
        }
        Background::start(move || LoadedBook::load(&bytes))
    }
}
