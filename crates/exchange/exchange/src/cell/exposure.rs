//! Limits of firms: what each firm may have in the cell, and what it has.
//!
//! The firms come by the log of the cell ([`nm_wire::Firms`]). Which firm a session belongs to
//! follows from them alone, whatever its owner is. What a firm has is counted if it has a limit.
//! Without one nothing is kept of it, and a cell none of whose firms has a limit does nothing.
//!
//! **What is counted.** The live orders of all sessions of the firm in the cell, and their value:
//! limit price without its sign, times open quantity. An order without a limit price has no value,
//! so a firm with a limit of value must name a price. On each instrument the position counts as
//! well. It is what the firm has bought less what it has sold since it has a limit. What the live
//! orders of one side would add comes on top. Both parts of a trade of a firm with itself count,
//! and cancel out.
//!
//! **What is checked** is what a request makes larger: a new order, or a replacement as far as it
//! is larger than the order before. So a limit that is lowered below what there is cancels nothing,
//! and does not keep the firm from making it less.
//!
//! **What is saved** are the firms and the positions. All else follows from the books.

use std::collections::BTreeMap;

use nm_book::order::{
    Command, Event, InstrumentId, Matching, NewOrder, OpenOrder, OrderId, Price, Quantity, Side,
    TradingPhase, UserId,
};
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{
    FirmLimits, FirmTable, FirmUse, LimitCheck, OrdersLimit, Part, Request, SessionRange, Value,
};

/// Number of a firm.
type FirmNumber = u32;

/// A live order of a firm with limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    side: Side,
    limit: Option<Price>,
    left: Quantity,
}

impl Open {
    /// Of a new order.
    fn of(order: &NewOrder) -> Open {
        let limit = order.order_type.has_limit().then_some(order.price);
        Open { side: order.side, limit, left: order.quantity }
    }

    /// Its value; the largest one that a limit can have for all that are larger.
    fn value(&self) -> u64 {
        self.limit.unwrap_or_default().unsigned_abs().saturating_mul(self.left)
    }
}

/// What a firm has on an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Held {
    /// Bought less sold, lots.
    net: i128,
    /// Open quantity of its live orders, by side.
    open: [i128; 2],
}

impl Held {
    /// How large its position could become by the live orders of a side: long if they buy.
    fn worst(&self, side: Side) -> i128 {
        let net = if side == Side::Buy { self.net } else { -self.net };
        net + self.open[side as usize]
    }
}

/// What firms with limits have on an instrument.
#[derive(Debug, Default)]
pub struct Exposure {
    orders: BTreeMap<(UserId, OrderId), Open>,
    held: BTreeMap<FirmNumber, Held>,
}

impl Exposure {
    /// The positions of firms that are not zero.
    pub fn positions(&self) -> impl Iterator<Item = (FirmNumber, i128)> {
        let all = self.held.iter().map(|(firm, held)| (*firm, held.net));
        all.filter(|(_, net)| *net != 0)
    }

    /// A firm has this position from now on.
    pub fn set_position(&mut self, firm: FirmNumber, net: i128) {
        self.change(firm, |held| held.net = net);
    }

    /// Whether any firm has a position that is not counted any more.
    pub fn has_other_positions(&self, all: &Exposures) -> bool {
        self.positions().any(|(firm, _)| !all.firms.contains_key(&firm))
    }

    /// Forgets all orders, and the positions that are not counted any more.
    pub fn forget(&mut self, all: &Exposures) {
        self.orders.clear();
        self.held.retain(|firm, held| {
            held.open = [0; 2];
            held.net != 0 && all.firms.contains_key(firm)
        });
    }

    fn change(&mut self, firm: FirmNumber, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(firm).or_default();
        change(held);
        if *held == Held::default() {
            self.held.remove(&firm);
        }
    }

    /// Appends the positions.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        bytes.put_u32(self.positions().count() as u32);
        for (firm, net) in self.positions() {
            bytes.put_u32(firm);
            bytes.put_u64(net as u64);
            bytes.put_u64((net >> 64) as u64);
        }
    }

    /// Reads what [`Exposure::save`] appended.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn load(reader: &mut Reader<'_>) -> Result<Exposure, DecodeError> {
        let mut exposure = Exposure::default();
        for _ in 0..reader.u32("positions")? {
            let (firm, low, high) = (reader.u32("firm")?, reader.u64("low")?, reader.u64("high")?);
            exposure.set_position(firm, net_of(low, high));
        }
        Ok(exposure)
    }

    /// The positions as the parts of a transfer.
    pub fn parts(&self) -> impl Iterator<Item = Part<'static>> {
        self.positions().map(|(firm, net)| Part::Position {
            firm,
            low: net as u64,
            high: (net >> 64) as u64,
        })
    }
}

/// A number of two halves.
pub fn net_of(low: u64, high: u64) -> i128 {
    i128::from(high as i64) << 64 | i128::from(low)
}

/// What a firm with limits may have, and what it has in the cell.
#[derive(Debug, Default)]
struct Total {
    limits: FirmLimits,
    orders: u64,
    value: u128,
}

