//! One price of a side.

use crate::order::{Price, Quantity};

/// The displayed orders of one price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The price.
    pub price: Price,
    /// What its orders show.
    pub quantity: Quantity,
    /// Number of orders.
    pub orders: u32,
}
