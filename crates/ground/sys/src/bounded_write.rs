//! Writes to files of the kernel that may block for ever, such as taking a device away from its
//! driver while somebody uses it.
//!
//! A thread that is blocked there cannot be ended, and would keep its process from ending. So the
//! write is made by a forked child. If it takes too long, the child is left to itself: it has no
//! descriptor of this process, and the kernel ends it when the write returns.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::clock;

/// How often the child is asked whether it has ended.
const STEP: Duration = Duration::from_millis(1);

/// Writes `bytes` to the file at `path`, which exists, in one call, and waits for at most `limit`.
///
/// # Errors
/// Those of open(2) and write(2), and [`io::ErrorKind::TimedOut`].
pub fn write(path: &Path, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the child calls functions only that are safe after a fork in a process with threads,
    // and reads memory only that was prepared before.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => write_and_exit(&name, bytes),
        child => child,
    };
    let end_ns = clock::monotonic_ns().saturating_add(limit.as_nanos() as u64);
    loop {
        let mut status = 0;
        // SAFETY: `child` is a child of this process that was not waited for yet.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return result_of(status);
        }
        if ended == -1 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        if clock::monotonic_ns() >= end_ns {
            break;
        }
        thread::sleep(STEP);
    }
    // SAFETY: the child was not waited for, so its number is still its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let reason = format!("the kernel did not finish it within {} s", limit.as_secs_f64());
    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
}

/// The part of the child: its exit status is the number of the error, or 0.
fn write_and_exit(path: &CString, bytes: &[u8]) -> ! {
    // SAFETY: these functions are async-signal-safe, and the pointers are valid for their lengths.
    unsafe {
        // Nobody must wait for the end of a pipe that this child has inherited.
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 {
            libc::_exit(*libc::__errno_location() & 0xff);
        }
        let n = loop {
            let n = libc::write(file, bytes.as_ptr().cast(), bytes.len());
            if n >= 0 || *libc::__errno_location() != libc::EINTR {
                break n;
            }
        };
        let is_all = usize::try_from(n).is_ok_and(|n| n == bytes.len());
        let short = if n < 0 { *libc::__errno_location() & 0xff } else { libc::EIO };
        libc::_exit(if is_all { 0 } else { short });
    }
}

fn result_of(status: libc::c_int) -> io::Result<()> {
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, error) => Err(io::Error::from_raw_os_error(error)),
        (false, _) => Err(io::Error::other("the writing process was killed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_and_errors_are_those_of_the_kernel() {
        let limit = Duration::from_secs(60);
        let path = std::env::temp_dir().join(format!("nm-bounded-{}", std::process::id()));
        std::fs::write(&path, "before").unwrap();
        write(&path, b"0000:01", limit).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0000:01");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(write(&path, b"x", limit).unwrap_err().kind(), io::ErrorKind::NotFound);
        let error = write(Path::new("/dev/full"), b"x", limit).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn a_write_that_blocks_ends_at_its_limit() {
        // A pipe that is full blocks its writers.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), {
            use std::os::fd::AsRawFd;
            writer.as_raw_fd()
        });
        let error = write(Path::new(&path), b"x", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("0.05 s"), "{error}");
        drop(reader);
    }
}
