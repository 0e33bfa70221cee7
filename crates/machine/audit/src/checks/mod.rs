//! All checks, in groups.

mod clock;
mod common;
mod container;
mod guest;
mod host;
mod interrupts;
mod isolation;
mod kernel;
mod memory;
mod nic;
mod noise;
mod numa;
mod pci;
mod power;
mod process;
mod silicon;
mod sockets;
mod virtualization;

use crate::check::Check;

/// All checks, in the order in which they are shown.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        virtualization::CHECKS,
        host::CHECKS,
        power::CHECKS,
        silicon::CHECKS,
        isolation::CHECKS,
        noise::CHECKS,
        process::CHECKS,
        numa::CHECKS,
        memory::CHECKS,
        interrupts::CHECKS,
        nic::CHECKS,
        pci::CHECKS,
        kernel::CHECKS,
        clock::CHECKS,
        sockets::CHECKS,
        guest::CHECKS,
        container::CHECKS,
    ]
    .into_iter()
    .flatten()
}

pub(crate) use host::{domains as host_domains, machines as host_machines};
