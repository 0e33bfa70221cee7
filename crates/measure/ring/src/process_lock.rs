//! A lock held by process id, so that it works across a fork and survives the death of its owner.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::{futex, process};

/// A lock in memory that the processes of a fork share. All zero is unlocked. It is not recursive.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProcessLock {
    /// Process that holds it, or zero.
    owner: AtomicU32,
    /// Not zero if a thread may sleep on `owner`.
    contended: AtomicU32,
}

/// Attempts before the waiter sleeps to give the owner time.
const SPINS_BEFORE_SLEEP: u32 = 200;

/// Longest sleep between two attempts; a release without a wake-up is noticed after it.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Sleeps, cut short or not, after which the attempt is given up.
const SLEEPS_MAX: u32 = 20_000;

/// Time after which the attempt is given up.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Added to the id of a process in another pid namespace than the process that made the lock. Linux
/// assigns no ids of this size (`PID_MAX_LIMIT` is 1 << 22). Whether such a holder lives cannot be
/// found out by its number, so its lock is never taken over, and neither does it take over others'.
pub const OTHER_NAMESPACE: u32 = 1 << 31;

/// Result of an attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// It was free, or became free.
    Acquired,
    /// The former owner died while it held the lock.
    TakenFromDeadProcess,
    /// It could not be acquired within about a second.
    TimedOut,
}

impl ProcessLock {
    /// An unlocked lock.
    pub const fn new() -> ProcessLock {
        ProcessLock { owner: AtomicU32::new(0), contended: AtomicU32::new(0) }
    }

    /// Locks for process `owner` (not zero, see [`OTHER_NAMESPACE`]); takes over the lock of a
    /// process that has died.
    #[inline(always)]
    pub fn lock(&self, owner: u32) -> LockOutcome {
        if self.try_lock(owner) { LockOutcome::Acquired } else { self.lock_slowly(owner) }
    }

    /// As [`ProcessLock::lock`] for a thread that nobody competes with until it unlocks: without an
    /// instruction that locks other CPUs out. Others may have held it before.
    #[inline(always)]
    pub fn lock_alone(&self, owner: u32) -> LockOutcome {
        if self.owner.load(Acquire) != 0 {
            return self.lock_slowly(owner);
        }
        self.owner.store(owner, Relaxed);
        LockOutcome::Acquired
    }

    /// Locks if it is free.
    #[inline(always)]
    pub fn try_lock(&self, owner: u32) -> bool {
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
            self.contended.store(1, Relaxed);
            futex::wait(&self.owner, holder, SLEEP_MAX);
            // Checked rarely: it costs some system calls, and a death is rare.
            if sleep_idx.is_power_of_two()
                && (holder | owner) & OTHER_NAMESPACE == 0
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

    /// Unlocks.
    #[inline(always)]
    pub fn unlock(&self) {
        self.owner.store(0, Release);
        // Not ordered with the store: a sleeper that is missed retries after [`SLEEP_MAX`].
        if self.contended.load(Relaxed) != 0 {
            self.wake();
        }
    }

    /// Unlocks whoever holds it: in a process or for an end that nothing else uses.
    pub fn reset(&self) {
        self.owner.store(0, Release);
    }

    /// Whether somebody holds it, in the order of all sequentially consistent accesses.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.owner.load(SeqCst) != 0
    }

    /// Process that holds it; zero means unlocked.
    pub fn owner(&self) -> u32 {
        self.owner.load(Relaxed)
    }

    #[cold]
    fn wake(&self) {
        self.contended.store(0, Relaxed);
        futex::wake(&self.owner);
    }
}
