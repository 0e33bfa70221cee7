//! Isolation from the scheduler, the tick and the kernel's own threads.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::{Command, KernelCommandLine, Record};
use nm_model::finding::{Threat, UndoClass};

use super::common::{chosen, no_cpu, overlap, plural, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence};
use crate::sources as source;
use nm_sys::cpu_list;

const TAIL: &[Threat] = &[Threat::Tail, Threat::Maximum];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "iso.set",
        title: "CPUs isolated from the scheduler",
        severity: Severity::High,
        why: "the scheduler puts other tasks on the CPUs of the workload and moves them between \
              CPUs",
        sources: &[source::RIGTORP, source::AWS, source::K_CGROUP, source::K_PARAMETERS],
        fix: (
            Command,
            "cd /sys/fs/cgroup && echo +cpuset > cgroup.subtree_control && mkdir nearmetal && \
             echo CPUS > nearmetal/cpuset.cpus && echo isolated > nearmetal/cpuset.cpus.partition",
        ),
        undo: UndoClass::Live,
        confidence: Measured,
        effect: Some("longest gap 18 µs on an isolated CPU, 8 to 17 ms on others (rigtorp.se)"),
        conflict: Some(
            "many guides use isolcpus= on the command line; the kernel's documents call it \
             deprecated, and it lasts until a reboot",
        ),
        threatens: TAIL,
        run: set,
    },
    Check {
        id: "iso.nohz",
        title: "the scheduler's tick",
        severity: Severity::Medium,
        why: "the tick interrupts a busy CPU every 1 to 4 ms",
        sources: &[source::RIGTORP, source::K_PARAMETERS],
        fix: (KernelCommandLine, "nohz_full=CPUS"),
        undo: UndoClass::Boot,
        confidence: Judgement,
        effect: Some("1 to 3 µs a tick on metal; 14 µs on a nested guest"),
        threatens: TAIL,
        run: nohz,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.rcu",
        title: "RCU callbacks",
        severity: Severity::Medium,
        why: "callbacks run in soft interrupts of the workload's CPUs",
        sources: &[source::RIGTORP, source::TUNED, source::K_PER_CPU],
        fix: (KernelCommandLine, "rcu_nocbs=CPUS"),
        undo: UndoClass::Boot,
        threatens: TAIL,
        run: rcu,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.workqueue",
        title: "the kernel's unbound threads",
        severity: Severity::Medium,
        why: "work queues, writeback and ksmd may run on the workload's CPUs",
        sources: &[source::TUNED, source::K_PER_CPU],
        fix: (Command, "echo MASK > /sys/devices/virtual/workqueue/cpumask"),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: workqueue,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.rt_throttle",
        title: "throttling of real-time threads",
        severity: Severity::Critical,
        why: "a real-time thread that spins is stopped for 50 ms of each second; without the \
              limit the kernel's threads on its CPU starve",
        sources: &[source::TUNED, source::STALLD],
        fix: (
            Command,
            "sysctl -w kernel.sched_rt_runtime_us=-1   # with stalld, or SCHED_OTHER on isolated \
             CPUs",
        ),
        undo: UndoClass::Live,
        effect: Some("50 ms a second"),
        conflict: Some(
            "TuneD's profile realtime sets -1; without stalld that can hang the machine, so a \
             spinning thread is better SCHED_OTHER on an isolated CPU",
        ),
        threatens: &[Threat::Maximum],
        run: rt_throttle,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.noise",
        title: "periodic work of the kernel",
        severity: Severity::Low,
        why: "migrated timers, the statistics of the virtual memory and the watchdog run on the \
              workload's CPUs",
        sources: &[source::TUNED, source::K_PER_CPU],
        fix: (
            Command,
            "sysctl -w kernel.timer_migration=0 vm.stat_interval=10 kernel.nmi_watchdog=0",
        ),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: noise,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.preempt",
        title: "preemption model of the kernel",
        severity: Severity::Info,
        why: "a real-time kernel trades the mean for the worst case",
        sources: &[source::JUDGEMENT],
        fix: (Record, "name the kernel beside the figures"),
        confidence: Judgement,
        threatens: &[Threat::Median, Threat::Maximum],
        run: preempt,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.housekeeping",
        title: "CPUs left for interrupts and the kernel",
        severity: Severity::Medium,
        why: "without a CPU of their own on the network device's node, interrupts cross sockets or \
              run on the workload's CPUs",
        sources: &[source::TUNED],
        fix: (
            KernelCommandLine,
            "leave at least one CPU of each NUMA node out of the isolated set",
        ),
        undo: UndoClass::Boot,
        threatens: TAIL,
        run: housekeeping,
        ..Check::UNDECLARED
    },
];

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const NOHZ: &str = "/sys/devices/system/cpu/nohz_full";

