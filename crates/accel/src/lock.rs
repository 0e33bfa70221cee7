//! A lock for short critical sections: no system call unless two threads compete.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use nm_sys::futex;

use crate::signals::{Deferral, defer_handlers};

/// Attempts before the thread sleeps.
const ATTEMPTS: u32 = 200;

/// Longest sleep before the lock is tried again.
const SLEEP_MAX: Duration = Duration::from_millis(20);

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and other threads may sleep until it is free.
const CONTENDED: u32 = 2;

std::thread_local! {
    /// Its address identifies the thread; nothing is ever stored, so there is no destructor.
    static NAME: u8 = const { 0 };
}

fn thread_name() -> usize {
    NAME.with(|name| std::ptr::from_ref(name).addr())
}

/// Data that one thread at a time may use.
///
/// Signal handlers of the thread are deferred while it holds the lock. The lock stores its owner
/// all the same: a handler that cannot be deferred must not wait for the thread that it
/// interrupted.
#[derive(Default)]
pub struct Lock<T> {
    state: AtomicU32,
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `Guard`, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            state: AtomicU32::new(FREE),
            owner: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Acquires the lock; `None` if this thread holds it already.
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let deferral = defer_handlers();
        // Not `then_some`: a guard that is not wanted would release the lock of its owner.
        self.acquire().then(|| Guard { lock: self, _deferral: deferral })
    }

    /// Acquires the lock; `None` if any thread holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let deferral = defer_handlers();
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.compare_exchange(FREE, HELD, acquire, relaxed).ok()?;
        self.owner.store(thread_name(), Ordering::Relaxed);
        Some(Guard { lock: self, _deferral: deferral })
    }

    /// Acquires the lock without a guard: [`Lock::release`] must follow. False if this thread holds
    /// it already.
    #[inline]
    pub fn acquire(&self) -> bool {
        let me = thread_name();
        if self.owner.load(Ordering::Relaxed) == me {
            return false;
        }
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(FREE, HELD, acquire, relaxed).is_err() {
            self.wait_until_free();
        }
        self.owner.store(me, Ordering::Relaxed);
        true
    }

    #[cold]
    fn wait_until_free(&self) {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            std::hint::spin_loop();
            if self.state.load(relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, acquire, relaxed).is_ok()
            {
                return;
            }
        }
        while self.state.swap(CONTENDED, acquire) != FREE {
            futex::wait(&self.state, CONTENDED, SLEEP_MAX);
        }
    }

    /// Releases what [`Lock::acquire`] has acquired.
    #[inline]
    pub fn release(&self) {
        self.owner.store(0, Ordering::Relaxed);
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.state);
        }
    }

    /// Releases it if this thread holds it.
    pub fn release_if_held(&self) {
        if self.owner.load(Ordering::Relaxed) == thread_name() {
            self.release();
        }
    }

    /// Unlocks it, whoever holds it: in the child of a fork, which has no other threads.
    pub fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.state.store(FREE, Ordering::Release);
    }
}

/// Access to the data of a [`Lock`], until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Dropped after the lock is released: then the handlers run that were deferred.
    _deferral: Deferral,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while its thread owns the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while its thread owns the lock, and `&mut self` is
        // exclusive.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes_threads_and_rejects_its_owner() {
        let lock = Lock::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock().unwrap() += 1;
                    }
                });
            }
        });
        let guard = lock.lock().unwrap();
        assert_eq!(*guard, 40_000);
        assert!(lock.lock().is_none() && lock.try_lock().is_none());
        drop(guard);
        let guard = lock.try_lock().unwrap();
        assert!(lock.lock().is_none() && lock.try_lock().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.try_lock().is_none());
            assert!(other.join().unwrap());
        });
        drop(guard);
        assert!(lock.lock().is_some());
    }

    #[test]
    fn lock_without_a_guard_excludes_until_it_is_released() {
        let lock = Lock::new(5_u32);
        assert!(lock.acquire() && !lock.acquire() && lock.lock().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock().unwrap());
            lock.release_if_held();
            assert_eq!(other.join().unwrap(), 5);
        });
        assert!(lock.acquire());
        std::thread::scope(|scope| {
            scope.spawn(|| lock.release_if_held());
        });
        assert!(!lock.acquire());
        lock.reset();
        assert!(lock.lock().is_some());
    }
}
