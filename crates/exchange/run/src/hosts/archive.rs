//! Unpacks the journals that another host sends as a tar archive.
//!
//! The host may send anything, and the run may be root's. So only regular files and plain folders
//! are made, under checked names and within limits. They have the access and owner of files that
//! this program makes. All of it lies in a private folder until the archive is known to be
//! complete.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use nm_sys::beneath::Beneath;
use nm_sys::private_folder::{FolderError, PrivateFolder};
use tar::{Archive, Entry, EntryType};
use thiserror::Error;

/// Access to files and folders, before the user's mask.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// How the private folder's name begins.
const PREFIX: &str = ".received-";

/// What may follow an archive's end, bytes: tar fills its last record.
const FILLING_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// What one host may send.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Files and folders.
    pub entries_max: u64,
    /// Bytes of one file.
    pub file_bytes_max: u64,
    /// Bytes of all files.
    pub all_bytes_max: u64,
    /// Bytes of a path.
    pub path_bytes_max: usize,
    /// Components of a path.
    pub depth_max: usize,
}

/// What a host may send after a run. A node keeps a few files for each of its cells.
pub const LIMITS: Limits = Limits {
    entries_max: 100_000,
    file_bytes_max: 64 << 30,
    all_bytes_max: 256 << 30,
    path_bytes_max: 255,
    depth_max: 8,
};

