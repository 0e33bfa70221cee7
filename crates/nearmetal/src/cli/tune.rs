//! Options of `tune`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nm_model::words::UnknownWord;
use nm_sys::hostfiles::parse_list;
use nm_tune::record::RunId;
use nm_tune::step::StepId;
use nm_tune::target::LinkName;

use super::format::FormatArgs;

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
    pub only: Vec<StepId>,
    /// Security-relevant steps that may be applied.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub allow: Vec<StepId>,
    /// CPUs of the application, such as `2-3,6`.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Network link of the application.
    #[arg(long, value_name = "NAME")]
    pub link: Option<LinkName>,
}

/// A list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

impl std::str::FromStr for CpuList {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<CpuList, UnknownWord> {
        match parse_list(text) {
            Some(cpus) if !cpus.is_empty() && cpus.len() <= nm_model::limits::CPUS_MAX => {
                Ok(CpuList(cpus))
            }
            _ => Err(UnknownWord::new("list of CPUs", text, &["2", "2-3", "2-3,6"])),
        }
    }
}

#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Folder of the journals.
    #[arg(long, value_name = "DIR", default_value = nm_tune::journal::FOLDER)]
    pub state: PathBuf,
    #[command(flatten)]
    pub root: RootArgs,
}

#[derive(Debug, Args)]
pub struct RootArgs {
    /// Files below DIR in place of /proc and /sys: a recorded tree. Nothing of this machine is
    /// read or changed.
    #[arg(long, value_name = "DIR")]
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

#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Undo the run after S seconds unless `nearmetal tune confirm` comes in time.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=CONFIRM_S_MAX))]
    pub confirm_within: Option<u64>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Run; the latest that is not closed if not given.
    pub run: Option<RunId>,
    /// Leave these steps' settings as somebody else has changed them.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub keep_theirs: Vec<StepId>,
    /// Restore these steps' settings whatever they are now.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…")]
    pub force: Vec<StepId>,
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
