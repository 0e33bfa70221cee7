//! Containers: bandwidth limits, CPU sets, network path, capabilities.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::Application;
use nm_model::finding::{Threat, UndoClass};

use super::common::{field, unread};
use crate::check::Check;
use crate::machine::{Machine, net};
use crate::observed::{Observed, evidence, missing};
use nm_settings::source;
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "ctr.quota",
        title: "CPU bandwidth limit",
        severity: Severity::Critical,
        why: "a control group that used up its quota stands still until the next period, of \
              usually 100 ms",
        sources: &[source::K_CFS],
        fix: (
            Application,
            "no CPU limit; Kubernetes: CPU manager `static`, whole CPUs as request and limit",
        ),
        undo: UndoClass::Live,
        confidence: Documented,
        effect: Some("stops of up to 100 ms"),
        threatens: &[Threat::Tail, Threat::Maximum, Threat::Throughput],
        run: quota,
        ..Check::UNDECLARED
    },
    Check {
        id: "ctr.cpuset",
        title: "CPUs of the container",
        severity: Severity::High,
        why: "in a shared pool other containers run on the same CPUs",
        sources: &[source::K_CGROUP],
        fix: (Application, "an exclusive CPU set: `--cpuset-cpus`, or the CPU manager `static`"),
        undo: UndoClass::Live,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: cpuset,
        ..Check::UNDECLARED
    },
    Check {
        id: "ctr.netpath",
        title: "network path of the container",
        severity: Severity::High,
        why: "a pair of virtual devices, a bridge and connection tracking handle each packet",
        sources: &[source::JUDGEMENT],
        fix: (
            Application,
            "the host's network, or a virtual function in the container (SR-IOV CNI)",
        ),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Network],
        run: network,
        ..Check::UNDECLARED
    },
    Check {
        id: "ctr.caps",
        title: "capabilities for pinning, locking and raw sockets",
        severity: Severity::Medium,
        why: "without them priorities, locked memory or raw sockets fail, and many programs do not \
              say so",
        sources: &[source::JUDGEMENT],
        fix: (Application, "add the capabilities CAPABILITIES"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Tail],
        run: capabilities,
        ..Check::UNDECLARED
    },
];

/// `cpu.stat` files with the count of throttled periods.
fn throttled<'a>(m: &Machine<'a>) -> Vec<(&'a str, u64, Option<u64>)> {
    let files = m.snapshot.files.iter();
    let stats = files
        .filter(|(path, _)| path.starts_with("/sys/fs/cgroup/") && path.ends_with("/cpu.stat"));
    stats
        .filter_map(|(path, text)| {
            let first = field(text, "nr_throttled")?;
            let later = m.second(path).and_then(|text| field(text, "nr_throttled"));
            Some((path.as_str(), first, later))
        })
        .collect()
}

fn quota(m: &Machine<'_>) -> Observed {
    const GROUPS: &str = "/proc/self/cgroup";
    let counts = throttled(m);
    let mut seen: Vec<_> = counts
        .iter()
        .filter(|(_, n, _)| *n > 0)
        .map(|(path, n, _)| evidence(*path, &format!("nr_throttled {n}"), "periods throttled"))
        .collect();
    if let Some(limit) = &m.facts.cpu.quota {
        let (quota, period) = limit.split_once(' ').unwrap_or((limit, "100000"));
        let path = m.snapshot.files.iter().find(|(path, text)| {
            path.ends_with("/cpu.max") && text.as_str() == limit
                || path.ends_with("/cpu.cfs_quota_us") && text.as_str() == quota
        });
        let path = path.map_or("/sys/fs/cgroup/cpu.max", |(path, _)| path.as_str());
        seen.insert(0, evidence(path, limit, "quota and period, µs"));
        let n: u64 = counts.iter().map(|(_, n, _)| *n).sum();
        return Observed::fail(format!(
            "the control group may use {quota} µs of CPU time in each {period} µs; it was stopped \
             {n} times"
        ))
        .with(seen);
    }
    let grew = counts.iter().any(|(_, first, later)| later.is_some_and(|later| later > *first));
    if grew {
        return Observed::fail("a control group was stopped during the snapshot").with(seen);
    }
    if m.text(GROUPS).is_none() {
        return unread(m, "the control groups", &[GROUPS]);
    }
    // In a container the group's own files are at the root, where a limit may be out of sight.
    let is_visible = m.snapshot.files.keys().any(|path| path.starts_with("/sys/fs/cgroup/"));
    let is_root = m.text(GROUPS).is_some_and(|text| text.lines().all(|line| line.ends_with(":/")));
    match is_visible || is_root {
        true => Observed::pass("no control group of this process has a limit")
            .with([m.evidence(GROUPS, "control groups")]),
        false => unread(m, "the limits of the control groups", &["/sys/fs/cgroup/cpu.max"]),
    }
}

