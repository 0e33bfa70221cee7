//! Runs one body in a process of its own: the test binary starts itself again, with the library in
//! front of libc from the first instruction or without it, and a variable that names the body. The
//! body runs before `main`, on the main thread, with nobody else in the process, so that signals,
//! forks and descriptor numbers are the body's own.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::time::Duration;

use nm_sys::clock::Deadline;

/// What stands between the body and the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Kernel,
    Accelerated,
}

/// A body under its full name.
pub(crate) type Body = (&'static str, fn());

/// Names the body that this process is there for.
const BODY: &str = "NEARMETAL_TEST_BODY";
/// The library under test, for bodies that start programs with it.
const LIBRARY: &str = "NEARMETAL_TEST_LIBRARY";
/// After this a body hangs. Bodies need well under a second on a quiet machine.
const LIMIT: Duration = Duration::from_secs(30);
/// Exit status of a body that panicked.
const FAILED: i32 = 101;

/// Starts the body `name` on `side` and demands that it comes to a good end.
pub(crate) fn check(side: Side, bodies: &[Body], name: &str) {
    let full = bodies.iter().map(|(full, _)| *full).find(|full| full.ends_with(name));
    let full = full.expect("a body that is registered");
    let mut output = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(BODY, full).env_remove("LD_PRELOAD").env("RUST_BACKTRACE", "0").process_group(0);
    command.stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    if side == Side::Accelerated {
        accelerate(&mut command, library());
    }
    // SAFETY: the call is a plain system call, which may be made between fork and exec.
    unsafe { command.pre_exec(keep_only_standard_streams) };
    let mut child = command.spawn().unwrap();
    let ended = wait(&mut child, LIMIT);
    let report = ended.is_none().then(|| interrogate(&child));
    end_group(&mut child);
    if let Some(fault) = fault(ended, report) {
        panic!("{full} on {side:?} {fault}\n{}", text_of(&mut output));
    }
}

/// Bodies count descriptors: what the caller of the tests left open must not be there.
fn keep_only_standard_streams() -> std::io::Result<()> {
    // SAFETY: numbers.
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

/// Puts the library in front of a program. It joins connections at once.
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

/// Asks every process of a group that hangs where it is: its last call by the bodies' own record,
/// and what the kernel says of each thread.
fn interrogate(child: &Child) -> String {
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
        // SAFETY: a question about a number.
        .filter(|process| unsafe { libc::getpgid(*process) } == group)
        .collect()
}

/// Ends whatever a body left behind, at its good end too.
fn end_group(child: &mut Child) {
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

/// What the library says of a descriptor: 0 unknown, 1 kernel, 2 candidate, 3 joined, 4 in part;
/// nothing on the kernel.
pub(crate) fn state(fd: libc::c_int) -> Option<i32> {
    // SAFETY: any number may be asked about.
    state_function().map(|ask| unsafe { ask(fd) })
}

/// The latest call that this process made through [`crate::calls`].
static LATEST: AtomicPtr<Location<'static>> = AtomicPtr::new(std::ptr::null_mut());

/// Notes where this process is, for the report about a body that hangs.
#[track_caller]
pub(crate) fn mark() {
    LATEST.store(std::ptr::from_ref(Location::caller()).cast_mut(), Relaxed);
}

/// Tells where this process was last.
extern "C" fn confess(_signal: libc::c_int) {
    // SAFETY: null or a location that lives for ever.
    let at = unsafe { LATEST.load(Relaxed).as_ref() };
    let at = at.map_or((String::new(), 0), |at| (at.file().to_owned(), at.line()));
    note(&format!("process {} was last at {}:{}", std::process::id(), at.0, at.1));
}

/// Writes a line to the output that the test's message shows.
pub(crate) fn note(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the bytes are there; the call has a number of its own, past everybody's wrappers.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Runs `body` and ends the process: 0, or [`FAILED`] if it panicked.
pub(crate) fn run_and_exit(body: impl FnOnce()) -> ! {
    let status = if catch_unwind(AssertUnwindSafe(body)).is_ok() { 0 } else { FAILED };
    // SAFETY: nothing of this process needs to be tidied up.
    unsafe { libc::_exit(status) }
}

/// Runs the body that the environment names, instead of `main`.
extern "C" fn start() {
    // SAFETY: a C string; no other thread is there yet to change the environment.
    let wanted = unsafe { libc::getenv(c"NEARMETAL_TEST_BODY".as_ptr()) };
    if wanted.is_null() {
        return;
    }
    run_and_exit(|| {
        let wanted = std::env::var(BODY).unwrap();
        // SAFETY: the handler is a function of the right shape and lives for ever.
        unsafe { libc::signal(libc::SIGXCPU, confess as *const () as libc::sighandler_t) };
        let bodies = crate::BODIES.iter().flat_map(|module| module.iter());
        let body = bodies.into_iter().find(|(name, _)| *name == wanted);
        body.unwrap_or_else(|| panic!("no body is called {wanted}")).1();
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// The command that runs the body `name` of this binary in another process, as a peer that is
/// accelerated or not, whatever this process is.
pub(crate) fn another(name: &str, side: Side) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(BODY, name).env_remove("LD_PRELOAD");
    if side == Side::Accelerated {
        accelerate(&mut command, library());
    }
    command
}

/// A C string of what must not hold a zero.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap()
}
