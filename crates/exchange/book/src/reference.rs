//! The reference book: every rule of [`crate::order`] in the most obvious way, at any cost.
//!
//! Orders are in one list in order of priority, and every search begins at its front. The fast book
//! is tested against this one.

use std::collections::VecDeque;

use crate::limits;
use crate::order::{
    CancelReason, Closing, Command, Event, LiveOrder, Matching, NewOrder, OpenOrder, OrderId,
    OrderType, PostOnly, Price, Quantity, RejectReason, SelfTrade, Side, SnapshotError,
    TimeInForce, TradingPhase, UserId,
};
use crate::snapshot::{BookSnapshot, SnapshotOrder};

/// The reference book of one instrument.
#[derive(Debug, Clone)]
pub struct ReferenceBook {
    state: BookSnapshot,
    /// Lowest and highest price of trades since stops were last checked.
    trade_range: Option<(Price, Price)>,
    /// Trades that the present command may still make.
    trades_left: u32,
    /// The bands when pegged orders last moved; what else they followed is in the state.
    followed_bands: Option<(Price, Price)>,
}

type Emit<'a> = &'a mut dyn FnMut(Event);

impl Matching for ReferenceBook {
    fn new() -> ReferenceBook {
        let state = BookSnapshot {
            phase: TradingPhase::Continuous,
            phase_before_halt: TradingPhase::Continuous,
            closing: Closing::No,
            bands: None,
            last: None,
            now_ns: 0,
            followed: [None; 2],
            orders: vec![],
        };
        ReferenceBook { state, trade_range: None, trades_left: 0, followed_bands: None }
    }

    fn apply(&mut self, command: &Command, now_ns: u64, emit: &mut impl FnMut(Event)) {
        self.state.now_ns = self.state.now_ns.max(now_ns);
        self.trades_left = limits::COMMAND_TRADES_MAX;
        self.expire(emit);
        self.settle(emit);
        match *command {
            Command::New(order) => self.accept_order(order, emit),
            Command::Replace { id, user, price, quantity } => {
                self.replace(id, user, price, quantity, emit);
            }
            Command::Cancel { id, user } => match self.find(id, user) {
                Some(at) => self.cancel_order(at, CancelReason::User, emit),
                None => emit(Event::rejected(id, user, RejectReason::UnknownOrder)),
            },
            Command::MassCancel { user } => {
                self.cancel_all(|order| order.order.user == user, CancelReason::Mass, emit);
            }
            Command::Bands { low, high } => self.set_bands(low, high, emit),
            Command::Halt => self.halt(emit),
            Command::Resume => self.resume(emit),
            Command::BeginAuction => self.begin_auction(emit),
            Command::ExpectClosing => self.expect_closing(emit),
            Command::BeginClosing => self.begin_closing(emit),
            Command::Uncross => self.uncross(emit),
            Command::EndOfDay => {
                let is_of_day = |order: &SnapshotOrder| {
                    matches!(order.order.time_in_force, TimeInForce::Day | TimeInForce::AtClose)
                };
                self.cancel_all(is_of_day, CancelReason::Day, emit);
                self.state.closing = Closing::No;
            }
            Command::Tick => {}
        }
        self.settle(emit);
    }

    fn best(&self, side: Side) -> Option<(Price, Quantity)> {
        let of_side = || {
            let shown = self.state.orders.iter().filter(|order| is_displayed(order));
            shown.filter(|order| order.order.side == side)
        };
        let prices = of_side().map(|order| order.order.price);
        let price = if side == Side::Buy { prices.max() } else { prices.min() }?;
        let shown = of_side().filter(|order| order.order.price == price).map(|order| order.shown);
        Some((price, shown.fold(0, Quantity::saturating_add)))
    }

    fn phase(&self) -> TradingPhase {
        self.state.phase
    }

    fn closing(&self) -> Closing {
        self.state.closing
    }

    fn visit_users(&self, visit: &mut impl FnMut(UserId)) {
        self.state.orders.iter().for_each(|order| visit(order.order.user));
    }

    fn visit_pegged(&self, visit: &mut impl FnMut(UserId)) {
        let pegged = self.state.orders.iter().filter(|order| order.order.is_pegged());
        pegged.for_each(|order| visit(order.order.user));
    }

