//! The workload's process: where its threads run, what they wait for, its memory.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::{Application, Command};
use nm_model::finding::{Evidence, Threat, UndoClass};

use super::common::unread;
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::Observed;
use nm_settings::source;
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "iso.app_affinity",
        title: "pinning of the workload's busy threads",
        severity: Severity::High,
        why: "a thread that moves between CPUs loses its caches, and two busy threads on one CPU \
              wait for each other",
        sources: &[source::DEFTECH, source::RIGTORP],
        fix: (Command, "taskset -cp CPU THREAD   # one CPU for each busy thread"),
        undo: UndoClass::Live,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: affinity,
        ..Check::UNDECLARED
    },
    Check {
        id: "iso.run_delay",
        title: "time that the workload waited for a CPU",
        severity: Severity::High,
        why: "a thread that is ready and waits proves that something else ran on its CPU",
        sources: &[source::JUDGEMENT],
        fix: (Command, "perf sched record -- sleep 1; perf sched timehist   # find the intruder"),
        confidence: Measured,
        effect: Some("a spinning thread on a shared CPU waited for 70 % of the time"),
        threatens: &[Threat::Tail, Threat::Maximum],
        run: run_delay,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.memory",
        title: "memory of the workload on other NUMA nodes",
        severity: Severity::Medium,
        why: "each access to it crosses sockets",
        sources: &[source::RIGTORP],
        fix: (Command, "numactl --membind=NODE --cpunodebind=NODE PROGRAM"),
        undo: UndoClass::Application,
        threatens: &[Threat::Median, Threat::Tail],
        run: memory,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.memlock",
        title: "locked memory of the workload",
        severity: Severity::Medium,
        why: "where the limit is below the process's size, mlockall fails, and many programs do \
              not say so",
        sources: &[source::RIGTORP_MEMORY],
        fix: (Application, "LimitMEMLOCK=infinity in its unit, or limits.d"),
        undo: UndoClass::Live,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: memlock,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.faults",
        title: "page faults of the workload while it runs",
        severity: Severity::Medium,
        why: "a fault on the hot path enters the kernel",
        sources: &[source::RIGTORP_MEMORY],
        fix: (Application, "touch all memory before the start, keep it, and lock it"),
        undo: UndoClass::Application,
        confidence: Judgement,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: faults,
        ..Check::UNDECLARED
    },
];

/// Why a check of the process says nothing.
fn no_process(m: &Machine<'_>, path: &str) -> Observed {
    match m.snapshot.workload.pid {
        None => Observed::not_applicable("needs `--pid`, the workload's process"),
        Some(pid) => unread(m, "the workload's process", &[&path.replace("PID", &pid.to_string())]),
    }
}

/// A thread and how long it ran and waited during the snapshot, ns.
struct Thread {
    id: String,
    path: String,
    ran_ns: u64,
    waited_ns: u64,
}

fn threads(m: &Machine<'_>) -> Option<Vec<Thread>> {
    let folder = format!("/proc/{}/task", m.snapshot.workload.pid?);
    let pair = |text: &str| {
        let mut fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
        Some((fields.next()??, fields.next()??))
    };
    let of_thread = |id: &String| {
        let path = format!("{folder}/{id}/schedstat");
        let (ran, waited) = pair(m.text(&path)?)?;
        let (ran_2, waited_2) = pair(m.second(&path)?)?;
        let (ran_ns, waited_ns) = (ran_2.saturating_sub(ran), waited_2.saturating_sub(waited));
        Some(Thread { id: id.clone(), path, ran_ns, waited_ns })
    };
    let all: Vec<Thread> = m.names(&folder).iter().filter_map(of_thread).collect();
    (!all.is_empty()).then_some(all)
}

fn affinity(m: &Machine<'_>) -> Observed {
    let (Some(threads), Some(interval_s)) = (threads(m), m.interval_s()) else {
        return no_process(m, "/proc/PID/task");
    };
    let pid = m.snapshot.workload.pid.unwrap_or_default();
    // Busy: at least a tenth of the time.
    let mut busy: Vec<(String, String, Vec<u32>)> = vec![];
    for thread in threads.iter().filter(|one| one.ran_ns as f64 > interval_s * 1e8) {
        let path = format!("/proc/{pid}/task/{}/status", thread.id);
        let list = m.status_line(&path, "Cpus_allowed_list:");
        if let Some(cpus) = list.and_then(nm_sys::hostfiles::parse_list) {
            busy.push((thread.id.clone(), path, cpus));
        }
    }
    let loose = busy.iter().filter(|(_, _, cpus)| cpus.len() != 1);
    let mut faults: Vec<String> = loose
        .map(|(id, _, cpus)| format!("busy thread {id} may run on CPUs {}", cpu_list::list(cpus)))
        .collect();
    for (at, (id, _, cpus)) in busy.iter().enumerate() {
        let same = busy[..at].iter().find(|(_, _, others)| others.len() == 1 && others == cpus);
        if let Some((other, ..)) = same {
            faults
                .push(format!("busy threads {other} and {id} share CPU {}", cpu_list::list(cpus)));
        }
    }
    let seen: Vec<Evidence> = busy
        .iter()
        .map(|(_, path, cpus)| m.evidence(path, format!("CPUs {}", cpu_list::list(cpus))))
        .collect();
    if busy.is_empty() {
        return Observed::unknown("no thread of the workload was busy during the snapshot")
            .with([m.evidence(&threads[0].path, "ran, waited (ns)")]);
    }
    let good = format!("{} busy threads are pinned to a CPU each", busy.len());
    Observed::bad_if(!faults.is_empty(), faults.join("; "), good).with(seen)
}

