//! A journal that is open for writing.

use std::io;
use std::path::{Path, PathBuf};

use super::error::JournalError;
use super::format::{self, HEADER_BYTES, Place};
use super::reader::{self, Reader, ScannedFile};
use super::record::{Found, RecordKind, Settings};
use super::spare::{Spare, fill};
use super::watermark::{Watermark, WatermarkFile};
use crate::env::{Env, Machine};
use crate::storage::File;

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
    fn of(scanned: &ScannedFile) -> JournalFile {
        let starts = scanned.places.iter().map(|place| place.start as u64).collect();
        let ScannedFile { path, first, end, salt, .. } = scanned;
        JournalFile { path: path.clone(), first: *first, salt: *salt, starts, end: *end }
    }

    /// Index behind its last record.
    fn next(&self) -> u64 {
        self.first + self.starts.len() as u64
    }
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    env: Env,
    folder: PathBuf,
    settings: Settings,
    /// The files, oldest first.
    files: Vec<JournalFile>,
    /// The last file, open for writing.
    file: Option<Box<dyn File>>,
    spare: Spare,
    /// Records that are not written yet, for the end of the last file.
    unwritten: Vec<u8>,
    /// Index up to which the disk has everything.
    durable: u64,
    /// The terms of the records, each with the index of its first one.
    terms: Vec<(u64, u64)>,
    watermark: WatermarkFile,
    /// Why nothing is accepted any more.
    failed: Option<JournalError>,
}

impl Journal {
    /// Opens the journal in a folder, which is created if it is missing. Records before `from` are
    /// not returned, and are not needed.
    ///
    /// # Errors
    /// If the folder cannot be used, or a record before the end is damaged.
    pub fn open(
        folder: &Path,
        settings: Settings,
        from: u64,
    ) -> Result<(Journal, Found), JournalError> {
        Journal::open_in(&Machine::env(), folder, settings, from)
    }