    fn cancel_all_of(&mut self, user: UserId, emit: &mut impl FnMut(Event)) {
        self.cancel_all(|order| order.order.user == user, CancelReason::Mass, emit);
        self.forget_followed();
    }

    fn visit_open(&self, visit: &mut impl FnMut(OpenOrder)) {
        self.state.orders.iter().for_each(|order| visit(order.to_open()));
    }

    fn visit_orders_of(&self, user: UserId, visit: &mut impl FnMut(LiveOrder)) {
        self.state
            .orders
            .iter()
            .filter(|it| it.order.user == user)
            .for_each(|it| visit(it.to_live()));
    }

    fn len(&self) -> usize {
        self.state.orders.len()
    }

    fn hash(&self) -> u64 {
        self.state.hash()
    }

    fn save(&self, bytes: &mut Vec<u8>) {
        self.state.write(bytes);
    }

    fn load(bytes: &[u8]) -> Result<ReferenceBook, SnapshotError> {
        let state = BookSnapshot::read(bytes)?;
        let followed_bands = state.bands;
        Ok(ReferenceBook { state, followed_bands, ..ReferenceBook::new() })
    }
}

/// Whether others see it.
fn is_displayed(order: &SnapshotOrder) -> bool {
    let is_limit = order.order.order_type == OrderType::Limit;
    !order.is_pending_stop && is_limit && order.order.is_displayed()
}

/// Whether an order with this limit trades at this price; no limit for market orders.
fn accepts(side: Side, limit: Option<Price>, price: Price) -> bool {
    match (side, limit) {
        (_, None) => true,
        (Side::Buy, Some(limit)) => price <= limit,
        (Side::Sell, Some(limit)) => price >= limit,
    }
}

impl ReferenceBook {
    /// Whether it trades now if somebody wants to: it waits for nothing.
    fn takes_part(&self, order: &SnapshotOrder) -> bool {
        let is_there = !order.order.is_pegged() || self.price(order).is_some();
        !order.is_pending_stop && !self.state.is_waiting(&order.order) && is_there
    }

    /// The price at which it rests in the book, if it does.
    fn price(&self, order: &SnapshotOrder) -> Option<Price> {
        if !order.order.is_pegged() {
            return self.state.price(order);
        }
        // Bands that are being set hold for pegged orders once these move.
        let state = BookSnapshot { bands: self.followed_bands, orders: vec![], ..self.state };
        state.price(order)
    }

    /// Without pegged orders, none follows anything.
    fn forget_followed(&mut self) {
        if !self.state.orders.iter().any(|order| order.order.is_pegged()) {
            self.state.followed = [None; 2];
        }
    }

    /// What pegged orders have to follow now.
    fn to_follow(&self) -> [Option<Price>; 2] {
        match self.state.phase {
            TradingPhase::Continuous => {
                [Side::Buy, Side::Sell].map(|side| Some(self.best(side)?.0))
            }
            TradingPhase::Auction | TradingPhase::Halted => [None; 2],
        }
    }

    /// Executes elected stops, then moves pegged orders, until there are neither.
    fn settle(&mut self, emit: Emit<'_>) {
        loop {
            self.elect(emit);
            let is_done =
                (self.state.followed, self.followed_bands) == (self.to_follow(), self.state.bands);
            if is_done || !self.state.orders.iter().any(|order| order.order.is_pegged()) {
                return self.forget_followed();
            }
            self.follow(emit);
        }
    }

    /// Pegged orders whose price has changed leave, and enter again in their order.
    fn follow(&mut self, emit: Emit<'_>) {
        let before: Vec<Option<Price>> =
            self.state.orders.iter().map(|order| self.price(order)).collect();
        (self.state.followed, self.followed_bands) = (self.to_follow(), self.state.bands);
        let orders = std::mem::take(&mut self.state.orders);
        let is_moving = |(order, before): &(SnapshotOrder, Option<Price>)| {
            order.order.is_pegged() && self.price(order) != *before
        };
        let (moving, staying): (Vec<_>, Vec<_>) =
            orders.into_iter().zip(before).partition(is_moving);
        self.state.orders = staying.into_iter().map(|(order, _)| order).collect();
        for (order, _) in moving {
            if self.trades_left == 0 {
                let NewOrder { id, user, .. } = order.order;
                let reason = CancelReason::TooManyTrades;
                emit(Event::Cancelled { id, user, left: order.left, reason });
            } else {
                self.trades_left -= 1;
                self.enter(order, emit);
            }
        }
    }

