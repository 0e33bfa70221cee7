//! One price of an auction, with the quantities of its limit orders.

use crate::order::Price;

/// Quantities of limit orders at one price.
#[derive(Debug, Clone, Copy)]
pub struct AuctionStep {
    pub price: Price,
    pub buy: u128,
    pub sell: u128,
}
