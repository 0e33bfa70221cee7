//! A consumer's side of the lines. Doubles are removed, and messages come in order. What is missing
//! is asked for, first from the request server, then by a snapshot.

use std::collections::BTreeMap;

use crate::limits::{EARLY_MESSAGES_MAX, REQUESTED_MESSAGES};
use crate::mold::{END_OF_SESSION, Fault, Header, Packet, Session};

/// How long the other line may take to bring what is missing, ns.
const OTHER_LINE_NS: u64 = 2_000_000;

/// How long an answer is waited for, ns.
const ANSWER_NS: u64 = 50_000_000;

/// Requests without success until a snapshot is taken.
const TRIES: u32 = 10;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Send this to the request server.
    Request(Header),
    /// Take a snapshot, and go on with [`Receiver::resume`].
    Snapshot,
}

/// What has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Datagrams that are no packets.
    pub damaged: u64,
    /// Messages that were delivered.
    pub messages: u64,
    /// Messages that came once more.
    pub doubles: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Messages that none of the lines had brought when they were asked for.
    pub missing: u64,
    /// Snapshots that were taken.
    pub snapshots: u64,
}

/// Where a consumer stands.
#[derive(Debug)]
pub struct Receiver {
    session: Option<Session>,
    /// Number of the next message.
    next: u64,
    /// Number behind the last one that exists, as far as packets say.
    end: u64,
    early: BTreeMap<u64, Vec<u8>>,
    /// Since when something is missing, ns.
    missing_ns: Option<u64>,
    requested_ns: u64,
    tries: u32,
    awaits_snapshot: bool,
    /// Whether the session has ended and all of it has come.
    has_ended: bool,
    /// What has come.
    pub counts: Counts,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            session: None,
            next: 1,
            end: 1,
            early: BTreeMap::new(),
            missing_ns: None,
            requested_ns: 0,
            tries: 0,
            awaits_snapshot: false,
            has_ended: false,
            counts: Counts::default(),
        }
    }
}

impl Receiver {
    /// The session that is received.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// Number of the next message.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether nothing that is known to exist is missing.
    pub fn is_complete(&self) -> bool {
        self.session.is_some() && self.next >= self.end && !self.awaits_snapshot
    }

    /// Whether the session has ended, and all of it was delivered.
    pub fn has_ended(&self) -> bool {
        self.has_ended && self.is_complete()
    }

    /// A datagram came. `deliver` gets the messages that are next.
    ///
    /// # Errors
    /// If it is no packet.
    pub fn on_packet(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        mut deliver: impl FnMut(&[u8]),
    ) -> Result<(), Fault> {
        let packet = Packet::read(bytes).inspect_err(|_| self.counts.damaged += 1)?;
        self.counts.packets += 1;
        let header = packet.header;
        if self.session != Some(header.session) {
            self.begin(header);
        }
        self.end = self.end.max(header.next());
        self.has_ended |= header.count == END_OF_SESSION;
        for (number, message) in packet.messages() {
            if number < self.next || self.early.contains_key(&number) {
                self.counts.doubles += 1;
            } else if number == self.next && !self.awaits_snapshot {
                self.next += 1;
                self.counts.messages += 1;
                deliver(message);
            } else if self.early.len() < EARLY_MESSAGES_MAX {
                self.early.insert(number, message.to_vec());
            }
        }
        self.catch_up(now_ns, deliver);
        Ok(())
    }

    /// Another session than before: its messages begin with number 1.
    fn begin(&mut self, header: Header) {
        let is_later = header.sequence > 1;
        *self = Receiver {
            session: Some(header.session),
            awaits_snapshot: is_later || self.session.is_some(),
            counts: self.counts,
            ..Receiver::default()
        };
    }

    fn catch_up(&mut self, now_ns: u64, mut deliver: impl FnMut(&[u8])) {
        while !self.awaits_snapshot
            && let Some(message) = self.early.remove(&self.next)
        {
            self.next += 1;
            self.counts.messages += 1;
            self.tries = 0;
            deliver(&message);
        }
        match self.next < self.end {
            true => drop(self.missing_ns.get_or_insert(now_ns)),
            false => (self.missing_ns, self.tries) = (None, 0),
        }
    }

    /// What is to be done now.
    pub fn act(&mut self, now_ns: u64) -> Option<Act> {
        if self.awaits_snapshot {
            return Some(Act::Snapshot);
        }
        let (session, missing_ns) = (self.session?, self.missing_ns?);
        let is_due = match self.tries {
            0 => now_ns >= missing_ns + OTHER_LINE_NS && now_ns >= self.requested_ns,
            _ => now_ns >= self.requested_ns + ANSWER_NS,
        };
        if !is_due {
            return None;
        }
        if self.tries == TRIES {
            self.awaits_snapshot = true;
            return Some(Act::Snapshot);
        }
        let until = self.early.first_key_value().map_or(self.end, |(number, _)| *number);
        let count = (until - self.next).min(u64::from(REQUESTED_MESSAGES)) as u16;
        self.counts.missing += if self.tries == 0 { u64::from(count) } else { 0 };
        self.counts.requests += 1;
        (self.requested_ns, self.tries) = (now_ns, self.tries + 1);
        Some(Act::Request(Header { session, sequence: self.next, count }))
    }

    /// Goes on behind a snapshot, whose books are those before message `next` of a session. A
    /// snapshot of another session is taken again.
    pub fn resume(
        &mut self,
        session: Session,
        next: u64,
        now_ns: u64,
        deliver: impl FnMut(&[u8]),
    ) -> bool {
        if self.session != Some(session) || next < self.next {
            return false;
        }
        self.counts.snapshots += 1;
        self.next = next;
        self.end = self.end.max(next);
        self.early = self.early.split_off(&next);
        (self.awaits_snapshot, self.missing_ns, self.tries) = (false, None, 0);
        self.catch_up(now_ns, deliver);
        true
    }
}
