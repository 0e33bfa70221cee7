//! Work of the kernel that comes from time to time: writeback, machine checks, watchdogs, new
//! interrupts, and threads that must not wait for the workload.

use nm_model::Severity;
use nm_model::finding::Confidence::Judgement;
use nm_model::finding::FixKind::{Command, KernelCommandLine};
use nm_model::finding::{Evidence, Threat, UndoClass};

use super::common::{no_cpu, overlap, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence};
use nm_settings::source;
use nm_sys::cpu_list;

const TAIL: &[Threat] = &[Threat::Tail, Threat::Maximum];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "iso.writeback",
        title: "work queue that writes dirty pages back",
        severity: Severity::Medium,
        why: "it has CPUs of its own, apart from those of other work queues, and runs on the \
              workload's CPUs whenever a file system has dirty pages",
        sources: &[source::RIGTORP, source::K_WORKQUEUE],
        fix: (Command, "echo MASK > /sys/devices/virtual/workqueue/writeback/cpumask"),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: writeback,
        ..Check::UNDECLARED
    },
    Check {
        id: "cpu.machine_check",
        title: "polling for corrected machine errors",
        severity: Severity::Low,
        why: "a timer of each CPU reads all banks of errors, by default every 300 s",
        sources: &[source::RIGTORP, source::K_MACHINE_CHECK],
        fix: (
            Command,
            "for f in /sys/devices/system/machinecheck/machinecheck*/check_interval; do \
             echo 0 > $f; done   # errors are then reported by interrupts alone",
        ),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: machine_check,
        ..Check::UNDECLARED
    },
    Check {
        id: "kern.soft_lockup",
        title: "watchdog for tasks that keep a CPU",
        severity: Severity::Low,
        why: "a timer of each CPU wakes a thread of the highest priority every 4 s",
        sources: &[source::TUNED, source::K_KERNEL, source::K_PARAMETERS],
        fix: (Command, "sysctl -w kernel.soft_watchdog=0   # nosoftlockup from the next boot on"),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: soft_lockup,
        ..Check::UNDECLARED
    },
    Check {
        id: "irq.default",
        title: "CPUs of interrupts that are requested later",
        severity: Severity::Medium,
        why: "a device that is plugged in or restarted gets its interrupts on any of these CPUs",
        sources: &[source::K_PARAMETERS, source::TUNED],
        fix: (KernelCommandLine, "irqaffinity=HOUSEKEEPING"),
        undo: UndoClass::Boot,
        threatens: TAIL,
        run: default_affinity,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.thread_priority",
        title: "priorities of the kernel's threads on the workload's CPUs",
        severity: Severity::High,
        why: "a real-time thread that spins above ksoftirqd and rcuc stops the soft interrupts and \
              callbacks of its CPU, until memory runs out or packets are lost",
        sources: &[source::TUNED, source::JUDGEMENT],
        fix: (Command, "chrt -f -p PRIORITY THREAD   # for each of the threads that are named"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Maximum, Threat::Loss],
        run: thread_priority,
        ..Check::UNDECLARED
    },
];

/// CPUs that are not the workload's; the first one where it has all.
fn others(m: &Machine<'_>) -> Vec<u32> {
    let rest: Vec<u32> = m.online.iter().filter(|cpu| !m.hot.contains(cpu)).copied().collect();
    if rest.is_empty() { m.online.iter().take(1).copied().collect() } else { rest }
}

/// A mask of CPUs against those of the workload: both sentences end with the CPUs.
fn of_mask(m: &Machine<'_>, path: &str, what: &str, bad: &str, good: &str) -> Observed {
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let Some(cpus) = m.text(path).and_then(cpu_list::parse_mask) else {
        return unread(m, what, &[path]);
    };
    let shared = overlap(&m.hot, &cpus);
    let seen = [m.evidence(path, format!("CPUs {}", cpu_list::list(&cpus)))];
    if !m.knows_hot() && !shared.is_empty() {
        return Observed::unknown(format!(
            "{what} are {}; `--cpus` names those of the workload",
            cpu_list::list(&cpus)
        ))
        .with(seen);
    }
    Observed::bad_if(
        !shared.is_empty(),
        format!("{bad} {}", cpu_list::list(&shared)),
        format!("{good} {}", cpu_list::list(&m.hot)),
    )
    .replace("MASK", cpu_list::mask(&others(m)))
    .replace("HOUSEKEEPING", cpu_list::list(&others(m)))
    .with(seen)
}

fn writeback(m: &Machine<'_>) -> Observed {
    of_mask(
        m,
        "/sys/devices/virtual/workqueue/writeback/cpumask",
        "the CPUs of writeback",
        "dirty pages may be written back on CPUs",
        "writeback keeps off CPUs",
    )
}

fn default_affinity(m: &Machine<'_>) -> Observed {
    of_mask(
        m,
        "/proc/irq/default_smp_affinity",
        "the CPUs of new interrupts",
        "interrupts that are requested later may run on CPUs",
        "interrupts that are requested later keep off CPUs",
    )
}

