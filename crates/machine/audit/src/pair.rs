//! What only the snapshots of a host and of its guest together can tell.

use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::Hypervisor;
use nm_model::finding::{Audit, Evidence, Threat, UndoClass};
use nm_model::{Severity, Snapshot};

use crate::check::Check;
use crate::checks;
use crate::machine::Machine;
use crate::observed::{Observed, evidence, missing};
use crate::order;
use nm_settings::source;
use nm_sys::cpu_list;

/// Their functions need both machines, so those of the declarations are not called.
const CHECKS: &[Check] = &[
    Check {
        id: "pair.identity",
        title: "host and guest belong together",
        severity: Severity::High,
        why: "findings of a pair are worth nothing if the guest runs elsewhere",
        sources: &[source::JUDGEMENT],
        fix: (Hypervisor, "take the guest's snapshot again, on the machine that this host runs"),
        confidence: Judgement,
        threatens: &[Threat::Tail],
        ..Check::UNDECLARED
    },
    Check {
        id: "pair.hot_pin",
        title: "the host's CPUs below the workload's virtual CPUs",
        severity: Severity::Critical,
        why: "only the host knows whether the virtual CPUs of the workload are pinned",
        sources: &[source::NOVA],
        fix: (Hypervisor, "<vcpupin vcpu='N' cpuset='M'/> for the virtual CPUs of the workload"),
        undo: UndoClass::Host,
        confidence: Documented,
        threatens: &[Threat::Tail, Threat::Maximum],
        ..Check::UNDECLARED
    },
    Check {
        id: "pair.sibling",
        title: "virtual CPUs on threads of one core",
        severity: Severity::High,
        why: "the guest takes them for cores of their own",
        sources: &[source::MONTEREY, source::NOVA],
        fix: (Hypervisor, "hw:cpu_thread_policy=isolate, or pin to threads of different cores"),
        undo: UndoClass::Host,
        effect: Some("one of two threads of a core works at 69 % of its speed (monterey-2010)"),
        threatens: &[Threat::Median, Threat::Tail, Threat::Throughput],
        ..Check::UNDECLARED
    },
    Check {
        id: "pair.nic",
        title: "the host's device behind the guest's network device",
        severity: Severity::High,
        why: "the device's NUMA node counts, and the guest often does not know it",
        sources: &[source::NOVA_PCI],
        fix: (Hypervisor, "pin the virtual CPUs to the node of the device"),
        undo: UndoClass::Host,
        threatens: &[Threat::Network],
        ..Check::UNDECLARED
    },
];

/// Checks of a pair.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter()
}

/// The findings about a host and one of its guests: those of the host, and those of the pair.
pub fn join(host: &Snapshot, guest: &Snapshot) -> Audit {
    let host = Machine::new(host);
    let guest = Machine::new(guest);
    let pid = process_of(&host, &guest);
    let [identity, hot_pin, sibling, nic] = CHECKS else {
        unreachable!("the pair has four checks");
    };
    let mut findings = checks::findings(&host);
    findings.push(identity.with(belong_together(&host, &guest, pid)));
    let machine = pid.and_then(|pid| {
        checks::host_machines(&host).into_iter().find(|machine| machine.pid == pid)
    });
    let no_machine = || {
        Observed::unknown("the guest's process was not found on the host")
            .with([missing("/proc/PID/task", "no process of the guest")])
    };
    let look = |check: fn(&Machine<'_>, &Machine<'_>, &Cpus) -> Observed| match &machine {
        Some(machine) if !machine.virtual_cpus.is_empty() => {
            check(&host, &guest, &machine.virtual_cpus)
        }
        _ => no_machine(),
    };
    findings.push(hot_pin.with(look(pinned_below)));
    findings.push(sibling.with(look(siblings_below)));
    findings.push(nic.with(look(device_below)));
    order::finish(&host, findings)
}

type Cpus = Vec<(u32, String, Vec<u32>)>;

/// The guest's identity, as both sides may know it.
const UUID: &str = "/sys/class/dmi/id/product_uuid";

/// Addresses of a guest's devices.
fn addresses(guest: &Machine<'_>) -> Vec<String> {
    let by_calls = guest.snapshot.calls.links.iter().flatten();
    let mut all: Vec<String> = by_calls.filter_map(|(_, link)| link.mac.clone()).collect();
    for name in guest.names("/sys/class/net") {
        let address = guest.text(&crate::machine::net(name, "address"));
        all.extend(address.filter(|text| *text != "00:00:00:00:00:00").map(str::to_string));
    }
    all.iter_mut().for_each(|address| address.make_ascii_lowercase());
    all.sort();
    all.dedup();
    all
}

/// The description of the guest by libvirt: path, text and by what it was recognised.
fn domain_of<'a>(
    host: &Machine<'a>,
    guest: &Machine<'_>,
) -> Option<(&'a str, &'a str, &'static str)> {
    let uuid = guest.text(UUID).map(str::to_ascii_lowercase);
    let addresses = addresses(guest);
    checks::host_domains(host).into_iter().find_map(|(path, text)| {
        let lower = text.to_ascii_lowercase();
        if uuid.as_ref().is_some_and(|uuid| lower.contains(uuid)) {
            return Some((path, text, "product UUID"));
        }
        let is_same = addresses.iter().any(|address| lower.contains(address.as_str()));
        is_same.then_some((path, text, "hardware address"))
    })
}

