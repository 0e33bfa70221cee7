//! Orders that come, change and meet the book in continuous trading.

use crate::order::SelfTrade;

use super::ladder::{Key, key};
use super::slab::Order;
use super::{
    Book, Ending, Event, Kind, Life, Market, NewOrder, OrderId, PostOnly, Price, Quantity, Reason,
    Side, Slot, UserId,
};

impl Book {
    /// The first check that a new order fails, in the order that the rules give.
    #[inline]
    fn refusal(&self, order: &NewOrder) -> Option<Reason> {
        if self.market == Market::Halted {
            return Some(Reason::Halted);
        }
        if let Some(reason) = order.fault() {
            return Some(reason);
        }
        if matches!(order.life, Life::GoodTill(until_ns) if until_ns <= self.now_ns) {
            return Some(Reason::Expired);
        }
        if self.names.get(order.id).is_some() {
            return Some(Reason::DuplicateId);
        }
        if self.outside(order.kind, order.price) {
            return Some(Reason::OutsideBands);
        }
        if self.market == Market::Auction && !order.fits_auction() {
            return Some(Reason::InAuction);
        }
        let would_take = || self.would_take(order.side, order.price);
        (order.post_only == PostOnly::Reject && would_take()).then_some(Reason::WouldTake)
    }

    /// Whether a limit order would trade at once.
    #[inline]
    fn would_take(&self, side: Side, price: Price) -> bool {
        let best = self.resting[side.opposite() as usize].best();
        self.market == Market::Continuous
            && best.is_some_and(|(best, _)| best >= key(side.opposite(), price))
    }

    #[inline]
    pub(super) fn take_in(&mut self, new: &NewOrder, tell: &mut impl FnMut(Event)) {
        let NewOrder { id, user, .. } = *new;
        if let Some(reason) = self.refusal(new) {
            return tell(Event::Rejected { id, user, reason });
        }
        tell(Event::Accepted { id, user });
        let mut order = Order::incoming(new);
        if matches!(new.kind, Kind::Stop | Kind::StopLimit) {
            let is_there = self.last.is_some_and(|last| {
                key(new.side.opposite(), new.stop_price) >= key(new.side.opposite(), last)
            });
            if is_there && self.market == Market::Continuous {
                self.trigger(order, tell);
            } else {
                order.waits = true;
                self.lay(order);
            }
        } else if self.market == Market::Auction {
            self.lay(order);
        } else {
            self.come_in(order, tell);
        }
    }

    /// A stop becomes what it is a stop of.
    fn trigger(&mut self, mut stop: Order, tell: &mut impl FnMut(Event)) {
        tell(Event::Triggered { id: stop.id, user: stop.user });
        stop.waits = false;
        stop.kind = if stop.kind == Kind::Stop { Kind::Market } else { Kind::Limit };
        self.come_in(stop, tell);
    }

    /// An order meets the book in continuous trading: trades, rests or goes.
    fn come_in(&mut self, mut order: Order, tell: &mut impl FnMut(Event)) {
        if order.life == Life::FillOrKill || order.minimum > 0 {
            let traded = self.would_trade(&order);
            let ending = if order.life == Life::FillOrKill && traded < order.left {
                Some(Ending::Killed)
            } else {
                (traded < order.minimum).then_some(Ending::BelowMinimum)
            };
            if let Some(ending) = ending {
                return goes(&order, ending, tell);
            }
            order.minimum = 0;
        }
        if order.post_only == PostOnly::Slide
            && self.would_take(order.side, order.price)
            && !self.slide(&mut order, tell)
        {
            return goes(&order, Ending::Bands, tell);
        }
        if !self.trade(&mut order, tell) || order.left == 0 {
            return;
        }
        let is_immediate = matches!(order.life, Life::ImmediateOrCancel | Life::FillOrKill);
        if is_immediate || order.kind == Kind::Market {
            return goes(&order, Ending::Unfilled, tell);
        }
        order.shown = order.whole();
        self.lay(order);
    }

