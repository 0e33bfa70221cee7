//! Folders of this user alone in places that all users may write to, such as `/tmp`.
//!
//! There any name can belong to somebody else, who may also have put a symbolic link there. So a
//! new folder has a random name, and one that exists already is opened without following a link and
//! then asked for its owner. What is in a folder is removed through its descriptor.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::geteuid;

use crate::random;

/// Digits of the random part of a name.
const RANDOM_DIGITS: usize = 16;

/// Names that are tried for a new folder.
const ATTEMPTS_MAX: u32 = 100;

/// Access of anybody but the owner.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", .path.display())]
    System {
        /// What was attempted.
        action: &'static str,
        /// The folder.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
    /// It is a file or a symbolic link.
    #[error("{} is a file or a symbolic link; name a folder itself", .0.display())]
    NotAFolder(PathBuf),
    /// Another user made it.
    #[error("{} belongs to another user (uid {owner}); name another folder", .path.display())]
    OtherUser {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Its mode gives other users more access than they may have.
    #[error("all users can access {path}; run `chmod o-rwx {path}`", path = .0.display())]
    OpenToOthers(PathBuf),
}

fn system(action: &'static str, path: &Path, error: impl Into<io::Error>) -> FolderError {
    FolderError::System { action, path: path.to_path_buf(), source: error.into() }
}

/// A folder that only this user can enter, removed with this value.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// The folder that it is in.
    parent: OwnedFd,
    name: String,
    folder: File,
}

impl PrivateFolder {
    /// Makes a folder in `parent`. Its name is `prefix` and random digits. It is locked (`flock`)
    /// as long as this value exists, so that [`remove_abandoned`] leaves it alone.
    ///
    /// # Errors
    /// If `parent` cannot be opened or written to.
    pub fn create(parent: &Path, prefix: &str) -> Result<PrivateFolder, FolderError> {
        let parent_fd = open_parent(parent)?;
        for _ in 0..ATTEMPTS_MAX {
            let random = random::bytes().map_err(|error| system("name a folder in", parent, error));
            let name = format!("{prefix}{:0RANDOM_DIGITS$x}", u64::from_ne_bytes(random?));
            let path = parent.join(&name);
            match mkdirat(&parent_fd, &name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(system("create", &path, error)),
            }
            // Until it is locked, another process may take it for an abandoned one and remove it.
            let folder = match open_own(parent_fd.as_fd(), &name, &path, OTHERS) {
                Ok(folder) => File::from(folder),
                Err(FolderError::System { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_used = matches!(folder.try_lock(), Err(TryLockError::WouldBlock));
            if !is_used && statat(&parent_fd, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Ok(PrivateFolder { path, parent: parent_fd, name, folder });
            }
        }
        Err(system("create a folder in", parent, Errno::EXIST))
    }

    /// A folder that another process of this user made, to be removed with this value.
    ///
    /// # Errors
    /// If it is not a folder of this user alone.
    pub fn adopt(path: &Path) -> Result<PrivateFolder, FolderError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some(parent), Some(name)) = (path.parent(), name) else {
            return Err(FolderError::NotAFolder(path.to_path_buf()));
        };
        let parent = open_parent(parent)?;
        let folder = File::from(open_own(parent.as_fd(), name, path, OTHERS)?);
        Ok(PrivateFolder { path: path.to_path_buf(), parent, name: name.to_string(), folder })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // It may have been removed already, and what cannot be removed now does no harm.
        let _ = remove(self.parent.as_fd(), &self.name, self.folder.as_fd());
    }
}

/// Removes the folders that [`PrivateFolder::create`] made in `parent` with `prefix` for processes
/// of this user that have ended. All else stays: folders of other users, links, other names.
pub fn remove_abandoned(parent: &Path, prefix: &str) {
    let Ok(parent_fd) = open_parent(parent) else { return };
    let Ok(entries) = Dir::read_from(&parent_fd) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let is_random = |digits: &str| {
            digits.len() == RANDOM_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if !name.strip_prefix(prefix).is_some_and(is_random) {
            continue;
        }
        let path = parent.join(name);
        let Ok(folder) = open_own(parent_fd.as_fd(), name, &path, OTHERS) else { continue };
        let folder = File::from(folder);
        if folder.try_lock().is_ok() {
            let _ = remove(parent_fd.as_fd(), name, folder.as_fd());
        }
    }
}

/// Makes the folder `path` for this user alone, and the folders above it if they are missing. One
/// that exists is accepted if this user made it and not all others may write into it.
///
/// # Errors
/// If it cannot be made, or what is there is not such a folder.
pub fn claim(path: &Path) -> Result<(), FolderError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        fs::create_dir_all(parent).map_err(|error| system("create", parent, error))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(system("create", path, error))
        }
        _ => open_own(CWD, path, path, Mode::WOTH).map(drop),
    }
}

/// Opens the folder in which others are made. It may be a link, as `/tmp` is on some systems.
fn open_parent(path: &Path) -> Result<OwnedFd, FolderError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|error| system("open", path, error))
}

/// Opens a folder, not through a link, and checks that this user made it and that its mode has none
/// of the bits `forbidden`.
fn open_own(
    parent: BorrowedFd<'_>,
    name: impl Arg,
    path: &Path,
    forbidden: Mode,
) -> Result<OwnedFd, FolderError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => FolderError::NotAFolder(path.to_path_buf()),
        error => system("open", path, error),
    })?;
    let found = fstat(&folder).map_err(|error| system("open", path, error))?;
    if found.st_uid != geteuid().as_raw() {
        return Err(FolderError::OtherUser { path: path.to_path_buf(), owner: found.st_uid });
    }
    match Mode::from_raw_mode(found.st_mode).intersects(forbidden) {
        true => Err(FolderError::OpenToOthers(path.to_path_buf())),
        false => Ok(folder),
    }
}