/// What the kernel needs is on the workload's CPU, whatever is set.
const ONE_CPU: &str = "the machine has one CPU, which the kernel needs, too";

fn set(m: &Machine<'_>) -> Observed {
    if m.online.len() == 1 {
        return Observed::not_applicable(ONE_CPU);
    }
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let Some(isolated) = m.list(ISOLATED) else {
        return unread(m, "the set of isolated CPUs", &[ISOLATED]);
    };
    let open: Vec<u32> = m.hot.iter().filter(|cpu| !isolated.contains(cpu)).copied().collect();
    let seen = [m.evidence(
        ISOLATED,
        format!("isolated: {}", {
            if isolated.is_empty() { "none".to_string() } else { cpu_list::list(&isolated) }
        }),
    )];
    let text = match m.knows_hot() {
        true => format!("CPUs {} of the workload are not isolated", cpu_list::list(&open)),
        false => "no CPU is isolated".to_string(),
    };
    Observed::bad_if(
        !open.is_empty(),
        text,
        format!("CPUs {} are isolated", cpu_list::list(&m.hot)),
    )
    .replace("CPUS", cpu_list::list(&m.separable()))
    .with(seen)
}

/// Lines of the running kernel's configuration: path and text.
fn config<'a>(m: &Machine<'a>) -> Option<(String, &'a str)> {
    let release = &m.facts.host.kernel;
    let paths = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    paths.into_iter().find_map(|path| {
        let text = m.text(&path)?;
        Some((path, text))
    })
}

fn nohz(m: &Machine<'_>) -> Observed {
    if m.online.len() == 1 {
        return Observed::not_applicable(ONE_CPU);
    }
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let is_built = config(m).map(|(_, text)| text.contains("CONFIG_NO_HZ_FULL=y"));
    // The file is there in every kernel that can, and holds `(null)` if nothing was asked for.
    let list = m.text(NOHZ).filter(|text| *text != "(null)").map(|_| m.list(NOHZ));
    let seen = [m.evidence(NOHZ, "CPUs without a tick"), m.evidence("/proc/cmdline", "nohz_full=")];
    let open = match list {
        Some(None) => return unread(m, "the CPUs without a tick", &[NOHZ]),
        Some(Some(cpus)) => m.hot.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect(),
        None if m.snapshot.files.contains_key(NOHZ) || is_built == Some(false) => m.hot.clone(),
        None if m.text("/proc/cmdline").is_some() && m.parameter("nohz_full").is_none() => {
            m.hot.clone()
        }
        None => return unread(m, "the CPUs without a tick", &[NOHZ, "/proc/cmdline"]),
    };
    let why = match is_built {
        Some(false) => ", and the kernel cannot run without it",
        _ => "",
    };
    Observed::bad_if(
        !open.is_empty(),
        format!("the tick interrupts CPUs {}{why}", cpu_list::list(&open)),
        format!("CPUs {} run without a tick while busy", cpu_list::list(&m.hot)),
    )
    .replace("CPUS", cpu_list::list(&m.separable()))
    .with(seen)
}

