//! PCI links, IOMMU and virtual functions.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::{Command, Hardware, KernelCommandLine};
use nm_model::finding::{Threat, UndoClass};

use super::common::{chosen, no_link, plural, unread};
use crate::check::Check;
use crate::machine::{Machine, net};
use crate::observed::{Observed, evidence};
use nm_settings::{SettingId, source};

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "pci.link",
        title: "PCI link of the network device",
        severity: Severity::High,
        why: "a link of less width or speed than the device can use sends each packet longer",
        sources: &[source::JUDGEMENT],
        fix: (Hardware, "plug the card in again, or use another slot"),
        confidence: Judgement,
        threatens: &[Threat::Network, Threat::Throughput],
        run: link,
        ..Check::UNDECLARED
    },
    Check {
        id: "pci.aspm",
        title: "power saving of PCI links",
        severity: Severity::Medium,
        why: "a link that sleeps has to wake up for a packet",
        sources: &[source::MONTEREY],
        fix: (Command, "echo performance > /sys/module/pcie_aspm/parameters/policy"),
        undo: UndoClass::Live,
        confidence: Documented,
        threatens: &[Threat::Network, Threat::Tail],
        run: aspm,
        ..Check::UNDECLARED
    },
    Check {
        id: "iommu.mode",
        title: "translation mode of the IOMMU",
        severity: Severity::Medium,
        settings: &[SettingId::IommuMode],
        threatens: &[Threat::Network, Threat::Throughput],
        run: mode,
        ..Check::UNDECLARED
    },
    Check {
        id: "iommu.on",
        title: "IOMMU for pass-through",
        severity: Severity::Critical,
        why: "without it no device can be passed through to a guest",
        sources: &[source::DEFTECH, source::NOVA_PCI],
        fix: (KernelCommandLine, "intel_iommu=on   # and VT-d or AMD-Vi in the firmware"),
        undo: UndoClass::Boot,
        threatens: &[Threat::Network],
        run: on,
        ..Check::UNDECLARED
    },
    Check {
        id: "sriov.vfs",
        title: "virtual functions",
        severity: Severity::Low,
        why: "a device that could give guests functions of their own leaves them to the host's \
              switch",
        sources: &[source::NOVA_PCI],
        fix: (Command, "echo 4 > /sys/class/net/LINK/device/sriov_numvfs"),
        undo: UndoClass::Live,
        threatens: &[Threat::Network],
        run: functions,
        ..Check::UNDECLARED
    },
];

/// Functions of Intel's network devices inside a chipset or a processor, by their drivers' lists of
/// devices. The PCI link that they show is made up: no packet crosses it.
const INTEGRATED: &[(std::ops::RangeInclusive<u32>, &str)] = &[
    (0x0dda..=0x0dda, "X722"),
    (0x124c..=0x124f, "E823-L"),
    (0x151d..=0x151d, "E823-L"),
    (0x15aa..=0x15ae, "X552"),
    (0x15b0..=0x15b0, "X552"),
    (0x15c2..=0x15c8, "X553"),
    (0x15ce..=0x15ce, "X553"),
    (0x15e4..=0x15e5, "X553"),
    (0x188a..=0x188e, "E823-C"),
    (0x1890..=0x189a, "E822"),
    (0x1f40..=0x1f45, "I354"),
    (0x37cc..=0x37d3, "X722"),
    (0x579c..=0x579f, "E825-C"),
];

