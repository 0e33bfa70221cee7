//! A pair of guests for a stack of the user's own: the same environment as `nearmetal lab run` has.

use nm_model::Side;
use nm_model::guest::GuestSpec;
use nm_model::pci_address::PciAddress;

use nm_place::{Refusal, Wish};

use crate::layout::HostLayout;

/// What connects the guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairNetwork {
    /// Datagrams between the two QEMUs.
    Wire,
    /// A bridge, packets copied by QEMU.
    Vswitch,
    /// A bridge, packets copied by the kernel.
    Vhost,
    /// A virtual function of this link for each guest.
    Functions {
        /// Name of the link.
        link: String,
        /// Its NUMA node.
        node: Option<u32>,
    },
    /// A device for each guest.
    Devices {
        /// Their addresses: of the client's guest, of the server's.
        addresses: [PciAddress; 2],
        /// The NUMA node of the first.
        node: Option<u32>,
    },
    /// A region of memory in common, and datagrams.
    SharedMemory,
}

impl PairNetwork {
    /// The NUMA node that the guests must be on.
    fn node(&self) -> Option<u32> {
        match self {
            PairNetwork::Functions { node, .. } | PairNetwork::Devices { node, .. } => *node,
            _ => None,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairRequest {
    /// What connects the guests.
    pub network: PairNetwork,
    /// Virtual CPUs of each.
    pub cpus: u32,
    /// Memory of each, MiB.
    pub memory_mib: u32,
    /// Path of the kernel's image.
    pub kernel: String,
    /// Path of the initial RAM disk.
    pub initrd: String,
    /// The guest kernels' command lines: of the client's guest, of the server's.
    pub command_lines: [String; 2],
    /// Folder for the sockets of the control channels.
    pub folder: String,
}

/// A request that no host could satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// A number.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfRange {
        /// Option.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A path that cannot be written down.
    #[error("the path {0:?} is not absolute, or has an apostrophe or a control character")]
    Path(String),
}

impl PairRequest {
    /// Checks numbers and paths.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), PairError> {
        let (least, most) = (GuestSpec::MEMORY_MIB_MIN, GuestSpec::MEMORY_MIB_MAX);
        let numbers = [
            ("--cpus", self.cpus, 1, GuestSpec::CPUS_MAX),
            ("--memory-mib", self.memory_mib, least, most),
        ];
        for (field, value, min, max) in numbers {
            if !(min..=max).contains(&value) {
                return Err(PairError::OutOfRange { field, value, min, max });
            }
        }
        for path in [&self.kernel, &self.initrd, &self.folder] {
            // The path is written into commands between apostrophes too.
            let is_plain = !path.contains(|c: char| c.is_control() || c == '\'');
            if !path.starts_with('/') || !is_plain {
                return Err(PairError::Path(path.clone()));
            }
        }
        Ok(())
    }
}

/// Where the guests of a pair run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairPlacement {
    /// NUMA node; absent if the host has none.
    pub node: Option<u32>,
    /// The CPU of each virtual CPU, of the client's guest and the server's; empty if the host has
    /// too few cores.
    pub virtual_cpus: [Vec<u32>; 2],
    /// CPUs for QEMU's other threads.
    pub others: Vec<u32>,
    /// Whether enough huge pages of 2 MiB are free for both.
    pub has_huge_pages: bool,
    /// Whether the time stamp counter runs at one rate.
    pub has_invariant_tsc: bool,
    /// What the user should know, in sentences.
    pub notes: Vec<String>,
}

/// Places both guests on one node, every virtual CPU on a core of its own, by the rule of all
/// placements, if the host has enough cores.
pub fn place_pair(host: &HostLayout, request: &PairRequest) -> PairPlacement {
    let topology = host.topology();
    let wanted = 2 * request.cpus as usize;
    let wish = Wish { cores: wanted, node: request.network.node(), reserve: 0 };
    let chosen = nm_place::choose(&topology, &wish);
    let node = match &chosen {
        Ok(chosen) => Some(chosen.node),
        Err(Refusal::TooFewCores { node, .. }) => Some(*node),
        Err(_) => request.network.node(),
    };
    let mut placement = PairPlacement {
        node,
        has_invariant_tsc: host.has_invariant_tsc,
        has_huge_pages: has_huge_pages(host, request, node),
        ..PairPlacement::default()
    };
    match chosen {
        Ok(chosen) => {
            // The virtual CPUs of a guest share a cache before those of different guests do.
            let mut cpus = chosen.hot;
            cpus.sort_by_key(|cpu| (topology.core_of(*cpu).and_then(|core| core.cache), *cpu));
            let (client, server) = cpus.split_at(request.cpus as usize);
            placement.virtual_cpus = [client.to_vec(), server.to_vec()];
            placement.others = chosen.housekeeping;
        }
        Err(error) => placement.notes.push(format!(
            "The virtual CPUs are not pinned: {wanted} cores and one for the host are needed, and \
             {error}."
        )),
    }
    if !placement.has_huge_pages {
        placement.notes.push(format!(
            "The memory is of small pages: reserve huge pages of 2 MiB until {} are free, and \
             export again.",
            request.memory_mib
        ));
    }
    placement
}

fn has_huge_pages(host: &HostLayout, request: &PairRequest, node: Option<u32>) -> bool {
    const SIZE_KIB: u64 = 2 << 10;
    // Two guests, so as many pages of 2 MiB as one has MiB.
    let needed = u64::from(request.memory_mib.next_multiple_of(2));
    host.huge_pages
        .iter()
        .any(|pages| Some(pages.node) == node && pages.size_kib == SIZE_KIB && pages.free >= needed)
}

/// Both guests, as `nearmetal lab run` has them.
pub const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// The place of a guest in arrays of both.
pub fn place_of(side: Side) -> usize {
    usize::from(side == Side::Server)
}

/// The hardware address of a guest, as text.
pub fn mac(side: Side) -> String {
    nm_sys::hardware_address::text(nm_vm::network::hardware_address(side))
}
