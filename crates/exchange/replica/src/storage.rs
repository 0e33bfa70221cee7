//! Files of the machine: the operations that a replica needs.

use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a file that are read again alone if the file cannot be read as a whole.
const SECTOR_BYTES: usize = 4096;

/// A file that is open for reading and writing.
pub trait File: Debug + Send + Sync {
    /// Writes all bytes at an offset. They survive a crash of the process.
    ///
    /// # Errors
    /// The system's error; a part may be written.
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Makes the file shorter, or longer with zeros.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Waits until the disk has the content. After an error nobody knows which parts of it the disk
    /// has: the system forgets that they must be written, and shows them to every reader. Only
    /// what is written again can become durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync_data(&self) -> io::Result<()>;

    /// As [`File::sync_data`], for the content and everything else about the file.
    ///
    /// # Errors
    /// The system's error.
    fn sync_all(&self) -> io::Result<()>;
}

impl File for fs::File {
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        fs::File::set_len(self, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        fs::File::sync_all(self)
    }
}

/// Creates an empty file, or makes one empty.
///
/// # Errors
/// The system's error.
pub fn create(path: &Path) -> io::Result<Box<dyn File>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
    Ok(Box::new(file))
}

/// Opens a file that exists.
///
/// # Errors
/// The system's error.
pub fn open(path: &Path) -> io::Result<Box<dyn File>> {
    Ok(Box::new(OpenOptions::new().read(true).write(true).open(path)?))
}

/// The content of a file. Parts that the disk cannot read are zeros, so that a checksum tells which
/// they are.
///
/// # Errors
/// The system's error, except that of a bad part of the disk.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.raw_os_error() == Some(INPUT_OUTPUT_ERROR) => {
            let file = fs::File::open(path)?;
            let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
            read_around(bytes, |sector, at| file.read_exact_at(sector, at))
        }
        read => read,
    }
}

/// `EIO`.
const INPUT_OUTPUT_ERROR: i32 = 5;

/// Reads sector by sector; one that cannot be read is zeros.
fn read_around(
    bytes: usize,
    read: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let mut content = vec![0; bytes];
    for (number, sector) in content.chunks_mut(SECTOR_BYTES).enumerate() {
        match read(sector, (number * SECTOR_BYTES) as u64) {
            Err(error) if error.raw_os_error() == Some(INPUT_OUTPUT_ERROR) => sector.fill(0),
            result => result?,
        }
    }
    Ok(content)
}

/// Size of a file, bytes.
///
/// # Errors
/// The system's error.
pub fn size(path: &Path) -> io::Result<u64> {
    Ok(fs::metadata(path)?.len())
}

/// The files in a folder, in no order.
///
/// # Errors
/// The system's error.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Creates a folder and those above it, durably.
///
/// # Errors
/// The system's error.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(folder)?;
    let above = missing.iter().filter_map(|path| path.parent());
    above
        .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path })
        .try_for_each(sync_folder)
}

/// Removes a file. The removal is durable after [`sync_folder`].
///
/// # Errors
/// The system's error.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Gives a file another name; a file that had it is replaced.
///
/// # Errors
/// The system's error.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// As [`rename`], durably.
///
/// # Errors
/// The system's error.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    rename(from, to)?;
    sync_folder(to.parent().unwrap_or(Path::new("/")))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_sector_is_read_as_zeros_and_the_others_as_they_are() {
        let read = |sector: &mut [u8], at: u64| {
            if at == SECTOR_BYTES as u64 {
                return Err(io::Error::from_raw_os_error(INPUT_OUTPUT_ERROR));
            }
            sector.fill(7);
            Ok(())
        };
        let content = read_around(2 * SECTOR_BYTES + 10, read).unwrap();
        assert_eq!(content.len(), 2 * SECTOR_BYTES + 10);
        let is_bad = |at: usize| (SECTOR_BYTES..2 * SECTOR_BYTES).contains(&at);
        assert!(content.iter().enumerate().all(|(at, byte)| (*byte == 0) == is_bad(at)));
        let other = |_: &mut [u8], _: u64| Err(io::ErrorKind::PermissionDenied.into());
        assert!(read_around(1, other).is_err());
    }

    #[test]
    fn folders_are_created_with_those_above_them() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b/c");
        create_folder(&inner).unwrap();
        create_folder(&inner).unwrap();
        assert!(inner.is_dir());
    }
}
