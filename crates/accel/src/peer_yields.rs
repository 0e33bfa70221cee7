//! Whether a thread may yield its CPU to a peer that is on the same one.
//!
//! A yield that the peer answers saves a sleep and a wake-up. One that a third thread uses may last
//! a whole slice of the scheduler. A message that comes meanwhile waits, while a sleeping thread
//! would run at once. So a thread whose yields were lost several times in a row makes none for some
//! time. That time doubles with each further one (exponential back-off). Threads that lose some
//! yields and get answers to others are left to `contention`.

use std::cell::Cell;

/// A wait that ends without an answer has lost its yields if they took so long, ns; shorter ones
/// went to threads that wait for messages themselves.
pub const LOST_NS: u64 = 100_000;

/// Losses in a row without a pause.
const LOSSES_FREE: u32 = 8;

/// A pause is at most 2 to the power of this times as long as what was lost.
const LEVEL_MAX: u32 = 8;

/// What the yields of a thread were like.
#[derive(Debug, Clone, Copy)]
struct BackOff {
    /// Losses since the last answer.
    losses: u32,
    /// Until then there are no yields.
    paused_until_ns: u64,
}

impl BackOff {
    const NEW: BackOff = BackOff { losses: 0, paused_until_ns: 0 };

    fn is_over(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        if self.paused_until_ns != 0 && now_ns() >= self.paused_until_ns {
            self.paused_until_ns = 0;
        }
        self.paused_until_ns == 0
    }

    fn note_lost(&mut self, lost_ns: u64, now_ns: u64) {
        self.losses = (self.losses + 1).min(LOSSES_FREE + 1 + LEVEL_MAX);
        if let Some(level) = self.losses.checked_sub(LOSSES_FREE + 1) {
            self.paused_until_ns = now_ns.saturating_add(lost_ns.saturating_mul(1 << level));
        }
    }

    fn note_answer(&mut self) {
        self.losses = 0;
    }
}

std::thread_local! {
    static BACK_OFF: Cell<BackOff> = const { Cell::new(BackOff::NEW) };
}

fn change<R>(change: impl FnOnce(&mut BackOff) -> R) -> R {
    let mut back_off = BACK_OFF.get();
    let result = change(&mut back_off);
    BACK_OFF.set(back_off);
    result
}

/// Whether this thread may yield to its peer.
#[inline]
pub fn may_yield(now_ns: impl FnOnce() -> u64) -> bool {
    change(|back_off| back_off.is_over(now_ns))
}

/// A wait has lost [`LOST_NS`] or more.
#[cold]
pub fn note_lost(lost_ns: u64, now_ns: u64) {
    change(|back_off| back_off.note_lost(lost_ns, now_ns));
}

/// A yield was answered.
#[inline]
pub fn note_answer() {
    change(BackOff::note_answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: u64 = 3_000_000;

    /// The pause after a loss, in its length.
    fn pause(back_off: &mut BackOff) -> u64 {
        back_off.note_lost(LOST, 1_000);
        let end_ns = back_off.paused_until_ns;
        if end_ns > 0 {
            assert!(!back_off.is_over(|| end_ns - 1) && back_off.is_over(|| end_ns));
        }
        assert!(back_off.is_over(|| panic!("the clock was read")));
        end_ns.saturating_sub(1_000) / LOST
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut back_off = BackOff::NEW;
        (0..LOSSES_FREE).for_each(|_| assert_eq!(pause(&mut back_off), 0));
        let pauses = [(); 11].map(|()| pause(&mut back_off));
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn an_answer_forgets_losses() {
        let mut back_off = BackOff::NEW;
        for _ in 0..100 {
            (0..LOSSES_FREE).for_each(|_| assert_eq!(pause(&mut back_off), 0));
            back_off.note_answer();
        }
    }
}
