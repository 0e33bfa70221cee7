//! Days of other venues as load.
//!
//! [`itch_day`] reads the messages of an ITCH 5.0 day, [`csv_day`] a table of orders. A [`tape`]
//! makes requests of both, with the venue's own times, and cuts a [`Window`] out of them. [`make`]
//! writes synthetic days in the layout of ITCH. Files may be compressed by gzip.
#![forbid(unsafe_code)]

pub mod csv_day;
pub mod file;
pub mod itch_day;
pub mod limits;
pub mod make;
pub mod tape;

pub use tape::{Day, Window};
