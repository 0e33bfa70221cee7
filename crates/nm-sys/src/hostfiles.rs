//! Reading of small files under `/proc` and `/sys`, below a root that tests replace by a folder of
//! fixtures. What cannot be read is absent, never an error: an ordinary user sees less.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest file that is read, bytes. `/proc/cpuinfo` of a thousand CPUs has about 1.5 MiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The folder that stands for `/`.
#[derive(Debug, Clone)]
pub struct HostFiles {
    root: PathBuf,
}

impl Default for HostFiles {
    fn default() -> HostFiles {
        HostFiles::new("/")
    }
}

impl HostFiles {
    /// Files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> HostFiles {
        HostFiles { root: root.into() }
    }

    /// The place of `path`, which is written as from `/`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The content of a file without white space around it; absent if unreadable or empty.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut bytes = vec![];
        File::open(self.path(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_string())
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
        let Ok(entries) = std::fs::read_dir(self.path(path)) else { return vec![] };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether the file or folder is there.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What a symbolic link points to: the last part of it.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(Path::file_name(&target)?.to_string_lossy().into_owned())
    }
}

/// Reads a list in the kernel's form, `0-3,8`. An empty text is an empty list; anything else that
/// is no list, or a list of more than 65536 numbers, is refused.
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

    #[test]
    fn lists_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        for text in ["a", "3-1", "0-4294967295", "1-", "-1"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        let files = HostFiles::default();
        assert_eq!(files.text("/proc/nothing-of-this-name"), None);
        assert!(files.names("/proc/nothing-of-this-name").is_empty());
        assert!(files.text("/proc/self/status").unwrap().starts_with("Name:"));
        assert!(files.value::<u32>("/proc/sys/kernel/pid_max").unwrap() > 0);
    }
}
