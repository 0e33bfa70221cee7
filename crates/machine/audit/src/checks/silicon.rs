//! What the processor is made of: types of cores, clusters of nodes, its own clocks and shares.

use nm_model::Severity;
use nm_model::finding::Confidence::Judgement;
use nm_model::finding::FixKind::{Application, Command, Firmware};
use nm_model::finding::{Threat, UndoClass};

use super::common::{no_cpu, plural, unread};
use crate::check::Check;
use crate::machine::{Layer, Machine, cpu};
use crate::observed::{Observed, evidence};
use nm_settings::source;
use nm_settings::target::CpuSetting;
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "cpu.core_types",
        title: "workload on slower cores",
        severity: Severity::High,
        why: "a processor with cores of several types runs a thread slower on the smaller ones, \
              and a thread that moves between types changes its speed",
        sources: &[source::K_CAPACITY],
        fix: (Application, "pin the workload to CPUs FAST"),
        undo: UndoClass::Live,
        threatens: &[Threat::Median, Threat::Tail],
        run: core_types,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.c1e",
        title: "C1E, an idle state that lowers clock and voltage",
        severity: Severity::Medium,
        why: "the exit is as short as that of C1 by its figure, and the clock rises again after it",
        sources: &[source::K_INTEL_IDLE, source::K_CPUIDLE],
        fix: (
            Command,
            "for c in CPULIST; do echo 1 > \
             /sys/devices/system/cpu/cpu$c/cpuidle/stateNUMBER/disable; done",
        ),
        undo: UndoClass::Live,
        threatens: &[Threat::Wakeup, Threat::Tail],
        run: c1e,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.uncore",
        title: "frequency of the mesh, the last-level cache and the memory controllers",
        severity: Severity::Medium,
        why: "it falls while the processor is idle, and every miss of the caches takes longer \
              until it has risen",
        sources: &[source::K_UNCORE],
        fix: (
            Command,
            "for f in /sys/devices/system/cpu/intel_uncore_frequency/*/; do \
             cat $f/max_freq_khz > $f/min_freq_khz; done",
        ),
        undo: UndoClass::Live,
        threatens: &[Threat::Median, Threat::Wakeup],
        run: uncore,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.cache_shares",
        title: "shares of the last-level cache",
        severity: Severity::Low,
        why: "other programs evict the workload's lines from the cache that they share",
        sources: &[source::K_RESCTRL],
        fix: (
            Command,
            "mount -t resctrl resctrl /sys/fs/resctrl; mkdir /sys/fs/resctrl/nearmetal && \
             echo CPUS > /sys/fs/resctrl/nearmetal/cpus_list   # then give it ways in schemata",
        ),
        undo: UndoClass::Live,
        threatens: &[Threat::Tail],
        run: cache_shares,
        ..Check::UNDECLARED
    },
    Check {
        id: "kern.split_lock",
        title: "penalty for atomic operations across cache lines",
        severity: Severity::Low,
        why: "the kernel stops a program for 10 ms at each such operation, and one program at a \
              time",
        sources: &[source::K_BUS_LOCK, source::K_KERNEL],
        fix: (Command, "sysctl -w kernel.split_lock_mitigate=0"),
        undo: UndoClass::Live,
        threatens: &[Threat::Maximum],
        run: split_lock,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.clusters",
        title: "clusters of a socket (SNC, NPS)",
        severity: Severity::Info,
        why: "with one node for each socket memory comes from all its controllers, also the \
              farthest; more nodes are nearer and smaller",
        sources: &[source::AMD_LATENCY, source::JUDGEMENT],
        fix: (Firmware, "sub-NUMA clustering (Intel) or NPS4 (AMD), if the workload fits a node"),
        undo: UndoClass::Firmware,
        confidence: Judgement,
        threatens: &[Threat::Median],
        run: clusters,
        ..Check::UNDECLARED
    },
];