    /// A pegged order takes at the price that it has now and rests, or rests without a price.
    fn enter(&mut self, order: SnapshotOrder, emit: Emit<'_>) {
        match self.price(&order) {
            Some(_) => self.execute(order, emit),
            None => self.state.orders.push(order),
        }
    }

    fn find(&self, id: OrderId, user: UserId) -> Option<usize> {
        self.state.orders.iter().position(|known| known.order.id == id && known.order.user == user)
    }

    /// The order of a side that trades next, and its price.
    fn front(&self, side: Side) -> Option<(usize, Price)> {
        let mut best: Option<(usize, Price)> = None;
        for (at, order) in self.state.orders.iter().enumerate() {
            let Some(price) = self.price(order).filter(|_| order.order.side == side) else {
                continue;
            };
            let is_better = best.is_none_or(|(best, known)| {
                let is_better = if side == Side::Buy { price > known } else { price < known };
                let is_behind = !self.state.orders[best].order.is_displayed();
                is_better || price == known && order.order.is_displayed() && is_behind
            });
            if is_better {
                best = Some((at, price));
            }
        }
        best
    }

    fn pegged(&self) -> usize {
        self.state.orders.iter().filter(|order| order.order.is_pegged()).count()
    }

    fn cancel_order(&mut self, at: usize, reason: CancelReason, emit: Emit<'_>) {
        let gone = self.state.orders.remove(at);
        let NewOrder { id, user, .. } = gone.order;
        emit(Event::Cancelled { id, user, left: gone.left, reason });
    }

    fn cancel_all(
        &mut self,
        matches: impl Fn(&SnapshotOrder) -> bool,
        reason: CancelReason,
        emit: Emit<'_>,
    ) {
        while let Some(at) = self.state.orders.iter().position(&matches) {
            self.cancel_order(at, reason, emit);
        }
    }

    fn expire(&mut self, emit: Emit<'_>) {
        let until = |order: &SnapshotOrder| match order.order.time_in_force {
            TimeInForce::GoodTill(until_ns) => until_ns,
            _ => u64::MAX,
        };
        loop {
            let first = self.state.orders.iter().map(until).min().unwrap_or(u64::MAX);
            if first > self.state.now_ns || first == u64::MAX {
                return;
            }
            self.cancel_all(|order| until(order) == first, CancelReason::Expired, emit);
        }
    }

    fn outside(&self, order: &NewOrder) -> bool {
        order.order_type.has_limit()
            && self.state.bands.is_some_and(|(low, high)| order.price < low || order.price > high)
    }

    fn would_cross(&self, order: &NewOrder) -> bool {
        self.state.phase == TradingPhase::Continuous
            && self
                .front(order.side.opposite())
                .is_some_and(|(_, price)| accepts(order.side, Some(order.price), price))
    }

    fn has_expired(&self, order: &NewOrder) -> bool {
        match order.time_in_force {
            TimeInForce::GoodTill(until_ns) => until_ns <= self.state.now_ns,
            _ => false,
        }
    }

    /// The first check that a new order fails.
    fn reject_reason(&self, order: &NewOrder) -> Option<RejectReason> {
        if self.state.phase == TradingPhase::Halted {
            Some(RejectReason::Halted)
        } else if let Some(reason) = order.fault() {
            Some(reason)
        } else if limits::has_too_many_parts(order.quantity, order.display) {
            Some(RejectReason::TooManyParts)
        } else if self.has_expired(order) {
            Some(RejectReason::Expired)
        } else if self.find(order.id, order.user).is_some() {
            Some(RejectReason::DuplicateId)
        } else if self.outside(order) {
            Some(RejectReason::OutsideBands)
        } else if self.state.phase == TradingPhase::Auction && !order.fits_auction() {
            Some(RejectReason::InAuction)
        } else if order.is_on_close() && self.state.closing == Closing::No {
            Some(RejectReason::NoClosing)
        } else if order.may_rest(self.state.phase) && self.state.orders.len() >= limits::ORDERS_MAX
        {
            Some(RejectReason::TooManyOrders)
        } else if order.is_pegged() && self.pegged() >= limits::PEGS_MAX {
            Some(RejectReason::TooManyPegs)
        } else if order.post_only == PostOnly::Reject && self.would_cross(order) {
            Some(RejectReason::WouldTake)
        } else {
            None
        }
    }

