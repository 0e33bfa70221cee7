//! All checks, in groups.

mod clock;
mod common;
mod container;
mod firmware;
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

use nm_model::finding::Finding;

use crate::check::Check;
use crate::machine::Machine;

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

/// Checks of what a management controller says, where one was asked.
pub fn of_firmware() -> impl Iterator<Item = &'static Check> {
    firmware::CHECKS.iter()
}

/// The findings of the checks of every machine, and of its firmware where a controller was asked.
pub(crate) fn findings(machine: &Machine<'_>) -> Vec<Finding> {
    let asked = machine.snapshot.calls.firmware.is_some();
    let firmware = of_firmware().filter(|_| asked);
    all().chain(firmware).map(|check| check.finding(machine)).collect()
}

pub(crate) use host::{domains as host_domains, machines as host_machines};
