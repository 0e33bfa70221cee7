//! The virtualization layer, as a guest sees it.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement, Measured};
use nm_model::finding::FixKind::{Hypervisor, Record};
use nm_model::finding::{Threat, UndoClass};

use super::common::{not_a_guest, plural, unread};
use crate::check::Check;
use crate::machine::{Layer, Machine};
use crate::observed::{Observed, evidence, missing};
use nm_settings::source;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "virt.layer",
        title: "what the kernel runs on",
        severity: Severity::Info,
        why: "whether there is a hypervisor decides which settings this system controls at all",
        sources: &[source::JUDGEMENT],
        fix: (Record, "read the other findings with it"),
        confidence: Judgement,
        threatens: &[Threat::Median, Threat::Tail],
        run: layer,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.exit_cost",
        title: "cost of an exit to the hypervisor",
        severity: Severity::High,
        why: "sleeping, timers and interrupts between CPUs may exit to the hypervisor; each exit \
              costs at least this, and nesting multiplies it",
        sources: &[source::JUDGEMENT],
        fix: (Hypervisor, "run the machine on bare metal or on a hypervisor that is not nested"),
        undo: UndoClass::Host,
        confidence: Measured,
        effect: Some(
            "nested KVM: 3.5 µs an exit on a quiet machine, 7.1 µs under load; a timer tick then \
             costs a gap of 14 µs",
        ),
        threatens: &[Threat::Wakeup, Threat::Tail],
        run: exit_cost,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.nic_path",
        title: "emulated or para-virtual network device",
        severity: Severity::High,
        why: "each packet passes through the hypervisor's switch and threads",
        sources: &[source::VMWARE, source::XENSERVER, source::MONTEREY],
        fix: (Hypervisor, "pass a virtual function or the whole device through to the guest"),
        undo: UndoClass::Host,
        confidence: Measured,
        effect: Some(
            "round trip of 60 µs with a virtual card, 25 µs by pass-through, 5 to 7 µs with kernel \
             bypass (vmware-2014); 8.45 to 18.5 Gb/s (xenserver-2009)",
        ),
        threatens: &[Threat::Network],
        run: nic_path,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.steal",
        title: "CPU time that the hypervisor gave to others",
        severity: Severity::High,
        why: "a virtual CPU was ready and did not run; the count has steps of 10 ms, so a small \
              number hides many short waits",
        sources: &[source::K_KVM_MSR],
        fix: (Hypervisor, "give each virtual CPU a physical core of its own (dedicated, pinned)"),
        undo: UndoClass::Host,
        confidence: Documented,
        threatens: &[Threat::Tail, Threat::Maximum, Threat::Throughput],
        run: steal,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.sibling",
        title: "virtual CPUs that share a core unseen",
        severity: Severity::High,
        why: "two virtual CPUs on one core slow each other down, and hypervisors hide it",
        sources: &[source::MONTEREY],
        fix: (Hypervisor, "hw:cpu_thread_policy=isolate, or pin each vCPU to a core of its own"),
        undo: UndoClass::Host,
        confidence: Measured,
        effect: Some("one of two threads of a core works at 69 % of its speed (monterey-2010)"),
        threatens: &[Threat::Median, Threat::Tail, Threat::Throughput],
        run: sibling,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.hints",
        title: "KVM's hint that the CPUs are dedicated",
        severity: Severity::Medium,
        why: "without the hint the guest assumes that its CPUs are preempted, and uses \
              para-virtual locks",
        sources: &[source::K_KVM_CPUID, source::LIBVIRT],
        fix: (Hypervisor, "<features><kvm><hint-dedicated state='on'/></kvm></features>"),
        undo: UndoClass::Host,
        threatens: &[Threat::Wakeup, Threat::Tail],
        run: hints,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.model",
        title: "CPU model that the hypervisor shows",
        severity: Severity::Medium,
        why: "a generic model hides features of the processor, such as the invariant timestamp \
              counter and its deadline timer",
        sources: &[source::DEFTECH, source::LIBVIRT],
        fix: (
            Hypervisor,
            "<cpu mode='host-passthrough'/>; Nova: [libvirt] cpu_mode=host-passthrough",
        ),
        undo: UndoClass::Host,
        threatens: &[Threat::Median, Threat::Clock],
        run: model,
        ..Check::UNDECLARED
    },
    Check {
        id: "virt.balloon",
        title: "memory balloon",
        severity: Severity::Medium,
        why: "pages that were given back to the host fault through the hypervisor when they are \
              used again",
        sources: &[source::JUDGEMENT],
        fix: (Hypervisor, "<memballoon model='none'/>"),
        undo: UndoClass::Host,
        confidence: Judgement,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: balloon,
        ..Check::UNDECLARED
    },
];

