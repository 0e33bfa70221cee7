//! The proof, after a run: that the network did what it told its clients, and nothing else.
//!
//! What clients sent and were told is in their logs; what replicas put in order is in their
//! journals. [`replay`] carries the journals out again with the plain book and with the fast one;
//! [`judge`] holds the outcome against the clients' logs. Both are told of their own rules, not
//! asked of the code that ran: the order that is checked is that in which clients sent, not the one
//! that requests claim. States that replicas wrote down ([`nm_exchange::hashes`]) must be those of
//! the replay, and so must a replay from the middle ([`cuts`]).

pub mod cuts;
pub mod folder;
pub mod judge;
pub mod replay;

pub use cuts::Cuts;
pub use folder::{folder, folder_cut};
pub use judge::{Findings, Violation};
