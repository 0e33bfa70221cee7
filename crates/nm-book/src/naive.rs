//! The plain book: every rule of [`crate::order`] in the most obvious way, whatever it costs.
//!
//! Orders stand in one list in order of place; whoever is looked for is looked for from its
//! beginning. The fast book is tested against this one.

use std::collections::VecDeque;

use crate::order::{
    Command, Ending, Event, Kind, Life, Market, Matching, NewOrder, OrderId, PostOnly, Price,
    Quantity, Reason, SelfTrade, Side, Unreadable, UserId,
};
use crate::saved::{Saved, SavedOrder};

/// The plain book of one instrument.
#[derive(Debug, Clone)]
pub struct Book {
    state: Saved,
    /// Lowest and highest price of the trades that stops have not been held against yet.
    reached: Option<(Price, Price)>,
}

type Tell<'a> = &'a mut dyn FnMut(Event);

impl Matching for Book {
    fn new() -> Book {
        let state = Saved {
            market: Market::Continuous,
            before_halt: Market::Continuous,
            bands: None,
            last: None,
            now_ns: 0,
            orders: vec![],
        };
        Book { state, reached: None }
    }

    fn apply(&mut self, command: &Command, now_ns: u64, tell: &mut impl FnMut(Event)) {
        self.state.now_ns = self.state.now_ns.max(now_ns);
        self.expire(tell);
        match *command {
            Command::New(order) => self.take_in(order, tell),
            Command::Replace { id, user, price, quantity } => {
                self.replace(id, user, price, quantity, tell);
            }
            Command::Cancel { id, user } => match self.find(id, user) {
                Some(at) => self.take_out(at, Ending::User, tell),
                None => tell(Event::Rejected { id, user, reason: Reason::UnknownOrder }),
            },
            Command::MassCancel { user } => {
                self.take_out_all(|order| order.order.user == user, Ending::Mass, tell);
            }
            Command::Bands { low, high } => self.set_bands(low, high, tell),
            Command::Halt => self.halt(tell),
            Command::Resume => self.resume(tell),
            Command::BeginAuction => self.begin_auction(tell),
            Command::Uncross => self.uncross(tell),
            Command::EndOfDay => {
                self.take_out_all(|order| order.order.life == Life::Day, Ending::Day, tell);
            }
            Command::Tick => {}
        }
        self.elect(tell);
    }

    fn best(&self, side: Side) -> Option<(Price, Quantity)> {
        let best = &self.state.orders[self.front(side)?];
        let price = best.order.price;
        let shown =
            self.state.orders.iter().filter(|other| {
                rests(other) && other.order.side == side && other.order.price == price
            });
        let shown = shown.map(|order| order.shown);
        Some((price, shown.fold(0, Quantity::saturating_add)))
    }

    fn market(&self) -> Market {
        self.state.market
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

    fn load(bytes: &[u8]) -> Result<Book, Unreadable> {
        Ok(Book { state: Saved::read(bytes)?, reached: None })
    }
}

/// Whether it lies in the book at a price.
fn rests(order: &SavedOrder) -> bool {
    !order.waits && order.order.kind == Kind::Limit
}

/// Whether an order with this limit trades at this price; no limit for market orders.
fn accepts(side: Side, limit: Option<Price>, price: Price) -> bool {
    match (side, limit) {
        (_, None) => true,
        (Side::Buy, Some(limit)) => price <= limit,
        (Side::Sell, Some(limit)) => price >= limit,
    }
}

fn is_immediate(order: &NewOrder) -> bool {
    matches!(order.life, Life::ImmediateOrCancel | Life::FillOrKill)
}

impl Book {
    fn find(&self, id: OrderId, user: UserId) -> Option<usize> {
        self.state.orders.iter().position(|known| known.order.id == id && known.order.user == user)
    }

