//! The fast book: the rules of [`crate::order`] without an allocation per command.
//!
//! - Orders are stored in a slab and found by user and id through a hash table (`order_index`).
//! - Each side is a ladder of price levels, each level an intrusive queue of orders (`ladder`,
//!   `slab`). Pending stops are in two more ladders, by stop price: those that a rising market
//!   triggers and those that a falling one does.
//! - Each order stores its time priority as a number that only rises. Commands that work in order
//!   of priority across levels (mass cancel, bands, end of day, snapshot) collect orders and sort
//!   them. They visit every order once; all other commands touch only what they change.
//! - Orders with an expiry time are in a heap as well (`timers`).
//!
//! The steps of the common commands are always inlined, which saves 7 % of a command's time. The
//! compiler would leave them as calls, because each has several callers.
//!
//! Memory is never freed: after the largest book and the longest cascade of stops, nothing is
//! allocated any more.

mod auction;
mod auction_step;
mod audit;
mod depth;
mod followed;
mod ladder;
mod level;
mod matching;
mod order_index;
mod pegs;
mod slab;
mod timers;

use auction_step::AuctionStep;
pub use auction_step::Indicative;
use followed::Followed;
use ladder::{Key, Ladder, key};
pub use level::Level;
use order_index::OrderIndex;
use slab::{NO_TIMER, NONE, Order, Place, Queue, Slab, Slot};
use timers::Timers;

use crate::limits;
use crate::order::{
    CancelReason, Closing, Command, Event, LiveOrder, Matching, NewOrder, OpenOrder, OrderId,
    OrderType, Peg, PostOnly, Price, Quantity, RejectReason, Side, SnapshotError, TimeInForce,
    TradingPhase, UserId,
};
use crate::snapshot::BookSnapshot;

/// What the ladder of a side's hidden orders has in its number beyond that of the displayed ones.
const HIDDEN: usize = 2;

