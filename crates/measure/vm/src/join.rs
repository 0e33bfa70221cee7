//! What only the facts of a host and of its guests together show, as findings.
//!
//! [`read_threads`] and [`read_memory`] read a running QEMU. [`findings`] is a function of what was
//! read, so that a recorded run is judged as a live one.

use nm_audit::check::Check;
use nm_audit::observed::{Observed, evidence, missing};
use nm_model::finding::Confidence::{Documented, Measured};
use nm_model::finding::FixKind::Hypervisor;
use nm_model::finding::{Evidence, Finding, Threat, UndoClass};
use nm_model::{GuestId, Severity};
use nm_settings::catalogue::IDLE_EXIT_US_MAX;
use nm_settings::target::MachineSetting;
use nm_settings::{SettingId, setting, source};
use nm_sys::cpu_list;
use nm_sys::hostfiles::{HostFiles, parse_list};

use crate::threads;

const GUESTS: &[Threat] = &[Threat::Tail, Threat::Maximum, Threat::Throughput];

/// A thread of a guest's QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestThread {
    /// Its name, such as `CPU 0/KVM` or `qemu-system-x86`.
    pub name: String,
    /// Number of the virtual CPU that it runs; absent for other threads.
    pub virtual_cpu: Option<u32>,
    /// CPUs of the host that it may use.
    pub cpus: Vec<u32>,
}

/// The memory behind a guest, as the host accounts for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All of QEMU's memory that is there, KiB.
    pub resident_kib: u64,
    /// What of it is in huge pages, reserved or transparent, KiB.
    pub huge_kib: u64,
    /// What of it is locked, KiB; reserved huge pages are never swapped, and not counted.
    pub locked_kib: u64,
    /// What of it is in reserved huge pages, KiB.
    pub reserved_kib: u64,
}

/// One guest as its host and itself see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFacts {
    /// Which guest.
    pub guest: GuestId,
    /// Threads of its QEMU; empty if they could not be read.
    pub threads: Vec<GuestThread>,
    /// Its memory; absent if it could not be read.
    pub memory: Option<MemoryUse>,
    /// Memory that it was given, KiB.
    pub size_kib: u64,
    /// Pages of its memory on each NUMA node of the host.
    pub pages_of_nodes: Vec<(u32, u64)>,
    /// The clock that it uses, as it says itself.
    pub clock_source: Option<String>,
}

/// What the host contributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// CPUs of each physical core, where there are several.
    pub siblings: Vec<Vec<u32>>,
    /// NUMA node of each CPU.
    pub nodes: Vec<(u32, u32)>,
    /// Deepest idle state that is allowed on any CPU: name and wake-up time, µs. Absent if the
    /// kernel shows none.
    pub deepest_idle: Option<(String, u64)>,
    /// How long KVM polls before a virtual CPU sleeps, ns; absent without KVM.
    pub halt_poll_ns: Option<u64>,
}

