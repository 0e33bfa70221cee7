//! Options of `lab plan`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::format::FormatArgs;
use crate::cli::shared::{KERNEL, ROOT};

#[derive(Debug, Args)]
pub struct LabPlanArgs {
    #[arg(long, value_name = "DIR", help = ROOT)]
    pub root: Option<PathBuf>,
    #[arg(long, value_name = "PATH", help = KERNEL, conflicts_with = "root")]
    pub kernel: Option<String>,
    /// Time KVM (about half a second): whether it runs guests natively is not seen otherwise.
    #[arg(long, conflicts_with = "root")]
    pub probe: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}
