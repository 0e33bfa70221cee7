//! What a node grants its peers.

use std::time::Duration;

use crate::link::BACKLOG_BYTES_MAX;

use super::peer::Peer;

/// Files that a node needs beside those of the peers that it accepts: its journals, and links to
/// other nodes.
const OWN_FILES_MAX: usize = 512;

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

    /// Files that a node has open at most.
    pub fn files(&self) -> usize {
        self.clients_max + self.observers_max + self.unauthenticated_max + OWN_FILES_MAX
    }

    /// These limits, as far as a process can have them that may have so many files open: and a
    /// sentence about it if they are lower.
    pub fn within_descriptors(self, files: u64) -> (Limits, Option<String>) {
        let Limits { clients_max, observers_max, unauthenticated_max, .. } = self;
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let links = clients_max + observers_max + unauthenticated_max;
        let free = files - OWN_FILES_MAX.min(files / 2);
        if free >= links {
            return (self, None);
        }
        let part = |most: usize| (most * free / links).max(1);
        let limits = Limits {
            clients_max: part(clients_max),
            observers_max: part(observers_max),
            unauthenticated_max: part(unauthenticated_max),
            ..self
        };
        let message = format!(
            "this process may have {files} files open at once, so it accepts {} clients instead of \
             {clients_max}, {} observers and {} unfinished handshakes; {} files are enough for all \
             (`ulimit -H -n`)",
            limits.clients_max,
            limits.observers_max,
            limits.unauthenticated_max,
            self.files()
        );
        (limits, Some(message))
    }

    /// Largest backlog of the link to a peer, bytes.
    pub fn backlog_bytes_max(&self, peer: Peer) -> usize {
        match peer {
            Peer::Node(..) => BACKLOG_BYTES_MAX,
            Peer::Client => self.client_backlog_bytes_max,
            Peer::Observer | Peer::Operator | Peer::Unknown => self.observer_backlog_bytes_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_on_links_follow_from_the_files_that_may_be_open() {
        let enough = 4_096 + 256 + 256 + 512;
        assert_eq!(Limits::STANDARD.within_descriptors(enough), (Limits::STANDARD, None));
        assert_eq!(Limits::STANDARD.within_descriptors(u64::MAX), (Limits::STANDARD, None));
        for files in [1, 64, 300, 1_024, enough - 1] {
            let (limits, message) = Limits::STANDARD.within_descriptors(files);
            let Limits { clients_max, observers_max, unauthenticated_max, .. } = limits;
            let links = (clients_max + observers_max + unauthenticated_max) as u64;
            assert!(
                links <= files.max(3) && observers_max > 0 && clients_max < 4_096,
                "{limits:?}"
            );
            let message = message.unwrap();
            assert!(message.starts_with(&format!("this process may have {files} files open")));
            assert!(message.contains(&format!("{clients_max} clients instead of 4096")));
        }
    }
}
