//! A folder for the handshake sockets of accelerated agents in different network namespaces. Files
//! do not end with the processes that use them, so a cleanup process removes the folder. It
//! outlives this process: it notices the end of it by the end of a pipe.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nm_model::{Failure, FailureKind};
use nm_sys::private_folder::{FolderError, PrivateFolder, remove_abandoned};

use nm_ring::variables::SHARE_BYTES_MAX;

/// How the name of each such folder begins.
const PREFIX: &str = "nearmetal-share-";

/// A folder with access for this user only. It is removed when this value is dropped, and when this
/// process ends for any reason.
#[derive(Debug)]
pub struct SharedFolder {
    folder: PrivateFolder,
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
        let all = std::env::temp_dir();
        // Left by runs whose cleanup process was killed as well.
        remove_abandoned(&all, PREFIX);
        let folder = PrivateFolder::create(&all, PREFIX)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        let path = folder.path();
        if path.as_os_str().len() > SHARE_BYTES_MAX {
            let message = format!("{} is too long a path for sockets in it", path.display());
            return Err(Failure::new(FailureKind::NotAvailable, message)
                .hint("set TMPDIR to a folder with a short path"));
        }
        // Ctrl-C does not reach a process group of its own.
        let cleanup = lab_hold.arg(path).process_group(0);
        let cleanup = cleanup.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let cleanup = cleanup.spawn().map_err(|error| {
            let what = format!("cannot start the cleanup process of {}: {error}", path.display());
            Failure::new(FailureKind::System, what)
        })?;
        Ok(SharedFolder { folder, cleanup })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        // The cleanup process may have been killed; then the folder is removed with this value.
        let _ = self.cleanup.wait();
    }
}

/// The cleanup process: keeps the folder `path` until `wait` returns, and then removes it.
///
/// # Errors
/// If `path` is not a folder of this user alone; it is then left as it is.
pub fn remove_after(path: &Path, wait: impl FnOnce()) -> Result<(), FolderError> {
    let folder = PrivateFolder::adopt(path)?;
    wait();
    drop(folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

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
    #[test]
    fn cleanup_process_removes_its_folder_and_refuses_a_link() {
        let place = PrivateFolder::create(&std::env::temp_dir(), "nm-lab-test-").unwrap();
        let outside = place.path().join("outside");
        fs::DirBuilder::new().mode(0o700).create(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let link = place.path().join("link");
        symlink(&outside, &link).unwrap();
        let error = remove_after(&link, || panic!("it waits for nothing")).unwrap_err();
        assert!(matches!(error, FolderError::NotAFolder(_)), "{error}");
        assert!(outside.join("file").exists());
        remove_after(&outside, || assert!(outside.exists())).unwrap();
        assert!(!outside.exists());
    }
}