/// The process of the guest on its host: by libvirt's description, or the only one.
fn process_of(host: &Machine<'_>, guest: &Machine<'_>) -> Option<u32> {
    let (_, text, _) = domain_of(host, guest)?;
    let (_, rest) = text.split_once("pid='")?;
    rest.split('\'').next()?.parse().ok()
}

fn belong_together(host: &Machine<'_>, guest: &Machine<'_>, pid: Option<u32>) -> Observed {
    let Some((path, _, by)) = domain_of(host, guest) else {
        return Observed::unknown("no machine of the host has the guest's UUID or addresses")
            .with([guest.evidence(UUID, "of the guest"), host.evidence("/run/libvirt/qemu", "")]);
    };
    let process = pid.map_or("no process".to_string(), |pid| format!("process {pid}"));
    Observed::pass(format!("the guest is {path} of the host, {process}, by its {by}"))
        .with([host.evidence(path, by), guest.evidence(UUID, "of the guest")])
}

/// Virtual CPUs of the workload.
fn hot<'a>(guest: &'a Machine<'_>, cpus: &'a Cpus) -> Vec<&'a (u32, String, Vec<u32>)> {
    cpus.iter().filter(|(number, ..)| guest.hot.contains(number)).collect()
}

fn seen(host: &Machine<'_>, cpus: &[&(u32, String, Vec<u32>)]) -> Vec<Evidence> {
    cpus.iter()
        .map(|(number, path, cpus)| {
            host.evidence(path, format!("vCPU {number}: CPUs {}", cpu_list::list(cpus)))
        })
        .collect()
}

fn pinned_below(host: &Machine<'_>, guest: &Machine<'_>, cpus: &Cpus) -> Observed {
    let hot = hot(guest, cpus);
    let loose: Vec<String> = hot
        .iter()
        .filter(|(_, _, cpus)| cpus.len() != 1)
        .map(|(number, _, cpus)| format!("vCPU {number} may run on CPUs {}", cpu_list::list(cpus)))
        .collect();
    if hot.is_empty() {
        return Observed::unknown("no virtual CPU of the workload was found on the host")
            .with([guest.evidence("/sys/devices/system/cpu/online", "of the guest")]);
    }
    Observed::bad_if(!loose.is_empty(), loose.join("; "), "the workload's virtual CPUs are pinned")
        .with(seen(host, &hot))
}

fn siblings_below(host: &Machine<'_>, guest: &Machine<'_>, cpus: &Cpus) -> Observed {
    let hot = hot(guest, cpus);
    let shown = |a: u32, b: u32| {
        guest.facts.cpu.siblings.iter().any(|group| group.contains(&a) && group.contains(&b))
    };
    let on_core = |a: u32, b: u32| {
        a == b || host.facts.cpu.siblings.iter().any(|g| g.contains(&a) && g.contains(&b))
    };
    let mut hidden = vec![];
    for (at, (a, _, on_a)) in hot.iter().enumerate() {
        for (b, _, on_b) in &hot[..at] {
            if let ([x], [y]) = (on_a.as_slice(), on_b.as_slice())
                && on_core(*x, *y)
                && !shown(*a, *b)
            {
                hidden.push(format!("vCPU {b} on CPU {y} and vCPU {a} on CPU {x}"));
            }
        }
    }
    if hot.iter().any(|(_, _, cpus)| cpus.len() != 1) {
        return Observed::unknown("virtual CPUs that are not pinned may share a core at any time")
            .with(seen(host, &hot));
    }
    let evidence_of_host =
        evidence("topology/thread_siblings_list", &format!("{:?}", host.facts.cpu.siblings), "");
    Observed::bad_if(
        !hidden.is_empty(),
        format!("share a core of the host: {}", hidden.join("; ")),
        "the workload's virtual CPUs have cores of their own",
    )
    .with(seen(host, &hot))
    .with([evidence_of_host])
}

fn device_below(host: &Machine<'_>, guest: &Machine<'_>, cpus: &Cpus) -> Observed {
    let addresses = addresses(guest);
    let names = host.names("/sys/class/net").iter();
    let found = names.clone().find(|name| {
        let address = host.text(&crate::machine::net(name, "address")).unwrap_or_default();
        let is_virtual = address.starts_with("fe:") || address == "00:00:00:00:00:00";
        !is_virtual && addresses.contains(&address.to_ascii_lowercase())
    });
    let Some(name) = found else {
        return Observed::unknown("no device of the host has an address of the guest's devices")
            .with([evidence("hardware addresses", &addresses.join(" "), "of the guest")]);
    };
    let Some((path, node)) = host.numa_node(name) else {
        return Observed::unknown(format!("the NUMA node of {name} is not known"))
            .with([missing(crate::machine::net(name, "device/numa_node"), "not there")]);
    };
    let far: Vec<u32> = hot(guest, cpus)
        .iter()
        .filter(|(_, _, cpus)| {
            let nodes = &host.facts.cpu.numa_nodes;
            cpus.iter().any(|cpu| nodes.get(cpu).is_some_and(|one| i64::from(*one) != node))
        })
        .map(|(number, ..)| *number)
        .collect();
    Observed::bad_if(
        node >= 0 && !far.is_empty(),
        format!(
            "{name} is on node {node} of the host, virtual CPUs {} are not",
            cpu_list::list(&far)
        ),
        format!("{name} and the workload's virtual CPUs are on one node of the host"),
    )
    .with([host.evidence(&path, format!("node {node}"))])
}
