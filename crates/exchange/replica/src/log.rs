//! The replicated log as the data loop of a node sees it.

use crate::error::ReplicaError;
use crate::group::Shared;

/// Maximum size of a batch, bytes; a single larger request is a batch too.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// What happened to a replica, in order.
#[derive(Debug, Clone)]
pub enum LogEvent {
    /// The next batch is committed: apply it.
    Committed {
        /// Its index in the group's log, from 1 on. Indexes rise, not always by one.
        index: u64,
        /// Term of the leader that proposed it. Terms never fall.
        term: u64,
        /// The batch.
        batch: Shared,
    },
    /// A snapshot of the state after all events so far is wanted: begin to copy the state, go on
    /// with the next events, and pass the copy to [`Log::finish_snapshot`]. A later
    /// [`LogEvent::LoadSnapshot`] cancels it.
    TakeSnapshot {
        /// Number of the snapshot.
        number: u64,
    },
    /// Replace the whole state by this snapshot, which contains everything up to the index.
    LoadSnapshot {
        /// Index of the last entry in it.
        index: u64,
        /// What some replica passed to [`Log::finish_snapshot`].
        state: Shared,
    },
    /// This replica leads from now on. All events of earlier terms have been delivered; what it
    /// proposed in an earlier term and was not committed may be lost.
    LeadershipGained {
        /// Term; higher than that of any leader before.
        term: u32,
    },
    /// This replica does not lead any more.
    LeadershipLost,
    /// This replica has all entries that it must have: the group can now spare another one.
    CaughtUp,
    /// This replica cannot work as it should at the moment; the reason, for people.
    Degraded(String),
    /// No other replica leads in its place, as [`Log::hand_over`] asked for; why, in a sentence.
    HandOverFailed(String),
    /// The nodes with these positions in [`Group::members`](crate::Group::members) have the group's
    /// replicas from now on.
    Voters(Vec<usize>),
    /// A replica was not replaced, as [`Log::replace`] asked for; why, in a sentence.
    ReplaceFailed(String),
    /// This replica is no part of its group any more, and has ended: another one has replaced it.
    Removed,
    /// Something outside of the group that people should know, in a sentence.
    Warning(String),
    /// This replica has stopped and must be started again.
    Stopped(ReplicaError),
}

/// A batch that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Vec<u8>);

/// The replicated log as the data loop of a node sees it. No method blocks.
pub trait Log {
    /// The term in which this replica leads, as far as [`Log::next_event`] has reported it.
    fn leading_term(&self) -> Option<u32>;

    /// Whether [`Log::propose`] would accept a batch: this replica leads, is not handing over, and
    /// no batch is in flight. Requests that arrive meanwhile form the next batch, so that batches
    /// grow with the load and a single request is sent at once. Two batches in flight were measured
    /// as well: they are smaller, each costs syncs and messages of all replicas, and on two CPUs
    /// every request waited longer.
    fn can_propose(&self) -> bool;

    /// Whether this replica has all entries that it must have to replace another one of its group.
    fn is_caught_up(&self) -> bool;

    /// What the wall clocks of the other replicas show, ns since 1970, when the monotonic clock of
    /// this machine shows `monotonic_ns`: with their positions in the group, as far as they are
    /// known. Only a leader's knowledge is fresh.
    fn other_clocks(&self, monotonic_ns: u64) -> Vec<(usize, u64)>;

    /// Proposes a batch as the next.
    ///
    /// # Errors
    /// Returns the batch if [`Log::can_propose`] is false.
    fn propose(&mut self, batch: Vec<u8>) -> Result<(), Refused>;

    /// The next event, if there is one. To be called until there is none after each wake-up.
    fn next_event(&mut self) -> Option<LogEvent>;

    /// Passes on the snapshot that was wanted by [`LogEvent::TakeSnapshot`] with this number.
    fn finish_snapshot(&mut self, number: u64, state: Vec<u8>);

    /// If this replica leads, asks another one that has all entries to lead in its place. What
    /// comes of it is an event: [`LogEvent::LeadershipLost`] or [`LogEvent::HandOverFailed`].
    fn hand_over(&mut self);

    /// If this replica leads, replaces the replica of one node by a new one of another node, by
    /// their positions in the group: the new one gets all entries, then it votes in the place of
    /// the old one. What comes of it is an event: [`LogEvent::Voters`] or
    /// [`LogEvent::ReplaceFailed`]. If it is this replica that is to be replaced, it only hands
    /// over, and the next leader has to be asked.
    fn replace(&mut self, from: usize, to: usize);
}
