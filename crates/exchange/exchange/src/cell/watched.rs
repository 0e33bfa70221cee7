//! Sessions whose orders are cancelled when they are away, as a cell saves them, and the number of
//! the requests that do that.

use std::collections::BTreeMap;

use nm_book::order::UserId;
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Owner, Value};

use crate::limits::{WATCHED_MAX, is_within_quota};

/// Number of a request by which the exchange cancels the orders of a session.
pub const EXCHANGE_SEQ: u64 = 0;

/// What is known of a watched session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// After how long without a link its orders are cancelled, s; not 0.
    pub cancel_after_s: u32,
    /// Whose quota it counts for.
    pub owner: Owner,
}

impl Watch {
    /// A session that is watched no longer.
    pub const NO_LONGER: Watch = Watch { cancel_after_s: 0, owner: Owner::NOBODY };
}

/// Sessions whose orders are cancelled when they are away. Each owner has a quota of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchedSessions {
    of: BTreeMap<UserId, Watch>,
    own: BTreeMap<Owner, usize>,
}

impl WatchedSessions {
    /// What is known of a session, if it is watched.
    pub fn get(&self, session: UserId) -> Option<Watch> {
        self.of.get(&session).copied()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (UserId, Watch)> {
        self.of.iter().map(|(session, watch)| (*session, *watch))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether an owner may have this session watched.
    pub fn has_room(&self, session: UserId, owner: Owner) -> bool {
        let known = self.of.get(&session);
        let total = self.of.len();
        let own = self.own.get(&owner).copied().unwrap_or_default();
        known.is_some_and(|known| known.owner == owner)
            || total < WATCHED_MAX && is_within_quota(owner, (own, total), 1, WATCHED_MAX)
    }

    /// A session is watched from now on, or no longer. One too many is not.
    pub fn set(&mut self, session: UserId, watch: Watch) {
        if watch.cancel_after_s == 0 {
            self.remove(session);
        } else if self.has_room(session, watch.owner) {
            self.remove(session);
            self.of.insert(session, watch);
            *self.own.entry(watch.owner).or_default() += 1;
        }
    }

    /// A session is watched no longer.
    pub fn remove(&mut self, session: UserId) {
        let Some(known) = self.of.remove(&session) else { return };
        if let Some(own) = self.own.get_mut(&known.owner) {
            *own -= 1;
            if *own == 0 {
                self.own.remove(&known.owner);
            }
        }
    }

    /// Appends them.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        bytes.put_u32(self.of.len() as u32);
        for (session, Watch { cancel_after_s, owner }) in &self.of {
            bytes.put_u32(*session);
            bytes.put_u32(*cancel_after_s);
            owner.put(bytes);
        }
    }

    /// Reads what [`WatchedSessions::save`] appended.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn load(reader: &mut Reader<'_>) -> Result<WatchedSessions, DecodeError> {
        let mut all = WatchedSessions::default();
        for _ in 0..reader.u32("watched")? {
            let session = reader.u32("session")?;
            let cancel_after_s = reader.u32("cancel_after_s")?;
            let owner = Owner::take("owner", reader)?;
            all.of.insert(session, Watch { cancel_after_s, owner });
            *all.own.entry(owner).or_default() += 1;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_one_owner_has_watched_there_is_room_for_others() {
        let (one, other) = (Owner::of_user(1), Owner::of_user(2));
        let watch = |owner| Watch { cancel_after_s: 5, owner };
        let mut all = WatchedSessions::default();
        (0..2 * WATCHED_MAX as u32).for_each(|session| all.set(session, watch(one)));
        assert_eq!(all.len(), WATCHED_MAX / 2);
        all.set(u32::MAX, watch(other));
        assert_eq!(all.get(u32::MAX), Some(watch(other)));
        // One more of the first one only if another one goes.
        let more = WATCHED_MAX as u32;
        assert!(!all.has_room(more, one) && all.has_room(3, one));
        all.set(3, Watch { cancel_after_s: 0, owner: one });
        all.set(4, Watch { cancel_after_s: 0, owner: one });
        all.set(more, watch(one));
        assert!(all.get(more).is_some() && all.get(3).is_none());
        let mut bytes = vec![];
        all.save(&mut bytes);
        assert_eq!(WatchedSessions::load(&mut Reader::new(&bytes)), Ok(all));
    }
}
