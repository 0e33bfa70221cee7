//! Snapshot of a book: its state in a format that every implementation writes and reads, and its
//! hash.
//!
//! Orders are in order of priority, so the format does not depend on how a book stores them: equal
//! bytes mean equal behaviour.

use nm_codec::{Put, Reader, codes, fnv1a};

use crate::codec;
use crate::limits::PEGS_MAX;
use crate::order::{
    Closing, LiveOrder, NewOrder, OpenOrder, OrderId, OrderType, Peg, Price, Quantity, Side,
    SnapshotError, TradingPhase, UserId,
};

/// One live order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOrder {
    /// As it was accepted, with its present limit price; a triggered stop as the type it became.
    pub order: NewOrder,
    /// Open quantity, hidden part included.
    pub left: Quantity,
    /// Quantity that others see and trade with: all of `left` except for icebergs.
    pub shown: Quantity,
    /// Whether it is a stop that was not triggered yet.
    pub is_pending_stop: bool,
}

impl SnapshotOrder {
    /// What its user may know of it.
    pub fn to_live(self) -> LiveOrder {
        LiveOrder {
            id: self.order.id,
            is_buy: self.order.side == Side::Buy,
            price: self.order.price,
            left: self.left,
            is_pending_stop: self.is_pending_stop,
        }
    }

    /// What is open of it.
    pub fn to_open(self) -> OpenOrder {
        let NewOrder { id, user, side, order_type, price, .. } = self.order;
        OpenOrder {
            id,
            user,
            side,
            limit: order_type.has_limit().then_some(price),
            left: self.left,
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        codec::write_order(&self.order, bytes);
        bytes.put_u64(self.left);
        bytes.put_u64(self.shown);
        bytes.put_bool(self.is_pending_stop);
    }

    fn read(from: &mut Reader<'_>) -> Result<SnapshotOrder, SnapshotError> {
        let order = codec::read_order(from)?;
        let (left, shown) = (from.u64("open quantity")?, from.u64("shown quantity")?);
        let is_pending_stop = from.bool("is a pending stop")?;
        if left == 0 || shown == 0 || shown > left {
            return Err(SnapshotError::Quantities(order.id));
        }
        Ok(SnapshotOrder { order, left, shown, is_pending_stop })
    }

    /// Whether it can be a live order, in continuous trading or in an auction.
    fn may_live(&self, is_continuous: bool) -> bool {
        let NewOrder { order_type, display, minimum, .. } = self.order;
        let is_immediate = self.order.is_immediate();
        let is_shown_as_due =
            if display == 0 { self.shown == self.left } else { self.shown <= display };
        let may_rest = match order_type {
            OrderType::Stop | OrderType::StopLimit => self.is_pending_stop,
            OrderType::Limit => !self.is_pending_stop && !is_immediate && minimum == 0,
            OrderType::Market => {
                let is_special = self.order.is_on_close() || self.order.is_pegged();
                let may_wait = !is_continuous || is_special;
                !self.is_pending_stop && !is_immediate && minimum == 0 && may_wait
            }
        };
        may_rest && is_shown_as_due && self.order.fault().is_none()
    }
}

/// The price of a pegged order where these are the best displayed prices, whatever the bands are.
fn pegged_price(order: &NewOrder, [bid, ask]: [Option<Price>; 2]) -> Option<Price> {
    let is_buy = order.side == Side::Buy;
    let price = match order.peg {
        Peg::No => return None,
        Peg::Primary { offset } if is_buy => i128::from(bid?) - i128::from(offset),
        Peg::Primary { offset } => i128::from(ask?) + i128::from(offset),
        Peg::Mid => {
            let (bid, ask) = (i128::from(bid?), i128::from(ask?));
            let is_odd = (ask - bid) % 2 != 0;
            let below = bid + (ask - bid).div_euclid(2);
            if is_odd && !is_buy { below + 1 } else { below }
        }
    };
    let price = Price::try_from(price).ok()?;
    Some(match (order.order_type, is_buy) {
        (OrderType::Limit, true) => price.min(order.price),
        (OrderType::Limit, false) => price.max(order.price),
        _ => price,
    })
}

/// The complete state of a book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookSnapshot {
    /// Phase of trading.
    pub phase: TradingPhase,
    /// The phase that a halt interrupted; continuous trading if there is no halt.
    pub phase_before_halt: TradingPhase,
    /// Whether there is a closing auction.
    pub closing: Closing,
    /// Price bands.
    pub bands: Option<(Price, Price)>,
    /// Price of the last trade.
    pub last: Option<Price>,
    /// Time of the last command, ns.
    pub now_ns: u64,
    /// The best displayed prices that pegged orders followed last; none without any.
    pub followed: [Option<Price>; 2],
    /// Live orders in order of priority.
    pub orders: Vec<SnapshotOrder>,
}

codes!(TradingPhase { Continuous = 0, Auction = 1, Halted = 2 });
codes!(Closing { No = 0, Expected = 1, Begun = 2 });

/// First bytes, with the version of the format.
const FORMAT: &[u8; 8] = b"nmbook02";

/// Bytes of one order.
const ORDER_BYTES: usize = codec::ORDER_BYTES + 2 * 8 + 1;

