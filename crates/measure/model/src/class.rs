//! Classes of stacks: what carries the bytes, and whether the two ends may run on two hosts.

use crate::named_enum::named_enum;

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

/// What a stack uses instead of the kernel's network sockets; a greater one needs more of the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// Nothing.
    None,
    /// Memory that both ends map.
    SharedMemory,
    /// Frames of a device.
    AfXdp,
    /// What a launcher brings.
    Launcher,
}
