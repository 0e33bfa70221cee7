//! NUMA nodes and caches.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::{Application, Hypervisor};
use nm_model::finding::{Threat, UndoClass};

use super::common::{by_content, group_evidence, no_cpu, no_link, of_setting, path_of, unread};
use crate::check::Check;
use crate::machine::{Machine, cpu, net};
use crate::observed::Observed;
use nm_place::{Core, Wish, choose};
use nm_settings::{SettingId, source};
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "numa.nic",
        title: "network device and workload on different NUMA nodes",
        severity: Severity::High,
        why: "each packet crosses the link between sockets, for its data and for the device's \
              registers",
        sources: &[source::DEFTECH, source::VMWARE],
        fix: (Application, "pin the workload to CPUs LOCAL"),
        undo: UndoClass::Live,
        confidence: Documented,
        threatens: &[Threat::Network],
        run: nic,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.unknown",
        title: "NUMA node of the network device unknown",
        severity: Severity::Medium,
        why: "without the node neither the kernel nor the workload can place themselves near the \
              device",
        sources: &[source::NOVA_PCI],
        fix: (
            Hypervisor,
            "hw:pci_numa_affinity_policy=required, a PCI root for each NUMA node (pxb)",
        ),
        undo: UndoClass::Host,
        threatens: &[Threat::Network],
        run: unknown,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.balance",
        title: "automatic NUMA balancing",
        severity: Severity::Medium,
        settings: &[SettingId::NumaBalance],
        threatens: &[Threat::Tail, Threat::Maximum],
        run: balance,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.layout",
        title: "workload on more than one last-level cache",
        severity: Severity::Medium,
        why: "a message between CPUs of different last-level caches takes two to three times as \
              long",
        sources: &[source::JUDGEMENT],
        fix: (Application, "pin threads that talk to each other inside one of: GROUPS"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Median],
        run: layout,
        ..Check::UNDECLARED
    },
    Check {
        id: "numa.shared_cache",
        title: "workload and system on one last-level cache",
        severity: Severity::Medium,
        why: "interrupts and other programs evict the workload's lines, although the node has \
              cores whose cache they would not use",
        sources: &[source::JUDGEMENT],
        fix: (Application, "pin the workload to CPUs INSTEAD"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Tail],
        run: shared_cache,
        ..Check::UNDECLARED
    },
];

fn nodes(m: &Machine<'_>) -> std::collections::BTreeSet<u32> {
    m.facts.cpu.numa_nodes.values().copied().collect()
}

fn nic(m: &Machine<'_>) -> Observed {
    if nodes(m).len() < 2 {
        return match m.facts.cpu.numa_nodes.is_empty() {
            true => unread(m, "the NUMA nodes", &["/sys/devices/system/node/node0/cpulist"]),
            false => Observed::not_applicable("there is one NUMA node"),
        };
    }
    let known: Vec<(&str, String, i64)> = m
        .links
        .iter()
        .filter_map(|name| m.numa_node(name).map(|(path, node)| (*name, path, node)))
        .filter(|(_, _, node)| *node >= 0)
        .collect();
    if known.is_empty() {
        let path = net(m.links.first().copied().unwrap_or("eth0"), "device/numa_node");
        return unread(m, "the NUMA node of the network device", &[&path]);
    }
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let of_node = |node: i64| -> Vec<u32> {
        let all = m.facts.cpu.numa_nodes.iter();
        all.filter(|(_, one)| i64::from(**one) == node).map(|(cpu, _)| *cpu).collect()
    };
    let mut far = vec![];
    for (name, _, node) in &known {
        let local = of_node(*node);
        let away: Vec<u32> = m.hot.iter().filter(|cpu| !local.contains(cpu)).copied().collect();
        if !away.is_empty() {
            far.push(format!("{name} is on node {node}, CPUs {} are not", cpu_list::list(&away)));
        }
    }
    let seen: Vec<_> =
        known.iter().map(|(_, path, node)| m.evidence(path, format!("node {node}"))).collect();
    let good = "the network devices are on the node of the workload's CPUs";
    if !m.knows_hot() && !far.is_empty() {
        return Observed::unknown("the CPUs of the workload are not known; `--cpus` names them")
            .with(seen);
    }
    Observed::bad_if(!far.is_empty(), far.join("; "), good)
        .replace("LOCAL", cpu_list::list(&of_node(known[0].2)))
        .with(seen)
}

