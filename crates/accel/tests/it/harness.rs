//! Runs one body in a process of its own. The test binary starts itself again, with the library
//! preloaded or without it, and a variable that names the body. The body runs before `main`, on the
//! main thread, with no other thread in the process. So signals, forks and descriptor numbers are
//! the body's own.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use nm_sys::clock::Deadline;

/// Whether the body runs on the kernel alone or with the library, and on how many CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Kernel,
    Accelerated,
    /// All processes of the body share one CPU.
    AcceleratedOnOneCpu,
}

/// A body and its full name.
pub(crate) type Body = (&'static str, fn());

/// Names the body that this process runs.
const BODY: &str = "NEARMETAL_TEST_BODY";
/// The library under test, for bodies that start programs with it.
const LIBRARY: &str = "NEARMETAL_TEST_LIBRARY";
/// A body that takes longer hangs. Bodies need seconds at most on a quiet machine, and the longest
/// half a minute where others leave them a fifth of a CPU.
const LIMIT: Duration = Duration::from_secs(120);
/// Exit status of a body that panicked.
const FAILED: i32 = 101;

/// Runs the body `name` on `side` and requires that it succeeds.
pub(crate) fn check(side: Side, bodies: &[Body], name: &str) {
    let full =
        bodies.iter().map(|(full, _)| *full).find(|full| full.rsplit("::").next() == Some(name));
    let full = full.expect("a body that is registered");
    let mut output = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(BODY, full).env_remove("LD_PRELOAD").env("RUST_BACKTRACE", "0").process_group(0);
    command.stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    if side != Side::Kernel {
        accelerate(&mut command, library());
    }
    if side == Side::AcceleratedOnOneCpu {
        let cpu = next_cpu();
        // SAFETY: a plain system call on a local set, which may be made between fork and exec.
        unsafe { command.pre_exec(move || pin_to(cpu)) };
    }
    // SAFETY: the call is a plain system call, which may be made between fork and exec.
    unsafe { command.pre_exec(keep_only_standard_streams) };
    // Tests that were killed leave no body that hangs.
    nm_sys::process::die_with_parent(&mut command);
    let mut child = command.spawn().unwrap();
    let ended = wait(&mut child, LIMIT);
    let report = ended.is_none().then(|| describe_hanging_processes(&child));
    end_group(&mut child);
    if let Some(fault) = fault(ended, report) {
        panic!("{full} on {side:?} {fault}\n{}", text_of(&mut output));
    }
}

/// The CPU for the next body that runs on one: each of those allowed in turn.
fn next_cpu() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the set is live for the call; all zero is the empty set.
    let allowed: Vec<usize> = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    };
    allowed[NEXT.fetch_add(1, Relaxed) % allowed.len()]
}

/// Pins this process to one CPU.
pub(crate) fn pin_to(cpu: usize) -> std::io::Result<()> {
    // SAFETY: the set is live for the calls; all zero is the empty set.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if pinned == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Bodies count descriptors, so those that the caller of the tests left open must be closed.
fn keep_only_standard_streams() -> std::io::Result<()> {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

fn fault(ended: Option<ExitStatus>, report: Option<String>) -> Option<String> {
    match ended {
        Some(status) if status.success() => None,
        Some(status) => Some(match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was ended by signal {signal}"),
            (None, Some(FAILED)) => "failed".to_owned(),
            (None, code) => format!("ended with status {code:?}"),
        }),
        None => Some(format!("hangs\n{}", report.unwrap_or_default())),
    }
}

fn text_of(output: &mut File) -> String {
    let mut text = vec![];
    output.rewind().unwrap();
    output.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// Preloads the library into a program, which then joins connections at once.
pub(crate) fn accelerate(command: &mut Command, library: &Path) {
    command.env("LD_PRELOAD", library).env(LIBRARY, library);
    if std::env::var_os("NEARMETAL_ACCEL_AFTER").is_none() {
        command.env("NEARMETAL_ACCEL_AFTER", "0");
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Deadline::after(limit);
    let mut pause_us = 200;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if deadline.passed() {
            return None;
        }
        std::thread::sleep(Duration::from_micros(pause_us));
        pause_us = (pause_us * 2).min(5_000);
    }
}

/// Describes where every process of a hanging group waits: its last call as recorded by the bodies,
/// and the kernel's state of each thread.
pub(crate) fn describe_hanging_processes(child: &Child) -> String {
    let group = child.id().cast_signed();
    let mut report = String::new();
    for process in processes_of(group) {
        for thread in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten() {
            let Ok(thread) = thread else { continue };
            let read = |what| std::fs::read_to_string(thread.path().join(what));
            let stat = read("stat").unwrap_or_default();
            let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
            report += &format!(
                "  process {process} thread {:?}: state {}, system call {}",
                thread.file_name(),
                state.unwrap_or("?"),
                read("syscall").unwrap_or_default(),
            );
        }
    }
    // SAFETY: the group is the child's own, which has not been waited for.
    unsafe { libc::kill(-group, libc::SIGXCPU) };
    std::thread::sleep(Duration::from_millis(300));
    report
}

/// The processes of a process group.
fn processes_of(group: i32) -> Vec<i32> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        // SAFETY: queries a number.
        .filter(|process| unsafe { libc::getpgid(*process) } == group)
        .collect()
}

/// Kills the processes that a body has left, also after it succeeded.
pub(crate) fn end_group(child: &mut Child) {
    let group = child.id().cast_signed();
    for process in processes_of(group) {
        // SAFETY: the process is in the group that this harness made for the body.
        unsafe { libc::kill(process, libc::SIGKILL) };
    }
    let _ = child.wait();
}

/// The library under test, built once: for an integration test cargo builds no cdylib.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(given) = std::env::var_os(LIBRARY) {
        return BUILT.get_or_init(|| PathBuf::from(given));
    }
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    // target/[TRIPLE/]PROFILE/deps/it-…
    let folder = own.parent().and_then(Path::parent).expect("a target folder");
    let target = folder.ancestors().find(|at| at.join("CACHEDIR.TAG").exists());
    let target = target.expect("a target folder with cargo's tag");
    let place: Vec<&str> =
        folder.strip_prefix(target).unwrap().iter().filter_map(|part| part.to_str()).collect();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "nm-accel", "--lib", "--target-dir"])
        .arg(target);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let profile = place.last().copied().unwrap_or("debug");
    command.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
    if let [triple, _] = place[..] {
        command.args(["--target", triple]);
    }
    let output = command.output().expect("cargo can be started");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the library could not be built by {command:?}:\n{words}");
    let library = folder.join("libnm_accel.so");
    assert!(library.exists(), "{} is not there after {command:?}", library.display());
    library
}

