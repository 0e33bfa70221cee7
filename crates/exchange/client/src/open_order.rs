//! An order of a session, as its events say.

use nm_book::order::Side;

/// An order of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOrder {
    /// Side.
    pub side: Side,
    /// Limit price, ticks.
    pub price: i64,
    /// Open quantity, lots.
    pub left: u64,
    /// Whether the exchange has accepted it.
    pub is_open: bool,
}
