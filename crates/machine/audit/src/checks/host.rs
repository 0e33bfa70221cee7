//! A host of virtual machines: pinning, backing, settings of KVM.

use std::collections::BTreeMap;

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Measured};
use nm_model::finding::FixKind::{Command, Hypervisor};
use nm_model::finding::{Evidence, Threat, UndoClass};
use nm_sys::hostfiles::parse_list;

use super::common::{Judged, judge, overlap, path_of, plural, unread};
use crate::check::Check;
use crate::machine::{Layer, Machine};
use crate::observed::{Observed, evidence};
use nm_settings::{SettingId, source};
use nm_sys::cpu_list;

const GUESTS: &[Threat] = &[Threat::Tail, Threat::Maximum, Threat::Throughput];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "virt.vcpupin",
        title: "pinning of virtual CPUs",
        severity: Severity::Critical,
        why: "a virtual CPU that moves, or shares its core, stops whatever it runs",
        sources: &[source::VMWARE, source::NOVA],
        fix: (
            Hypervisor,
            "hw:cpu_policy=dedicated with cpu_dedicated_set, or <vcpupin vcpu='0' cpuset='N'/>; \
             Xen: xl vcpu-pin",
        ),
        undo: UndoClass::Host,
        threatens: GUESTS,
        run: pinning,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.emulator",
        title: "threads of the emulator",
        severity: Severity::High,
        why: "they take CPU time from virtual CPUs on the same core; this is Nova's default",
        sources: &[source::NOVA],
        fix: (
            Hypervisor,
            "hw:emulator_threads_policy=share with cpu_shared_set, or <emulatorpin/>",
        ),
        undo: UndoClass::Host,
        threatens: GUESTS,
        run: emulator,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.backing",
        title: "memory of virtual machines",
        severity: Severity::High,
        why: "memory in small pages is translated twice in many steps; memory that is not locked \
              may be swapped or merged by the host",
        sources: &[source::NOVA, source::LIBVIRT],
        fix: (Hypervisor, "hw:mem_page_size=1GB hw:locked_memory=true"),
        undo: UndoClass::Host,
        threatens: GUESTS,
        run: backing,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.overcommit",
        title: "more virtual CPUs than CPUs",
        severity: Severity::High,
        why: "virtual CPUs wait for each other",
        sources: &[source::VSPHERE],
        fix: (Hypervisor, "fewer machines on this host, or reservations"),
        undo: UndoClass::Host,
        confidence: Measured,
        effect: Some("latency sensitivity `high`: ping 34 to 20 µs, native 18 µs (vSphere 5.5)"),
        threatens: GUESTS,
        run: overcommit,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.halt_host",
        title: "polling of the host before it lets a virtual CPU sleep",
        severity: Severity::Medium,
        settings: &[SettingId::VirtHaltHost],
        confidence: Measured,
        effect: Some("round trip 34 to 27 µs (Linux commit aca6ff29)"),
        threatens: &[Threat::Wakeup],
        run: halt_poll,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.kvm_rt",
        title: "periodic work of KVM",
        severity: Severity::Medium,
        why: "synchronising guests' clocks interrupts all CPUs; exits at pause loops and the \
              recovery of huge pages stop guests",
        sources: &[source::TUNED],
        fix: (
            Command,
            "echo 'options kvm kvmclock_periodic_sync=0 nx_huge_pages=off' > \
             /etc/modprobe.d/nearmetal-kvm.conf",
        ),
        undo: UndoClass::Boot,
        confidence: Documented,
        threatens: &[Threat::Tail],
        run: periodic,
        ..Check::UNDECLARED
    },
];

/// A virtual machine as the host sees it.
pub struct VirtualMachine {
    /// Its process.
    pub pid: u32,
    /// Virtual CPUs: number, path of the thread's state, CPUs that it may use.
    pub virtual_cpus: Vec<(u32, String, Vec<u32>)>,
    /// The emulator's other threads.
    pub others: Vec<(String, Vec<u32>)>,
}

/// Processes that run virtual machines.
pub fn machines(m: &Machine<'_>) -> Vec<VirtualMachine> {
    let is_machine = |name: &str| name.starts_with("qemu") || name == "firecracker";
    let pids = m.processes().filter(|(_, name)| is_machine(name)).map(|(pid, _)| pid);
    pids.map(|pid| machine_of(m, pid)).collect()
}

