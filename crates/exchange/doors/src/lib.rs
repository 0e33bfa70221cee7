//! The exchange's front doors: what programs that others wrote connect to.
//!
//! A door is a process beside the gateways. It speaks a protocol of the trade on one side, and on
//! the other it is a client of the gateways like any other (`docs/wire.md`). So the nodes know
//! nothing of it.
//!
//! [`fix`] is FIX 4.4 and FIXT 1.1 with FIX 5.0 SP2, and [`ouch`] is OUCH 5.0 over SoupBinTCP
//! ([`soup`]). Both have codec, session layer and orders, none of which does I/O. Each is a
//! [`line`](mod@line) of a [`door`], and shares all else. A session of `nm-client` trades by the
//! gateways, [`store`] keeps what must survive, and [`server`] is the process around it. What books
//! show comes from a follower beside it, by a [`market`] board.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait"))]

pub mod door;
pub mod fix;
pub mod gateway;
pub mod limits;
pub mod line;
pub mod market;
pub mod ouch;
pub mod server;
pub mod settings;
pub mod soup;
pub mod store;
pub mod symbols;

pub use nm_exchange::decimal;