const CHECKS: [Check; 7] = [
    Check {
        id: "guests.pin",
        title: "pinning of the guests' virtual CPUs",
        severity: Severity::Critical,
        why: "a virtual CPU that moves takes its caches and timers along, and stops meanwhile",
        sources: &[source::VMWARE, source::NOVA],
        fix: (Hypervisor, "<vcpupin vcpu='N' cpuset='M'/> for each virtual CPU"),
        undo: UndoClass::Host,
        threatens: GUESTS,
        ..UNDECLARED
    },
    Check {
        id: "guests.core",
        title: "virtual CPUs on one core of the host",
        severity: Severity::Critical,
        why: "two virtual CPUs on one CPU wait for each other; on two threads of a core they slow \
              each other down",
        sources: &[source::MONTEREY, source::NOVA],
        fix: (Hypervisor, "pin each virtual CPU to a physical core of its own"),
        undo: UndoClass::Host,
        confidence: Measured,
        effect: Some("one of two threads of a core works at 69 % of its speed (monterey-2010)"),
        threatens: GUESTS,
        ..UNDECLARED
    },
    Check {
        id: "guests.emulator",
        title: "QEMU's other threads on the CPUs of virtual CPUs",
        severity: Severity::High,
        why: "timers, devices and packet copying of QEMU stop a virtual CPU on the same CPU",
        sources: &[source::NOVA],
        fix: (Hypervisor, "<emulatorpin cpuset='LIST'/> apart from the virtual CPUs"),
        undo: UndoClass::Host,
        threatens: GUESTS,
        ..UNDECLARED
    },
    Check {
        id: "guests.memory",
        title: "pages behind the guests' memory",
        severity: Severity::High,
        why: "an access to memory in small pages is translated twice in many steps, and memory \
              that is not locked may be swapped or merged by the host",
        sources: &[source::NOVA, source::LIBVIRT],
        fix: (Hypervisor, "<memoryBacking><hugepages/><locked/></memoryBacking>"),
        undo: UndoClass::Host,
        threatens: GUESTS,
        ..UNDECLARED
    },
    Check {
        id: "guests.node",
        title: "NUMA nodes of the guests' CPUs and memory",
        severity: Severity::High,
        why: "each access to memory of another node crosses the link between the sockets",
        sources: &[source::NOVA, source::LIBVIRT],
        fix: (Hypervisor, "<numatune><memory mode='strict' nodeset='NODE'/></numatune>"),
        undo: UndoClass::Host,
        threatens: &[Threat::Median, Threat::Tail, Threat::Throughput],
        ..UNDECLARED
    },
    Check {
        id: "guests.clock",
        title: "clock of the guests",
        severity: Severity::High,
        why: "reading any other clock than the time stamp counter is an exit to the host, and \
              counts in every latency",
        sources: &[source::K_KVM_MSR, source::LIBVIRT],
        fix: (Hypervisor, "-cpu host,migratable=off,+invtsc; <timer name='tsc' mode='native'/>"),
        undo: UndoClass::Host,
        threatens: &[Threat::Clock],
        ..UNDECLARED
    },
    Check {
        id: "guests.halt",
        title: "sleeping of idle virtual CPUs",
        severity: Severity::Medium,
        settings: &[SettingId::VirtHaltHost],
        threatens: &[Threat::Wakeup, Threat::Tail],
        ..UNDECLARED
    },
];

/// What is the same in all declarations. Their functions need host and guests, so those of the
/// declarations are not called.
const UNDECLARED: Check = Check {
    id: "",
    title: "",
    severity: Severity::Info,
    settings: &[],
    why: "",
    sources: &[],
    fix: (Hypervisor, ""),
    undo: UndoClass::Nothing,
    confidence: Documented,
    effect: None,
    conflict: None,
    threatens: &[],
    run: |_| Observed::unknown("the check needs a host and its guests"),
};

/// The checks.
pub fn checks() -> &'static [Check] {
    &CHECKS
}

/// The findings about two guests of one host.
pub fn findings(host: &HostFacts, guests: &[GuestFacts]) -> Vec<Finding> {
    let [pin, core, emulator, memory, node, clock, halt] = &CHECKS;
    vec![
        pin.with(pinned(guests)),
        core.with(own_cores(host, guests)),
        emulator.with(emulators(guests)),
        memory.with(memories(guests)),
        node.with(nodes(host, guests)),
        clock.with(clocks(guests)),
        halt.with(halting(host)),
    ]
}

/// Virtual CPUs of all guests: a name, and the CPUs of the host.
fn virtual_cpus(guests: &[GuestFacts]) -> Vec<(String, &[u32])> {
    let mut all: Vec<(String, &[u32])> = vec![];
    for guest in guests {
        for thread in &guest.threads {
            if let Some(number) = thread.virtual_cpu {
                all.push((format!("vCPU {number} of {}", guest.guest), &thread.cpus));
            }
        }
    }
    all
}

fn seen(threads: &[(String, &[u32])]) -> Vec<Evidence> {
    let one = |(name, cpus): &(String, &[u32])| {
        evidence("/proc/PID/task/TID/status", &cpu_list::list(cpus), name.as_str())
    };
    threads.iter().map(one).collect()
}

fn no_threads() -> Observed {
    Observed::unknown("the threads of the guests could not be read")
        .with([missing("/proc/PID/task", "not readable, or QEMU has ended")])
}

