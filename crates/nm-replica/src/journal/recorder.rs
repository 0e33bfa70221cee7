//! A journal of what was carried out, for an audit.

use std::path::Path;

use nm_model::agent::Failure;

use super::{Journal, RecordKind, Settings};

/// Writes batches down for an audit as they are carried out, in a journal that promises nothing:
/// the disk is not waited for.
#[derive(Debug)]
pub struct Recorder(Journal);

impl Recorder {
    /// Goes on with what a folder holds.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(folder: &Path, settings: Settings) -> Result<Recorder, Failure> {
        Journal::open(folder, settings, u64::MAX).map(|(journal, _)| Recorder(journal))
    }

    /// Notes a batch, unless it was noted before. Numbers between the last and this one had no
    /// batch.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn batch(&mut self, index: u64, term: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.fill(index.saturating_sub(1), term, RecordKind::Blank)?;
        if index < self.next() {
            return Ok(());
        }
        self.0.append(index, term, RecordKind::Batch, bytes)
    }

    /// Notes that the batches up to `upto` came as a snapshot.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn missed(&mut self, upto: u64) -> Result<(), Failure> {
        self.fill(upto, 0, RecordKind::Missed)
    }

    /// Hands what was noted to the system.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush()
    }

    /// Number after the last one that is noted or known to be none.
    pub fn next(&self) -> u64 {
        self.0.next().unwrap_or(1)
    }

    fn fill(&mut self, upto: u64, term: u64, kind: RecordKind) -> Result<(), Failure> {
        while self.next() <= upto {
            self.0.append(self.next(), term, kind, &[])?;
        }
        Ok(())
    }
}
