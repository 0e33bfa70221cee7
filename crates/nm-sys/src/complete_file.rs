//! Files that are there with all of their content, or not at all.
//!
//! The content goes to a temporary name in the same folder, which becomes the file's name at the
//! end. A disk that is full, or a crash, so leaves no file that is empty or cut off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Whether a file can be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It cannot: it is on the disk before it has its name.
    Measured,
    /// It is made from files that stay.
    Derived,
}

/// Access to a file that is not secret, before the user's mask.
pub const MODE_PUBLIC: u32 = 0o666;

/// Access to a file that is its owner's alone.
pub const MODE_PRIVATE: u32 = 0o600;

/// Writes a file, in place of one of that name. A symbolic link is replaced, not followed; a
/// device or pipe is written to.
///
/// # Errors
/// Those of the file system. An earlier file is then as it was.
pub fn replace(path: &Path, bytes: &[u8], origin: Origin) -> io::Result<()> {
    // A device cannot be exchanged for a file: the user means its driver, such as that of a
    // terminal.
    let is_special = fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir());
    if is_special {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    write(path, bytes, MODE_PUBLIC, origin, |temporary| fs::rename(temporary, path))
}

/// Writes a new file with these rights; one that exists is left alone.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if the name is taken, and those of the file system. There is then
/// no file, or the one that was there.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    write(path, bytes, mode, Origin::Measured, |temporary| rename_new(temporary, path))
}

/// Writes new files, all or none: what was written before a failure is removed, so that the same
/// command can be repeated.
///
/// # Errors
/// Those of [`create`], with the file.
pub fn create_all(files: &[(PathBuf, &[u8])]) -> Result<(), (PathBuf, io::Error)> {
    for (number, (path, bytes)) in files.iter().enumerate() {
        if let Err(error) = create(path, bytes, MODE_PUBLIC) {
            for (written, _) in &files[..number] {
                let _ = fs::remove_file(written);
            }
            return Err((path.clone(), error));
        }
    }
    Ok(())
}

/// Checks that files can be made in a folder.
///
/// # Errors
/// Those of the file system.
pub fn check_writable(folder: &Path) -> io::Result<()> {
    let temporary = temporary(&folder.join("any"));
    create_temporary(&temporary, MODE_PUBLIC)?;
    fs::remove_file(&temporary)
}

/// Writes under a temporary name, which `rename` makes the file's own.
fn write(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    origin: Origin,
    rename: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary(path);
    let written = create_temporary(&temporary, mode).and_then(|mut file| {
        file.write_all(bytes)?;
        if origin == Origin::Measured {
            file.sync_all()?;
        }
        rename(&temporary)
    });
    if let Err(error) = written {
        // The write has failed already; a temporary file that stays does no harm.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    if origin == Origin::Measured {
        // The new name is on the disk when the folder is. Not every file system can do that.
        let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// A name beside `path` that no other process uses now. It does not have the file's name in it,
/// which may be as long as names can be.
fn temporary(path: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder(path).join(format!(".nearmetal-{}-{number}.tmp", std::process::id()))
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Creates a file, in place of one that a crash left. It never writes through a link that somebody
/// else has put there.
fn create_temporary(path: &Path, mode: u32) -> io::Result<File> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()
        }
        created => created,
    }
}

/// Renames unless the name is taken, in one step, so that of two processes one is refused.
fn rename_new(temporary: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        // The file system cannot do that; a second name is refused if it exists, too.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::hard_link(temporary, path)?;
            fs::remove_file(temporary)
        }
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_folder::PrivateFolder;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch() -> PrivateFolder {
        PrivateFolder::create(&std::env::temp_dir(), "nm-sys-test-").unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_has_its_rights_and_one_that_exists_is_left_alone() {
        let scratch = scratch();
        let path = scratch.path().join("x".repeat(255));
        create(&path, b"one", MODE_PRIVATE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = create(&path, b"two", MODE_PUBLIC).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        let temporary = temporary(&path);
        fs::write(&temporary, b"three").unwrap();
        assert_eq!(rename_new(&temporary, &path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::remove_file(&temporary).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(names(scratch.path()).len(), 1, "no temporary file stays");
    }

    #[test]
    fn of_several_files_all_are_written_or_none() {
        let scratch = scratch();
        let at = |name: &str| (scratch.path().join(name), &b"text"[..]);
        create_all(&[at("one"), at("two")]).unwrap();
        let (path, error) = create_all(&[at("three"), at("two"), at("four")]).unwrap_err();
        assert_eq!((path, error.kind()), (at("two").0, ErrorKind::AlreadyExists));
        assert_eq!(names(scratch.path()), ["one", "two"]);
    }

    #[test]
    fn a_file_is_replaced_and_a_link_is_not_followed() {
        let scratch = scratch();
        let (kept, path) = (scratch.path().join("kept"), scratch.path().join("file"));
        fs::write(&kept, "kept").unwrap();
        symlink(&kept, &path).unwrap();
        for origin in [Origin::Measured, Origin::Derived] {
            replace(&path, b"new", origin).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
        assert_eq!(names(scratch.path()), ["file", "kept"]);
    }

    #[test]
    fn what_fails_leaves_nothing_and_a_device_stays_one() {
        let scratch = scratch();
        let folder = scratch.path().join("folder");
        fs::create_dir(&folder).unwrap();
        replace(&folder, b"new", Origin::Measured).unwrap_err();
        assert_eq!(names(scratch.path()), ["folder"]);
        let full = replace(Path::new("/dev/full"), b"new", Origin::Measured).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        replace(Path::new("/dev/null"), b"new", Origin::Derived).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
