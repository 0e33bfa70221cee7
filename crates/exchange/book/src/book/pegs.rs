//! Pegged orders: their prices, and how they follow the displayed ones.
//!
//! A pegged order with a price is among the hidden orders. Its place in the slab has that price, so
//! that matching sees a limit order; its own limit is kept beside. All pegged orders are in one
//! short list as well.

use super::followed::Followed;
use super::ladder::key;
use super::slab::{NO_TIMER, Order, Place};
use super::{Book, CancelReason, Event, Price, Quantity, RejectReason, Side, Slot, TradingPhase};
use crate::limits;
use crate::order::{NewOrder, Peg};

impl Book {
    /// What pegged orders have to follow now.
    fn to_follow(&self) -> Followed {
        let best = match self.phase {
            TradingPhase::Continuous => [Side::Buy, Side::Sell].map(|side| self.best_limit(side)),
            TradingPhase::Auction | TradingPhase::Halted => [None; 2],
        };
        Followed { best, bands: self.bands }
    }

    /// Accepts a new pegged order; apart, so that the code of others stays small.
    #[cold]
    #[inline(never)]
    pub(super) fn accept_pegged(&mut self, new: &NewOrder, emit: &mut impl FnMut(Event)) {
        let NewOrder { id, user, .. } = *new;
        let is_full = self.pegs.len() >= limits::PEGS_MAX;
        let too_many = is_full.then_some(RejectReason::TooManyPegs);
        if let Some(reason) = self.reject_reason(new).or(too_many) {
            return emit(Event::rejected(id, user, reason));
        }
        emit(Event::Accepted { id, user });
        if self.pegs.is_empty() {
            self.followed = self.to_follow();
        }
        let mut order = Order::incoming(new);
        match self.followed.put(&mut order) {
            true => self.execute(&mut order, emit),
            false => self.insert(&mut order),
        }
    }

    /// Replaces limit and open quantity of a pegged order.
    #[cold]
    #[inline(never)]
    pub(super) fn replace_pegged(
        &mut self,
        slot: Slot,
        price: Price,
        quantity: Quantity,
        emit: &mut impl FnMut(Event),
    ) {
        let order = &mut self.orders[slot];
        let Order { id, user, .. } = *order;
        let price = if order.has_limit() { price } else { order.own_price };
        let kept_priority = price == order.own_price && quantity <= order.left;
        emit(Event::Replaced { id, user, price, quantity, kept_priority });
        if kept_priority {
            (order.left, order.shown) = (quantity, quantity);
        } else {
            self.dequeue(slot);
            let order = &mut self.orders[slot];
            (order.own_price, order.left, order.shown) = (price, quantity, quantity);
            self.enter(slot, emit);
        }
    }

    /// A pegged order that is in no queue gets its price, and takes or rests as an incoming one.
    fn enter(&mut self, slot: Slot, emit: &mut impl FnMut(Event)) {
        let priority = self.next_priority();
        let order = &mut self.orders[slot];
        order.priority = priority;
        let has_price = self.followed.put(order);
        let Order { side, price, .. } = *order;
        if has_price && self.would_cross(side, price) {
            let order = self.orders[slot];
            self.remove(slot);
            self.execute(&mut Order { timer: NO_TIMER, ..order }, emit);
        } else {
            self.enqueue(slot);
        }
    }

    /// The stops that trades have reached are executed, then pegged orders follow the displayed
    /// prices, until neither has anything to do.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(&mut self, emit: &mut impl FnMut(Event)) {
        loop {
            if self.trade_range.is_some() {
                self.elect(emit);
            }
            if self.pegs.is_empty() || !self.follow(emit) {
                return;
            }
        }
    }

    /// Pegged orders follow the displayed prices. Returns whether those have changed.
    fn follow(&mut self, emit: &mut impl FnMut(Event)) -> bool {
        let followed = self.to_follow();
        if followed == self.followed {
            return false;
        }
        self.followed = followed;
        let mut moving = std::mem::take(&mut self.moving);
        moving.extend(self.pegs.iter().filter(|slot| {
            let mut order = self.orders[**slot];
            let before = (order.price, order.place);
            followed.put(&mut order);
            (order.price, order.place) != before
        }));
        moving.sort_unstable_by_key(|slot| self.orders[*slot].priority);
        moving.iter().for_each(|slot| self.dequeue(*slot));
        for slot in moving.drain(..) {
            if self.trades_left == 0 {
                self.enqueue(slot);
                self.cancel_order(slot, CancelReason::TooManyTrades, emit);
                continue;
            }
            self.trades_left -= 1;
            self.enter(slot, emit);
        }
        self.moving = moving;
        debug_assert_eq!(
            self.to_follow(),
            followed,
            "pegged orders take and show no displayed one"
        );
        true
    }

    /// Whether each pegged order has the price that it should have; for tests.
    pub(super) fn audit_pegs(&self) -> Result<(), String> {
        for slot in &self.pegs {
            let mut order = self.orders[*slot];
            let before = (order.price, order.place);
            self.followed.put(&mut order);
            if order.peg == Peg::No || (order.price, order.place) != before {
                return Err(format!("order {} does not have the price of its peg", order.id));
            }
            let other = self.resting[order.side.opposite() as usize].best();
            let level = key(order.side.opposite(), order.price);
            if order.place == Place::Hidden && other.is_some_and(|(best, _)| best >= level) {
                return Err(format!("order {} could take a displayed one", order.id));
            }
        }
        let pegged = self.orders.live().filter(|(_, order)| order.peg != Peg::No).count();
        match pegged == self.pegs.len() {
            true => Ok(()),
            false => Err(format!("{pegged} orders are pegged, of {} in the list", self.pegs.len())),
        }
    }
}
