//! Arguments of `nearmetal accel`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use nm_ring::variables::{self, Values, Variable};

use crate::cli::format::FormatArgs;
use crate::cli::number::number;

#[derive(Debug, Args)]
pub struct AccelArgs {
    #[command(subcommand)]
    pub command: Option<AccelCommand>,
    #[command(flatten)]
    pub run: AccelRunArgs,
}

#[derive(Debug, Subcommand)]
pub enum AccelCommand {
    /// Each connection of the accelerated programs that run: where it is, and why.
    Status(AccelStatusArgs),
    /// Whether a program would be accelerated, without running it: what would keep it on the
    /// kernel, and what to do.
    #[command(after_help = "Example:\n  nearmetal accel explain -- redis-server --port 6379\n\n\
        Exit codes: 0 it would be accelerated · 4 it would stay on the kernel · 126 it cannot be \
        executed · 127 it is not there · 2 usage")]
    Explain(AccelExplainArgs),
    /// The named profiles with what each sets, and every variable with its default and range.
    Profiles(FormatArgs),
}

#[derive(Debug, Args)]
pub struct AccelStatusArgs {
    /// Show instead what happened in each of so many seconds: bytes by either way, spins in vain,
    /// sleeps, fallbacks and returns of all connections.
    #[arg(long, value_name = "N", value_parser = number(1_u32..=86_400))]
    pub seconds: Option<u32>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct AccelExplainArgs {
    #[command(flatten)]
    pub format: FormatArgs,
    /// Program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct AccelRunArgs {
    /// Named set of values for what is given neither here nor in the environment: see `nearmetal
    /// accel profiles`.
    #[arg(long, value_name = "NAME", value_parser = profile())]
    pub profile: Option<String>,
    /// Longest spin before a sleep, µs; 0 sleeps at once. Found by itself if not given.
    #[arg(long, value_name = "N", value_parser = number_of(&variables::SPIN_US))]
    pub spin_us: Option<u32>,
    /// Most connections of a process in shared memory, each of which takes up to 516 KiB; further
    /// ones stay on the kernel. 4096 if not given.
    #[arg(long, value_name = "N", value_parser = number_of(&variables::MAX))]
    pub connections_max: Option<u32>,
    /// Stay in front of the program and write a report to stderr when it has ended: each TCP
    /// socket, where its bytes went, and why.
    #[arg(long)]
    pub stats: bool,
    /// Which ports and programs are accelerated, and how long they spin.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Folder in which programs of different network namespaces meet: this user's alone (mode
    /// 700), made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub share: Option<PathBuf>,
    /// Group whose members' processes may share memory with the program.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
    /// Program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// The numbers that a variable may have.
fn number_of(variable: &Variable) -> impl clap::builder::TypedValueParser<Value = u32> {
    let (min, max) = match variable.values {
        Values::Number(min, max) => (min, max),
        _ => (0, u32::MAX),
    };
    number(min..=max)
}

fn profile() -> PossibleValuesParser {
    PossibleValuesParser::new(variables::PROFILES.iter().map(|profile| profile.name))
}
