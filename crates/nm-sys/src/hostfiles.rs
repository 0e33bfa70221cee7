//! Reads small files under `/proc` and `/sys`. Tests replace the root by a folder of fixtures. A
//! file that cannot be read is absent, not an error: an ordinary user may read fewer files than
//! root.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest file that is read, bytes. `/proc/cpuinfo` of a thousand CPUs has about 1.5 MiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Files below a folder that is used in place of `/`.
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

    /// The full path of `path`, which begins with `/`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The content of a file without surrounding white space; absent if unreadable or empty.
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

    /// Whether the file or folder exists.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The file name of the target of a symbolic link.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(Path::file_name(&target)?.to_string_lossy().into_owned())
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
    }
    proptest! {
        #[test]
        fn any_list_is_parsed_without_a_panic(text in "[0-9,\\- x]{0,20}") {
            let _ = parse_list(&text);
        }
    }
}
