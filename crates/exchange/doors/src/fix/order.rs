//! An order as its client sees it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Where an order is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The exchange has not answered.
    PendingNew,
    /// Live, nothing traded.
    New,
    /// Live, a part traded.
    Partial,
    /// All traded.
    Filled,
    /// Cancelled.
    Cancelled,
    /// Never accepted.
    Rejected,
    /// Its time has passed.
    Expired,
}

impl Status {
    /// Field 39.
    pub fn code(self) -> char {
        match self {
            Status::PendingNew => 'A',
            Status::New => '0',
            Status::Partial => '1',
            Status::Filled => '2',
            Status::Cancelled => '4',
            Status::Rejected => '8',
            Status::Expired => 'C',
        }
    }

    /// Whether it can still change.
    pub fn is_live(self) -> bool {
        matches!(self, Status::PendingNew | Status::New | Status::Partial)
    }
}

/// A request to change an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// ClOrdID of the request.
    pub client_id: String,
    /// New total quantity, lots, and price, ticks; none to cancel.
    pub replace: Option<(u64, Option<i64>)>,
    /// Number of the request to the exchange; 0 while it waits for the one before it.
    pub seq: u64,
    /// Routing fields of the answer.
    pub route: String,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its number among those of the session.
    pub number: u64,
    /// ClOrdIDs by which it was known; the last one is that of the last request accepted.
    pub client_ids: Vec<String>,
    /// Its symbol.
    pub symbol: String,
    /// Its instrument.
    pub instrument: u32,
    /// Fields 54, 40 and 59.
    pub side: char,
    /// See `side`.
    pub kind: char,
    /// See `side`.
    pub time_in_force: char,
    /// Field 1.
    pub account: Option<String>,
    /// Limit, ticks.
    pub price: Option<i64>,
    /// Stop price, ticks.
    pub stop: Option<i64>,
    /// Total quantity, lots.
    pub quantity: u64,
    /// Whether it is not displayed.
    #[serde(default)]
    pub is_hidden: bool,
    /// Of a pegged order ExecInst, `R` or `M`, and PegOffsetValue, ticks.
    #[serde(default)]
    pub peg: Option<(char, i64)>,
    /// Traded quantity, lots.
    pub traded: u64,
    /// Ticks times lots of its trades.
    #[serde(with = "as_text")]
    pub value: i128,
    /// Where it is in its life.
    pub status: Status,
    /// Number of the request by which it was sent to the exchange; 0 if it was not.
    pub seq: u64,
    /// Requests to change it: the first is at the exchange, the others wait.
    pub changes: VecDeque<ChangeRequest>,
    /// Routing fields of its reports.
    pub route: String,
}

impl Order {
    /// ClOrdID of the last request accepted.
    pub fn client_id(&self) -> &str {
        self.client_ids.last().map_or("", String::as_str)
    }

    /// Open quantity, lots.
    pub fn open(&self) -> u64 {
        if self.status.is_live() { self.quantity.saturating_sub(self.traded) } else { 0 }
    }

    /// Field 37.
    pub fn order_id(&self, session: u32) -> String {
        format!("{session}-{}", self.number)
    }

    /// The status of a live order: whether a part has traded.
    pub fn live_status(&self) -> Status {
        if self.traded > 0 { Status::Partial } else { Status::New }
    }
}

/// Numbers that JSON readers do not take are text.
mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(value: &i128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
