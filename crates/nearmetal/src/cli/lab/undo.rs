//! Options of `lab undo`.

use std::path::PathBuf;

use clap::Args;
use nm_settings::SettingId;

use crate::cli::shared::ROOT;

#[derive(Debug, Args)]
pub struct LabUndoArgs {
    /// Leave these steps' settings as somebody else has changed them.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…", value_parser = SettingId::of_lab)]
    pub keep_theirs: Vec<SettingId>,
    /// Restore these steps' settings whatever they are now.
    #[arg(long, value_delimiter = ',', value_name = "STEP,…", value_parser = SettingId::of_lab)]
    pub force: Vec<SettingId>,
    /// Folder of the journals.
    #[arg(long, value_name = "DIR", default_value = nm_vm::sriov::JOURNAL_FOLDER)]
    pub state: PathBuf,
    #[arg(long, value_name = "DIR", help = ROOT, default_value = "/")]
    pub root: PathBuf,
}
