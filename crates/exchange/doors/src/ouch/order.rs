//! An order as its client sees it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::message::ClientId;

/// Instructions that a replacement must repeat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Least quantity that must trade at once, shares.
    pub minimum: u32,
    /// Quantity that is shown, shares; 0 for all.
    pub floor: u32,
    /// Whether it must not take liquidity.
    pub is_post_only: bool,
    /// When it expires, s since midnight; 0 for never.
    pub expires_s: u32,
    /// Whether it is not displayed.
    #[serde(default)]
    pub is_hidden: bool,
    /// `R` if its price follows the best displayed one of its side, `M` for the middle; else 0.
    #[serde(default)]
    pub peg: u8,
    /// By how much it differs from that, in units of prices.
    #[serde(default)]
    pub peg_offset: i32,
}

impl Options {
    /// Display as messages have it.
    pub fn display(&self) -> u8 {
        if self.is_hidden { b'N' } else { b'Y' }
    }
}

/// What is to become of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// It gets another number, total quantity, lots, price, ticks, and text.
    Replace(u32, u64, i64, ClientId),
    /// Its total quantity becomes less, lots; 0 to end it.
    Reduce(u64),
    /// As [`Wish::Reduce`], unless it is larger, and another mark of the sale.
    Modify(u8, u64),
}

/// A request to change an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The number that the order must have.
    pub of: u32,
    /// What is to become of it.
    pub wish: Wish,
    /// Number of the request to the exchange; 0 while it waits.
    pub seq: u64,
}

/// A live order, or one that the exchange has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// UserRefNum of its first request: it keeps its id on the exchange when it is replaced.
    pub first: u32,
    /// UserRefNum of the last request accepted.
    pub user_ref: u32,
    /// Its symbol.
    pub symbol: String,
    /// Its instrument.
    pub instrument: u32,
    /// B, S, T or E.
    pub side: u8,
    /// Time in force.
    pub time_in_force: u8,
    /// For whom it is.
    pub capacity: u8,
    /// Whether its client calls it an intermarket sweep.
    pub sweep: u8,
    /// The cross that it is for: N for none, C for the closing auction.
    #[serde(default = "no_cross")]
    pub cross: u8,
    /// Limit, ticks; none for a market order.
    pub price: Option<i64>,
    /// Total quantity of the chain, lots.
    pub quantity: u64,
    /// Traded quantity of the chain, lots.
    pub traded: u64,
    /// Text of the client.
    pub client_id: ClientId,
    /// Instructions.
    pub options: Options,
    /// Options that its reports repeat, in hexadecimal digits.
    pub appendage: String,
    /// Whether the exchange has accepted it.
    pub is_live: bool,
    /// Number of the request by which it was sent to the exchange.
    pub seq: u64,
    /// Requests to change it: the first is at the exchange, the others wait.
    pub changes: VecDeque<Change>,
}

/// Cross type of the closing auction.
pub const CLOSING: u8 = b'C';

/// The cross of an order for continuous trading.
fn no_cross() -> u8 {
    b'N'
}

impl Order {
    /// Open quantity, lots.
    pub fn open(&self) -> u64 {
        self.quantity.saturating_sub(self.traded)
    }

    /// Whether it is for the closing cross.
    pub fn is_on_close(&self) -> bool {
        self.cross == CLOSING
    }

    /// Its number, and those that it gets if the replacements that wait are made.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let waiting = self.changes.iter().filter_map(|change| match change.wish {
            Wish::Replace(user_ref, ..) => Some(user_ref),
            Wish::Reduce(_) | Wish::Modify(..) => None,
        });
        std::iter::once(self.user_ref).chain(waiting)
    }
}
