//! The order book of one instrument: what orders are, how they match, and their bytes.
//!
//! [`order`] has the nouns and every rule; [`book`] carries the rules out without an allocation per
//! command, [`naive`] in the most obvious way, for tests and audits to compare with. Both do the
//! same after every command, and each goes on from what the other [saved]. [`codec`] makes bytes of
//! commands and events. Nothing here reads a clock, a file or a socket: the same commands always
//! give the same state.
#![forbid(unsafe_code)]

pub mod book;
pub mod codec;
pub mod naive;
pub mod order;
pub mod saved;
#[cfg(feature = "test-support")]
pub mod testing;
