//! Sleeping on a word of shared memory until another thread or process wakes the sleeper.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::thread::futex;

/// `futex(FUTEX_WAIT)`—Sleeps for at most `limit` while `word` has the value `expected`. May return
/// early; the caller checks its condition again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    // Woken, value changed, interrupted or timed out: the caller checks its condition in each case.
    let _ = futex::wait(word, futex::Flags::empty(), expected, limit.as_ref());
}

/// `futex(FUTEX_WAKE)`—Wakes one sleeper on `word`, if there is one.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// `futex(FUTEX_WAKE)`—Wakes all sleepers on `word`.
pub fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn changed_word_does_not_sleep_and_a_sleeper_is_woken() {
        let word = AtomicU32::new(1);
        wait(&word, 0, Duration::from_secs(1_000));
        wait(&word, 1, Duration::from_millis(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 1 {
                    wait(&word, 1, Duration::from_secs(1_000));
                }
            });
            word.store(0, Ordering::SeqCst);
            wake(&word);
        });
    }
}
