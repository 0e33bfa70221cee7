//! Child processes that do not outlive their parent and can be waited for with a time-out.

use std::ffi::{CStr, OsStr, c_char};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

/// The file of this program: by /proc, or without it by what the kernel started.
///
/// # Errors
/// If neither is known.
pub fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe().or_else(|without_proc| {
        started_file().and_then(|file| file.canonicalize().ok()).ok_or(without_proc)
    })
}

/// What the kernel noted of the file that it started. A crate of ours builds `rustix` so that it
/// asks the C library by `dlsym`, which a static program does not have.
fn started_file() -> Option<&'static Path> {
    // SAFETY: the function reads what the kernel gave this process, and has no other effect.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if name.is_null() {
        return None;
    }
    // SAFETY: the entry is the address of a string above the stack, which stays there.
    let name = unsafe { CStr::from_ptr(name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// A child process that is killed when this value is dropped or when this process ends for any
/// reason.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    /// Readable when the child has ended; absent on kernels before 5.3.
    pidfd: Option<OwnedFd>,
}

impl ChildProcess {
    /// Starts `command` so that the kernel kills it when this process ends, and so that Ctrl-C on
    /// the terminal does not reach it: the parent decides what happens then.
    ///
    /// # Errors
    /// Those of starting a program, and those of what the child does before that (entering
    /// namespaces).
    pub fn spawn(mut command: Command) -> io::Result<ChildProcess> {
        ignore_interrupt(&mut command);
        die_with_parent(&mut command);
        let child = spawn_from_permanent_thread(command)?;
        let pidfd = Pid::from_raw(child.id().cast_signed())
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(ChildProcess { child, pidfd })
    }

    /// Process id. It is not reused before the child has been waited for.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's standard input, if it is a pipe and was not taken yet.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The child's standard output, if it is a pipe and was not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The child's standard error, if it is a pipe and was not taken yet.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// The exit status, if the child has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the child to end, for at most `timeout`. Absent if it still runs.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<ExitStatus> {
        const STEP: Duration = Duration::from_millis(20);
        match &self.pidfd {
            Some(pidfd) => {
                let timeout = Timespec::try_from(timeout).ok();
                // The result does not matter: the status is read below, also after an interruption.
                let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref());
            }
            None => {
                for _ in 0..timeout.as_millis() / STEP.as_millis() {
                    if self.try_wait().is_some() {
                        break;
                    }
                    thread::sleep(STEP);
                }
            }
        }
        self.try_wait()
    }

    /// Kills the child if it still runs, and waits for its end. May be called again.
    pub fn kill(&mut self) {
        if self.try_wait().is_none() {
            // The child has not been waited for, so its id has not been reused.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Sends a signal to the child if it still runs.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_none()
            && let Some(pid) = Pid::from_raw(self.child.id().cast_signed())
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has the kernel kill the child of `command` when the thread that starts it ends.
///
/// `PR_SET_PDEATHSIG`, prctl(2). The signal is sent when the *thread* that started the child ends,
/// so start the command from a thread that lives as long as the child is needed, as
/// [`ChildProcess::spawn`] does. If the parent died before the call, the parent id has changed.
pub fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let set = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// Allows this process as many open files as it may allow itself. Without that, most systems allow
/// a program 1024, so that it can use `select`.
///
/// # Errors
/// Those of the system call. The limit is then as it was.
pub fn raise_file_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// How many files this process may have open at once.
pub fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Has the kernel's table of this process hold so many open files, as far as its limit allows.
///
/// The table grows by doubling, and in a process of several threads the kernel then waits until
/// none of them reads the old one: whoever opens that file, or accepts that connection, stands
/// still for 10 to 20 ms (expand_files in Linux's fs/file.c).
///
/// # Errors
/// Those of the system calls. Files are opened all the same.
pub fn reserve_files(count: u64) -> io::Result<()> {
    let last = count.min(file_limit()).saturating_sub(1);
    let any = eventfd(0, EventfdFlags::CLOEXEC)?;
    rustix::io::fcntl_dupfd_cloexec(&any, RawFd::try_from(last).unwrap_or(RawFd::MAX))?;
    Ok(())
}

/// Whether no process `pid` runs: it never existed, has been waited for, or is a zombie. A process
/// that we may not access counts as running.
pub fn is_dead(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
            matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
        }
        // Kernels before 5.3 have no pidfd, or no descriptor is free: a zombie counts as running
        // then.
        Err(_) => rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
    }
}