    /// As [`Journal::open`], in these surroundings.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub(crate) fn open_in(
        env: &Env,
        folder: &Path,
        settings: Settings,
        from: u64,
    ) -> Result<(Journal, Found), JournalError> {
        Journal::open_part(env, folder, settings, (from, u64::MAX))
    }

    /// As [`Journal::open_in`]; the records from the second index on are removed, because one of
    /// them is damaged.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub(crate) fn open_part(
        env: &Env,
        folder: &Path,
        settings: Settings,
        (from, until): (u64, u64),
    ) -> Result<(Journal, Found), JournalError> {
        let failed = |error: io::Error| JournalError::file(folder, "cannot be written", error);
        env.create_folder(folder)
            .map_err(|error| JournalError::file(folder, "cannot be created", error))?;
        let mut watermark = WatermarkFile::open(env, folder).map_err(failed)?;
        let mut reader = Reader::open_part(env, folder, (from, until))?;
        let (mut found, mut files, mut last) = (Found::default(), vec![], None);
        let mut terms = vec![];
        let mut known = watermark.now().index();
        while let Some(scanned) = reader.next_file()? {
            if scanned.follows_gap {
                files.clear();
            }
            found.torn_bytes += scanned.torn_bytes;
            for place in &scanned.places {
                known = known.max(place.durable);
                note_term(&mut terms, place.index, place.term);
                if place.index >= from {
                    found.records.push(scanned.record(place)?);
                }
            }
            files.push(JournalFile::of(&scanned));
            last = Some(scanned);
        }
        if until != u64::MAX {
            remove_from(env, folder, until, &mut watermark).map_err(failed)?;
        }
        let size = settings.file_bytes;
        let reopen = |last: &ScannedFile| reopen(env, last, size, known);
        let file = last.as_ref().map(reopen).transpose().map_err(failed)?;
        let mut journal = Journal {
            env: env.clone(),
            folder: folder.to_path_buf(),
            settings,
            durable: files.last().map_or(0, |last| last.next() - 1),
            terms,
            watermark,
            files,
            file,
            spare: Spare::new(env.clone(), folder, settings.file_bytes),
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

    /// Index of the first record that there is or will be; `None` if there never was one.
    pub fn first(&self) -> Option<u64> {
        self.files.first().map(|file| file.first)
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
        note_term(&mut self.terms, index, term);
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

    /// Whether the disk has more than the watermark says.
    pub fn is_watermark_due(&self) -> bool {
        !self.terms.is_empty() && self.durable > self.watermark.now().index()
    }

    /// Advances the watermark to what the disk has. To be called when nothing else is to do.
    ///
    /// # Errors
    /// If the disk is full or failing; nothing is accepted any more then.
    pub fn advance_watermark(&mut self) -> Result<(), JournalError> {
        self.check_usable()?;
        let watermark = Watermark { last: self.last_durable(), ..self.watermark.now() };
        self.set_watermark(watermark)
    }

    /// Term and index of the last record that the disk is known to have.
    fn last_durable(&self) -> (u64, u64) {
        let is_all = self.next() == Some(self.durable + 1);
        match self.terms.last() {
            Some((_, term)) if is_all => (*term, self.durable),
            _ => self.watermark.now().last,
        }
    }

    /// The watermark for a journal without the records from an index on.
    fn watermark_before(&self, from: u64) -> Watermark {
        let now = self.watermark.now();
        let file = self.files.iter().rev().find(|file| file.first < from);
        let term = self.terms.iter().rev().find(|(first, _)| *first < from);
        match (file, term) {
            (Some(file), Some((_, term))) => {
                let last = if self.durable < from - 1 { now.last } else { (*term, from - 1) };
                Watermark { last, file: file.first, salt: file.salt }
            }
            _ => Watermark::default(),
        }
    }

    fn set_watermark(&mut self, watermark: Watermark) -> Result<(), JournalError> {
        match self.watermark.set(&self.env, &self.folder, watermark) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("cannot be synced to its disk", error)),
        }
    }

    /// Removes the records from an index on, durably.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn truncate(&mut self, from: u64) -> Result<(), JournalError> {
        self.flush()?;
        // Before anything is removed: what is missing below the watermark is damage, and what is
        // kept loses the records behind it that said that the disk has it.
        self.set_watermark(self.watermark_before(from))?;
        let mut is_cut = false;
        while self.files.len() > 1
            && let Some(removed) = self.files.pop_if(|last| last.first >= from)
        {
            is_cut = true;
            let removed = self.env.remove(&removed.path);
            // Before the file in front of it is removed or cut: there must never be a gap.
            if let Err(error) = removed.and_then(|()| self.env.sync_folder(&self.folder)) {
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
            self.terms.retain(|(first, _)| *first < from);
            match cut(&self.env, &last.path, last.end, self.settings.file_bytes) {
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
        self.set_watermark(Watermark::default())?;
        self.unwritten.clear();
        self.file = None;
        self.terms.clear();
        while let Some(removed) = self.files.pop() {
            if let Err(error) = self.env.remove(&removed.path) {
                return Err(self.fail("keeps a file that is to be removed", error));
            }
        }
        self.durable = upto;
        self.begin_file(upto + 1)
    }

    /// Ends the journal: its last file is as long as its records, until somebody opens it again.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn close(mut self) -> Result<(), JournalError> {
        self.sync()?;
        if self.is_watermark_due() {
            self.advance_watermark()?;
        }
        let (Some(file), Some(last)) = (&self.file, self.files.last()) else { return Ok(()) };
        let cut = file.set_len(last.end).and_then(|()| file.sync_all());
        cut.map_err(|error| self.fail("cannot be truncated", error))
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
        let last = self.last_durable();
        let end = HEADER_BYTES as u64;
        self.files.push(JournalFile { path, first, salt, starts: vec![], end });
        self.check_invariants();
        self.set_watermark(Watermark { last, file: first, salt })
    }

    fn prepare_spare(&mut self) {
        self.spare.prepare(self.files.last().map(|last| last.end));
    }
}

/// A record of this index and term follows.
fn note_term(terms: &mut Vec<(u64, u64)>, index: u64, term: u64) {
    if terms.last().is_none_or(|(_, last)| *last != term) {
        terms.push((index, term));
    }
}

/// Removes the files from an index on, the last one first. Nothing is missing after that: the
/// watermark says so before.
fn remove_from(
    env: &Env,
    folder: &Path,
    until: u64,
    watermark: &mut WatermarkFile,
) -> io::Result<()> {
    watermark.set(env, folder, Watermark::default())?;
    let files = reader::files(env, folder)?;
    let mut removed = files.iter().rev().take_while(|(first, _)| *first >= until);
    removed.try_for_each(|(_, path)| env.remove(path))?;
    env.sync_folder(folder)
}

/// Opens the last file for writing. The records behind `known` are written again: the system shows
/// what another process wrote there, but the disk has it only if a sync succeeded.
fn reopen(env: &Env, last: &ScannedFile, size: u64, known: u64) -> io::Result<Box<dyn File>> {
    let is_intact = last.torn_bytes == 0 && last.bytes.len() as u64 == size;
    let file =
        if is_intact { env.open(&last.path)? } else { cut(env, &last.path, last.end, size)? };
    if let Some(place) = last.places.iter().find(|place| place.index > known) {
        // The zeros behind the last record may be missing.
        let records = place.start..last.bytes.len().min(last.end as usize);
        file.write_all_at(&last.bytes[records], place.start as u64)?;
    }
    file.sync_data()?;
    Ok(file)
}

/// Replaces everything from `end` on by zeros. The file is made shorter first, which a crash leaves
/// done or not done, so that nothing of the old end can come back.
fn cut(env: &Env, path: &Path, end: u64, size: u64) -> io::Result<Box<dyn File>> {
    let file = env.open(path)?;
    file.set_len(end)?;
    file.sync_all()?;
    fill(&*file, end, size)?;
    file.sync_all()?;
    Ok(file)
}
