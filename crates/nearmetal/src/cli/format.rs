//! The options `--format`, `--summary` and `--quiet`, which many commands have.

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Args)]
pub struct FormatArgs {
    /// Form of what is written to stdout.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// How a result is shown.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub extent: ExtentArgs,
}

/// How much of a result is shown.
#[derive(Debug, Args)]
pub struct ExtentArgs {
    /// Only the verdict, the targets and the report's path.
    #[arg(long, conflicts_with = "quiet")]
    pub summary: bool,
    /// Only the verdict and the report's path, and no progress; errors still go to stderr.
    #[arg(long)]
    pub quiet: bool,
}
