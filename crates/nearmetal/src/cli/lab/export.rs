//! Options of `lab export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nm_model::guest::GuestSpec;

use crate::cli::number::number;
use crate::cli::shared::{KERNEL, OUT, ROOT};

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// What the files are for.
    #[arg(value_enum)]
    pub stack: ExportStack,
    /// What connects the guests.
    #[arg(value_enum)]
    pub environment: ExportEnvironment,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: PathBuf,
    #[arg(long, value_name = "PATH", help = KERNEL)]
    pub kernel: Option<String>,
    /// Memory of each guest, MiB.
    #[arg(long, value_name = "MIB", default_value_t = GuestSpec::default().memory_mib,
        value_parser = number(GuestSpec::MEMORY_MIB_MIN..=GuestSpec::MEMORY_MIB_MAX))]
    pub memory_mib: u32,
    /// Virtual CPUs of each guest.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = number(1..=GuestSpec::CPUS_MAX))]
    pub vcpus: u32,
    /// For sriov: a network device whose virtual functions the guests get, or, given twice, the
    /// device that each gets: a link or a PCI address.
    #[arg(long, value_name = "NAME")]
    pub nic: Vec<String>,
    #[arg(long, default_value = "/", value_name = "DIR", help = ROOT)]
    pub root: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportStack {
    /// libvirt: domains, a network, and the commands of virsh.
    Libvirt,
    /// QEMU alone: a shell script for each guest, and two that connect them.
    Qemu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportEnvironment {
    /// Datagrams between the two QEMUs.
    Wire,
    /// A bridge, packets copied by QEMU.
    Vswitch,
    /// A bridge, packets copied by the kernel.
    Vhost,
    /// Virtual functions of a network device, or two devices.
    Sriov,
    /// A region of memory in common, and datagrams.
    SharedMemory,
}