    fn accept_order(&mut self, order: NewOrder, emit: Emit<'_>) {
        let NewOrder { id, user, quantity, .. } = order;
        if let Some(reason) = self.reject_reason(&order) {
            return emit(Event::rejected(id, user, reason));
        }
        emit(Event::Accepted { id, user });
        let shown = if order.display == 0 { quantity } else { order.display };
        let incoming = SnapshotOrder { order, left: quantity, shown, is_pending_stop: false };
        let is_stop = matches!(order.order_type, OrderType::Stop | OrderType::StopLimit);
        let is_there = self.state.last.is_some_and(|last| reaches(&order, (last, last)));
        if is_stop && !(is_there && self.state.phase == TradingPhase::Continuous) {
            self.state.orders.push(SnapshotOrder { is_pending_stop: true, ..incoming });
        } else if is_stop {
            self.trigger(incoming, emit);
        } else if order.is_pegged() {
            if self.pegged() == 0 {
                (self.state.followed, self.followed_bands) = (self.to_follow(), self.state.bands);
            }
            self.enter(incoming, emit);
        } else if self.state.phase == TradingPhase::Auction || order.is_on_close() {
            self.state.orders.push(incoming);
        } else {
            self.execute(incoming, emit);
        }
    }

    /// Converts a triggered stop to a market or limit order and executes it.
    fn trigger(&mut self, mut stop: SnapshotOrder, emit: Emit<'_>) {
        emit(Event::Triggered { id: stop.order.id, user: stop.order.user });
        stop.is_pending_stop = false;
        stop.order.order_type = if stop.order.order_type == OrderType::Stop {
            OrderType::Market
        } else {
            OrderType::Limit
        };
        self.execute(stop, emit);
    }

    /// Executes an incoming order in continuous trading: it trades, rests or is cancelled.
    fn execute(&mut self, mut order: SnapshotOrder, emit: Emit<'_>) {
        let NewOrder { id, user, .. } = order.order;
        if order.order.time_in_force == TimeInForce::FillOrKill || order.order.minimum > 0 {
            let mut traded = 0;
            let mut trial = self.clone();
            trial.trade(order, &mut |event| {
                if let Event::Traded { quantity, .. } = event {
                    traded += quantity;
                }
            });
            let reason =
                if order.order.time_in_force == TimeInForce::FillOrKill && traded < order.left {
                    Some(CancelReason::Killed)
                } else {
                    (traded < order.order.minimum).then_some(CancelReason::BelowMinimum)
                };
            if let Some(reason) = reason {
                self.trades_left = trial.trades_left;
                return emit(Event::Cancelled { id, user, left: order.left, reason });
            }
            order.order.minimum = 0;
        }
        if order.order.post_only == PostOnly::Slide
            && self.would_cross(&order.order)
            && (!self.slide(&mut order, emit) || self.outside(&order.order))
        {
            let reason = CancelReason::Bands;
            return emit(Event::Cancelled { id, user, left: order.left, reason });
        }
        let (left, lives) = self.trade(order, emit);
        if !lives || left == 0 {
            return;
        }
        let is_market = order.order.order_type == OrderType::Market && !order.order.is_pegged();
        if is_market || order.order.is_immediate() {
            return emit(Event::Cancelled { id, user, left, reason: CancelReason::Unfilled });
        }
        order.left = left;
        order.shown = display_at_rest(&order);
        self.state.orders.push(order);
    }

    /// Moves an order one tick away from the best price of the other side. Returns whether that
    /// price exists.
    fn slide(&self, order: &mut SnapshotOrder, emit: Emit<'_>) -> bool {
        let side = order.order.side;
        let Some((_, best)) = self.front(side.opposite()) else { return true };
        let away = if side == Side::Buy { best.checked_sub(1) } else { best.checked_add(1) };
        let Some(price) = away else { return false };
        order.order.price = price;
        emit(Event::Slid { id: order.order.id, user: order.order.user, price });
        true
    }