fn machine_of(m: &Machine<'_>, pid: u32) -> VirtualMachine {
    let folder = format!("/proc/{pid}/task");
    let mut found = VirtualMachine { pid, virtual_cpus: vec![], others: vec![] };
    for thread in m.names(&folder) {
        let name = m.text(&format!("{folder}/{thread}/comm")).unwrap_or_default();
        let path = format!("{folder}/{thread}/status");
        let list = m.status_line(&path, "Cpus_allowed_list:");
        let Some(cpus) = list.and_then(parse_list) else { continue };
        // `CPU 0/KVM` of QEMU, `fc_vcpu 0` of Firecracker.
        let number = name
            .strip_prefix("CPU ")
            .and_then(|rest| rest.split('/').next())
            .or_else(|| name.strip_prefix("fc_vcpu "));
        match number.and_then(|number| number.trim().parse().ok()) {
            Some(number) => found.virtual_cpus.push((number, path, cpus)),
            None => found.others.push((path, cpus)),
        }
    }
    found.virtual_cpus.sort();
    found
}

/// Whether virtual machines run here.
pub fn runs_machines(m: &Machine<'_>) -> bool {
    !machines(m).is_empty()
}

/// The machines, or why there is nothing to say.
fn of_host(m: &Machine<'_>) -> Result<Vec<VirtualMachine>, Observed> {
    if !m.sees_processes() {
        return Err(match m.layer {
            Layer::Guest => Observed::not_applicable("this is a guest"),
            _ => unread(m, "the processes", &["/proc/2/comm"]),
        });
    }
    let all = machines(m);
    match all.is_empty() {
        true => Err(Observed::not_applicable("no virtual machine runs here")),
        false => Ok(all),
    }
}

fn pinning(m: &Machine<'_>) -> Observed {
    let all = match of_host(m) {
        Ok(all) => all,
        Err(observed) => return observed,
    };
    let mut faults = vec![];
    let mut seen = vec![];
    let mut users: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for machine in &all {
        for (number, path, cpus) in &machine.virtual_cpus {
            let name = format!("vCPU {number} of process {}", machine.pid);
            match cpus.as_slice() {
                [one] => users.entry(*one).or_default().push(name),
                many => faults.push(format!("{name} may run on CPUs {}", cpu_list::list(many))),
            }
            seen.push(m.evidence(path, format!("vCPU {number}: CPUs {}", cpu_list::list(cpus))));
        }
    }
    for (cpu, names) in users.iter().filter(|(_, names)| names.len() > 1) {
        faults.push(format!("{} share CPU {cpu}", names.join(" and ")));
    }
    if seen.is_empty() {
        return unread(m, "the threads of the virtual machines", &["/proc/PID/task"]);
    }
    let n = seen.len();
    let shown = faults.iter().take(4).cloned().collect::<Vec<_>>().join("; ");
    let more = faults.len().saturating_sub(4);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Observed::bad_if(!faults.is_empty(), shown + &more, {
        plural(n, "virtual CPU has", "virtual CPUs have") + " a CPU of their own"
    })
    .with(seen)
}

fn emulator(m: &Machine<'_>) -> Observed {
    let all = match of_host(m) {
        Ok(all) => all,
        Err(observed) => return observed,
    };
    let mut faults = vec![];
    let mut seen: Vec<Evidence> = vec![];
    for machine in &all {
        let used: Vec<u32> =
            machine.virtual_cpus.iter().flat_map(|(_, _, cpus)| cpus.clone()).collect();
        for (path, cpus) in &machine.others {
            let shared = overlap(cpus, &used);
            if !shared.is_empty() && faults.len() < 4 {
                faults.push(format!("process {}: CPUs {}", machine.pid, cpu_list::list(&shared)));
                seen.push(m.evidence(path, "thread of the emulator"));
            }
        }
        if let Some((path, _)) = machine.others.first().filter(|_| seen.is_empty()) {
            seen.push(m.evidence(path, "thread of the emulator"));
        }
    }
    if seen.is_empty() {
        return unread(m, "the threads of the virtual machines", &["/proc/PID/task"]);
    }
    faults.dedup();
    Observed::bad_if(
        !faults.is_empty(),
        format!("emulator and virtual CPUs share CPUs: {}", faults.join("; ")),
        "emulators have CPUs apart from the virtual CPUs",
    )
    .with(seen)
}

