//! What a session must not forget.

use nm_client::Change;
use serde::{Deserialize, Serialize};

use super::order::Order;
use crate::soup::session;

/// A change of a session's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// Of SoupBinTCP.
    Session(session::Change),
    /// Of the client of the gateways.
    Exchange(Change),
    /// An order as it is now.
    Order(Box<Order>),
    /// The order with this first number has ended.
    Ended(u32),
    /// Requests up to this UserRefNum were processed.
    Used(u32),
    /// Whether new orders are rejected, because the client wants it.
    Disabled(bool),
    /// Whether the client was told that the day has ended, and nothing since.
    DayOver(bool),
}
