//! Arguments of `jitter`.

use std::path::PathBuf;

use clap::Args;
use nm_model::Target;

use crate::cli::cpu_list::CpuList;
use crate::cli::format::ShowArgs;

#[derive(Debug, Args)]
pub struct JitterArgs {
    /// Measuring time of a round, s.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    pub seconds: f64,
    /// CPUs to watch, such as `2-5,8`; all that this process may use by default.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Shortest gap that counts, ns [default: 8 times the smallest step of the clock]
    #[arg(long, value_name = "NS")]
    pub threshold: Option<u64>,
    /// Rounds; five or more give intervals and verdicts [default: 1, or 5 with --target]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
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
