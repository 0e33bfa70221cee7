//! New orders.

use nm_book::order::{NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce};

use super::{DAY_NS, Desk, text};
use crate::decimal::Decimal;
use crate::limits::LIVE_ORDERS_MAX;
use crate::ouch::appendage::{Appendage, tag};
use crate::ouch::code::reject;
use crate::ouch::message::EnterOrder;
use crate::ouch::order::{CLOSING, Options, Order};
use crate::symbols::Symbol;

/// Least price of an order without a limit: 200,000.
const MARKET_PRICE: u64 = 2_000_000_000;

/// Quantities are below this number of shares.
pub(super) const QUANTITY_END: u32 = 1_000_000;

impl Desk {
    pub(super) fn enter(&mut self, order: &EnterOrder, options: &Appendage) {
        let EnterOrder { user_ref, client_id, .. } = *order;
        if !self.is_new(user_ref) {
            return;
        }
        self.consume(user_ref);
        match self.parse(order, options) {
            Ok((mut order, new)) => {
                order.seq = self.submit(order.instrument, nm_book::order::Command::New(new));
                self.keep(order);
            }
            Err(reason) => self.reject(user_ref, reason, client_id),
        }
    }

    fn parse(&self, from: &EnterOrder, options: &Appendage) -> Result<(Order, NewOrder), u16> {
        let name = text(&from.symbol);
        let symbol = self.symbols.0.get(name).ok_or(reject::SYMBOL)?;
        if self.is_disabled {
            return Err(reject::FIRM);
        }
        let is_foreign = self.exchange.is_used_by_others(symbol.instrument);
        if self.is_full || is_foreign || self.orders.len() >= LIVE_ORDERS_MAX {
            return Err(reject::PROCESSING);
        }
        let side = match from.side {
            b'B' => Side::Buy,
            b'S' | b'T' | b'E' => Side::Sell,
            _ => return Err(reject::SIDE),
        };
        check_codes(from)?;
        let is_hidden = from.display == b'N';
        let wanted = Options { is_hidden, ..self.options(options)? };
        if is_hidden && wanted.floor > 0 {
            return Err(reject::MAX_FLOOR);
        }
        let peg = peg(&wanted, side, symbol)?;
        let price = match from.price >= MARKET_PRICE {
            true if is_without_limit(from, peg) => None,
            true => return Err(reject::PRICE),
            false => Some(ticks(from.price, symbol)?),
        };
        let order = Order {
            first: from.user_ref,
            user_ref: from.user_ref,
            symbol: name.to_string(),
            instrument: symbol.instrument,
            side: from.side,
            time_in_force: from.time_in_force,
            capacity: from.capacity,
            sweep: from.sweep,
            cross: from.cross,
            price,
            quantity: lots(from.quantity, symbol)?,
            traded: 0,
            client_id: from.client_id,
            options: wanted,
            appendage: nm_codec::hex::write(&repeated(options).write()),
            is_live: false,
            seq: 0,
            changes: [].into(),
        };
        let new = NewOrder {
            id: self.id(&order),
            user: self.exchange.number(),
            side,
            order_type: if price.is_some() { OrderType::Limit } else { OrderType::Market },
            time_in_force: match self.time_in_force(from.time_in_force, &wanted)? {
                TimeInForce::Day if from.cross == CLOSING => TimeInForce::AtClose,
                _ if from.cross == CLOSING => return Err(reject::CROSS),
                known => known,
            },
            price: price.unwrap_or(0),
            stop_price: 0,
            quantity: order.quantity,
            display: part(wanted.floor, symbol, reject::MAX_FLOOR)?,
            minimum: part(wanted.minimum, symbol, reject::MIN_QTY)?,
            // One that never rests is not displayed in any case.
            is_hidden: is_hidden && from.time_in_force != b'3' && price.is_some(),
            peg,
            post_only: if wanted.is_post_only { PostOnly::Reject } else { PostOnly::No },
            self_trade: SelfTrade::Allow,
        };
        Ok((order, new))
    }

    fn time_in_force(&self, code: u8, options: &Options) -> Result<TimeInForce, u16> {
        match (code, options.expires_s) {
            (b'0', 0) => Ok(TimeInForce::Day),
            (b'3', 0) => Ok(TimeInForce::ImmediateOrCancel),
            (b'6', seconds) if seconds > 0 && u64::from(seconds) < DAY_NS / 1_000_000_000 => {
                let midnight_ns = self.now_ns - self.midnight_ns();
                Ok(TimeInForce::GoodTill(midnight_ns + u64::from(seconds) * 1_000_000_000))
            }
            _ => Err(reject::OTHER),
        }
    }

