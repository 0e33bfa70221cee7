//! Files that are there with all of their content, or not at all.
//!
//! The content goes to a temporary name in the same folder, which becomes the file's name at the
//! end. A disk that is full, or a crash, so leaves no file that is empty or cut off.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, fsync, linkat, openat, renameat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use crate::random;

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
    write(path, bytes, MODE_PUBLIC, origin, rename)
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
    write(path, bytes, mode, Origin::Measured, rename_new)
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
    let folder = open_folder(folder)?;
    let (temporary, _) = create_temporary(folder.as_fd(), MODE_PUBLIC)?;
    Ok(unlinkat(&folder, &temporary, AtFlags::empty())?)
}

/// Writes a file by its path, whose folders may be links: the user names them.
fn write(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    origin: Origin,
    put: fn(BorrowedFd<'_>, &str, &OsStr) -> io::Result<()>,
) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?;
    let folder = open_folder(folder(path))?;
    let fill = |file: &mut File| file.write_all(bytes);
    write_in(folder.as_fd(), mode, origin, fill, |temporary| put(folder.as_fd(), temporary, name))
}

/// Fills a new file of `folder` under a temporary name, which `put` makes the file's own.
pub(crate) fn write_in(
    folder: BorrowedFd<'_>,
    mode: u32,
    origin: Origin,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
    put: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<()> {
    let (temporary, mut file) = create_temporary(folder, mode)?;
    let written = fill(&mut file).and_then(|()| {
        if origin == Origin::Measured {
            file.sync_all()?;
        }
        put(&temporary)
    });
    if let Err(error) = written {
        // The write has failed already; a temporary file that stays does no harm.
        let _ = unlinkat(folder, &temporary, AtFlags::empty());
        return Err(error);
    }
    if origin == Origin::Measured {
        sync_folder(folder);
    }
    Ok(())
}

/// Has the disk keep the names in a folder. Not every file system can do that.
pub(crate) fn sync_folder(folder: BorrowedFd<'_>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let _ = openat(folder, ".", flags, Mode::empty()).and_then(fsync);
}

/// A name that nobody can guess or has taken. It does not have the file's name in it, which may be
/// as long as names can be.
pub(crate) fn temporary() -> io::Result<String> {
    Ok(format!(".nearmetal-{:016x}.tmp", u64::from_ne_bytes(random::bytes()?)))
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Opens a folder as a place for files. The user may write into it without being able to list it.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Creates a file under a name that nothing has: it never writes through a link.
fn create_temporary(folder: BorrowedFd<'_>, mode: u32) -> io::Result<(String, File)> {
    let name = temporary()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, &name, flags, Mode::from_raw_mode(mode))?;
    Ok((name, file.into()))
}

fn rename(folder: BorrowedFd<'_>, temporary: &str, name: &OsStr) -> io::Result<()> {
    Ok(renameat(folder, temporary, folder, name)?)
}

/// Renames unless the name is taken, in one step, so that of two processes one is refused.
fn rename_new(folder: BorrowedFd<'_>, temporary: &str, name: &OsStr) -> io::Result<()> {
    match renameat_with(folder, temporary, folder, name, RenameFlags::NOREPLACE) {
        // The file system cannot do that; a second name is refused if it exists, too.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(folder, temporary, folder, name, AtFlags::empty())?;
            Ok(unlinkat(folder, temporary, AtFlags::empty())?)
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
        let folder = open_folder(scratch.path()).unwrap();
        let (other, _) = create_temporary(folder.as_fd(), MODE_PUBLIC).unwrap();
        let refused = rename_new(folder.as_fd(), &other, path.file_name().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        fs::remove_file(scratch.path().join(other)).unwrap();
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
