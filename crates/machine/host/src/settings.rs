//! Kernel settings and environment variables that change latency or sockets.

use std::collections::BTreeMap;

use nm_sys::hostfiles::HostFiles;

/// Settings outside `/proc/sys`: name and file.
const FILES: &[(&str, &str)] = &[
    ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("transparent_hugepage_defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
    ("ksm", "/sys/kernel/mm/ksm/run"),
    ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("clocksource_available", "/sys/devices/system/clocksource/clocksource0/available_clocksource"),
    ("smt", "/sys/devices/system/cpu/smt/control"),
    ("nohz_full", "/sys/devices/system/cpu/nohz_full"),
    ("cpu_boost", "/sys/devices/system/cpu/cpufreq/boost"),
    ("intel_pstate_no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
    ("cpuidle_governor", "/sys/devices/system/cpu/cpuidle/current_governor"),
    ("guest_halt_poll_ns", "/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
    ("kvm_halt_poll_ns", "/sys/module/kvm/parameters/halt_poll_ns"),
    ("workqueue_cpumask", "/sys/devices/virtual/workqueue/cpumask"),
    ("kernel_realtime", "/sys/kernel/realtime"),
    ("pcie_aspm", "/sys/module/pcie_aspm/parameters/policy"),
];

/// Settings of `/proc/sys`, by the names that sysctl(8) gives them.
const SYSCTLS: &[&str] = &[
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.dev_weight",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.ip_forward",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "kernel.nmi_watchdog",
    "kernel.numa_balancing",
    "kernel.perf_event_paranoid",
    "kernel.sched_autogroup_enabled",
    "kernel.sched_rt_period_us",
    "kernel.sched_rt_runtime_us",
    "kernel.soft_watchdog",
    "kernel.timer_migration",
    "kernel.watchdog",
    "vm.compaction_proactiveness",
    "vm.dirty_background_ratio",
    "vm.dirty_ratio",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.stat_interval",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
];

/// Environment variables by name, or by prefix.
const VARIABLES: &[&str] = &["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES"];
const VARIABLE_PREFIXES: &[&str] =
    &["EF_", "VMA_", "XLIO_", "ONLOAD", "SMC_", "NEARMETAL_", "NM_ACCEL_"];

/// The files of all settings.
pub fn paths() -> impl Iterator<Item = String> {
    let sysctls = SYSCTLS.iter().map(|name| sysctl_path(name));
    sysctls.chain(FILES.iter().map(|(_, path)| (*path).to_string()))
}

fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// All settings that can be read, as text with white space replaced by single blanks.
pub fn read(files: &HostFiles) -> BTreeMap<String, String> {
    let sysctls = SYSCTLS.iter().map(|name| (*name, files.text(&sysctl_path(name))));
    let others = FILES.iter().map(|(name, path)| (*name, files.text(path)));
    let mut settings: BTreeMap<String, String> = sysctls
        .chain(others)
        .filter_map(|(name, text)| Some((name.to_string(), text?)))
        .map(|(name, text)| (name, text.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    if let Some(running) = irqbalance_runs(files) {
        let text = if running { "running" } else { "not running" };
        settings.insert("irqbalance".to_string(), text.to_string());
    }
    settings
}

/// Whether a process named `irqbalance` runs; absent if no process is visible.
fn irqbalance_runs(files: &HostFiles) -> Option<bool> {
    let processes: Vec<String> = files
        .names("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    (!processes.is_empty()).then(|| {
        processes
            .iter()
            .any(|pid| files.text(&format!("/proc/{pid}/comm")).as_deref() == Some("irqbalance"))
    })
}

/// Those of `all` that affect sockets or dynamic linking.
pub fn variables(all: impl Iterator<Item = [String; 2]>) -> BTreeMap<String, String> {
    all.filter(|[name, _]| {
        VARIABLES.contains(&name.as_str())
            || VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
    .map(|[name, value]| (name, value))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_variables_are_included() {
        let all = [["EF_POLL_USEC", "1"], ["HOME", "/root"], ["LD_PRELOAD", "x.so"]];
        let included = variables(all.map(|pair| pair.map(str::to_string)).into_iter());
        assert_eq!(included.keys().collect::<Vec<_>>(), ["EF_POLL_USEC", "LD_PRELOAD"]);
    }
}
