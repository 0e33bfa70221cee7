//! Options of `baseline`, and those that `qualify` shares with it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nm_judge::BASELINES;

use super::format::FormatArgs;
use super::number::number;
use super::percent::percent;
use super::shared::{BASELINE, RUN_DEVIATION};

#[derive(Debug, Subcommand)]
pub enum BaselineCommand {
    /// Accept a run: write its primary figures as a small file.
    #[command(after_help = "Example:\n  nearmetal baseline save results/today --to baselines")]
    Save {
        /// Result folder or result file.
        result: String,
        /// A folder, which is created and gets a file of its own for each run; or a new file that
        /// ends with `.json`.
        #[arg(long, value_name = "FILE|DIR")]
        to: PathBuf,
    },
    /// The accepted runs of a folder, oldest first.
    List {
        /// Folder or file.
        baselines: PathBuf,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Test a run against the accepted runs of its machine.
    #[command(after_help = "Example:\n  \
        nearmetal baseline gate results/today --baseline baselines && \\\n    \
        nearmetal baseline save results/today --to baselines\n\n\
        Exit codes: 0 not slower by more than the gate finds · 1 slower · 3 undecided")]
    Gate {
        /// Result folder or result file.
        result: String,
        #[arg(long, value_name = "FILE|DIR", help = BASELINE)]
        baseline: PathBuf,
        #[command(flatten)]
        options: GateArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// How a run is tested.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Most accepted runs that count, the last ones.
    #[arg(
        long,
        default_value_t = BASELINES,
        value_parser = number(1_usize..=1000),
        requires = "baseline"
    )]
    pub last: usize,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent, requires = "baseline")]
    pub margin: f64,
    #[arg(
        long,
        value_parser = percent,
        value_name = "PERCENT",
        requires = "baseline",
        help = RUN_DEVIATION
    )]
    pub run_deviation: Option<f64>,
}
