//! What an installed QEMU can do, by its own lists. Its version says too little: distributions
//! leave parts out and take others from later versions.

use std::collections::BTreeSet;

/// Names of QEMU's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Of `-netdev help`, such as `dgram`.
    pub netdevs: BTreeSet<String>,
    /// Of `-device help`, such as `virtio-net-pci`.
    pub devices: BTreeSet<String>,
    /// Of `-accel help`, such as `tcg`.
    pub accelerators: BTreeSet<String>,
}

impl Features {
    /// From what the three options print.
    pub fn parse(netdevs: &str, devices: &str, accelerators: &str) -> Features {
        Features {
            netdevs: words(netdevs),
            devices: device_names(devices),
            accelerators: words(accelerators),
        }
    }

    /// Whether virtual network devices of this kind can be connected.
    pub fn has_netdev(&self, name: &str) -> bool {
        self.netdevs.contains(name)
    }

    /// Whether it has this device.
    pub fn has_device(&self, name: &str) -> bool {
        self.devices.contains(name)
    }

    /// Whether it has this accelerator.
    pub fn has_accelerator(&self, name: &str) -> bool {
        self.accelerators.contains(name)
    }
}

/// The lines that consist of one word; headings have several.
fn words(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.contains(' ')).map(str::to_string).collect()
}

/// The names in lines such as `name "virtio-net-pci", bus PCI`.
fn device_names(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest = line.trim().strip_prefix("name \"")?;
        Some(rest.split_once('"')?.0.to_string())
    };
    text.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_from_the_lists_and_headings_are_not() {
        let features = Features::parse(
            "Available netdev backend types:\nsocket\ndgram\ntap\n",
            "Network devices:\nname \"igb\", bus PCI, desc \"Intel\"\nname \"virtio-net-pci\"\n\n",
            "Accelerators supported in QEMU binary:\ntcg\nkvm\n",
        );
        assert!(features.has_netdev("dgram") && !features.has_netdev("stream"));
        assert_eq!(features.netdevs.len(), 3);
        assert!(features.has_device("igb") && !features.has_device("vfio-pci"));
        assert!(features.has_accelerator("kvm") && !features.has_accelerator("xen"));
        assert_eq!(Features::parse("", "", ""), Features::default());
    }
}