fn rcu(m: &Machine<'_>) -> Observed {
    if m.online.len() == 1 {
        return Observed::not_applicable(ONE_CPU);
    }
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    const PATH: &str = "/proc/cmdline";
    if m.text(PATH).is_none() {
        return unread(m, "the kernel's command line", &[PATH]);
    }
    // nohz_full= implies it.
    let named = m.parameter("rcu_nocbs").or(m.parameter("nohz_full"));
    let cpus = match named {
        Some("all") => m.online.clone(),
        Some(text) => {
            nm_sys::hostfiles::parse_list(&text.replace("-N", "-65535")).unwrap_or_default()
        }
        None => vec![],
    };
    let open: Vec<u32> = m.hot.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect();
    Observed::bad_if(
        !open.is_empty(),
        format!("RCU callbacks run on CPUs {}", cpu_list::list(&open)),
        format!("RCU callbacks are moved away from CPUs {}", cpu_list::list(&m.hot)),
    )
    .replace("CPUS", cpu_list::list(&m.separable()))
    .with([evidence(PATH, named.unwrap_or("no rcu_nocbs="), "rcu_nocbs=")])
}

fn workqueue(m: &Machine<'_>) -> Observed {
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    const PATH: &str = "/sys/devices/virtual/workqueue/cpumask";
    let Some(cpus) = m.text(PATH).and_then(cpu_list::parse_mask) else {
        return unread(m, "the CPUs of work queues", &[PATH]);
    };
    let shared = overlap(&m.hot, &cpus);
    let rest: Vec<u32> = m.online.iter().filter(|cpu| !m.hot.contains(cpu)).copied().collect();
    let rest = if rest.is_empty() { m.online.iter().take(1).copied().collect() } else { rest };
    Observed::bad_if(
        !shared.is_empty(),
        format!("work queues may run on CPUs {}", cpu_list::list(&shared)),
        format!("work queues keep off CPUs {}", cpu_list::list(&m.hot)),
    )
    .replace("MASK", cpu_list::mask(&rest))
    .with([m.evidence(PATH, format!("CPUs {}", cpu_list::list(&cpus)))])
}

fn rt_throttle(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/sys/kernel/sched_rt_runtime_us";
    const SERVER: &str = "/sys/kernel/debug/sched/fair_server/cpu0/runtime";
    let Some(runtime) = m.number(PATH) else {
        return unread(m, "the limit of real-time threads", &[PATH]);
    };
    let seen = [m.evidence(PATH, "µs of each second"), m.evidence(SERVER, "fair server, ns")];
    if runtime < 0 {
        return match (m.sees_processes(), m.process("stalld")) {
            (true, Some(_)) => Observed::pass("real-time threads have no limit, and stalld runs"),
            (true, None) => {
                Observed::fail("real-time threads have no limit, and stalld does not run")
            }
            (false, _) => {
                Observed::unknown("real-time threads have no limit; no process is visible")
            }
        }
        .with(seen);
    }
    let hot = real_time_threads(m);
    match (m.snapshot.workload.pid, hot) {
        (Some(_), Some(threads)) if !threads.is_empty() => Observed::fail(format!(
            "real-time threads {} of the workload are stopped when they spin",
            threads.join(", ")
        )),
        (Some(_), Some(_)) => Observed::pass("the workload has no real-time thread"),
        _ => Observed::not_applicable(
            "matters to real-time threads that spin; `--pid` names the workload's process",
        ),
    }
    .with(seen)
}

/// Threads of the workload with a real-time policy; absent if they cannot be read.
fn real_time_threads(m: &Machine<'_>) -> Option<Vec<String>> {
    let pid = m.snapshot.workload.pid?;
    let folder = format!("/proc/{pid}/task");
    let names = m.names(&folder);
    let mut found = vec![];
    for thread in names {
        // The policy is field 41; the name in brackets may hold blanks.
        let text = m.text(&format!("{folder}/{thread}/stat"))?;
        let (_, rest) = text.rsplit_once(')')?;
        let policy: u32 = rest.split_whitespace().nth(38)?.parse().ok()?;
        if matches!(policy, 1 | 2) {
            found.push(thread.clone());
        }
    }
    (!names.is_empty()).then_some(found)
}