    /// What options ask for. One that nobody can carry out is refused; one that nobody knows is
    /// passed over, as the specification says.
    pub(super) fn options(&self, options: &Appendage) -> Result<Options, u16> {
        let mut wanted = Options::default();
        for (tag, value) in options.iter() {
            let number = value.try_into().map(u32::from_be_bytes);
            let is_empty = value.iter().all(|byte| [0, b' '].contains(byte));
            match tag {
                tag::FIRM if value.try_into().is_ok_and(|firm| self.is_own(firm)) => {}
                tag::FIRM => return Err(reject::FIRM),
                tag::MIN_QTY => wanted.minimum = number.map_err(|_| reject::MIN_QTY)?,
                tag::MAX_FLOOR => wanted.floor = number.map_err(|_| reject::MAX_FLOOR)?,
                tag::POST_ONLY => wanted.is_post_only = flag(value, b'P', b'N')?,
                tag::EXPIRE_TIME => wanted.expires_s = number.map_err(|_| reject::OTHER)?,
                tag::CUSTOMER_TYPE if value == b"N" || is_empty => {}
                tag::CUSTOMER_TYPE => return Err(reject::RETAIL),
                tag::PRICE_TYPE | tag::DISCRETION_TYPE if value == b"L" => {}
                tag::PRICE_TYPE if matches!(value, b"R" | b"M") => wanted.peg = value[0],
                tag::PRICE_TYPE if !is_empty => return Err(reject::PEG_TYPE),
                tag::PEG_OFFSET => {
                    wanted.peg_offset = number.map_err(|_| reject::PEG_TYPE)?.cast_signed();
                }
                tag::ROUTE if !is_empty => return Err(reject::ROUTING),
                tag::TRADE_NOW if value == b"N" => {}
                tag::DISCRETION_PRICE
                | tag::DISCRETION_TYPE
                | tag::DISCRETION_OFFSET
                | tag::RANDOM_RESERVES
                | tag::TRADE_NOW
                | tag::HANDLE_INST
                | tag::GROUP_ID
                | tag::USER_REF_INDEX
                | tag::AIQ_STRATEGY
                | tag::AIQ_GROUP
                    if !is_empty =>
                {
                    return Err(reject::OTHER);
                }
                // Marks for others than the exchange, defaults, and what nobody knows.
                _ => {}
            }
        }
        Ok(wanted)
    }
}

/// Whether an order may have no limit.
fn is_without_limit(order: &EnterOrder, peg: Peg) -> bool {
    order.time_in_force == b'3' || order.cross == CLOSING || peg != Peg::No
}

/// What a pegged order follows. None is displayed.
fn peg(options: &Options, side: Side, symbol: &Symbol) -> Result<Peg, u16> {
    let offset = Decimal::PRICE_UNIT.times(i128::from(options.peg_offset));
    let offset = offset.in_units(symbol.tick).ok_or(reject::PEG_TYPE)?;
    let away = if side == Side::Buy { -offset } else { offset };
    match (options.peg, u16::try_from(away)) {
        (0, Ok(0)) => Ok(Peg::No),
        (b'R' | b'M', _) if !options.is_hidden => Err(reject::DISPLAY),
        (b'R', Ok(offset)) => Ok(Peg::Primary { offset }),
        (b'M', Ok(0)) => Ok(Peg::Mid),
        _ => Err(reject::PEG_TYPE),
    }
}

fn flag(value: &[u8], yes: u8, no: u8) -> Result<bool, u16> {
    match value {
        [code] if *code == yes => Ok(true),
        [code] if *code == no => Ok(false),
        _ => Err(reject::OTHER),
    }
}

/// Codes whose meaning the exchange cannot carry out.
fn check_codes(order: &EnterOrder) -> Result<(), u16> {
    let EnterOrder { display, capacity, sweep, cross, .. } = *order;
    match (display, sweep, cross) {
        // There is one market: a sweep trades on it as every other order does.
        (b'Y' | b'N', b'N' | b'Y', b'N' | CLOSING) if b"APRO".contains(&capacity) => Ok(()),
        (b'Y' | b'N', b'N' | b'Y', b'N' | CLOSING) => Err(reject::OTHER),
        (b'Y' | b'N', b'N' | b'Y', _) => Err(reject::CROSS),
        (b'Y' | b'N', ..) => Err(reject::SWEEP),
        _ => Err(reject::DISPLAY),
    }
}

/// Options that the answer repeats.
fn repeated(options: &Appendage) -> Appendage {
    let mut found = Appendage::default();
    for (tag, value) in options.iter() {
        let is_known = matches!(
            tag,
            tag::FIRM
                | tag::MIN_QTY
                | tag::MAX_FLOOR
                | tag::PRICE_TYPE
                | tag::PEG_OFFSET
                | tag::POST_ONLY
                | tag::EXPIRE_TIME
        );
        if is_known {
            found.push(tag, value);
        }
    }
    found
}

/// A price in ticks.
pub(super) fn ticks(price: u64, symbol: &Symbol) -> Result<i64, u16> {
    let price = Decimal::PRICE_UNIT.times(i128::from(price));
    price.in_units(symbol.tick).filter(|ticks| *ticks > 0).ok_or(reject::PRICE)
}

/// A quantity in lots.
pub(super) fn lots(shares: u32, symbol: &Symbol) -> Result<u64, u16> {
    let is_possible = shares > 0 && shares < QUANTITY_END;
    let lots = Decimal::ONE.times(i128::from(shares)).in_units(symbol.lot);
    lots.filter(|_| is_possible).map(|lots| lots as u64).ok_or(reject::QUANTITY)
}

/// A part of a quantity in lots; 0 for none.
fn part(shares: u32, symbol: &Symbol, reason: u16) -> Result<u64, u16> {
    match shares {
        0 => Ok(0),
        shares => lots(shares, symbol).map_err(|_| reason),
    }
}
