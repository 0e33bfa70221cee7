//! Files in memory without a name, for programs that take a path: a child process that inherits
//! the descriptor opens `/proc/self/fd/N`. The memory is freed with its last descriptor.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A file with these bytes; `/proc/PID/fd` shows `name`.
///
/// # Errors
/// Those of memfd_create(2) and write(2), such as `ENOMEM`.
pub fn with_contents(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    check_file_limit(bytes.len() as u64)?;
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// A file of `bytes` zero bytes.
///
/// # Errors
/// Those of memfd_create(2) and ftruncate(2).
pub fn of_size(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    check_file_limit(bytes)?;
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Checks that a file may be so long (`RLIMIT_FSIZE`). The limit holds for files in memory as well,
/// and the kernel ends a process that exceeds it by a signal.
///
/// # Errors
/// `EFBIG`, and that of getrlimit(2), which a filter may refuse.
pub fn check_file_limit(bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is live for the call, which fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Without a limit it is the largest number.
    if limit.rlim_cur < bytes { Err(io::Error::from_raw_os_error(libc::EFBIG)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::inherit;
    use std::process::{Command, Stdio};

    #[test]
    fn child_reads_an_inherited_file_by_its_path() {
        let file = with_contents("nearmetal-test", b"kept in memory").unwrap();
        let mut command = Command::new("cat");
        let number = inherit(&mut command, file);
        command.arg(format!("/proc/self/fd/{number}")).stdin(Stdio::null());
        for _ in 0..2 {
            // Each child opens it anew, so that each reads it from the start.
            assert_eq!(command.output().unwrap().stdout, b"kept in memory");
        }
    }

    #[test]
    fn file_has_the_size_asked_for() {
        let file = File::from(of_size("nearmetal-test", 8192).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }
}
