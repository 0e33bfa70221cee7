//! The locks of a pipe: by process id, so that they outlive a fork and a death.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::{futex, process};

use super::{Pipe, ProcessLock};

/// Looks at a lock before its owner is given time by sleeping.
const SPINS_BEFORE_SLEEP: u32 = 200;

/// Longest sleep between two looks; a release without a wake-up is seen after it.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Naps, cut short or not, after which a lock counts as held for ever.
const SLEEPS_MAX: u32 = 20_000;

/// Time after which a lock counts as held for ever.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Highest number of a process that Linux gives (`PID_MAX_LIMIT`).
const PROCESS_ID_MAX: u32 = 1 << 22;

/// How a lock was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockOutcome {
    Acquired,
    /// Its owner has died.
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
            // No process has this number, so nobody holds the lock: the other end has scribbled.
            if holder > PROCESS_ID_MAX && self.take_over(holder, owner) {
                return LockOutcome::TakenFromDeadProcess;
            }
            self.contended.store(1, Relaxed);
            futex::wait(&self.owner, holder, SLEEP_MAX);
            // Costs some system calls, and a death is rare.
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
        // Not ordered with the store: a sleeper that is missed comes back after its nap.
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
    /// Takes the sending end for process `owner` (not zero). A lock whose owner has died is taken
    /// from it. False if it could not be had within about a second. It does not count: a thread
    /// that holds it must not take it again.
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

    /// Takes the sending end if it is free.
    pub fn try_lock_send(&self, owner: u32) -> bool {
        self.sender.lock.try_lock(owner)
    }

    /// Gives the sending end back.
    #[inline(always)]
    pub fn unlock_send(&self) {
        self.sender.lock.unlock();
    }

    /// Takes the receiving end, as [`Pipe::lock_send`] the sending one. Who died while it received
    /// has either taken bytes or not.
    #[inline(always)]
    pub fn lock_receive(&self, owner: u32) -> bool {
        self.receiver.lock.lock(owner) != LockOutcome::TimedOut
    }

    /// Takes the receiving end if it is free.
    pub fn try_lock_receive(&self, owner: u32) -> bool {
        self.receiver.lock.try_lock(owner)
    }

    /// Gives the receiving end back.
    #[inline(always)]
    pub fn unlock_receive(&self) {
        self.receiver.lock.unlock();
    }

    /// Process that holds the sending end, and that which holds the receiving end; zero is nobody.
    pub fn lock_owners(&self) -> (u32, u32) {
        let owner = |word: &AtomicU32| word.load(Relaxed);
        (owner(&self.sender.lock.owner), owner(&self.receiver.lock.owner))
    }
}