    /// Moves an order to a tick from the other side's best price. Answers whether it may be there.
    fn slide(&self, order: &mut Order, tell: &mut impl FnMut(Event)) -> bool {
        let Some(best) = self.best_price(order.side.opposite()) else { return true };
        let away = match order.side {
            Side::Buy => best.checked_sub(1),
            Side::Sell => best.checked_add(1),
        };
        let Some(price) = away else { return false };
        order.price = price;
        tell(Event::Slid { id: order.id, user: order.user, price });
        !self.outside(order.kind, price)
    }

    /// The lowest key on the other side that an order accepts.
    fn limit(order: &Order) -> Key {
        let other = order.side.opposite();
        if order.kind == Kind::Market { Key::MIN } else { key(other, order.price) }
    }

    /// Trades an incoming order as far as it goes. Answers whether it lives.
    fn trade(&mut self, order: &mut Order, tell: &mut impl FnMut(Event)) -> bool {
        let other = order.side.opposite();
        let limit = Book::limit(order);
        while order.left > 0 {
            let Some((level, slot)) = self.resting[other as usize].best() else { break };
            if level < limit {
                break;
            }
            let maker = &mut self.orders[slot];
            if maker.user == order.user && order.self_trade != SelfTrade::Allow {
                if !self.prevent(slot, order, tell) {
                    return false;
                }
                continue;
            }
            let quantity = order.left.min(maker.shown);
            order.left -= quantity;
            maker.left -= quantity;
            maker.shown -= quantity;
            let price = key(other, level);
            let (maker_left, maker_shown) = (maker.left, maker.shown);
            tell(Event::Traded {
                maker: maker.id,
                taker: order.id,
                maker_user: maker.user,
                taker_user: order.user,
                price,
                quantity,
                maker_left,
                taker_left: order.left,
            });
            self.note_trade(price);
            if maker_left == 0 {
                self.resting[other as usize].unlink(&mut self.orders, level, slot);
                self.forget(slot);
            } else if maker_shown == 0 {
                self.refresh(level, slot, tell);
            }
        }
        true
    }

    /// An iceberg shows its next part, behind the others of its level.
    fn refresh(&mut self, level: Key, slot: Slot, tell: &mut impl FnMut(Event)) {
        let place = self.place();
        let Order { side, .. } = self.orders[slot];
        let ladder = &mut self.resting[side as usize];
        ladder.unlink(&mut self.orders, level, slot);
        ladder.push(&mut self.orders, level, slot);
        let order = &mut self.orders[slot];
        order.place = place;
        order.shown = order.whole();
        let Order { id, user, shown, .. } = *order;
        tell(Event::Refreshed { id, user, shown });
    }

    /// Two orders of one user meet. Answers whether the incoming one lives.
    fn prevent(&mut self, slot: Slot, order: &mut Order, tell: &mut impl FnMut(Event)) -> bool {
        let ending = Ending::SelfTrade;
        let maker_left = self.orders[slot].left;
        match order.self_trade {
            SelfTrade::Allow => return true,
            SelfTrade::CancelNewest => {}
            SelfTrade::CancelOldest => {
                self.take_out(slot, ending, tell);
                return true;
            }
            SelfTrade::CancelBoth => self.take_out(slot, ending, tell),
            SelfTrade::Decrement if maker_left <= order.left => {
                self.take_out(slot, ending, tell);
                if maker_left < order.left {
                    order.left -= maker_left;
                    let Order { id, user, left, .. } = *order;
                    tell(Event::Reduced { id, user, left });
                    return true;
                }
            }
            SelfTrade::Decrement => {
                let maker = &mut self.orders[slot];
                maker.left -= order.left;
                maker.shown = maker.shown.min(maker.left);
                tell(Event::Reduced { id: maker.id, user: maker.user, left: maker.left });
            }
        }
        goes(order, ending, tell);
        false
    }

    /// What an order would trade if it came in now, by walking the book as it would.
    ///
    /// At a level, all that is shown trades in order of place before the hidden parts do; own
    /// orders are met in that first pass, with all that they have.
    fn would_trade(&self, order: &Order) -> Quantity {
        let limit = Book::limit(order);
        let (mut left, mut traded) = (order.left, 0);
        for (level, queue) in self.resting[order.side.opposite() as usize].levels() {
            if level < limit {
                break;
            }
            let mut hidden: Quantity = 0;
            for slot in queue.slots(&self.orders) {
                let maker = &self.orders[slot];
                if maker.user == order.user && order.self_trade != SelfTrade::Allow {
                    match order.self_trade {
                        SelfTrade::CancelOldest => {}
                        SelfTrade::Decrement if maker.left < left => left -= maker.left,
                        _ => return traded,
                    }
                    continue;
                }
                let quantity = left.min(maker.shown);
                left -= quantity;
                traded += quantity;
                hidden = hidden.saturating_add(maker.left - maker.shown);
                if left == 0 {
                    return traded;
                }
            }
            let quantity = left.min(hidden);
            left -= quantity;
            traded += quantity;
            if left == 0 {
                return traded;
            }
        }
        traded
    }

