//! The watermark of a journal: up to where the disk is known to have it.
//!
//! Each record says what the disk had before it, so that damage is not taken for a torn write if a
//! record follows. The watermark says the same for the end of the journal. It is advanced when the
//! journal has been idle for a while, and at an orderly end. It is also advanced when a file
//! begins, and every few seconds of uninterrupted work. What was synced last, before a crash that
//! came within that time, is not below it. If such a record is damaged as well, it is taken for a
//! torn write.
//!
//! It also has the salt of the newest file, so that the file's records can be read without its
//! header.

use std::io;
use std::path::Path;

use nm_codec::{DecodeError, Put, Reader};

use crate::env::Env;
use crate::slot_file::{self, Marks, SlotFile};

/// Name of the file in a journal's folder.
const WATERMARK: &str = "watermark";

const MARKS: Marks = Marks { now: *b"nmwatr02", before: &[*b"nmwatr01"] };

/// What the disk is known to have; all zeros if nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watermark {
    /// Term and index of the last record that the disk had.
    pub last: (u64, u64),
    /// Index of the first record of the newest file.
    pub file: u64,
    /// Salt of that file.
    pub salt: u32,
}

impl Watermark {
    /// Index of the last record that the disk had.
    pub fn index(&self) -> u64 {
        self.last.1
    }

    /// The salt of the file that begins with this index, if it is known.
    pub fn salt_of(&self, first: u64) -> Option<u32> {
        (self.file == first).then_some(self.salt)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        out.put_u64s(&[self.last.0, self.last.1, self.file, self.salt.into()]);
        out
    }

    fn decode(content: &[u8]) -> Result<Watermark, DecodeError> {
        let mut reader = Reader::new(content);
        let last = (reader.u64("term")?, reader.u64("index")?);
        let file = reader.u64("file")?;
        let salt = u32::try_from(reader.u64("salt")?)
            .map_err(|_| DecodeError::invalid("salt", "has more than 32 bits"))?;
        reader.finish("watermark")?;
        Ok(Watermark { last, file, salt })
    }

    /// The watermark of the journal in a folder; one that is damaged says nothing.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(env: &Env, folder: &Path) -> io::Result<Watermark> {
        match slot_file::read(env, &folder.join(WATERMARK), &MARKS) {
            Ok(found) => Ok(Watermark::of(found.map(|found| found.content))),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Watermark::default()),
            Err(error) => Err(error),
        }
    }

    fn of(content: Option<Vec<u8>>) -> Watermark {
        content.and_then(|content| Watermark::decode(&content).ok()).unwrap_or_default()
    }
}

/// The watermark of a journal that is written, and its file if there is one.
#[derive(Debug, Default)]
pub struct WatermarkFile {
    file: Option<SlotFile>,
    now: Watermark,
}

impl WatermarkFile {
    /// The watermark of the journal in a folder.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(env: &Env, folder: &Path) -> io::Result<WatermarkFile> {
        match SlotFile::open(env, &folder.join(WATERMARK), &MARKS) {
            Ok(Some((file, content))) => {
                Ok(WatermarkFile { file: Some(file), now: Watermark::of(Some(content)) })
            }
            Ok(None) => Ok(WatermarkFile::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(WatermarkFile::default())
            }
            Err(error) => Err(error),
        }
    }

    /// The watermark.
    pub fn now(&self) -> Watermark {
        self.now
    }

    /// Changes the watermark, durably.
    ///
    /// # Errors
    /// The system's error.
    pub fn set(&mut self, env: &Env, folder: &Path, watermark: Watermark) -> io::Result<()> {
        if watermark == self.now {
            return Ok(());
        }
        let content = watermark.encode();
        match &mut self.file {
            Some(file) => file.write(&content)?,
            None => {
                let path = folder.join(WATERMARK);
                self.file = Some(SlotFile::create(env, &path, MARKS.now, &content)?);
            }
        }
        self.now = watermark;
        Ok(())
    }
}
