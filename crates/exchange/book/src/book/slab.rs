//! Storage of orders: a slab of reusable slots, and intrusive queues through them.
//!
//! Slot 0 holds no order: links to nowhere lead to it, so that queues are changed without branches,
//! which a processor would often predict wrongly.

use crate::order::{
    Closing, NewOrder, OrderId, OrderType, Peg, PostOnly, Price, Quantity, SelfTrade, Side,
    TimeInForce, UserId,
};
use crate::snapshot::SnapshotOrder;

/// Index of an order in the slab.
pub type Slot = u32;

/// A user's order: users choose their ids each for themselves.
pub type OrderKey = (UserId, OrderId);

/// The slot without an order.
pub const NONE: Slot = 0;

/// Marks an order without a timer.
pub const NO_TIMER: u32 = u32::MAX;

/// Which queue of the book an order is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At its limit, displayed.
    Displayed,
    /// At its limit, hidden.
    Hidden,
    /// Among the market orders of an auction.
    Market,
    /// At its stop price, pending.
    Stop,
    /// Among those that wait for the closing auction.
    OnClose,
    /// In no queue: a pegged order without a price.
    Unpriced,
}

/// An order. The first cache line holds the fields that matching uses, the second the others.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub id: OrderId,
    /// Its limit, or where the peg of a pegged order has put it.
    pub price: Price,
    /// Open quantity; zero marks a free slot.
    pub left: Quantity,
    pub shown: Quantity,
    /// Time priority: lower is earlier.
    pub priority: u64,
    pub previous: Slot,
    /// The next in its queue, or the next free slot.
    pub next: Slot,
    pub user: UserId,
    /// Its index in the heap of timers, or [`NO_TIMER`].
    pub timer: u32,
    pub side: Side,
    /// A pegged order is a limit order here, whether it has a limit of its own or not.
    pub order_type: OrderType,
    pub post_only: PostOnly,
    pub self_trade: SelfTrade,
    pub place: Place,
    pub is_hidden: bool,
    pub stop_price: Price,
    pub quantity: Quantity,
    pub display: Quantity,
    pub minimum: Quantity,
    pub time_in_force: TimeInForce,
    /// The price of a pegged order as its user gave it.
    pub own_price: Price,
    pub peg: Peg,
    /// Whether the price of a pegged order is a limit.
    pub is_limited: bool,
}

const _: () = assert!(size_of::<Order>() == 128);

impl Order {
    /// What slot 0 holds.
    const NO_ORDER: Order = Order {
        id: 0,
        price: 0,
        left: 0,
        shown: 0,
        priority: 0,
        previous: NONE,
        next: NONE,
        user: 0,
        timer: NO_TIMER,
        side: Side::Buy,
        order_type: OrderType::Limit,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
        place: Place::Displayed,
        is_hidden: false,
        stop_price: 0,
        quantity: 0,
        display: 0,
        minimum: 0,
        time_in_force: TimeInForce::GoodTillCancelled,
        own_price: 0,
        peg: Peg::No,
        is_limited: false,
    };

    /// An incoming order, fully open.
    #[inline]
    pub fn incoming(new: &NewOrder) -> Order {
        let mut order = Order {
            id: new.id,
            price: new.price,
            left: new.quantity,
            shown: if new.display == 0 { new.quantity } else { new.display },
            priority: 0,
            previous: NONE,
            next: NONE,
            user: new.user,
            timer: NO_TIMER,
            side: new.side,
            order_type: new.order_type,
            post_only: new.post_only,
            self_trade: new.self_trade,
            place: Place::Displayed,
            is_hidden: new.is_hidden,
            stop_price: new.stop_price,
            quantity: new.quantity,
            display: new.display,
            minimum: new.minimum,
            time_in_force: new.time_in_force,
            own_price: 0,
            peg: Peg::No,
            is_limited: false,
        };
        if new.is_pegged() {
            order.own_price = new.price;
            order.peg = new.peg;
            order.is_limited = new.order_type.has_limit();
            order.order_type = OrderType::Limit;
        }
        order.place = order.place_at_rest();
        order
    }

    /// Whether it has a limit.
    pub fn has_limit(&self) -> bool {
        if self.peg == Peg::No { self.order_type.has_limit() } else { self.is_limited }
    }

    /// Its limit.
    pub fn limit(&self) -> Option<Price> {
        let price = if self.peg == Peg::No { self.price } else { self.own_price };
        self.has_limit().then_some(price)
    }

    /// Where it comes to rest, unless it is a pending stop, waits for the closing auction, or has
    /// no price.
    #[inline]
    pub fn place_at_rest(&self) -> Place {
        if self.order_type == OrderType::Market {
            Place::Market
        } else if self.is_hidden
            || self.time_in_force == TimeInForce::AtClose
            || self.peg != Peg::No
        {
            Place::Hidden
        } else {
            Place::Displayed
        }
    }

