//! Files beneath a folder whose content somebody else may have chosen: a recorded tree, or what
//! another machine sent.
//!
//! Each component of a path is opened by itself, beneath the descriptor of the one before, and
//! never through a link. No component is `..`, so no path leads out, whoever changes the tree
//! meanwhile. `openat2` with `RESOLVE_BENEATH` does the same in one call, but kernels before 5.6
//! and the system-call filters of many containers do not have it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, fstat,
    mkdirat, openat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::complete_file::{self, Origin};

/// A folder, known by its descriptor.
#[derive(Debug)]
pub struct Beneath {
    folder: OwnedFd,
}

fn refused(kind: ErrorKind, why: &'static str) -> io::Error {
    io::Error::new(kind, why)
}

/// Opens a folder, not through a link.
fn step(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => {
            refused(ErrorKind::PermissionDenied, "a part of the path is a link or no folder")
        }
        error => error.into(),
    })
}

impl Beneath {
    /// The folder of this name. The user gave the name, so its own parts may be links.
    ///
    /// # Errors
    /// If it cannot be opened, or is no folder.
    pub fn open(path: &Path) -> io::Result<Beneath> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Beneath { folder: openat(CWD, path, flags, Mode::empty())? })
    }

    /// The folder that `path` is in, and its name there.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let mut folder = self.folder.try_clone()?;
        let mut parts = path.components().map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(refused(ErrorKind::InvalidInput, "the path leads out of the folder")),
        });
        let mut name = parts.next().ok_or(ErrorKind::InvalidInput)??;
        for next in parts {
            let next = next?;
            folder = step(folder, name)?;
            name = next;
        }
        Ok((folder, name))
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// If the name is taken, or the folder above is not there.
    pub fn create_folder(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        Ok(mkdirat(folder, name, Mode::from_raw_mode(mode))?)
    }

    /// Makes a file.
    ///
    /// # Errors
    /// If the name is taken, or the folder above is not there.
    pub fn create_file(&self, path: &Path, mode: u32) -> io::Result<File> {
        let (folder, name) = self.place(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(folder, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Replaces a file that is there by one with these bytes, which has its owner and access.
    ///
    /// # Errors
    /// If it is no regular file, or belongs neither to this user nor to the owner of the folder. It
    /// is then as it was.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        let found = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refused(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        self.check_owner(&found)?;
        let fill = |file: &mut File| {
            if found.st_uid != geteuid().as_raw() {
                let (uid, gid) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
                fchown(&*file, Some(uid), Some(gid))?;
            }
            fchmod(&*file, Mode::from_raw_mode(found.st_mode & 0o777))?;
            file.write_all(bytes)
        };
        let put = |temporary: &str| Ok(renameat(&folder, temporary, &folder, name)?);
        complete_file::write_in(
            folder.as_fd(),
            complete_file::MODE_PRIVATE,
            Origin::Measured,
            fill,
            put,
        )
    }

    /// Makes a symbolic link, in place of one.
    ///
    /// # Errors
    /// If there is something else, or a link that belongs neither to this user nor to the owner of
    /// the folder.
    pub fn replace_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            found => self.check_link(&found?)?,
        }
        let temporary = complete_file::temporary()?;
        symlinkat(target, &folder, &temporary)?;
        if let Err(error) = renameat(&folder, &temporary, &folder, name) {
            let _ = unlinkat(&folder, &temporary, AtFlags::empty());
            return Err(error.into());
        }
        complete_file::sync_folder(folder.as_fd());
        Ok(())
    }

    /// Removes a symbolic link.
    ///
    /// # Errors
    /// As [`Beneath::replace_link`], and if nothing is there.
    pub fn remove_link(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        self.check_link(&statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        Ok(unlinkat(folder, name, AtFlags::empty())?)
    }

    /// Gives what is at `name` to another folder of the same file system.
    ///
    /// # Errors
    /// If the other one has that name already.
    pub fn give(&self, name: &str, to: &Beneath) -> io::Result<()> {
        let (own, own_name) = self.place(Path::new(name))?;
        let (other, name) = to.place(Path::new(name))?;
        match renameat_with(&own, own_name, &other, name, RenameFlags::NOREPLACE) {
            // The file system cannot do that in one step. Of a folder, only an empty one would be
            // replaced.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                match statat(&other, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => Ok(renameat(&own, own_name, &other, name)?),
                    found => Err(found.err().unwrap_or(Errno::EXIST).into()),
                }
            }
            renamed => Ok(renamed?),
        }
    }

    fn check_link(&self, found: &Stat) -> io::Result<()> {
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => self.check_owner(found),
            _ => Err(refused(ErrorKind::InvalidInput, "it is not a symbolic link")),
        }
    }

    fn check_owner(&self, found: &Stat) -> io::Result<()> {
        match [geteuid().as_raw(), fstat(&self.folder)?.st_uid].contains(&found.st_uid) {
            true => Ok(()),
            false => Err(refused(ErrorKind::PermissionDenied, "it belongs to another user")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    /// What somebody may put where a file or folder is expected.
    #[derive(Debug, Clone, Copy)]
    enum Trap {
        LinkOut,
        LinkToFile,
        LinkInside,
        Loop,
        Fifo,
        Socket,
        Folder,
        File,
        Nothing,
    }

    const TRAPS: [Trap; 9] = [
        Trap::LinkOut,
        Trap::LinkToFile,
        Trap::LinkInside,
        Trap::Loop,
        Trap::Fifo,
        Trap::Socket,
        Trap::Folder,
        Trap::File,
        Trap::Nothing,
    ];

    fn set(trap: Trap, path: &Path, outside: &Path) {
        match trap {
            Trap::LinkOut => symlink(outside, path).unwrap(),
            Trap::LinkToFile => symlink(outside.join("file"), path).unwrap(),
            Trap::LinkInside => symlink("other", path).unwrap(),
            Trap::Loop => symlink(path.file_name().unwrap(), path).unwrap(),
            Trap::Fifo => {
                rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
            Trap::Socket => drop(UnixListener::bind(path).unwrap()),
            Trap::Folder => fs::create_dir(path).unwrap(),
            Trap::File => fs::write(path, "old").unwrap(),
            Trap::Nothing => {}
        }
    }

    /// All paths below a folder, with what they are and have, not through links.
    fn content(folder: &Path) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let what = match kind {
                kind if kind.is_dir() => {
                    all.extend(content(&path));
                    "folder".to_string()
                }
                kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
                kind if kind.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
                kind => format!("{kind:?}"),
            };
            all.insert(path.display().to_string(), what);
        }
        all
    }

    proptest! {
        #[test]
        fn nothing_outside_changes_whatever_lies_at_any_component(
            at in 0_usize..3,
            trap in prop::sample::select(&TRAPS[..]),
            action in 0_usize..5,
        ) {
            let scratch = tempfile::tempdir().unwrap();
            let (tree, outside) = (scratch.path().join("tree"), scratch.path().join("outside"));
            fs::create_dir_all(tree.join("other")).unwrap();
            fs::create_dir_all(outside.join("b")).unwrap();
            for path in ["file", "c", "b/c"] {
                fs::write(outside.join(path), "kept").unwrap();
            }
            let names = ["a", "b", "c"];
            let above: std::path::PathBuf = names[..at].iter().collect();
            fs::create_dir_all(tree.join(&above)).unwrap();
            set(trap, &tree.join(&above).join(names[at]), &outside);
            let before = (content(&outside), content(&tree));
            let (beneath, path) = (Beneath::open(&tree).unwrap(), Path::new("a/b/c"));
            let done = match action {
                0 => beneath.replace(path, b"new"),
                1 => beneath.create_file(path, 0o644).map(drop),
                2 => beneath.create_folder(path, 0o755),
                3 => beneath.replace_link(path, Path::new("target")),
                _ => beneath.remove_link(path),
            };
            prop_assert_eq!(&content(&outside), &before.0);
            let is_link = matches!(
                trap,
                Trap::LinkOut | Trap::LinkToFile | Trap::LinkInside | Trap::Loop
            );
            let is_free = matches!((at, trap), (1, Trap::Folder) | (2, Trap::Nothing));
            let may = match action {
                0 => at == 2 && matches!(trap, Trap::File),
                1 | 2 => is_free,
                3 => at == 2 && is_link || is_free,
                _ => at == 2 && is_link,
            };
            prop_assert_eq!(done.is_ok(), may, "{:?}", done);
            if !may {
                prop_assert_eq!(&content(&tree), &before.1, "what failed left something");
            }
        }

        #[test]
        fn no_path_leads_out(path in r"(/|\.\./|a/|\./){0,4}(\.\.|f|/)?") {
            let scratch = tempfile::tempdir().unwrap();
            let tree = scratch.path().join("tree");
            fs::create_dir_all(tree.join("a")).unwrap();
            let made = Beneath::open(&tree).unwrap().create_file(Path::new(&path), 0o644);
            prop_assert!(made.is_err() || !path.contains("..") && !path.starts_with('/'));
            prop_assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_replaced_file_keeps_owner_and_access_and_a_strangers_is_refused() {
        let tree = tempfile::tempdir().unwrap();
        let (file, name) = (tree.path().join("file"), Path::new("file"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4640)).unwrap();
        let beneath = Beneath::open(tree.path()).unwrap();
        beneath.replace(name, b"new").unwrap();
        let now = fs::metadata(&file).unwrap();
        assert_eq!((now.mode() & 0o7777, fs::read(&file).unwrap()), (0o640, b"new".to_vec()));
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 1);
        if geteuid().is_root() {
            chown(&file, Some(65533), None).unwrap();
            let refused = beneath.replace(name, b"other").unwrap_err().to_string();
            assert_eq!(refused, "it belongs to another user");
            chown(tree.path(), Some(65533), None).unwrap();
            beneath.replace(name, b"other").unwrap();
            assert_eq!(fs::metadata(&file).unwrap().uid(), 65533);
        }
    }

    #[test]
    fn what_another_folder_has_already_is_not_given_to_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["one", "one/x", "one/y", "two", "two/x"] {
            fs::create_dir(at(folder)).unwrap();
        }
        let [one, two] = ["one", "two"].map(|name| Beneath::open(&at(name)).unwrap());
        assert_eq!(one.give("x", &two).unwrap_err().kind(), ErrorKind::AlreadyExists);
        one.give("y", &two).unwrap();
        assert!(at("one/x").exists() && at("two/y").exists() && !at("one/y").exists());
    }
}
