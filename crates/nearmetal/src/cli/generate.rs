//! Options of `nearmetal generate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nm_model::limits;

use crate::cli::number::number;
use crate::cli::shared::ROOT;

#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Parts of nova.conf and the commands for a flavor (Nova 26, Zed, or later).
    Openstack {
        #[command(flatten)]
        guest: GuestArgs,
        /// Only one part; all of them follow each other otherwise.
        #[arg(long, value_enum)]
        part: Option<OpenstackPart>,
    },
    /// A domain of libvirt.
    Libvirt {
        #[command(flatten)]
        guest: GuestArgs,
        /// Image of its disk: qcow2 by that ending, else raw. Without one the domain has no disk.
        #[arg(long, value_name = "PATH")]
        disk: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpenstackPart {
    /// `nova.conf` of the compute node.
    Compute,
    /// `nova.conf` of the nodes with the API and the scheduler.
    Controller,
    /// Commands for the flavor.
    Flavor,
}

#[derive(Debug, Args)]
pub struct GuestArgs {
    /// Virtual CPUs of each guest.
    #[arg(long, value_name = "N", value_parser = number(1..=limits::GUEST_VCPUS_MAX))]
    pub vcpus: u32,
    /// Memory, as in `32GiB`.
    #[arg(long, value_name = "SIZE")]
    pub memory: String,
    /// Network device that the guest gets: a link or a PCI address. All is placed on its node.
    #[arg(long, value_name = "LINK|ADDRESS")]
    pub nic: String,
    /// Size of the pages of the memory.
    #[arg(long, value_enum, default_value = "1GiB", value_name = "SIZE")]
    pub page: PageArg,
    /// Cores of the node that are kept for such guests; all but one without this.
    #[arg(long, value_name = "N")]
    pub dedicated_cores: Option<u32>,
    /// Schedule the vCPUs in real time, except the first one.
    #[arg(long)]
    pub realtime: bool,
    /// Name of the guest, the flavor and the alias.
    #[arg(long, default_value = "latency")]
    pub name: String,
    #[arg(long, default_value = "/", value_name = "DIR", help = ROOT)]
    pub root: PathBuf,
    /// Write to this new file instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageArg {
    #[value(name = "2MiB")]
    Mib2,
    #[value(name = "1GiB")]
    Gib1,
}
