//! New and replaced orders, and matching in continuous trading.

use crate::limits;
use crate::order::{Peg, SelfTrade};

use super::ladder::{Key, key};
use super::slab::{NO_TIMER, Order, Place};
use super::{
    Book, CancelReason, Closing, Event, NewOrder, OrderId, OrderType, PostOnly, Price, Quantity,
    Queue, RejectReason, Side, Slot, TimeInForce, TradingPhase, UserId,
};

impl Book {
    /// The first check that a new order fails, in the order of the rules.
    #[inline(always)]
    pub(super) fn reject_reason(&self, order: &NewOrder) -> Option<RejectReason> {
        if self.phase == TradingPhase::Halted {
            return Some(RejectReason::Halted);
        }
        if let Some(reason) = order.fault() {
            return Some(reason);
        }
        if limits::has_too_many_parts(order.quantity, order.display) {
            return Some(RejectReason::TooManyParts);
        }
        if matches!(order.time_in_force, TimeInForce::GoodTill(until_ns) if until_ns <= self.now_ns)
        {
            return Some(RejectReason::Expired);
        }
        if self.find(order.id, order.user).is_some() {
            return Some(RejectReason::DuplicateId);
        }
        if order.order_type.has_limit() && self.is_outside(order.price) {
            return Some(RejectReason::OutsideBands);
        }
        if self.phase == TradingPhase::Auction && !order.fits_auction() {
            return Some(RejectReason::InAuction);
        }
        if order.is_on_close() && self.closing == Closing::No {
            return Some(RejectReason::NoClosing);
        }
        if self.orders.len() >= limits::ORDERS_MAX && order.may_rest(self.phase) {
            return Some(RejectReason::TooManyOrders);
        }
        let would_cross = || self.would_cross(order.side, order.price);
        (order.post_only == PostOnly::Reject && would_cross()).then_some(RejectReason::WouldTake)
    }

    /// Whether a limit order would trade immediately.
    #[inline(always)]
    pub(super) fn would_cross(&self, side: Side, price: Price) -> bool {
        let best = self.front(side.opposite());
        self.phase == TradingPhase::Continuous
            && best.is_some_and(|(best, _)| best >= key(side.opposite(), price))
    }

    #[inline]
    pub(super) fn accept_order(&mut self, new: &NewOrder, emit: &mut impl FnMut(Event)) {
        let NewOrder { id, user, .. } = *new;
        if new.is_pegged() {
            return self.accept_pegged(new, emit);
        }
        if let Some(reason) = self.reject_reason(new) {
            return emit(Event::rejected(id, user, reason));
        }
        emit(Event::Accepted { id, user });
        let mut order = Order::incoming(new);
        if matches!(new.order_type, OrderType::Stop | OrderType::StopLimit) {
            let is_there = self.last.is_some_and(|last| {
                key(new.side.opposite(), new.stop_price) >= key(new.side.opposite(), last)
            });
            if is_there && self.phase == TradingPhase::Continuous {
                self.trigger(order, emit);
            } else {
                order.place = Place::Stop;
                self.insert(&mut order);
            }
        } else if self.phase == TradingPhase::Auction || new.is_on_close() {
            if self.closing != Closing::Begun && new.is_on_close() {
                order.place = Place::OnClose;
            }
            self.insert(&mut order);
        } else {
            self.execute(&mut order, emit);
        }
    }

    /// Converts a triggered stop to a market or limit order and executes it.
    fn trigger(&mut self, mut stop: Order, emit: &mut impl FnMut(Event)) {
        emit(Event::Triggered { id: stop.id, user: stop.user });
        stop.order_type =
            if stop.order_type == OrderType::Stop { OrderType::Market } else { OrderType::Limit };
        stop.place = stop.place_at_rest();
        self.execute(&mut stop, emit);
    }

