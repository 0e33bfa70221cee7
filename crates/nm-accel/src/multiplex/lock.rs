//! The lock of one epoll set: short critical sections, no system call unless two threads compete.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::signals::{Deferral, defer_handlers};

/// Attempts before the thread yields its CPU.
const LOOKS: u32 = 200;

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
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `Guard`, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Lock<T> {
        Lock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Acquires the lock; `None` if this thread holds it already.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let me = thread_name();
        let deferral = defer_handlers();
        let mut looks = 0_u32;
        loop {
            match self.owner.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Guard { lock: self, _deferral: deferral }),
                Err(owner) if owner == me => return None,
                Err(_) => {}
            }
            looks = looks.saturating_add(1);
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Unlocks it, whoever holds it: in the child of a fork, which has no other threads.
    pub fn reset(&self) {
        self.owner.store(0, Ordering::Release);
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
        self.lock.owner.store(0, Ordering::Release);
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
        assert!(lock.lock().is_none());
        drop(guard);
        assert!(lock.lock().is_some());
    }
}
