//! A journal that is open for writing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::JournalError;
use super::format::{self, HEADER_BYTES, Place};
use super::reader::{Reader, ScannedFile};
use super::record::{Found, RecordKind, Settings};
use super::spare::{Spare, fill};

/// One file of a journal.
#[derive(Debug)]
struct JournalFile {
    path: PathBuf,
    /// Index of its first record.
    first: u64,
    /// What its checksums begin with.
    salt: u32,
    /// Where each record begins; it ends where the next one begins, or at `end`.
    starts: Vec<u64>,
    end: u64,
}

impl JournalFile {
    /// Index behind its last record.
    fn next(&self) -> u64 {
        self.first + self.starts.len() as u64
    }
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    settings: Settings,
    /// The files, oldest first.
    files: Vec<JournalFile>,
    /// The last file, open for writing.
    file: Option<File>,
    spare: Spare,
    /// Records that are not written yet, for the end of the last file.
    unwritten: Vec<u8>,
    /// Index up to which the disk has everything.
    durable: u64,
    /// Why nothing is accepted any more.
    failed: Option<JournalError>,
}

impl Journal {
    /// Opens the journal in a folder, which is created if it is missing. Records before `from` are
    /// checked but not returned.
    ///
    /// # Errors
    /// If the folder cannot be used, or a record before the end is damaged.
    pub fn open(
        folder: &Path,
        settings: Settings,
        from: u64,
    ) -> Result<(Journal, Found), JournalError> {
        fs::create_dir_all(folder)
            .map_err(|error| JournalError::file(folder, "cannot be created", error))?;
        let mut found = Found::default();
        let mut files = vec![];
        // Whether the last file can be used further as it is.
        let mut is_intact = false;
        let mut reader = Reader::open(folder)?;
        while let Some(scanned) = reader.next_file()? {
            found.torn_bytes += scanned.torn_bytes;
            is_intact =
                scanned.torn_bytes == 0 && scanned.bytes.len() as u64 == settings.file_bytes;
            for place in scanned.places.iter().filter(|place| place.index >= from) {
                found.records.push(scanned.record(place)?);
            }
            let ScannedFile { path, first, places, end, salt, .. } = scanned;
            let starts = places.iter().map(|place| place.start as u64).collect();
            files.push(JournalFile { path, first, salt, starts, end });
        }
        let file = match files.last() {
            None => Ok(None),
            Some(JournalFile { path, .. }) if is_intact => open_intact(path).map(Some),
            Some(JournalFile { path, end, .. }) => cut(path, *end, settings.file_bytes).map(Some),
        };
        let file = file.map_err(|error| JournalError::file(folder, "cannot be written", error))?;
        let mut journal = Journal {
            folder: folder.to_path_buf(),
            settings,
            durable: files.last().map_or(0, |last| last.next() - 1),
            files,
            file,
            spare: Spare::new(folder, settings.file_bytes),
            unwritten: vec![],
            failed: None,
        };
        journal.prepare_spare();
        journal.check_invariants();
        Ok((journal, found))
    }

    /// What always holds; checked after each change.
    fn check_invariants(&self) {
        debug_assert!(
            self.files.windows(2).all(|pair| pair[0].next() == pair[1].first),
            "files have no gap between them"
        );
        if let Some(last) = self.files.last() {
            assert!(self.failed.is_some() || self.file.is_some(), "the last file is open");
            assert!(self.durable < last.next(), "what is durable was appended");
            assert!(
                self.unwritten.len() as u64 + HEADER_BYTES as u64 <= last.end,
                "unwritten records are at the end of the last file"
            );
        }
    }