fn pinned(guests: &[GuestFacts]) -> Observed {
    let all = virtual_cpus(guests);
    let loose: Vec<String> = all
        .iter()
        .filter(|(_, cpus)| cpus.len() != 1)
        .map(|(name, cpus)| format!("{name} may run on CPUs {}", cpu_list::list(cpus)))
        .collect();
    match all.is_empty() {
        true => no_threads(),
        false => {
            Observed::bad_if(!loose.is_empty(), loose.join("; "), "every virtual CPU is pinned")
                .with(seen(&all))
        }
    }
}

fn own_cores(host: &HostFacts, guests: &[GuestFacts]) -> Observed {
    let all = virtual_cpus(guests);
    if all.is_empty() {
        return no_threads();
    }
    let share_core =
        |a: u32, b: u32| host.siblings.iter().any(|core| core.contains(&a) && core.contains(&b));
    let (mut same, mut siblings, mut is_loose) = (vec![], vec![], false);
    for (at, (name, cpus)) in all.iter().enumerate() {
        for (other, others) in &all[..at] {
            match (*others, *cpus) {
                ([a], [b]) if a == b => same.push(format!("{other} and {name} on CPU {a}")),
                ([a], [b]) if share_core(*a, *b) => {
                    siblings.push(format!("{other} on CPU {a} and {name} on CPU {b}"));
                }
                ([_], [_]) => {}
                _ => is_loose |= cpus.iter().any(|cpu| others.contains(cpu)),
            }
        }
    }
    let severity = if same.is_empty() { Severity::High } else { Severity::Critical };
    let shared: Vec<String> = same.into_iter().chain(siblings).collect();
    match (shared.is_empty(), is_loose) {
        (false, _) => Observed::fail(format!("share a core: {}", shared.join("; "))),
        (true, true) => Observed::unknown("virtual CPUs that are not pinned may meet on any core"),
        (true, false) => Observed::pass("every virtual CPU has a core of its own"),
    }
    .severity(severity)
    .with(seen(&all))
}

fn emulators(guests: &[GuestFacts]) -> Observed {
    let virtuals = virtual_cpus(guests);
    if virtuals.is_empty() {
        return no_threads();
    }
    let used: Vec<u32> = virtuals.iter().flat_map(|(_, cpus)| cpus.iter().copied()).collect();
    let (mut faults, mut read) = (vec![], vec![]);
    for guest in guests {
        for thread in guest.threads.iter().filter(|thread| thread.virtual_cpu.is_none()) {
            let mut shared: Vec<u32> =
                thread.cpus.iter().copied().filter(|cpu| used.contains(cpu)).collect();
            shared.sort_unstable();
            let name = format!("{} of {}", thread.name, guest.guest);
            if !shared.is_empty() {
                faults.push(format!("{name} on CPUs {}", cpu_list::list(&shared)));
            }
            read.push(evidence("/proc/PID/task/TID/status", &cpu_list::list(&thread.cpus), name));
        }
    }
    let n = faults.len();
    faults.truncate(4);
    let more =
        if n > faults.len() { format!("; and {} more", n - faults.len()) } else { String::new() };
    Observed::bad_if(
        n > 0,
        format!("may run on CPUs of virtual CPUs: {}{more}", faults.join("; ")),
        "QEMU's other threads have CPUs apart from the virtual CPUs",
    )
    .replace("LIST", "the host's own CPUs")
    .with(read)
}

fn memories(guests: &[GuestFacts]) -> Observed {
    let (mut small, mut loose, mut read) = (vec![], vec![], vec![]);
    for guest in guests {
        let Some(memory) = guest.memory else {
            return Observed::unknown(format!("the memory of {} could not be read", guest.guest))
                .with([missing("/proc/PID/smaps_rollup", "not readable, or QEMU has ended")]);
        };
        // A guest touches its memory little by little, so what is there counts. A tenth may be
        // QEMU's own.
        let there_kib = memory.resident_kib + memory.reserved_kib;
        let is_huge = memory.huge_kib + memory.reserved_kib >= there_kib * 9 / 10;
        let is_locked = memory.locked_kib + memory.reserved_kib >= guest.size_kib * 9 / 10;
        if !is_huge {
            small.push(guest.guest.to_string());
        }
        if !is_locked {
            loose.push(guest.guest.to_string());
        }
        let text = format!(
            "{} KiB resident, {} KiB reserved huge, {} KiB transparent huge, {} KiB locked",
            memory.resident_kib, memory.reserved_kib, memory.huge_kib, memory.locked_kib
        );
        read.push(evidence("/proc/PID/smaps_rollup", &text, guest.guest.to_string()));
    }
    let mut faults = vec![];
    if !small.is_empty() {
        faults.push(format!("the memory of {} is not of huge pages", small.join(" and ")));
    }
    if !loose.is_empty() {
        faults.push(format!("the memory of {} is not locked", loose.join(" and ")));
    }
    let severity = if small.is_empty() { Severity::Medium } else { Severity::High };
    match guests.is_empty() {
        true => no_threads(),
        false => {
            Observed::bad_if(!faults.is_empty(), faults.join("; "), "memory is huge and locked")
                .severity(severity)
                .with(read)
        }
    }
}

