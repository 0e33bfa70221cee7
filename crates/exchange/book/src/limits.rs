//! What can be asked of one book at most: without these numbers, one order could keep every
//! replica of its cell busy for ever.

use crate::order::Quantity;

/// Parts that an iceberg may have: a larger order, new or replaced, is rejected
/// ([`TooManyParts`](crate::order::RejectReason::TooManyParts)). A market takes it in as many
/// trades.
pub const ICEBERG_PARTS_MAX: Quantity = 1_000;

/// Live orders of an instrument, pending stops included: a new order that may rest is rejected
/// while there are so many ([`TooManyOrders`](crate::order::RejectReason::TooManyOrders)). Those
/// that trade immediately or not at all are accepted.
pub const ORDERS_MAX: usize = 1 << 18;

/// Pegged orders of an instrument: a further one is rejected
/// ([`TooManyPegs`](crate::order::RejectReason::TooManyPegs)). All of them may move after each
/// command.
pub const PEGS_MAX: usize = 256;

/// Trades of one order in continuous trading until it rests: what it could trade beyond is
/// cancelled ([`TooManyTrades`](crate::order::CancelReason::TooManyTrades)). An own order that
/// self-trade prevention treats counts as a trade.
pub const ORDER_TRADES_MAX: u32 = 4_096;

/// Trades of one command in continuous trading, those of the stops that it elects included, and
/// moves of pegged orders. Beyond it, what the stops could trade is cancelled, and so is a pegged
/// order that would move.
pub const COMMAND_TRADES_MAX: u32 = 4 * ORDER_TRADES_MAX;

/// Whether an order of this quantity that shows `display` of it has more than
/// [`ICEBERG_PARTS_MAX`] parts.
pub fn has_too_many_parts(quantity: Quantity, display: Quantity) -> bool {
    display > 0 && display.saturating_mul(ICEBERG_PARTS_MAX) < quantity
}
