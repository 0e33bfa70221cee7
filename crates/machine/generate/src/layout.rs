//! What of a host matters to the placement of a guest: cores, memory nodes, network devices.

use std::collections::BTreeSet;

pub use nm_model::pci_address::PciAddress;
pub use nm_place::Core;
use nm_place::Topology;

/// The host as a placement sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// Physical cores, by their first CPU.
    pub cores: Vec<Core>,
    /// CPUs that the scheduler leaves alone.
    pub isolated: BTreeSet<u32>,
    /// Reserved huge pages, by node and size.
    pub huge_pages: Vec<HugePages>,
    /// Network devices on PCI, by address.
    pub nics: Vec<Nic>,
    /// Whether the processor is an x86 one.
    pub is_x86: bool,
    /// Whether the processor can run virtual machines.
    pub can_virtualize: bool,
    /// Whether the time stamp counter runs at one rate in all states of the processor.
    pub has_invariant_tsc: bool,
    /// Whether an IOMMU is in use, without which no device can be passed through.
    pub has_iommu: bool,
}

impl HostLayout {
    /// The NUMA nodes that have cores.
    pub fn nodes(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = self.cores.iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The cores, for the rule that chooses among them.
    pub fn topology(&self) -> Topology {
        Topology { cores: self.cores.clone(), isolated: self.isolated.clone() }
    }

    /// Whether a core has more than one thread.
    pub fn has_siblings(&self) -> bool {
        self.cores.iter().any(|core| core.cpus.len() > 1)
    }
}

/// Huge pages of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// NUMA node.
    pub node: u32,
    /// Size of a page, KiB.
    pub size_kib: u64,
    /// Pages reserved.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
}

/// A network device on PCI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Where it is.
    pub address: PciAddress,
    /// Names of its links, such as `ens1f0`; none if no driver of the host has it.
    pub names: Vec<String>,
    /// Vendor, as in `10ee`.
    pub vendor: u16,
    /// Product.
    pub product: u16,
    /// NUMA node, where the firmware tells it.
    pub node: Option<u32>,
    /// What it is to SR-IOV.
    pub function: NicFunction,
    /// Other devices of its IOMMU group, bridges excepted: they can only be passed together.
    pub group_mates: Vec<PciAddress>,
}

/// What a device is to SR-IOV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicFunction {
    /// It knows nothing of SR-IOV.
    Plain,
    /// A physical function that can have virtual ones.
    Parent {
        /// The virtual functions that exist now.
        virtual_functions: Vec<PciAddress>,
        /// How many there are by the device's own count.
        n_enabled: u32,
    },
    /// A virtual function.
    Virtual,
}
