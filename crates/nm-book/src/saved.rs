//! A book's state in a form that every implementation writes and reads, and its hash.
//!
//! Orders stand in order of place, so that the form says nothing about how a book keeps them: equal
//! bytes mean equal behaviour.

use nm_codec::Fields;
use nm_codec::fnv1a;

use crate::codec;
use crate::order::{Kind, Life, Market, NewOrder, Price, Quantity, Side, Unreadable};

/// One order that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedOrder {
    /// As it came, with its present limit price; a triggered stop as what it became.
    pub order: NewOrder,
    /// Open quantity, hidden part included.
    pub left: Quantity,
    /// What others see and trade with: all of `left` but for icebergs.
    pub shown: Quantity,
    /// Whether it is a stop that waits for its price.
    pub waits: bool,
}

impl SavedOrder {
    /// Whether it can be an order of a book, in continuous trading or in an auction.
    fn may_live(&self, is_continuous: bool) -> bool {
        let NewOrder { kind, life, display, minimum, .. } = self.order;
        let is_immediate = matches!(life, Life::ImmediateOrCancel | Life::FillOrKill);
        let is_whole = if display == 0 { self.shown == self.left } else { self.shown <= display };
        let may_rest = match kind {
            Kind::Stop | Kind::StopLimit => self.waits,
            Kind::Limit => !self.waits && !is_immediate && minimum == 0,
            Kind::Market => !self.waits && !is_immediate && minimum == 0 && !is_continuous,
        };
        may_rest && is_whole && self.order.fault().is_none()
    }
}

/// A book's whole state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// State of the market.
    pub market: Market,
    /// What a halt interrupted; continuous trading if there is no halt.
    pub before_halt: Market,
    /// Price bands.
    pub bands: Option<(Price, Price)>,
    /// Price of the last trade.
    pub last: Option<Price>,
    /// Time of the last command, ns.
    pub now_ns: u64,
    /// Orders in order of place.
    pub orders: Vec<SavedOrder>,
}

/// First bytes, with the version of the form.
const MARK: &[u8; 8] = b"nmbook01";

/// Bytes of one order.
const ORDER_BYTES: usize = codec::ORDER_BYTES + 2 * 8 + 1;

impl Saved {
    /// Appends the form.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&[market_code(self.market), market_code(self.before_halt)]);
        let (low, high) = self.bands.unwrap_or_default();
        bytes.extend_from_slice(&[u8::from(self.bands.is_some()), u8::from(self.last.is_some())]);
        for number in [low, high, self.last.unwrap_or_default()] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.now_ns.to_le_bytes());
        bytes.extend_from_slice(&(self.orders.len() as u64).to_le_bytes());
        for order in &self.orders {
            write_order(order, bytes);
        }
    }

    /// Reads the form.
    ///
    /// # Errors
    /// If the bytes are none that [`Saved::write`] makes.
    pub fn read(bytes: &[u8]) -> Result<Saved, Unreadable> {
        let fields = &mut Fields(bytes);
        if small::<8>(fields)? != *MARK {
            return Err(Unreadable("it does not begin as one of this version".to_string()));
        }
        let [market, before_halt, has_bands, has_last] = small(fields)?;
        let (market, before_halt) = (market_of(market)?, market_of(before_halt)?);
        let (low, high) = (signed(fields)?, signed(fields)?);
        let last = signed(fields)?;
        let now_ns = unsigned(fields)?;
        let count = unsigned(fields)?;
        if count != (fields.0.len() / ORDER_BYTES) as u64
            || !fields.0.len().is_multiple_of(ORDER_BYTES)
        {
            return Err(Unreadable(format!("{count} orders do not fit its length")));
        }
        let orders = (0..count).map(|_| read_order(fields)).collect::<Result<_, _>>()?;
        let saved = Saved {
            market,
            before_halt,
            bands: flag(has_bands)?.then_some((low, high)),
            last: flag(has_last)?.then_some(last),
            now_ns,
            orders,
        };
        match saved.fault() {
            None => Ok(saved),
            Some(fault) => Err(Unreadable(fault.to_string())),
        }
    }

    /// What no book could have come to, if anything: loading must not make an impossible one.
    fn fault(&self) -> Option<&'static str> {
        let interrupted =
            if self.market == Market::Halted { self.before_halt } else { self.market };
        let mut ids: Vec<u64> = self.orders.iter().map(|order| order.order.id).collect();
        ids.sort_unstable();
        let rest = |side| {
            let side = move |order: &&SavedOrder| order.order.side == side && !order.waits;
            let limits = self.orders.iter().filter(side).map(|order| order.order);
            limits.filter(|order| order.kind == Kind::Limit).map(|order| order.price)
        };
        let (buy, sell) = (rest(Side::Buy).max(), rest(Side::Sell).min());
        let is_continuous = interrupted == Market::Continuous;
        if interrupted == Market::Halted {
            Some("it was halted while it was halted")
        } else if self.bands.is_some_and(|(low, high)| low > high) {
            Some("its lowest price is above its highest")
        } else if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            Some("two orders have the same name")
        } else if is_continuous && buy.zip(sell).is_some_and(|(buy, sell)| buy >= sell) {
            Some("its orders would have traded")
        } else if self.orders.iter().any(|order| !order.may_live(is_continuous)) {
            Some("an order is of a kind that does not rest")
        } else {
            None
        }
    }

    /// Hash of the form (64-bit FNV-1a).
    pub fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(64 + self.orders.len() * ORDER_BYTES);
        self.write(&mut bytes);
        fnv1a(&bytes)
    }
}

fn write_order(saved: &SavedOrder, bytes: &mut Vec<u8>) {
    codec::write_order(&saved.order, bytes);
    codec::put(bytes, &[saved.left, saved.shown]);
    bytes.push(u8::from(saved.waits));
}

fn read_order(fields: &mut Fields<'_>) -> Result<SavedOrder, Unreadable> {
    let order = codec::read_order(fields).map_err(|_| cut())?;
    let (left, shown) = (unsigned(fields)?, unsigned(fields)?);
    let waits = flag(fields.u8().map_err(|_| cut())?)?;
    if left == 0 || shown == 0 || shown > left {
        return Err(Unreadable(format!("order {} has impossible quantities", order.id)));
    }
    Ok(SavedOrder { order, left, shown, waits })
}

fn market_code(market: Market) -> u8 {
    match market {
        Market::Continuous => 0,
        Market::Auction => 1,
        Market::Halted => 2,
    }
}

fn market_of(code: u8) -> Result<Market, Unreadable> {
    pick(code, &[Market::Continuous, Market::Auction, Market::Halted])
}

fn flag(code: u8) -> Result<bool, Unreadable> {
    pick(code, &[false, true])
}

fn pick<T: Copy>(code: u8, values: &[T]) -> Result<T, Unreadable> {
    let value = values.get(usize::from(code)).copied();
    value.ok_or_else(|| Unreadable(format!("the code {code} means nothing")))
}

fn cut() -> Unreadable {
    Unreadable("it is cut, or no saved book".to_string())
}

fn unsigned(fields: &mut Fields<'_>) -> Result<u64, Unreadable> {
    fields.u64().map_err(|_| cut())
}

fn signed(fields: &mut Fields<'_>) -> Result<i64, Unreadable> {
    fields.i64().map_err(|_| cut())
}

fn small<const N: usize>(fields: &mut Fields<'_>) -> Result<[u8; N], Unreadable> {
    fields.bytes(N).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(cut)
}