    /// Executes an incoming order in continuous trading: it trades, rests or is cancelled.
    pub(super) fn execute(&mut self, order: &mut Order, emit: &mut impl FnMut(Event)) {
        if order.time_in_force == TimeInForce::FillOrKill || order.minimum > 0 {
            let (traded, trades) = self.would_trade(order);
            let reason = if order.time_in_force == TimeInForce::FillOrKill && traded < order.left {
                Some(CancelReason::Killed)
            } else {
                (traded < order.minimum).then_some(CancelReason::BelowMinimum)
            };
            if let Some(reason) = reason {
                self.trades_left -= trades;
                return cancel_incoming(order, reason, emit);
            }
            order.minimum = 0;
        }
        if order.post_only == PostOnly::Slide
            && self.would_cross(order.side, order.price)
            && !self.slide(order, emit)
        {
            return cancel_incoming(order, CancelReason::Bands, emit);
        }
        if !self.trade(order, emit) || order.left == 0 {
            return;
        }
        let is_immediate =
            matches!(order.time_in_force, TimeInForce::ImmediateOrCancel | TimeInForce::FillOrKill);
        if is_immediate || order.order_type == OrderType::Market {
            return cancel_incoming(order, CancelReason::Unfilled, emit);
        }
        order.shown = order.display_at_rest();
        self.insert(order);
    }

    /// Moves an order one tick away from the best price of the other side. Returns whether that
    /// price is allowed.
    fn slide(&self, order: &mut Order, emit: &mut impl FnMut(Event)) -> bool {
        let Some(best) = self.front_price(order.side.opposite()) else { return true };
        let away = match order.side {
            Side::Buy => best.checked_sub(1),
            Side::Sell => best.checked_add(1),
        };
        let Some(price) = away else { return false };
        order.price = price;
        emit(Event::Slid { id: order.id, user: order.user, price });
        !self.is_outside(price)
    }

    /// The lowest key on the other side that an order accepts.
    fn limit(order: &Order) -> Key {
        let other = order.side.opposite();
        if order.order_type == OrderType::Market { Key::MIN } else { key(other, order.price) }
    }

    /// Trades an incoming order as far as possible. Returns whether it is still live.
    fn trade(&mut self, order: &mut Order, emit: &mut impl FnMut(Event)) -> bool {
        let other = order.side.opposite();
        let limit = Book::limit(order);
        let mut trades_left = self.trades_left.min(limits::ORDER_TRADES_MAX);
        while order.left > 0 {
            let Some((level, slot)) = self.front(other) else { break };
            if level < limit {
                break;
            }
            if trades_left == 0 {
                cancel_incoming(order, CancelReason::TooManyTrades, emit);
                return false;
            }
            trades_left -= 1;
            self.trades_left -= 1;
            let maker = &mut self.orders[slot];
            if maker.user == order.user && order.self_trade != SelfTrade::Allow {
                if !self.prevent_self_trade(slot, order, emit) {
                    return false;
                }
                continue;
            }
            let quantity = order.left.min(maker.shown);
            order.left -= quantity;
            maker.left -= quantity;
            maker.shown -= quantity;
            let price = key(other, level);
            let (maker_left, maker_shown, place) = (maker.left, maker.shown, maker.place);
            emit(Event::Traded {
                maker: maker.id,
                taker: order.id,
                maker_user: maker.user,
                taker_user: order.user,
                price,
                quantity,
                maker_left,
                taker_left: order.left,
            });
            self.record_trade(price);
            if maker_left == 0 {
                if place == Place::Displayed {
                    self.resting[other as usize].unlink(&mut self.orders, level, slot);
                } else {
                    self.dequeue_elsewhere(slot);
                }
                self.remove(slot);
            } else if maker_shown == 0 {
                self.refresh(level, slot, emit);
            }
        }
        true
    }

    /// Shows the next part of an iceberg, behind the other orders of its level.
    fn refresh(&mut self, level: Key, slot: Slot, emit: &mut impl FnMut(Event)) {
        let priority = self.next_priority();
        let Order { side, .. } = self.orders[slot];
        let ladder = &mut self.resting[side as usize];
        ladder.unlink(&mut self.orders, level, slot);
        ladder.push(&mut self.orders, level, slot);
        let order = &mut self.orders[slot];
        order.priority = priority;
        order.shown = order.display_at_rest();
        let Order { id, user, shown, .. } = *order;
        emit(Event::Refreshed { id, user, shown });
    }

