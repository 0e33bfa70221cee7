//! A folder in which accelerated agents of different network namespaces meet. Sockets in it have
//! names, which namespaces have not, so a process of its own sees to their end: it is no child that
//! dies with this process, but one that notices its death by the end of a pipe.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nm_model::{Failure, FailureKind};

use crate::accelerator::SHARE_BYTES_MAX;

/// A folder of this user alone. It goes when this value does, or when this process ends, however
/// it ends.
#[derive(Debug)]
pub struct Share {
    path: PathBuf,
    /// Removes the folder when its input ends.
    keeper: Child,
}

impl Share {
    /// Makes a folder and starts its keeper: `lab_hold` is the command of that subcommand.
    ///
    /// # Errors
    /// If either cannot be made.
    pub fn new(mut lab_hold: Command) -> Result<Share, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nearmetal-share-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let failed = |what: &str, error: &io::Error| {
            let message = format!("cannot {what} {}: {error}", path.display());
            Failure::new(FailureKind::System, message)
        };
        if path.as_os_str().len() > SHARE_BYTES_MAX {
            let message = format!("{} is too long a name for sockets in it", path.display());
            return Err(Failure::new(FailureKind::NotAvailable, message)
                .hint("set TMPDIR to a folder with a short name"));
        }
        // Of a dead process with this number; another user's is in the way and is refused below.
        let _ = remove(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|e| failed("make", &e))?;
        // In a group of its own Ctrl-C does not reach it.
        let keeper = lab_hold.arg(&path).process_group(0);
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match keeper.spawn() {
            Ok(keeper) => Ok(Share { path, keeper }),
            Err(error) => {
                let failure = failed("start the keeper of", &error);
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

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        // The keeper may have been killed.
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
    fn the_folder_is_private_and_goes_with_its_owner() {
        // `cat` ends with its input as the keeper does, whatever it makes of its argument.
        let share = Share::new(Command::new("cat")).unwrap();
        let path = share.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("socket"), "").unwrap();
        drop(share);
        assert!(!path.exists());
    }

    #[test]
    fn without_a_keeper_there_is_no_folder() {
        let failure = Share::new(Command::new("/nothing/of/this/name")).unwrap_err();
        assert!(failure.message.contains("the keeper of"), "{failure}");
    }
}
