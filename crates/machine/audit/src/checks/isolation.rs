//! Isolation from the scheduler, the tick and the kernel's own threads.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::{Command, KernelCommandLine, Record};
use nm_model::finding::{Threat, UndoClass};

use super::common::{Judged, chosen, judge, no_cpu, overlap, path_of, plural, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence};
use nm_settings::target::MachineSetting;
use nm_settings::{SettingId, source};
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
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.nohz",
        title: "the scheduler's tick",
        severity: Severity::Medium,
        settings: &[SettingId::IsoTick],
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
        settings: &[SettingId::IsoRcu],
        threatens: TAIL,
        run: rcu,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.workqueue",
        title: "the kernel's unbound threads",
        severity: Severity::Medium,
        settings: &[SettingId::IsoWorkqueue],
        threatens: TAIL,
        run: workqueue,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.rt_throttle",
        title: "throttling of real-time threads",
        severity: Severity::Critical,
        settings: &[SettingId::IsoRtThrottle],
        effect: Some("50 ms a second"),
        threatens: &[Threat::Maximum],
        run: rt_throttle,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.noise",
        title: "periodic work of the kernel",
        severity: Severity::Low,
        settings: &[
            SettingId::IsoTimerMigration,
            SettingId::IsoStatInterval,
            SettingId::IsoNmiWatchdog,
        ],
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
            "isolcpus=managed_irq,domain,CPUS   # one CPU of each NUMA node is left out",
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
    let path = MachineSetting::WorkqueueMask.path();
    let Some(cpus) = m.text(&path).and_then(cpu_list::parse_mask) else {
        return unread(m, "the CPUs of work queues", &[&path]);
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
    .with([m.evidence(&path, format!("CPUs {}", cpu_list::list(&cpus)))])
}

fn rt_throttle(m: &Machine<'_>) -> Observed {
    const SERVER: &str = "/sys/kernel/debug/sched/fair_server/cpu0/runtime";
    let Some(Judged { path, is_good, .. }) = judge(m, SettingId::IsoRtThrottle) else {
        return unread(m, "the limit of real-time threads", &[&path_of(SettingId::IsoRtThrottle)]);
    };
    let seen = [m.evidence(&path, "µs of each second"), m.evidence(SERVER, "fair server, ns")];
    if is_good {
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
    let all = [
        (SettingId::IsoTimerMigration, "timers migrate"),
        (SettingId::IsoStatInterval, "statistics are folded more often than every 10 s"),
        (SettingId::IsoNmiWatchdog, "the NMI watchdog runs"),
    ];
    let seen = all.map(|(id, _)| m.evidence(&path_of(id), ""));
    let judged = all.map(|(id, fault)| (id, fault, judge(m, id).map(|judged| judged.is_good)));
    if judged.iter().all(|(_, _, is_good)| is_good.is_none()) {
        return Observed::unknown("the settings of periodic work could not be read").with(seen);
    }
    let wrong = judged.iter().filter(|(_, _, is_good)| *is_good == Some(false));
    let (at_fault, bad): (Vec<_>, Vec<_>) = wrong.map(|(id, fault, _)| (*id, *fault)).unzip();
    if bad.is_empty() && judged.iter().any(|(_, _, is_good)| is_good.is_none()) {
        return Observed::unknown("some settings of periodic work could not be read").with(seen);
    }
    Observed::bad_if(!bad.is_empty(), bad.join("; "), "timers, statistics and watchdog are quiet")
        .at_fault(at_fault)
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
    let spare = |node: &u32| nodes.iter().find(|(_, one)| *one == node).map(|(cpu, _)| *cpu);
    let left: Vec<u32> = full.iter().filter_map(spare).collect();
    let kept: Vec<u32> = m.hot.iter().filter(|cpu| !left.contains(cpu)).copied().collect();
    Observed::bad_if(
        !full.is_empty(),
        format!("no CPU is left for interrupts on NUMA nodes {}", cpu_list::list(&full)),
        plural(all.len(), "NUMA node has", "NUMA nodes have") + " a CPU left for interrupts",
    )
    .replace("CPUS", cpu_list::list(&kept))
    .with([m.evidence("/sys/devices/system/node/node0/cpulist", "CPUs of node 0")])
}
