//! Options of `firmware`, and those that name a management controller.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::format::FormatArgs;

/// `--bmc`.
const BMC: &str = "The host's management controller: a name, an address, or https://host:port";

/// Where this machine's management controller is, and who asks it.
#[derive(Debug, Args)]
pub struct BmcArgs {
    #[arg(long, value_name = "HOST", help = BMC, conflicts_with_all = ["snapshot", "root"])]
    pub bmc: Option<String>,
    #[command(flatten)]
    pub access: BmcAccessArgs,
}

/// The same where nothing can be done without it.
#[derive(Debug, Args)]
pub struct NamedBmcArgs {
    #[arg(long, value_name = "HOST", help = BMC)]
    pub bmc: String,
    #[command(flatten)]
    pub access: BmcAccessArgs,
}

#[derive(Debug, Args)]
pub struct BmcAccessArgs {
    /// File with one line `user:password` for the controller, which only its owner can read.
    #[arg(long, value_name = "FILE", requires = "bmc")]
    pub bmc_login: Option<PathBuf>,
    /// File of the authority that has signed the controller's certificate.
    #[arg(long, value_name = "FILE", requires = "bmc", conflicts_with = "bmc_pin")]
    pub bmc_ca: Option<PathBuf>,
    /// The controller's public key as its SHA-256 sum in base64, where nobody has signed it.
    #[arg(long, value_name = "SUM", requires = "bmc")]
    pub bmc_pin: Option<String>,
    /// Which host, if the controller has several.
    #[arg(long, value_name = "ID", requires = "bmc")]
    pub bmc_system: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum FirmwareCommand {
    /// What the settings are, what waits for a restart, and what differs from a profile.
    #[command(after_help = "Examples:\n  \
        nearmetal firmware show --bmc host7-bmc --bmc-login login\n  \
        nearmetal firmware show --bmc host7-bmc --bmc-login login --wanted wanted.toml\n\n\
        Exit code with --wanted: 1 if a setting differs, 3 if the firmware lacks one.\n\
        Reads only.")]
    Show(FirmwareShowArgs),
    /// Have settings changed at the next restart of the host.
    #[command(after_help = "Example:\n  \
        nearmetal firmware stage ProcCStates=Disabled SysProfile=PerfOptimized \\\n    \
        --bmc host7-bmc --bmc-login login --undo-file before.json")]
    Stage(FirmwareStageArgs),
    /// Have the settings put back at the next restart that `stage` has changed.
    #[command(after_help = "Example:\n  \
        nearmetal firmware undo before.json --bmc host7-bmc --bmc-login login")]
    Undo(FirmwareUndoArgs),
}

#[derive(Debug, Args)]
pub struct FirmwareShowArgs {
    #[command(flatten)]
    pub bmc: NamedBmcArgs,
    /// Wanted settings: a file of lines `NAME = "value"`.
    #[arg(long, value_name = "FILE")]
    pub wanted: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct FirmwareStageArgs {
    /// Settings and their values, by the maker's names.
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub bmc: NamedBmcArgs,
    /// New file for what the settings are now, which `undo` reads.
    #[arg(long, value_name = "FILE")]
    pub undo_file: PathBuf,
}

#[derive(Debug, Args)]
pub struct FirmwareUndoArgs {
    /// The file that `stage` has written.
    pub file: PathBuf,
    #[command(flatten)]
    pub bmc: NamedBmcArgs,
}