fn nodes(host: &HostFacts, guests: &[GuestFacts]) -> Observed {
    let node_of = |cpu: u32| host.nodes.iter().find(|(one, _)| *one == cpu).map(|(_, node)| *node);
    let (mut far, mut read) = (vec![], vec![]);
    for guest in guests {
        let cpus = guest.threads.iter().filter(|thread| thread.virtual_cpu.is_some());
        let mut of_cpus: Vec<u32> =
            cpus.flat_map(|thread| thread.cpus.iter().filter_map(|cpu| node_of(*cpu))).collect();
        of_cpus.sort_unstable();
        of_cpus.dedup();
        if of_cpus.is_empty() || guest.pages_of_nodes.is_empty() {
            return Observed::unknown(format!("the nodes of {} are not known", guest.guest))
                .with([missing("/proc/PID/numa_maps", "not readable, or a kernel without NUMA")]);
        }
        let all: u64 = guest.pages_of_nodes.iter().map(|(_, pages)| pages).sum();
        let away = guest.pages_of_nodes.iter().filter(|(node, _)| !of_cpus.contains(node));
        let away: u64 = away.map(|(_, pages)| pages).sum();
        let cpus = cpu_list::list(&of_cpus);
        if of_cpus.len() > 1 {
            far.push(format!("the virtual CPUs of {} may run on nodes {cpus}", guest.guest));
        } else if away * 100 > all {
            let percent = away * 100 / all.max(1);
            far.push(format!(
                "{percent} % of the memory of {} is not on node {cpus}, where its CPUs are",
                guest.guest
            ));
        }
        let text = format!("CPUs on {cpus}, pages of nodes {:?}", guest.pages_of_nodes);
        read.push(evidence("/proc/PID/numa_maps", &text, guest.guest.to_string()));
    }
    match guests.is_empty() {
        true => no_threads(),
        false => {
            Observed::bad_if(!far.is_empty(), far.join("; "), "CPUs and memory are on one node")
                .replace("NODE", "of the virtual CPUs")
                .with(read)
        }
    }
}

fn clocks(guests: &[GuestFacts]) -> Observed {
    const PATH: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let (mut bad, mut read) = (vec![], vec![]);
    for guest in guests {
        let Some(name) = &guest.clock_source else {
            return Observed::unknown(format!("the clock of {} is not known", guest.guest))
                .with([missing(PATH, "the guest does not tell")]);
        };
        if !matches!(name.as_str(), "tsc" | "kvm-clock") {
            bad.push(format!("{} reads {name}", guest.guest));
        }
        read.push(evidence(PATH, name, guest.guest.to_string()));
    }
    match guests.is_empty() {
        true => no_threads(),
        false => Observed::bad_if(
            !bad.is_empty(),
            bad.join("; "),
            "the guests read the time stamp counter",
        )
        .with(read),
    }
}