/// Removes a folder, known by its descriptor, with all that is in it.
fn remove(parent: BorrowedFd<'_>, name: impl Arg, folder: BorrowedFd<'_>) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let inner = entry.file_name();
        if [c".", c".."].contains(&inner) {
            continue;
        }
        match unlinkat(folder, inner, AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = openat(folder, inner, flags, Mode::empty())?;
                remove(folder, inner, below.as_fd())?;
            }
            unlinked => unlinked?,
        }
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// A place that all users may write to, as `/tmp`.
    fn place() -> PrivateFolder {
        let place = PrivateFolder::create(&std::env::temp_dir(), "nm-sys-test-").unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        place
    }

    /// Something outside that nobody may touch.
    fn treasure(place: &PrivateFolder) -> PathBuf {
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        outside
    }

    fn is_intact(outside: &Path) -> bool {
        fs::read_to_string(outside.join("file")).is_ok_and(|text| text == "kept")
    }

    fn is_root() -> bool {
        geteuid().is_root()
    }

    #[test]
    fn new_folders_are_private_and_differ_and_end_with_all_that_is_in_them() {
        let place = place();
        let outside = treasure(&place);
        let folder = PrivateFolder::create(place.path(), "x-").unwrap();
        let other = PrivateFolder::create(place.path(), "x-").unwrap();
        assert_ne!(folder.path(), other.path());
        let path = folder.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/file"), "").unwrap();
        symlink(&outside, path.join("a/link")).unwrap();
        drop(folder);
        assert!(!path.exists() && is_intact(&outside) && other.path().exists());
    }

    #[test]
    fn a_folder_is_removed_by_its_descriptor_not_by_its_name() {
        let place = place();
        let outside = treasure(&place);
        let folder = PrivateFolder::create(place.path(), "x-").unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let moved = place.path().join("moved");
        fs::rename(folder.path(), &moved).unwrap();
        symlink(&outside, folder.path()).unwrap();
        drop(folder);
        assert!(is_intact(&outside));
        assert!(!moved.join("file").exists(), "the folder itself was emptied");
    }

    #[test]
    fn abandoned_folders_are_removed_and_nothing_else() {
        let place = place();
        let outside = treasure(&place);
        let in_place = |name: &str| place.path().join(name);
        let live = PrivateFolder::create(place.path(), "x-").unwrap();
        let private = |name: &str| {
            fs::DirBuilder::new().mode(0o700).create(in_place(name)).unwrap();
            fs::write(in_place(name).join("file"), "").unwrap();
        };
        private("x-00000000000000aa");
        private("x-results");
        private("x-00000000000000bb0");
        private("x-00000000000000cc");
        fs::set_permissions(in_place("x-00000000000000cc"), fs::Permissions::from_mode(0o755))
            .unwrap();
        symlink(&outside, in_place("x-00000000000000dd")).unwrap();
        if is_root() {
            private("x-00000000000000ee");
            chown(in_place("x-00000000000000ee"), Some(65534), Some(65534)).unwrap();
        }
        remove_abandoned(place.path(), "x-");
        assert!(!in_place("x-00000000000000aa").exists(), "it was abandoned");
        for kept in ["x-results", "x-00000000000000bb0", "x-00000000000000cc", "x-00000000000000dd"]
        {
            assert!(in_place(kept).join("file").exists(), "{kept}");
        }
        assert!(!is_root() || in_place("x-00000000000000ee").join("file").exists());
        assert!(is_intact(&outside) && live.path().exists());
        drop(live);
    }

    #[test]
    fn folders_are_made_while_others_remove_abandoned_ones() {
        let place = place();
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..2_000 {
                            let folder = PrivateFolder::create(place.path(), "x-").unwrap();
                            assert!(folder.path().exists());
                        }
                    })
                })
                .collect();
            while !makers.iter().all(|maker| maker.is_finished()) {
                remove_abandoned(place.path(), "x-");
            }
        });
    }

    #[test]
    fn a_link_or_a_folder_of_another_user_is_not_adopted_or_claimed() {
        let place = place();
        let outside = treasure(&place);
        let planted = place.path().join("planted");
        symlink(&outside, &planted).unwrap();
        let refused = |path: &Path, why: &str| {
            for error in [PrivateFolder::adopt(path).err(), claim(path).err()] {
                let error = error.expect("it is refused").to_string();
                assert!(error.contains(why), "{error}");
            }
        };
        refused(&planted, "is a file or a symbolic link");
        refused(&outside.join("file"), "is a file or a symbolic link");
        let open = place.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        refused(&open, "all users can access");
        if is_root() {
            chown(&outside, Some(65534), None).unwrap();
            refused(&outside, "belongs to another user (uid 65534)");
        }
        assert!(is_intact(&outside));
    }

    #[test]
    fn claimed_folders_are_made_once_and_stay() {
        let place = place();
        let path = place.path().join("a/data");
        claim(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("journal"), "x").unwrap();
        claim(&path).unwrap();
        assert!(path.join("journal").exists());
        let error = claim(&path.join("journal/x")).unwrap_err();
        assert!(matches!(error, FolderError::System { .. }), "{error}");
    }
}