/// Has the child of `command` outlive the terminal, shell and session that it was started from: it
/// leads a session of its own, setsid(2).
pub fn own_session(command: &mut Command) {
    let lead = || Ok(rustix::process::setsid().map(drop)?);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(lead) };
}

/// Has the child of `command` inherit `file`; returns its number in the child, which is at
/// `/proc/self/fd/N` there. Descriptors of programs that take no number are passed by that path.
pub fn inherit(command: &mut Command, file: OwnedFd) -> RawFd {
    let number = file.as_raw_fd();
    // The closure owns the descriptor, so that it is open when the child is started.
    let keep = move || Ok(rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(keep) };
    number
}

/// Has the child of `command` ignore SIGINT, which a terminal sends to the whole foreground group.
pub(crate) fn ignore_interrupt(command: &mut Command) {
    let ignore = || {
        // SAFETY: SIG_IGN installs no code; signal(2) is async-signal-safe.
        let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(ignore) };
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` from a thread that ends only with this process, because the kernel kills the
/// child when the thread that started it ends.
fn spawn_from_permanent_thread(command: Command) -> io::Result<Child> {
    static REQUESTS: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let requests = REQUESTS.get_or_init(|| {
        let (requests, queue) = mpsc::channel::<SpawnRequest>();
        // If the thread cannot be started, the queue is dropped and the send below fails.
        let _ = thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, reply) in queue {
                let _ = reply.send(command.spawn());
            }
        });
        requests
    });
    let gone = || io::Error::other("the thread that starts processes has ended");
    let (reply, result) = mpsc::channel();
    requests.send((command, reply)).map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        command
    }

    #[test]
    fn the_file_of_this_program_is_known_without_proc() {
        let started = started_file().unwrap().canonicalize().unwrap();
        assert_eq!(started, std::env::current_exe().unwrap());
    }

    #[test]
    fn reserved_files_have_room_at_once_as_far_as_the_limit_allows() {
        let room = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        let wanted = file_limit().min(700);
        reserve_files(wanted).unwrap();
        assert!(room() >= wanted, "{}", room());
        // The limit of most shells is lower than that.
        reserve_files(u64::MAX >> 33).unwrap_or_else(|error| panic!("{error}: {}", file_limit()));
    }

    #[test]
    fn child_outlives_the_thread_that_requested_it() {
        let mut process =
            thread::spawn(|| ChildProcess::spawn(sleeper()).unwrap()).join().expect("no panic");
        assert_eq!(process.wait_timeout(Duration::from_millis(50)), None);
        process.kill();
        assert_eq!(process.try_wait().unwrap().signal(), Some(9));
        process.kill();
    }

    #[test]
    fn child_of_its_own_session_has_no_terminal_and_another_session() {
        let mut command = Command::new("sh");
        command.args(["-c", "cut -d' ' -f6 /proc/$$/stat; echo $$"]).stdin(Stdio::null());
        own_session(&mut command);
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[0], lines[1], "the child leads the session that it is in");
    }

    #[test]
    fn exit_status_of_a_child_is_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let mut process = ChildProcess::spawn(command).unwrap();
        let status = process.wait_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn dropping_kills_the_child() {
        let process = ChildProcess::spawn(sleeper()).unwrap();
        let folder = format!("/proc/{}", process.pid());
        assert!(std::path::Path::new(&folder).exists());
        drop(process);
        assert!(!std::path::Path::new(&folder).exists());
    }

    #[test]
    fn children_ignore_ctrl_c() {
        let mut process = ChildProcess::spawn(sleeper()).unwrap();
        process.signal(Signal::INT);
        assert_eq!(process.wait_timeout(Duration::from_millis(100)), None);
        process.signal(Signal::TERM);
        assert!(process.wait_timeout(Duration::from_secs(20)).is_some());
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = ChildProcess::spawn(Command::new("/nothing/of/this/name")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn dead_processes_are_detected() {
        assert!(!is_dead(std::process::id()));
        assert!(is_dead(0) && is_dead(u32::MAX));
        let mut child = Command::new("true").spawn().unwrap();
        let limit = crate::clock::Deadline::after(Duration::from_secs(100));
        while !is_dead(child.id()) {
            assert!(!limit.passed(), "a zombie counts as dead");
            thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(is_dead(child.id()));
    }
}
