//! Re-establishes lost connections in threads of their own, because connecting to a host that is
//! down may take long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nm_auth::Credentials;
use nm_exchange::client::{self, ClientError, Meant};
use nm_exchange::link::{Address, Link};
use nm_sys::poll::Waker;
use nm_wire::Who;

/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Connects in threads of its own until it succeeds or is dropped.
#[derive(Debug)]
pub struct Dialer {
    waker: Waker,
    is_over: Arc<AtomicBool>,
    credentials: Option<Credentials>,
    meant: Meant,
    sender: Sender<DialOutcome>,
    receiver: Receiver<DialOutcome>,
}

/// What is to be connected.
#[derive(Debug)]
pub struct DialTask {
    /// Number of the link, and how often it was dialed.
    pub index: usize,
    /// See `index`.
    pub dial: u64,
    /// Gateways and where they listen, in the order in which they are tried, again and again.
    pub candidates: Vec<(usize, Address)>,
    /// Pause between attempts.
    pub pause: Duration,
    /// What is said first.
    pub hellos: Vec<Who>,
    /// Whether nobody waits for it any more.
    pub is_cancelled: Arc<AtomicBool>,
}

/// What was connected, or why it will not be.
#[derive(Debug)]
pub struct DialOutcome {
    /// As in the task.
    pub index: usize,
    /// As in the task.
    pub dial: u64,
    /// The gateway that was tried last.
    pub gateway: usize,
    /// The link to it.
    pub link: Result<Link, ClientError>,
}

impl Dialer {
    /// A dialer without a task, with what sessions prove themselves with, to gateways of the
    /// network with this number.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(credentials: Option<Credentials>, network: u64) -> io::Result<Dialer> {
        let meant = Meant { network, node: None };
        let (sender, receiver) = channel();
        let (waker, is_over) = (Waker::new()?, Arc::default());
        Ok(Dialer { waker, is_over, credentials, meant, sender, receiver })
    }

    /// Connects and says these hellos, in this thread.
    ///
    /// # Errors
    /// As [`client::connect`].
    pub fn connect(
        &self,
        address: &Address,
        hellos: &[Who],
        limit: Duration,
    ) -> Result<Link, ClientError> {
        client::connect_to((address, self.meant), hellos, self.credentials.as_ref(), limit)
    }

    /// Becomes readable when a connection is established.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Connects to the first of some gateways that takes the link, and says hello there.
    pub fn dial(&self, task: DialTask) {
        let DialTask { index, dial, candidates, pause, hellos, is_cancelled } = task;
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let (is_over, credentials) = (Arc::clone(&self.is_over), self.credentials.clone());
        let meant = self.meant;
        std::thread::spawn(move || {
            for (gateway, address) in candidates.iter().cycle() {
                if is_over.load(Ordering::Relaxed) || is_cancelled.load(Ordering::Relaxed) {
                    return;
                }
                let (to, keys) = ((address, meant), credentials.as_ref());
                match client::connect_to(to, &hellos, keys, ATTEMPT) {
                    Err(error) if !error.is_lasting() => std::thread::sleep(pause),
                    link => {
                        // If the dialer was dropped, the connection is not needed.
                        let _ = sender.send(DialOutcome { index, dial, gateway: *gateway, link });
                        return waker.wake();
                    }
                }
            }
        });
    }

    /// The connections established since the last call.
    pub fn made(&self) -> Vec<DialOutcome> {
        self.waker.drain();
        self.receiver.try_iter().collect()
    }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
