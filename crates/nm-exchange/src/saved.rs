//! A book's state in a form that every implementation writes and reads, and its hash.
//!
//! Orders stand in order of place, so that the form says nothing about how a book keeps them: equal
//! bytes mean equal behaviour.

use crate::order::{
    Kind, Life, Market, NewOrder, PostOnly, Price, Quantity, SelfTrade, Side, Unreadable,
};

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
const ORDER_BYTES: usize = 9 * 8 + 4 + 5;

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
        let mut reader = Reader { bytes };
        if reader.array::<8>()? != *MARK {
            return Err(Unreadable("it does not begin as one of this version".to_string()));
        }
        let [market, before_halt, has_bands, has_last] = reader.array()?;
        let (market, before_halt) = (market_of(market)?, market_of(before_halt)?);
        let (low, high) = (reader.signed()?, reader.signed()?);
        let last = reader.signed()?;
        let now_ns = reader.unsigned()?;
        let count = reader.unsigned()?;
        if count != (reader.bytes.len() / ORDER_BYTES) as u64
            || !reader.bytes.len().is_multiple_of(ORDER_BYTES)
        {
            return Err(Unreadable(format!("{count} orders do not fit its length")));
        }
        let orders = (0..count).map(|_| read_order(&mut reader)).collect::<Result<_, _>>()?;
        Ok(Saved {
            market,
            before_halt,
            bands: flag(has_bands)?.then_some((low, high)),
            last: flag(has_last)?.then_some(last),
            now_ns,
            orders,
        })
    }

    /// Hash of the form (64-bit FNV-1a).
    pub fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(64 + self.orders.len() * ORDER_BYTES);
        self.write(&mut bytes);
        fnv1a(&bytes)
    }
}

/// 64-bit FNV-1a, the same on every machine.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn write_order(saved: &SavedOrder, bytes: &mut Vec<u8>) {
    let order = &saved.order;
    let (life, until_ns) = match order.life {
        Life::Day => (0, 0),
        Life::GoodTillCancelled => (1, 0),
        Life::GoodTill(until_ns) => (2, until_ns),
        Life::ImmediateOrCancel => (3, 0),
        Life::FillOrKill => (4, 0),
    };
    let numbers = [
        order.id,
        order.price as u64,
        order.stop_price as u64,
        order.quantity,
        order.display,
        order.minimum,
        until_ns,
        saved.left,
        saved.shown,
    ];
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&order.user.to_le_bytes());
    let kind = match order.kind {
        Kind::Limit => 0,
        Kind::Market => 1,
        Kind::Stop => 2,
        Kind::StopLimit => 3,
    };
    let post_only = match order.post_only {
        PostOnly::No => 0,
        PostOnly::Reject => 1,
        PostOnly::Slide => 2,
    };
    let self_trade = match order.self_trade {
        SelfTrade::Allow => 0,
        SelfTrade::CancelNewest => 1,
        SelfTrade::CancelOldest => 2,
        SelfTrade::CancelBoth => 3,
        SelfTrade::Decrement => 4,
    };
    let flags = u8::from(order.side == Side::Sell) | u8::from(saved.waits) << 1;
    bytes.extend_from_slice(&[kind, life, post_only, self_trade, flags]);
}

fn read_order(reader: &mut Reader<'_>) -> Result<SavedOrder, Unreadable> {
    let id = reader.unsigned()?;
    let (price, stop_price) = (reader.signed()?, reader.signed()?);
    let [quantity, display, minimum, until_ns, left, shown] = [(); 6].map(|()| reader.unsigned());
    let (left, shown) = (left?, shown?);
    let user = u32::from_le_bytes(reader.array()?);
    let [kind, life, post_only, self_trade, flags] = reader.array()?;
    if left == 0 || shown == 0 || shown > left || flags > 3 {
        return Err(Unreadable(format!("order {id} has impossible quantities or flags")));
    }
    let order = NewOrder {
        id,
        user,
        side: if flags & 1 == 0 { Side::Buy } else { Side::Sell },
        kind: pick(kind, &[Kind::Limit, Kind::Market, Kind::Stop, Kind::StopLimit])?,
        life: match life {
            2 => Life::GoodTill(until_ns?),
            _ => pick(
                life,
                &[
                    Life::Day,
                    Life::GoodTillCancelled,
                    Life::Day,
                    Life::ImmediateOrCancel,
                    Life::FillOrKill,
                ],
            )?,
        },
        price,
        stop_price,
        quantity: quantity?,
        display: display?,
        minimum: minimum?,
        post_only: pick(post_only, &[PostOnly::No, PostOnly::Reject, PostOnly::Slide])?,
        self_trade: pick(
            self_trade,
            &[
                SelfTrade::Allow,
                SelfTrade::CancelNewest,
                SelfTrade::CancelOldest,
                SelfTrade::CancelBoth,
                SelfTrade::Decrement,
            ],
        )?,
    };
    Ok(SavedOrder { order, left, shown, waits: flags & 2 != 0 })
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

/// Takes numbers from the front.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (front, rest) =
            self.bytes.split_first_chunk().ok_or_else(|| Unreadable("it is cut".to_string()))?;
        self.bytes = rest;
        Ok(*front)
    }

    fn unsigned(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_le_bytes)
    }

    fn signed(&mut self) -> Result<i64, Unreadable> {
        self.array().map(i64::from_le_bytes)
    }
}
