//! Reads small files under `/proc` and `/sys`, below a root or from a record of them. Tests replace
//! the root by a folder of fixtures. A file that cannot be read is absent, not an error: an
//! ordinary user may read fewer files than root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::beneath::Beneath;

/// Longest file that is read, bytes. `/proc/cpuinfo` of a thousand CPUs has about 1.5 MiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Files of the machine, by the paths that they have on it.
#[derive(Debug, Clone)]
pub struct HostFiles {
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    /// The machine's own.
    Own,
    /// Files below a folder that is used in place of `/`, and that folder without symbolic links.
    Root(PathBuf, PathBuf),
    /// Files that were read before.
    Recorded(Arc<RecordedFiles>),
}

/// Files that were read before, by absolute path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedFiles {
    /// Content without surrounding white space.
    pub files: BTreeMap<String, String>,
    /// Names in folders, sorted.
    pub folders: BTreeMap<String, Vec<String>>,
    /// Last component of the targets of symbolic links.
    pub symlinks: BTreeMap<String, String>,
    /// Paths of which only the existence is known.
    pub present: BTreeSet<String>,
}

impl Default for HostFiles {
    fn default() -> HostFiles {
        HostFiles { source: Source::Own }
    }
}

impl HostFiles {
    /// Files below `root`. What symbolic links out of it lead to is not read: a tree may be
    /// somebody else's, and what is read of it is shown.
    pub fn new(root: impl Into<PathBuf>) -> HostFiles {
        let root = root.into();
        if root == Path::new("/") {
            return HostFiles::default();
        }
        let real = root.canonicalize().unwrap_or_else(|_| root.clone());
        HostFiles { source: Source::Root(root, real) }
    }

    /// Files that were read before.
    pub fn recorded(files: RecordedFiles) -> HostFiles {
        HostFiles { source: Source::Recorded(Arc::new(files)) }
    }

    /// The full path of `path`, which begins with `/`.
    pub fn path(&self, path: &str) -> PathBuf {
        match &self.source {
            Source::Root(root, _) => root.join(path.trim_start_matches('/')),
            Source::Own | Source::Recorded(_) => PathBuf::from(path),
        }
    }

    /// The full path of `path`, if it is there and below the root.
    ///
    /// # Errors
    /// If it is not there, or symbolic links lead out of the root.
    pub fn inside(&self, path: &str) -> io::Result<PathBuf> {
        let full = self.path(path);
        let Source::Root(_, root) = &self.source else { return Ok(full) };
        match full.canonicalize()?.starts_with(root) {
            true => Ok(full),
            false => {
                let reason = "a symbolic link leads out of the folder";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
        }
    }

    /// The folder that is used in place of `/`, if there is one, and `path` beneath it without
    /// symbolic links. A file that does not exist yet has a folder that does.
    ///
    /// # Errors
    /// If its folder is not there, or symbolic links lead out of the root.
    pub fn beneath(&self, path: &str) -> io::Result<(Beneath, PathBuf)> {
        let Source::Root(_, root) = &self.source else {
            return Err(io::Error::other("there is no folder in place of /"));
        };
        let (folder, name) = path.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
        let folder = self.inside(folder)?.canonicalize()?;
        // `inside` has checked it; what is a link since is refused by `Beneath`.
        let folder = folder.strip_prefix(root).map_err(io::Error::other)?;
        Ok((Beneath::open(root)?, folder.join(name)))
    }

    /// The content of a file without surrounding white space; absent if unreadable or empty.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = match &self.source {
            Source::Own | Source::Root(..) => self.read(path, FILE_BYTES_MAX).ok()?.0,
            Source::Recorded(recorded) => recorded.files.get(path)?.clone(),
        };
        (!text.is_empty()).then_some(text)
    }

    /// At most `bytes_max` bytes of a regular file, without surrounding white space, and whether
    /// that is all of it. A pipe or device is an error, and is not waited for.
    ///
    /// # Errors
    /// If the file is not there, not readable or not regular.
    pub fn read(&self, path: &str, bytes_max: u64) -> io::Result<(String, bool)> {
        let mut bytes = vec![];
        match &self.source {
            Source::Own | Source::Root(..) => {
                let file = open(&self.inside(path)?)?;
                file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
            }
            Source::Recorded(recorded) => {
                let text = recorded.files.get(path).ok_or(io::ErrorKind::NotFound)?;
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        let is_all = bytes.len() as u64 <= bytes_max;
        bytes.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        Ok((text.to_string(), is_all))
    }

    /// The content of a file that holds one value.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The content of a file that holds a list of CPUs or nodes, such as `0-3,8`.
    pub fn list(&self, path: &str) -> Option<Vec<u32>> {
        parse_list(&self.text(path)?)
    }

    /// Names in a folder, sorted; empty if it cannot be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        if let Source::Recorded(recorded) = &self.source {
            return recorded.folders.get(path).cloned().unwrap_or_default();
        }
        let Ok(entries) = self.inside(path).and_then(std::fs::read_dir) else { return vec![] };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether the file or folder exists.
    pub fn exists(&self, path: &str) -> bool {
        match &self.source {
            Source::Own => Path::new(path).exists(),
            Source::Root(..) => self.inside(path).is_ok(),
            Source::Recorded(recorded) => {
                recorded.files.contains_key(path)
                    || recorded.folders.contains_key(path)
                    || recorded.symlinks.contains_key(path)
                    || recorded.present.contains(path)
            }
        }
    }

    /// The file name of the target of a symbolic link.
    pub fn link_name(&self, path: &str) -> Option<String> {
        if let Source::Recorded(recorded) = &self.source {
            return recorded.symlinks.get(path).cloned();
        }
        let (folder, name) = path.rsplit_once('/')?;
        let folder = if folder.is_empty() { "/" } else { folder };
        let target = std::fs::read_link(self.inside(folder).ok()?.join(name)).ok()?;
        Some(Path::file_name(&target)?.to_string_lossy().into_owned())
    }
}

