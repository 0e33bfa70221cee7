//! The locks of a pipe: held by process id, so that they work across a fork and survive the death
//! of their owner.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::{futex, process};

use super::{Pipe, ProcessLock};

/// Attempts before the waiter sleeps to give the owner time.
const SPINS_BEFORE_SLEEP: u32 = 200;

/// Longest sleep between two attempts; a release without a wake-up is noticed after it.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Sleeps, cut short or not, after which the attempt is given up.
const SLEEPS_MAX: u32 = 20_000;

/// Time after which the attempt is given up.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Highest process id that Linux assigns (`PID_MAX_LIMIT`).
const PROCESS_ID_MAX: u32 = 1 << 22;

/// Result of an attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockOutcome {
    Acquired,
    /// The former owner died while it held the lock.
    TakenFromDeadProcess,
    TimedOut,
}

impl ProcessLock {
    #[inline(always)]
    fn lock(&self, owner: u32) -> LockOutcome {
        if self.try_lock(owner) { LockOutcome::Acquired } else { self.lock_slowly(owner) }
    }

    #[inline(always)]
    fn try_lock(&self, owner: u32) -> bool {
        self.owner.compare_exchange(0, owner, Acquire, Relaxed).is_ok()
    }

    #[cold]
    fn lock_slowly(&self, owner: u32) -> LockOutcome {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.owner.load(Relaxed) == 0 && self.try_lock(owner) {
                return LockOutcome::Acquired;
            }
            std::hint::spin_loop();
        }
        let deadline = Deadline::after(LOCK_TIMEOUT);
        for sleep_idx in 1..=SLEEPS_MAX {
            let holder = self.owner.load(Relaxed);
            if holder == 0 {
                if self.try_lock(owner) {
                    return LockOutcome::Acquired;
                }
                continue;
            }
            // No process has this id, so nobody holds the lock: the other end has overwritten it.
            if holder > PROCESS_ID_MAX && self.take_over(holder, owner) {
                return LockOutcome::TakenFromDeadProcess;
            }
            self.contended.store(1, Relaxed);
            futex::wait(&self.owner, holder, SLEEP_MAX);
            // Checked rarely: it costs some system calls, and a death is rare.
            if sleep_idx.is_power_of_two()
                && process::is_dead(holder)
                && self.take_over(holder, owner)
            {
                return LockOutcome::TakenFromDeadProcess;
            }
            if deadline.passed() {
                break;
            }
        }
        LockOutcome::TimedOut
    }

    fn take_over(&self, from: u32, owner: u32) -> bool {
        self.owner.compare_exchange(from, owner, Acquire, Relaxed).is_ok()
    }

    #[inline(always)]
    fn unlock(&self) {
        self.owner.store(0, Release);
        // Not ordered with the store: a sleeper that is missed retries after [`SLEEP_MAX`].
        if self.contended.load(Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.contended.store(0, Relaxed);
        futex::wake(&self.owner);
    }
}

impl<const BYTES: usize> Pipe<BYTES> {
    /// Locks the sending end for process `owner` (not zero). A lock whose owner has died is taken
    /// over. False if it could not be acquired within about a second. The lock is not recursive: a
    /// thread that holds it must not lock it again.
    #[inline(always)]
    pub fn lock_send(&self, owner: u32) -> bool {
        match self.sender.lock.lock(owner) {
            LockOutcome::Acquired => true,
            LockOutcome::TakenFromDeadProcess => {
                self.recover();
                true
            }
            LockOutcome::TimedOut => false,
        }
    }

    /// Locks the sending end if it is free.
    pub fn try_lock_send(&self, owner: u32) -> bool {
        self.sender.lock.try_lock(owner)
    }

    /// Unlocks the sending end.
    #[inline(always)]
    pub fn unlock_send(&self) {
        self.sender.lock.unlock();
    }

    /// Locks the receiving end, as [`Pipe::lock_send`] the sending end. An owner that died while it
    /// received has either consumed bytes or not, so nothing needs recovery.
    #[inline(always)]
    pub fn lock_receive(&self, owner: u32) -> bool {
        self.receiver.lock.lock(owner) != LockOutcome::TimedOut
    }

    /// Locks the receiving end if it is free.
    pub fn try_lock_receive(&self, owner: u32) -> bool {
        self.receiver.lock.try_lock(owner)
    }

    /// Unlocks the receiving end.
    #[inline(always)]
    pub fn unlock_receive(&self) {
        self.receiver.lock.unlock();
    }

    /// Processes that hold the sending end's lock and the receiving end's lock; zero means
    /// unlocked.
    pub fn lock_owners(&self) -> (u32, u32) {
        let owner = |word: &AtomicU32| word.load(Relaxed);
        (owner(&self.sender.lock.owner), owner(&self.receiver.lock.owner))
    }
}