/// The better of two levels; the first one if they are equal.
fn better(one: Option<(Key, Slot)>, other: Option<(Key, Slot)>) -> Option<(Key, Slot)> {
    match (one, other) {
        (Some(one), Some(other)) if other.0 > one.0 => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}

/// The fast book of one instrument.
#[derive(Debug, Clone)]
pub struct Book {
    phase: TradingPhase,
    phase_before_halt: TradingPhase,
    closing: Closing,
    /// Hidden and pegged orders. Few books have any, so that one look says that nothing of both is
    /// to be done.
    unseen: u32,
    bands: Option<(Price, Price)>,
    last: Option<Price>,
    now_ns: u64,
    orders: Slab,
    index: OrderIndex,
    timers: Timers,
    /// Limit orders: displayed ones of buyers and of sellers, then hidden ones.
    resting: [Ladder; 4],
    /// Pending stops of buyers and of sellers.
    stops: [Ladder; 2],
    /// Market orders in an auction.
    markets: [Queue; 2],
    /// Orders that wait for the closing auction.
    waiting: Queue,
    /// All pegged orders that are in the book, in no order.
    pegs: Vec<Slot>,
    /// What their prices follow, as it was when they did so last. Old if there are none.
    followed: Followed,
    /// Pegged orders that are about to get another price.
    moving: Vec<Slot>,
    last_priority: u64,
    /// Lowest and highest price of trades since stops were last checked.
    trade_range: Option<(Price, Price)>,
    /// Trades that the present command may still make.
    trades_left: u32,
    /// Triggered stops that were not executed yet.
    elected: Vec<Slot>,
    /// Orders that the present command is about to cancel.
    to_cancel: Vec<Slot>,
    /// Volumes of an auction at each price.
    steps: Vec<AuctionStep>,
    /// Hidden and display quantities of the icebergs of a level, while trades are tried.
    hidden: Vec<(Quantity, Quantity)>,
}

impl Matching for Book {
    fn new() -> Book {
        Book {
            phase: TradingPhase::Continuous,
            phase_before_halt: TradingPhase::Continuous,
            closing: Closing::No,
            unseen: 0,
            bands: None,
            last: None,
            now_ns: 0,
            orders: Slab::new(),
            index: OrderIndex::new(),
            timers: Timers::new(),
            resting: [const { Ladder::new() }; 4],
            stops: [Ladder::new(), Ladder::new()],
            markets: [Queue::EMPTY; 2],
            waiting: Queue::EMPTY,
            pegs: vec![],
            followed: Followed::NOTHING,
            moving: vec![],
            last_priority: 0,
            trade_range: None,
            trades_left: 0,
            elected: vec![],
            to_cancel: vec![],
            steps: vec![],
            hidden: vec![],
        }
    }

    #[inline]
    fn apply(&mut self, command: &Command, now_ns: u64, emit: &mut impl FnMut(Event)) {
        self.now_ns = self.now_ns.max(now_ns);
        self.trades_left = limits::COMMAND_TRADES_MAX;
        if self.timers.earliest_ns() <= self.now_ns {
            self.expire(emit);
            self.settle(emit);
        }
        match *command {
            Command::New(ref order) => self.accept_order(order, emit),
            Command::Replace { id, user, price, quantity } => {
                self.replace(id, user, price, quantity, emit);
            }
            Command::Cancel { id, user } => self.cancel(id, user, emit),
            _ => self.apply_market_command(command, emit),
        }
        if self.trade_range.is_some() | (self.unseen > 0) {
            self.settle(emit);
        }
        debug_assert!(!self.is_crossed(), "the best bid is below the best offer");
    }

    fn best(&self, side: Side) -> Option<(Price, Quantity)> {
        let (best, queue) = self.resting[side as usize].next(None)?;
        let shown = queue.slots(&self.orders).map(|slot| self.orders[slot].shown);
        Some((key(side, best), shown.fold(0, Quantity::saturating_add)))
    }

    #[inline]
    fn best_price(&self, side: Side) -> Option<Price> {
        self.best_limit(side)
    }

    fn phase(&self) -> TradingPhase {
        self.phase
    }

    fn closing(&self) -> Closing {
        self.closing
    }

    fn visit_users(&self, visit: &mut impl FnMut(UserId)) {
        self.orders.live().for_each(|(_, order)| visit(order.user));
    }

    fn visit_pegged(&self, visit: &mut impl FnMut(UserId)) {
        self.pegs.iter().for_each(|slot| visit(self.orders[*slot].user));
    }

    fn cancel_all_of(&mut self, user: UserId, emit: &mut impl FnMut(Event)) {
        self.cancel_all(|order| order.user == user, CancelReason::Mass, emit);
    }

    fn visit_open(&self, visit: &mut impl FnMut(OpenOrder)) {
        self.orders.live().for_each(|(_, order)| visit(order.to_snapshot().to_open()));
    }

    fn visit_orders_of(&self, user: UserId, visit: &mut impl FnMut(LiveOrder)) {
        let of_user = self.orders.live().filter(|(_, order)| order.user == user);
        of_user.for_each(|(_, order)| visit(order.to_snapshot().to_live()));
    }

    fn len(&self) -> usize {
        self.orders.len()
    }

    fn hash(&self) -> u64 {
        self.to_snapshot().hash()
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        self.to_snapshot().write(bytes);
    }

    fn load(bytes: &[u8]) -> Result<Book, SnapshotError> {
        let saved = BookSnapshot::read(bytes)?;
        let mut book = Book {
            phase: saved.phase,
            phase_before_halt: saved.phase_before_halt,
            closing: saved.closing,
            bands: saved.bands,
            last: saved.last,
            now_ns: saved.now_ns,
            followed: Followed { best: saved.followed, bands: saved.bands },
            ..Book::new()
        };
        book.reserve(saved.orders.len());
        for order in &saved.orders {
            let mut order = Order::from_snapshot(order, saved.closing);
            if order.peg != Peg::No {
                book.followed.put(&mut order);
            }
            book.insert(&mut order);
        }
        Ok(book)
    }
}

impl Book {
    /// Reserves memory for this number of live orders.
    pub fn reserve(&mut self, orders: usize) {
        self.orders.reserve(orders);
        self.index.reserve(orders);
    }

    fn to_snapshot(&self) -> BookSnapshot {
        let mut orders: Vec<&Order> = self.orders.live().map(|(_, order)| order).collect();
        orders.sort_unstable_by_key(|order| order.priority);
        BookSnapshot {
            phase: self.phase,
            phase_before_halt: self.phase_before_halt,
            closing: self.closing,
            bands: self.bands,
            last: self.last,
            now_ns: self.now_ns,
            followed: if self.pegs.is_empty() { [None; 2] } else { self.followed.best },
            orders: orders.into_iter().map(|order| order.to_snapshot()).collect(),
        }
    }

    fn is_crossed(&self) -> bool {
        let [buy, sell] = [Side::Buy, Side::Sell].map(|side| self.front_price(side));
        self.phase == TradingPhase::Continuous
            && buy.zip(sell).is_some_and(|(buy, sell)| buy >= sell)
    }

    #[inline]
    fn best_limit(&self, side: Side) -> Option<Price> {
        self.resting[side as usize].best().map(|(best, _)| key(side, best))
    }

    /// The best limit of a side, hidden or not, and the order that trades first at it.
    #[inline(always)]
    fn front(&self, side: Side) -> Option<(Key, Slot)> {
        if self.unseen == 0 { self.resting[side as usize].best() } else { self.front_of_both(side) }
    }

    /// [`Book::front`] of a book with hidden orders; apart, because few books have any.
    #[cold]
    #[inline(never)]
    fn front_of_both(&self, side: Side) -> Option<(Key, Slot)> {
        let [displayed, hidden] = [0, HIDDEN].map(|more| self.resting[side as usize | more].best());
        better(displayed, hidden)
    }

    /// The best limit of a side, hidden or not.
    #[inline]
    fn front_price(&self, side: Side) -> Option<Price> {
        self.front(side).map(|(best, _)| key(side, best))
    }

    /// The queues of a side's limits, hidden ones behind displayed ones, best first.
    fn fronts(&self, side: Side) -> impl Iterator<Item = (Key, Queue)> {
        let mut displayed = self.resting[side as usize].levels().peekable();
        let mut hidden = self.resting[side as usize | HIDDEN].levels().peekable();
        std::iter::from_fn(move || match (displayed.peek(), hidden.peek()) {
            (Some((shown, _)), Some((below, _))) if below > shown => hidden.next(),
            (None, _) => hidden.next(),
            _ => displayed.next(),
        })
    }

    /// The order of this user with this id.
    #[inline]
    fn find(&self, id: OrderId, user: UserId) -> Option<Slot> {
        self.index.get((user, id), &self.orders)
    }

    /// Appends an order to the queue in which it belongs. All but the usual one are apart, so that
    /// the code of that one stays small.
    #[inline(always)]
    fn enqueue(&mut self, slot: Slot) {
        let Order { side, place, price, .. } = self.orders[slot];
        if place == Place::Displayed {
            self.resting[side as usize].push(&mut self.orders, key(side, price), slot);
        } else {
            self.enqueue_elsewhere(slot);
        }
    }

    #[inline(never)]
    fn enqueue_elsewhere(&mut self, slot: Slot) {
        let order = &self.orders[slot];
        let (ladder, side) = (order.ladder(), order.side);
        let (level, stop_level) = (key(side, order.price), key(side.opposite(), order.stop_price));
        match order.place {
            Place::Displayed | Place::Hidden => {
                self.resting[ladder].push(&mut self.orders, level, slot);
            }
            Place::Market => self.markets[side as usize].push(&mut self.orders, slot),
            Place::Stop => self.stops[side as usize].push(&mut self.orders, stop_level, slot),
            Place::OnClose => self.waiting.push(&mut self.orders, slot),
            Place::Unpriced => {}
        }
        let Order { place, peg, .. } = self.orders[slot];
        self.unseen += u32::from(matches!(place, Place::Hidden | Place::Unpriced));
        if peg != Peg::No {
            self.pegs.push(slot);
        }
    }

    /// Removes an order from its queue.
    #[inline(always)]
    fn dequeue(&mut self, slot: Slot) {
        let Order { side, place, price, .. } = self.orders[slot];
        if place == Place::Displayed {
            self.resting[side as usize].unlink(&mut self.orders, key(side, price), slot);
        } else {
            self.dequeue_elsewhere(slot);
        }
    }

    #[inline(never)]
    fn dequeue_elsewhere(&mut self, slot: Slot) {
        let order = &self.orders[slot];
        let (ladder, side) = (order.ladder(), order.side);
        let (level, stop_level) = (key(side, order.price), key(side.opposite(), order.stop_price));
        match order.place {
            Place::Displayed | Place::Hidden => {
                self.resting[ladder].unlink(&mut self.orders, level, slot);
            }
            Place::Market => self.markets[side as usize].unlink(&mut self.orders, slot),
            Place::Stop => self.stops[side as usize].unlink(&mut self.orders, stop_level, slot),
            Place::OnClose => self.waiting.unlink(&mut self.orders, slot),
            Place::Unpriced => {}
        }
        let Order { place, peg, .. } = self.orders[slot];
        self.unseen -= u32::from(matches!(place, Place::Hidden | Place::Unpriced));
        if peg != Peg::No {
            self.pegs.retain(|known| *known != slot);
        }
    }

    fn next_priority(&mut self) -> u64 {
        self.last_priority += 1;
        self.last_priority
    }

    /// Adds an order to the book, behind all others: it gets the next priority.
    fn insert(&mut self, order: &mut Order) {
        order.priority = self.next_priority();
        let slot = self.orders.insert(order);
        self.index.insert(order.key(), slot);
        match order.time_in_force {
            TimeInForce::GoodTill(until_ns) if until_ns < u64::MAX => {
                self.timers.insert(&mut self.orders, until_ns, slot);
            }
            _ => {}
        }
        self.enqueue(slot);
    }

    /// Removes an order that is in no queue any more.
    #[inline]
    fn remove(&mut self, slot: Slot) {
        if self.orders[slot].timer != NO_TIMER {
            self.timers.remove(&mut self.orders, slot);
        }
        self.index.remove(self.orders[slot].key(), slot);
        self.orders.remove(slot);
    }

    #[inline]
    fn cancel_order(&mut self, slot: Slot, reason: CancelReason, emit: &mut impl FnMut(Event)) {
        let Order { id, user, left, .. } = self.orders[slot];
        self.dequeue(slot);
        self.remove(slot);
        emit(Event::Cancelled { id, user, left, reason });
    }

    /// Cancels all orders for which a condition holds, in order of priority.
    fn cancel_all(
        &mut self,
        matches: impl Fn(&Order) -> bool,
        reason: CancelReason,
        emit: &mut impl FnMut(Event),
    ) {
        let mut to_cancel = std::mem::take(&mut self.to_cancel);
        to_cancel
            .extend(self.orders.live().filter(|(_, order)| matches(order)).map(|(slot, _)| slot));
        to_cancel.sort_unstable_by_key(|slot| self.orders[*slot].priority);
        for slot in to_cancel.drain(..) {
            self.cancel_order(slot, reason, emit);
        }
        self.to_cancel = to_cancel;
    }

    /// Cancels expired orders, earliest time first.
    #[cold]
    fn expire(&mut self, emit: &mut impl FnMut(Event)) {
        let mut to_cancel = std::mem::take(&mut self.to_cancel);
        while self.timers.earliest_ns() <= self.now_ns {
            let first_ns = self.timers.earliest_ns();
            while self.timers.earliest_ns() == first_ns && first_ns < u64::MAX {
                to_cancel.extend(self.timers.pop(&mut self.orders));
            }
            if to_cancel.is_empty() {
                break;
            }
            to_cancel.sort_unstable_by_key(|slot| self.orders[*slot].priority);
            for slot in to_cancel.drain(..) {
                self.cancel_order(slot, CancelReason::Expired, emit);
            }
        }
        self.to_cancel = to_cancel;
    }

    fn cancel(&mut self, id: OrderId, user: UserId, emit: &mut impl FnMut(Event)) {
        match self.find(id, user) {
            Some(slot) => self.cancel_order(slot, CancelReason::User, emit),
            None => emit(Event::rejected(id, user, RejectReason::UnknownOrder)),
        }
    }

    /// Whether a price lies outside the bands.
    fn is_outside(&self, price: Price) -> bool {
        self.bands.is_some_and(|(low, high)| price < low || price > high)
    }

    /// Executes a command that concerns the market or all orders of a user.
    #[cold]
    fn apply_market_command(&mut self, command: &Command, emit: &mut impl FnMut(Event)) {
        match *command {
            Command::MassCancel { user } => self.cancel_all_of(user, emit),
            Command::Bands { low, high } if low > high => {
                emit(Event::rejected(0, 0, RejectReason::BadCombination));
            }
            Command::Bands { low, high } => {
                self.bands = Some((low, high));
                emit(Event::BandsSet { low, high });
                let matches = |order: &Order| order.limit().is_some_and(|it| it < low || it > high);
                self.cancel_all(matches, CancelReason::Bands, emit);
            }
            Command::Halt if self.phase != TradingPhase::Halted => {
                self.phase_before_halt = self.phase;
                self.phase = TradingPhase::Halted;
                emit(Event::Halted);
            }
            Command::Resume if self.phase == TradingPhase::Halted => {
                self.phase = self.phase_before_halt;
                self.phase_before_halt = TradingPhase::Continuous;
                emit(Event::Resumed);
            }
            Command::BeginAuction if self.phase != TradingPhase::Auction => {
                self.begin_auction(emit);
            }
            Command::ExpectClosing if self.closing == Closing::No => {
                self.closing = Closing::Expected;
            }
            Command::BeginClosing if self.closing != Closing::Begun => {
                self.begin_auction(emit);
                self.join_closing();
            }
            Command::Uncross if self.phase == TradingPhase::Auction => self.uncross(emit),
            Command::Halt
            | Command::Resume
            | Command::BeginAuction
            | Command::ExpectClosing
            | Command::BeginClosing
            | Command::Uncross => {
                emit(Event::rejected(0, 0, RejectReason::WrongState));
            }
            Command::EndOfDay => {
                let is_of_day = |order: &Order| {
                    matches!(order.time_in_force, TimeInForce::Day | TimeInForce::AtClose)
                };
                self.cancel_all(is_of_day, CancelReason::Day, emit);
                self.closing = Closing::No;
            }
            Command::Tick | Command::New(_) | Command::Replace { .. } | Command::Cancel { .. } => {}
        }
    }
}
