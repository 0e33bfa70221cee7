//! Up to where the log of a replica is known to be committed, as a file beside its journal.
//!
//! ```text
//! committed   "nmcomm01"   8 index u64   16 crc32c of 0..16 u32
//! ```
//!
//! The journal alone does not say it: its last records may be replaced by those of another leader.
//! The replica itself needs no file to know it. The file is for programs that copy the journal
//! while the replica runs, or after the loss of the others. It is written without a sync, so
//! whoever reads it may see an earlier index, which was committed as well. One that is damaged says
//! nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nm_codec::{Put, Reader, crc32c};

use crate::env::Env;
use crate::storage::File;

/// Name of the file in a group's folder.
pub const COMMITTED: &str = "committed";

const MARK: &[u8; 8] = b"nmcomm01";

/// The index of the last record that is known to be committed, from 1 on; shared with whoever
/// writes the file.
#[derive(Debug, Clone, Default)]
pub struct CommittedIndex(Arc<AtomicU64>);

impl CommittedIndex {
    /// The index; 0 if nothing is known.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Everything up to this index is committed.
    pub fn set(&self, index: u64) {
        self.0.fetch_max(index, Ordering::Relaxed);
    }
}

/// The file of a replica that runs.
#[derive(Debug)]
pub struct CommittedFile {
    known: CommittedIndex,
    written: u64,
    file: Option<Box<dyn File>>,
}

impl CommittedFile {
    /// A file that says nothing yet.
    pub fn new(known: CommittedIndex) -> CommittedFile {
        CommittedFile { known, written: 0, file: None }
    }

    /// What the file says.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes the index, if it has changed. A disk that does not take it takes no journal either,
    /// which is reported there.
    pub fn write(&mut self, env: &Env, folder: &Path) {
        let index = self.known.get();
        if index == self.written {
            return;
        }
        if self.file.is_none() {
            self.file = env.create(&folder.join(COMMITTED)).ok();
        }
        let is_written = |file: &dyn File| file.write_all_at(&encode(index), 0).is_ok();
        if self.file.as_deref().is_some_and(is_written) {
            self.written = index;
        }
    }
}

fn encode(index: u64) -> Vec<u8> {
    let mut out = MARK.to_vec();
    out.put_u64(index);
    let checksum = crc32c(&out);
    out.put_u32(checksum);
    out
}

/// What the file in a group's folder says; 0 if there is none, or it is damaged.
pub fn read(env: &Env, folder: &Path) -> u64 {
    let bytes = env.read(&folder.join(COMMITTED)).unwrap_or_default();
    let index = || Reader::new(bytes.strip_prefix(MARK)?).u64("index").ok();
    index().filter(|index| bytes == encode(*index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Machine;

    #[test]
    fn a_damaged_index_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (env, known) = (Machine::env(), CommittedIndex::default());
        let mut file = CommittedFile::new(known.clone());
        file.write(&env, folder.path());
        assert_eq!(read(&env, folder.path()), 0);
        for index in [300, 70_000, 5] {
            known.set(index);
            file.write(&env, folder.path());
        }
        assert_eq!((read(&env, folder.path()), file.written()), (70_000, 70_000));
        let path = folder.path().join(COMMITTED);
        let good = std::fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&env, folder.path()), 0, "bit {bit}");
        }
    }
}