    /// The order of a side that trades next.
    fn front(&self, side: Side) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (at, order) in self.state.orders.iter().enumerate() {
            if !rests(order) || order.order.side != side {
                continue;
            }
            let price = order.order.price;
            let is_better = best.is_none_or(|best| {
                let known = self.state.orders[best].order.price;
                if side == Side::Buy { price > known } else { price < known }
            });
            if is_better {
                best = Some(at);
            }
        }
        best
    }

    fn take_out(&mut self, at: usize, ending: Ending, tell: Tell<'_>) {
        let gone = self.state.orders.remove(at);
        let NewOrder { id, user, .. } = gone.order;
        tell(Event::Cancelled { id, user, left: gone.left, ending });
    }

    fn take_out_all(&mut self, goes: impl Fn(&SavedOrder) -> bool, ending: Ending, tell: Tell<'_>) {
        while let Some(at) = self.state.orders.iter().position(&goes) {
            self.take_out(at, ending, tell);
        }
    }

    fn expire(&mut self, tell: Tell<'_>) {
        let until = |order: &SavedOrder| match order.order.life {
            Life::GoodTill(until_ns) => until_ns,
            _ => u64::MAX,
        };
        loop {
            let first = self.state.orders.iter().map(until).min().unwrap_or(u64::MAX);
            if first > self.state.now_ns || first == u64::MAX {
                return;
            }
            self.take_out_all(|order| until(order) == first, Ending::Expired, tell);
        }
    }

    fn outside(&self, order: &NewOrder) -> bool {
        order.kind.has_limit()
            && self.state.bands.is_some_and(|(low, high)| order.price < low || order.price > high)
    }

    fn would_take(&self, order: &NewOrder) -> bool {
        self.state.market == Market::Continuous
            && self.front(order.side.opposite()).is_some_and(|at| {
                accepts(order.side, Some(order.price), self.state.orders[at].order.price)
            })
    }

    /// The first check that a new order fails.
    fn refusal(&self, order: &NewOrder) -> Option<Reason> {
        if self.state.market == Market::Halted {
            Some(Reason::Halted)
        } else if let Some(reason) = order.fault() {
            Some(reason)
        } else if matches!(order.life, Life::GoodTill(until_ns) if until_ns <= self.state.now_ns) {
            Some(Reason::Expired)
        } else if self.state.orders.iter().any(|known| known.order.id == order.id) {
            Some(Reason::DuplicateId)
        } else if self.outside(order) {
            Some(Reason::OutsideBands)
        } else if self.state.market == Market::Auction && !order.fits_auction() {
            Some(Reason::InAuction)
        } else if order.post_only == PostOnly::Reject && self.would_take(order) {
            Some(Reason::WouldTake)
        } else {
            None
        }
    }

    fn take_in(&mut self, order: NewOrder, tell: Tell<'_>) {
        let NewOrder { id, user, quantity, .. } = order;
        if let Some(reason) = self.refusal(&order) {
            return tell(Event::Rejected { id, user, reason });
        }
        tell(Event::Accepted { id, user });
        let shown = if order.display == 0 { quantity } else { order.display };
        let incoming = SavedOrder { order, left: quantity, shown, waits: false };
        let is_stop = matches!(order.kind, Kind::Stop | Kind::StopLimit);
        let is_there = self.state.last.is_some_and(|last| reaches(&order, (last, last)));
        if is_stop && !(is_there && self.state.market == Market::Continuous) {
            self.state.orders.push(SavedOrder { waits: true, ..incoming });
        } else if is_stop {
            self.trigger(incoming, tell);
        } else if self.state.market == Market::Auction {
            self.state.orders.push(incoming);
        } else {
            self.come_in(incoming, tell);
        }
    }

    /// A stop becomes what it is a stop of.
    fn trigger(&mut self, mut stop: SavedOrder, tell: Tell<'_>) {
        tell(Event::Triggered { id: stop.order.id, user: stop.order.user });
        stop.waits = false;
        stop.order.kind = if stop.order.kind == Kind::Stop { Kind::Market } else { Kind::Limit };
        self.come_in(stop, tell);
    }

