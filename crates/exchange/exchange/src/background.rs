//! Work that takes too long for the loop of a node: a thread of its own does it, at low priority.

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A value that is there, or is being computed.
#[derive(Debug)]
pub enum Background<T> {
    /// It is there.
    Ready(T),
    /// A thread computes it.
    Running(Receiver<T>),
}

impl<T: Send + 'static> Background<T> {
    /// Computes a value in a thread of its own; at once where none can be started.
    pub fn start(compute: impl FnOnce() -> T + Send + 'static) -> Background<T> {
        let (sender, receiver) = mpsc::channel();
        // Shared, because a thread that could not be started does not give back what it got.
        let work = Arc::new(Mutex::new(Some(compute)));
        let of_thread = Arc::clone(&work);
        let started = thread::Builder::new().name("background".to_string()).spawn(move || {
            nm_sys::cpu::lower_thread_priority();
            if let Some(compute) = take(&of_thread) {
                // Fails if nobody waits for the value any more.
                let _ = sender.send(compute());
            }
        });
        match started {
            Ok(_) => Background::Running(receiver),
            Err(_) => match take(&work) {
                Some(compute) => Background::Ready(compute()),
                None => unreachable!("no thread has taken the work"),
            },
        }
    }

    /// Whether the value is there.
    pub fn is_ready(&mut self) -> bool {
        if let Background::Running(receiver) = self {
            match receiver.try_recv() {
                Ok(value) => *self = Background::Ready(value),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => panic!("a background thread has panicked"),
            }
        }
        true
    }

    /// Takes the value out, if it is there.
    #[expect(clippy::disallowed_methods, reason = "it is ready")]
    pub fn take_ready(slot: &mut Option<Background<T>>) -> Option<T> {
        match slot.take()? {
            Background::Ready(value) => Some(value),
            mut running => {
                if !running.is_ready() {
                    *slot = Some(running);
                    return None;
                }
                Some(running.wait())
            }
        }
    }

    /// The value; waits for it.
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever may wait calls this, and the lint asks there"
    )]
    pub fn wait(self) -> T {
        match self {
            Background::Ready(value) => value,
            Background::Running(receiver) => match receiver.recv() {
                Ok(value) => value,
                Err(_) => panic!("a background thread has panicked"),
            },
        }
    }
}

/// Bytes from which on another thread copies memory, or gives it back: 1 MB takes some 0.1 ms.
pub const LARGE_BYTES_MIN: usize = 1 << 20;

/// Drops bytes, a large number of them in another thread.
pub fn drop_bytes(bytes: Vec<u8>) {
    if bytes.len() >= LARGE_BYTES_MIN {
        Background::start(move || drop(bytes));
    }
}

/// When to look whether a value is there that is not there now, ns.
pub fn next_check_ns(now_ns: u64) -> u64 {
    const INTERVAL_NS: u64 = 1_000_000;
    now_ns + INTERVAL_NS
}

fn take<W>(work: &Mutex<Option<W>>) -> Option<W> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_computed_meanwhile() {
        let (go, begin) = mpsc::channel::<()>();
        let mut value = Background::start(move || begin.recv().map(|()| 7));
        assert!(!value.is_ready(), "it waits");
        go.send(()).unwrap();
        assert_eq!(value.wait(), Ok(7));
        let mut ready = Background::Ready(3);
        assert!(ready.is_ready());
        assert_eq!(ready.wait(), 3);
    }

    #[test]
    fn nobody_needs_to_wait_for_a_value() {
        let (sent, received) = mpsc::channel();
        drop(Background::start(move || sent.send(1)));
        assert_eq!(received.recv(), Ok(1));
    }
}
