//! FIX 4.4, and FIX 5.0 SP2 over FIXT 1.1. Nothing here does I/O or reads a clock.
//!
//! Bytes become messages ([`framer`], [`message`]), which are checked by a [`dictionary`]
//! ([`check`]). A [`session`] keeps the numbers of both sides. An application message that it
//! accepts goes to the [`desk`], which turns it into a command to the exchange. The desk also turns
//! each event of the exchange into a report. What must survive is a [`record`], in a
//! [store](crate::store) that is written before anything is sent. Market data that a client asks
//! for comes from its [`market`] desk, and is not kept. A [`line`](mod@line) puts it together.

pub mod check;
pub mod desk;
pub mod dictionary;
pub mod framer;
pub mod line;
pub mod market;
pub mod message;
pub mod order;
pub mod record;
pub mod reports;
pub mod session;
pub mod settings;
pub mod tag;
pub mod time;