    pub(super) fn note_trade(&mut self, price: Price) {
        self.last = Some(price);
        let (low, high) = self.reached.unwrap_or((price, price));
        self.reached = Some((low.min(price), high.max(price)));
    }

    /// Stops that the trades have reached act, one after another.
    #[cold]
    pub(super) fn elect(&mut self, tell: &mut impl FnMut(Event)) {
        let mut elected = std::mem::take(&mut self.elected);
        let mut acted = 0;
        loop {
            if let Some((low, high)) = self.reached.take() {
                let known = elected.len();
                for (side, bound) in [(Side::Buy, high), (Side::Sell, low)] {
                    let bound = key(side.opposite(), bound);
                    let stops = &mut self.stops[side as usize];
                    while let Some((level, slot)) = stops.best()
                        && level >= bound
                    {
                        stops.unlink(&mut self.orders, level, slot);
                        elected.push(slot);
                    }
                }
                elected[known..].sort_unstable_by_key(|slot| self.orders[*slot].place);
            }
            let Some(slot) = elected.get(acted).copied() else { break };
            acted += 1;
            let stop = self.orders[slot];
            self.forget(slot);
            self.trigger(Order { timer: super::NONE, ..stop }, tell);
        }
        elected.clear();
        self.elected = elected;
    }

    #[inline]
    pub(super) fn replace(
        &mut self,
        id: OrderId,
        user: UserId,
        price: Price,
        quantity: Quantity,
        tell: &mut impl FnMut(Event),
    ) {
        let slot = match self.may_replace(id, user, price, quantity) {
            Ok(slot) => slot,
            Err(reason) => return tell(Event::Rejected { id, user, reason }),
        };
        let order = &mut self.orders[slot];
        let Order { side, kind, waits, post_only, .. } = *order;
        let price = if kind.has_limit() { price } else { order.price };
        if waits || price == order.price && quantity <= order.left {
            order.price = price;
            order.left = quantity;
            order.shown = if waits { order.whole() } else { order.shown.min(quantity) };
            return tell(Event::Replaced { id, user, price, quantity, kept_place: true });
        }
        let would_take = kind == Kind::Limit && self.would_take(side, price);
        if would_take && post_only == PostOnly::Reject {
            return tell(Event::Rejected { id, user, reason: Reason::WouldTake });
        }
        tell(Event::Replaced { id, user, price, quantity, kept_place: false });
        self.dequeue(slot);
        let place = self.place();
        let order = &mut self.orders[slot];
        (order.price, order.left, order.place) = (price, quantity, place);
        order.shown = order.whole();
        if would_take {
            let order = *order;
            self.forget(slot);
            self.come_in(Order { timer: super::NONE, ..order }, tell);
        } else {
            self.enqueue(slot);
        }
    }

    /// Where the order to be changed lies, or the first check that fails.
    #[inline]
    fn may_replace(
        &self,
        id: OrderId,
        user: UserId,
        price: Price,
        quantity: Quantity,
    ) -> Result<Slot, Reason> {
        if self.market == Market::Halted {
            return Err(Reason::Halted);
        }
        let slot = self.find(id, user).ok_or(Reason::UnknownOrder)?;
        if quantity == 0 {
            return Err(Reason::BadQuantity);
        }
        if self.outside(self.orders[slot].kind, price) {
            return Err(Reason::OutsideBands);
        }
        Ok(slot)
    }
}

/// An incoming order goes with what is left of it.
fn goes(order: &Order, ending: Ending, tell: &mut impl FnMut(Event)) {
    let Order { id, user, left, .. } = *order;
    tell(Event::Cancelled { id, user, left, ending });
}
