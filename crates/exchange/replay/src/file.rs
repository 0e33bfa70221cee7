//! Files of days, plain or compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

/// First bytes of a file that is compressed by gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Why a file is no day.
#[derive(Debug, Error)]
pub enum DayError {
    /// It cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its content is wrong.
    #[error("{}, {place}: {why}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is wrong.
        why: String,
    },
}

/// Opens a file, and decompresses it if it is compressed, whatever its name.
///
/// # Errors
/// If it cannot be opened.
pub fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    Ok(match file.fill_buf()?.starts_with(&GZIP) {
        true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file))),
        false => Box::new(file),
    })
}
