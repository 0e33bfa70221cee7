//! One price of an auction, with the quantities of its limit orders; and what an auction would do.

use crate::order::{Price, Quantity, Side};

/// Quantities of limit orders at one price.
#[derive(Debug, Clone, Copy)]
pub struct AuctionStep {
    pub price: Price,
    pub buy: u128,
    pub sell: u128,
}

/// What an auction would do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indicative {
    /// Its price, if anything would trade.
    pub price: Option<Price>,
    /// What would trade.
    pub volume: Quantity,
    /// What would not, of those who accept the price.
    pub surplus: Quantity,
    /// The side that has it.
    pub surplus_side: Option<Side>,
    /// The price if there were the orders alone that leave with the auction, which are those
    /// without a limit and those for the closing auction: none if they would not trade with each
    /// other.
    pub far: Option<Price>,
}
