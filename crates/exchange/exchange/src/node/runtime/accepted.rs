//! What the peers of a node that are no nodes have of it: all together, and each owner.

use std::collections::BTreeMap;

use nm_wire::Owner;

use crate::limits::is_within_quota;

use super::peer::{Peer, PeerError};

/// What peers have of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections that have not completed their handshake.
    pub unauthenticated: usize,
    /// Links to clients.
    pub clients: usize,
    /// Links to observers and operators.
    pub observers: usize,
    /// Bytes that are allocated for all of these.
    pub bytes: usize,
}

impl Counts {
    fn links(&mut self, peer: Peer) -> Option<&mut usize> {
        match peer {
            Peer::Unknown => Some(&mut self.unauthenticated),
            Peer::Client => Some(&mut self.clients),
            Peer::Observer | Peer::Operator => Some(&mut self.observers),
            Peer::Node(..) => None,
        }
    }
}

/// What all peers have, and each owner.
#[derive(Debug, Default)]
pub struct Accepted {
    pub all: Counts,
    of: BTreeMap<Owner, Counts>,
}

impl Accepted {
    /// What an owner has.
    pub fn of(&self, owner: Owner) -> Counts {
        self.of.get(&owner).copied().unwrap_or_default()
    }

    /// Whether an owner may have one more link to such peers, of which all have at most `most`.
    ///
    /// # Errors
    /// If its quota is full.
    pub fn check(&self, owner: Owner, peer: Peer, most: usize) -> Result<(), PeerError> {
        let (mut all, mut own) = (self.all, self.of(owner));
        let (Some(total), Some(own)) = (all.links(peer), own.links(peer)) else { return Ok(()) };
        if is_within_quota(owner, (*own, *total), 1, most) {
            return Ok(());
        }
        let what = match peer {
            Peer::Unknown => "unfinished handshakes",
            Peer::Client => "client links",
            _ => "observer links",
        };
        Err(PeerError::QuotaFull { what, owner, own: *own })
    }

    /// An owner has one more link, or one less.
    pub fn count_link(&mut self, owner: Owner, peer: Peer, is_more: bool) {
        self.change(owner, |counts| {
            if let Some(links) = counts.links(peer) {
                *links = if is_more { *links + 1 } else { *links - 1 };
            }
        });
    }

    /// A link of an owner takes `now` bytes instead of `before`.
    pub fn count_bytes(&mut self, owner: Owner, before: usize, now: usize) {
        if before != now {
            self.change(owner, |counts| counts.bytes = counts.bytes + now - before);
        }
    }

    fn change(&mut self, owner: Owner, change: impl Fn(&mut Counts)) {
        change(&mut self.all);
        if owner.is_somebody() {
            let known = self.of.entry(owner).or_default();
            change(known);
            if *known == Counts::default() {
                self.of.remove(&owner);
            }
        }
    }

    /// Whether an owner has more bytes than its quota allows, while all may have at most `most`.
    pub fn exceeds_bytes(&self, owner: Owner, most: usize) -> bool {
        !is_within_quota(owner, (self.of(owner).bytes, self.all.bytes), 0, most)
    }
}