fn core_types(m: &Machine<'_>) -> Observed {
    if m.topology.cores.is_empty() || m.hot.is_empty() {
        return no_cpu(m);
    }
    let first = m.online.first().copied().unwrap_or_default();
    let files = ["/sys/devices/cpu_core/cpus".to_string(), cpu(first, "cpu_capacity")];
    let seen = files.iter().map(|path| m.evidence(path, "")).collect::<Vec<_>>();
    if !m.topology.knows_types() {
        return unread(m, "the types of the cores", &[&files[0], &files[1]]);
    }
    if !m.topology.has_types() {
        return Observed::pass("all cores are of one type").with([evidence(
            cpu(first, ""),
            "one type",
            "capacity or frequency of each CPU",
        )]);
    }
    let fastest = m.topology.fastest();
    let slow: Vec<u32> = m.hot.iter().filter(|cpu| !fastest.contains(cpu)).copied().collect();
    let fast = cpu_list::list(&fastest);
    if !m.knows_hot() {
        return Observed::unknown(format!(
            "CPUs {fast} are the fastest; `--cpus` names those of the workload"
        ))
        .with(seen);
    }
    Observed::bad_if(
        !slow.is_empty(),
        format!("CPUs {} of the workload are slower than CPUs {fast}", cpu_list::list(&slow)),
        format!("CPUs {} are of the fastest type", cpu_list::list(&m.hot)),
    )
    .replace("FAST", fast)
    .with(seen)
}

/// The number of the state C1E of a CPU, its latency in µs, and whether it is off.
fn state_of(m: &Machine<'_>, of: u32) -> Option<(usize, u64, bool)> {
    const STATES_MAX: usize = 16;
    let file = |state: usize, name: &str| cpu(of, &format!("cpuidle/state{state}/{name}"));
    let state = (0..STATES_MAX).find(|state| m.text(&file(*state, "name")) == Some("C1E"))?;
    let latency = m.text(&file(state, "latency"))?.parse().ok()?;
    Some((state, latency, m.number(&file(state, "disable")) == Some(1)))
}

fn c1e(m: &Machine<'_>) -> Observed {
    if m.is_guest() {
        return Observed::not_applicable("the host decides about idle states");
    }
    let path = cpu(m.hot.first().copied().unwrap_or_default(), "cpuidle/state1/name");
    let known: Vec<(u32, (usize, u64, bool))> =
        m.hot.iter().filter_map(|one| Some((*one, state_of(m, *one)?))).collect();
    let Some((_, (number, ..))) = known.first().copied() else {
        // Another driver may have the firmware raise C1 to C1E without a word.
        return unread(m, "whether C1 becomes C1E", &[&path, "MSR 0x1fc"]);
    };
    let is_used = |(one, (_, latency, is_off)): &(u32, (usize, u64, bool))| {
        let limit = m.text(&cpu(*one, CpuSetting::PmQosResumeLatency.file()));
        let allows = match limit {
            Some("n/a") => false,
            Some(text) => text.parse().map_or(true, |us: u64| us == 0 || *latency <= us),
            None => true,
        };
        !is_off && allows
    };
    let used: Vec<u32> = known.iter().filter(|one| is_used(one)).map(|(one, _)| *one).collect();
    let words: Vec<String> = used.iter().map(u32::to_string).collect();
    let shown = used.first().copied().unwrap_or(known[0].0);
    Observed::bad_if(
        !used.is_empty(),
        format!("CPUs {} may enter C1E", cpu_list::list(&used)),
        format!("CPUs {} do not enter C1E", cpu_list::list(&m.hot)),
    )
    .replace("CPULIST", words.join(" "))
    .replace("NUMBER", number.to_string())
    .with([m.evidence(&cpu(shown, &format!("cpuidle/state{number}/name")), "of this CPU")])
}

fn uncore(m: &Machine<'_>) -> Observed {
    const FOLDER: &str = "/sys/devices/system/cpu/intel_uncore_frequency";
    if m.is_guest() {
        return Observed::not_applicable("the host decides about the frequency of its mesh");
    }
    let khz = |name: &str, file: &str| m.number(&format!("{FOLDER}/{name}/{file}"));
    let known: Vec<(&String, i64, i64)> = m
        .names(FOLDER)
        .iter()
        .filter_map(|name| Some((name, khz(name, "min_freq_khz")?, khz(name, "max_freq_khz")?)))
        .collect();
    let wide = known.iter().find(|(_, min, max)| min < max);
    let Some((name, min, max)) = wide.or(known.first()).copied() else {
        return unread(m, "the frequency of the mesh", &[FOLDER]);
    };
    let range = format!("{} to {} MHz", min / 1_000, max / 1_000);
    Observed::bad_if(
        wide.is_some(),
        format!("the frequency of {name} may vary, from {range}"),
        format!("the frequency of the mesh is fixed: {range}"),
    )
    .with([m.evidence(&format!("{FOLDER}/{name}/min_freq_khz"), "kHz, lowest")])
}