    /// An order meets the book in continuous trading: trades, rests or goes.
    fn come_in(&mut self, mut order: SavedOrder, tell: Tell<'_>) {
        let NewOrder { id, user, .. } = order.order;
        if order.order.life == Life::FillOrKill || order.order.minimum > 0 {
            let mut traded = 0;
            self.clone().trade(order, &mut |event| {
                if let Event::Traded { quantity, .. } = event {
                    traded += quantity;
                }
            });
            if order.order.life == Life::FillOrKill && traded < order.left {
                let ending = Ending::Killed;
                return tell(Event::Cancelled { id, user, left: order.left, ending });
            }
            if traded < order.order.minimum {
                let ending = Ending::BelowMinimum;
                return tell(Event::Cancelled { id, user, left: order.left, ending });
            }
            order.order.minimum = 0;
        }
        if order.order.post_only == PostOnly::Slide
            && self.would_take(&order.order)
            && (!self.slide(&mut order, tell) || self.outside(&order.order))
        {
            let ending = Ending::Bands;
            return tell(Event::Cancelled { id, user, left: order.left, ending });
        }
        let (left, lives) = self.trade(order, tell);
        if !lives || left == 0 {
            return;
        }
        if order.order.kind == Kind::Market || is_immediate(&order.order) {
            return tell(Event::Cancelled { id, user, left, ending: Ending::Unfilled });
        }
        order.left = left;
        order.shown = whole(&order);
        self.state.orders.push(order);
    }

    /// Moves an order to a tick from the other side's best price. Answers whether there is one.
    fn slide(&self, order: &mut SavedOrder, tell: Tell<'_>) -> bool {
        let side = order.order.side;
        let Some(at) = self.front(side.opposite()) else { return true };
        let best = self.state.orders[at].order.price;
        let away = if side == Side::Buy { best.checked_sub(1) } else { best.checked_add(1) };
        let Some(price) = away else { return false };
        order.order.price = price;
        tell(Event::Slid { id: order.order.id, user: order.order.user, price });
        true
    }

    /// Trades an incoming order as far as it goes. Answers what is left, and whether it lives.
    fn trade(&mut self, mut order: SavedOrder, tell: Tell<'_>) -> (Quantity, bool) {
        let NewOrder { id, user, side, .. } = order.order;
        let limit = order.order.kind.has_limit().then_some(order.order.price);
        while order.left > 0 {
            let Some(at) = self.front(side.opposite()) else { break };
            let maker = self.state.orders[at];
            let price = maker.order.price;
            if !accepts(side, limit, price) {
                break;
            }
            if maker.order.user == user && order.order.self_trade != SelfTrade::Allow {
                if !self.prevent(at, &mut order, tell) {
                    return (0, false);
                }
                continue;
            }
            let quantity = order.left.min(maker.shown);
            order.left -= quantity;
            let maker_left = maker.left - quantity;
            tell(Event::Traded {
                maker: maker.order.id,
                taker: id,
                maker_user: maker.order.user,
                taker_user: user,
                price,
                quantity,
                maker_left,
                taker_left: order.left,
            });
            self.note_trade(price);
            if maker_left == 0 {
                self.state.orders.remove(at);
            } else if maker.shown > quantity {
                let known = &mut self.state.orders[at];
                (known.left, known.shown) = (maker_left, maker.shown - quantity);
            } else {
                let mut known = self.state.orders.remove(at);
                (known.left, known.shown) = (maker_left, maker_left.min(known.order.display));
                let NewOrder { id, user, .. } = known.order;
                tell(Event::Refreshed { id, user, shown: known.shown });
                self.state.orders.push(known);
            }
        }
        (order.left, true)
    }