/// The firms, and what those with limits have in the cell.
#[derive(Debug, Default)]
pub struct Exposures {
    table: FirmTable,
    /// Sessions of firms with limits: by the first one of a range, the last one and the firm.
    ranges: BTreeMap<UserId, (UserId, FirmNumber)>,
    firms: BTreeMap<FirmNumber, Total>,
}

impl Exposures {
    /// Whether any firm has a limit.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.firms.is_empty()
    }

    /// Appends the firms.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        self.table.put(bytes);
    }

    /// Reads what [`Exposures::save`] appended; what firms have is to be counted.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn load(reader: &mut Reader<'_>) -> Result<Exposures, DecodeError> {
        let mut exposures = Exposures::default();
        exposures.set(FirmTable::take("firms", reader)?);
        Ok(exposures)
    }

    /// There are other firms from now on; whether other sessions are counted than before.
    pub fn set(&mut self, table: FirmTable) -> bool {
        let ranges = std::mem::take(&mut self.ranges);
        let mut firms = BTreeMap::new();
        for firm in table.firms.iter().filter(|firm| firm.limits.is_any()) {
            for SessionRange { first, last } in &firm.sessions {
                self.ranges.insert(*first, (*last, firm.number));
            }
            let known = self.firms.remove(&firm.number).unwrap_or_default();
            firms.insert(firm.number, Total { limits: firm.limits, ..known });
        }
        let is_other = ranges != self.ranges || !self.firms.is_empty();
        (self.table, self.firms) = (table, firms);
        is_other
    }

    /// The firm of a session, if it has limits.
    fn firm_of(&self, session: UserId) -> Option<FirmNumber> {
        let (_, (last, firm)) = self.ranges.range(..=session).next_back()?;
        (session <= *last).then_some(*firm)
    }

    /// The limit that a request would exceed on an instrument, if any.
    pub fn check(
        &self,
        request: &Request,
        on: Option<(&Exposure, TradingPhase)>,
    ) -> Option<LimitCheck> {
        let firm = self.firm_of(request.session)?;
        let total = self.firms.get(&firm)?;
        let held = on.and_then(|(on, _)| on.held.get(&firm)).copied().unwrap_or_default();
        match request.command {
            Command::New(order) => {
                let phase = on.map_or(TradingPhase::Continuous, |(_, phase)| phase);
                total.exceeded(&held, None, Open::of(&order), order.may_rest(phase))
            }
            Command::Replace { id, price, quantity, .. } => {
                let (on, _) = on?;
                let before = *on.orders.get(&(request.session, id))?;
                let limit = before.limit.map(|_| price);
                let after = Open { limit, left: quantity, ..before };
                total.exceeded(&held, Some(before), after, false)
            }
            _ => None,
        }
    }

    /// A request was executed, of which these are the events of each session.
    pub fn follow(&mut self, request: &Request, events: &[(UserId, Event)], on: &mut Exposure) {
        for (user, event) in events {
            if let Some(firm) = self.firm_of(*user) {
                self.follow_event(firm, (*user, event), &request.command, on);
            }
        }
    }

    fn follow_event(
        &mut self,
        firm: FirmNumber,
        (user, event): (UserId, &Event),
        command: &Command,
        on: &mut Exposure,
    ) {
        let known = |id: OrderId| on.orders.get(&(user, id)).copied();
        match *event {
            Event::Accepted { id, .. } => {
                if let Command::New(order) = command {
                    self.put(firm, (user, id), Some(Open::of(order)), on);
                }
            }
            Event::Traded {
                maker,
                taker,
                maker_user,
                taker_user,
                maker_left,
                taker_left,
                quantity,
                ..
            } => {
                let sides = [(maker, maker_user, maker_left), (taker, taker_user, taker_left)];
                for (id, _, left) in sides.into_iter().filter(|(_, whose, _)| *whose == user) {
                    self.trade(firm, (user, id), (quantity, left), on);
                }
            }
            Event::Cancelled { id, .. } => self.put(firm, (user, id), None, on),
            Event::Replaced { id, price, quantity, .. } => {
                let new = known(id).map(|it| Open {
                    limit: it.limit.map(|_| price),
                    left: quantity,
                    ..it
                });
                self.put(firm, (user, id), new, on);
            }
            Event::Reduced { id, left, .. } => {
                let new = known(id).map(|it| Open { left, ..it });
                self.put(firm, (user, id), new, on);
            }
            Event::Slid { id, price, .. } => {
                let new = known(id).map(|it| Open { limit: Some(price), ..it });
                self.put(firm, (user, id), new, on);
            }
            _ => {}
        }
    }

    /// An order has traded a quantity, and has so much left.
    fn trade(
        &mut self,
        firm: FirmNumber,
        key: (UserId, OrderId),
        (quantity, left): (Quantity, Quantity),
        on: &mut Exposure,
    ) {
        let Some(known) = on.orders.get(&key).copied() else { return };
        let bought = i128::from(quantity);
        let bought = if known.side == Side::Buy { bought } else { -bought };
        on.change(firm, |held| held.net += bought);
        self.put(firm, key, (left > 0).then_some(Open { left, ..known }), on);
    }

    /// An order is like this from now on, or is live no more.
    fn put(
        &mut self,
        firm: FirmNumber,
        key: (UserId, OrderId),
        new: Option<Open>,
        on: &mut Exposure,
    ) {
        let old = match new {
            Some(new) => on.orders.insert(key, new),
            None => on.orders.remove(&key),
        };
        let Some(total) = self.firms.get_mut(&firm) else { return };
        on.change(firm, |held| {
            if let Some(order) = old {
                total.orders -= 1;
                total.value -= u128::from(order.value());
                held.open[order.side as usize] -= i128::from(order.left);
            }
            if let Some(order) = new {
                total.orders += 1;
                total.value += u128::from(order.value());
                held.open[order.side as usize] += i128::from(order.left);
            }
        });
    }

    /// Counts the live orders of a book; `has_orders` are sessions that have some.
    pub fn count<M: Matching>(
        &mut self,
        book: &M,
        mut has_orders: impl Iterator<Item = UserId>,
        on: &mut Exposure,
    ) {
        if !has_orders.any(|user| self.firm_of(user).is_some()) {
            return;
        }
        book.visit_open(&mut |OpenOrder { id, user, side, limit, left }| {
            if let Some(firm) = self.firm_of(user) {
                self.put(firm, (user, id), Some(Open { side, limit, left }), on);
            }
        });
    }

    /// Nothing is counted any more.
    pub fn clear(&mut self) {
        for total in self.firms.values_mut() {
            (total.orders, total.value) = (0, 0);
        }
    }

    /// The firms.
    pub fn table(&self) -> &FirmTable {
        &self.table
    }

    /// What firms with limits have in the cell, on these instruments.
    pub fn uses<'a>(
        &self,
        instruments: impl Iterator<Item = (InstrumentId, &'a Exposure)> + Clone,
    ) -> Vec<FirmUse> {
        let uses = self.firms.iter().map(|(number, total)| {
            let mut largest = (0, 0, false);
            for (instrument, on) in instruments.clone() {
                let held = on.held.get(number).copied().unwrap_or_default();
                for side in [Side::Buy, Side::Sell] {
                    let worst = u128::try_from(held.worst(side)).unwrap_or_default();
                    if worst > largest.0 {
                        largest = (worst, instrument, side == Side::Sell);
                    }
                }
            }
            let (position, instrument, is_short) = largest;
            let shown = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
            FirmUse {
                number: *number,
                orders: total.orders,
                value: shown(total.value),
                instrument,
                position: shown(position),
                is_short,
            }
        });
        uses.collect()
    }

    /// A session is removed from an instrument, with its orders.
    pub fn remove(&mut self, user: UserId, on: &mut Exposure) {
        let Some(firm) = self.firm_of(user) else { return };
        let own = on.orders.range((user, OrderId::MIN)..=(user, OrderId::MAX));
        let own: Vec<(UserId, OrderId)> = own.map(|(key, _)| *key).collect();
        own.into_iter().for_each(|key| self.put(firm, key, None, on));
    }

    /// An instrument is not here any more; its positions go with it.
    pub fn leave(&mut self, on: &mut Exposure) {
        let all: Vec<(UserId, OrderId)> = on.orders.keys().copied().collect();
        for key in all {
            if let Some(firm) = self.firm_of(key.0) {
                self.put(firm, key, None, on);
            }
        }
    }
}

