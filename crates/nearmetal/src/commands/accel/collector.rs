//! Receives the ledgers of a program and its child processes: the accelerator's library sends the
//! descriptor of each ledger when it creates it. A ledger is shared memory, so that it can be read
//! after its writers have ended, also if they were killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_lab::ledger::Ledger;
use nm_sys::private_folder::PrivateFolder;
use nm_sys::unix::receive_descriptor;
use rustix::fs::{Mode, OFlags, open};

/// Most ledgers that are kept: a shell script may start any number of programs.
const LEDGERS_MAX: usize = 4096;

/// How long one receive waits, so that the thread notices `ended`.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(20);

/// The ledgers received so far.
#[derive(Default)]
pub struct Collected {
    /// In the order of arrival.
    pub ledgers: Vec<Ledger>,
    /// Ledgers that were dropped because there were more than [`LEDGERS_MAX`].
    pub dropped: usize,
}

/// Receives ledgers in a thread of its own.
pub struct Collector {
    /// The socket's file, opened by path before its name was removed.
    socket_file: OwnedFd,
    collected: Arc<Mutex<Collected>>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts to receive.
    ///
    /// # Errors
    /// If no socket can be created.
    pub fn start() -> io::Result<Collector> {
        Collector::start_in(&std::env::temp_dir())
    }

    /// As [`Collector::start`], with a folder in `place` while the socket is made.
    fn start_in(place: &Path) -> io::Result<Collector> {
        let folder = PrivateFolder::create(place, "nearmetal-accel-").map_err(io::Error::other)?;
        let path = folder.path().join("ledgers");
        let socket = UnixDatagram::bind(&path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket_file = open(&path, flags, Mode::empty())?;
        // From here on no file remains if this process is killed.
        drop(folder);
        socket.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
        let (collected, ended) = (Arc::<Mutex<Collected>>::default(), Arc::<AtomicBool>::default());
        let (into, is_ended) = (collected.clone(), ended.clone());
        let thread = thread::Builder::new().name("ledgers".into()).spawn(move || {
            // One more receive after the end takes the ledgers that are still queued.
            let mut last = false;
            while !last {
                last = is_ended.load(Ordering::Acquire);
                while let Ok((_, descriptor)) = receive_descriptor(socket.as_fd(), &mut [0; 64]) {
                    store(&into, descriptor);
                }
            }
        })?;
        Ok(Collector { socket_file, collected, ended, thread })
    }

    /// The path that the library sends to. It leads through `/proc` to this process, so that it
    /// works from every network namespace.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.socket_file.as_raw_fd()).into()
    }

    /// Ends the thread and returns the ledgers.
    pub fn finish(self) -> Collected {
        self.ended.store(true, Ordering::Release);
        let _ = self.thread.join();
        self.collected.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

fn store(into: &Mutex<Collected>, descriptor: Option<OwnedFd>) {
    let (Some(descriptor), Ok(mut all)) = (descriptor, into.lock()) else { return };
    if all.ledgers.len() >= LEDGERS_MAX {
        all.dropped += 1;
    } else if let Ok(ledger) = Ledger::of(descriptor) {
        all.ledgers.push(ledger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_messages_are_ignored_and_no_file_remains() {
        let place = tempfile::tempdir().unwrap();
        let collector = Collector::start_in(place.path()).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let path = collector.path();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(&path).unwrap();
        sender.send(b"nothing").unwrap();
        let file = tempfile::tempfile().unwrap();
        nm_sys::unix::send_descriptor(sender.as_fd(), b"file", file.as_fd()).unwrap();
        let collected = collector.finish();
        assert!(collected.ledgers.is_empty() && collected.dropped == 0);
        assert!(UnixDatagram::unbound().unwrap().connect(&path).is_err(), "the socket is closed");
    }
}
