//! Whether the program's connections are short. What the two ends of a connection spend until they
//! share memory pays only if it lasts. So a program whose connections end early begins the search
//! for the other end later, when a connection has lasted longer than those before. Until then it
//! does not ask for the connection's own address either.
//!
//! A new record in the ledger takes a new page of memory now and then. That costs more than all
//! else that a short connection needs of this library. So once a process has closed many, the next
//! one uses the record that was closed last, which is still in a cache.

use std::sync::atomic::{AtomicU32, Ordering};

use nm_ring::ledger::{KernelReason, Record};

use crate::lock::Lock;

/// A connection that ends before it has made so many data calls is short.
const SHORT_CALLS: u32 = 256;

/// Short connections in a row after which the next one is expected to be short.
const STREAK_MIN: u32 = 8;

/// Short connections in a row.
static STREAK: AtomicU32 = AtomicU32::new(0);

/// A connection has ended after so many data calls, through the kernel and through memory.
pub fn connection_ended(calls: u32) {
    if calls >= SHORT_CALLS {
        STREAK.store(0, Ordering::Relaxed);
    } else if STREAK.load(Ordering::Relaxed) < STREAK_MIN {
        STREAK.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the next connection is expected to be short.
pub fn is_expected() -> bool {
    STREAK.load(Ordering::Relaxed) >= STREAK_MIN
}

/// Data calls of a new connection before which it does not look for its other end.
pub fn first_attempt() -> u32 {
    if is_expected() { SHORT_CALLS } else { 0 }
}

/// Short connections of a process that stay in the ledger with a record each, for its readers. Of
/// later ones it has sums.
const LISTED_MAX: u32 = 256;

/// Most records that wait to be used again.
const REUSABLE_MAX: usize = 64;

/// Records of short connections that this process has closed.
struct ClosedRecords {
    /// Count of those that stay in the ledger.
    listed: u32,
    /// The others as a stack: each with its generation at that time.
    reusable: [Option<(&'static Record, u32)>; REUSABLE_MAX],
    count: usize,
}

impl ClosedRecords {
    const NONE: ClosedRecords =
        ClosedRecords { listed: 0, reusable: [None; REUSABLE_MAX], count: 0 };

    fn push(&mut self, record: &'static Record) {
        if self.listed < LISTED_MAX {
            self.listed += 1;
        } else if let Some(place) = self.reusable.get_mut(self.count) {
            *place = Some((record, record.generation()));
            self.count += 1;
        }
    }

    fn pop(&mut self) -> Option<(&'static Record, u32)> {
        self.count = self.count.checked_sub(1)?;
        self.reusable[self.count].take()
    }
}

static CLOSED_RECORDS: Lock<ClosedRecords> = Lock::new(ClosedRecords::NONE);

/// The record of a connection that has made so many data calls and has not joined was closed by its
/// last process.
pub fn record_closed(record: &'static Record, calls: u32) {
    if calls < SHORT_CALLS
        && record.reason() == KernelReason::None
        && let Some(mut closed) = CLOSED_RECORDS.try_lock()
    {
        closed.push(record);
    }
}

/// A record that may be reclaimed in this generation.
pub fn reusable_record() -> Option<(&'static Record, u32)> {
    CLOSED_RECORDS.try_lock()?.pop()
}

/// In the child of a fork: the parent goes on with its records.
pub fn forked_child() {
    CLOSED_RECORDS.reset();
    if let Some(mut closed) = CLOSED_RECORDS.try_lock() {
        *closed = ClosedRecords::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_ring::ledger::Ledger;

    /// The only test of this binary that ends connections: the count is one of the process.
    #[test]
    fn connections_look_for_their_other_ends_later_while_the_ones_before_were_short() {
        (0..STREAK_MIN - 1).for_each(|_| connection_ended(3));
        assert_eq!(first_attempt(), 0);
        connection_ended(0);
        assert_eq!(first_attempt(), SHORT_CALLS);
        connection_ended(SHORT_CALLS);
        assert_eq!(first_attempt(), 0);
        (0..STREAK_MIN).for_each(|_| connection_ended(SHORT_CALLS - 1));
        assert_eq!(first_attempt(), SHORT_CALLS);
    }

    #[test]
    fn record_closed_last_is_used_again_once_enough_are_listed() {
        let (ledger, _file) = Ledger::create(1, "test", "", 0).unwrap();
        let ledger: &'static Ledger = Box::leak(Box::new(ledger));
        let mut closed = ClosedRecords::NONE;
        let close_all = |closed: &mut ClosedRecords, count: usize| {
            let records: Vec<_> = (0..count).map(|_| ledger.claim(1, 0).unwrap()).collect();
            records.iter().for_each(|record| closed.push(record));
            records
        };
        close_all(&mut closed, LISTED_MAX as usize);
        assert!(closed.pop().is_none());
        let records = close_all(&mut closed, REUSABLE_MAX + 1);
        for record in records[..REUSABLE_MAX].iter().rev() {
            let (found, generation) = closed.pop().unwrap();
            assert!(std::ptr::eq(found, *record) && generation == record.generation());
        }
        assert!(closed.pop().is_none());
    }
}
