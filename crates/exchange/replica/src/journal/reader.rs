//! Reads a journal from its beginning, without changing anything.

use std::io;
use std::path::{Path, PathBuf};

use super::error::{Damage, JournalError};
use super::format::{self, Place, RECORD_BYTES};
use super::record::{Record, RecordKind};
use super::watermark::Watermark;
use crate::env::{Env, Machine};

/// Reads a journal from its beginning, without changing anything.
#[derive(Debug)]
pub struct Reader {
    env: Env,
    folder: PathBuf,
    /// The files by their first index.
    paths: Vec<(u64, PathBuf)>,
    /// Position of the next file.
    position: usize,
    /// The records that are needed: from the first on, and before the second.
    needed: (u64, u64),
    watermark: Watermark,
    /// Index that the next record must have.
    next: Option<u64>,
    /// The file before, and where its last record ends.
    before: Option<(PathBuf, u64)>,
    /// The current file, and its records that are not returned yet, last first.
    current: Option<ScannedFile>,
    /// Bytes of a half-written end, known when the end is reached.
    pub torn_bytes: u64,
}

/// A file that was read and found intact, or torn at its end.
#[derive(Debug)]
pub struct ScannedFile {
    pub path: PathBuf,
    /// Index of its first record.
    pub first: u64,
    pub places: Vec<Place>,
    /// Where its last record ends.
    pub end: u64,
    pub salt: u32,
    pub torn_bytes: u64,
    pub bytes: Vec<u8>,
    /// Whether records before it are missing, none of which is needed.
    pub follows_gap: bool,
}

impl ScannedFile {
    /// The record at a place.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn record(&self, place: &Place) -> Result<Record, JournalError> {
        let Place { start, length, index, term, kind, .. } = *place;
        let kind = RecordKind::from_code("kind", kind).map_err(|source| JournalError::Decode {
            path: self.path.clone(),
            index,
            source,
        })?;
        let content = &self.bytes[start + RECORD_BYTES..start + RECORD_BYTES + length];
        Ok(Record { index, term, kind, bytes: content.to_vec() })
    }

    /// Index behind its last record.
    pub fn next(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    /// Forgets the records from an index on.
    fn truncate(&mut self, until: u64) {
        let keep = usize::try_from(until - self.first).unwrap_or(usize::MAX);
        if let Some(place) = self.places.get(keep) {
            self.end = place.start as u64;
            self.places.truncate(keep);
        }
        self.torn_bytes = (self.bytes.len() as u64).saturating_sub(self.end);
    }
}

