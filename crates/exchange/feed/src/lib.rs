//! The exchange's market data: ITCH 5.0 over MoldUDP64, and a consumer of it.
//!
//! [`itch`] and [`mold`] are the bytes. [`derive`] makes messages of the events of one book, and
//! [`books`] makes books of messages: what [`displayed`] says of both must be equal.
#![forbid(unsafe_code)]

pub mod books;
pub mod derive;
pub mod displayed;
pub mod itch;
pub mod mold;
pub mod stock;
