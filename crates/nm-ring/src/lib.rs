//! Rings in shared memory between two threads or processes of one machine.
//!
//! A [`Joint`] is one end of shared memory with a kernel socket beside it, whose hang-up tells
//! that the other process has died. It becomes an [`End`], which sends and receives a stream of
//! bytes or whole records ([`End::send`], [`End::try_send_record`]) and waits by spinning, or by
//! spinning for a while and then sleeping. Below it: [`lane`] moves records in one direction,
//! [`wake`] sleeps and wakes, [`layout`] says what lies where. [`mod@line`] measures what the
//! hardware allows at best.
//!
//! The socket accelerator has a form of its own, which several processes can share at each end: a
//! [`conduit`] with a [`mod@pipe`] in each direction, and the [`ledger`] of what became of each
//! socket.
//!
//! Everything that the other end can write is taken as a claim, never as a fact: indices are masked
//! and lengths clamped, so that a hostile end spoils its own messages and nothing else.
//!
//! Tests: `cargo test -p nm-ring`, and the order of every access under loom by
//! `RUSTFLAGS="--cfg loom" cargo test -p nm-ring --release loom`.

#[cfg(not(loom))]
pub mod conduit;
#[cfg(not(loom))]
pub mod end;
pub mod lane;
pub mod layout;
#[cfg(not(loom))]
pub mod ledger;
#[cfg(not(loom))]
pub mod line;
#[cfg(not(loom))]
pub mod memory;
pub mod pipe;
mod sync;
pub mod wake;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
pub use end::{End, Joint, Stop};
#[cfg(not(loom))]
pub use memory::Which;
