//! Options of `lab image`.

use clap::Args;

use crate::cli::format::FormatArgs;

#[derive(Debug, Args)]
pub struct LabImageArgs {
    /// List the files of the guests' file system.
    #[arg(long, required = true)]
    pub list: bool,
    /// Kernel of the guests, as for `lab run`.
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}