fn machine_check(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/sys/devices/system/machinecheck/machinecheck0/check_interval";
    if m.command_line().any(|word| word == "mce=off") {
        return Observed::pass("machine checks are off")
            .with([m.evidence("/proc/cmdline", "mce=off")]);
    }
    match m.text(PATH) {
        None => unread(m, "the interval of machine checks", &[PATH]),
        Some(seconds) => Observed::bad_if(
            seconds != "0",
            format!("each CPU looks for machine errors every {seconds} s"),
            "no CPU looks for machine errors at intervals",
        )
        .with([m.evidence(PATH, "s")]),
    }
}

fn soft_lockup(m: &Machine<'_>) -> Observed {
    const ALL: &str = "/proc/sys/kernel/watchdog";
    const SOFT: &str = "/proc/sys/kernel/soft_watchdog";
    const CPUS: &str = "/proc/sys/kernel/watchdog_cpumask";
    let seen = [m.evidence(SOFT, "1: on"), m.evidence(ALL, "1: on"), m.evidence(CPUS, "its CPUs")];
    if m.command_line().any(|word| word == "nosoftlockup") {
        return Observed::pass("the watchdog is off")
            .with([m.evidence("/proc/cmdline", "nosoftlockup")]);
    }
    let is_on = match (m.number(SOFT), m.number(ALL)) {
        (Some(0), _) | (_, Some(0)) => false,
        (Some(_), _) | (_, Some(_)) => true,
        (None, None) => return unread(m, "the watchdog", &[SOFT, ALL]),
    };
    let watched = m.list(CPUS).map(|cpus| overlap(&m.hot, &cpus));
    match (is_on, watched) {
        (false, _) => Observed::pass("the watchdog is off"),
        (true, Some(cpus)) if cpus.is_empty() && m.knows_hot() => {
            Observed::pass("the watchdog runs on other CPUs than the workload")
        }
        (true, Some(cpus)) if !cpus.is_empty() => {
            Observed::fail(format!("the watchdog wakes up on CPUs {}", cpu_list::list(&cpus)))
        }
        (true, _) => Observed::fail("the watchdog wakes up on every CPU"),
    }
    .with(seen)
}

/// A thread: its path, its policy and its real-time priority.
struct Thread {
    name: String,
    path: String,
    policy: u32,
    priority: u32,
}

/// The policy and priority in a thread's `stat`. Its name in brackets may hold blanks.
fn thread(m: &Machine<'_>, name: &str, path: String) -> Option<Thread> {
    let (_, rest) = m.text(&path)?.rsplit_once(')')?;
    let field = |index| rest.split_whitespace().nth(index)?.parse().ok();
    let (priority, policy) = (field(37)?, field(38)?);
    Some(Thread { name: name.to_string(), path, policy, priority })
}

/// Threads of the kernel that serve the workload's CPUs.
fn servants(m: &Machine<'_>) -> Vec<Thread> {
    let is_hot = |name: &str| {
        let number = name.strip_prefix("ksoftirqd/").or_else(|| name.strip_prefix("rcuc/"));
        number.and_then(|text| text.parse().ok()).is_some_and(|cpu: u32| m.hot.contains(&cpu))
    };
    let found = m.processes().filter(|(_, name)| is_hot(name));
    found.filter_map(|(pid, name)| thread(m, name, format!("/proc/{pid}/stat"))).collect()
}

fn thread_priority(m: &Machine<'_>) -> Observed {
    let servants = servants(m);
    if servants.is_empty() {
        return unread(m, "the priorities of ksoftirqd and rcuc", &["/proc/2/comm"]);
    }
    let seen = |threads: &[Thread]| -> Vec<Evidence> {
        let one = |thread: &Thread| {
            let raw = format!("policy {}, priority {}", thread.policy, thread.priority);
            evidence(thread.path.clone(), &raw, thread.name.clone())
        };
        threads.iter().map(one).collect()
    };
    let Some(pid) = m.snapshot.workload.pid else {
        return Observed::not_applicable(
            "matters to real-time threads that spin; `--pid` names the workload's process",
        )
        .with(seen(&servants));
    };
    let folder = format!("/proc/{pid}/task");
    let all = m.names(&folder).iter();
    let own: Vec<Thread> =
        all.filter_map(|name| thread(m, name, format!("{folder}/{name}/stat"))).collect();
    if own.is_empty() {
        return unread(m, "the threads of the workload", &[&folder]);
    }
    // SCHED_FIFO and SCHED_RR.
    let highest =
        own.iter().filter(|one| matches!(one.policy, 1 | 2)).map(|one| one.priority).max();
    let Some(highest) = highest else {
        return Observed::pass("the workload has no real-time thread").with(seen(&own));
    };
    let (above, below): (Vec<Thread>, Vec<Thread>) = servants
        .into_iter()
        .partition(|one| matches!(one.policy, 1 | 2) && one.priority >= highest);
    let names: Vec<&str> = below.iter().map(|one| one.name.as_str()).collect();
    let text = format!("{} wait while a thread of priority {highest} spins", names.join(", "));
    let first = below.first().and_then(|one| one.path.split('/').nth(2)).unwrap_or_default();
    Observed::bad_if(
        !below.is_empty(),
        text,
        format!("ksoftirqd and rcuc come before the workload's priority of {highest}"),
    )
    .replace("PRIORITY", (highest + 1).min(99).to_string())
    .replace("THREAD", first)
    .with(seen(if below.is_empty() { &above } else { &below }))
}
