//! Classes of stacks: what carries the bytes, and whether the two ends may run on two hosts.

use crate::named_enum::named_enum;
use crate::stack::{Launcher, Protocol, Stack, StackPair};

named_enum!(
    /// What carries the bytes of a stack.
    StackClass, "class", {
        /// The kernel's network sockets.
        Kernel = "kernel",
        /// Past the kernel's network stack, in a way that also works between hosts: AF_XDP, and
        /// launchers other than the accelerator.
        Bypass = "bypass",
        /// Only between two ends on one host: shared memory, Unix sockets, the accelerator.
        SameHost = "same-host",
        /// No bytes are moved: the probe uses the processor alone.
        NoNetwork = "no-network",
    }
);

impl Stack {
    /// The class of this end.
    pub fn class(&self) -> StackClass {
        match (self.launcher, self.protocol) {
            (_, Protocol::Cpu) => StackClass::NoNetwork,
            (Some(Launcher::Accel), _) | (_, Protocol::Unix | Protocol::Shm) => {
                StackClass::SameHost
            }
            (Some(Launcher::Onload | Launcher::Vma | Launcher::Smc), _)
            | (None, Protocol::Xdp | Protocol::XdpTcp) => StackClass::Bypass,
            (None, Protocol::Tcp | Protocol::Udp | Protocol::Multicast) => StackClass::Kernel,
        }
    }
}

impl StackPair {
    /// The class of the pair: same-host if one end is, else bypass if one end is.
    pub fn class(&self) -> StackClass {
        self.client.class().max(self.server.class())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_the_class_of_the_end_that_is_further_from_the_kernel() {
        for (text, class) in [
            ("tcp-spin", StackClass::Kernel),
            ("udp-blocking", StackClass::Kernel),
            ("mcast-spin", StackClass::Kernel),
            ("tcp-spin:tcp-blocking", StackClass::Kernel),
            ("xdp-spin", StackClass::Bypass),
            ("tcp-spin:xdp-tcp-spin", StackClass::Bypass),
            ("onload+tcp-spin:tcp-spin", StackClass::Bypass),
            ("vma+udp-spin", StackClass::Bypass),
            ("smc+tcp-epoll", StackClass::Bypass),
            ("accel+tcp-blocking", StackClass::SameHost),
            ("unix-epoll", StackClass::SameHost),
            ("shm-spin", StackClass::SameHost),
            ("cpu-spin", StackClass::NoNetwork),
        ] {
            assert_eq!(text.parse::<StackPair>().unwrap().class(), class, "{text}");
        }
    }
}