/// Whether the first processor has a feature; absent if its features are not known.
fn has_flag(m: &Machine<'_>, names: &[&str]) -> Option<bool> {
    let text = m.text("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("flags"))?;
    Some(line.split_whitespace().any(|flag| names.contains(&flag)))
}

fn cache_shares(m: &Machine<'_>) -> Observed {
    const FOLDER: &str = "/sys/fs/resctrl";
    let info = "/proc/cpuinfo";
    match has_flag(m, &["cat_l3", "cat_l2", "cdp_l3"]) {
        None if m.topology.cores.is_empty() => return no_cpu(m),
        None => return unread(m, "whether the caches can be shared out", &[info]),
        Some(false) => {
            return Observed::not_applicable("the processor cannot share out its caches")
                .with([m.evidence(info, "no cat_l3, no cat_l2")]);
        }
        Some(true) => {}
    }
    let groups: Vec<&String> =
        m.names(FOLDER).iter().filter(|name| m.has(&format!("{FOLDER}/{name}/schemata"))).collect();
    let root = format!("{FOLDER}/schemata");
    let seen = [m.evidence(&root, "ways of each cache"), m.evidence(info, "cat_l3 or cat_l2")];
    match (groups.len(), m.has(FOLDER) || m.has(&root)) {
        (0, false) => unread(m, "the shares of the caches", &[&root]),
        (0, true) => Observed::fail("all programs use all of the last-level cache")
            .replace("CPUS", cpu_list::list(&m.separable())),
        (n, _) => Observed::pass(plural(n, "group has", "groups have") + " a share of the caches"),
    }
    .with(seen)
}

fn split_lock(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/sys/kernel/split_lock_mitigate";
    if m.parameter("split_lock_detect") == Some("off") {
        return Observed::pass("such operations are not looked for")
            .with([m.evidence("/proc/cmdline", "split_lock_detect=off")]);
    }
    if has_flag(m, &["split_lock_detect", "bus_lock_detect"]) == Some(false) {
        return Observed::not_applicable("the processor does not report such operations");
    }
    let Some(value) = m.number(PATH) else {
        return unread(m, "the penalty for such operations", &[PATH]);
    };
    Observed::bad_if(
        value != 0,
        "a program with such operations is stopped for 10 ms at each",
        "a program with such operations is warned of, and not stopped",
    )
    .with([m.evidence(PATH, "1: stopped")])
}

fn clusters(m: &Machine<'_>) -> Observed {
    const NODES: &str = "/sys/devices/system/node/node0/cpulist";
    if m.layer == Layer::Guest {
        return Observed::not_applicable("what a guest sees of sockets and nodes is made up");
    }
    let path = |one| cpu(one, "topology/physical_package_id");
    let first = m.online.first().copied().unwrap_or_default();
    let packages: Option<std::collections::BTreeSet<i64>> =
        m.online.iter().map(|one| m.number(&path(*one))).collect();
    let nodes: std::collections::BTreeSet<u32> = m.facts.cpu.numa_nodes.values().copied().collect();
    let Some(packages) = packages.filter(|all| !all.is_empty() && !nodes.is_empty()) else {
        return unread(m, "the nodes of each socket", &[&path(first), NODES]);
    };
    let seen = [m.evidence(&path(first), "socket"), m.evidence(NODES, "CPUs of node 0")];
    let n_caches = m.topology.caches().len();
    let text = format!(
        "{} in {}, {}",
        plural(nodes.len(), "NUMA node", "NUMA nodes"),
        plural(packages.len(), "socket", "sockets"),
        plural(n_caches, "last-level cache", "last-level caches"),
    );
    // A socket with one cache and one node has nothing to divide that could be seen.
    let could = n_caches > packages.len() && nodes.len() == packages.len();
    Observed::bad_if(could, text.clone(), text).with(seen)
}
