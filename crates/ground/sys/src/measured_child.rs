//! Child processes whose CPU time is measured.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::counters::run_delay_ns;
use crate::process::{die_with_parent, ignore_interrupt};

/// CPU time of a child process that has ended, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedChild {
    /// Exit status.
    pub status: ExitStatus,
    /// CPU time in user mode, its own children included, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Context switches because the kernel ran another thread.
    pub involuntary_switches: u64,
    /// Time that it was ready but did not run, ns; absent if the kernel does not tell.
    pub run_delay_ns: Option<u64>,
}

/// A child process that runs on the CPUs of the thread that starts it, and whose CPU time is known
/// when it ends. It is killed when this value is dropped or when that thread ends.
#[derive(Debug)]
pub struct MeasuredChild {
    child: Child,
    /// Readable when the child has ended; absent on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    ended: Option<EndedChild>,
}

impl MeasuredChild {
    /// Starts `command` from the current thread, whose CPUs it inherits. Ctrl-C on the terminal
    /// does not reach it.
    ///
    /// # Errors
    /// Those of starting a program.
    pub fn spawn(mut command: Command) -> io::Result<MeasuredChild> {
        ignore_interrupt(&mut command);
        die_with_parent(&mut command);
        let child = command.spawn()?;
        let pidfd = Pid::from_raw(child.id().cast_signed())
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(MeasuredChild { child, pidfd, ended: None })
    }

    /// The child's standard input, if it is a pipe and was not taken yet.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The child's standard output, if it is a pipe and was not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits for the child to end, for at most `timeout`. Absent if it still runs.
    ///
    /// # Errors
    /// If the child cannot be waited for.
    pub fn wait_timeout(&mut self, timeout: Duration) -> io::Result<Option<EndedChild>> {
        const STEP: Duration = Duration::from_millis(1);
        match &self.pidfd {
            Some(pidfd) if self.ended.is_none() => {
                let timeout = Timespec::try_from(timeout).ok();
                // The result does not matter: the status is read below, also after an interruption.
                let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref());
            }
            _ => {
                for _ in 0..timeout.as_millis() / STEP.as_millis() {
                    if self.reap(libc::WNOHANG)?.is_some() {
                        break;
                    }
                    thread::sleep(STEP);
                }
            }
        }
        self.reap(libc::WNOHANG)
    }

    /// `wait4`—Takes the exit status and the CPU time of the child if it has ended.
    fn reap(&mut self, options: libc::c_int) -> io::Result<Option<EndedChild>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let pid = self.child.id().cast_signed();
        // A process that has ended can be read until it is waited for.
        let run_delay_ns = run_delay_ns(&format!("/proc/{pid}/schedstat"));
        let mut status = 0;
        // SAFETY: an all-zero rusage is a valid value of that plain structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to valid values. Only this function waits for the child, so its
        // id has not been reused.
        let found = unsafe { libc::wait4(pid, &mut status, options, &mut usage) };
        if found < 0 {
            return Err(io::Error::last_os_error());
        }
        if found == pid {
            let ns = |time: libc::timeval| {
                time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
            };
            self.ended = Some(EndedChild {
                status: ExitStatus::from_raw(status),
                user_ns: ns(usage.ru_utime),
                system_ns: ns(usage.ru_stime),
                involuntary_switches: usage.ru_nivcsw as u64,
                run_delay_ns,
            });
        }
        Ok(self.ended)
    }
}

impl Drop for MeasuredChild {
    fn drop(&mut self) {
        if let Ok(None) = self.reap(libc::WNOHANG) {
            // The child has not been waited for, so its id has not been reused.
            if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            let _ = self.reap(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    const LIMIT: Duration = Duration::from_secs(100);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command
    }

    #[test]
    fn cpu_time_of_a_busy_child_is_counted_and_that_of_a_sleeping_one_is_not() {
        let mut busy = MeasuredChild::spawn(shell(
            "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3",
        ))
        .unwrap();
        let ended = busy.wait_timeout(LIMIT).unwrap().expect("it ends");
        assert_eq!(ended.status.code(), Some(3));
        let mut idle = MeasuredChild::spawn(shell("exec sleep 0.05")).unwrap();
        let idle = idle.wait_timeout(LIMIT).unwrap().expect("it ends");
        assert!(idle.status.success() && idle.run_delay_ns.is_some());
        assert!(ended.user_ns > idle.user_ns, "{ended:?} {idle:?}");
        assert_eq!(busy.wait_timeout(Duration::ZERO).unwrap(), Some(ended), "asked again");
    }

    #[test]
    fn a_child_runs_on_the_cpu_of_its_thread_and_is_killed_with_its_value() {
        let path = thread::spawn(|| {
            let cpu = *crate::cpu::allowed().last().unwrap();
            crate::cpu::pin_current_thread(cpu).unwrap();
            let mut child = MeasuredChild::spawn(shell("exec sleep 1000")).unwrap();
            let folder = format!("/proc/{}", child.child.id());
            let status = std::fs::read_to_string(format!("{folder}/status")).unwrap();
            assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
            assert_eq!(child.wait_timeout(Duration::from_millis(20)).unwrap(), None);
            folder
        });
        assert!(!std::path::Path::new(&path.join().unwrap()).exists());
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = MeasuredChild::spawn(Command::new("/nothing/of/this/name")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