fn run_delay(m: &Machine<'_>) -> Observed {
    let (Some(threads), Some(interval_s)) = (threads(m), m.interval_s()) else {
        return no_process(m, "/proc/PID/task");
    };
    // Less than 0.1 % is a thread that was just woken.
    let waiting: Vec<&Thread> =
        threads.iter().filter(|one| one.waited_ns as f64 > interval_s * 1e6).collect();
    let worst = threads.iter().max_by_key(|one| one.waited_ns);
    let text = worst.map_or(String::new(), |one| {
        format!(
            "thread {} waited {:.1} ms of {interval_s:.1} s for a CPU",
            one.id,
            one.waited_ns as f64 / 1e6
        )
    });
    let shown = if waiting.is_empty() { threads.iter().take(1).collect() } else { waiting.clone() };
    let seen: Vec<Evidence> = shown
        .iter()
        .map(|one| {
            m.evidence(&one.path, format!("waited {} ns during the snapshot", one.waited_ns))
        })
        .collect();
    Observed::bad_if(!waiting.is_empty(), text.clone(), text).with(seen)
}

fn memory(m: &Machine<'_>) -> Observed {
    let path = m.snapshot.workload.pid.map(|pid| format!("/proc/{pid}/numa_maps"));
    let Some((path, text)) = path.and_then(|path| Some((path.clone(), m.text(&path)?))) else {
        return no_process(m, "/proc/PID/numa_maps");
    };
    let nodes = &m.facts.cpu.numa_nodes;
    let own: Vec<u32> = m.hot.iter().filter_map(|cpu| nodes.get(cpu).copied()).collect();
    let (mut near, mut far) = (0u64, 0u64);
    for word in text.split_whitespace() {
        let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('=')) else {
            continue;
        };
        let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) else { continue };
        *if own.contains(&node) { &mut near } else { &mut far } += pages;
    }
    if near + far == 0 || own.is_empty() {
        return Observed::unknown("the pages of each NUMA node are not known")
            .with([m.evidence(&path, "")]);
    }
    let percent = far as f64 * 100.0 / (near + far) as f64;
    let text = format!("{percent:.1} % of the pages are on other nodes than the workload's CPUs");
    Observed::bad_if(percent > 1.0, text.clone(), text)
        .replace("NODE", own[0].to_string())
        .with([m.evidence(&path, format!("{near} pages near, {far} far"))])
}

fn memlock(m: &Machine<'_>) -> Observed {
    let pid = m.snapshot.workload.pid.map_or("self".to_string(), |pid| pid.to_string());
    let path = format!("/proc/{pid}/limits");
    let Some(limit) = m.status_line(&path, "Max locked memory") else {
        return unread(m, "the limit of locked memory", &[&path]);
    };
    let limit = limit.split_whitespace().next().unwrap_or_default();
    let status = format!("/proc/{pid}/status");
    let rss = m
        .status_line(&status, "VmRSS:")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let seen = [m.evidence(&path, format!("limit: {limit} bytes")), m.evidence(&status, "VmRSS")];
    let Ok(bytes) = limit.parse::<u64>() else {
        return Observed::pass("the limit of locked memory is unlimited").with(seen);
    };
    match rss {
        // 64 MiB: what a small program needs with its libraries and stacks.
        None => Observed::bad_if(
            bytes < 64 << 20,
            format!("only {bytes} bytes of memory may be locked"),
            format!("{bytes} bytes of memory may be locked"),
        ),
        Some(kib) => Observed::bad_if(
            bytes < kib * 1_024,
            format!("{bytes} bytes may be locked, and the process has {} bytes", kib * 1_024),
            format!("{bytes} bytes may be locked, more than the process has"),
        ),
    }
    .with(seen)
}

fn faults(m: &Machine<'_>) -> Observed {
    let path = m.snapshot.workload.pid.map(|pid| format!("/proc/{pid}/stat"));
    // Minor and major faults are fields 10 and 12; the name in brackets may hold blanks.
    let counts = |text: &str| {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some((fields.get(7)?.parse::<u64>().ok()?, fields.get(9)?.parse::<u64>().ok()?))
    };
    let both =
        path.as_ref().and_then(|path| Some((counts(m.text(path)?)?, counts(m.second(path)?)?)));
    let (Some(path), Some((first, later))) = (path, both) else {
        return no_process(m, "/proc/PID/stat");
    };
    let minor = later.0.saturating_sub(first.0);
    let major = later.1.saturating_sub(first.1);
    let text = format!("{minor} minor and {major} major page faults during the snapshot");
    Observed::bad_if(minor + major > 0, text.clone(), text)
        .severity(if major > 0 { Severity::High } else { Severity::Medium })
        .with([m.evidence(&path, "fields 10 and 12")])
}
