//! The fast book: the rules of [`crate::order`] without an allocation per command.
//!
//! - Orders lie in a slab and are found by name through a hash table of ours (`names`).
//! - Each side is a ladder of price levels, each level a queue threaded through the orders
//!   (`ladder`, `slab`). Stops that wait lie in two more ladders, by stop price: those that a
//!   rising market reaches and those that a falling one does.
//! - Every order carries its place as a number that only rises, so that whatever goes by order of
//!   place across levels (mass cancel, bands, end of day, saving) sorts what it has gathered.
//!   These commands look at every order once; all others touch only what they change.
//! - Orders with a time lie in a heap as well (`timers`).
//!
//! Memory is kept once it was needed: after the largest book and cascade there is no allocation.

mod auction;
mod audit;
mod ladder;
mod matching;
mod names;
mod slab;
mod timers;

use ladder::{Ladder, key};
use names::Names;
use slab::{NONE, Order, Queue, Slab, Slot};
use timers::Timers;

use crate::order::{
    Command, Ending, Event, Kind, Life, Market, Matching, NewOrder, OrderId, PostOnly, Price,
    Quantity, Reason, Side, Unreadable, UserId,
};
use crate::saved::Saved;

/// The fast book of one instrument.
#[derive(Debug, Clone)]
pub struct Book {
    market: Market,
    before_halt: Market,
    bands: Option<(Price, Price)>,
    last: Option<Price>,
    now_ns: u64,
    orders: Slab,
    names: Names,
    timers: Timers,
    /// Limit orders of buyers and of sellers.
    resting: [Ladder; 2],
    /// Stops that wait, of buyers and of sellers.
    stops: [Ladder; 2],
    /// Market orders of an auction.
    markets: [Queue; 2],
    next_place: u64,
    /// Lowest and highest price of the trades that stops have not been held against yet.
    reached: Option<(Price, Price)>,
    /// Stops that were reached and have not acted.
    elected: Vec<Slot>,
    /// Orders that a command is about to take out.
    chosen: Vec<Slot>,
    /// What an auction could trade at each price.
    steps: Vec<auction::Step>,
}

impl Matching for Book {
    fn new() -> Book {
        Book {
            market: Market::Continuous,
            before_halt: Market::Continuous,
            bands: None,
            last: None,
            now_ns: 0,
            orders: Slab::new(),
            names: Names::new(),
            timers: Timers::new(),
            resting: [Ladder::new(), Ladder::new()],
            stops: [Ladder::new(), Ladder::new()],
            markets: [Queue::EMPTY; 2],
            next_place: 0,
            reached: None,
            elected: vec![],
            chosen: vec![],
            steps: vec![],
        }
    }

    #[inline]
    fn apply(&mut self, command: &Command, now_ns: u64, tell: &mut impl FnMut(Event)) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.timers.earliest_ns() <= self.now_ns {
            self.expire(tell);
        }
        match *command {
            Command::New(ref order) => self.take_in(order, tell),
            Command::Replace { id, user, price, quantity } => {
                self.replace(id, user, price, quantity, tell);
            }
            Command::Cancel { id, user } => self.cancel(id, user, tell),
            _ => self.steer(command, tell),
        }
        if self.reached.is_some() {
            self.elect(tell);
        }
        debug_assert!(!self.is_crossed(), "no one buys for more than another sells for");
    }

    fn best(&self, side: Side) -> Option<(Price, Quantity)> {
        let (best, queue) = self.resting[side as usize].next(None)?;
        let shown = queue.slots(&self.orders).map(|slot| self.orders[slot].shown);
        Some((key(side, best), shown.fold(0, Quantity::saturating_add)))
    }

    fn market(&self) -> Market {
        self.market
    }

    fn len(&self) -> usize {
        self.orders.len()
    }

    fn hash(&self) -> u64 {
        self.to_saved().hash()
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        self.to_saved().write(bytes);
    }

    fn load(bytes: &[u8]) -> Result<Book, Unreadable> {
        let saved = Saved::read(bytes)?;
        let mut book = Book {
            market: saved.market,
            before_halt: saved.before_halt,
            bands: saved.bands,
            last: saved.last,
            now_ns: saved.now_ns,
            ..Book::new()
        };
        book.reserve(saved.orders.len());
        for order in &saved.orders {
            book.lay(Order::from_saved(order));
        }
        Ok(book)
    }
}

impl Book {
    /// Makes room for so many orders at once, so that none of them costs an allocation.
    pub fn reserve(&mut self, orders: usize) {
        self.orders.reserve(orders);
        self.names.reserve(orders);
    }

    fn to_saved(&self) -> Saved {
        let mut orders: Vec<&Order> = self.orders.live().map(|(_, order)| order).collect();
        orders.sort_unstable_by_key(|order| order.place);
        Saved {
            market: self.market,
            before_halt: self.before_halt,
            bands: self.bands,
            last: self.last,
            now_ns: self.now_ns,
            orders: orders.into_iter().map(|order| order.to_saved()).collect(),
        }
    }

    fn is_crossed(&self) -> bool {
        let [buy, sell] = [Side::Buy, Side::Sell].map(|side| self.best_price(side));
        self.market == Market::Continuous && buy.zip(sell).is_some_and(|(buy, sell)| buy >= sell)
    }

    #[inline]
    fn best_price(&self, side: Side) -> Option<Price> {
        self.resting[side as usize].best().map(|(best, _)| key(side, best))
    }

    /// The order of this name, if it is this user's.
    #[inline]
    fn find(&self, id: OrderId, user: UserId) -> Option<Slot> {
        self.names.get(id).filter(|slot| self.orders[*slot].user == user)
    }

