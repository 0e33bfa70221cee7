//! Arguments of `watch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::format::FormatArgs;
use super::number::number;
use super::span::span;

#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(subcommand)]
    pub command: Option<WatchCommand>,
    #[command(flatten)]
    pub run: Option<WatchRunArgs>,
}

#[derive(Debug, Subcommand)]
pub enum WatchCommand {
    /// What the trials in a folder show; also while a watch runs.
    Status {
        /// Folder of `--keep`.
        folder: PathBuf,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Write a page over time: figures, changes of level, events.
    Report {
        /// Folder of `--keep`.
        folder: PathBuf,
        /// The page, an HTML file.
        #[arg(long, value_name = "FILE", default_value = "watch.html")]
        out: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct WatchRunArgs {
    /// Built-in plan (see `nearmetal plans`) or a file, with `:NAME` a part that it defines. It is
    /// read again for each trial.
    #[arg(value_name = "PLAN")]
    pub plan: String,
    /// Folder of the trials, which is created; the next start goes on in it.
    #[arg(long, value_name = "DIR")]
    pub keep: PathBuf,
    /// Time from the start of one trial to that of the next, such as `10m`.
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = span("1s", "7d"))]
    pub every: Duration,
    /// How long to watch, such as `30d`; until Ctrl-C without it.
    #[arg(long = "for", value_name = "SPAN", value_parser = span("1s", "3650d"))]
    pub duration: Option<Duration>,
    /// One trial, then end: for timers of the system.
    #[arg(long, conflicts_with = "duration")]
    pub once: bool,
    /// Command of the shell for each change for the worse, with the sentence in $NEARMETAL_ALERT;
    /// it is ended after a minute.
    #[arg(long, value_name = "COMMAND")]
    pub on_alert: Option<String>,
    /// Days that trials are kept.
    #[arg(long, default_value_t = 400, value_parser = number(1_u32..=3650))]
    pub log_days: u32,
    /// Largest log of the trials, MiB.
    #[arg(long, default_value_t = 64, value_parser = number(1_u64..=1024))]
    pub log_mib: u64,
}
