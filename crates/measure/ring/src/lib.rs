//! Lock-free queues in shared memory, between two threads or two processes of one machine.
//!
//! [`EndpointParts`] is one end of a shared region with a kernel socket beside it, which becomes
//! readable when the other process dies. It becomes an [`Endpoint`], which sends and receives a
//! stream of bytes or whole records ([`Endpoint::send`], [`Endpoint::try_send_record`]). An
//! endpoint waits by spinning only, or by spinning for a while and then sleeping. Below it:
//! [`record_queue`] moves records in one direction, [`wake`] sleeps and wakes, [`layout`] defines
//! the memory. [`cache_line`] measures the lower limit that the hardware sets. Between two virtual
//! machines the region is a [`window`] of a device's memory.
//!
//! The socket accelerator uses another form, which several processes can share at each end. It is a
//! [`conduit`] with a [`mod@pipe`] in each direction, and a [`ledger`] with one record per socket.
//! [`variables`] declares what its users may set.
//!
//! Nothing that the other end can write is trusted. Indices are masked and lengths clamped, so that
//! a hostile peer can corrupt its own messages and nothing else.
//!
//! Tests: `cargo test -p nm-ring`; every order of memory accesses is checked under loom by
//! `RUSTFLAGS="--cfg loom" cargo test -p nm-ring --release loom`.

#[cfg(not(loom))]
pub mod cache_line;
#[cfg(not(loom))]
pub mod conduit;
#[cfg(not(loom))]
pub mod endpoint;
pub mod layout;
#[cfg(not(loom))]
pub mod ledger;
#[cfg(not(loom))]
pub mod memory;
pub mod pipe;
#[cfg(not(loom))]
pub mod process_lock;
pub mod record_queue;
mod role;
mod sync;
#[cfg(not(loom))]
pub mod variables;
pub mod wake;
#[cfg(not(loom))]
pub mod window;
mod words;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(not(loom))]
pub use endpoint::{Endpoint, EndpointParts, Lifeline, TransferError};
pub use role::EndpointRole;