    /// Two orders of one user meet. Answers whether the incoming one lives.
    fn prevent(&mut self, at: usize, order: &mut SavedOrder, tell: Tell<'_>) -> bool {
        let NewOrder { id, user, self_trade, .. } = order.order;
        let ending = Ending::SelfTrade;
        let gone = Event::Cancelled { id, user, left: order.left, ending };
        match self_trade {
            SelfTrade::Allow => {}
            SelfTrade::CancelNewest => {
                tell(gone);
                return false;
            }
            SelfTrade::CancelOldest => self.take_out(at, ending, tell),
            SelfTrade::CancelBoth => {
                self.take_out(at, ending, tell);
                tell(gone);
                return false;
            }
            SelfTrade::Decrement => {
                let (maker, taken) = (self.state.orders[at], order.left);
                if maker.left <= order.left {
                    self.take_out(at, ending, tell);
                } else {
                    let known = &mut self.state.orders[at];
                    known.left -= taken;
                    known.shown = known.shown.min(known.left);
                    let NewOrder { id, user, .. } = known.order;
                    tell(Event::Reduced { id, user, left: known.left });
                }
                if taken <= maker.left {
                    tell(gone);
                    return false;
                }
                order.left -= maker.left;
                tell(Event::Reduced { id, user, left: order.left });
            }
        }
        true
    }

    fn note_trade(&mut self, price: Price) {
        self.state.last = Some(price);
        let (low, high) = self.reached.unwrap_or((price, price));
        self.reached = Some((low.min(price), high.max(price)));
    }

    /// Stops that the trades have reached act, one after another.
    fn elect(&mut self, tell: Tell<'_>) {
        let mut elected: VecDeque<OrderId> = VecDeque::new();
        loop {
            if let Some(reached) = self.reached.take() {
                let fresh = self.state.orders.iter().filter(|order| {
                    order.waits
                        && reaches(&order.order, reached)
                        && !elected.contains(&order.order.id)
                });
                let fresh: Vec<OrderId> = fresh.map(|order| order.order.id).collect();
                elected.extend(fresh);
            }
            let Some(id) = elected.pop_front() else { return };
            // Nothing that acts before it can take out a stop that waits.
            if let Some(at) = self.state.orders.iter().position(|known| known.order.id == id) {
                let stop = self.state.orders.remove(at);
                self.trigger(stop, tell);
            }
        }
    }

    fn replace(
        &mut self,
        id: OrderId,
        user: UserId,
        price: Price,
        quantity: Quantity,
        tell: Tell<'_>,
    ) {
        let mut refuse = |reason| tell(Event::Rejected { id, user, reason });
        if self.state.market == Market::Halted {
            return refuse(Reason::Halted);
        }
        let Some(at) = self.find(id, user) else { return refuse(Reason::UnknownOrder) };
        if quantity == 0 {
            return refuse(Reason::BadQuantity);
        }
        let known = self.state.orders[at];
        let mut changed = known;
        if known.order.kind.has_limit() {
            changed.order.price = price;
        }
        if self.outside(&changed.order) {
            return refuse(Reason::OutsideBands);
        }
        let price = changed.order.price;
        changed.left = quantity;
        let is_same = price == known.order.price && quantity <= known.left;
        let kept_place = is_same || known.waits;
        if kept_place {
            changed.shown = if known.waits { whole(&changed) } else { known.shown.min(quantity) };
            self.state.orders[at] = changed;
            return tell(Event::Replaced { id, user, price, quantity, kept_place });
        }
        changed.shown = whole(&changed);
        if changed.order.post_only == PostOnly::Reject && self.would_take(&changed.order) {
            return refuse(Reason::WouldTake);
        }
        self.state.orders.remove(at);
        tell(Event::Replaced { id, user, price, quantity, kept_place });
        if self.state.market == Market::Auction {
            self.state.orders.push(changed);
        } else {
            self.come_in(changed, tell);
        }
    }

