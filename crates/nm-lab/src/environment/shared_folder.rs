//! A folder for the handshake sockets of accelerated agents in different network namespaces. Files
//! do not end with the processes that use them, so a cleanup process removes the folder. It
//! outlives this process: it notices the end of it by the end of a pipe.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nm_model::{Failure, FailureKind};

use crate::accelerator::SHARE_BYTES_MAX;

/// A folder with access for this user only. It is removed when this value is dropped, and when this
/// process ends for any reason.
#[derive(Debug)]
pub struct SharedFolder {
    path: PathBuf,
    /// Removes the folder when its input ends.
    cleanup: Child,
}

impl SharedFolder {
    /// Creates a folder and starts its cleanup process: `lab_hold` is the command of that
    /// subcommand.
    ///
    /// # Errors
    /// If the folder cannot be created or the process cannot be started.
    pub fn new(mut lab_hold: Command) -> Result<SharedFolder, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nearmetal-share-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let failed = |what: &str, error: &io::Error| {
            let message = format!("cannot {what} {}: {error}", path.display());
            Failure::new(FailureKind::System, message)
        };
        if path.as_os_str().len() > SHARE_BYTES_MAX {
            let message = format!("{} is too long a path for sockets in it", path.display());
            return Err(Failure::new(FailureKind::NotAvailable, message)
                .hint("set TMPDIR to a folder with a short path"));
        }
        // Left by an earlier process with this id. If it belongs to another user, creating it
        // fails.
        let _ = remove(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|e| failed("create", &e))?;
        // Ctrl-C does not reach a process group of its own.
        let cleanup = lab_hold.arg(&path).process_group(0);
        let cleanup = cleanup.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match cleanup.spawn() {
            Ok(cleanup) => Ok(SharedFolder { path, cleanup }),
            Err(error) => {
                let failure = failed("start the cleanup process of", &error);
                let _ = remove(&path);
                Err(failure)
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        let _ = self.cleanup.wait();
        // The cleanup process may have been killed.
        let _ = remove(&self.path);
    }
}

/// Removes the folder and the sockets in it.
pub fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        let _ = fs::remove_file(entry.path());
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folder_is_private_and_removed_on_drop() {
        // Like the cleanup process, `cat` ends with its input.
        let folder = SharedFolder::new(Command::new("cat")).unwrap();
        let path = folder.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("socket"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn failed_start_of_cleanup_process_is_reported() {
        let failure = SharedFolder::new(Command::new("/nothing/of/this/name")).unwrap_err();
        assert!(failure.message.contains("the cleanup process of"), "{failure}");
    }
}