/// Why an archive is not unpacked.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// An entry is not accepted.
    #[error("it sent {name}, {why}")]
    Entry {
        /// Its name, quoted.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// There is more than a limit.
    #[error("it sent more than {limit} {what}")]
    TooMuch {
        /// The limit.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// The bytes are no archive.
    #[error("what it sent is no tar archive: {0}")]
    Form(io::Error),
    /// The archive ends within a file.
    #[error("what it sent is cut off in {name}")]
    CutOff {
        /// The file.
        name: String,
    },
    /// It cannot be written here.
    #[error("{} cannot be written: {source}", .path.display())]
    Write {
        /// Path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no place for it.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl ArchiveError {
    /// Whether the bytes ended within a file. Why the sender ended says more about that.
    pub fn is_end(&self) -> bool {
        matches!(self, ArchiveError::CutOff { .. })
    }
}

/// An archive that was unpacked to a private folder, which goes with this value.
#[derive(Debug)]
pub struct Unpacked {
    received: PrivateFolder,
    names: BTreeSet<String>,
    to: PathBuf,
}

impl Unpacked {
    /// Moves its folders to where they belong, all or none.
    ///
    /// # Errors
    /// If one of them is there already.
    pub fn keep(self) -> Result<(), ArchiveError> {
        let open = |path: &Path| {
            let failed = |source| ArchiveError::Write { path: path.to_path_buf(), source };
            Beneath::open(path).map_err(failed)
        };
        let (from, to) = (open(self.received.path())?, open(&self.to)?);
        for (number, name) in self.names.iter().enumerate() {
            if let Err(source) = from.give(name, &to) {
                for moved in self.names.iter().take(number) {
                    // What was moved back is removed with the private folder.
                    let _ = to.give(moved, &from);
                }
                return Err(ArchiveError::Write { path: self.to.join(name), source });
            }
        }
        Ok(())
    }
}

/// Unpacks an archive for the folder `to`. At its top it has folders of these `names` only.
///
/// # Errors
/// At the first entry that is not accepted. Then nothing is left.
pub fn unpack(
    bytes: impl Read,
    to: &Path,
    names: &[String],
    limits: &Limits,
) -> Result<Unpacked, ArchiveError> {
    let received = PrivateFolder::create(to, PREFIX)?;
    let path = received.path();
    let beneath = Beneath::open(path)
        .map_err(|source| ArchiveError::Write { path: path.to_path_buf(), source })?;
    let mut unpacker = Unpacker {
        beneath,
        path: received.path().to_path_buf(),
        limits,
        allowed: names,
        names: BTreeSet::new(),
        n_entries: 0,
        n_bytes: 0,
    };
    let mut archive = Archive::new(bytes);
    // Raw: headers that describe a later entry, such as long names, are entries like others here,
    // and refused. The library would keep them in memory, whatever their size.
    for entry in archive.entries().map_err(ArchiveError::Form)?.raw(true) {
        unpacker.add(&mut entry.map_err(ArchiveError::Form)?)?;
    }
    let mut rest = archive.into_inner().take(FILLING_BYTES_MAX);
    io::copy(&mut rest, &mut io::sink()).map_err(ArchiveError::Form)?;
    Ok(Unpacked { names: unpacker.names, received, to: to.to_path_buf() })
}

struct Unpacker<'a> {
    beneath: Beneath,
    path: PathBuf,
    limits: &'a Limits,
    allowed: &'a [String],
    names: BTreeSet<String>,
    n_entries: u64,
    n_bytes: u64,
}

impl Unpacker<'_> {
    fn add(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), ArchiveError> {
        let Limits { entries_max, file_bytes_max, all_bytes_max, .. } = *self.limits;
        let too_much = |limit, what| Err(ArchiveError::TooMuch { limit, what });
        self.n_entries += 1;
        if self.n_entries > entries_max {
            return too_much(entries_max, "files and folders");
        }
        let bytes = entry.path_bytes().into_owned();
        let name = format!("\"{}\"", bytes.escape_ascii());
        let refuse = |why| Err(ArchiveError::Entry { name: name.clone(), why });
        let is_folder = match entry.header().entry_type() {
            EntryType::Regular => false,
            EntryType::Directory if entry.size() == 0 => true,
            _ => return refuse("which is neither a regular file nor a plain folder"),
        };
        let parts = match parts(&bytes, is_folder, self.limits) {
            Ok(parts) => parts,
            Err(why) => return refuse(why),
        };
        let Some(top) = parts.first() else { return Ok(()) };
        if !self.allowed.iter().any(|name| name == top) || !is_folder && parts.len() == 1 {
            return refuse("which is not of a node that runs there");
        }
        self.names.insert((*top).to_string());
        if entry.size() > file_bytes_max {
            return too_much(file_bytes_max, "bytes in one file");
        }
        self.n_bytes = self.n_bytes.saturating_add(entry.size());
        if self.n_bytes > all_bytes_max {
            return too_much(all_bytes_max, "bytes");
        }
        let path: PathBuf = parts.iter().collect();
        let made = match is_folder {
            true => self.beneath.create_folder(&path, FOLDER_MODE),
            false => self.write(&path, entry, &name)?,
        };
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                refuse("of which it had sent one already")
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse("without the folder that it is in")
            }
            made => {
                made.map_err(|source| ArchiveError::Write { path: self.path.join(&path), source })
            }
        }
    }

    /// Writes a file: outside the result of reading, inside that of writing.
    fn write(
        &self,
        path: &Path,
        entry: &mut Entry<'_, impl Read>,
        name: &str,
    ) -> Result<io::Result<()>, ArchiveError> {
        let size = entry.size();
        let file = match self.beneath.create_file(path, FILE_MODE) {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        let mut file = BufWriter::with_capacity(WRITE_BYTES, file);
        match io::copy(entry, &mut file) {
            Ok(copied) if copied == size => Ok(file.flush()),
            Ok(_) => Err(ArchiveError::CutOff { name: name.to_string() }),
            Err(error) => Ok(Err(error)),
        }
    }
}

/// The components of an entry's name; none for the folder that was packed.
fn parts<'a>(
    bytes: &'a [u8],
    is_folder: bool,
    limits: &Limits,
) -> Result<Vec<&'a str>, &'static str> {
    if bytes.len() > limits.path_bytes_max {
        return Err("whose name is too long");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "whose name is not UTF-8")?;
    if text.chars().any(char::is_control) {
        return Err("whose name has control characters");
    }
    if text == "." || text == "./" {
        return if is_folder { Ok(vec![]) } else { Err("whose name is that of a folder") };
    }
    let text = text.strip_prefix("./").unwrap_or(text);
    let text = if is_folder { text.strip_suffix('/').unwrap_or(text) } else { text };
    let parts: Vec<&str> = text.split('/').collect();
    if parts.iter().any(|part| ["", ".", ".."].contains(part)) {
        return Err("whose name is no plain path below the folder");
    }
    if parts.len() > limits.depth_max {
        return Err("which is too many folders deep");
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