    /// The queue or ladder in which an order lies gets it at its end.
    #[inline]
    fn enqueue(&mut self, slot: Slot) {
        let Order { side, kind, waits, price, stop_price, .. } = self.orders[slot];
        let orders = &mut self.orders;
        if waits {
            self.stops[side as usize].push(orders, key(side.opposite(), stop_price), slot);
        } else if kind == Kind::Market {
            self.markets[side as usize].push(orders, slot);
        } else {
            self.resting[side as usize].push(orders, key(side, price), slot);
        }
    }

    /// Takes an order out of the queue or ladder in which it lies.
    #[inline]
    fn dequeue(&mut self, slot: Slot) {
        let Order { side, kind, waits, price, stop_price, .. } = self.orders[slot];
        let orders = &mut self.orders;
        if waits {
            self.stops[side as usize].unlink(orders, key(side.opposite(), stop_price), slot);
        } else if kind == Kind::Market {
            self.markets[side as usize].unlink(orders, slot);
        } else {
            self.resting[side as usize].unlink(orders, key(side, price), slot);
        }
    }

    fn place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    /// Gives an order a place in the book, behind all others.
    fn lay(&mut self, mut order: Order) {
        order.place = self.place();
        let slot = self.orders.insert(order);
        self.names.insert(order.id, slot);
        match order.life {
            Life::GoodTill(until_ns) if until_ns < u64::MAX => {
                self.timers.insert(&mut self.orders, until_ns, slot);
            }
            _ => {}
        }
        self.enqueue(slot);
    }

    /// Forgets an order that lies in no queue any more.
    #[inline]
    fn forget(&mut self, slot: Slot) {
        if self.orders[slot].timer != NONE {
            self.timers.remove(&mut self.orders, slot);
        }
        self.names.remove(self.orders[slot].id);
        self.orders.remove(slot);
    }

    #[inline]
    fn take_out(&mut self, slot: Slot, ending: Ending, tell: &mut impl FnMut(Event)) {
        let Order { id, user, left, .. } = self.orders[slot];
        self.dequeue(slot);
        self.forget(slot);
        tell(Event::Cancelled { id, user, left, ending });
    }

    /// Takes out all orders that a condition holds for, in order of place.
    fn take_out_all(
        &mut self,
        goes: impl Fn(&Order) -> bool,
        ending: Ending,
        tell: &mut impl FnMut(Event),
    ) {
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.extend(self.orders.live().filter(|(_, order)| goes(order)).map(|(slot, _)| slot));
        chosen.sort_unstable_by_key(|slot| self.orders[*slot].place);
        for slot in chosen.drain(..) {
            self.take_out(slot, ending, tell);
        }
        self.chosen = chosen;
    }

    /// Takes out the orders whose time has come, the earliest time first.
    #[cold]
    fn expire(&mut self, tell: &mut impl FnMut(Event)) {
        let mut chosen = std::mem::take(&mut self.chosen);
        while self.timers.earliest_ns() <= self.now_ns {
            let first_ns = self.timers.earliest_ns();
            while self.timers.earliest_ns() == first_ns && first_ns < u64::MAX {
                chosen.extend(self.timers.pop(&mut self.orders));
            }
            if chosen.is_empty() {
                break;
            }
            chosen.sort_unstable_by_key(|slot| self.orders[*slot].place);
            for slot in chosen.drain(..) {
                self.take_out(slot, Ending::Expired, tell);
            }
        }
        self.chosen = chosen;
    }

    fn cancel(&mut self, id: OrderId, user: UserId, tell: &mut impl FnMut(Event)) {
        match self.find(id, user) {
            Some(slot) => self.take_out(slot, Ending::User, tell),
            None => tell(Event::Rejected { id, user, reason: Reason::UnknownOrder }),
        }
    }

    /// Whether a limit lies outside the bands.
    fn outside(&self, kind: Kind, price: Price) -> bool {
        kind.has_limit() && self.bands.is_some_and(|(low, high)| price < low || price > high)
    }

    /// Commands that are not about one order.
    #[cold]
    fn steer(&mut self, command: &Command, tell: &mut impl FnMut(Event)) {
        match *command {
            Command::MassCancel { user } => {
                self.take_out_all(|order| order.user == user, Ending::Mass, tell);
            }
            Command::Bands { low, high } if low > high => {
                tell(Event::Rejected { id: 0, user: 0, reason: Reason::BadCombination });
            }
            Command::Bands { low, high } => {
                self.bands = Some((low, high));
                tell(Event::BandsSet { low, high });
                let goes = |order: &Order| {
                    order.kind.has_limit() && (order.price < low || order.price > high)
                };
                self.take_out_all(goes, Ending::Bands, tell);
            }
            Command::Halt if self.market != Market::Halted => {
                self.before_halt = self.market;
                self.market = Market::Halted;
                tell(Event::Halted);
            }
            Command::Resume if self.market == Market::Halted => {
                self.market = self.before_halt;
                self.before_halt = Market::Continuous;
                tell(Event::Resumed);
            }
            Command::BeginAuction if self.market != Market::Auction => {
                self.before_halt = Market::Continuous;
                self.market = Market::Auction;
                tell(Event::AuctionBegun);
            }
            Command::Uncross if self.market == Market::Auction => self.uncross(tell),
            Command::Halt | Command::Resume | Command::BeginAuction | Command::Uncross => {
                tell(Event::Rejected { id: 0, user: 0, reason: Reason::WrongState });
            }
            Command::EndOfDay => {
                self.take_out_all(|order| order.life == Life::Day, Ending::Day, tell);
            }
            Command::Tick | Command::New(_) | Command::Replace { .. } | Command::Cancel { .. } => {}
        }
    }
}
