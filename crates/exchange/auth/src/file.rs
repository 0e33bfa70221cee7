//! Files with secrets, which nobody else may read.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nm_sys::complete_file;
use thiserror::Error;

/// Largest file that is read, bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why a private file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be created.
    #[error("{} cannot be created: {source}", path.display())]
    Create {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read or change it.
    #[error(
        "others may read or change {} (mode {mode:o}): run `chmod 600 {}`, and make a new secret \
         if somebody may have read it",
        path.display(), path.display()
    )]
    NotPrivate {
        /// Which file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to another user (uid {uid}): it must belong to the user who runs this; a file \
         of root is taken too, if only its group may read it", path.display()
    )]
    NotOwned {
        /// Which file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// It is no regular file, or too large.
    #[error("{} is no file of at most {FILE_BYTES_MAX} bytes", path.display())]
    NotSuitable {
        /// Which file.
        path: PathBuf,
    },
}

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Privacy {
    /// Nobody but this user, or a group that root has chosen.
    Private,
    /// Others as well.
    Shared,
    /// It belongs to another user.
    OfAnother,
}

/// Who may read a file of a user with a mode, as `reader` sees it.
///
/// The group of a file of root may read it: so Kubernetes hands out secrets.
fn privacy(owner: u32, mode: u32, reader: u32) -> Privacy {
    let is_open = |bits: u32| mode & bits != 0;
    match owner {
        _ if owner == reader && is_open(0o077) => Privacy::Shared,
        _ if owner == reader => Privacy::Private,
        0 if !is_open(0o037) => Privacy::Private,
        _ => Privacy::OfAnother,
    }
}

/// Reads a file that belongs to this user and that nobody else may read, or one of root that only
/// its group may read.
///
/// # Errors
/// If it cannot be read, or others may.
pub fn read_private(path: &Path) -> Result<String, FileError> {
    let unreadable = |source| FileError::Read { path: path.into(), source };
    // A pipe would be waited for; it is refused below.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    // Of the open file: the path may lead to another one by now.
    let known = file.metadata().map_err(unreadable)?;
    if !known.is_file() || known.len() > FILE_BYTES_MAX {
        return Err(FileError::NotSuitable { path: path.into() });
    }
    let (uid, mode) = (known.uid(), known.mode() & 0o7777);
    match privacy(uid, mode, rustix::process::geteuid().as_raw()) {
        Privacy::Private => {}
        Privacy::OfAnother => return Err(FileError::NotOwned { path: path.into(), uid }),
        Privacy::Shared => return Err(FileError::NotPrivate { path: path.into(), mode }),
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// Creates a file that nobody else may read; one that exists is left alone.
///
/// # Errors
/// If it exists, or cannot be written.
pub fn create_private(path: &Path, text: &str) -> Result<(), FileError> {
    complete_file::create(path, text.as_bytes(), complete_file::MODE_PRIVATE)
        .map_err(|source| FileError::Create { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create_private(&path, "text\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_private(&path).unwrap(), "text\n");
        let again = create_private(&path, "other").unwrap_err();
        assert!(matches!(again, FileError::Create { .. }), "{again}");
        for mode in [0o640, 0o604, 0o620, 0o601] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = read_private(&path).unwrap_err();
            assert!(matches!(refused, FileError::NotPrivate { .. }), "{mode:o}: {refused}");
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
        let absent = read_private(&folder.path().join("absent")).unwrap_err();
        assert!(matches!(absent, FileError::Read { .. }), "{absent}");
        let refused = read_private(folder.path()).unwrap_err();
        assert!(matches!(refused, FileError::NotSuitable { .. }), "{refused}");
    }

    #[test]
    fn a_file_of_root_may_be_read_by_its_group_alone() {
        const USER: u32 = 65_532;
        for mode in [0o400, 0o600, 0o440, 0o640] {
            assert_eq!(privacy(0, mode, USER), Privacy::Private, "{mode:o}");
        }
        for mode in [0o444, 0o644, 0o660, 0o604, 0o450] {
            assert_eq!(privacy(0, mode, USER), Privacy::OfAnother, "{mode:o}");
        }
        for (owner, mode, privacy_of) in [
            (0, 0o440, Privacy::Shared),
            (0, 0o400, Privacy::Private),
            (USER, 0o440, Privacy::OfAnother),
            (USER, 0o400, Privacy::OfAnother),
        ] {
            assert_eq!(privacy(owner, mode, 0), privacy_of, "{owner} {mode:o}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create_private(&path, "text").unwrap();
        // Only root can give a file away; without that, one that belongs to root is at hand.
        let other = match std::os::unix::fs::chown(&path, Some(12_345), None) {
            Ok(()) => path,
            Err(_) => PathBuf::from("/etc/hostname"),
        };
        let refused = read_private(&other).unwrap_err();
        assert!(matches!(refused, FileError::NotOwned { .. }), "{refused}");
    }
}
