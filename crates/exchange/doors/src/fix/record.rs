//! What a session must not forget.

use nm_client::Change;
use serde::{Deserialize, Serialize};

use super::order::Order;
use super::session;

/// A change of a session's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// Of the session layer.
    Session(session::Change),
    /// Of the client of the gateways.
    Exchange(Change),
    /// An order as it is now.
    Order(Box<Order>),
    /// An order that has ended is forgotten.
    Forgotten(u64),
    /// The last number that an order or a report has.
    Numbered(u64),
}
