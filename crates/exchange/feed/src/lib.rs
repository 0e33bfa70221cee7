//! The exchange's market data: ITCH 5.0 over MoldUDP64, and a consumer of it.
//!
//! [`itch`], [`mold`] and [`glimpse`] are the bytes. [`derive`](mod@derive) makes messages of the
//! events of one book, and [`books`] makes books of messages: what [`displayed`] says of both must
//! be equal.
//! [`follow`] is a publisher's state and [`receiver`] a consumer's, without I/O; [`publish`] and
//! [`consume`] are the processes around them. A [`market`] follower shows books to a door, and
//! [`top`] is the conflated feed of best prices.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait"))]

pub mod books;
pub mod check;
pub mod conflate;
pub mod consume;
pub mod derive;
pub mod displayed;
mod entry_latency;
pub mod follow;
pub mod glimpse;
pub mod itch;
pub mod limits;
pub mod market;
pub mod mold;
pub mod node_link;
pub mod publish;
pub mod receiver;
pub mod requests;
pub mod snapshot_server;
pub mod stock;
pub mod store;
pub mod top;
