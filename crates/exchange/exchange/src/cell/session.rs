//! What a cell keeps of a session on one instrument: which of its requests were executed with which
//! outcome, and its latest events.

use std::collections::VecDeque;

use nm_book::codec;
use nm_book::order::{Event, UserId};
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Owner, Value};

use crate::limits::{EVENTS_KEPT_MAX, OUTCOMES_MAX};

/// Gap in the sequence numbers of a session's events when the books were lost: the session sees the
/// gap, and a resend request tells it that the events in it are unknown.
pub const LOST_BOOKS_GAP: u64 = 1 << 32;

/// The outcome of a request that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Sequence number of the request within its session.
    pub client_seq: u64,
    /// Sequence number of the request among all that were executed on this instrument, from 1 on.
    pub output_seq: u64,
    /// Hash of the events that it caused (FNV-1a of their codes).
    pub events_hash: u64,
}

/// What is kept of a session on one instrument.
#[derive(Debug, Default)]
pub struct Session {
    /// Who it belongs to: as its first request here says.
    pub owner: Owner,
    /// Gateway of its latest request.
    pub gateway: u16,
    /// Sequence number of its last request that was executed.
    pub last_request_seq: u64,
    /// Sequence number of its last event.
    pub last_event_seq: u64,
    /// Its live orders. Not saved: the book has them.
    pub live_orders: u32,
    outcomes: VecDeque<Outcome>,
    /// Its latest events, as far as they are not acknowledged.
    kept: VecDeque<Event>,
}

impl Session {
    /// One of an owner that has sent nothing yet, at this gateway.
    pub fn new(owner: Owner, gateway: u16) -> Session {
        Session { owner, gateway, ..Session::default() }
    }

    /// Sequence number of the last event that is no longer kept.
    fn dropped_seq(&self) -> u64 {
        debug_assert!(self.kept.len() as u64 <= self.last_event_seq);
        self.last_event_seq - self.kept.len() as u64
    }

    /// Drops its events up to the one that it acknowledges.
    pub fn acknowledge(&mut self, event_seq: u64) {
        while self.dropped_seq() < event_seq && self.kept.pop_front().is_some() {}
    }

    /// Counts its live orders: each begins with one event and ends with another.
    fn count_orders(&mut self, user: UserId, event: &Event) {
        match *event {
            Event::Accepted { .. } => self.live_orders += 1,
            Event::Cancelled { .. } => self.live_orders -= 1,
            Event::Traded { maker_user, taker_user, maker_left, taker_left, .. } => {
                self.live_orders -= u32::from(maker_user == user && maker_left == 0)
                    + u32::from(taker_user == user && taker_left == 0);
            }
            _ => {}
        }
    }

    /// Adds an event to its stream; `user` is the session.
    pub fn push_event(&mut self, user: UserId, event: Event) {
        self.count_orders(user, &event);
        if self.kept.len() == EVENTS_KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
        self.last_event_seq += 1;
        debug_assert!(self.kept.len() <= EVENTS_KEPT_MAX);
    }

    /// Begins in books that do not know the session; its event numbers leave a gap, because which
    /// events came between the last one that it has and the end of the lost books is unknown.
    pub fn begin_after_lost_books(&mut self, acknowledged: u64) {
        self.last_event_seq = acknowledged.min(u64::MAX / 2) + LOST_BOOKS_GAP;
    }

    /// It is in a copy of an earlier state from which its cell begins again (see
    /// [`super::restored`]): it has seen other events than those that follow.
    pub fn begin_again(&mut self) {
        self.outcomes.clear();
        self.kept.clear();
        self.last_event_seq = self.last_event_seq.saturating_add(LOST_BOOKS_GAP);
    }

    /// Whether its cell has begun again, and none of its requests was executed since: only then is
    /// no outcome kept of its last one.
    pub fn is_cut(&self) -> bool {
        self.outcomes.is_empty() && self.last_request_seq > 0
    }

