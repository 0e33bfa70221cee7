//! Arguments of `jitter`.

use clap::Args;
use nm_model::limits;

use crate::cli::format::ShowArgs;
use crate::cli::number::number;
use crate::cli::shared::{CpusArgs, OutArgs, ROUNDS, TargetArgs};

#[derive(Debug, Args)]
pub struct JitterArgs {
    /// Measuring time of a round, s.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    pub seconds: f64,
    #[command(flatten)]
    pub cpus: CpusArgs,
    /// Shortest gap that counts, ns [default: 8 times the smallest step of the clock]
    #[arg(long, value_name = "NS", value_parser = number(1..=limits::JITTER_THRESHOLD_NS_MAX))]
    pub threshold: Option<u64>,
    /// Do not trace the kernel: names of what took the time are then estimated from counters
    #[arg(long)]
    pub no_trace: bool,
    #[arg(long, help = ROUNDS, value_parser = number(1_u32..=1000))]
    pub rounds: Option<u32>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub out: OutArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}