fn layer(m: &Machine<'_>) -> Observed {
    let text = m.layer_text();
    let product = "/sys/class/dmi/id/product_name";
    let mut seen = vec![];
    if let Some(cpuid) = &m.snapshot.calls.cpuid {
        let name = cpuid.hypervisor.as_deref().unwrap_or("no hypervisor");
        seen.push(evidence("CPUID 0x40000000", name, text.as_str()));
    }
    seen.push(m.evidence(product, "product name"));
    seen.push(m.evidence("/sys/class/dmi/id/sys_vendor", "who made the machine"));
    seen.push(m.evidence("/sys/hypervisor/type", "hypervisor, as the kernel names it"));
    seen.push(m.evidence("/proc/cpuinfo", "its flag `hypervisor` is set in guests"));
    match m.layer {
        Layer::Unknown => Observed::unknown("nothing says whether there is a hypervisor"),
        _ => Observed::pass(format!("this is {text}")),
    }
    .with(seen)
}

fn exit_cost(m: &Machine<'_>) -> Observed {
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    let cost = m.snapshot.calls.active.as_ref().and_then(|active| active.exit_cost_ns);
    let Some(ns) = cost else {
        return Observed::unknown("measured only with --active")
            .with([missing("CPUID leaf 0", "not measured")]);
    };
    let text = format!("an exit costs {:.2} µs", ns / 1e3);
    Observed::bad_if(ns > 1_500.0, text.clone(), text.clone())
        .severity(if ns > 3_000.0 { Severity::Critical } else { Severity::High })
        .with([evidence("CPUID leaf 0", &format!("{ns:.0} ns"), "median of 20000")])
}

/// Drivers of network devices that a hypervisor makes up, or that are half virtual.
const VIRTUAL_DRIVERS: &[&str] = &[
    "virtio_net",
    "vmxnet3",
    "vmxnet",
    "ena",
    "gve",
    "vif",
    "xen-netfront",
    "xen_netfront",
    "hv_netvsc",
    "netvsc",
    "e1000",
    "e1000e",
    "8139cp",
    "8139too",
    "rtl8139",
    "ne2k-pci",
    "pcnet32",
];

fn nic_path(m: &Machine<'_>) -> Observed {
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    let drivers: Vec<(&str, &str)> =
        m.links.iter().filter_map(|name| Some((*name, m.driver(name)?))).collect();
    if drivers.is_empty() {
        return Observed::unknown("no network device with a driver is visible")
            .with([missing("SIOCETHTOOL", "no device")]);
    }
    let seen = drivers
        .iter()
        .map(|(name, driver)| evidence(format!("SIOCETHTOOL {name}"), driver, "driver"));
    let virtuals: Vec<String> = drivers
        .iter()
        .filter(|(_, driver)| VIRTUAL_DRIVERS.contains(driver))
        .map(|(name, driver)| format!("{name} ({driver})"))
        .collect();
    Observed::bad_if(
        !virtuals.is_empty(),
        format!("the hypervisor carries the packets of {}", virtuals.join(", ")),
        "no device of the workload is known to be virtual",
    )
    .with(seen.collect::<Vec<_>>())
}

/// The sum line of `/proc/stat`: stolen and all ticks.
fn ticks(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    // Guest time is part of user time.
    Some((*fields.get(7)?, fields.iter().take(8).sum()))
}

fn steal(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/stat";
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    let Some((stolen, all)) = m.text(PATH).and_then(ticks) else {
        return unread(m, "stolen time", &[PATH]);
    };
    let percent = |stolen: u64, all: u64| stolen as f64 * 100.0 / all.max(1) as f64;
    let since_boot = percent(stolen, all);
    let second = m.second(PATH).and_then(ticks);
    let now = second.map(|(stolen_2, all_2)| {
        percent(stolen_2.saturating_sub(stolen), all_2.saturating_sub(all))
    });
    // A second is too short for a share below one tick of each CPU, so both count.
    let worst = now.unwrap_or(0.0).max(since_boot);
    let now_text = now.map_or(String::new(), |now| format!(", {now:.2} % during the snapshot"));
    let text = format!("{since_boot:.2} % of the CPU time since boot was stolen{now_text}");
    Observed::bad_if(worst > 0.1, text.clone(), text.clone())
        .severity(if worst > 1.0 { Severity::Critical } else { Severity::High })
        .with([evidence(PATH, m.text(PATH).and_then(|t| t.lines().next()).unwrap_or(""), {
            format!("{stolen} of {all} ticks")
        })])
}

