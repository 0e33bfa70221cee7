//! Takes the ledgers of a program and its children, as the accelerator's library hands each over
//! when it is made. A ledger is memory: it can be read after its writers have gone, whatever ended
//! them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_lab::ledger::Ledger;
use nm_sys::unix::receive_descriptor;
use rustix::fs::{Mode, OFlags, open};

/// Ledgers that are kept. A shell script may start programs without end.
const LEDGERS_MAX: usize = 4096;

/// How long one look lasts, so that the end is seen.
const LOOK: Duration = Duration::from_millis(20);

/// What has been handed over.
#[derive(Default)]
pub struct Collected {
    /// The ledgers, in order.
    pub ledgers: Vec<Ledger>,
    /// How many more there were.
    pub left_out: usize,
}

/// Listens for ledgers.
pub struct Collector {
    /// The socket's place in the file system, which has no name any more.
    place: OwnedFd,
    collected: Arc<Mutex<Collected>>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts to listen.
    ///
    /// # Errors
    /// If no socket can be made.
    pub fn start() -> io::Result<Collector> {
        let name = format!("nearmetal-accel-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Of a dead process with this number.
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        let place = open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        // From here on nothing can be left behind.
        std::fs::remove_file(&path)?;
        let place = place?;
        socket.set_read_timeout(Some(LOOK))?;
        let (collected, ended) = (Arc::<Mutex<Collected>>::default(), Arc::<AtomicBool>::default());
        let (into, until) = (collected.clone(), ended.clone());
        let thread = thread::Builder::new().name("ledgers".into()).spawn(move || {
            // A ledger that is on its way at the end is still taken: one more look.
            let mut last = false;
            while !last {
                last = until.load(Ordering::Acquire);
                while let Ok((_, descriptor)) = receive_descriptor(socket.as_fd(), &mut [0; 64]) {
                    take(&into, descriptor);
                }
            }
        })?;
        Ok(Collector { place, collected, ended, thread })
    }

    /// Where the library sends to: through this process, in whatever network namespace it is.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.place.as_raw_fd()).into()
    }

    /// Ends listening and gives what was collected.
    pub fn finish(self) -> Collected {
        self.ended.store(true, Ordering::Release);
        let _ = self.thread.join();
        self.collected.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

fn take(into: &Mutex<Collected>, descriptor: Option<OwnedFd>) {
    let (Some(descriptor), Ok(mut all)) = (descriptor, into.lock()) else { return };
    if all.ledgers.len() >= LEDGERS_MAX {
        all.left_out += 1;
    } else if let Ok(ledger) = Ledger::of(descriptor) {
        all.ledgers.push(ledger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ledger_is_not_taken_and_no_name_is_left() {
        let collector = Collector::start().unwrap();
        let path = collector.path();
        let name = format!("nearmetal-accel-{}", std::process::id());
        assert!(!std::env::temp_dir().join(name).exists());
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(&path).unwrap();
        sender.send(b"nothing").unwrap();
        let file = tempfile::tempfile().unwrap();
        nm_sys::unix::send_descriptor(sender.as_fd(), b"file", file.as_fd()).unwrap();
        let collected = collector.finish();
        assert!(collected.ledgers.is_empty() && collected.left_out == 0);
        assert!(UnixDatagram::unbound().unwrap().connect(&path).is_err(), "it has gone");
    }
}
