//! Reads the files that match patterns into a snapshot, within limits of number, size and time.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::{Snapshot, limits};
use nm_sys::clock::Moment;
use nm_sys::hostfiles::HostFiles;

use crate::patterns::{Pattern, What};

/// A snapshot while it is read.
pub struct Walk<'a> {
    files: &'a HostFiles,
    snapshot: Snapshot,
    folders: BTreeMap<String, BTreeSet<String>>,
    present: BTreeSet<String>,
    started: Moment,
    n_bytes: usize,
    n_names: usize,
    limits: WalkLimits,
}

/// How much is read at most.
#[derive(Debug, Clone, Copy)]
pub struct WalkLimits {
    /// Files.
    pub files: usize,
    /// Other names.
    pub names: usize,
    /// Bytes of all files and their paths.
    pub bytes: usize,
    /// Time, s.
    pub seconds: f64,
}

impl Default for WalkLimits {
    fn default() -> WalkLimits {
        WalkLimits {
            files: limits::SNAPSHOT_FILES_MAX,
            names: limits::SNAPSHOT_NAMES_MAX,
            bytes: limits::SNAPSHOT_BYTES_MAX,
            seconds: limits::SNAPSHOT_SECONDS_MAX,
        }
    }
}

impl<'a> Walk<'a> {
    /// Nothing read yet.
    pub fn new(files: &'a HostFiles) -> Walk<'a> {
        Walk::with_limits(files, WalkLimits::default())
    }

    /// Nothing read yet, with other limits.
    pub fn with_limits(files: &'a HostFiles, limits: WalkLimits) -> Walk<'a> {
        Walk {
            files,
            snapshot: Snapshot::default(),
            folders: BTreeMap::new(),
            present: BTreeSet::new(),
            started: Moment::now(),
            n_bytes: 0,
            n_names: 0,
            limits,
        }
    }

    /// What was read so far.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Reads all that matches `pattern`.
    pub fn read(&mut self, pattern: &Pattern) {
        if let Some(reason) = self.limit_reached() {
            self.leave_out(format!("{} was not read: {reason}", pattern.path));
            return;
        }
        let mut paths = vec![String::new()];
        for part in pattern.path.trim_start_matches('/').split('/') {
            match part.contains(['*', '#']) {
                false => paths.iter_mut().for_each(|path| *path += &format!("/{part}")),
                true => paths = self.expand(&paths, part),
            }
        }
        if paths.len() > pattern.matches_max {
            self.leave_out(format!(
                "{}: {} of {} were read",
                pattern.path,
                pattern.matches_max,
                paths.len()
            ));
            paths.truncate(pattern.matches_max);
        }
        for path in paths {
            if let Some(reason) = self.limit_reached() {
                self.leave_out(format!("{} was not read to its end: {reason}", pattern.path));
                return;
            }
            self.read_one(path, pattern);
        }
    }

    /// The paths of `folders` whose next part matches. Only names that match are kept: all those of
    /// `/dev` or `/proc` would tell more than is needed.
    fn expand(&mut self, folders: &[String], part: &str) -> Vec<String> {
        let mut found = vec![];
        for folder in folders {
            if self.n_names >= self.limits.names {
                break;
            }
            let key = if folder.is_empty() { "/" } else { folder.as_str() };
            let names: Vec<String> =
                self.files.names(key).into_iter().filter(|name| matches(part, name)).collect();
            if names.is_empty() {
                continue;
            }
            found.extend(names.iter().map(|name| format!("{folder}/{name}")));
            let known = self.folders.entry(key.to_string()).or_default();
            let n_before = known.len();
            known.extend(names);
            self.n_names += known.len() - n_before;
        }
        found
    }

    fn read_one(&mut self, path: String, pattern: &Pattern) {
        match pattern.what {
            What::Text | What::Counter => self.read_file(path, pattern),
            What::Symlink => {
                if let Some(name) = self.files.link_name(&path) {
                    self.n_names += 1;
                    self.snapshot.symlinks.insert(path, name);
                }
            }
            What::Presence => {
                if self.files.exists(&path) && self.present.insert(path) {
                    self.n_names += 1;
                }
            }
        }
    }

    fn read_file(&mut self, path: String, pattern: &Pattern) {
        if self.snapshot.files.contains_key(&path) {
            return;
        }
        match self.files.read(&path, pattern.bytes_max) {
            Ok((text, is_all)) => {
                let text = pattern.kept(&text);
                if !is_all {
                    self.leave_out(format!("{path}: only {} bytes were read", pattern.bytes_max));
                }
                if self.n_bytes + path.len() + text.len() > self.limits.bytes {
                    self.n_bytes = self.limits.bytes;
                    self.leave_out(format!("{path} was not kept: the snapshot is full"));
                    return;
                }
                self.n_bytes += path.len() + text.len();
                self.snapshot.files.insert(path, text);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                // Some files answer `EINVAL` or `ENODATA` where a device has no such property.
                self.n_names += 1;
                self.snapshot.unreadable.insert(path, error.kind().to_string());
            }
        }
    }

    fn limit_reached(&self) -> Option<String> {
        let WalkLimits { files, names, bytes, seconds } = self.limits;
        if self.snapshot.files.len() >= files {
            return Some(format!("a snapshot has at most {files} files"));
        }
        if self.n_names >= names {
            return Some(format!("a snapshot has at most {names} names"));
        }
        if self.n_bytes >= bytes {
            return Some(format!("a snapshot has at most {bytes} bytes"));
        }
        (self.started.elapsed().as_secs_f64() > seconds)
            .then(|| format!("reading took more than {seconds} s"))
    }

    fn leave_out(&mut self, sentence: String) {
        /// More would hide the first ones.
        const SENTENCES_MAX: usize = 64;
        if self.snapshot.left_out.len() < SENTENCES_MAX {
            self.snapshot.left_out.push(sentence);
        }
    }

    /// The snapshot.
    pub fn finish(mut self) -> Snapshot {
        self.snapshot.present = self.present.into_iter().collect();
        let folders = self.folders.into_iter();
        self.snapshot.folders =
            folders.map(|(path, names)| (path, names.into_iter().collect())).collect();
        self.snapshot
    }
}

/// Whether `name` matches a part of a pattern: `*` stands for any characters, `#` for digits.
fn matches(part: &str, name: &str) -> bool {
    let Some(at) = part.find(['*', '#']) else { return part == name };
    let (prefix, rest) = (&part[..at], &part[at + 1..]);
    let Some(name) = name.strip_prefix(prefix) else { return false };
    let only_digits = part[at..].starts_with('#');
    let ends = (0..=name.len()).rev().filter(|&end| name.is_char_boundary(end));
    let fits = |end: &usize| {
        let digits = &name[..*end];
        !only_digits || (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    ends.filter(fits).any(|end| matches(rest, &name[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_match_anything_and_hashes_match_numbers() {
        for (part, name, expected) in [
            ("cpu#", "cpu12", true),
            ("cpu#", "cpu", false),
            ("cpu#", "cpuidle", false),
            ("#", "17", true),
            ("#", "self", false),
            ("*", "eth0", true),
            ("mc#", "mc0", true),
            ("node#x*", "node1xy", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(part, name), expected, "{part} {name}");
        }
    }

    #[test]
    fn limits_stop_the_walk_and_say_so() {
        let files = HostFiles::default();
        let limits = WalkLimits { files: 1, ..WalkLimits::default() };
        let mut walk = Walk::with_limits(&files, limits);
        let patterns = ["/proc/stat", "/proc/loadavg"].map(Pattern::text);
        patterns.iter().for_each(|pattern| walk.read(pattern));
        let snapshot = walk.finish();
        assert_eq!(snapshot.files.len(), 1);
        assert_eq!(
            snapshot.left_out,
            ["/proc/loadavg was not read: a snapshot has at most 1 files"]
        );
    }

    #[test]
    fn size_and_number_of_matches_are_limited() {
        let files = HostFiles::default();
        let mut walk = Walk::new(&files);
        walk.read(&Pattern { bytes_max: 8, ..Pattern::text("/proc/version") });
        walk.read(&Pattern { matches_max: 1, ..Pattern::text("/proc/sys/kernel/sched_*") });
        let snapshot = walk.finish();
        assert_eq!(snapshot.files["/proc/version"], "Linux ve");
        assert_eq!(snapshot.files.len(), 2);
        assert!(snapshot.left_out[0].starts_with("/proc/version: only 8 bytes"));
        assert!(snapshot.left_out[1].contains("1 of "), "{:?}", snapshot.left_out);
    }

    proptest! {
        #[test]
        fn any_name_is_matched_without_a_panic(part in "[a*#é]{0,6}", name in "[a1é]{0,8}") {
            let found = matches(&part, &name);
            prop_assert!(found || part != "*");
        }
    }
}
