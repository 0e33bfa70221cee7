//! Re-establishes lost connections in threads of their own, because connecting to a host that is
//! down may take long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nm_exchange::link::{Address, Stream};
use nm_sys::poll::Waker;

/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Connects in threads of its own until it succeeds or is dropped.
#[derive(Debug)]
pub struct Dialer {
    waker: Waker,
    is_over: Arc<AtomicBool>,
    sender: Sender<(usize, Stream)>,
    receiver: Receiver<(usize, Stream)>,
}

impl Dialer {
    /// A dialer without a task.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new() -> io::Result<Dialer> {
        let (sender, receiver) = channel();
        Ok(Dialer { waker: Waker::new()?, is_over: Arc::default(), sender, receiver })
    }

    /// Becomes readable when a connection is established.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Connects to an address; `index` is returned with the stream.
    pub fn dial(&self, index: usize, address: Address) {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let is_over = Arc::clone(&self.is_over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(stream) = Stream::connect(&address, ATTEMPT) {
                    // If the dialer was dropped, the connection is not needed.
                    let _ = sender.send((index, stream));
                    waker.wake();
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        });
    }

    /// The connections established since the last call.
    pub fn made(&self) -> Vec<(usize, Stream)> {
        self.waker.drain();
        self.receiver.try_iter().collect()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
