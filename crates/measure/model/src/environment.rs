//! Environments: where the endpoints of a measurement run.

use crate::named_enum::named_enum;

named_enum!(
    /// Where the endpoints run.
    EnvironmentKind, "environment", {
        /// Two processes on this host, over the loopback interface.
        Loopback = "loopback",
        /// Two network namespaces back to back over a veth pair.
        Netns = "netns",
        /// Two network namespaces over a Linux bridge: the shape of vNIC and virtual switch.
        Bridge = "bridge",
        /// Two virtual machines over a datagram link between their virtual NICs, without a switch
        /// and without privileges: for tests of everything else.
        VmWire = "vm-wire",
        /// Two virtual machines whose virtual NICs are ports of a Linux bridge.
        VmSwitch = "vm-vswitch" | "vm",
        /// The same with the kernel moving the packets of the virtual NICs (vhost-net).
        VmVhost = "vm-vhost",
        /// Two virtual machines with a function of a physical NIC passed through to each.
        VmSriov = "vm-sriov",
        /// Two hosts reached by ssh.
        Ssh = "ssh",
        /// A guest that others made and this host, or two such guests. What runs them, and where,
        /// is not known.
        VmAttached = "vm-attached",
    }
);

/// How far apart the two ends of an environment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Two processes share a network namespace.
    Loopback,
    /// Two network namespaces of one host are joined by virtual links.
    Namespaces,
    /// Two virtual machines of one host have a kernel each.
    Guests,
    /// Two hosts are joined by a network.
    Hosts,
}

impl Distance {
    /// Every distance, the shortest first.
    pub const ALL: [Distance; 4] =
        [Distance::Loopback, Distance::Namespaces, Distance::Guests, Distance::Hosts];
}

impl EnvironmentKind {
    /// How far apart its ends are.
    pub fn distance(self) -> Distance {
        match self {
            EnvironmentKind::Loopback => Distance::Loopback,
            EnvironmentKind::Netns | EnvironmentKind::Bridge => Distance::Namespaces,
            EnvironmentKind::VmWire
            | EnvironmentKind::VmSwitch
            | EnvironmentKind::VmVhost
            | EnvironmentKind::VmSriov => Distance::Guests,
            EnvironmentKind::Ssh | EnvironmentKind::VmAttached => Distance::Hosts,
        }
    }

    /// Whether the endpoints run in virtual machines that nearmetal starts.
    pub fn has_guests(self) -> bool {
        self.distance() == Distance::Guests
    }
}