impl Total {
    /// The limit that an order would exceed, if any: one in the place of another one, or a new one,
    /// which may rest or not.
    fn exceeded(
        &self,
        held: &Held,
        before: Option<Open>,
        after: Open,
        may_rest: bool,
    ) -> Option<LimitCheck> {
        let FirmLimits { order_quantity, order_value, orders, value, position } = self.limits;
        let (left, worth) = before.map_or((0, 0), |it| (it.left, it.value()));
        let (is_more, is_worth_more) = (after.left > left, after.value() > worth);
        let total_value = self.value - u128::from(worth) + u128::from(after.value());
        let more = i128::from(after.left) - i128::from(left);
        let worst = held.worst(after.side) + more;
        let worst = u128::try_from(worst).unwrap_or_default();
        let needs_price = order_value.or(value).filter(|_| after.limit.is_none());
        if needs_price.is_some() && before.is_none() {
            return Some(LimitCheck::of(OrdersLimit::FirmNeedsPrice));
        }
        let orders_after = u128::from(self.orders) + 1;
        let checks = [
            (OrdersLimit::FirmQuantity, order_quantity, after.left.into(), is_more),
            (OrdersLimit::FirmOrderValue, order_value, after.value().into(), is_worth_more),
            (OrdersLimit::FirmOrders, orders, orders_after, before.is_none() && may_rest),
            (OrdersLimit::FirmValue, value, total_value, is_worth_more),
            (OrdersLimit::FirmPosition, position, worst, is_more),
        ];
        checks.into_iter().find_map(|(limit, most, asked, is_checked)| {
            let most = most.filter(|most| is_checked && asked > u128::from(*most))?;
            Some(LimitCheck { limit, most, asked: u64::try_from(asked).unwrap_or(u64::MAX) })
        })
    }
}
