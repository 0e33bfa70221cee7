//! A recording of the batches that were carried out, for an audit.

use std::path::Path;

use super::error::JournalError;
use super::record::{RecordKind, Settings};
use super::writer::Journal;
use crate::env::{Env, Machine};
use crate::unsynced::Unsynced;

/// Records batches for an audit as they are carried out, in a journal that survives the end of the
/// process alone. The disk is never waited for, also not where a file ends and the next begins: a
/// node's loop writes it, and replies would wait as well.
#[derive(Debug)]
pub struct Recorder(Journal);

impl Recorder {
    /// Goes on with the recording in a folder.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(folder: &Path, settings: Settings) -> Result<Recorder, JournalError> {
        Recorder::open_in(Machine::env(), folder, settings)
    }

    /// As [`Recorder::open`], in these surroundings.
    fn open_in(env: Env, folder: &Path, settings: Settings) -> Result<Recorder, JournalError> {
        let opened = Journal::open_in(&Unsynced::env(env), folder, settings, u64::MAX);
        opened.map(|(journal, _)| Recorder(journal))
    }

    /// Records a batch, unless it was recorded before. Indexes between the last one and this one
    /// had no batch.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn batch(&mut self, index: u64, term: u64, bytes: &[u8]) -> Result<(), JournalError> {
        self.fill(index.saturating_sub(1), term, RecordKind::Blank)?;
        if index < self.next() {
            return Ok(());
        }
        self.0.append(index, term, RecordKind::Batch, bytes)
    }

    /// Records that the batches up to `upto` arrived as a snapshot.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn missed(&mut self, upto: u64) -> Result<(), JournalError> {
        self.fill(upto, 0, RecordKind::Missed)
    }

    /// Writes the records that were added, without waiting for the disk.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn flush(&mut self) -> Result<(), JournalError> {
        self.0.flush()
    }

    /// Index behind the last one that is recorded.
    pub fn next(&self) -> u64 {
        self.0.next().unwrap_or(1)
    }

    fn fill(&mut self, upto: u64, term: u64, kind: RecordKind) -> Result<(), JournalError> {
        while self.next() <= upto {
            self.0.append(self.next(), term, kind, &[])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::env::Environment;
    use crate::storage::File;

    /// A machine on which nothing may be synced.
    #[derive(Debug)]
    struct NeverSynced;

    #[derive(Debug)]
    struct NeverSyncedFile(Box<dyn File>);

    impl Environment for NeverSynced {
        fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
            Ok(Box::new(NeverSyncedFile(Machine.create(path)?)))
        }

        fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
            Ok(Box::new(NeverSyncedFile(Machine.open(path)?)))
        }

        fn create_folder(&self, folder: &Path) -> io::Result<()> {
            panic!("the folder above {} would be synced", folder.display())
        }

        fn rename_durably(&self, from: &Path, _: &Path) -> io::Result<()> {
            panic!("the folder of {} would be synced", from.display())
        }

        fn sync_folder(&self, folder: &Path) -> io::Result<()> {
            panic!("{} is synced", folder.display())
        }
    }

    impl File for NeverSyncedFile {
        fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
            self.0.write_all_at(bytes, at)
        }

        fn set_len(&self, bytes: u64) -> io::Result<()> {
            self.0.set_len(bytes)
        }

        fn sync_data(&self) -> io::Result<()> {
            panic!("a file is synced")
        }

        fn sync_all(&self) -> io::Result<()> {
            panic!("a file is synced")
        }
    }

    #[test]
    fn a_record_never_waits_for_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let records: PathBuf = folder.path().join("records");
        let settings = Settings { file_bytes: 4096 };
        for start in 0..2 {
            let mut recorder =
                Recorder::open_in(Arc::new(NeverSynced), &records, settings).unwrap();
            for index in start * 100 + 1..=start * 100 + 100 {
                recorder.batch(index, 1, &[7; 200]).unwrap();
                recorder.flush().unwrap();
            }
            assert_eq!(recorder.next(), start * 100 + 101);
        }
        let files = std::fs::read_dir(&records).unwrap().count();
        assert!(files > 10, "{files} files");
        let (_, found) = Journal::open(&records, settings, 1).unwrap();
        assert_eq!(found.records.len(), 200);
        assert!(found.records.iter().all(|record| record.bytes == [7; 200]));
    }
}