fn noise(m: &Machine<'_>) -> Observed {
    const MIGRATION: &str = "/proc/sys/kernel/timer_migration";
    const INTERVAL: &str = "/proc/sys/vm/stat_interval";
    const WATCHDOG: &str = "/proc/sys/kernel/nmi_watchdog";
    let all = [MIGRATION, INTERVAL, WATCHDOG];
    let values: Vec<Option<i64>> = all.iter().map(|path| m.number(path)).collect();
    if values.iter().all(Option::is_none) {
        return unread(m, "the settings of periodic work", &all);
    }
    let mut bad = vec![];
    if values[0] == Some(1) {
        bad.push("timers migrate");
    }
    if values[1].is_some_and(|seconds| seconds < 10) {
        bad.push("statistics are folded more often than every 10 s");
    }
    if values[2] == Some(1) {
        bad.push("the NMI watchdog runs");
    }
    let is_known = values.iter().all(Option::is_some);
    let seen = all.map(|path| m.evidence(path, ""));
    if bad.is_empty() && !is_known {
        return Observed::unknown("some settings of periodic work could not be read").with(seen);
    }
    Observed::bad_if(!bad.is_empty(), bad.join("; "), "timers, statistics and watchdog are quiet")
        .with(seen)
}

fn preempt(m: &Machine<'_>) -> Observed {
    const REALTIME: &str = "/sys/kernel/realtime";
    const MODEL: &str = "/sys/kernel/debug/sched/preempt";
    let hz = config(m).and_then(|(path, text)| {
        let line = text.lines().find(|line| line.starts_with("CONFIG_HZ="))?;
        Some(evidence(path, line, "ticks a second"))
    });
    let seen = [
        m.evidence(REALTIME, "1 on a real-time kernel, absent on others"),
        m.evidence(MODEL, ""),
        m.evidence("/proc/sys/kernel/osrelease", "release"),
    ];
    let observed = match (m.number(REALTIME), m.text(MODEL)) {
        (Some(1), _) => Observed::fail("this is a real-time kernel"),
        (_, Some(text)) => {
            let model = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            let model = model.map_or(chosen(text), |(model, _)| model);
            Observed::pass(format!("the kernel's preemption is {model}"))
        }
        (Some(_), None) => Observed::pass("this is no real-time kernel"),
        // Only real-time kernels have the file, and its folder is always readable.
        (None, None) if m.facts.host.kernel.contains("rt") => {
            Observed::unknown("the kernel's name has `rt`, and nothing says whether it is one")
        }
        (None, None) if m.facts.host.kernel.is_empty() => {
            Observed::unknown("nothing is known of the kernel")
        }
        (None, None) => Observed::pass("this is no real-time kernel"),
    };
    observed.with(seen).with(hz)
}

fn housekeeping(m: &Machine<'_>) -> Observed {
    if !m.knows_hot() {
        if m.list(ISOLATED).is_none() {
            return unread(m, "the set of isolated CPUs", &[ISOLATED]);
        }
        return Observed::not_applicable("the CPUs of the workload are not known");
    }
    let nodes = &m.facts.cpu.numa_nodes;
    if nodes.is_empty() {
        return unread(
            m,
            "the CPUs of each NUMA node",
            &["/sys/devices/system/node/node0/cpulist"],
        );
    }
    let all: std::collections::BTreeSet<u32> = nodes.values().copied().collect();
    let is_left = |node: u32| nodes.iter().any(|(cpu, one)| *one == node && !m.hot.contains(cpu));
    let full: Vec<u32> = all.iter().copied().filter(|node| !is_left(*node)).collect();
    Observed::bad_if(
        !full.is_empty(),
        format!("no CPU is left for interrupts on NUMA nodes {}", cpu_list::list(&full)),
        plural(all.len(), "NUMA node has", "NUMA nodes have") + " a CPU left for interrupts",
    )
    .with([m.evidence("/sys/devices/system/node/node0/cpulist", "CPUs of node 0")])
}