    /// Applies self-trade prevention to two orders of one user. Returns whether the incoming one is
    /// still live.
    fn prevent_self_trade(
        &mut self,
        slot: Slot,
        order: &mut Order,
        emit: &mut impl FnMut(Event),
    ) -> bool {
        let reason = CancelReason::SelfTrade;
        let maker_left = self.orders[slot].left;
        match order.self_trade {
            SelfTrade::Allow => return true,
            SelfTrade::CancelNewest => {}
            SelfTrade::CancelOldest => {
                self.cancel_order(slot, reason, emit);
                return true;
            }
            SelfTrade::CancelBoth => self.cancel_order(slot, reason, emit),
            SelfTrade::Decrement if maker_left <= order.left => {
                self.cancel_order(slot, reason, emit);
                if maker_left < order.left {
                    order.left -= maker_left;
                    let Order { id, user, left, .. } = *order;
                    emit(Event::Reduced { id, user, left });
                    return true;
                }
            }
            SelfTrade::Decrement => {
                let maker = &mut self.orders[slot];
                maker.left -= order.left;
                maker.shown = maker.shown.min(maker.left);
                emit(Event::Reduced { id: maker.id, user: maker.user, left: maker.left });
            }
        }
        cancel_incoming(order, reason, emit);
        false
    }

    /// The quantity that an order would trade now and in how many trades, found by walking the book
    /// in matching order.
    ///
    /// At each level, shown quantities trade in order of priority before hidden ones do; own orders
    /// are treated in that first pass, with their full open quantity.
    fn would_trade(&mut self, order: &Order) -> (Quantity, u32) {
        let mut hidden = std::mem::take(&mut self.hidden);
        let most = self.trades_left.min(limits::ORDER_TRADES_MAX);
        let mut trial = Trial { left: order.left, traded: 0, trades: 0, most };
        let limit = Book::limit(order);
        let levels = self.fronts(order.side.opposite());
        for (_, queue) in levels.take_while(|(level, _)| *level >= limit) {
            hidden.clear();
            if !self.try_level(queue, order, &mut trial, &mut hidden) {
                break;
            }
        }
        self.hidden = hidden;
        (trial.traded, trial.trades)
    }

    /// Tries a level; whether the order goes on to the next one. `hidden` is empty.
    fn try_level(
        &self,
        queue: Queue,
        order: &Order,
        trial: &mut Trial,
        hidden: &mut Vec<(Quantity, Quantity)>,
    ) -> bool {
        for slot in queue.slots(&self.orders) {
            let maker = &self.orders[slot];
            if maker.user == order.user && order.self_trade != SelfTrade::Allow {
                let may_go_on = trial.count();
                match order.self_trade {
                    _ if !may_go_on => return false,
                    SelfTrade::CancelOldest => {}
                    SelfTrade::Decrement if maker.left < trial.left => trial.left -= maker.left,
                    _ => return false,
                }
                continue;
            }
            if !trial.trade(maker.shown) {
                return false;
            }
            if maker.left > maker.shown {
                hidden.push((maker.left - maker.shown, maker.display));
            }
        }
        // Icebergs take turns with their further parts.
        while !hidden.is_empty() {
            for (left, display) in &mut *hidden {
                let part = (*left).min(*display);
                *left -= part;
                if !trial.trade(part) {
                    return false;
                }
            }
            hidden.retain(|(left, _)| *left > 0);
        }
        true
    }

    pub(super) fn record_trade(&mut self, price: Price) {
        self.last = Some(price);
        let (low, high) = self.trade_range.unwrap_or((price, price));
        self.trade_range = Some((low.min(price), high.max(price)));
    }

