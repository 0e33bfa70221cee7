//! Environments: where the endpoints of a measurement run.

use crate::stack::named_enum;

named_enum!(
    /// Where the endpoints run.
    EnvironmentKind, "environment", {
        /// Two processes on this host, over the loopback interface.
        Loopback = "loopback",
        /// Two network namespaces back to back over a veth pair.
        Netns = "netns",
        /// Two network namespaces over a Linux bridge: the shape of vNIC and virtual switch.
        Bridge = "bridge",
        /// Two virtual machines.
        Vm = "vm",
        /// Two hosts reached by ssh.
        Ssh = "ssh",
    }
);