fn unknown(m: &Machine<'_>) -> Observed {
    let Some(first) = m.links.first() else {
        return no_link(m);
    };
    let known: Vec<(&str, String, i64)> = m
        .links
        .iter()
        .filter_map(|name| m.numa_node(name).map(|(path, node)| (*name, path, node)))
        .collect();
    if known.is_empty() {
        return unread(
            m,
            "the NUMA node of the network device",
            &[&net(first, "device/numa_node")],
        );
    }
    let lost: Vec<&str> = known.iter().filter(|(.., node)| *node < 0).map(|(n, ..)| *n).collect();
    let seen: Vec<_> = known.iter().map(|(_, path, _)| m.evidence(path, "-1: unknown")).collect();
    let is_single = nodes(m).len() == 1 && !m.is_guest();
    Observed::bad_if(
        !lost.is_empty() && !is_single,
        format!("the NUMA node of {} is not known", lost.join(", ")),
        "the NUMA node of each network device is known, or there is one node",
    )
    .with(seen)
}

fn balance(m: &Machine<'_>) -> Observed {
    let id = SettingId::NumaBalance;
    if nodes(m).len() == 1 && m.text(&path_of(id)).is_none() {
        return Observed::not_applicable("there is one NUMA node");
    }
    of_setting(m, id, "NUMA balancing is on (=)", "NUMA balancing is off")
}

fn layout(m: &Machine<'_>) -> Observed {
    let path = |one| cpu(one, "cache/index3/shared_cpu_list");
    let groups = by_content(m, &m.hot, path);
    if groups.is_empty() {
        return unread(m, "which CPUs share a last-level cache", &[&path(0)]);
    }
    let all: Vec<String> = groups.iter().map(|(_, _, cpus)| cpu_list::list(cpus)).collect();
    let text = format!("the workload's CPUs lie on {} last-level caches: {}", groups.len(), {
        all.join(" | ")
    });
    if groups.len() > 1 && !m.knows_hot() {
        return Observed::unknown(format!("{text}; `--cpus` names those of the workload"))
            .with(group_evidence(&groups));
    }
    Observed::bad_if(groups.len() > 1, text, "the workload's CPUs share one last-level cache")
        .replace("GROUPS", all.join(" | "))
        .with(group_evidence(&groups))
}

fn shared_cache(m: &Machine<'_>) -> Observed {
    let path = cpu(m.hot.first().copied().unwrap_or_default(), "cache/index3/shared_cpu_list");
    let own: Vec<&Core> = m.hot.iter().filter_map(|cpu| m.topology.core_of(*cpu)).collect();
    if own.is_empty() || own.iter().any(|core| core.cache.is_none()) {
        return unread(m, "which CPUs share a last-level cache", &[&path]);
    }
    if !m.knows_hot() {
        return Observed::not_applicable("the CPUs of the workload are not known; `--cpus`")
            .with([m.evidence(&path, "CPUs of one cache")]);
    }
    let is_own = |core: &&Core| own.iter().any(|one| one.cpus == core.cpus);
    let others = m.topology.cores.iter().filter(|core| !is_own(core));
    let shared: Vec<u32> = others
        .filter(|core| own.iter().any(|one| one.cache == core.cache))
        .map(Core::first)
        .collect();
    let seen = [m.evidence(&path, "CPUs of one cache")];
    if shared.is_empty() {
        return Observed::pass("the workload has its last-level caches alone").with(seen);
    }
    let cores: std::collections::BTreeSet<u32> = own.iter().map(|core| core.first()).collect();
    let wish = Wish { cores: cores.len(), node: Some(own[0].node), reserve: 0 };
    let text = format!("CPUs {} use a last-level cache of the workload", cpu_list::list(&shared));
    match choose(&m.topology, &wish) {
        Ok(chosen) if !chosen.shares_cache => {
            Observed::fail(text).replace("INSTEAD", cpu_list::list(&chosen.hot))
        }
        _ => Observed::pass(format!("{text}, and the node has no other place for it")),
    }
    .with(seen)
}
