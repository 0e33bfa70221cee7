//! The operations on files that a replica needs: the system's, or in tests those of a simulated
//! disk that loses what was not synced and injects faults.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[cfg(test)]
use crate::simulated_disk;

/// Bytes of a file that are read again alone if the file cannot be read as a whole.
const SECTOR_BYTES: usize = 4096;

/// A file that is open for reading and writing.
#[derive(Debug)]
pub enum File {
    /// Of the system.
    System(fs::File),
    /// Of the simulated disk.
    #[cfg(test)]
    Simulated(simulated_disk::File),
}

impl File {
    /// Writes all bytes at an offset. They survive a crash of the process.
    ///
    /// # Errors
    /// The system's error; a part may be written.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self {
            File::System(file) => file.write_all_at(bytes, at),
            #[cfg(test)]
            File::Simulated(file) => file.write_all_at(bytes, at),
        }
    }

    /// Makes the file shorter, or longer with zeros.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        match self {
            File::System(file) => file.set_len(bytes),
            #[cfg(test)]
            File::Simulated(file) => file.set_len(bytes),
        }
    }

    /// Waits until the disk has the content. After an error nobody knows which parts of it the disk
    /// has: the system forgets that they must be written, and shows them to every reader. Only
    /// what is written again can become durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync_data(&self) -> io::Result<()> {
        match self {
            File::System(file) => file.sync_data(),
            #[cfg(test)]
            File::Simulated(file) => file.sync(),
        }
    }

    /// As [`File::sync_data`], for the content and everything else about the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync_all(&self) -> io::Result<()> {
        match self {
            File::System(file) => file.sync_all(),
            #[cfg(test)]
            File::Simulated(file) => file.sync(),
        }
    }
}

/// Whether files may be written by threads of their own. A simulated disk belongs to one thread.
pub fn has_threads() -> bool {
    #[cfg(test)]
    return simulated_disk::mounted().is_none();
    #[cfg(not(test))]
    true
}

/// Creates an empty file, or makes one empty.
///
/// # Errors
/// The system's error.
pub fn create(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.open(path, true).map(File::Simulated);
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).open(path).map(File::System)
}

/// Opens a file that exists.
///
/// # Errors
/// The system's error.
pub fn open(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.open(path, false).map(File::Simulated);
    }
    OpenOptions::new().read(true).write(true).open(path).map(File::System)
}

/// The content of a file. Parts that the disk cannot read are zeros, so that a checksum tells which
/// they are.
///
/// # Errors
/// The system's error, except that of a bad part of the disk.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.read(path);
    }
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
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.size(path);
    }
    Ok(fs::metadata(path)?.len())
}

/// The files in a folder, in no order.
///
/// # Errors
/// The system's error.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return Ok(disk.list(folder));
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Creates a folder and those above it, durably.
///
/// # Errors
/// The system's error.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    if simulated_disk::mounted().is_some() {
        return Ok(());
    }
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
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.remove(path);
    }
    fs::remove_file(path)
}

/// Gives a file another name, durably; a file that had it is replaced.
///
/// # Errors
/// The system's error.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        disk.rename(from, to)?;
        return disk.sync_folder(to.parent().unwrap_or(Path::new("/")));
    }
    fs::rename(from, to)?;
    sync_folder(to.parent().unwrap_or(Path::new("/")))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(disk) = simulated_disk::mounted() {
        return disk.sync_folder(folder);
    }
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
