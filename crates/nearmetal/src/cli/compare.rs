//! Options of `compare` and `trend`.

use clap::{Args, ValueEnum};
use nm_model::Metric;

use super::number::number;
use super::percent::percent;
use super::shared::{ONLY, OutArgs, PLAN, RUN_DEVIATION};

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
    #[arg(required_unless_present = "against", conflicts_with = "against")]
    pub a: Option<String>,
    /// What is compared.
    #[arg(required_unless_present = "against", conflicts_with = "against")]
    pub b: Option<String>,
    #[command(flatten)]
    pub interleaved: InterleavedArgs,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent)]
    pub margin: f64,
    /// Figures that decide the exit code; those of a trend by the last result of each machine.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "median,p99,throughput",
        value_name = "METRIC,…"
    )]
    pub fail_on: Vec<Metric>,
    #[arg(
        long,
        value_parser = percent,
        value_name = "PERCENT",
        conflicts_with = "against",
        help = RUN_DEVIATION
    )]
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

/// Both sides measured in turn, instead of two results.
#[derive(Debug, Args)]
pub struct InterleavedArgs {
    /// Measure this host and another side in turn, and compare them: another program by its path,
    /// another plan, or a host for ssh that has nearmetal in its PATH.
    #[arg(long, value_name = "HOST|PROGRAM|PLAN")]
    pub against: Option<String>,
    #[arg(
        long,
        default_value = "quick",
        value_name = "NAME|FILE[:PART]|-",
        conflicts_with = "a",
        help = PLAN
    )]
    pub plan: String,
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "WORD,…",
        conflicts_with = "a",
        help = ONLY
    )]
    pub only: Vec<String>,
    /// With --against: rounds of each side; below five nothing can be decided.
    #[arg(long, default_value = "5", value_parser = number(2_u32..=1000), conflicts_with = "a")]
    pub rounds: u32,
}

#[derive(Debug, Args)]
pub struct TrendArgs {
    /// Results, 2 to 100: result folders, result files, or `reference:NAME`. Those of one machine
    /// are put in the order of their start; several machines are several series.
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
    /// Figures that decide the exit code; those of a trend by the last result of each machine.
    #[arg(long, value_delimiter = ',', value_name = "METRIC,…")]
    pub fail_on: Vec<Metric>,
    /// Ratio that counts as equal, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent, requires = "fail_on")]
    pub margin: f64,
    #[command(flatten)]
    pub document: DocumentArgs,
}