/// The name of a link's device, if it is one inside a chipset or a processor.
fn integrated(m: &Machine<'_>, link: &str) -> Option<&'static str> {
    let id = |file: &str| {
        let text = m.text(&net(link, &format!("device/{file}")))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let (vendor, device) = (id("vendor")?, id("device")?);
    let found = INTEGRATED.iter().find(|(ids, _)| vendor == 0x8086 && ids.contains(&device));
    found.map(|(_, name)| *name)
}

fn link(m: &Machine<'_>) -> Observed {
    let mut faults = vec![];
    let mut seen = vec![];
    let mut inside = vec![];
    for name in &m.links {
        if let Some(device) = integrated(m, name) {
            inside.push((*name, device));
            continue;
        }
        let read = |file: &str| m.text(&net(name, &format!("device/{file}")));
        // `8.0 GT/s PCIe`; `Unknown` in guests.
        let speed = |file| -> Option<f64> { read(file)?.split(' ').next()?.parse().ok() };
        let width =
            |file| -> Option<u32> { read(file)?.parse().ok().filter(|w| (1..64).contains(w)) };
        let both = speed("current_link_speed").zip(speed("max_link_speed"));
        let widths = width("current_link_width").zip(width("max_link_width"));
        if let Some((now, max)) = both {
            seen.push(
                m.evidence(&net(name, "device/current_link_speed"), format!("of {max} GT/s")),
            );
            if now < max {
                faults.push(format!("{name} runs at {now} of {max} GT/s"));
            }
        }
        if let Some((now, max)) = widths {
            seen.push(
                m.evidence(&net(name, "device/current_link_width"), format!("of {max} lanes")),
            );
            if now < max {
                faults.push(format!("{name} has {now} of {max} lanes"));
            }
        }
    }
    if let (true, Some((name, device))) = (seen.is_empty(), inside.first()) {
        let path = net(name, "device/device");
        return Observed::not_applicable(format!(
            "{name} ({device}) is inside the chipset or the processor, and the PCI link that it \
             shows is made up"
        ))
        .with([m.evidence(&path, *device)]);
    }
    if seen.is_empty() {
        let name = m.links.first().copied().unwrap_or("eth0");
        return match m.links.is_empty() || m.is_guest() {
            _ if !m.knows_links() => no_link(m),
            true => Observed::not_applicable("no network device has a PCI link of its own"),
            false => unread(m, "the PCI link", &[&net(name, "device/current_link_speed")]),
        };
    }
    Observed::bad_if(!faults.is_empty(), faults.join("; "), "the PCI links are as the devices can")
        .with(seen)
}

fn aspm(m: &Machine<'_>) -> Observed {
    const POLICY: &str = "/sys/module/pcie_aspm/parameters/policy";
    if m.is_guest() {
        return Observed::not_applicable("the host decides about PCI links");
    }
    if m.parameter("pcie_aspm") == Some("off") {
        return Observed::pass("power saving of PCI links is off")
            .with([m.evidence("/proc/cmdline", "pcie_aspm=off")]);
    }
    let files = ["l0s_aspm", "l1_aspm", "l1_1_aspm", "l1_2_aspm"];
    let mut on = vec![];
    let mut seen = vec![];
    for name in &m.links {
        for file in files {
            let path = net(name, &format!("device/link/{file}"));
            let Some(value) = m.number(&path) else { continue };
            seen.push(m.evidence(&path, ""));
            if value == 1 {
                on.push(format!("{name} {file}"));
            }
        }
    }
    let policy = m.text(POLICY).map(chosen);
    seen.push(m.evidence(POLICY, policy.unwrap_or("")));
    if !on.is_empty() {
        return Observed::fail(format!("links may sleep: {}", on.join(", "))).with(seen);
    }
    match policy {
        Some("performance") => Observed::pass("PCI links do not sleep").with(seen),
        // Each link was asked, and none may.
        Some(_) if seen.len() > 1 => Observed::pass("the devices' links do not sleep").with(seen),
        Some(policy) => Observed::fail(format!("the policy of PCI links is {policy}")).with(seen),
        None => unread(m, "the power saving of PCI links", &[POLICY]),
    }
}

fn mode(m: &Machine<'_>) -> Observed {
    if m.is_guest() {
        return Observed::not_applicable("the host decides about the IOMMU");
    }
    let groups = m.names("/sys/kernel/iommu_groups");
    if groups.is_empty() {
        return match m.covers("/sys/kernel/") {
            true => Observed::not_applicable("no IOMMU is in use"),
            false => unread(m, "the IOMMU groups", &["/sys/kernel/iommu_groups"]),
        };
    }
    let types: Vec<(String, &str)> = groups
        .iter()
        .filter_map(|group| {
            let path = format!("/sys/kernel/iommu_groups/{group}/type");
            Some((path.clone(), m.text(&path)?))
        })
        .collect();
    if types.is_empty() {
        // Kernels before 5.11 have no such file.
        return match m.parameter("iommu") {
            Some("pt") => Observed::pass("devices of the host are not translated")
                .with([m.evidence("/proc/cmdline", "iommu=pt")]),
            _ => unread(m, "the mode of the IOMMU", &["/sys/kernel/iommu_groups/0/type"]),
        };
    }
    let strict: Vec<&(String, &str)> = types.iter().filter(|(_, one)| *one == "DMA").collect();
    let shown = strict.first().copied().unwrap_or(&types[0]);
    Observed::bad_if(
        !strict.is_empty(),
        plural(strict.len(), "group of devices is", "groups of devices are")
            + " translated in strict mode",
        "no group of devices is translated in strict mode",
    )
    .with([evidence(shown.0.clone(), shown.1, "mode of the group")])
}

fn on(m: &Machine<'_>) -> Observed {
    if m.is_guest() {
        return Observed::not_applicable("pass-through is the host's");
    }
    let wants = m.has("/dev/vfio/vfio") || super::host::runs_machines(m);
    let groups = m.names("/sys/kernel/iommu_groups");
    let devices = m.present_below("/sys/class/iommu/");
    if !groups.is_empty() || !devices.is_empty() {
        return Observed::pass(plural(groups.len(), "IOMMU group", "IOMMU groups"))
            .with([evidence("/sys/kernel/iommu_groups", &groups.len().to_string(), "groups")]);
    }
    match wants {
        true => Observed::fail("guests run here, and there is no IOMMU group").with([evidence(
            "/sys/kernel/iommu_groups",
            "no group",
            "IOMMU groups",
        )]),
        false if !m.covers("/sys/kernel/") => {
            unread(m, "the IOMMU groups", &["/sys/kernel/iommu_groups"])
        }
        false => Observed::not_applicable("no sign that devices are to be passed through"),
    }
}

fn functions(m: &Machine<'_>) -> Observed {
    let mut unused = vec![];
    let mut seen = vec![];
    for name in &m.links {
        let total = m.number(&net(name, "device/sriov_totalvfs"));
        let path = net(name, "device/sriov_numvfs");
        let (Some(total), Some(used)) = (total.filter(|n| *n > 0), m.number(&path)) else {
            continue;
        };
        seen.push(m.evidence(&path, format!("of {total}")));
        if used == 0 {
            unused.push(*name);
        }
    }
    if !m.knows_links() {
        return no_link(m);
    }
    if seen.is_empty() || !super::host::runs_machines(m) {
        return Observed::not_applicable("no guest runs here, or no device has virtual functions");
    }
    Observed::bad_if(
        !unused.is_empty(),
        format!("{} could have virtual functions and has none", unused.join(", ")),
        "the devices have virtual functions",
    )
    .replace("LINK", unused.first().copied().unwrap_or("eth0"))
    .with(seen)
}
