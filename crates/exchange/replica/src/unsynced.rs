//! Files that survive the end of the process, and not that of the machine: nothing waits for the
//! disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{Env, Environment};
use crate::storage::{self, File};

/// Surroundings in which a sync does nothing: the system writes when it wants to.
#[derive(Debug)]
pub struct Unsynced(Env);

impl Unsynced {
    /// These surroundings without syncs.
    pub fn env(inner: Env) -> Env {
        Arc::new(Unsynced(inner))
    }
}

impl Environment for Unsynced {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(UnsyncedFile(self.0.create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(UnsyncedFile(self.0.open(path)?)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.0.size(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.list(folder)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn rename_durably(&self, from: &Path, to: &Path) -> io::Result<()> {
        storage::rename(from, to)
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct UnsyncedFile(Box<dyn File>);

impl File for UnsyncedFile {
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}
