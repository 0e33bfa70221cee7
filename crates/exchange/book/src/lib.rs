//! The order book of one instrument: order types, matching, and their encoding.
//!
//! [`order`] defines orders, commands and events, and states every rule of matching. [`book`] is
//! the fast implementation, without an allocation per command; [`mod@reference`] is the most
//! obvious one, to which tests and `exchange verify` compare it. Both emit the same events and
//! reach the same state, and each restores the [`snapshot`] of the other. [`codec`] encodes
//! commands and events; [`limits`] bound what one of them may cost. Nothing here reads a clock, a
//! file or a socket: the same commands always lead to the same state.
#![forbid(unsafe_code)]

pub mod book;
pub mod codec;
pub mod limits;
pub mod order;
pub mod reference;
pub mod snapshot;
#[cfg(feature = "test-support")]
pub mod testing;
