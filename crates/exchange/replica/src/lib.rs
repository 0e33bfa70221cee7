//! A replicated log: the replicas of a group agree on one order of batches, and each gets all of
//! them. What a batch contains, this crate does not know.
//!
//! A node's data loop sees a [`Log`]: it proposes batches and takes [`LogEvent`]s. Behind it,
//! [`Replicas`] runs Raft (the crate openraft) for all groups of the node on a thread of its own
//! with an async runtime. The two communicate by channels, and a [`Waker`](nm_sys::poll::Waker) is
//! woken when there are events. No other crate depends on openraft or on the runtime.
//!
//! - A batch is **committed** when a majority of the replicas have it: in memory, or synced to disk
//!   if the group has a folder. Only then is it delivered, to every replica, in the same order.
//! - The **leader** is elected. A member that may not lead campaigns only when its log is ahead of
//!   the candidate's. It brings the others up to date and hands over. Every change of leader has a
//!   higher term.
//! - A replica that **lost its state** recovers it from the others before it votes: see
//!   `bootstrap`.
//! - A replica can be **replaced** by one of another node while the group works: see
//!   [`Log::replace`].
//! - **Damaged files** are repaired from the other replicas: see `recovery`.
//! - **Snapshots** are taken by the data loop: see [`LogEvent::TakeSnapshot`].
//! - A **disk that fails** or is full stops its replica ([`LogEvent::Stopped`]); the others go on.
//! - A **slow disk** delays nothing as long as it is the only one, even if it is the leader's. A
//!   quorum of disks is enough (see `acks`). It is reported ([`LogEvent::Degraded`]); if hundreds
//!   of megabytes wait for it, its replica stops.
//!
//! Batches are kept in a [`journal`], which also records them for an audit where there is no
//! replication.
#![forbid(unsafe_code)]

mod acks;
mod address;
#[cfg(test)]
mod bit_rot_tests;
mod bootstrap;
#[cfg(test)]
mod cell_simulation;
mod channel;
mod clocks;
mod committed;
mod connection;
mod content_format;
mod disk;
#[cfg(test)]
mod disk_fault_tests;
mod election;
mod encode;
mod env;
mod error;
mod failure;
mod files;
mod gate;
mod group;
mod group_replica;
mod handshake;
mod hard_state;
mod hello;
pub mod journal;
mod lifecycle;
mod log;
mod log_store;
mod membership;
mod message;
mod network;
mod open_replicas;
mod recovery;
mod replicas;
mod requests;
mod runtime;
pub mod saved;
#[cfg(test)]
mod simulated_disk;
#[cfg(test)]
mod simulated_machine;
#[cfg(test)]
mod simulated_network;
mod slot_file;
#[cfg(test)]
mod slow_disk_tests;
mod sockets;
mod state_machine;
mod storage;
#[cfg(any(test, feature = "test-support"))]
pub mod testing;
mod types;
mod unsynced;

pub use address::Address;
pub use channel::RaftLog;
pub use clocks::{difference_ns, wall_clock_ns};
pub use content_format::{ContentFormat, ContentKind};
pub use error::ReplicaError;
pub use group::{Group, MEMBERS_MAX, Member, Settings, Shared};
pub use log::{BATCH_BYTES_MAX, Log, LogEvent, Refused};
pub use open_replicas::Joined;
pub use replicas::Replicas;
pub use state_machine::saved_snapshot;