/// Descriptions of running machines by libvirt: path and kept lines.
pub fn domains<'a>(m: &Machine<'a>) -> Vec<(&'a str, &'a str)> {
    let files = m.snapshot.files.iter();
    files
        .filter(|(path, _)| path.starts_with("/run/libvirt/qemu/"))
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect()
}

fn backing(m: &Machine<'_>) -> Observed {
    if let Err(observed) = of_host(m) {
        return observed;
    }
    let all = domains(m);
    if all.is_empty() {
        return unread(m, "libvirt's description of the machines", &["/run/libvirt/qemu"]);
    }
    let mut faults = vec![];
    for (path, text) in &all {
        let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".xml");
        let has_pages = text.contains("<hugepages") || text.contains("<page ");
        match (has_pages, text.contains("<locked")) {
            (true, true) => {}
            (false, _) => faults.push(format!("{name} has no huge pages")),
            (true, false) => faults.push(format!("the memory of {name} is not locked")),
        }
    }
    let seen: Vec<Evidence> =
        all.iter().map(|(path, text)| evidence(*path, text, "memoryBacking")).collect();
    Observed::bad_if(!faults.is_empty(), faults.join("; "), "memory is huge and locked").with(seen)
}

fn overcommit(m: &Machine<'_>) -> Observed {
    let all = match of_host(m) {
        Ok(all) => all,
        Err(observed) => return observed,
    };
    let n_virtual: usize = all.iter().map(|machine| machine.virtual_cpus.len()).sum();
    let mut used: Vec<u32> = all
        .iter()
        .flat_map(|machine| machine.virtual_cpus.iter().flat_map(|(_, _, cpus)| cpus.clone()))
        .collect();
    used.sort_unstable();
    used.dedup();
    if n_virtual == 0 {
        return unread(m, "the threads of the virtual machines", &["/proc/PID/task"]);
    }
    let text = format!("{n_virtual} virtual CPUs on {}", plural(used.len(), "CPU", "CPUs"));
    Observed::bad_if(n_virtual > used.len(), text.clone(), text).with([evidence(
        "/proc/PID/task",
        &cpu_list::list(&used),
        "CPUs that virtual CPUs may use",
    )])
}

fn halt_poll(m: &Machine<'_>) -> Observed {
    const ID: SettingId = SettingId::VirtHaltHost;
    if let Err(observed) = of_host(m) {
        return observed;
    }
    let Some(Judged { path, text, is_good, .. }) = judge(m, ID) else {
        return unread(m, "KVM's polling", &[&path_of(ID)]);
    };
    let polls = match text {
        "0" => "KVM does not poll before a virtual CPU sleeps".to_string(),
        ns => format!("KVM polls for at most {ns} ns"),
    };
    Observed::bad_if(!is_good, polls.clone(), polls).with([m.evidence(&path, "ns")])
}

fn periodic(m: &Machine<'_>) -> Observed {
    const SYNC: &str = "/sys/module/kvm/parameters/kvmclock_periodic_sync";
    const PAGES: &str = "/sys/module/kvm/parameters/nx_huge_pages";
    const GAP: &str = "/sys/module/kvm_intel/parameters/ple_gap";
    if let Err(observed) = of_host(m) {
        return observed;
    }
    let all = [SYNC, PAGES, GAP];
    if all.iter().all(|path| m.text(path).is_none()) {
        return unread(m, "KVM's parameters", &all);
    }
    let mut bad = vec![];
    if m.text(SYNC).is_some_and(|text| matches!(text, "Y" | "1")) {
        bad.push("guests' clocks are synchronised periodically");
    }
    if m.text(PAGES).is_some_and(|text| matches!(text, "Y" | "1" | "force" | "auto")) {
        bad.push("huge pages are split and recovered");
    }
    if m.number(GAP).is_some_and(|gap| gap > 0) {
        bad.push("guests exit at pause loops");
    }
    Observed::bad_if(!bad.is_empty(), bad.join("; "), "KVM does nothing periodically")
        .with(all.map(|path| m.evidence(path, "")))
}