    /// Index of the first record that is kept, and of the last; `None` if there is no record.
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.files.iter().find(|file| !file.starts.is_empty())?.first;
        Some((first, self.next()? - 1))
    }

    /// Index that the next record must have; any, if there never was one.
    pub fn next(&self) -> Option<u64> {
        self.files.last().map(JournalFile::next)
    }

    /// Adds a record, which is not written before [`Journal::flush`] or [`Journal::sync`].
    ///
    /// # Errors
    /// If it is not the next one, too large for a file, or a write failed before.
    pub fn append(
        &mut self,
        index: u64,
        term: u64,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<(), JournalError> {
        self.check_usable()?;
        if self.next().is_some_and(|next| next != index) || index == 0 {
            return Err(JournalError::OutOfOrder { index, next: self.next().unwrap_or(1) });
        }
        let size = format::size_of(bytes.len());
        let room = self.settings.file_bytes - HEADER_BYTES as u64;
        if size > room {
            return Err(JournalError::TooLarge { bytes: size, room });
        }
        let file_bytes = self.settings.file_bytes;
        if self.files.last().is_none_or(|last| last.end + size > file_bytes) {
            self.begin_file(index)?;
        }
        let (start, length, durable) = (0, 0, self.durable);
        let place = Place { start, length, index, term, durable, kind: kind.code() };
        if let Some(last) = self.files.last_mut() {
            format::write(&mut self.unwritten, last.salt, &place, bytes);
            last.starts.push(last.end);
            last.end += size;
        }
        self.prepare_spare();
        Ok(())
    }

    /// Writes the records that were added, without waiting for the disk: they survive a crash of
    /// the process, not one of the machine.
    ///
    /// # Errors
    /// If the disk is full or failing; nothing is accepted any more then.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        self.check_usable()?;
        self.check_invariants();
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let (Some(file), Some(last)) = (&self.file, self.files.last()) else { return Ok(()) };
        let at = last.end - self.unwritten.len() as u64;
        if let Err(error) = file.write_all_at(&self.unwritten, at) {
            return Err(self.fail("cannot be written", error));
        }
        self.unwritten.clear();
        Ok(())
    }

    /// Writes the records that were added and waits until the disk has them.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.flush()?;
        let Some(file) = &self.file else { return Ok(()) };
        let next = self.next().unwrap_or(1);
        if self.durable + 1 == next {
            return Ok(());
        }
        if let Err(error) = file.sync_data() {
            return Err(self.fail("cannot be synced to its disk", error));
        }
        self.durable = next - 1;
        Ok(())
    }

    /// Removes the records from an index on, durably.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn truncate(&mut self, from: u64) -> Result<(), JournalError> {
        self.flush()?;
        let mut is_cut = false;
        while self.files.len() > 1
            && let Some(removed) = self.files.pop_if(|last| last.first >= from)
        {
            is_cut = true;
            if let Err(error) = fs::remove_file(&removed.path) {
                return Err(self.fail("cannot be truncated", error));
            }
        }
        let Some(last) = self.files.last_mut() else { return Ok(()) };
        let keep = usize::try_from(from.saturating_sub(last.first)).unwrap_or(usize::MAX);
        if let Some(start) = last.starts.get(keep) {
            last.end = *start;
            last.starts.truncate(keep);
            is_cut = true;
        }
        if is_cut {
            self.durable = self.durable.min(last.next() - 1);
            match cut(&last.path, last.end, self.settings.file_bytes) {
                Ok(file) => self.file = Some(file),
                Err(error) => return Err(self.fail("cannot be truncated", error)),
            }
        }
        self.check_invariants();
        Ok(())
    }

    /// Removes files whose records all have at most this index, or keeps one to use it again; the
    /// last file stays.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn purge(&mut self, upto: u64) -> Result<(), JournalError> {
        while self.files.len() > 1 && self.files[0].next() <= upto.saturating_add(1) {
            let removed = self.files.remove(0);
            if let Err(error) = self.spare.keep(&removed.path) {
                return Err(self.fail("keeps a file that is to be removed", error));
            }
        }
        self.check_invariants();
        Ok(())
    }

    /// Restarts behind `upto`, without any of the records so far: a snapshot replaced them.
    ///
    /// # Errors
    /// If a file cannot be removed or created.
    pub fn restart(&mut self, upto: u64) -> Result<(), JournalError> {
        self.check_usable()?;
        self.unwritten.clear();
        self.file = None;
        while let Some(removed) = self.files.pop() {
            if let Err(error) = fs::remove_file(&removed.path) {
                return Err(self.fail("keeps a file that is to be removed", error));
            }
        }
        self.durable = upto;
        self.begin_file(upto + 1)
    }

    fn check_usable(&self) -> Result<(), JournalError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, fault: &'static str, error: io::Error) -> JournalError {
        let error = JournalError::file(&self.folder, fault, error);
        self.failed = Some(error.clone());
        error
    }

    /// Ends the last file and begins the next, whose first record is `first`.
    fn begin_file(&mut self, first: u64) -> Result<(), JournalError> {
        if !self.files.is_empty() {
            // A later file means that all of the earlier ones are durable.
            self.sync()?;
        }
        let path = self.folder.join(format!("{first:020}.journal"));
        let salt = match self.spare.take(&path, first) {
            Ok((file, salt)) => {
                self.file = Some(file);
                salt
            }
            Err(error) => return Err(self.fail("cannot grow", error)),
        };
        let end = HEADER_BYTES as u64;
        self.files.push(JournalFile { path, first, salt, starts: vec![], end });
        self.check_invariants();
        Ok(())
    }

    fn prepare_spare(&mut self) {
        self.spare.prepare(self.files.last().map(|last| last.end));
    }
}

/// Opens a file that is intact. What another process wrote there is made durable.
fn open_intact(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.sync_data()?;
    Ok(file)
}

/// Replaces everything from `end` on by zeros. The file is made shorter first, which a crash leaves
/// done or not done, so that nothing of the old end can come back.
fn cut(path: &Path, end: u64, size: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.set_len(end)?;
    file.sync_all()?;
    fill(&file, end, size)?;
    file.sync_all()?;
    Ok(file)
}
