//! Options of `lab plan`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::format::FormatArgs;

#[derive(Debug, Args)]
pub struct LabPlanArgs {
    /// Files below DIR in place of /proc, /sys, /dev and /boot: a recorded tree.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Kernel of the guests, as of `lab run` [default: $NEARMETAL_GUEST_KERNEL, or the host's own].
    #[arg(long, value_name = "PATH", conflicts_with = "root")]
    pub kernel: Option<String>,
    /// Time KVM (about half a second): whether it runs guests natively is not seen otherwise.
    #[arg(long, conflicts_with = "root")]
    pub probe: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}