fn halting(host: &HostFacts) -> Observed {
    let path = MachineSetting::HostHaltPoll.path();
    let Some(poll_ns) = host.halt_poll_ns else {
        return Observed::not_applicable("no guest is run by KVM");
    };
    let polls = evidence(path, &poll_ns.to_string(), "ns");
    let Some((name, us)) = &host.deepest_idle else {
        return Observed::unknown("the idle states of the host are not known")
            .with([polls, missing("/sys/devices/system/cpu/cpu0/cpuidle", "not there")]);
    };
    let state = evidence("/sys/devices/system/cpu/cpu*/cpuidle", name, format!("{us} µs"));
    let is_polling = setting(SettingId::VirtHaltHost)
        .files()
        .iter()
        .any(|(_, goal)| goal.accepts(&poll_ns.to_string()) == Some(true));
    let text = format!("KVM polls up to {poll_ns} ns before a virtual CPU sleeps");
    let is_awake = *us <= IDLE_EXIT_US_MAX;
    Observed::bad_if(
        !is_polling && !is_awake,
        format!("{text}, and idle CPUs of the host may sleep as deep as {name} ({us} µs)"),
        match is_polling {
            true => text,
            false => format!("idle CPUs of the host wake up within {IDLE_EXIT_US_MAX} µs"),
        },
    )
    .with([polls, state])
}

/// The threads of the QEMU with this process id, in order; empty if they cannot be read.
pub fn read_threads(files: &HostFiles, pid: u32) -> Vec<GuestThread> {
    let folder = format!("/proc/{pid}/task");
    let mut ids: Vec<u32> =
        files.names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
    ids.sort_unstable();
    let read = |id: u32| {
        let name = files.text(&format!("{folder}/{id}/comm"))?;
        let status = files.text(&format!("{folder}/{id}/status"))?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let virtual_cpu = threads::virtual_cpu(&name);
        Some(GuestThread { virtual_cpu, cpus: parse_list(list)?, name })
    };
    ids.into_iter().filter_map(read).collect()
}

/// The memory of the QEMU with this process id; absent if it cannot be read.
pub fn read_memory(files: &HostFiles, pid: u32) -> Option<MemoryUse> {
    let text = files.text(&format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |label: &str| -> u64 {
        let lines = text.lines().filter_map(|line| line.strip_prefix(label)?.strip_prefix(':'));
        lines.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).sum()
    };
    Some(MemoryUse {
        resident_kib: kib("Rss"),
        huge_kib: kib("AnonHugePages") + kib("ShmemPmdMapped") + kib("FilePmdMapped"),
        locked_kib: kib("Locked"),
        reserved_kib: kib("Private_Hugetlb") + kib("Shared_Hugetlb"),
    })
}

/// Pages of the memory of this process on each NUMA node, in units of 4 KiB; empty if they cannot
/// be read.
pub fn read_nodes(files: &HostFiles, pid: u32) -> Vec<(u32, u64)> {
    let text = files.text(&format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    let mut nodes: Vec<(u32, u64)> = vec![];
    for line in text.lines() {
        let value = |name: &str| -> Option<u64> {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        let page_kib = value("kernelpagesize_kB=").unwrap_or(4);
        for word in line.split_whitespace() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('=')) else {
                continue;
            };
            let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) else { continue };
            let pages = pages.saturating_mul(page_kib / 4);
            match nodes.iter_mut().find(|(one, _)| *one == node) {
                Some((_, sum)) => *sum = sum.saturating_add(pages),
                None => nodes.push((node, pages)),
            }
        }
    }
    nodes.sort_unstable();
    nodes
}

/// What the host contributes.
pub fn read_host(files: &HostFiles) -> HostFacts {
    const CPUS: &str = "/sys/devices/system/cpu";
    let facts = nm_host::read_from(files);
    let online = files.list(&format!("{CPUS}/online")).unwrap_or_default();
    let mut deepest: Option<(String, u64)> = None;
    for cpu in online {
        let folder = format!("{CPUS}/cpu{cpu}/cpuidle");
        for state in files.names(&folder) {
            let at = |file: &str| files.text(&format!("{folder}/{state}/{file}"));
            let is_off = at("disable").is_some_and(|text| text == "1");
            let us = at("latency").and_then(|text| text.parse::<u64>().ok());
            let (Some(name), Some(us), false) = (at("name"), us, is_off) else { continue };
            if deepest.as_ref().is_none_or(|(_, most)| us > *most) {
                deepest = Some((name, us));
            }
        }
    }
    HostFacts {
        siblings: facts.cpu.siblings,
        nodes: facts.cpu.numa_nodes.into_iter().collect(),
        deepest_idle: deepest,
        halt_poll_ns: files.value(&MachineSetting::HostHaltPoll.path()),
    }
}
