//! What an error of a file is to the user: its kind, a sentence and what to do.

use std::io::{self, ErrorKind};
use std::path::Path;

use nm_model::{Failure, FailureKind};

/// The failure of doing `what` with a file of a result folder.
pub fn failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => FailureKind::Permission,
        ErrorKind::NotFound | ErrorKind::NotADirectory => FailureKind::BadRequest,
        // No UTF-8, a device, too long.
        ErrorKind::InvalidData | ErrorKind::InvalidInput => FailureKind::BadRequest,
        // A file, where a folder is to be made.
        ErrorKind::AlreadyExists => FailureKind::Conflict,
        _ => FailureKind::System,
    };
    let failure = Failure::new(kind, format!("cannot {what} {}: {error}", path.display()));
    match error.kind() {
        ErrorKind::AlreadyExists => failure.hint("name another folder with --out"),
        ErrorKind::StorageFull | ErrorKind::FileTooLarge | ErrorKind::QuotaExceeded => {
            failure.hint("make room there, or choose another folder with --out")
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            failure.hint("choose a folder that you may write to with --out")
        }
        _ => failure,
    }
}
