//! Options of `lab run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nm_model::guest::{ExecutionChoice, GuestSpec};

use crate::cli::format::ShowArgs;
use crate::cli::number::number;
use crate::cli::shared::{KERNEL, OUT};

/// Where the ends are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RunEnvironment {
    /// The host itself: two network namespaces.
    Bare,
    /// A datagram link between two guests, without privileges.
    Wire,
    /// Virtual NICs on a Linux bridge.
    Vswitch,
    /// The same with packets moved by the kernel (vhost-net).
    Vhost,
    /// A function of a NIC in each guest.
    Sriov,
}

#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// Environments [default: all that this host can run].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,…")]
    pub env: Vec<RunEnvironment>,
    #[arg(long, value_name = "PATH", help = KERNEL)]
    pub kernel: Option<String>,
    /// How guests are executed: auto, kvm or tcg.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub execution: ExecutionChoice,
    /// Pairs of guests in each environment. The flows of a stream, one each way for every pair, run
    /// between all of them; other probes measure the first pair.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = number(1..=GuestSpec::PAIRS_MAX))]
    pub pairs: u32,
    /// Virtual CPUs of each guest [default: 1, or 2 where the host has cores for them].
    #[arg(long, value_name = "N", value_parser = number(1..=GuestSpec::CPUS_MAX))]
    pub guest_cpus: Option<u32>,
    /// Memory of each guest, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512,
        value_parser = number(GuestSpec::MEMORY_MIB_MIN..=GuestSpec::MEMORY_MIB_MAX))]
    pub memory_mib: u32,
    /// Network device of the host whose functions are passed through; may be given twice.
    #[arg(long, value_name = "LINK")]
    pub nic: Vec<String>,
    /// Measuring time of a round, s.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// Rounds; five or more give intervals.
    #[arg(long, value_parser = number(1_u32..=1000), default_value_t = 5)]
    pub rounds: u32,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub show: ShowArgs,
}
