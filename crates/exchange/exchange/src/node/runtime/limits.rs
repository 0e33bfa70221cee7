//! What a node grants its peers.

use std::time::Duration;

use crate::link::BACKLOG_BYTES_MAX;

use super::peer::Peer;

/// Limits of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time within which a connection must complete its handshake.
    pub hello_timeout: Duration,
    /// Connections that have not completed it; further ones are closed at once.
    pub unauthenticated_max: usize,
    /// Links to clients.
    pub clients_max: usize,
    /// Links to observers and operators.
    pub observers_max: usize,
    /// Backlog of a client, bytes.
    pub client_backlog_bytes_max: usize,
    /// Backlog of an observer, or of a peer that has not completed the handshake, bytes.
    pub observer_backlog_bytes_max: usize,
    /// Bytes of all peers that are no nodes: backlogs, and what they have sent of a frame. Beyond
    /// it the link that holds the most is closed.
    pub foreign_bytes_max: usize,
    /// Time after which a link is closed whose peer, not a node, takes nothing of its backlog.
    pub slow_timeout: Duration,
    /// Pause of accepting connections when the system has no descriptor or memory for one.
    pub accept_pause: Duration,
    /// Pause before a node connects again to one that refused it.
    pub refused_pause: Duration,
}

impl Limits {
    /// Those of every node outside tests.
    pub const STANDARD: Limits = Limits {
        hello_timeout: Duration::from_secs(5),
        unauthenticated_max: 256,
        clients_max: 4_096,
        observers_max: 256,
        client_backlog_bytes_max: 64 << 20,
        observer_backlog_bytes_max: 16 << 20,
        foreign_bytes_max: 1 << 30,
        slow_timeout: Duration::from_secs(30),
        accept_pause: Duration::from_millis(100),
        refused_pause: Duration::from_millis(500),
    };

    /// Largest backlog of the link to a peer, bytes.
    pub fn backlog_bytes_max(&self, peer: Peer) -> usize {
        match peer {
            Peer::Node(..) => BACKLOG_BYTES_MAX,
            Peer::Client => self.client_backlog_bytes_max,
            Peer::Observer | Peer::Operator | Peer::Unknown => self.observer_backlog_bytes_max,
        }
    }
}
