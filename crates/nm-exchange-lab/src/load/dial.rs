//! Makes lost connections anew, beside the thread that sends: a connect to a host that is gone may
//! take long.

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
    /// A dialer that has nothing to do.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Dialer> {
        let (sender, receiver) = channel();
        Ok(Dialer { waker: Waker::new()?, is_over: Arc::default(), sender, receiver })
    }

    /// Becomes readable when a connection is made.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Connects to an address; the stream comes with this index.
    pub fn dial(&self, index: usize, address: Address) {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let is_over = Arc::clone(&self.is_over);
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(stream) = Stream::connect(&address, ATTEMPT) {
                    // Nobody waits for it if the dialer is gone.
                    let _ = sender.send((index, stream));
                    waker.wake();
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        });
    }

    /// The connections that were made since the last call.
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
