//! Writes to files of the kernel that may block for ever, such as taking a device away from its
//! driver while somebody uses it.
//!
//! A thread that is blocked there cannot be ended, and would keep its process from ending. So the
//! write is made by a forked child. If it takes too long, the child is left to itself. It has no
//! descriptor of this process, and the kernel ends it when the write returns. Until then the write
//! may still be done, so the caller learns which process to look for.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::clock;

/// How often the child is asked whether it has ended.
const STEP: Duration = Duration::from_millis(1);

/// A process that the kernel may still be writing for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Its number.
    pub pid: u32,
    /// When it was started, clock ticks since boot: another process may get its number later.
    pub started_ticks: u64,
}

impl Writer {
    /// A child that has not been waited for.
    fn of_child(child: libc::pid_t) -> io::Result<Writer> {
        let pid = child.unsigned_abs();
        let (_, started_ticks) =
            state(pid).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Writer { pid, started_ticks })
    }

    /// Whether the process is still there, so that its write may still be done.
    pub fn is_there(&self) -> bool {
        let is_alive = |state: char| !"ZXx".contains(state);
        state(self.pid).is_some_and(|(state, started_ticks)| {
            is_alive(state) && started_ticks == self.started_ticks
        })
    }
}

/// State and start of a process, by proc(5): fields 3 and 22 of `stat`. Field 2 is its name in
/// brackets, which may have brackets and spaces itself.
fn state(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Why a write was not done.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The kernel refused it, or the process could not be started: it will not be done.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// The kernel had not finished at the limit: it may be done as long as the process is there.
    #[error("the kernel did not finish it within {} s, and may still do it", .limit.as_secs_f64())]
    Unfinished {
        /// The process.
        writer: Writer,
        /// The limit.
        limit: Duration,
    },
}

/// Writes `bytes` to the file at `path`, which exists, in one call, and waits for at most `limit`.
///
/// # Errors
/// Those of open(2) and write(2), and [`WriteError::Unfinished`].
pub fn write(path: &Path, bytes: &[u8], limit: Duration) -> Result<(), WriteError> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)?;
    // SAFETY: the child calls functions only that are safe after a fork in a process with threads,
    // and reads memory only that was prepared before.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => write_and_exit(&name, bytes),
        child => child,
    };
    let end_ns = clock::monotonic_ns().saturating_add(limit.as_nanos() as u64);
    loop {
        let mut status = 0;
        // SAFETY: `child` is a child of this process that was not waited for yet.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return Ok(result_of(status)?);
        }
        if ended == -1 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error().into());
        }
        if clock::monotonic_ns() >= end_ns {
            break;
        }
        thread::sleep(STEP);
    }
    let writer = Writer::of_child(child)?;
    // SAFETY: the child was not waited for, so its number is still its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    Err(WriteError::Unfinished { writer, limit })
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
        let number = |error| match error {
            WriteError::Refused(error) => error.raw_os_error(),
            WriteError::Unfinished { .. } => None,
        };
        assert_eq!(number(write(&path, b"x", limit).unwrap_err()), Some(libc::ENOENT));
        let error = write(Path::new("/dev/full"), b"x", limit).unwrap_err();
        assert_eq!(number(error), Some(libc::ENOSPC));
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
        assert!(error.to_string().contains("0.05 s"), "{error}");
        let WriteError::Unfinished { writer, .. } = error else { panic!("{error}") };
        // A pipe's write can be killed, unlike that of a device's file.
        while writer.is_there() {
            thread::sleep(STEP);
        }
        let other = Writer { pid: std::process::id(), started_ticks: 1 };
        assert!(!other.is_there(), "a later process of this number is another one");
        let (_, started_ticks) = state(other.pid).unwrap();
        assert!(Writer { started_ticks, ..other }.is_there());
        drop(reader);
    }
}
