//! How much memory the program's control group leaves for connections. What is in a group's memory
//! counts against its limit, and the kernel ends a program that exceeds it.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nm_ring::conduit::CONDUIT_BYTES;

use crate::settings::Settings;

/// The part of a group's memory that all connections of one process may take.
const SHARE: u64 = 8;

/// Where the two versions of control groups are mounted, and the file that has a group's limit.
const VERSIONS: [(&str, &str, &str); 2] = [
    ("0::", "/sys/fs/cgroup", "memory.max"),
    (":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
];

/// Most connections that this process may have in memory.
pub fn joined_max() -> usize {
    static OF_GROUP: OnceLock<usize> = OnceLock::new();
    let of_group = OF_GROUP.get_or_init(|| {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        limit_of(&groups, |file| read_to_string(file).ok())
            .map_or(usize::MAX, |bytes| (bytes / SHARE) as usize / CONDUIT_BYTES)
    });
    Settings::get().joined_max.min(*of_group)
}

/// The smallest limit of the groups that a process is in, and of those around them, bytes.
fn limit_of(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut smallest = None;
    for (mark, root, file) in VERSIONS {
        let Some(path) = groups.lines().find_map(|line| Some(line.split_once(mark)?.1)) else {
            continue;
        };
        // In a container the root is the group itself, whatever its path is called outside.
        let group = PathBuf::from(format!("{root}{path}"));
        for around in group.ancestors().filter(|at| at.starts_with(root)) {
            let limit = read(&around.join(file)).and_then(|text| text.trim().parse().ok());
            smallest = smallest.into_iter().chain(limit).min();
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(groups: &str, files: &[(&str, &str)], wanted: Option<u64>) {
        let read = |at: &Path| {
            files.iter().find(|(file, _)| Path::new(file) == at).map(|(_, text)| (*text).to_owned())
        };
        assert_eq!(limit_of(groups, read), wanted);
    }

    #[test]
    fn smallest_limit_of_all_groups_counts() {
        let files = [
            ("/sys/fs/cgroup/a/memory.max", "4000\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        check("0::/a/b\n", &files, Some(4000));
        check("5:cpu:/c\n4:memory:/c\n", &files, Some(9000));
        check("4:memory:/c\n0::/a/b\n", &files, Some(4000));
        check("4:memory:/elsewhere\n", &files, Some(9_223_372_036_854_771_712));
        check("0::/\n", &files, None);
        check("", &files, None);
    }
}
