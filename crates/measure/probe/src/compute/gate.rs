//! Where threads wait for each other, so that they start together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long one wait lasts, so that a cancel is noticed soon.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A barrier that a thread which fails can break. Threads sleep while they wait, as there may be
/// more of them than CPUs.
#[derive(Debug)]
pub struct Gate {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    passed: u64,
    broken: bool,
}

impl Gate {
    /// A gate for this many threads.
    pub fn new(threads: usize) -> Gate {
        Gate { threads, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until all threads are here. False if the gate is broken or `cancelled` became true.
    pub fn pass(&self, cancelled: &dyn Fn() -> bool) -> bool {
        let mut state = self.lock();
        state.waiting += 1;
        if state.waiting == self.threads {
            state.waiting = 0;
            state.passed += 1;
            self.changed.notify_all();
            return !state.broken;
        }
        let before = state.passed;
        while state.passed == before && !state.broken {
            if cancelled() {
                state.broken = true;
                self.changed.notify_all();
                break;
            }
            state = match self.changed.wait_timeout(state, POLL_INTERVAL) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        !state.broken
    }

    /// Lets nobody pass any more.
    pub fn break_up(&self) {
        self.lock().broken = true;
        self.changed.notify_all();
    }

    /// Whether nobody can pass any more.
    pub fn is_broken(&self) -> bool {
        self.lock().broken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn nobody_is_ahead_by_more_than_one_step() {
        const THREADS: usize = 4;
        let (gate, steps) = (Gate::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for step in 0..50 {
                        let done = steps.fetch_add(1, Ordering::SeqCst);
                        assert!((step * THREADS..(step + 1) * THREADS).contains(&done));
                        assert!(gate.pass(&|| false));
                    }
                });
            }
        });
    }

    #[test]
    fn a_broken_gate_and_a_cancel_release_all() {
        let gate = Gate::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.pass(&|| false));
            gate.break_up();
            assert!(!waiting.join().unwrap());
        });
        assert!(gate.is_broken() && !gate.pass(&|| false));
        assert!(!Gate::new(2).pass(&|| true));
    }
}