impl BookSnapshot {
    /// Appends the encoding.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.put(FORMAT);
        bytes.put(&[self.phase.code(), self.phase_before_halt.code(), self.closing.code()]);
        let (low, high) = self.bands.unwrap_or_default();
        bytes.put_bool(self.bands.is_some());
        bytes.put_bool(self.last.is_some());
        bytes.put_i64(low);
        bytes.put_i64(high);
        bytes.put_i64(self.last.unwrap_or_default());
        bytes.put_u64(self.now_ns);
        for price in self.followed {
            bytes.put_bool(price.is_some());
            bytes.put_i64(price.unwrap_or_default());
        }
        bytes.put_u64(self.orders.len() as u64);
        for order in &self.orders {
            order.write(bytes);
        }
    }

    /// Decodes what [`BookSnapshot::write`] wrote.
    ///
    /// # Errors
    /// If the bytes are no snapshot, or one of a state that no book can reach.
    pub fn read(bytes: &[u8]) -> Result<BookSnapshot, SnapshotError> {
        let from = &mut Reader::new(bytes);
        if from.array("format")? != *FORMAT {
            return Err(SnapshotError::Format);
        }
        let phase = TradingPhase::from_code("phase", from.u8("phase")?)?;
        let phase_before_halt =
            TradingPhase::from_code("phase before halt", from.u8("phase before halt")?)?;
        let closing = Closing::from_code("closing auction", from.u8("closing auction")?)?;
        let (has_bands, has_last) = (from.bool("has bands")?, from.bool("has a last price")?);
        let (low, high) = (from.i64("lowest price")?, from.i64("highest price")?);
        let last = from.i64("last price")?;
        let now_ns = from.u64("time")?;
        let mut followed = [None; 2];
        for price in &mut followed {
            let (is_there, best) =
                (from.bool("has a followed price")?, from.i64("followed price")?);
            *price = is_there.then_some(best);
        }
        let count = from.u64("number of orders")?;
        let length = from.rest().len();
        if count != (length / ORDER_BYTES) as u64 || !length.is_multiple_of(ORDER_BYTES) {
            return Err(SnapshotError::Length { count, length });
        }
        let orders = (0..count).map(|_| SnapshotOrder::read(from)).collect::<Result<_, _>>()?;
        let snapshot = BookSnapshot {
            phase,
            phase_before_halt,
            closing,
            bands: has_bands.then_some((low, high)),
            last: has_last.then_some(last),
            now_ns,
            followed,
            orders,
        };
        match snapshot.fault() {
            None => Ok(snapshot),
            Some(fault) => Err(SnapshotError::Impossible(fault)),
        }
    }

    /// Why no book can have reached this state, if so: loading must not create an impossible one.
    fn fault(&self) -> Option<&'static str> {
        let phase_now = self.phase;
        let interrupted =
            if self.phase == TradingPhase::Halted { self.phase_before_halt } else { self.phase };
        let key = |order: &SnapshotOrder| (order.order.user, order.order.id);
        let mut ids: Vec<(UserId, OrderId)> = self.orders.iter().map(key).collect();
        ids.sort_unstable();
        let rest = |side| {
            let of_side = self.orders.iter().filter(move |order| order.order.side == side);
            of_side.filter_map(|order| self.price(order))
        };
        let pegged = self.orders.iter().filter(|order| order.order.is_pegged()).count();
        let (buy, sell) = (rest(Side::Buy).max(), rest(Side::Sell).min());
        let is_continuous = interrupted == TradingPhase::Continuous;
        if interrupted == TradingPhase::Halted {
            Some("it is halted twice")
        } else if self.bands.is_some_and(|(low, high)| low > high) {
            Some("its lowest price is above its highest")
        } else if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            Some("two orders of a user have the same id")
        } else if is_continuous && buy.zip(sell).is_some_and(|(buy, sell)| buy >= sell) {
            Some("its orders would have traded")
        } else if pegged > PEGS_MAX {
            Some("it has more pegged orders than it may have")
        } else if self.followed != [None; 2]
            && (pegged == 0 || phase_now != TradingPhase::Continuous)
        {
            Some("its pegged orders follow prices that there are not")
        } else if self.closing == Closing::Begun && is_continuous {
            Some("its closing auction is on, and so is continuous trading")
        } else if self.closing == Closing::No && self.orders.iter().any(|it| it.order.is_on_close())
        {
            Some("an order is for a closing auction that there is not")
        } else if self.orders.iter().any(|order| !order.may_live(is_continuous)) {
            Some("an order is of a type that does not rest")
        } else {
            None
        }
    }

    /// Where an order rests, if it does: at its limit, or where its peg has put it.
    pub fn price(&self, order: &SnapshotOrder) -> Option<Price> {
        let SnapshotOrder { order, is_pending_stop, .. } = order;
        let is_limit = order.order_type == OrderType::Limit;
        if order.is_pegged() {
            let price = pegged_price(order, self.followed)?;
            let is_allowed = self.bands.is_none_or(|(low, high)| low <= price && price <= high);
            is_allowed.then_some(price)
        } else {
            (is_limit && !is_pending_stop && !self.is_waiting(order)).then_some(order.price)
        }
    }

    /// Whether an order waits for the closing auction, and takes part in nothing until then.
    pub fn is_waiting(&self, order: &NewOrder) -> bool {
        order.is_on_close() && self.closing != Closing::Begun
    }

    /// Hash of the encoding (64-bit FNV-1a).
    pub fn hash(&self) -> u64 {
        let mut bytes = Vec::with_capacity(64 + self.orders.len() * ORDER_BYTES);
        self.write(&mut bytes);
        fnv1a(&bytes)
    }
}
