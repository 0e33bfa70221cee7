//! The option `--format`, which many commands have.

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
