//! Arguments of `nearmetal accel`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::format::FormatArgs;

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
    Status(FormatArgs),
}

#[derive(Debug, Args)]
pub struct AccelRunArgs {
    /// Longest spin before a sleep, µs; 0 sleeps at once. Found by itself if not given.
    #[arg(long, value_name = "N")]
    pub spin_us: Option<u32>,
    /// Most connections of a process in shared memory, each of which takes up to 516 KiB; further
    /// ones stay on the kernel.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub connections_max: u32,
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
