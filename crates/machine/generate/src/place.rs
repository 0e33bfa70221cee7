//! Decides where a guest runs, or says why the host cannot carry it.

use nm_place::{Chosen, Wish};

use crate::layout::{HostLayout, Nic, NicFunction, PciAddress};
use crate::request::{Request, RequestError};

/// Where everything of a guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// NUMA node of the device, its cores and the memory.
    pub node: u32,
    /// The CPU of each vCPU: the first thread of a core of its own.
    pub vcpus: Vec<u32>,
    /// The first thread of each core that is kept for such guests.
    pub dedicated: Vec<u32>,
    /// The other threads of those cores: nothing may run there.
    pub idle_siblings: Vec<u32>,
    /// Those of them that are on the cores of this guest's vCPUs.
    pub vcpu_siblings: Vec<u32>,
    /// Cores that use a last-level cache of the guest's: nothing should run there.
    pub spare: Vec<u32>,
    /// The node's other CPUs: for the emulator, its I/O thread and the host.
    pub shared: Vec<u32>,
    /// One sentence for each decision about the CPUs.
    pub reasons: Vec<String>,
    /// The device.
    pub nic: Nic,
    /// Pages of the memory.
    pub pages: u64,
    /// Whether a core of the host has more than one thread.
    pub has_siblings: bool,
    /// Whether the guest can be promised a time stamp counter of one rate.
    pub has_invariant_tsc: bool,
}

/// Why a host cannot carry a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The request itself is wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Nothing was read.
    #[error("the host's CPUs are unknown: /sys/devices/system/cpu/online cannot be read")]
    NoCpus,
    /// Another architecture.
    #[error("the host is no x86-64 machine; configurations are written for x86-64 only")]
    NotX86,
    /// No hardware virtualisation.
    #[error(
        "the processor offers no virtualisation (neither vmx nor svm in /proc/cpuinfo): switch it \
         on in the firmware, or, in a virtual machine, at its host"
    )]
    NoVirtualization,
    /// No IOMMU.
    #[error(
        "the host has no IOMMU in use (/sys/kernel/iommu_groups is empty), so no device can be \
         passed through: switch on VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or \
         amd_iommu=on"
    )]
    NoIommu,
    /// No such device.
    #[error(
        "no network device on PCI is called {asked}; there are: {known} (a virtual network device \
         cannot be passed through)"
    )]
    NoSuchNic {
        /// What was asked for.
        asked: String,
        /// The devices that there are.
        known: String,
    },
    /// The firmware does not tell where the device is.
    #[error(
        "the NUMA node of {nic} is unknown, and the host has {nodes}: the firmware must tell where \
         the device is"
    )]
    NodeUnknown {
        /// The device.
        nic: PciAddress,
        /// How many nodes have cores.
        nodes: usize,
    },
    /// Too few cores.
    #[error(
        "node {node}, where {nic} is, has {cores} physical cores, of which 1 stays with the host: \
         too few for {vcpus} vCPUs on a core each"
    )]
    TooFewCores {
        /// The node.
        node: u32,
        /// The device.
        nic: PciAddress,
        /// Cores of the node.
        cores: usize,
        /// vCPUs asked for.
        vcpus: u32,
    },
    /// A number of dedicated cores that does not fit.
    #[error(
        "{asked} dedicated cores: node {node} allows {vcpus} (one for each vCPU) to {max} (1 core \
         stays with the host)"
    )]
    DedicatedCores {
        /// Cores asked for.
        asked: u32,
        /// The node.
        node: u32,
        /// vCPUs asked for.
        vcpus: u32,
        /// Cores of the node without the host's.
        max: usize,
    },
    /// Too few huge pages.
    #[error(
        "node {node} has {free} free of {total} pages of {size}, and the guest needs {needed}: \
         reserve {pool} at boot, or `echo {pool} > /sys/devices/system/node/node{node}/hugepages/\
         hugepages-{size_kib}kB/nr_hugepages`"
    )]
    TooFewHugePages {
        /// The node.
        node: u32,
        /// Free pages.
        free: u64,
        /// All pages.
        total: u64,
        /// Size of a page in words.
        size: &'static str,
        /// Size of a page, KiB.
        size_kib: u64,
        /// Pages that the guest needs.
        needed: u64,
        /// All pages that there must be: those in use, and the guest's.
        pool: u64,
    },
    /// A physical function whose virtual ones exist.
    #[error(
        "{nic} has virtual functions ({functions}): pass one of them, or remove them (`echo 0 > \
         /sys/bus/pci/devices/{nic}/sriov_numvfs`)"
    )]
    HasVirtualFunctions {
        /// The device.
        nic: PciAddress,
        /// Its virtual functions.
        functions: String,
    },
    /// A physical function that counts virtual ones of which no device is there.
    #[error(
        "{nic} has {count} by `sriov_numvfs`, whose devices are not here: record them as well, or \
         remove them (`echo 0 > /sys/bus/pci/devices/{nic}/sriov_numvfs`)"
    )]
    CountsVirtualFunctions {
        /// The device.
        nic: PciAddress,
        /// How many, in words.
        count: String,
    },
    /// Devices that cannot be separated.
    #[error(
        "{nic} is in one IOMMU group with {mates}: they can only be passed to a guest together. \
         Use a slot or a card with access control (ACS)"
    )]
    SharedGroup {
        /// The device.
        nic: PciAddress,
        /// The others.
        mates: String,
    },
}

