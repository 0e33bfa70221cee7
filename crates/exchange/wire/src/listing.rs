//! What may be traded: an instrument as the instrument master lists it.

use crate::record;

record! {
    /// An instrument that may be traded. Prices of orders are in ticks and quantities in lots, so
    /// both are always whole multiples.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Listing {
        /// Its number.
        instrument: u32,
        /// Its name: 1 to 8 letters, digits and `.`, as ITCH and OUCH have room for.
        symbol: String,
        /// Price of a tick, a decimal number above 0.
        tick: String,
        /// Quantity of a lot, a decimal number above 0.
        lot: String,
        /// Currency of prices, three capital letters; empty if none is named.
        currency: String,
        /// Lowest limit price of an order, ticks.
        low: i64,
        /// Highest limit price of an order, ticks.
        high: i64,
        /// Largest quantity of an order, lots.
        most: u64,
    }
}
