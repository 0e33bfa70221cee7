//! Signals taken as data, for a parent that stands in front of a program and hands them on.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_int, signalfd_siginfo, sigset_t};

/// A signal that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it, as a terminal does on Ctrl-C, to the whole group; else a process
    /// sent it to this one.
    pub by_kernel: bool,
}

/// Signals that wait to be taken instead of acting. The thread that made this value has them
/// blocked, and so have threads that it starts later.
#[derive(Debug)]
pub struct Signals {
    file: OwnedFd,
    before: sigset_t,
}

impl Signals {
    /// Every signal that can be handed on: not those that stop a process or speak of its faults.
    pub fn forwardable() -> Vec<i32> {
        let own = [
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
        // The first real-time signals belong to the C library.
        (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|n| !own.contains(n)).collect()
    }

    /// `signalfd(-1, mask, flags)`—Takes these signals from now on, see signalfd(2).
    ///
    /// # Errors
    /// What the system says; `EINVAL` for a number that is no signal.
    pub fn block(numbers: &[i32]) -> io::Result<Signals> {
        let check = |result: c_int| match result {
            -1 => Err(io::Error::last_os_error()),
            done => Ok(done),
        };
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `sigemptyset` writes the whole set before anything reads it, `pthread_sigmask`
        // likewise the mask from before; signalfd gives a new descriptor that nobody else owns.
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
    /// What the system says.
    pub fn wait(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<signalfd_siginfo>::uninit();
        loop {
            // SAFETY: the buffer has the length that is said; a read gives whole records only.
            let read = unsafe {
                libc::read(
                    self.file.as_raw_fd(),
                    info.as_mut_ptr().cast(),
                    size_of::<signalfd_siginfo>(),
                )
            };
            if usize::try_from(read) == Ok(size_of::<signalfd_siginfo>()) {
                // SAFETY: the kernel has filled the whole record.
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

    /// Has the child of `command` begin with the signals blocked that this thread had blocked
    /// before.
    pub fn restore_mask_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: a whole set is read; `sigprocmask` is async-signal-safe.
            match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }
}

/// `kill(pid, number)`—Sends any signal to a process; that it has gone is no error.
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
    fn what_can_be_handed_on_leaves_out_stops_and_faults() {
        let numbers = Signals::forwardable();
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGRTMIN()] {
            assert!(numbers.contains(&number), "{number}");
        }
        for number in [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGCHLD, 32] {
            assert!(!numbers.contains(&number), "{number}");
        }
    }

    #[test]
    fn a_signal_is_taken_and_a_child_starts_with_the_mask_from_before() {
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
    fn no_signal_has_such_a_number() {
        assert!(Signals::block(&[4711]).is_err());
        send(u32::MAX, 15);
    }
}
