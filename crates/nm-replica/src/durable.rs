//! Names of files that survive a crash of the machine.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes the names in a folder durable.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Gives a file that is durable its final name, durably.
///
/// # Errors
/// The system's error.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(to.parent().unwrap_or(Path::new("/")))
}
