//! The client links of a gateway, their sessions, and the bytes that each of them holds.
//!
//! Nothing outlives the link of its session: a client that connects again sends again what has no
//! reply.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use nm_book::order::{InstrumentId, UserId};

use crate::limits::{
    self, GATEWAY_BYTES_MAX, LINK_SESSIONS_MAX, SESSION_INSTRUMENTS_MAX, is_within_quota,
};
use nm_wire::{Owner, RefusalReason};

use crate::node::runtime::links::LinkId;

/// Bytes that a gateway counts for a session, and for each of its instruments.
const SESSION_BYTES: usize = 256;

#[derive(Debug, Default)]
struct ClientLink {
    owner: Owner,
    sessions: HashSet<UserId>,
    held_bytes: usize,
}

#[derive(Debug)]
struct Session {
    link: LinkId,
    instruments: Vec<InstrumentId>,
}

/// The client links of a gateway.
#[derive(Debug, Default)]
pub struct ClientLinks {
    links: HashMap<LinkId, ClientLink>,
    sessions: HashMap<UserId, Session>,
    /// Bytes that all links hold, and those of each owner.
    total_bytes: usize,
    bytes_of: HashMap<Owner, usize>,
    /// Requests without a reply of each owner, and their bytes.
    requests_of: HashMap<Owner, (usize, usize)>,
    /// Those among them that waited in vain when that was looked at last.
    stuck_of: HashMap<Owner, (usize, usize)>,
}

impl ClientLinks {
    /// Adds a link of an owner without sessions, unless it is known.
    pub fn add(&mut self, link: LinkId, owner: Owner) {
        self.links.entry(link).or_insert_with(|| ClientLink { owner, ..ClientLink::default() });
    }

    /// All links.
    pub fn ids(&self) -> impl Iterator<Item = LinkId> {
        self.links.keys().copied()
    }

    /// How many sessions all links have.
    pub fn sessions_count(&self) -> usize {
        self.sessions.len()
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = UserId> {
        self.sessions.keys().copied()
    }

    /// The link of a session.
    pub fn link_of(&self, session: UserId) -> Option<LinkId> {
        self.sessions.get(&session).map(|known| known.link)
    }

    /// Sessions of a link.
    pub fn sessions_of(&self, link: LinkId) -> Vec<UserId> {
        self.links.get(&link).map_or(vec![], |known| known.sessions.iter().copied().collect())
    }

    /// Removes a link that has no sessions any more.
    pub fn remove(&mut self, link: LinkId) {
        if let Some(known) = self.links.remove(&link) {
            debug_assert!(known.sessions.is_empty() && known.held_bytes == 0, "{known:?}");
        }
    }

    /// Adds a session to a link.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn add_session(&mut self, session: UserId, link: LinkId) -> Result<(), RefusalReason> {
        debug_assert!(!self.sessions.contains_key(&session), "session {session} has a link");
        if self.links.get(&link).is_some_and(|known| known.sessions.len() >= LINK_SESSIONS_MAX) {
            return Err(RefusalReason::TooManyLinkSessions);
        }
        self.hold(link, SESSION_BYTES)?;
        self.links.entry(link).or_default().sessions.insert(session);
        self.sessions.insert(session, Session { link, instruments: vec![] });
        Ok(())
    }

    /// Removes a session; its instruments. What is held for its requests is to be released.
    pub fn remove_session(&mut self, session: UserId) -> Vec<InstrumentId> {
        let Some(Session { link, instruments }) = self.sessions.remove(&session) else {
            return vec![];
        };
        if let Some(known) = self.links.get_mut(&link) {
            known.sessions.remove(&session);
        }
        self.release(link, SESSION_BYTES * (1 + instruments.len()));
        instruments
    }

