//! What each owner has of a cell, for the quotas.
//!
//! **A quota is what is free.** An owner may have as much of a capacity as nobody has. Alone it may
//! have half of it, then another one half of the rest, and so on. So one owner never shuts others
//! out, and needs no number of its own.
//!
//! **What is refused once is refused always**, as long as copies of it may be under way.
//! Instruments and sessions that an operator removes therefore count for another minute. Their
//! sessions are refused as long: a copy of a request that was executed would be executed again.

use std::collections::{BTreeMap, VecDeque};

use nm_book::order::UserId;
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Holdings, Owner, Value};

use crate::limits::{RETIRED_NS, is_within_quota};

/// Instruments and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    pub instruments: u32,
    pub sessions: u32,
}

impl Places {
    pub const INSTRUMENT: Places = Places { instruments: 1, sessions: 0 };
    pub const SESSION: Places = Places { instruments: 0, sessions: 1 };

    pub fn put(self, bytes: &mut Vec<u8>) {
        bytes.put_u32(self.instruments);
        bytes.put_u32(self.sessions);
    }

    pub fn take(reader: &mut Reader<'_>) -> Result<Places, DecodeError> {
        Ok(Places { instruments: reader.u32("instruments")?, sessions: reader.u32("sessions")? })
    }

    pub fn holdings(self) -> Holdings {
        let Places { instruments, sessions } = self;
        Holdings { instruments: instruments.into(), sessions: sessions.into(), orders: 0 }
    }
}

/// What was removed and still counts.
#[derive(Debug, Clone, Copy)]
pub struct Owed {
    pub owner: Owner,
    /// The session that is refused meanwhile.
    pub session: Option<UserId>,
    /// What still counts as the owner's.
    pub of_owner: Places,
    /// What still counts for the limits of the cell.
    pub of_all: Places,
}

/// What owners have of a cell.
#[derive(Debug, Default)]
pub struct OwnerLedger {
    of: BTreeMap<Owner, Holdings>,
    /// Live orders of all.
    orders: u64,
    /// What was removed and still counts, the earliest first.
    owed: VecDeque<(u64, Owed)>,
    owed_instruments: usize,
    owed_sessions: usize,
    /// Until when the sessions that were removed are refused, ns.
    retired: BTreeMap<UserId, u64>,
}

impl OwnerLedger {
    /// What an owner has, and what it had and still counts.
    pub fn of(&self, owner: Owner) -> Holdings {
        self.of.get(&owner).copied().unwrap_or_default()
    }

    /// Live orders of all owners.
    pub fn orders(&self) -> u64 {
        self.orders
    }

    /// Instruments that were removed and still count for the limit of the cell.
    pub fn owed_instruments(&self) -> usize {
        self.owed_instruments
    }

    /// The same of sessions.
    pub fn owed_sessions(&self) -> usize {
        self.owed_sessions
    }

    /// Whether an operator has removed a session a moment ago.
    pub fn is_retired(&self, session: UserId) -> bool {
        !self.retired.is_empty() && self.retired.contains_key(&session)
    }

    /// Whether an owner may have one more of what it has `own` of, and all have `total` of `most`.
    pub fn has_room(owner: Owner, own: u64, total: usize, most: usize) -> bool {
        is_within_quota(owner, (own as usize, total), 1, most)
    }

    /// An owner has more.
    pub fn add(&mut self, owner: Owner, more: Holdings) {
        self.orders += more.orders;
        if owner.is_somebody() && more != Holdings::default() {
            let known = self.of.entry(owner).or_default();
            known.instruments += more.instruments;
            known.sessions += more.sessions;
            known.orders += more.orders;
        }
    }

    /// An owner has less.
    pub fn remove(&mut self, owner: Owner, less: Holdings) {
        self.orders -= less.orders;
        let Some(known) = self.of.get_mut(&owner) else { return };
        known.instruments -= less.instruments;
        known.sessions -= less.sessions;
        known.orders -= less.orders;
        if *known == Holdings::default() {
            self.of.remove(&owner);
        }
    }

    /// The live orders of an owner have changed by so many.
    pub fn change_orders(&mut self, owner: Owner, change: i64) {
        let orders = change.unsigned_abs();
        let change_of = Holdings { orders, ..Holdings::default() };
        if change > 0 { self.add(owner, change_of) } else { self.remove(owner, change_of) }
    }

    /// Something was removed at this time.
    pub fn owe(&mut self, now_ns: u64, owed: Owed) {
        self.push_owed(now_ns.saturating_add(RETIRED_NS), owed);
    }

    fn push_owed(&mut self, until_ns: u64, owed: Owed) {
        self.owed_instruments += owed.of_all.instruments as usize;
        self.owed_sessions += owed.of_all.sessions as usize;
        if let Some(session) = owed.session {
            self.retired.insert(session, until_ns);
        }
        self.owed.push_back((until_ns, owed));
    }

    /// What was removed long enough before this time does not count any more.
    pub fn settle(&mut self, now_ns: u64) {
        while let Some((until_ns, owed)) = self.owed.pop_front_if(|owed| owed.0 <= now_ns) {
            self.owed_instruments -= owed.of_all.instruments as usize;
            self.owed_sessions -= owed.of_all.sessions as usize;
            self.remove(owed.owner, owed.of_owner.holdings());
            if let Some(session) = owed.session
                && self.retired.get(&session) == Some(&until_ns)
            {
                self.retired.remove(&session);
            }
        }
    }

    /// Appends what does not follow from the instruments.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.owed.len() as u64);
        for (until_ns, Owed { owner, session, of_owner, of_all }) in &self.owed {
            bytes.put_u64(*until_ns);
            owner.put(bytes);
            session.put(bytes);
            of_owner.put(bytes);
            of_all.put(bytes);
        }
    }

    /// Reads what [`OwnerLedger::save`] appended.
    ///
    /// # Errors
    /// If it is something else.
    pub fn load(reader: &mut Reader<'_>) -> Result<OwnerLedger, DecodeError> {
        let mut ledger = OwnerLedger::default();
        for _ in 0..reader.u64("owed")? {
            let (until_ns, owner) = (reader.u64("until_ns")?, Owner::take("owner", reader)?);
            let session = <Option<UserId> as Value>::take("session", reader)?;
            let (of_owner, of_all) = (Places::take(reader)?, Places::take(reader)?);
            ledger.add(owner, of_owner.holdings());
            ledger.push_owed(until_ns, Owed { owner, session, of_owner, of_all });
        }
        Ok(ledger)
    }
}
