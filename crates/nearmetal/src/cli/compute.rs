//! Arguments of `compute`.

use clap::{Args, Subcommand};
use nm_model::compute::{Layout, Workload};

use crate::cli::format::{FormatArgs, ShowArgs};
use crate::cli::number::number;
use crate::cli::shared::{CpusArgs, OutArgs, TargetArgs};

#[derive(Debug, Args)]
pub struct ComputeArgs {
    #[command(subcommand)]
    pub command: Option<ComputeCommand>,
    #[command(flatten)]
    pub run: ComputeRunArgs,
}

#[derive(Debug, Subcommand)]
pub enum ComputeCommand {
    /// Find CPUs that share a core, by what they take from each other.
    #[command(
        long_about = "Runs the arithmetic workload on each pair of CPUs together and on each of \
            the two alone, in turn, and says which pairs share a core. The kernel shows what the \
            hypervisor tells it, which may be wrong.\n\nA repeat takes some 5 ms for each CPU and \
            each pair on an idle machine: half a second for all 30 repeats on 2 CPUs, 6 s on 8. \
            Where other programs use the CPUs it takes up to ten times as long, and what was \
            disturbed does not count."
    )]
    Pairs(PairsArgs),
}

#[derive(Debug, Args)]
pub struct ComputeRunArgs {
    /// Threads on each core x cores, such as `1x1,1xN,2x4`; cores come in the order of --cpus.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1x1,1xN,Nx1,2xN")]
    pub layout: Vec<Layout>,
    /// pi (built in), bc (the installed one, as in the published study), memory, alu.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "pi")]
    pub workload: Vec<Workload>,
    /// Jobs of each thread; all layouts or pairs take turns.
    #[arg(long, default_value_t = 10, value_parser = number(1_u32..=1000))]
    pub repeats: u32,
    #[command(flatten)]
    pub cpus: CpusArgs,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub out: OutArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct PairsArgs {
    #[command(flatten)]
    pub cpus: CpusArgs,
    /// Jobs of each thread; all layouts or pairs take turns.
    #[arg(long, default_value_t = 30, value_parser = number(5_u32..=1000))]
    pub repeats: u32,
    #[command(flatten)]
    pub format: FormatArgs,
}
