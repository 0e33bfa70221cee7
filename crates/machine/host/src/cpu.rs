//! Processor: model, topology, power management, isolation, bandwidth limit.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::facts::CpuFacts;
use nm_sys::hostfiles::{HostFiles, parse_list};

use crate::cgroup;

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
        quota: cgroup::quota(files),
    }
}

/// CPUs online by sysfs, or by `/proc/cpuinfo` where a container hides sysfs.
pub(crate) fn online(files: &HostFiles) -> Vec<u32> {
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

pub(crate) fn numa_nodes(files: &HostFiles, online: &[u32]) -> BTreeMap<u32, u32> {
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
