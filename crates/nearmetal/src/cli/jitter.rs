//! Arguments of `jitter`.

use std::path::PathBuf;

use clap::Args;
use nm_model::Target;
use nm_model::limits;

use crate::cli::cpu_list::CpuList;
use crate::cli::format::ShowArgs;
use crate::cli::number::number;

#[derive(Debug, Args)]
pub struct JitterArgs {
    /// Measuring time of a round, s.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    pub seconds: f64,
    /// CPUs to watch, such as `2-5,8`; all that this process may use by default.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Shortest gap that counts, ns [default: 8 times the smallest step of the clock]
    #[arg(long, value_name = "NS", value_parser = number(1..=limits::JITTER_THRESHOLD_NS_MAX))]
    pub threshold: Option<u64>,
    /// Rounds; five or more give intervals and verdicts [default: 1, or 5 with --target]
    #[arg(long, value_parser = number(1_u32..=1000))]
    pub rounds: Option<u32>,
    /// Limit to judge by, such as "max < 100us" or "time-lost < 0.001"; may be repeated.
    #[arg(long, value_name = "TARGET")]
    pub target: Vec<Target>,
    /// Write result folder with reports.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub show: ShowArgs,
}