    fn set_bands(&mut self, low: Price, high: Price, tell: Tell<'_>) {
        if low > high {
            return tell(Event::Rejected { id: 0, user: 0, reason: Reason::BadCombination });
        }
        self.state.bands = Some((low, high));
        tell(Event::BandsSet { low, high });
        let goes = |order: &SavedOrder| {
            order.order.kind.has_limit() && (order.order.price < low || order.order.price > high)
        };
        self.take_out_all(goes, Ending::Bands, tell);
    }

    fn halt(&mut self, tell: Tell<'_>) {
        if self.state.market == Market::Halted {
            return wrong_state(tell);
        }
        self.state.before_halt = self.state.market;
        self.state.market = Market::Halted;
        tell(Event::Halted);
    }

    fn resume(&mut self, tell: Tell<'_>) {
        if self.state.market != Market::Halted {
            return wrong_state(tell);
        }
        self.state.market = self.state.before_halt;
        self.state.before_halt = Market::Continuous;
        tell(Event::Resumed);
    }

    fn begin_auction(&mut self, tell: Tell<'_>) {
        if self.state.market == Market::Auction {
            return wrong_state(tell);
        }
        self.state.before_halt = Market::Continuous;
        self.state.market = Market::Auction;
        tell(Event::AuctionBegun);
    }

    fn uncross(&mut self, tell: Tell<'_>) {
        if self.state.market != Market::Auction {
            return wrong_state(tell);
        }
        self.state.market = Market::Continuous;
        let (price, volume) = match self.auction_price() {
            Some((price, volume)) => (Some(price), volume),
            None => (None, 0),
        };
        let told = Quantity::try_from(volume).unwrap_or(Quantity::MAX);
        tell(Event::Uncrossed { price, volume: told });
        if let Some(price) = price {
            self.trade_at(price, volume, tell);
        }
        let goes = |order: &SavedOrder| !order.waits && order.order.kind == Kind::Market;
        self.take_out_all(goes, Ending::Unfilled, tell);
    }

    /// What could trade at a price on one side.
    fn volume_at(&self, side: Side, price: Price) -> u128 {
        let takes_part = self.state.orders.iter().filter(|order| {
            let limit = order.order.kind.has_limit().then_some(order.order.price);
            !order.waits && order.order.side == side && accepts(side, limit, price)
        });
        takes_part.map(|order| u128::from(order.left)).sum()
    }

    /// The one price of an auction with what trades there, if anything does.
    fn auction_price(&self) -> Option<(Price, u128)> {
        let mut prices: Vec<Price> =
            self.state.orders.iter().filter(|order| rests(order)).map(|o| o.order.price).collect();
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
        // Of equals the first, which is the lowest.
        let price = prices.into_iter().min_by_key(rank)?;
        let volume = self.volume_at(Side::Buy, price).min(self.volume_at(Side::Sell, price));
        (volume > 0).then_some((price, volume))
    }

    /// The order that trades first in an auction.
    fn first_in_auction(&self, side: Side) -> Option<usize> {
        let is_market = |order: &SavedOrder| !order.waits && order.order.kind == Kind::Market;
        let market =
            self.state.orders.iter().position(|order| is_market(order) && order.order.side == side);
        market.or_else(|| self.front(side))
    }

    fn trade_at(&mut self, price: Price, mut volume: u128, tell: Tell<'_>) {
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
            tell(Event::Traded {
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
                order.shown = whole(order);
            }
            self.state.orders.retain(|order| order.left > 0);
        }
        self.note_trade(price);
    }
}

/// What an order shows when it comes to rest.
fn whole(order: &SavedOrder) -> Quantity {
    if order.order.display == 0 { order.left } else { order.left.min(order.order.display) }
}

/// Whether trades between these prices reach a stop.
fn reaches(order: &NewOrder, (low, high): (Price, Price)) -> bool {
    match order.side {
        Side::Buy => high >= order.stop_price,
        Side::Sell => low <= order.stop_price,
    }
}

fn wrong_state(tell: Tell<'_>) {
    tell(Event::Rejected { id: 0, user: 0, reason: Reason::WrongState });
}
