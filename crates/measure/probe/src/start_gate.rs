//! A gate that opens for all threads at once when each has arrived, and that lets none wait for a
//! thread that has failed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What waits for what.
#[derive(Debug)]
struct State<T> {
    missing: usize,
    has_failed: bool,
    message: Option<T>,
}

/// The gate; `T` is what the threads get when it opens.
#[derive(Debug)]
pub struct StartGate<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T: Copy> StartGate<T> {
    /// A gate for `threads` threads, whose owner opens it.
    pub fn new(threads: usize) -> StartGate<T> {
        let state = State { missing: threads, has_failed: false, message: None };
        StartGate { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread will not come, so nobody else need wait.
    pub fn fail(&self) {
        self.state().has_failed = true;
        self.changed.notify_all();
    }

    /// A thread's part: it has arrived, and waits for the gate to open. None if it will not.
    pub fn arrive(&self) -> Option<T> {
        let mut state = self.state();
        state.missing = state.missing.saturating_sub(1);
        self.changed.notify_all();
        let is_closed = |state: &mut State<T>| state.message.is_none() && !state.has_failed;
        let state =
            self.changed.wait_while(state, is_closed).unwrap_or_else(PoisonError::into_inner);
        state.message.filter(|_| !state.has_failed)
    }

    /// The owner's part: waits until all have arrived; false if one will not.
    pub fn wait_for_all(&self) -> bool {
        let is_waiting = |state: &mut State<T>| state.missing > 0 && !state.has_failed;
        let state = self
            .changed
            .wait_while(self.state(), is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_failed
    }

    /// The owner's part: opens the gate.
    pub fn open(&self, message: T) {
        self.state().message = Some(message);
        self.changed.notify_all();
    }
}

/// Fails the gate if a thread ends, or panics, before it arrives.
#[derive(Debug)]
pub struct Arrival<'a, T: Copy> {
    gate: &'a StartGate<T>,
    has_arrived: bool,
}

impl<'a, T: Copy> Arrival<'a, T> {
    /// The arrival that a thread owes.
    pub fn at(gate: &'a StartGate<T>) -> Arrival<'a, T> {
        Arrival { gate, has_arrived: false }
    }

    /// See [`StartGate::arrive`].
    pub fn arrive(mut self) -> Option<T> {
        self.has_arrived = true;
        self.gate.arrive()
    }
}

impl<T: Copy> Drop for Arrival<'_, T> {
    fn drop(&mut self) {
        if !self.has_arrived {
            self.gate.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_threads_get_the_message_or_none_does() {
        let gate = StartGate::new(3);
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..3).map(|_| scope.spawn(|| Arrival::at(&gate).arrive())).collect();
            assert!(gate.wait_for_all());
            gate.open(7);
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() == Some(7)));
        });
        let gate = StartGate::<u32>::new(2);
        thread::scope(|scope| {
            let waits = scope.spawn(|| Arrival::at(&gate).arrive());
            scope.spawn(|| drop(Arrival::at(&gate)));
            assert!(!gate.wait_for_all());
            assert_eq!(waits.join().unwrap(), None);
        });
    }
}
