//! Replication: the replicas of a cell agree on one order of batches, and each gets all of them.
//!
//! [`Log`] is what a node's data loop sees of it. Behind it stands Raft (the crate openraft), on a
//! thread of its own with an async runtime ([`Replicas`]); the two talk by channels, and a
//! [`Waker`](nm_sys::poll::Waker) says that there is something to be [told](LogEvent).
//!
//! - A **batch is committed** when most replicas have it: in memory, or synced to their disks if
//!   the group has a folder. Only then it is told, to every replica, in the same order.
//! - **Who leads** is decided by elections. A member that may not lead (a transaction processor)
//!   stands only when its log is ahead of the one who wants to lead; it brings the others up to
//!   date and hands over. Every change of leader has a higher epoch.
//! - A replica that **lost its memory** does not vote as if it had never promised anything: see
//!   [`birth`].
//! - **Snapshots** are taken by the data loop, one instrument at a time: see [`LogEvent::TakeSnapshot`].
//! - **A disk that fails or is full** stops the replica with a sentence ([`LogEvent::Stopped`]); the
//!   others go on without it.
//! - **A slow disk** delays nobody as long as it is the only one, even if it is the leader's: what
//!   counts is that a quorum's disks have a batch (see `acks`). It is spoken of
//!   ([`LogEvent::Degraded`]); if hundreds of megabytes wait for it, its replica stops.

#![forbid(unsafe_code)]

mod acks;
mod address;
pub mod birth;
mod bytes;
mod disk;
mod elect;
mod host;
pub mod journal;
mod machine;
mod network;
mod promises;
mod raft;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use nm_model::agent::Failure;

pub use address::Address;
pub use host::Replicas;
pub use machine::saved_snapshot;
pub use raft::RaftLog;

/// Most bytes of a batch; a single larger request is a batch too.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// Who else is in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it listens for the other replicas.
    pub address: Address,
    /// Whether it may lead.
    pub may_lead: bool,
}

/// The replicas of one cell, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its number, different from that of every other group.
    pub id: u16,
    /// What it is called in messages.
    pub name: String,
    /// Its replicas, in the same order everywhere; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// Which of them this one is.
    pub own: usize,
    /// Folder for the journal and snapshots; without one, everything is in memory only.
    pub folder: Option<PathBuf>,
    /// How its replicas behave.
    pub settings: Settings,
}

/// Most replicas of a group.
pub const MEMBERS_MAX: usize = 15;

/// How replicas behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often a leader shows that it lives, ms; also the time that a message between replicas
    /// may take.
    pub heartbeat_ms: u64,
    /// Silence of the leader after which another one is wanted, ms, drawn by each replica between
    /// these two, and counted from when the leader's lease has ended (the second of them). If the
    /// leader's connections ended, its lease is the first of them; so is that of a replica that
    /// may not lead.
    pub election_ms: (u64, u64),
    /// Bytes of batches after which a snapshot is taken, and what is older is forgotten.
    pub snapshot_bytes: u64,
    /// How the journal is kept.
    pub journal: journal::Settings,
    /// Whether the journal keeps what a snapshot has made superfluous, for an audit of all of it.
    pub keep_all: bool,
}

impl Default for Settings {
    /// Times that hold on one crowded machine and in a local network: another leader 0.15 to 0.3 s
    /// after the death of a process, 0.3 to 0.4 s after that of a host.
    fn default() -> Settings {
        Settings {
            heartbeat_ms: 40,
            election_ms: (90, 170),
            snapshot_bytes: 32 << 20,
            journal: journal::Settings::default(),
            keep_all: false,
        }
    }
}

/// Bytes that are shared, not copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shared(pub Arc<Vec<u8>>);

impl std::ops::Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// What a replica is told, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// The next batch: apply it. Indexes rise, not always by one; terms do not fall.
    Committed {
        /// Its number in the group's order, from 1 on.
        index: u64,
        /// Epoch of the leader that proposed it.
        term: u64,
        /// The batch.
        batch: Shared,
    },
    /// The state as it is now, after everything told so far, is wanted as a snapshot: begin to copy
    /// it, go on with what is told next, and hand it over by [`Log::snapshot`] with this number. A
    /// later [`LogEvent::LoadSnapshot`] makes that superfluous.
    TakeSnapshot {
        /// Number of the snapshot.
        number: u64,
    },
    /// The whole state is to be replaced by this snapshot. It holds everything up to the index.
    LoadSnapshot {
        /// Index of the last entry in it.
        index: u64,
        /// What was handed to [`Log::snapshot`] somewhere.
        state: Shared,
    },
    /// This replica leads from now on. Everything of earlier epochs has been told. What it proposed
    /// in an earlier epoch and was not told is perhaps lost.
    LeadershipGained {
        /// Term; higher than that of any leader before.
        term: u32,
    },
    /// It does not lead any more.
    LeadershipLost,
    /// It has all that it must have: from now on the group can spare another replica.
    CaughtUp,
    /// It cannot take part as it should at the moment; why, for people: "cell 3 waits: …".
    Degraded(String),
    /// It takes no part any more, and must be started again.
    Stopped(Failure),
}

/// Why a batch was not taken, and the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Vec<u8>);

/// What the data loop sees of the replication of a cell. Nothing here waits.
pub trait Log {
    /// The epoch in which this replica leads, as far as it was [told](Log::next).
    fn leading_term(&self) -> Option<u32>;

    /// Whether [`Log::propose`] would take a batch: it leads, and none is under way. What comes
    /// meanwhile is the next batch, so that batches grow with the load and a lone request goes at
    /// once. With a second one under way there were more and smaller batches, each of which costs
    /// syncs and messages of all replicas: on two CPUs everybody waited longer.
    fn can_propose(&self) -> bool;

    /// Whether it has all that it must have to stand in for another replica of its group.
    fn is_caught_up(&self) -> bool;

    /// Proposes a batch as the next.
    ///
    /// # Errors
    /// Gives the batch back if there is no room.
    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused>;

    /// The next thing told, if there is one. To be called until there is none after each wake-up.
    fn next_event(&mut self) -> Option<LogEvent>;

    /// Hands over the snapshot that was wanted by this number.
    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>);
}
