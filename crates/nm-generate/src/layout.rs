//! What of a host matters to the placement of a guest: cores, memory nodes, network devices.

use std::fmt;
use std::str::FromStr;

/// The host as a placement sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// Physical cores, by their first CPU.
    pub cores: Vec<Core>,
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

    /// Whether a core has more than one thread.
    pub fn has_siblings(&self) -> bool {
        self.cores.iter().any(|core| core.cpus.len() > 1)
    }
}

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its online CPUs, the lowest first; never empty.
    pub cpus: Vec<u32>,
    /// Its NUMA node.
    pub node: u32,
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
    },
    /// A virtual function.
    Virtual,
}

/// Address of a PCI device, `0000:3b:00.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Slot, at most 31.
    pub slot: u8,
    /// Function, at most 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, slot, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function}")
    }
}

/// A text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address such as 0000:3b:00.1")]
pub struct NotAnAddress;

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// Reads `0000:3b:00.1`, or `3b:00.1` of domain 0.
    fn from_str(text: &str) -> Result<PciAddress, NotAnAddress> {
        let (rest, function) = text.rsplit_once('.').ok_or(NotAnAddress)?;
        let (rest, slot) = rest.rsplit_once(':').ok_or(NotAnAddress)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let hex = |text: &str, digits: usize, max: u32| {
            let is_hex = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
            let value = u32::from_str_radix(text, 16).ok();
            value.filter(|value| is_hex && text.len() <= digits && *value <= max)
        };
        let byte = |text, max| hex(text, 2, max).and_then(|value| u8::try_from(value).ok());
        Ok(PciAddress {
            domain: hex(domain, 8, u32::MAX).ok_or(NotAnAddress)?,
            bus: byte(bus, 0xff).ok_or(NotAnAddress)?,
            slot: byte(slot, 31).ok_or(NotAnAddress)?,
            function: byte(function, 7).ok_or(NotAnAddress)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_with_and_without_domain() {
        let address: PciAddress = "3b:00.1".parse().unwrap();
        assert_eq!(address.to_string(), "0000:3b:00.1");
        for text in ["", "eth0", "0000:3b:20.0", "0000:3b:00.8", "3b:00", "+1:00.0", "0:1:2:3.4"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_is_written(
            domain in 0u32..0x1_0000, bus: u8, slot in 0u8..32, function in 0u8..8,
        ) {
            let address = PciAddress { domain, bus, slot, function };
            prop_assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "[0-9a-f:.+]{0,16}") {
            let _ = text.parse::<PciAddress>();
        }
    }
}