/// Opens a regular file for reading.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // A named pipe in a recorded tree would block.
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Parses a list in the kernel's form, `0-3,8`. An empty text is an empty list. Absent if the text
/// is not a list, or has more than 65536 numbers.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    const NUMBERS_MAX: usize = 1 << 16;
    let mut numbers = vec![];
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || (last - first) as usize >= NUMBERS_MAX - numbers.len().min(NUMBERS_MAX) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_parsed_and_invalid_text_is_rejected() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        for text in ["a", "3-1", "0-4294967295", "1-", "-1"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
    }

    #[test]
    fn unreadable_files_are_absent() {
        let files = HostFiles::default();
        assert_eq!(files.text("/proc/nothing-of-this-name"), None);
        assert!(files.names("/proc/nothing-of-this-name").is_empty());
        assert!(files.text("/proc/self/status").unwrap().starts_with("Name:"));
        assert!(files.value::<u32>("/proc/sys/kernel/pid_max").unwrap() > 0);
        assert!(files.read("/dev/null", 10).is_err(), "a device is not a file");
        let (text, is_all) = files.read("/proc/self/status", 5).unwrap();
        assert_eq!((text.as_str(), is_all), ("Name:", false));
    }

    #[test]
    fn recorded_files_are_read_as_those_below_a_root() {
        let text = |text: &str| text.to_string();
        let files = HostFiles::recorded(RecordedFiles {
            files: BTreeMap::from([(text("/a"), text("0-1")), (text("/empty"), text(""))]),
            folders: BTreeMap::from([(text("/d"), vec![text("x")])]),
            symlinks: BTreeMap::from([(text("/l"), text("target"))]),
            present: BTreeSet::from([text("/p")]),
        });
        assert_eq!(files.list("/a"), Some(vec![0, 1]));
        assert_eq!((files.text("/empty"), files.text("/b")), (None, None));
        assert_eq!((files.names("/d"), files.names("/e")), (vec![text("x")], vec![]));
        assert_eq!(files.link_name("/l").as_deref(), Some("target"));
        let there = ["/a", "/empty", "/d", "/l", "/p", "/b"].map(|path| files.exists(path));
        assert_eq!(there, [true, true, true, true, true, false]);
    }

    proptest! {
        #[test]
        fn any_list_is_parsed_without_a_panic(text in "[0-9,\\- x]{0,20}") {
            let _ = parse_list(&text);
        }
    }
}