    /// Trades an incoming order as far as possible. Returns its open quantity, and whether it is
    /// still live.
    fn trade(&mut self, mut order: SnapshotOrder, emit: Emit<'_>) -> (Quantity, bool) {
        let NewOrder { id, user, side, .. } = order.order;
        let is_pegged = order.order.is_pegged();
        let limit = order.order.order_type.has_limit().then_some(order.order.price);
        let limit = if is_pegged { self.price(&order) } else { limit };
        let mut trades = 0;
        while order.left > 0 {
            let Some((at, price)) = self.front(side.opposite()) else { break };
            let maker = self.state.orders[at];
            if !accepts(side, limit, price) {
                break;
            }
            if trades == limits::ORDER_TRADES_MAX || self.trades_left == 0 {
                let reason = CancelReason::TooManyTrades;
                emit(Event::Cancelled { id, user, left: order.left, reason });
                return (0, false);
            }
            trades += 1;
            self.trades_left -= 1;
            if maker.order.user == user && order.order.self_trade != SelfTrade::Allow {
                if !self.prevent_self_trade(at, &mut order, emit) {
                    return (0, false);
                }
                continue;
            }
            let quantity = order.left.min(maker.shown);
            order.left -= quantity;
            let maker_left = maker.left - quantity;
            emit(Event::Traded {
                maker: maker.order.id,
                taker: id,
                maker_user: maker.order.user,
                taker_user: user,
                price,
                quantity,
                maker_left,
                taker_left: order.left,
            });
            self.record_trade(price);
            if maker_left == 0 {
                self.state.orders.remove(at);
            } else if maker.shown > quantity {
                let known = &mut self.state.orders[at];
                (known.left, known.shown) = (maker_left, maker.shown - quantity);
            } else {
                let mut known = self.state.orders.remove(at);
                (known.left, known.shown) = (maker_left, maker_left.min(known.order.display));
                let NewOrder { id, user, .. } = known.order;
                emit(Event::Refreshed { id, user, shown: known.shown });
                self.state.orders.push(known);
            }
        }
        (order.left, true)
    }

    /// Applies self-trade prevention to two orders of one user. Returns whether the incoming one is
    /// still live.
    fn prevent_self_trade(&mut self, at: usize, order: &mut SnapshotOrder, emit: Emit<'_>) -> bool {
        let NewOrder { id, user, self_trade, .. } = order.order;
        let reason = CancelReason::SelfTrade;
        let gone = Event::Cancelled { id, user, left: order.left, reason };
        match self_trade {
            SelfTrade::Allow => {}
            SelfTrade::CancelNewest => {
                emit(gone);
                return false;
            }
            SelfTrade::CancelOldest => self.cancel_order(at, reason, emit),
            SelfTrade::CancelBoth => {
                self.cancel_order(at, reason, emit);
                emit(gone);
                return false;
            }
            SelfTrade::Decrement => {
                let (maker, taken) = (self.state.orders[at], order.left);
                if maker.left <= order.left {
                    self.cancel_order(at, reason, emit);
                } else {
                    let known = &mut self.state.orders[at];
                    known.left -= taken;
                    known.shown = known.shown.min(known.left);
                    let NewOrder { id, user, .. } = known.order;
                    emit(Event::Reduced { id, user, left: known.left });
                }
                if taken <= maker.left {
                    emit(gone);
                    return false;
                }
                order.left -= maker.left;
                emit(Event::Reduced { id, user, left: order.left });
            }
        }
        true
    }

    fn record_trade(&mut self, price: Price) {
        self.state.last = Some(price);
        let (low, high) = self.trade_range.unwrap_or((price, price));
        self.trade_range = Some((low.min(price), high.max(price)));
    }

    /// Executes the stops that trades have reached, one after another.
    fn elect(&mut self, emit: Emit<'_>) {
        let mut elected: VecDeque<(OrderId, UserId)> = VecDeque::new();
        loop {
            if let Some(trade_range) = self.trade_range.take() {
                let key = |order: &SnapshotOrder| (order.order.id, order.order.user);
                let fresh = self.state.orders.iter().filter(|order| {
                    order.is_pending_stop
                        && reaches(&order.order, trade_range)
                        && !elected.contains(&key(order))
                });
                let fresh: Vec<(OrderId, UserId)> = fresh.map(key).collect();
                elected.extend(fresh);
            }
            let Some((id, user)) = elected.pop_front() else { return };
            // No stop that is executed before it can cancel a pending stop.
            if let Some(at) = self.find(id, user) {
                let stop = self.state.orders.remove(at);
                self.trigger(stop, emit);
            }
        }
    }