    /// Its ladder of [`Book::resting`](super::Book), if it rests at its limit.
    #[inline]
    pub fn ladder(&self) -> usize {
        const { assert!(Place::Displayed as usize == 0 && Place::Hidden as usize == 1) };
        self.side as usize | (self.place as usize & 1) << 1
    }

    pub fn from_snapshot(saved: &SnapshotOrder, closing: Closing) -> Order {
        let SnapshotOrder { left, shown, is_pending_stop, .. } = *saved;
        let order = Order::incoming(&saved.order);
        let place = if is_pending_stop {
            Place::Stop
        } else if saved.order.is_on_close() && closing != Closing::Begun {
            Place::OnClose
        } else {
            order.place
        };
        Order { left, shown, place, ..order }
    }

    pub fn to_snapshot(self) -> SnapshotOrder {
        let (order_type, price) = match self.peg {
            Peg::No => (self.order_type, self.price),
            _ if self.is_limited => (OrderType::Limit, self.own_price),
            _ => (OrderType::Market, self.own_price),
        };
        let order = NewOrder {
            id: self.id,
            user: self.user,
            side: self.side,
            order_type,
            time_in_force: self.time_in_force,
            price,
            stop_price: self.stop_price,
            quantity: self.quantity,
            display: self.display,
            minimum: self.minimum,
            is_hidden: self.is_hidden,
            peg: self.peg,
            post_only: self.post_only,
            self_trade: self.self_trade,
        };
        SnapshotOrder {
            order,
            left: self.left,
            shown: self.shown,
            is_pending_stop: self.place == Place::Stop,
        }
    }

    /// Its user and its id.
    #[inline]
    pub fn key(&self) -> OrderKey {
        (self.user, self.id)
    }

    /// The quantity that it shows when it begins to rest.
    #[inline]
    pub fn display_at_rest(&self) -> Quantity {
        if self.display == 0 { self.left } else { self.left.min(self.display) }
    }
}

/// Slots of orders.
#[derive(Debug, Clone)]
pub struct Slab {
    slots: Vec<Order>,
    free: Slot,
    len: usize,
}

impl Slab {
    pub fn new() -> Slab {
        Slab { slots: vec![Order::NO_ORDER], free: NONE, len: 0 }
    }

    pub fn reserve(&mut self, orders: usize) {
        self.slots.reserve((orders + 1).saturating_sub(self.slots.len()));
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn insert(&mut self, order: &Order) -> Slot {
        self.len += 1;
        if self.free == NONE {
            self.slots.push(*order);
            return (self.slots.len() - 1) as Slot;
        }
        let slot = self.free;
        let place = &mut self.slots[slot as usize];
        self.free = place.next;
        *place = *order;
        slot
    }

    pub fn remove(&mut self, slot: Slot) {
        let order = &mut self.slots[slot as usize];
        debug_assert!(order.left > 0 || order.next != slot, "a slot is freed only once");
        order.left = 0;
        order.next = self.free;
        self.free = slot;
        self.len -= 1;
    }

    /// Live orders with their slots, in slab order.
    pub fn live(&self) -> impl Iterator<Item = (Slot, &Order)> {
        let all = self.slots.iter().enumerate().filter(|(_, order)| order.left > 0);
        all.map(|(slot, order)| (slot as Slot, order))
    }
}

impl std::ops::Index<Slot> for Slab {
    type Output = Order;

    fn index(&self, slot: Slot) -> &Order {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for Slab {
    fn index_mut(&mut self, slot: Slot) -> &mut Order {
        &mut self.slots[slot as usize]
    }
}

/// A queue of orders in order of priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    pub head: Slot,
    pub tail: Slot,
}

impl Queue {
    pub const EMPTY: Queue = Queue { head: NONE, tail: NONE };

    #[inline]
    pub fn push(&mut self, orders: &mut Slab, slot: Slot) {
        let order = &mut orders[slot];
        (order.previous, order.next) = (self.tail, NONE);
        orders[self.tail].next = slot;
        self.head = if self.tail == NONE { slot } else { self.head };
        self.tail = slot;
    }

    #[inline]
    pub fn unlink(&mut self, orders: &mut Slab, slot: Slot) {
        let Order { previous, next, .. } = orders[slot];
        orders[previous].next = next;
        orders[next].previous = previous;
        self.head = if previous == NONE { next } else { self.head };
        self.tail = if next == NONE { previous } else { self.tail };
    }

    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// Its slots, front first.
    pub fn slots(self, orders: &Slab) -> impl Iterator<Item = Slot> {
        let mut slot = self.head;
        std::iter::from_fn(move || {
            let here = slot;
            (here != NONE).then(|| {
                slot = orders[here].next;
                here
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Order {
        /// Any order, for tests of the book's data structures.
        pub const SAMPLE: Order =
            Order { id: 1, price: 1, left: 1, shown: 1, user: 1, quantity: 1, ..Order::NO_ORDER };
    }
}