    /// Adds an instrument to a session that has a link.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn add_instrument(
        &mut self,
        session: UserId,
        instrument: InstrumentId,
    ) -> Result<(), RefusalReason> {
        let Some(known) = self.sessions.get_mut(&session) else { return Ok(()) };
        let link = known.link;
        if known.instruments.len() >= SESSION_INSTRUMENTS_MAX {
            return Err(RefusalReason::TooManySessionInstruments);
        }
        known.instruments.push(instrument);
        self.hold(link, SESSION_BYTES).inspect_err(|_| {
            if let Some(known) = self.sessions.get_mut(&session) {
                known.instruments.pop();
            }
        })
    }

    /// Counts bytes that are held for a link.
    ///
    /// # Errors
    /// If it holds too many already, or its owner does.
    pub fn hold(&mut self, link: LinkId, bytes: usize) -> Result<(), RefusalReason> {
        let known = self.links.get(&link);
        let (held_bytes, owner) =
            known.map_or((0, Owner::NOBODY), |known| (known.held_bytes, known.owner));
        let of_owner = self.bytes_of.get(&owner).copied().unwrap_or_default();
        let total_bytes = self.total_bytes;
        if !limits::may_hold(held_bytes, total_bytes, bytes) {
            return Err(RefusalReason::TooManyPendingBytes);
        }
        if !is_within_quota(owner, (of_owner, total_bytes), bytes, GATEWAY_BYTES_MAX) {
            return Err(RefusalReason::TooManyOwnerBytes);
        }
        self.hold_anyway(link, bytes);
        Ok(())
    }

    /// Requests without a reply of an owner that are under way, and their bytes: those that wait in
    /// vain cost nobody time, and must not keep the owner from cells that answer.
    pub fn requests_of(&self, owner: Owner) -> (usize, usize) {
        let of =
            |all: &HashMap<Owner, (usize, usize)>| all.get(&owner).copied().unwrap_or_default();
        let (all, stuck) = (of(&self.requests_of), of(&self.stuck_of));
        (all.0.saturating_sub(stuck.0), all.1.saturating_sub(stuck.1))
    }

    /// Forgets what waited in vain: it is looked at anew.
    pub fn forget_stuck(&mut self) {
        self.stuck_of.clear();
    }

    /// So many requests of a link, and their bytes, wait in vain.
    pub fn add_stuck(&mut self, link: LinkId, requests: usize, bytes: usize) {
        if let Some(known) = self.links.get(&link) {
            let of_owner = self.stuck_of.entry(known.owner).or_default();
            *of_owner = (of_owner.0 + requests, of_owner.1 + bytes);
        }
    }

    /// Counts a request without a reply, and the bytes that are held for it.
    ///
    /// # Errors
    /// As [`ClientLinks::hold`].
    pub fn hold_request(&mut self, link: LinkId, bytes: usize) -> Result<(), RefusalReason> {
        self.hold(link, bytes)?;
        if let Some(known) = self.links.get(&link) {
            let of_owner = self.requests_of.entry(known.owner).or_default();
            *of_owner = (of_owner.0 + 1, of_owner.1 + bytes);
        }
        Ok(())
    }

    /// So many requests of a link are answered, refused or given up; what was held for them.
    pub fn release_requests(&mut self, link: LinkId, requests: usize, bytes: usize) {
        if let Some(known) = self.links.get(&link)
            && let Entry::Occupied(mut of_owner) = self.requests_of.entry(known.owner)
        {
            // Replies that waited count among the bytes, but not here.
            let (known_requests, known_bytes) = *of_owner.get();
            let left = (known_requests - requests, known_bytes.saturating_sub(bytes));
            *of_owner.get_mut() = left;
            if left.0 == 0 {
                of_owner.remove();
            }
        }
        self.release(link, bytes);
    }

    /// Counts bytes that must be held.
    pub fn hold_anyway(&mut self, link: LinkId, bytes: usize) {
        let known = self.links.entry(link).or_default();
        known.held_bytes += bytes;
        *self.bytes_of.entry(known.owner).or_default() += bytes;
        self.total_bytes += bytes;
    }

    /// Bytes are no longer held for a link.
    pub fn release(&mut self, link: LinkId, bytes: usize) {
        if let Some(known) = self.links.get_mut(&link) {
            known.held_bytes -= bytes;
            self.total_bytes -= bytes;
            if let Entry::Occupied(mut of_owner) = self.bytes_of.entry(known.owner) {
                *of_owner.get_mut() -= bytes;
                if *of_owner.get() == 0 {
                    of_owner.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FREE_BYTES_SHARE;

    #[test]
    fn whatever_one_link_holds_there_is_room_for_others() {
        let mut clients = ClientLinks::default();
        let links: Vec<LinkId> = (0..20).map(LinkId::of_token).collect();
        let mut held = vec![];
        for (user, link) in (0..).zip(&links) {
            clients.add(*link, Owner::of_user(user));
            let before = clients.total_bytes;
            while clients.hold(*link, 1 << 16).is_ok() {}
            held.push(clients.total_bytes - before);
        }
        // One link alone holds a fifth; each one after it a fifth of what is left.
        assert!(held[0].abs_diff(GATEWAY_BYTES_MAX / (FREE_BYTES_SHARE + 1)) < 1 << 17);
        assert!(held.iter().all(|bytes| *bytes > 0) && held.is_sorted_by(|a, b| a >= b));
        assert!(clients.total_bytes <= GATEWAY_BYTES_MAX);
        // Once the first one has its replies, the last one has room again.
        clients.release(links[0], held[0]);
        assert_eq!(clients.hold(links[19], 10 << 20), Ok(()));
    }

    /// However many links it has.
    #[test]
    fn whatever_one_owner_holds_there_is_room_for_others() {
        let mut clients = ClientLinks::default();
        let (one, other) = (Owner::of_user(1), Owner::of_user(2));
        for token in 0..100 {
            let link = LinkId::of_token(token);
            clients.add(link, one);
            while clients.hold(link, 1 << 16).is_ok() {}
        }
        assert!(clients.total_bytes.abs_diff(GATEWAY_BYTES_MAX / 2) < 1 << 17);
        let full = clients.hold(LinkId::of_token(99), 1 << 16);
        assert_eq!(full, Err(RefusalReason::TooManyOwnerBytes));
        let free = LinkId::of_token(100);
        clients.add(free, other);
        assert_eq!(clients.hold(free, 64 << 20), Ok(()));
        // What it releases is there again, and nothing is left of an owner that has gone.
        clients.release(LinkId::of_token(0), 1 << 27);
        assert_eq!(clients.hold(LinkId::of_token(99), 1 << 16), Ok(()));
        clients.release(free, 64 << 20);
        assert_eq!(clients.bytes_of.len(), 1);
    }

    #[test]
    fn requests_of_an_owner_are_counted_over_its_links() {
        let mut clients = ClientLinks::default();
        let (owner, links) = (Owner::of_user(1), [1, 2].map(LinkId::of_token));
        for link in links {
            clients.add(link, owner);
            for _ in 0..3 {
                clients.hold_request(link, 100).unwrap();
            }
        }
        assert_eq!((clients.requests_of(owner), clients.total_bytes), ((6, 600), 600));
        assert_eq!(clients.requests_of(Owner::of_user(2)), (0, 0));
        clients.release_requests(links[0], 1, 100);
        clients.release_requests(links[1], 3, 300);
        assert_eq!((clients.requests_of(owner), clients.total_bytes), ((2, 200), 200));
        clients.release_requests(links[0], 2, 200);
        assert_eq!((clients.requests_of.len(), clients.total_bytes), (0, 0));
    }

    #[test]
    fn a_session_that_goes_leaves_nothing() {
        let mut clients = ClientLinks::default();
        let [one, other] = [1, 2].map(LinkId::of_token);
        clients.add(one, Owner::of_user(1));
        for session in 0..LINK_SESSIONS_MAX as u32 {
            assert_eq!(clients.add_session(session, one), Ok(()));
        }
        let more = LINK_SESSIONS_MAX as u32;
        assert_eq!(clients.add_session(more, one), Err(RefusalReason::TooManyLinkSessions));
        assert_eq!(clients.add_session(more, other), Ok(()));
        for instrument in 0..SESSION_INSTRUMENTS_MAX as u32 {
            assert_eq!(clients.add_instrument(7, instrument), Ok(()));
        }
        let refused = clients.add_instrument(7, 1 << 20);
        assert_eq!(refused, Err(RefusalReason::TooManySessionInstruments));
        assert_eq!(clients.remove_session(7).len(), SESSION_INSTRUMENTS_MAX);
        assert_eq!((clients.link_of(7), clients.link_of(8)), (None, Some(one)));
        for session in clients.sessions_of(one) {
            clients.remove_session(session);
        }
        clients.remove(one);
        assert_eq!(clients.total_bytes, SESSION_BYTES);
        assert_eq!(clients.ids().collect::<Vec<LinkId>>(), [other]);
    }
}
