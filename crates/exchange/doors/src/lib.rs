//! The exchange's front doors: what programs that others wrote connect to.
//!
//! A door is a process beside the gateways. It speaks a protocol of the trade on one side, and on
//! the other it is a client of the gateways like any other (`docs/wire.md`). So the nodes know
//! nothing of it.
//!
//! [`fix`] is FIX 4.4 and FIXT 1.1 with FIX 5.0 SP2: codec, session layer and orders, none of which
//! does I/O. [`streams`] is the client of the gateways, without I/O as well. [`settings`] is the
//! file of sessions, and [`server`] the process around all of it.
#![forbid(unsafe_code)]

pub mod door;
pub mod fix;
pub mod gateway;
pub mod limits;
pub mod server;
pub mod settings;
pub mod streams;
