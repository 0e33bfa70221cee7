//! What a cell keeps of a session on one instrument: which of its requests were handled and what
//! became of them, and what it was told.

use std::collections::VecDeque;

use nm_book::codec;
use nm_book::order::{Event, UserId};
use nm_codec::Fields;

/// Outcomes that are kept for each session and instrument, to be told again.
pub const OUTCOMES: usize = 64;

/// Events that are kept at most for each session and instrument until it says that it has them.
pub const KEPT_MAX: usize = 1024;

/// By so much the numbers of a session's events jump when the books were lost: it sees a gap, and
/// is told that nobody knows what was in it.
pub const LOST_BOOKS: u64 = 1 << 32;

/// What became of a request that was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Number of the request within its session.
    pub client_seq: u64,
    /// Number of the request among all that were handled on this instrument, from 1 on.
    pub output_seq: u64,
    /// Hash of the events that it caused (FNV-1a of their codes).
    pub events_hash: u64,
}

/// What is kept of a session on one instrument.
#[derive(Debug, Default)]
pub struct Session {
    /// Gateway through which it spoke last.
    pub gateway: u16,
    /// Number of its last request that was handled.
    pub last: u64,
    /// Number of the last event that it was told.
    pub told: u64,
    outcomes: VecDeque<Outcome>,
    /// Its last events, those that it may not have.
    kept: VecDeque<Event>,
}

impl Session {
    /// Number of the last event that is not kept any more.
    fn dropped(&self) -> u64 {
        self.told - self.kept.len() as u64
    }

    /// It has its events up to a number.
    pub fn has(&mut self, acknowledged: u64) {
        while self.dropped() < acknowledged && self.kept.pop_front().is_some() {}
    }

    /// It is told an event.
    pub fn tell(&mut self, event: Event) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
        self.told += 1;
    }

    /// It is taken up by books that do not know it; its numbers leave a gap, for nobody knows what
    /// it was told between what it has and the end of the books before.
    pub fn begins_anew(&mut self, acknowledged: u64) {
        self.told = acknowledged.min(u64::MAX / 2) + LOST_BOOKS;
    }

    /// A request of it was handled.
    pub fn done(&mut self, outcome: Outcome) {
        self.last = outcome.client_seq;
        if self.outcomes.len() == OUTCOMES {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(outcome);
    }

    /// What became of one of its requests, if that is kept.
    pub fn outcome(&self, client_seq: u64) -> Option<Outcome> {
        self.outcomes.iter().find(|known| known.client_seq == client_seq).copied()
    }

    /// Number before the first event that can be told after number `acknowledged`.
    pub fn recalled(&self, acknowledged: u64) -> u64 {
        acknowledged.max(self.dropped()).min(self.told)
    }

    /// Its events after a number that [`Session::recalled`] gave.
    pub fn after(&self, before: u64) -> impl Iterator<Item = &Event> {
        self.kept.iter().skip(before.saturating_sub(self.dropped()) as usize)
    }

    /// Appends all of it.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        let (gateway, outcomes) = (u64::from(self.gateway), self.outcomes.len() as u64);
        codec::put(bytes, &[gateway, self.last, outcomes]);
        for outcome in &self.outcomes {
            let Outcome { client_seq, output_seq, events_hash } = *outcome;
            codec::put(bytes, &[client_seq, output_seq, events_hash]);
        }
        codec::put(bytes, &[self.told, self.kept.len() as u64]);
        self.kept.iter().for_each(|event| codec::write_event(event, bytes));
    }

    /// Reads one from the front; none if the bytes are none.
    pub fn load(fields: &mut Fields<'_>) -> Option<Session> {
        let gateway = u16::try_from(fields.u64().ok()?).ok()?;
        let last = fields.u64().ok()?;
        let (mut outcomes, mut kept) = (VecDeque::new(), VecDeque::new());
        for _ in 0..fields.u64().ok()? {
            outcomes.push_back(Outcome {
                client_seq: fields.u64().ok()?,
                output_seq: fields.u64().ok()?,
                events_hash: fields.u64().ok()?,
            });
        }
        let (told, count) = (fields.u64().ok()?, fields.u64().ok()?);
        for _ in 0..count {
            let mut reader = nm_codec::Reader::new(fields.0);
            kept.push_back(codec::read_event(&mut reader).ok()?);
            fields.0 = reader.rest();
        }
        (count <= told).then_some(Session { gateway, last, told, outcomes, kept })
    }
}

/// Who is told of an event of a request: the users whose orders it is about, or who asked.
pub fn event_recipients(event: &Event, asker: UserId) -> impl Iterator<Item = UserId> {
    let users = event.users();
    let users = if users == [None, None] { [Some(asker), None] } else { users };
    users.into_iter().flatten()
}
