//! Reads a host's layout from the files of the running kernel, or of a recorded tree.

use std::path::Path;

use nm_model::limits;
use nm_sys::hostfiles::HostFiles;

use crate::layout::{HostLayout, HugePages, Nic, NicFunction, PciAddress};

const NODES: &str = "/sys/devices/system/node";
const DEVICES: &str = "/sys/bus/pci/devices";
const GROUPS: &str = "/sys/kernel/iommu_groups";

/// The layout of the host whose files are below `root`. Only reads.
pub fn read(root: &Path) -> HostLayout {
    let files = HostFiles::new(root);
    let flags = flags(&files);
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let topology = nm_host::topology::read(&files);
    HostLayout {
        cores: topology.cores,
        isolated: topology.isolated,
        huge_pages: huge_pages(&files),
        nics: nics(&files),
        is_x86: !flags.is_empty(),
        can_virtualize: has("vmx") || has("svm"),
        has_invariant_tsc: has("constant_tsc") && has("nonstop_tsc"),
        has_iommu: !files.names(GROUPS).is_empty(),
    }
}

/// The features of the first CPU. Only x86 calls them `flags`.
fn flags(files: &HostFiles) -> Vec<String> {
    let text = files.text("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().filter_map(|line| line.split_once(':'));
    let flags = line.filter(|(name, _)| name.trim() == "flags").map(|(_, flags)| flags).next();
    flags.unwrap_or_default().split_whitespace().map(str::to_string).collect()
}

fn huge_pages(files: &HostFiles) -> Vec<HugePages> {
    let mut found = vec![];
    for name in files.names(NODES) {
        let Some(node) = name.strip_prefix("node").and_then(|text| text.parse().ok()) else {
            continue;
        };
        let folder = format!("{NODES}/{name}/hugepages");
        for size in files.names(&folder) {
            let kib = size.strip_prefix("hugepages-").and_then(|text| text.strip_suffix("kB"));
            let Some(size_kib) = kib.and_then(|text| text.parse().ok()) else { continue };
            let count = |file| files.value(&format!("{folder}/{size}/{file}")).unwrap_or(0);
            let (total, free) = (count("nr_hugepages"), count("free_hugepages"));
            found.push(HugePages { node, size_kib, total, free });
        }
    }
    found.sort_by_key(|pages| (pages.node, pages.size_kib));
    found
}

fn nics(files: &HostFiles) -> Vec<Nic> {
    let names = files.names(DEVICES);
    let addresses: Vec<PciAddress> =
        names.iter().filter_map(|name| name.parse().ok()).take(limits::PCI_DEVICES_MAX).collect();
    let groups = groups(files);
    addresses.iter().filter_map(|address| nic(files, *address, &addresses, &groups)).collect()
}

fn nic(
    files: &HostFiles,
    address: PciAddress,
    all: &[PciAddress],
    groups: &[Vec<PciAddress>],
) -> Option<Nic> {
    const NETWORK_CLASS: u32 = 0x02;
    if class(files, address)? != NETWORK_CLASS {
        return None;
    }
    let folder = format!("{DEVICES}/{address}");
    let id = |file| hex(&files.text(&format!("{folder}/{file}"))?);
    let group = groups.iter().find(|group| group.contains(&address));
    let mates = group.into_iter().flatten().filter(|mate| **mate != address);
    const BRIDGE_CLASS: u32 = 0x06;
    Some(Nic {
        address,
        names: files.names(&format!("{folder}/net")),
        vendor: u16::try_from(id("vendor")?).ok()?,
        product: u16::try_from(id("device")?).ok()?,
        node: files
            .value::<i32>(&format!("{folder}/numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        function: function(files, address, all),
        group_mates: mates.filter(|a| class(files, **a) != Some(BRIDGE_CLASS)).copied().collect(),
    })
}

/// The kind of a device: network, bridge, …
fn class(files: &HostFiles, address: PciAddress) -> Option<u32> {
    Some(hex(&files.text(&format!("{DEVICES}/{address}/class"))?)? >> 16)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn function(files: &HostFiles, address: PciAddress, all: &[PciAddress]) -> NicFunction {
    let parent_of = |child: PciAddress| -> Option<PciAddress> {
        files.link_name(&format!("{DEVICES}/{child}/physfn"))?.parse().ok()
    };
    if parent_of(address).is_some() {
        return NicFunction::Virtual;
    }
    match files.value::<u32>(&format!("{DEVICES}/{address}/sriov_totalvfs")) {
        None | Some(0) => NicFunction::Plain,
        Some(_) => NicFunction::Parent {
            virtual_functions: all
                .iter()
                .filter(|other| parent_of(**other) == Some(address))
                .copied()
                .collect(),
            n_enabled: files.value(&format!("{DEVICES}/{address}/sriov_numvfs")).unwrap_or(0),
        },
    }
}

/// The devices of each IOMMU group.
fn groups(files: &HostFiles) -> Vec<Vec<PciAddress>> {
    let names = files.names(GROUPS);
    let members = |group: &String| {
        let devices = files.names(&format!("{GROUPS}/{group}/devices"));
        devices.iter().filter_map(|name| name.parse().ok()).collect()
    };
    names.iter().take(limits::PCI_DEVICES_MAX).map(members).collect()
}