impl Reader {
    /// A reader of the journal in a folder. A journal may be read while it is written; the end is
    /// then wherever it is.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open(folder: &Path) -> Result<Reader, JournalError> {
        Reader::open_part(&Machine::env(), folder, (0, u64::MAX))
    }

    /// A reader of the records from an index on; some that are before it may come as well.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open_from(folder: &Path, from: u64) -> Result<Reader, JournalError> {
        let mut reader = Reader::open_part(&Machine::env(), folder, (from, u64::MAX))?;
        let begun = reader.paths.iter().take_while(|(first, _)| *first <= from).count();
        reader.paths.drain(..begun.saturating_sub(1));
        Ok(reader)
    }

    /// A reader of which the records are needed from one index on, and before another one.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(super) fn open_part(
        env: &Env,
        folder: &Path,
        needed: (u64, u64),
    ) -> Result<Reader, JournalError> {
        let unreadable = |error: io::Error| JournalError::file(folder, "cannot be read", error);
        // First: of a journal that is written, the files have more than it says.
        let watermark = Watermark::read(env, folder).map_err(unreadable)?;
        let mut paths = files(env, folder).map_err(unreadable)?;
        paths.retain(|(first, _)| *first < needed.1);
        Ok(Reader {
            env: env.clone(),
            folder: folder.into(),
            paths,
            position: 0,
            needed,
            watermark,
            next: None,
            before: None,
            current: None,
            torn_bytes: 0,
        })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// If a record before the end is damaged, or a file cannot be read.
    pub fn next_record(&mut self) -> Result<Option<Record>, JournalError> {
        loop {
            if let Some(file) = &mut self.current
                && let Some(place) = file.places.pop()
            {
                return file.record(&place).map(Some);
            }
            let Some(mut file) = self.next_file()? else { return Ok(None) };
            self.torn_bytes = file.torn_bytes;
            file.places.reverse();
            self.current = Some(file);
        }
    }

    /// The next file; `None` at the end. Files with damage before the records that are needed are
    /// left out, and those before them are to be ignored.
    ///
    /// # Errors
    /// As [`Reader::next_record`].
    pub fn next_file(&mut self) -> Result<Option<ScannedFile>, JournalError> {
        loop {
            let Some((first, path)) = self.paths.get(self.position).cloned() else {
                return self.check_end().map(|()| None);
            };
            self.position += 1;
            let scanned = self.scan(first, &path);
            let later = self.paths.get(self.position);
            match scanned {
                Err(_) if later.is_some_and(|(later, _)| *later <= self.needed.0) => {
                    (self.next, self.before) = (None, Some((path, 0)));
                }
                Err(error) => return Err(error),
                Ok(scanned) => {
                    self.next = Some(scanned.next());
                    self.before = Some((path, scanned.end));
                    return Ok(Some(scanned));
                }
            }
        }
    }

    fn scan(&self, first: u64, path: &Path) -> Result<ScannedFile, JournalError> {
        let (from, until) = self.needed;
        let is_last = self.position == self.paths.len();
        let bytes = self
            .env
            .read(path)
            .map_err(|error| JournalError::file(path, "cannot be read", error))?;
        let is_gap = self.before.is_some() && self.next != Some(first);
        if let Some(next) = self.next.filter(|_| is_gap && first > from) {
            return Err(self.damaged(next, Damage::Missing));
        }
        let scan = format::scan(&bytes, first, self.watermark.salt_of(first));
        let next = first + scan.places.len() as u64;
        let end = scan.end as u64;
        let damaged = |offset: u64, damage: Damage| {
            let index = if offset == 0 { first } else { next };
            Err(JournalError::Damaged { path: path.into(), index, offset, damage })
        };
        let is_complete = scan.has_header && next >= until;
        if !scan.has_header {
            return damaged(0, Damage::NotReadable);
        }
        if scan.durable >= next && !is_complete {
            return damaged(end, Damage::NotReadable);
        }
        if !is_last && scan.torn_bytes > 0 && !is_complete {
            return damaged(end, Damage::NotReadableBeforeEnd);
        }
        let format::Scan { places, salt, torn_bytes, .. } = scan;
        let path = path.into();
        let mut scanned =
            ScannedFile { path, first, places, end, salt, torn_bytes, bytes, follows_gap: is_gap };
        if is_complete {
            scanned.truncate(until);
        }
        Ok(scanned)
    }

    /// The record of this index should be behind those that were read.
    fn damaged(&self, index: u64, damage: Damage) -> JournalError {
        let nowhere = || (self.folder.clone(), 0);
        let (path, offset) = self.before.clone().unwrap_or_else(nowhere);
        JournalError::Damaged { path, index, offset, damage }
    }

    /// Whether everything is there that the disk had.
    fn check_end(&self) -> Result<(), JournalError> {
        let (from, until) = self.needed;
        let next = self.next.unwrap_or(1).max(from);
        let newest = self.paths.last().map_or(0, |(first, _)| *first);
        let is_missing = self.watermark.file > newest && self.watermark.file >= next;
        if next >= until || !is_missing && self.watermark.index() < next {
            return Ok(());
        }
        Err(self.damaged(next, if is_missing { Damage::Missing } else { Damage::BelowWatermark }))
    }
}

/// The files of the journal in a folder, by their first index.
///
/// # Errors
/// The system's error.
pub fn files(env: &Env, folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut paths = vec![];
    for path in env.list(folder)? {
        let first = path
            .extension()
            .filter(|extension| *extension == "journal")
            .and_then(|_| path.file_stem()?.to_str()?.parse().ok());
        paths.extend(first.map(|first| (first, path)));
    }
    paths.sort();
    Ok(paths)
}

/// Term and index of the last record that a damaged journal had, zeros if it had none; `None` if
/// that cannot be known: the newest file is missing, or nothing in it can be read.
///
/// # Errors
/// If the folder cannot be read.
pub fn last_record(env: &Env, folder: &Path) -> Result<Option<(u64, u64)>, JournalError> {
    let unreadable = |error: io::Error| JournalError::file(folder, "cannot be read", error);
    let watermark = Watermark::read(env, folder).map_err(unreadable)?;
    let paths = files(env, folder).map_err(unreadable)?;
    let newest = paths.last().map_or(0, |(first, _)| *first);
    let mut last = watermark.last;
    for (first, path) in paths {
        let bytes =
            env.read(&path).map_err(|error| JournalError::file(&path, "cannot be read", error))?;
        let salt = watermark.salt_of(first);
        let scan = format::scan(&bytes, first, salt);
        if first == newest && !scan.has_header && salt.is_none() {
            return Ok(None);
        }
        let in_order = scan.places.last().map(|place| (place.term, place.index));
        last = last.max(in_order.max(scan.behind).unwrap_or_default());
    }
    Ok(Some(last).filter(|_| watermark.file <= newest))
}
