//! Options of `tune`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use nm_model::limits;
use nm_model::{Metric, StackPair};
use nm_settings::SettingId;
use nm_settings::target::LinkName;
use nm_ssh::quoted;
use nm_stats::experiment::{ROUNDS_DEFAULT, ROUNDS_MAX, ROUNDS_MIN};
use nm_tune::record::RunId;

use super::format::FormatArgs;
use super::number::number;
use super::server_address::ServerAddress;
use super::shared::{CpusArgs, OUT, ROOT, RUN_NAME};

/// Longest time until a run is undone, s: one day.
const CONFIRM_S_MAX: u64 = 86_400;

#[derive(Debug, Subcommand)]
pub enum TuneCommand {
    /// Steps, what each would change, and why. Nothing is written.
    Plan(PlanArgs),
    /// Apply steps; a journal keeps what was there before.
    Apply(ApplyArgs),
    /// Put back what was there before a run.
    Undo(UndoArgs),
    /// Keep what `apply --confirm-within` has changed.
    Confirm(ConfirmArgs),
    /// Measure with and without a step in turn, and keep it only if it helps.
    #[command(after_help = "Examples:\n  \
        nearmetal tune ab --step guest.haltpoll --percentile p99\n  \
        nearmetal tune ab --step nic.coalesce --link eth0 --server 192.0.2.1 --rounds 60\n\n\
        Exit codes: 0 kept · 1 not kept · 3 the rounds show nothing")]
    Ab(AbArgs),
    /// Write files for other tools that make the steps permanent; nothing is installed.
    Emit(EmitArgs),
    /// The runs and where each stands.
    Status(StatusArgs),
    /// Undoes a run at its deadline; started by `apply --confirm-within`.
    #[command(hide = true)]
    UndoAtDeadline(DeadlineArgs),
}

/// Sets of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Low and steady latency.
    Latency,
}

#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// Set of steps.
    #[arg(long, value_enum, default_value = "latency")]
    pub profile: Profile,
    /// Only these steps.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub only: Vec<SettingId>,
    /// Security-relevant steps that may be applied.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub allow: Vec<SettingId>,
    #[command(flatten)]
    pub cpus: CpusArgs,
    /// Network link of the application.
    #[arg(long, value_name = "NAME")]
    pub link: Option<LinkName>,
}

#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Folder of the journals.
    #[arg(long, value_name = "DIR", default_value = nm_tune::journal::FOLDER)]
    pub state: PathBuf,
    #[command(flatten)]
    pub root: RootArgs,
}

impl PlaceArgs {
    /// The command `nearmetal tune VERB RUN` for the run of these folders, for a shell.
    pub fn command(&self, verb: &str, run: &RunId) -> String {
        let mut text = format!("nearmetal tune {verb} {run}");
        if self.state != Path::new(nm_tune::journal::FOLDER) {
            text += &format!(" --state {}", quoted(&self.state.to_string_lossy()));
        }
        if let Some(root) = &self.root.root {
            text += &format!(" --root {}", quoted(&root.to_string_lossy()));
        }
        text
    }
}

#[derive(Debug, Args)]
pub struct RootArgs {
    #[arg(long, value_name = "DIR", help = ROOT)]
    pub root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    #[command(flatten)]
    pub root: RootArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// What reads the emitted files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EmitKind {
    /// A profile of TuneD.
    Tuned,
    /// A file of sysctl.d.
    Sysctl,
    /// A service that applies and undoes the steps, and a .link file.
    Systemd,
    /// Words of the kernel's command line.
    Grub,
    /// A slice with CPUs of its own.
    Cpuset,
}

#[derive(Debug, Args)]
pub struct EmitArgs {
    /// What reads the files.
    #[arg(value_enum)]
    pub kind: EmitKind,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: PathBuf,
    #[command(flatten)]
    pub selection: SelectionArgs,
    #[command(flatten)]
    pub root: RootArgs,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Undo the run after S seconds unless `nearmetal tune confirm` comes in time.
    #[arg(long, value_name = "S", value_parser = number(1_u64..=CONFIRM_S_MAX))]
    pub confirm_within: Option<u64>,
    #[arg(long, value_name = "NAME", help = RUN_NAME)]
    pub run_name: Option<RunId>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where an experiment measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AbEnvironment {
    /// Both ends on this host.
    Loopback,
    /// Two network namespaces.
    Netns,
}

#[derive(Debug, Args)]
pub struct AbArgs {
    /// The step.
    #[arg(long)]
    pub step: SettingId,
    /// The figure that must become better: a percentile or `median`.
    #[arg(long, default_value = "p99", value_name = "METRIC")]
    pub percentile: Metric,
    /// Rounds without and as many with the step; 30 find a change of 5 % if rounds differ by 4 %.
    #[arg(long, default_value_t = ROUNDS_DEFAULT as u64,
        value_parser = number(ROUNDS_MIN as u64..=ROUNDS_MAX as u64))]
    pub rounds: u64,
    /// Where the ping-pong runs.
    #[arg(long, value_enum, default_value = "loopback", conflicts_with = "server")]
    pub environment: AbEnvironment,
    /// Measure to `nearmetal pingpong server` on another machine: HOST or IP address, with :PORT.
    #[arg(long, value_name = "HOST")]
    pub server: Option<ServerAddress>,
    /// Stack of both ends.
    #[arg(long, default_value = "tcp-blocking")]
    pub stack: StackPair,
    /// Message size, bytes.
    #[arg(long, default_value_t = 64, value_name = "BYTES",
        value_parser = number(1..=limits::SIZE_BYTES_MAX))]
    pub size: u32,
    /// Measuring time of a round, ms.
    #[arg(long, default_value_t = 1000, value_parser = number(1..=limits::MS_MAX))]
    pub ms: u64,
    /// The step, if it is security-relevant and may be applied.
    #[arg(long, value_name = "STEP")]
    pub allow: Option<SettingId>,
    #[command(flatten)]
    pub cpus: CpusArgs,
    /// Network link of the application.
    #[arg(long, value_name = "NAME")]
    pub link: Option<LinkName>,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Run; the latest that is not closed if not given.
    pub run: Option<RunId>,
    #[arg(long, value_name = "NAME", help = RUN_NAME, conflicts_with = "run")]
    pub run_name: Option<RunId>,
    /// Leave these steps' settings as somebody else has changed them.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub keep_theirs: Vec<SettingId>,
    /// Restore these steps' settings whatever they are now.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub force: Vec<SettingId>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Run; the one that awaits confirmation if not given.
    pub run: Option<RunId>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Folder of the journals.
    #[arg(long, value_name = "DIR", default_value = nm_tune::journal::FOLDER)]
    pub state: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct DeadlineArgs {
    /// Run.
    pub run: RunId,
    /// Seconds until it is undone.
    pub seconds: u64,
    #[command(flatten)]
    pub place: PlaceArgs,
}