    fn replace(
        &mut self,
        id: OrderId,
        user: UserId,
        price: Price,
        quantity: Quantity,
        emit: Emit<'_>,
    ) {
        let mut refuse = |reason| emit(Event::rejected(id, user, reason));
        if self.state.phase == TradingPhase::Halted {
            return refuse(RejectReason::Halted);
        }
        let Some(at) = self.find(id, user) else { return refuse(RejectReason::UnknownOrder) };
        if quantity == 0 {
            return refuse(RejectReason::BadQuantity);
        }
        let known = self.state.orders[at];
        if limits::has_too_many_parts(quantity, known.order.display) {
            return refuse(RejectReason::TooManyParts);
        }
        let mut changed = known;
        if known.order.order_type.has_limit() {
            changed.order.price = price;
        }
        if self.outside(&changed.order) {
            return refuse(RejectReason::OutsideBands);
        }
        let price = changed.order.price;
        changed.left = quantity;
        let is_same = price == known.order.price && quantity <= known.left;
        let kept_priority = is_same || known.is_pending_stop;
        if kept_priority {
            changed.shown = if known.is_pending_stop {
                display_at_rest(&changed)
            } else {
                known.shown.min(quantity)
            };
            self.state.orders[at] = changed;
            return emit(Event::Replaced { id, user, price, quantity, kept_priority });
        }
        changed.shown = display_at_rest(&changed);
        if changed.order.post_only == PostOnly::Reject && self.would_cross(&changed.order) {
            return refuse(RejectReason::WouldTake);
        }
        self.state.orders.remove(at);
        emit(Event::Replaced { id, user, price, quantity, kept_priority });
        if changed.order.is_pegged() {
            self.enter(changed, emit);
        } else if self.state.phase == TradingPhase::Auction || changed.order.is_on_close() {
            self.state.orders.push(changed);
        } else {
            self.execute(changed, emit);
        }
    }

    fn set_bands(&mut self, low: Price, high: Price, emit: Emit<'_>) {
        if low > high {
            return emit(Event::rejected(0, 0, RejectReason::BadCombination));
        }
        self.state.bands = Some((low, high));
        emit(Event::BandsSet { low, high });
        let matches = |order: &SnapshotOrder| {
            order.order.order_type.has_limit()
                && (order.order.price < low || order.order.price > high)
        };
        self.cancel_all(matches, CancelReason::Bands, emit);
    }

    fn halt(&mut self, emit: Emit<'_>) {
        if self.state.phase == TradingPhase::Halted {
            return wrong_state(emit);
        }
        self.state.phase_before_halt = self.state.phase;
        self.state.phase = TradingPhase::Halted;
        emit(Event::Halted);
    }

    fn resume(&mut self, emit: Emit<'_>) {
        if self.state.phase != TradingPhase::Halted {
            return wrong_state(emit);
        }
        self.state.phase = self.state.phase_before_halt;
        self.state.phase_before_halt = TradingPhase::Continuous;
        emit(Event::Resumed);
    }

    fn begin_auction(&mut self, emit: Emit<'_>) {
        if self.state.phase == TradingPhase::Auction {
            return wrong_state(emit);
        }
        self.state.phase_before_halt = TradingPhase::Continuous;
        self.state.phase = TradingPhase::Auction;
        emit(Event::AuctionBegun);
    }

    fn expect_closing(&mut self, emit: Emit<'_>) {
        if self.state.closing != Closing::No {
            return wrong_state(emit);
        }
        self.state.closing = Closing::Expected;
    }

    fn begin_closing(&mut self, emit: Emit<'_>) {
        if self.state.closing == Closing::Begun {
            return wrong_state(emit);
        }
        self.state.closing = Closing::Begun;
        self.state.phase_before_halt = TradingPhase::Continuous;
        self.state.phase = TradingPhase::Auction;
        emit(Event::AuctionBegun);
        // Those that join get a new priority, behind all others.
        self.state.orders.sort_by_key(|order| order.order.is_on_close());
    }

