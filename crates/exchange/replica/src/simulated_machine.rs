//! A machine of a simulation: a disk and a network in memory, and random numbers by a seed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nm_codec::Random;

use crate::address::Address;
use crate::env::Environment;
use crate::simulated_disk::Disk;
use crate::simulated_network::Network;
use crate::sockets::{ByteStream, Listener, Pending};
use crate::storage::File;

/// The machine.
#[derive(Debug)]
pub struct SimulatedMachine {
    disk: Disk,
    network: Network,
    /// Its number in the network.
    node: usize,
    random: Mutex<Random>,
}

impl SimulatedMachine {
    /// A machine with this disk, and random numbers by this seed.
    pub fn new(seed: u64, disk: Disk, (network, node): (Network, usize)) -> Arc<SimulatedMachine> {
        let random = Mutex::new(Random::new(seed));
        Arc::new(SimulatedMachine { disk, network, node, random })
    }

    /// A machine without a network.
    pub fn with_disk(disk: Disk) -> Arc<SimulatedMachine> {
        SimulatedMachine::new(0, disk, (Network::new(0), 0))
    }
}

impl Environment for SimulatedMachine {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(self.disk.open(path, true)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(self.disk.open(path, false)?))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.disk.size(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.disk.list(folder))
    }

    fn create_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn rename_durably(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)?;
        self.disk.sync_folder(to.parent().unwrap_or(Path::new("/")))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }

    fn sync_time(&self) -> Duration {
        Duration::from_millis(self.random() % 4)
    }

    /// Its files belong to the thread of the simulation.
    fn has_threads(&self) -> bool {
        false
    }

    fn listen(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(self.network.listen(self.node, &address.to_string())))
    }

    fn connect<'a>(&self, address: &'a Address) -> Pending<'a, Box<dyn ByteStream>> {
        let made = self.network.connect(self.node, &address.to_string());
        Box::pin(async { made.map(|stream| Box::new(stream) as Box<dyn ByteStream>) })
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap().number()
    }

    fn wall_ns(&self) -> u64 {
        1_000_000_000_000_000_000 + self.monotonic_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.network.now_ms() * 1_000_000
    }
}
