//! Control groups of this process: where their files are, and the bandwidth limit. Both versions of
//! control groups are supported.

use nm_sys::hostfiles::HostFiles;

/// Files of a control group that a snapshot reads.
pub const FILES: &[&str] = &[
    "cpu.max",
    "cpu.stat",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.cpus.partition",
    "cpuset.cpu_exclusive",
];

/// Paths of the file `name` of the control groups in `groups`, the content of `/proc/self/cgroup`,
/// and of their ancestors, the root first.
pub fn paths(groups: &str, name: &str) -> Vec<String> {
    let controller = name.split('.').next().unwrap_or_default();
    let mut all = vec![];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        for folder in ancestors(path) {
            if controllers.is_empty() {
                for mount in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                    all.push(format!("{mount}{folder}/{name}"));
                }
            } else if controllers.split(',').any(|one| one == controller) {
                all.push(format!("/sys/fs/cgroup/{controller}{folder}/{name}"));
            }
        }
    }
    all
}

/// The lowest CPU bandwidth limit of this process's control group and its ancestors, as
/// `QUOTA PERIOD` in µs, the format of `cpu.max`.
pub fn quota(files: &HostFiles) -> Option<String> {
    let groups = files.text("/proc/self/cgroup")?;
    let of_v2 = paths(&groups, "cpu.max").into_iter().map(|path| files.text(&path));
    let of_v1 = paths(&groups, "cpu.cfs_quota_us").into_iter().map(|path| {
        let period = path.replace("cpu.cfs_quota_us", "cpu.cfs_period_us");
        Some(format!("{} {}", files.text(&path)?, files.text(&period)?))
    });
    let limits = of_v2.chain(of_v1).flatten().filter_map(|text| limit_of(&text));
    let (quota, period) = limits.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))?;
    Some(format!("{quota} {period}"))
}

/// Time in which limits of CPU time stopped this process's control group or its ancestors, µs.
pub fn throttled_us(files: &HostFiles) -> Option<u64> {
    let groups = files.text("/proc/self/cgroup")?;
    let time_us = |path: String| {
        let text = files.text(&path)?;
        let of_field = |field: &str, unit: u64| {
            let value = text.lines().find_map(|line| line.strip_prefix(field))?;
            value.trim().parse::<u64>().ok().map(|time| time / unit)
        };
        // Version 2 counts in µs, version 1 in ns.
        of_field("throttled_usec ", 1).or_else(|| of_field("throttled_time ", 1_000))
    };
    let times = paths(&groups, "cpu.stat").into_iter().filter_map(time_us);
    times.reduce(u64::saturating_add)
}

/// A limit in the format of `cpu.max`; absent if it is `max` or, in version 1, negative.
fn limit_of(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u32, u32) = (quota.parse().ok()?, period.trim().parse().ok()?);
    Some((quota.into(), period.into()))
}

/// `path` and all its parent folders, the root as the empty text.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let ends = path.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_include_the_root() {
        assert_eq!(ancestors("/a/b").collect::<Vec<_>>(), ["", "/a", "/a/b"]);
        assert_eq!(ancestors("/").collect::<Vec<_>>(), [""]);
    }

    #[test]
    fn only_a_positive_quota_is_a_limit() {
        assert_eq!(limit_of("max 100000"), None);
        assert_eq!(limit_of("-1 100000"), None);
        assert_eq!(limit_of("50000 100000"), Some((50_000, 100_000)));
    }

    #[test]
    fn paths_are_those_of_both_versions() {
        let groups = "5:cpu,cpuacct:/a\n4:cpuset:/\n0::/b";
        let all = paths(groups, "cpu.stat");
        assert_eq!(all[..2], ["/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu/a/cpu.stat"]);
        assert!(all.contains(&"/sys/fs/cgroup/b/cpu.stat".to_string()), "{all:?}");
        assert_eq!(paths("4:cpuset:/", "cpuset.cpus")[..], ["/sys/fs/cgroup/cpuset/cpuset.cpus"]);
    }
}
