//! Options of `compare` and `trend`.

use clap::{Args, ValueEnum};
use nm_model::Metric;

use super::percent::percent;
use super::shared::OutArgs;

/// Form of what a comparison or a trend writes to stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// For people, at a terminal.
    Text,
    /// For programs.
    Json,
    /// For pull requests and tickets.
    Markdown,
}

#[derive(Debug, Args)]
pub struct DocumentArgs {
    #[command(flatten)]
    pub out: OutArgs,
    /// Form of what is written to stdout.
    #[arg(long, value_enum, default_value = "text")]
    pub format: DocumentFormat,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// What is compared against: result folder, result file, or `reference:NAME`.
    pub a: String,
    /// What is compared.
    pub b: String,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent)]
    pub margin: f64,
    /// Figures that decide the exit code; a trend compares its last result with its first for it.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "median,p99,throughput",
        value_name = "METRIC,…"
    )]
    pub fail_on: Vec<Metric>,
    /// Standard deviation between runs of one system, such as `3%`; 5 % is assumed without it.
    #[arg(long, value_parser = percent, value_name = "PERCENT")]
    pub run_deviation: Option<f64>,
    /// Print all reasons, rows and facts, not the deciding ones alone.
    #[arg(long)]
    pub all: bool,
    /// Only this part of A: `ENVIRONMENT/STACK`, `*` for any.
    #[arg(long, value_name = "PLACE")]
    pub a_on: Option<String>,
    /// Only this part of B.
    #[arg(long, value_name = "PLACE")]
    pub b_on: Option<String>,
    #[command(flatten)]
    pub document: DocumentArgs,
}

#[derive(Debug, Args)]
pub struct TrendArgs {
    /// Results, 2 to 100: result folders, result files, or `reference:NAME`. They are put in the
    /// order of their start.
    #[arg(required = true, value_name = "RESULT")]
    pub results: Vec<String>,
    /// Figures to follow; those that a series cannot have are left out for it.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "median,p99,throughput",
        value_name = "METRIC,…"
    )]
    pub metric: Vec<Metric>,
    /// Only this part of the results: `ENVIRONMENT/STACK`, `*` for any.
    #[arg(long, value_name = "PLACE")]
    pub on: Option<String>,
    /// Figures that decide the exit code; a trend compares its last result with its first for it.
    #[arg(long, value_delimiter = ',', value_name = "METRIC,…")]
    pub fail_on: Vec<Metric>,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent, requires = "fail_on")]
    pub margin: f64,
    #[command(flatten)]
    pub document: DocumentArgs,
}
