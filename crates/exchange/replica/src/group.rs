//! A group of replicas, and how its replicas behave.

use std::path::PathBuf;
use std::sync::Arc;

use nm_auth::Key;

use crate::address::Address;
use crate::content_format::ContentFormat;
use crate::journal;

/// Maximum number of nodes that may have a replica of a group.
pub const MEMBERS_MAX: usize = 15;

/// A node that may have a replica of a group, as the replicas see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where it listens for the other replicas.
    pub address: Address,
    /// Whether its replica may become the leader.
    pub may_lead: bool,
}

/// A group of replicas, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its number, different from that of every other group.
    pub id: u16,
    /// Its name in messages.
    pub name: String,
    /// The nodes that may have a replica, in the same order everywhere; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// How many of them, from the first one on, have a replica when the group begins. Later
    /// [`Log::replace`](crate::Log::replace) decides.
    pub voters: usize,
    /// Position of this replica in `members`.
    pub own: usize,
    /// Folder for the journal and snapshots; without one, everything is in memory only.
    pub folder: Option<PathBuf>,
    /// How its replicas behave.
    pub settings: Settings,
}

impl Group {
    /// Whether there are files of this node's replica, which show that it has one.
    pub fn has_files(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.is_dir())
    }
}

/// How replicas behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Heartbeat interval of a leader, ms; also the time limit of a message between replicas.
    pub heartbeat_ms: u64,
    /// Election timeout, ms: drawn by each replica between these two, and counted from the end of
    /// the leader's lease, which is the second of them. The lease is the first of them if the
    /// leader's connections have ended, and for a replica that may not lead.
    pub election_ms: (u64, u64),
    /// Whether followers learn of each commit at once. Else they learn of it with the next entries
    /// or heartbeat, which is enough where only the leader acts on commits.
    pub notifies_at_once: bool,
    /// Bytes of batches after which a snapshot is taken and older entries are purged.
    pub snapshot_bytes: u64,
    /// How the journal is kept.
    pub journal: journal::Settings,
    /// Time after which the journal's watermark is advanced although there always is work, ms: else
    /// a file that loses all from some place on would be taken for one that was never written
    /// further. With 0 it is advanced before each acknowledgement, which needs two more syncs: then
    /// a write that the disk confirmed and lost is noticed also if the power fails at once.
    pub watermark_ms: u64,
    /// Whether the journal keeps purged entries, for an audit of all of it.
    pub keep_all: bool,
    /// Number of the network; replicas of another one are refused.
    pub cluster: u64,
    /// The key by which replicas authenticate each other, if they do; the same at all groups of a
    /// node.
    pub key: Option<Key>,
    /// What batches and snapshots are made of; the same at all groups of a node. Replicas with
    /// another one, and folders with a newer one, are refused.
    pub content: ContentFormat,
}

impl Default for Settings {
    /// Times that suit one crowded machine and a local network: a new leader 0.15 to 0.3 s after
    /// the death of a process, 0.3 to 0.4 s after the death of a host.
    fn default() -> Settings {
        Settings {
            heartbeat_ms: 40,
            election_ms: (90, 170),
            notifies_at_once: true,
            snapshot_bytes: 32 << 20,
            journal: journal::Settings::default(),
            watermark_ms: 5_000,
            keep_all: false,
            cluster: 0,
            key: None,
            content: ContentFormat::default(),
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