/// Places a guest on a host: every vCPU on a physical core of its own, on the node of its device.
///
/// # Errors
/// Why the host cannot carry the guest.
pub fn place(host: &HostLayout, request: &Request) -> Result<Placement, PlaceError> {
    request.check()?;
    check_host(host)?;
    let nic = find_nic(host, &request.nic)?;
    check_nic(nic)?;
    let node = node_of(host, nic)?;
    let chosen = choose_cores(host, request, nic, node)?;
    let pages = pages(host, request, node)?;
    let own = host.cores.iter().filter(|core| chosen.hot.contains(&core.first()));
    Ok(Placement {
        node,
        vcpu_siblings: sorted(own.flat_map(|core| &core.cpus[1..]).copied()),
        dedicated: sorted(chosen.hot.iter().chain(&chosen.reserved).copied()),
        vcpus: chosen.hot,
        idle_siblings: chosen.idle_siblings,
        spare: chosen.spare,
        shared: chosen.housekeeping,
        reasons: chosen.reasons,
        nic: nic.clone(),
        pages,
        has_siblings: host.has_siblings(),
        has_invariant_tsc: host.has_invariant_tsc,
    })
}

fn check_host(host: &HostLayout) -> Result<(), PlaceError> {
    if host.cores.is_empty() {
        return Err(PlaceError::NoCpus);
    }
    if !host.is_x86 {
        return Err(PlaceError::NotX86);
    }
    if !host.can_virtualize {
        return Err(PlaceError::NoVirtualization);
    }
    Ok(())
}

fn find_nic<'a>(host: &'a HostLayout, asked: &str) -> Result<&'a Nic, PlaceError> {
    let address: Option<PciAddress> = asked.parse().ok();
    let is_asked =
        |nic: &&Nic| Some(nic.address) == address || nic.names.iter().any(|name| name == asked);
    let found = host.nics.iter().find(is_asked).ok_or_else(|| {
        let known = host.nics.iter().map(|nic| match nic.names.first() {
            Some(name) => format!("{name} ({})", nic.address),
            None => nic.address.to_string(),
        });
        let asked = asked.chars().take(80).collect();
        PlaceError::NoSuchNic { asked, known: some_of(known) }
    })?;
    match host.has_iommu {
        true => Ok(found),
        false => Err(PlaceError::NoIommu),
    }
}

fn check_nic(nic: &Nic) -> Result<(), PlaceError> {
    let address = nic.address;
    if let NicFunction::Parent { virtual_functions, n_enabled } = &nic.function {
        if !virtual_functions.is_empty() {
            let functions = some_of(virtual_functions.iter().map(PciAddress::to_string));
            return Err(PlaceError::HasVirtualFunctions { nic: address, functions });
        }
        if *n_enabled > 0 {
            let ending = if *n_enabled == 1 { "" } else { "s" };
            let count = format!("{n_enabled} virtual function{ending}");
            return Err(PlaceError::CountsVirtualFunctions { nic: address, count });
        }
    }
    if !nic.group_mates.is_empty() {
        let mates = some_of(nic.group_mates.iter().map(PciAddress::to_string));
        return Err(PlaceError::SharedGroup { nic: address, mates });
    }
    Ok(())
}

fn node_of(host: &HostLayout, nic: &Nic) -> Result<u32, PlaceError> {
    match (nic.node, host.nodes().as_slice()) {
        (Some(node), _) => Ok(node),
        (None, [only]) => Ok(*only),
        (None, nodes) => Err(PlaceError::NodeUnknown { nic: nic.address, nodes: nodes.len() }),
    }
}

/// The cores for guests: by the rule of all placements. Where nobody says how many, all that share
/// no last-level cache with the host, or all but one where those are too few.
fn choose_cores(
    host: &HostLayout,
    request: &Request,
    nic: &Nic,
    node: u32,
) -> Result<Chosen, PlaceError> {
    let topology = host.topology();
    let n_cores = host.cores.iter().filter(|core| core.node == node).count();
    let (max, vcpus) = (n_cores.saturating_sub(1), request.vcpus);
    let too_few = PlaceError::TooFewCores { node, nic: nic.address, cores: n_cores, vcpus };
    if (vcpus as usize) > max {
        return Err(too_few);
    }
    let apart = nm_place::cores_apart(&topology, node);
    let dedicated = match request.dedicated_cores {
        None if apart >= vcpus as usize => apart,
        None => max,
        Some(asked) if (vcpus as usize..=max).contains(&(asked as usize)) => asked as usize,
        Some(asked) => return Err(PlaceError::DedicatedCores { asked, node, vcpus, max }),
    };
    let cores = vcpus as usize;
    let wish = Wish { cores, node: Some(node), reserve: dedicated - cores };
    nm_place::choose(&topology, &wish).map_err(|_| too_few)
}

fn pages(host: &HostLayout, request: &Request, node: u32) -> Result<u64, PlaceError> {
    let size_kib = request.page_size.kib();
    let found = host.huge_pages.iter().find(|p| p.node == node && p.size_kib == size_kib);
    let (free, total) = found.map_or((0, 0), |pages| (pages.free, pages.total));
    let (needed, size) = (request.memory_bytes / (size_kib << 10), request.page_size.text());
    match needed <= free {
        true => Ok(needed),
        false => {
            let pool = needed.saturating_add(total.saturating_sub(free));
            Err(PlaceError::TooFewHugePages { node, free, total, size, size_kib, needed, pool })
        }
    }
}

fn sorted(cpus: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut cpus: Vec<u32> = cpus.collect();
    cpus.sort_unstable();
    cpus
}

/// The first of `names`, and how many more there are.
fn some_of(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
    match (shown.is_empty(), more) {
        (true, _) => "none".into(),
        (false, 0) => shown,
        (false, more) => format!("{shown} and {more} more"),
    }
}