fn sibling(m: &Machine<'_>) -> Observed {
    let Some(active) = &m.snapshot.calls.active else {
        return Observed::unknown("measured only with --active")
            .with([missing("work on pairs of CPUs", "not measured")]);
    };
    if active.pairs.is_empty() {
        return Observed::not_applicable("there is only one CPU to use");
    }
    let known = |a: u32, b: u32| {
        m.facts.cpu.siblings.iter().any(|group| group.contains(&a) && group.contains(&b))
    };
    let hidden: Vec<String> = active
        .pairs
        .iter()
        .filter(|pair| pair.ratio > 1.2 && !known(pair.a, pair.b))
        .map(|pair| format!("{} and {} (x{:.2})", pair.a, pair.b, pair.ratio))
        .collect();
    let seen = active.pairs.iter().map(|pair| {
        let path = format!("work on CPUs {} and {}", pair.a, pair.b);
        evidence(path, &format!("{:.3}", pair.ratio), "CPU time together / alone")
    });
    Observed::bad_if(
        !hidden.is_empty(),
        format!("CPUs that slow each other down: {}", hidden.join(", ")),
        plural(active.pairs.len(), "pair of CPUs shows", "pairs of CPUs show")
            + " no core that is shared unseen",
    )
    .with(seen.collect::<Vec<_>>())
}

fn hints(m: &Machine<'_>) -> Observed {
    if m.layer == Layer::Unknown {
        return not_a_guest(m).unwrap_or_else(|| Observed::unknown("the layer is not known"));
    }
    if m.layer == Layer::Metal || m.hypervisor().is_some_and(|name| name != "KVM") {
        return Observed::not_applicable("this is no KVM guest");
    }
    const PATH: &str = "CPUID 0x40000001 EDX";
    let Some(hints) = m.snapshot.calls.cpuid.as_ref().and_then(|cpuid| cpuid.kvm_hints) else {
        return Observed::unknown("KVM's hints could not be read")
            .with([missing(PATH, "the snapshot has no CPUID")]);
    };
    Observed::bad_if(
        hints & 1 == 0,
        "KVM does not say that the CPUs are dedicated",
        "KVM says that the CPUs are dedicated",
    )
    .with([evidence(PATH, &format!("{hints:#x}"), "bit 0: KVM_HINTS_REALTIME")])
}

fn model(m: &Machine<'_>) -> Observed {
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    const PATH: &str = "/proc/cpuinfo";
    let Some(name) = m.facts.cpu.model.as_deref() else {
        return unread(m, "the CPU's model", &[PATH]);
    };
    // QEMU's own models are named after families, or after the program itself.
    let generic = [
        "QEMU",
        "Virtual CPU",
        "Common KVM",
        "(Broadwell",
        "(Skylake",
        "(Haswell",
        "(IvyBridge",
        "(SandyBridge",
        "(Cascadelake",
        "(Icelake",
        "(EPYC",
        "Westmere",
        "Nehalem",
        "Intel Xeon Processor (",
    ];
    let is_generic = generic.iter().any(|word| name.contains(word)) && !name.contains("GHz");
    Observed::bad_if(
        is_generic,
        format!("the hypervisor shows its model `{name}` in place of the processor"),
        format!("the hypervisor shows the processor: {name}"),
    )
    .with([evidence(PATH, name, "model name")])
}

fn balloon(m: &Machine<'_>) -> Observed {
    const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_balloon";
    const BUS: &str = "/sys/bus";
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    if let Some(path) = m.present_below(DRIVER).first() {
        return Observed::fail("a memory balloon is in use").with([evidence(
            *path,
            "bound",
            "device of the balloon's driver",
        )]);
    }
    // Where the buses are hidden, so is the driver.
    if !m.has(BUS) && !m.covers("/sys/bus/") {
        return unread(m, "the memory balloon", &[DRIVER, BUS]);
    }
    Observed::pass("no memory balloon is in use").with([evidence(
        DRIVER,
        "no device",
        "no device is bound to the driver",
    )])
}
