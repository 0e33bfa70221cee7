//! SoupBinTCP 3.00 and 4.00, the server's side. Nothing here does I/O or reads a clock.
//!
//! Bytes become packets ([`packet`]). A [`session`] numbers what it sends to a client, keeps it,
//! and sends it again from any number on when the client logs in.

pub mod packet;
pub mod session;
