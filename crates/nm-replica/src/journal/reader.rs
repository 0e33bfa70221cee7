//! Reads a journal from its beginning, without changing anything.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{Damage, JournalError};
use super::format::{self, Place, RECORD_BYTES};
use super::record::{Record, RecordKind};

/// Reads a journal from its beginning, without changing anything.
#[derive(Debug)]
pub struct Reader {
    /// The files by their first index.
    paths: Vec<(u64, PathBuf)>,
    /// Position of the next file.
    position: usize,
    /// Index that the next record must have.
    next: Option<u64>,
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
}

impl Reader {
    /// A reader of the journal in a folder. A journal may be read while it is written; the end is
    /// then wherever it is.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open(folder: &Path) -> Result<Reader, JournalError> {
        let unreadable = |error: io::Error| JournalError::file(folder, "cannot be read", error);
        let mut paths = vec![];
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let first = path
                .extension()
                .filter(|extension| *extension == "journal")
                .and_then(|_| path.file_stem()?.to_str()?.parse().ok());
            paths.extend(first.map(|first| (first, path)));
        }
        paths.sort();
        Ok(Reader { paths, position: 0, next: None, current: None, torn_bytes: 0 })
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

    /// The next file; `None` at the end.
    ///
    /// # Errors
    /// As [`Reader::next_record`].
    pub fn next_file(&mut self) -> Result<Option<ScannedFile>, JournalError> {
        let Some((first, path)) = self.paths.get(self.position).cloned() else { return Ok(None) };
        self.position += 1;
        let is_last = self.position == self.paths.len();
        let bytes =
            fs::read(&path).map_err(|error| JournalError::file(&path, "cannot be read", error))?;
        let damaged = |index: u64, damage: Damage| {
            Err(JournalError::Damaged { path: path.clone(), index, damage })
        };
        if let Some(next) = self.next.filter(|next| *next != first) {
            return damaged(next, Damage::Missing);
        }
        let scan = format::scan(&bytes, first);
        let next = first + scan.places.len() as u64;
        if !scan.has_header || scan.durable >= next {
            return damaged(next, Damage::NotReadable);
        }
        if !is_last && scan.torn_bytes > 0 {
            return damaged(next, Damage::NotReadableBeforeEnd);
        }
        self.next = Some(next);
        let format::Scan { places, salt, torn_bytes, .. } = scan;
        let end = scan.end as u64;
        Ok(Some(ScannedFile { path, first, places, end, salt, torn_bytes, bytes }))
    }
}