fn is_container(m: &Machine<'_>) -> bool {
    m.facts.virtualization.container.is_some()
}

/// The finding of a check of containers where there is no sign of one.
fn no_container(m: &Machine<'_>) -> Observed {
    const SIGNS: [&str; 2] = ["/proc/1/", "/proc/self/"];
    match SIGNS.iter().any(|folder| m.covers(folder)) {
        true => Observed::not_applicable("this is no container"),
        false => unread(m, "whether this is a container", &["/proc/1/cgroup"]),
    }
}

fn cpuset(m: &Machine<'_>) -> Observed {
    if !is_container(m) {
        return no_container(m);
    }
    let files = m.snapshot.files.iter();
    let mut sets: Vec<(&String, Vec<u32>)> = files
        .filter(|(path, _)| {
            path.ends_with("/cpuset.cpus.effective") || path.ends_with("/cpuset.effective_cpus")
        })
        .filter_map(|(path, text)| Some((path, nm_sys::hostfiles::parse_list(text)?)))
        .collect();
    // The innermost one.
    sets.sort_by_key(|(path, _)| path.len());
    let Some((path, cpus)) = sets.pop() else {
        return unread(m, "the CPUs of the container", &["/sys/fs/cgroup/cpuset.cpus.effective"]);
    };
    let partition = path.replace("cpuset.cpus.effective", "cpuset.cpus.partition");
    let is_own = matches!(m.text(&partition), Some("root" | "isolated"));
    let is_part = !m.online.is_empty() && cpus.len() < m.online.len();
    let seen =
        [m.evidence(path, format!("CPUs {}", cpu_list::list(&cpus))), m.evidence(&partition, "")];
    if is_part && !is_own {
        return Observed::unknown(format!(
            "the container has CPUs {}; whether others share them is known to the host",
            cpu_list::list(&cpus)
        ))
        .with(seen);
    }
    Observed::bad_if(
        !is_own,
        "the container shares all CPUs of the machine",
        format!("CPUs {} are the container's alone", cpu_list::list(&cpus)),
    )
    .with(seen)
}

fn network(m: &Machine<'_>) -> Observed {
    if !is_container(m) {
        return no_container(m);
    }
    let names: Vec<&str> = match &m.snapshot.calls.links {
        Some(links) => links.keys().map(String::as_str).collect(),
        None => m.names("/sys/class/net").iter().map(String::as_str).collect(),
    };
    let names: Vec<&str> = names.into_iter().filter(|name| *name != "lo").collect();
    if names.is_empty() {
        return Observed::unknown("no network device is visible")
            .with([missing("/sys/class/net", "no device but lo")]);
    }
    let virtuals: Vec<String> = names
        .iter()
        .filter_map(|name| Some((name, m.driver(name)?)))
        .filter(|(_, driver)| matches!(*driver, "veth" | "ipvlan" | "macvlan" | "tun" | "vxlan"))
        .map(|(name, driver)| format!("{name} ({driver})"))
        .collect();
    let seen = names.iter().map(|name| match m.driver(name) {
        Some(driver) => evidence(format!("SIOCETHTOOL {name}"), driver, "driver"),
        None => missing(net(name, "device"), "no driver is known"),
    });
    Observed::bad_if(
        !virtuals.is_empty(),
        format!("packets pass through {}", virtuals.join(", ")),
        "the container has no virtual device",
    )
    .with(seen.collect::<Vec<_>>())
}

fn capabilities(m: &Machine<'_>) -> Observed {
    const STATUS: &str = "/proc/self/status";
    let Some(text) = m.status_line(STATUS, "CapEff:") else {
        return unread(m, "the capabilities", &[STATUS]);
    };
    let Ok(bits) = u64::from_str_radix(text, 16) else {
        return unread(m, "the capabilities", &[STATUS]);
    };
    let wanted = [("NET_RAW", 13), ("IPC_LOCK", 14), ("SYS_NICE", 23)];
    let absent: Vec<&str> =
        wanted.iter().filter(|(_, bit)| bits & (1 << bit) == 0).map(|(name, _)| *name).collect();
    let seen = [evidence(STATUS, text, "effective capabilities")];
    // The user of a machine can become root; in a container nothing can be added later.
    if !is_container(m) && !absent.is_empty() {
        return Observed::not_applicable("this is no container; run as root to audit as root")
            .with(seen);
    }
    Observed::bad_if(
        !absent.is_empty(),
        format!("the capabilities {} are missing", absent.join(", ")),
        "the capabilities for pinning, locking and raw sockets are there",
    )
    .replace("CAPABILITIES", absent.join(", "))
    .with(seen)
}