    /// Executes the stops that trades have reached, one after another.
    #[inline(always)]
    pub(super) fn elect(&mut self, emit: &mut impl FnMut(Event)) {
        let mut elected = std::mem::take(&mut self.elected);
        let mut acted = 0;
        loop {
            if let Some((low, high)) = self.trade_range.take() {
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
                elected[known..].sort_unstable_by_key(|slot| self.orders[*slot].priority);
            }
            let Some(slot) = elected.get(acted).copied() else { break };
            acted += 1;
            let stop = self.orders[slot];
            self.remove(slot);
            self.trigger(Order { timer: NO_TIMER, ..stop }, emit);
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
        emit: &mut impl FnMut(Event),
    ) {
        let slot = match self.may_replace(id, user, price, quantity) {
            Ok(slot) => slot,
            Err(reason) => return emit(Event::rejected(id, user, reason)),
        };
        if self.orders[slot].place == Place::Displayed {
            self.replace_at(Place::Displayed, slot, price, quantity, emit);
        } else {
            self.replace_elsewhere(slot, price, quantity, emit);
        }
    }

    /// Replaces an order that is not displayed; apart, so that the code of others stays small.
    #[inline(never)]
    fn replace_elsewhere(
        &mut self,
        slot: Slot,
        price: Price,
        quantity: Quantity,
        emit: &mut impl FnMut(Event),
    ) {
        match self.orders[slot].peg {
            Peg::No => self.replace_at(self.orders[slot].place, slot, price, quantity, emit),
            _ => self.replace_pegged(slot, price, quantity, emit),
        }
    }

    /// Replaces an order at its place.
    #[inline(always)]
    fn replace_at(
        &mut self,
        place: Place,
        slot: Slot,
        price: Price,
        quantity: Quantity,
        emit: &mut impl FnMut(Event),
    ) {
        let order = &mut self.orders[slot];
        let Order { id, user, side, order_type, post_only, .. } = *order;
        let is_pending_stop = place == Place::Stop;
        let price = if order_type.has_limit() { price } else { order.price };
        if is_pending_stop || price == order.price && quantity <= order.left {
            order.price = price;
            order.left = quantity;
            order.shown =
                if is_pending_stop { order.display_at_rest() } else { order.shown.min(quantity) };
            return emit(Event::Replaced { id, user, price, quantity, kept_priority: true });
        }
        let rests = matches!(place, Place::Displayed | Place::Hidden);
        let would_cross = rests && self.would_cross(side, price);
        if would_cross && post_only == PostOnly::Reject {
            return emit(Event::rejected(id, user, RejectReason::WouldTake));
        }
        emit(Event::Replaced { id, user, price, quantity, kept_priority: false });
        self.dequeue(slot);
        let priority = self.next_priority();
        let order = &mut self.orders[slot];
        (order.price, order.left, order.priority) = (price, quantity, priority);
        order.shown = order.display_at_rest();
        if would_cross {
            let order = *order;
            self.remove(slot);
            self.execute(&mut Order { timer: NO_TIMER, ..order }, emit);
        } else {
            self.enqueue(slot);
        }
    }

    /// The slot of the order to be replaced, or the first check that fails.
    #[inline(always)]
    fn may_replace(
        &self,
        id: OrderId,
        user: UserId,
        price: Price,
        quantity: Quantity,
    ) -> Result<Slot, RejectReason> {
        if self.phase == TradingPhase::Halted {
            return Err(RejectReason::Halted);
        }
        let slot = self.find(id, user).ok_or(RejectReason::UnknownOrder)?;
        if quantity == 0 {
            return Err(RejectReason::BadQuantity);
        }
        if limits::has_too_many_parts(quantity, self.orders[slot].display) {
            return Err(RejectReason::TooManyParts);
        }
        if self.is_outside(price) && self.orders[slot].has_limit() {
            return Err(RejectReason::OutsideBands);
        }
        Ok(slot)
    }
}

/// The trades that an order would make.
struct Trial {
    left: Quantity,
    traded: Quantity,
    trades: u32,
    most: u32,
}

impl Trial {
    /// Trades with a part that a maker shows; whether it could trade more.
    fn trade(&mut self, shown: Quantity) -> bool {
        if self.left == 0 || !self.count() {
            return false;
        }
        let quantity = self.left.min(shown);
        self.left -= quantity;
        self.traded += quantity;
        self.left > 0
    }

    /// Counts a trade, or an own order in its place; false if it may make no more.
    fn count(&mut self) -> bool {
        let may_go_on = self.trades < self.most;
        self.trades += u32::from(may_go_on);
        may_go_on
    }
}

/// Cancels the rest of an incoming order.
fn cancel_incoming(order: &Order, reason: CancelReason, emit: &mut impl FnMut(Event)) {
    let Order { id, user, left, .. } = *order;
    emit(Event::Cancelled { id, user, left, reason });
}