    fn uncross(&mut self, emit: Emit<'_>) {
        if self.state.phase != TradingPhase::Auction {
            return wrong_state(emit);
        }
        self.state.phase = TradingPhase::Continuous;
        let (price, volume) = match self.auction_price() {
            Some((price, volume)) => (Some(price), volume),
            None => (None, 0),
        };
        let volume_shown = Quantity::try_from(volume).unwrap_or(Quantity::MAX);
        emit(Event::Uncrossed { price, volume: volume_shown });
        if let Some(price) = price {
            self.trade_at(price, volume, emit);
        }
        if self.state.closing == Closing::Begun {
            self.cancel_all(|order| order.order.is_on_close(), CancelReason::Closed, emit);
            self.state.closing = Closing::No;
        }
        let matches = |order: &SnapshotOrder| {
            let is_special = order.order.is_on_close() || order.order.is_pegged();
            order.order.order_type == OrderType::Market && !is_special
        };
        self.cancel_all(matches, CancelReason::Unfilled, emit);
    }

    /// Quantity of one side that could trade at a price.
    fn volume_at(&self, side: Side, price: Price) -> u128 {
        let takes_part = self.state.orders.iter().filter(|order| {
            let limit = order.order.order_type.has_limit().then_some(order.order.price);
            self.takes_part(order) && order.order.side == side && accepts(side, limit, price)
        });
        takes_part.map(|order| u128::from(order.left)).sum()
    }

    /// The auction price and its volume, if anything trades.
    fn auction_price(&self) -> Option<(Price, u128)> {
        let rests = self.state.orders.iter().filter_map(|order| self.price(order));
        let mut prices: Vec<Price> = rests.collect();
        let reference = self.state.last.map(|last| match self.state.bands {
            Some((low, high)) => last.clamp(low, high),
            None => last,
        });
        prices.extend(reference);
        prices.sort_unstable();
        let rank = |price: &Price| {
            let (buy, sell) =
                (self.volume_at(Side::Buy, *price), self.volume_at(Side::Sell, *price));
            let distance = reference.map_or(0, |reference| price.abs_diff(reference));
            (std::cmp::Reverse(buy.min(sell)), buy.abs_diff(sell), distance)
        };
        // Among equals the first, which is the lowest price.
        let price = prices.into_iter().min_by_key(rank)?;
        let volume = self.volume_at(Side::Buy, price).min(self.volume_at(Side::Sell, price));
        (volume > 0).then_some((price, volume))
    }

    /// The order that trades first in an auction.
    fn first_in_auction(&self, side: Side) -> Option<usize> {
        let is_market = |order: &SnapshotOrder| {
            self.takes_part(order) && order.order.order_type == OrderType::Market
        };
        let phase =
            self.state.orders.iter().position(|order| is_market(order) && order.order.side == side);
        phase.or_else(|| Some(self.front(side)?.0))
    }

    fn trade_at(&mut self, price: Price, mut volume: u128, emit: Emit<'_>) {
        while volume > 0 {
            let (Some(buy), Some(sell)) =
                (self.first_in_auction(Side::Buy), self.first_in_auction(Side::Sell))
            else {
                return;
            };
            let (buyer, seller) = (self.state.orders[buy], self.state.orders[sell]);
            let most = buyer.left.min(seller.left);
            let quantity = Quantity::try_from(volume).map_or(most, |volume| volume.min(most));
            volume -= u128::from(quantity);
            emit(Event::Traded {
                maker: buyer.order.id,
                taker: seller.order.id,
                maker_user: buyer.order.user,
                taker_user: seller.order.user,
                price,
                quantity,
                maker_left: buyer.left - quantity,
                taker_left: seller.left - quantity,
            });
            for at in [buy, sell] {
                let order = &mut self.state.orders[at];
                order.left -= quantity;
                order.shown = display_at_rest(order);
            }
            self.state.orders.retain(|order| order.left > 0);
        }
        self.record_trade(price);
    }
}

/// The quantity that an order shows when it begins to rest.
fn display_at_rest(order: &SnapshotOrder) -> Quantity {
    if order.order.display == 0 { order.left } else { order.left.min(order.order.display) }
}

/// Whether trades between these prices reach a stop.
fn reaches(order: &NewOrder, (low, high): (Price, Price)) -> bool {
    match order.side {
        Side::Buy => high >= order.stop_price,
        Side::Sell => low <= order.stop_price,
    }
}

fn wrong_state(emit: Emit<'_>) {
    emit(Event::rejected(0, 0, RejectReason::WrongState));
}
