//! Processor: model, topology, power management, isolation, bandwidth limit.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::facts::CpuFacts;
use nm_sys::hostfiles::{HostFiles, parse_list};

const CPUS: &str = "/sys/devices/system/cpu";

/// Reads the processor's facts.
pub fn read(files: &HostFiles) -> CpuFacts {
    let online = online(files);
    CpuFacts {
        model: model(files),
        online: online.len() as u32,
        allowed: allowed(files).unwrap_or_else(|| online.clone()),
        siblings: siblings(files, &online),
        numa_nodes: numa_nodes(files, &online),
        governor: files.text(&format!("{CPUS}/cpu0/cpufreq/scaling_governor")),
        idle_driver: files.text(&format!("{CPUS}/cpuidle/current_driver")),
        idle_states: idle_states(files),
        isolated: files.text(&format!("{CPUS}/isolated")),
        mitigations: mitigations(files),
        quota: quota(files),
    }
}

/// CPUs online by sysfs, or by `/proc/cpuinfo` where a container hides sysfs.
fn online(files: &HostFiles) -> Vec<u32> {
    files.list(&format!("{CPUS}/online")).unwrap_or_else(|| {
        cpuinfo(files, "processor").iter().filter_map(|text| text.parse().ok()).collect()
    })
}

/// All values of a field of `/proc/cpuinfo`.
fn cpuinfo(files: &HostFiles, field: &str) -> Vec<String> {
    let Some(text) = files.text("/proc/cpuinfo") else { return vec![] };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.trim() == field)
        .map(|(_, value)| value.trim().to_string())
        .collect()
}

/// The model name; on ARM, where `/proc/cpuinfo` has none, implementer and part number.
fn model(files: &HostFiles) -> Option<String> {
    let first = |field| cpuinfo(files, field).into_iter().next();
    first("model name").or_else(|| {
        let (implementer, part) = (first("CPU implementer")?, first("CPU part")?);
        Some(format!("implementer {implementer} part {part}"))
    })
}

/// The CPUs that this process may use.
fn allowed(files: &HostFiles) -> Option<Vec<u32>> {
    let status = files.text("/proc/self/status")?;
    parse_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

fn siblings(files: &HostFiles, online: &[u32]) -> Vec<Vec<u32>> {
    let groups: BTreeSet<Vec<u32>> = online
        .iter()
        .filter_map(|cpu| files.list(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list")))
        .filter(|group| group.len() > 1)
        .collect();
    groups.into_iter().collect()
}

fn numa_nodes(files: &HostFiles, online: &[u32]) -> BTreeMap<u32, u32> {
    const NODES: &str = "/sys/devices/system/node";
    let mut nodes = BTreeMap::new();
    for name in files.names(NODES) {
        let Some(node) = name.strip_prefix("node").and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let cpus = files.list(&format!("{NODES}/{name}/cpulist")).unwrap_or_default();
        nodes.extend(cpus.into_iter().filter(|cpu| online.contains(cpu)).map(|cpu| (cpu, node)));
    }
    nodes
}

/// Idle states of CPU 0 as `NAME LATENCY µs`, in the kernel's order.
fn idle_states(files: &HostFiles) -> Vec<String> {
    const STATES_MAX: u32 = 16;
    (0..STATES_MAX)
        .map_while(|state| {
            let field = |name| files.text(&format!("{CPUS}/cpu0/cpuidle/state{state}/{name}"));
            let (name, latency) = (field("name")?, field("latency")?);
            let off = if field("disable").as_deref() == Some("1") { " (disabled)" } else { "" };
            Some(format!("{name} {latency} µs{off}"))
        })
        .collect()
}

fn mitigations(files: &HostFiles) -> Vec<String> {
    let folder = format!("{CPUS}/vulnerabilities");
    files
        .names(&folder)
        .into_iter()
        .filter_map(|name| {
            let text = files.text(&format!("{folder}/{name}"))?;
            let measure = text.strip_prefix("Mitigation:")?;
            Some(format!("{name}: {}", measure.trim()))
        })
        .collect()
}

/// The lowest CPU bandwidth limit of this process's control group and its ancestors, as
/// `QUOTA PERIOD` in µs, the format of `cpu.max`. Supports both versions of control groups.
fn quota(files: &HostFiles) -> Option<String> {
    let limit = |folder: &GroupFolder| match folder {
        GroupFolder::V2(folder) => limit_of(&files.text(&format!("{folder}/cpu.max"))?),
        GroupFolder::V1(folder) => {
            let value = |file| files.text(&format!("{folder}/{file}"));
            let (quota, period) = value("cpu.cfs_quota_us").zip(value("cpu.cfs_period_us"))?;
            limit_of(&format!("{quota} {period}"))
        }
    };
    let limits = group_folders(files).into_iter().filter_map(|folder| limit(&folder));
    let (quota, period) = limits.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))?;
    Some(format!("{quota} {period}"))
}

/// Time in which limits of CPU time stopped this process's control group or its ancestors, µs.
pub(crate) fn throttled_us(files: &HostFiles) -> Option<u64> {
    let time_us = |folder: &GroupFolder| {
        let (folder, field, unit) = match folder {
            GroupFolder::V2(folder) => (folder, "throttled_usec ", 1),
            GroupFolder::V1(folder) => (folder, "throttled_time ", 1_000),
        };
        let text = files.text(&format!("{folder}/cpu.stat"))?;
        let time: u64 =
            text.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()?;
        Some(time / unit)
    };
    group_folders(files).iter().filter_map(time_us).reduce(u64::saturating_add)
}

/// A folder of a control group that may limit CPU time.
enum GroupFolder {
    V1(String),
    V2(String),
}

/// The folders of this process's control group and its ancestors.
fn group_folders(files: &HostFiles) -> Vec<GroupFolder> {
    let groups = files.text("/proc/self/cgroup").unwrap_or_default();
    let mut folders = vec![];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        for folder in ancestors(path) {
            if controllers.is_empty() {
                let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
                folders.extend(mounts.map(|mount| GroupFolder::V2(format!("{mount}{folder}"))));
            } else if controllers.split(',').any(|name| name == "cpu") {
                folders.push(GroupFolder::V1(format!("/sys/fs/cgroup/cpu{folder}")));
            }
        }
    }
    folders
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
}
