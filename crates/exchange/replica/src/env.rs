//! What a replica uses of its surroundings: files, connections, random numbers, clocks and threads.
//! Time besides that is the time of the async runtime.

use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nm_sys::clock;

use crate::address::Address;
use crate::clocks::wall_clock_ns;
use crate::sockets::{self, ByteStream, Listener, Pending};
use crate::storage::{self, File};

/// The surroundings of a replica.
pub type Env = Arc<dyn Environment>;

/// Surroundings. The methods that are provided are the machine's; a simulation replaces them.
pub trait Environment: Debug + Send + Sync {
    /// See [`storage::create`].
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        storage::create(path)
    }

    /// See [`storage::open`].
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        storage::open(path)
    }

    /// See [`storage::read`].
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        storage::read(path)
    }

    /// See [`storage::size`].
    fn size(&self, path: &Path) -> io::Result<u64> {
        storage::size(path)
    }

    /// See [`storage::list`].
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        storage::list(folder)
    }

    /// See [`storage::create_folder`].
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        storage::create_folder(folder)
    }

    /// See [`storage::remove`].
    fn remove(&self, path: &Path) -> io::Result<()> {
        storage::remove(path)
    }

    /// See [`storage::rename_durably`].
    fn rename_durably(&self, from: &Path, to: &Path) -> io::Result<()> {
        storage::rename_durably(from, to)
    }

    /// See [`storage::sync_folder`].
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        storage::sync_folder(folder)
    }

    /// How long a simulated disk works at a sync; a real one does so in the sync itself.
    fn sync_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether files may be written by threads of their own.
    fn has_threads(&self) -> bool {
        true
    }

    /// Listens for connections, in an async runtime.
    fn listen(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        sockets::listen(address)
    }

    /// Connects.
    fn connect<'a>(&self, address: &'a Address) -> Pending<'a, Box<dyn ByteStream>> {
        sockets::connect(address)
    }

    /// A random number: the standard library's hasher is seeded by the system's randomness.
    fn random(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    /// What the wall clock shows, ns since 1970.
    fn wall_ns(&self) -> u64 {
        wall_clock_ns()
    }

    /// What the monotonic clock shows, ns.
    fn monotonic_ns(&self) -> u64 {
        clock::monotonic_ns()
    }
}

/// This machine.
#[derive(Debug)]
pub struct Machine;

impl Environment for Machine {}

impl Machine {
    /// This machine as surroundings.
    pub fn env() -> Env {
        Arc::new(Machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_machine_differ() {
        assert_ne!(Machine.random(), Machine.random());
    }
}
