//! Attempts that may be in vain: made ever again while they pay, else now and then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// After so many failures in a row, one of so many attempts is made.
const TRIAL_EVERY: u32 = 16;

/// What to do about the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Make it: the last ones succeeded, or few have failed.
    Make,
    /// Make it, thoroughly: it finds out whether attempts succeed again.
    Trial,
    /// Leave it out.
    LeaveOut,
}

/// Attempts of one kind that failed since the last one that succeeded.
#[derive(Debug, Default)]
pub struct FailedAttempts(AtomicU32);

impl FailedAttempts {
    /// None.
    pub const fn new() -> FailedAttempts {
        FailedAttempts(AtomicU32::new(0))
    }

    /// Forgets them.
    pub fn reset(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Counts one more failure; returns how many there are.
    pub fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Notes how an attempt ended.
    pub fn note(&self, success: bool) {
        if success {
            self.reset();
        } else {
            self.add();
        }
    }

    /// What to do about the next attempt. One that is left out counts as a failure.
    #[inline]
    pub fn next(&self) -> Next {
        match self.0.load(Ordering::Relaxed) {
            0..TRIAL_EVERY => Next::Make,
            failed if FailedAttempts::is_trial(failed) => Next::Trial,
            _ => {
                self.add();
                Next::LeaveOut
            }
        }
    }

    /// Whether to make the next attempt: see [`FailedAttempts::next`].
    #[inline]
    pub fn is_next_worth_it(&self) -> bool {
        self.next() != Next::LeaveOut
    }

    /// Whether the attempt after so many failures is a trial.
    pub fn is_trial(failed: u32) -> bool {
        failed.is_multiple_of(TRIAL_EVERY)
    }

    /// Whether so many failures say that the next attempt will fail too.
    pub fn are_many(failed: u32) -> bool {
        failed > TRIAL_EVERY
    }
}

/// The spin budget of a socket that joins: short while the spins of the others are in vain, because
/// each of hundreds would learn it anew.
pub mod first_budget {
    use super::{AtomicU64, Ordering};

    /// Spins in vain of one socket in a row after which the next one begins with short ones.
    const VAIN_SPINS: u32 = 8;

    static BUDGET_NS: AtomicU64 = AtomicU64::new(u64::MAX);

    /// The budget, ns; the settings may allow less.
    pub fn ns() -> u64 {
        BUDGET_NS.load(Ordering::Relaxed)
    }

    /// A socket's spin has found bytes.
    #[inline]
    pub fn note_success() {
        if ns() != u64::MAX {
            BUDGET_NS.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// So many spins of a socket in a row were in vain.
    pub fn note_failures(count: u32, shortest_ns: u64) {
        if count == VAIN_SPINS {
            BUDGET_NS.store(shortest_ns, Ordering::Relaxed);
        }
    }
}

/// After so many sends to a peer that is behind, one waits for the peer.
const SENDS_PER_WAIT: u32 = 64;

/// Sends since the last wait that had to go through the kernel because the peer had not received
/// earlier ones. A stream without a pause would stay there.
#[derive(Debug, Default)]
pub struct SendsToPeerBehind(AtomicU32);

impl SendsToPeerBehind {
    /// None.
    pub const fn new() -> SendsToPeerBehind {
        SendsToPeerBehind(AtomicU32::new(0))
    }

    /// Forgets them.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Notes a send that memory could not take; whether it should wait for the peer.
    pub fn is_wait_due(&self, peer_is_behind: bool) -> bool {
        if !peer_is_behind {
            self.reset();
            return false;
        }
        let count = self.0.load(Ordering::Relaxed) + 1;
        let is_due = count >= SENDS_PER_WAIT;
        self.0.store(if is_due { 0 } else { count }, Ordering::Relaxed);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_sends_to_a_peer_behind_waits() {
        let sends = SendsToPeerBehind::new();
        let waits: Vec<u32> = (1..=200).filter(|_| sends.is_wait_due(true)).collect();
        assert_eq!(waits, [64, 128, 192]);
        assert!(!sends.is_wait_due(false), "the peer has received all");
        assert_eq!((1..=64).find(|_| sends.is_wait_due(true)), Some(64), "they begin anew");
    }

    /// The only test of this binary that spins in vain: the budget is one of the process.
    #[test]
    fn sockets_begin_with_short_spins_while_those_of_others_are_in_vain() {
        (1..8).for_each(|count| first_budget::note_failures(count, 2_000));
        assert_eq!(first_budget::ns(), u64::MAX);
        first_budget::note_failures(8, 2_000);
        assert_eq!(first_budget::ns(), 2_000);
        first_budget::note_success();
        assert_eq!(first_budget::ns(), u64::MAX);
    }

    #[test]
    fn after_many_failures_one_attempt_of_sixteen_is_made() {
        let failed = FailedAttempts::new();
        let mut made = vec![];
        for attempt in 0..64 {
            if failed.is_next_worth_it() {
                made.push(attempt);
                failed.note(false);
            }
        }
        assert_eq!(made, (0..17).chain([32, 48]).collect::<Vec<_>>());
        assert!(failed.is_next_worth_it());
        failed.note(true);
        assert!((0..16).all(|_| failed.is_next_worth_it()), "one success, and all are made");
    }
}
