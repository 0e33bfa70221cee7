//! Signals received through a descriptor, for a parent process that forwards them to its child.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_int, signalfd_siginfo, sigset_t};

/// A signal that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it, as on Ctrl-C in a terminal, to the whole process group. If not,
    /// a process sent it to this one.
    pub by_kernel: bool,
}

/// Signals that are blocked and received through a descriptor. They are blocked in the thread that
/// created this value and in threads that it starts later.
#[derive(Debug)]
pub struct Signals {
    file: OwnedFd,
    before: sigset_t,
}

impl Signals {
    /// Every signal that can be forwarded: not those that stop a process or report its own faults.
    pub fn forwardable() -> Vec<i32> {
        let excluded = [
            libc::SIGKILL,
            libc::SIGSTOP,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGCHLD,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGSYS,
            libc::SIGABRT,
        ];
        // The first real-time signals are used by the C library.
        (1..32)
            .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
            .filter(|n| !excluded.contains(n))
            .collect()
    }

    /// `signalfd(-1, mask, flags)`—Blocks these signals and receives them from now on; signalfd(2).
    ///
    /// # Errors
    /// Those of the system call; `EINVAL` for a number that is not a signal.
    pub fn block(numbers: &[i32]) -> io::Result<Signals> {
        let check = |result: c_int| match result {
            -1 => Err(io::Error::last_os_error()),
            done => Ok(done),
        };
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigemptyset` initialises the set before it is read, and `pthread_sigmask` the
        // previous mask; signalfd returns a new descriptor that nothing else owns.
        unsafe {
            check(libc::sigemptyset(set.as_mut_ptr()))?;
            for &number in numbers {
                check(libc::sigaddset(set.as_mut_ptr(), number))?;
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let file = check(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC))?;
            Ok(Signals { file: OwnedFd::from_raw_fd(file), before: before.assume_init() })
        }
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn wait(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<signalfd_siginfo>::uninit();
        loop {
            // SAFETY: the buffer has the given length; a read returns complete records only.
            let read = unsafe {
                libc::read(
                    self.file.as_raw_fd(),
                    info.as_mut_ptr().cast(),
                    size_of::<signalfd_siginfo>(),
                )
            };
            if usize::try_from(read) == Ok(size_of::<signalfd_siginfo>()) {
                // SAFETY: the kernel has filled the complete record.
                let info = unsafe { info.assume_init() };
                let number = info.ssi_signo.cast_signed();
                return Ok(ReceivedSignal { number, by_kernel: info.ssi_code > 0 });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Has the child of `command` start with the signal mask that this thread had before.
    pub fn restore_mask_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: the set is initialised; `sigprocmask` is async-signal-safe.
            match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }
}

/// `sigaction(SIGXFSZ, act, oldact)`—A write beyond the limit of `ulimit -f` fails with `EFBIG` and
/// does not end the process, which could not remove its temporary files then. Programs that are
/// started have the default again, because handlers end with exec; sigaction(2).
pub fn fail_writes_beyond_file_size_limit() {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: the structure is valid with all bytes zero (no flags, empty mask) but for the
    // handler, which does nothing and so is safe in a signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        libc::sigaction(libc::SIGXFSZ, &action, std::ptr::null_mut());
    }
}

/// `kill(pid, number)`—Sends any signal to a process; it is not an error if the process has ended.
pub fn send(pid: u32, number: i32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: the call touches no memory.
        unsafe { libc::kill(pid, number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn forwardable_signals_exclude_stops_and_faults() {
        let numbers = Signals::forwardable();
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGRTMIN()] {
            assert!(numbers.contains(&number), "{number}");
        }
        for number in [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGCHLD, 32] {
            assert!(!numbers.contains(&number), "{number}");
        }
    }

    #[test]
    fn signal_is_received_and_a_child_starts_with_the_previous_mask() {
        // In a thread of its own, so that the mask of the others stays as it is.
        let ended = std::thread::spawn(|| {
            let signals = Signals::block(&[libc::SIGUSR2]).unwrap();
            // SAFETY: a signal to this very thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(
                signals.wait().unwrap(),
                ReceivedSignal { number: libc::SIGUSR2, by_kernel: false }
            );
            let mut command = Command::new("sh");
            command.args(["-c", "kill -USR2 $$; exit 3"]);
            signals.restore_mask_in(&mut command);
            command.status().unwrap()
        })
        .join()
        .unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGUSR2));
    }

    #[test]
    fn invalid_signal_number_is_an_error() {
        assert!(Signals::block(&[4711]).is_err());
        send(u32::MAX, 15);
    }
}