/// Whether this process runs with the library.
pub(crate) fn accelerated() -> bool {
    state_function().is_some()
}

type StateFunction = unsafe extern "C" fn(libc::c_int) -> libc::c_int;

fn state_function() -> Option<StateFunction> {
    // SAFETY: the name is a C string; the library defines it with this signature.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"nearmetal_accel_state".as_ptr());
        std::mem::transmute::<*mut libc::c_void, Option<StateFunction>>(found)
    }
}

/// The library's state of a descriptor: 0 unknown, 1 kernel, 2 candidate, 3 joined, 4 in part; none
/// without the library.
pub(crate) fn state(fd: libc::c_int) -> Option<i32> {
    // SAFETY: any number may be passed.
    state_function().map(|ask| unsafe { ask(fd) })
}

/// The latest call that this process made through [`crate::calls`].
static LATEST: AtomicPtr<Location<'static>> = AtomicPtr::new(std::ptr::null_mut());

/// Records the current call, for the report about a body that hangs.
#[track_caller]
pub(crate) fn mark() {
    LATEST.store(std::ptr::from_ref(Location::caller()).cast_mut(), Relaxed);
}

/// Prints the last call of this process.
extern "C" fn print_last_call(_signal: libc::c_int) {
    // SAFETY: null or a static location.
    let at = unsafe { LATEST.load(Relaxed).as_ref() };
    let at = at.map_or((String::new(), 0), |at| (at.file().to_owned(), at.line()));
    note(&format!("process {} was last at {}:{}", std::process::id(), at.0, at.1));
}

/// Writes a line to the output that is part of the test's message.
pub(crate) fn note(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are live; the call by number bypasses all wrappers.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Runs `body` and ends the process: 0, or [`FAILED`] if it panicked.
pub(crate) fn run_and_exit(body: impl FnOnce()) -> ! {
    let status = if catch_unwind(AssertUnwindSafe(body)).is_ok() { 0 } else { FAILED };
    // SAFETY: this process has nothing to clean up.
    unsafe { libc::_exit(status) }
}

/// Runs the one of `bodies` that the environment names, instead of `main`.
pub(crate) fn start(bodies: &[&[Body]]) {
    // SAFETY: a C string; no other thread is there yet to change the environment.
    let wanted = unsafe { libc::getenv(c"NEARMETAL_TEST_BODY".as_ptr()) };
    if wanted.is_null() {
        return;
    }
    run_and_exit(|| {
        let wanted = std::env::var(BODY).unwrap();
        // SAFETY: the handler is a function of the right type, valid as long as the process.
        unsafe { libc::signal(libc::SIGXCPU, print_last_call as *const () as libc::sighandler_t) };
        let body = bodies.iter().copied().flatten().find(|(name, _)| *name == wanted);
        body.unwrap_or_else(|| panic!("no body is called {wanted}")).1();
    });
}

/// The command that runs the body `name` of this binary in another process, as a peer that is
/// accelerated or not, independent of this process.
pub(crate) fn another(name: &str, side: Side) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(BODY, name).env_remove("LD_PRELOAD");
    if side != Side::Kernel {
        accelerate(&mut command, library());
    }
    command
}

/// A C string of a text without a zero byte.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap()
}
