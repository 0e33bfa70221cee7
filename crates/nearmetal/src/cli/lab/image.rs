//! Options of `lab image`.

use clap::Args;

use crate::cli::format::FormatArgs;
use crate::cli::shared::KERNEL;

#[derive(Debug, Args)]
pub struct LabImageArgs {
    /// List the files of the guests' file system.
    #[arg(long, required = true)]
    pub list: bool,
    #[arg(long, value_name = "PATH", help = KERNEL)]
    pub kernel: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}
