//! The logs of clients in a recording.

use std::path::{Path, PathBuf};

use nm_model::{Failure, FailureKind};

/// Longest client log, bytes: that of the longest run. A request and its reply take 75 bytes.
pub const CLIENT_LOG_BYTES_MAX: u64 = 80 * nm_model::limits::SAMPLES_MAX;

/// The logs of clients in a folder, in the order of their names.
///
/// # Errors
/// If the folder cannot be read.
pub fn client_logs(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<PathBuf> = vec![];
    for entry in std::fs::read_dir(path).map_err(|error| unreadable(path, error))? {
        let entry = entry.map_err(|error| unreadable(path, error))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_log = name.starts_with("client") && name.ends_with(".log");
        paths.extend(is_log.then(|| entry.path()));
    }
    paths.sort();
    Ok(paths)
}

/// That a file or folder cannot be read, and why.
pub fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    let message = format!("{} cannot be read: {error}", path.display());
    Failure::new(FailureKind::System, message)
}