    /// Adds the outcome of its next request.
    pub fn push_outcome(&mut self, outcome: Outcome) {
        assert!(
            outcome.client_seq > self.last_request_seq,
            "request {} is executed after request {}",
            outcome.client_seq,
            self.last_request_seq
        );
        self.last_request_seq = outcome.client_seq;
        if self.outcomes.len() == OUTCOMES_MAX {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(outcome);
    }

    /// The outcome of one of its requests, if that is kept.
    pub fn outcome(&self, client_seq: u64) -> Option<Outcome> {
        self.outcomes.iter().find(|known| known.client_seq == client_seq).copied()
    }

    /// Sequence number before the first event that can be resent after `acknowledged`.
    pub fn resend_start(&self, acknowledged: u64) -> u64 {
        acknowledged.max(self.dropped_seq()).min(self.last_event_seq)
    }

    /// Its events after a number that [`Session::resend_start`] gave.
    pub fn events_after(&self, start: u64) -> impl Iterator<Item = &Event> {
        self.kept.iter().skip(start.saturating_sub(self.dropped_seq()) as usize)
    }

    /// Appends all of it.
    pub fn save(&self, bytes: &mut Vec<u8>) {
        self.owner.put(bytes);
        let (gateway, outcomes) = (u64::from(self.gateway), self.outcomes.len() as u64);
        bytes.put_u64s(&[gateway, self.last_request_seq, outcomes]);
        for outcome in &self.outcomes {
            let Outcome { client_seq, output_seq, events_hash } = *outcome;
            bytes.put_u64s(&[client_seq, output_seq, events_hash]);
        }
        bytes.put_u64s(&[self.last_event_seq, self.kept.len() as u64]);
        self.kept.iter().for_each(|event| codec::write_event(event, bytes));
    }

    /// Reads what [`Session::save`] appended.
    ///
    /// # Errors
    /// If the bytes are not a saved session.
    pub fn load(reader: &mut Reader<'_>) -> Result<Session, DecodeError> {
        let owner = Owner::take("owner", reader)?;
        let gateway = u16::try_from(reader.u64("gateway")?)
            .map_err(|_| DecodeError::invalid("gateway", "is larger than 65535"))?;
        let last_request_seq = reader.u64("last_request_seq")?;
        let count = reader.u64("outcomes")?;
        if count > OUTCOMES_MAX as u64 {
            return Err(DecodeError::invalid("outcomes", "are more than are kept"));
        }
        let mut outcomes = VecDeque::with_capacity(count as usize);
        for _ in 0..count {
            outcomes.push_back(Outcome {
                client_seq: reader.u64("client_seq")?,
                output_seq: reader.u64("output_seq")?,
                events_hash: reader.u64("events_hash")?,
            });
        }
        let (last_event_seq, count) = (reader.u64("last_event_seq")?, reader.u64("events")?);
        if count > last_event_seq || count > EVENTS_KEPT_MAX as u64 {
            return Err(DecodeError::invalid("events", "are more than are kept"));
        }
        let mut kept = VecDeque::with_capacity(count as usize);
        for _ in 0..count {
            kept.push_back(codec::read_event(reader)?);
        }
        let live_orders = 0;
        Ok(Session {
            owner,
            gateway,
            last_request_seq,
            last_event_seq,
            live_orders,
            outcomes,
            kept,
        })
    }
}

/// Appends a session.
pub fn write_session(session: UserId, known: &Session, bytes: &mut Vec<u8>) {
    bytes.put_u64s(&[u64::from(session)]);
    known.save(bytes);
}

/// Reads what [`write_session`] appended.
///
/// # Errors
/// If the bytes are not a session.
pub fn read_session(reader: &mut Reader<'_>) -> Result<(UserId, Session), DecodeError> {
    let session = UserId::try_from(reader.u64("session")?)
        .map_err(|_| DecodeError::invalid("session", "is larger than a session number"))?;
    Ok((session, Session::load(reader)?))
}

/// The sessions that an event of a request is for: the owners of the orders that it names, or the
/// session that sent the request.
pub fn event_recipients(event: &Event, requester: UserId) -> impl Iterator<Item = UserId> {
    let users = event.users();
    let users = if users == [None, None] { [Some(requester), None] } else { users };
    users.into_iter().flatten()
}
