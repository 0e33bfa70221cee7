//! A recording of the batches that were carried out, for an audit.

use std::path::Path;

use super::error::JournalError;
use super::record::{RecordKind, Settings};
use super::writer::Journal;

/// Records batches for an audit as they are carried out, in a journal without guarantees: the disk
/// is not waited for.
#[derive(Debug)]
pub struct Recorder(Journal);

impl Recorder {
    /// Goes on with the recording in a folder.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(folder: &Path, settings: Settings) -> Result<Recorder, JournalError> {
        Journal::open(folder, settings, u64::MAX).map(|(journal, _)| Recorder(journal))
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
