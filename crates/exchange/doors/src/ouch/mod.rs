//! OUCH 5.0 over SoupBinTCP. Nothing here does I/O or reads a clock.
//!
//! [`message`] has the layout of each message, and [`appendage`] the options behind it. The
//! [`desk`] turns requests into commands to the exchange, and each event of the exchange into a
//! message. A [`line`](mod@line) adds a [session](crate::soup::session) of SoupBinTCP.

pub mod appendage;
pub mod code;
pub mod desk;
pub mod line;
pub mod message;
pub mod order;
pub mod record;
pub mod settings;
