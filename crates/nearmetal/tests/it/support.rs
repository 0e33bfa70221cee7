//! Running the binary: its output and exit code, its children, and plans that take a second.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use nm_test_support::limit::{self, PROCESS_LIMIT};
use serde_json::Value;

pub const BINARY: &str = env!("CARGO_BIN_EXE_nearmetal");

/// Longest wait for anything that happens in another process.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a finished run of the binary left.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The errors on stderr: not progress, and no warnings of the other runs on the machine, such
    /// as those of other tests.
    pub fn errors(&self) -> Vec<&str> {
        let is_error = |line: &&str| {
            line.starts_with("nearmetal: ") && !line.starts_with("nearmetal: warning: ")
        };
        self.stderr.lines().filter(is_error).collect()
    }
}

/// Runs the binary with `args`, without a terminal.
pub fn run(args: &[&str]) -> Run {
    run_in(Path::new("."), args)
}

/// Runs the binary in `folder`. What it prints as JSON is checked by the schema of the command.
pub fn run_in(folder: &Path, args: &[&str]) -> Run {
    let run = finish(command(args).current_dir(folder));
    crate::json_documents::check(args, &run.stdout);
    run
}

/// Runs a prepared command to its end.
pub fn finish(command: &mut Command) -> Run {
    run_of(&limit::output(command, PROCESS_LIMIT))
}

/// The same of a process that was started, with what it wrote to its pipes.
pub fn finish_started(child: Child) -> Run {
    run_of(&limit::wait(child, PROCESS_LIMIT))
}

fn run_of(output: &Output) -> Run {
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The binary with `args`, input closed and output piped.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A plan with short trials: `rounds` rounds of ping-pong in `environments`.
pub fn small_plan(folder: &Path, environments: &str, rounds: u32, ms: u32) -> PathBuf {
    plan_of(folder, environments, r#"["tcp-blocking", "udp-blocking"]"#, rounds, ms)
}

/// The same of other stacks. On a busy machine either end may stand still for seconds.
pub fn plan_of(folder: &Path, environments: &str, stacks: &str, rounds: u32, ms: u32) -> PathBuf {
    let path = folder.join("small.toml");
    let text = format!(
        "name = \"small\"\nrounds = {rounds}\nreferences = [\"deftech-hft-bm-sfc9250\"]\n\
         [[trials]]\nenvironments = {environments}\nstacks = {stacks}\n\
         probe = \"pingpong\"\nsizes = [1, 64]\nmax_ms = {ms}\nmin_iterations = 20\n\
         max_iterations = 2000\nwarmup_ms = 2\ntimeout_ms = 10000\n\
         [[targets]]\nrequire = \"median < 1s\"\n"
    );
    std::fs::write(&path, text).expect("the folder can be written");
    path
}

/// A child that is killed at the end of the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(args: &[&str]) -> Running {
        Running(command(args).spawn().expect("the binary starts"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the end and gives back what was written.
    pub fn finish(mut self) -> Run {
        finish_started(std::mem::replace(&mut self.0, placeholder()))
    }
}

fn placeholder() -> Child {
    Command::new("true").stdin(Stdio::null()).spawn().expect("true starts")
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal by name (`INT`, `KILL`, `STOP`, `CONT`) to a process that the test started.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill starts").success(), "no process {pid}");
}

/// Direct children of a process, by id, that run our agent.
pub fn agents_of(pid: u32) -> Vec<u32> {
    processes().into_iter().filter(|p| p.parent == pid && p.is_agent()).map(|p| p.pid).collect()
}

/// Waits until `found` answers something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..PATIENCE.as_millis() / 20 {
        if let Some(found) = found() {
            return found;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("waited in vain for {what}");
}

/// Waits until none of `pids` is a running process.
pub fn wait_gone(pids: &[u32]) {
    wait_for("the end of processes", || {
        let alive = processes().into_iter().any(|p| pids.contains(&p.pid) && p.state != 'Z');
        (!alive).then_some(())
    });
}

pub struct ProcessInfo {
    pub pid: u32,
    pub parent: u32,
    pub state: char,
    pub words: Vec<String>,
}

impl ProcessInfo {
    fn is_agent(&self) -> bool {
        self.words.get(1).is_some_and(|word| word == "agent")
    }
}

/// Copies a program that is to be started, by another process. If this one wrote the file, it could
/// be busy: a child of another test's thread has a copy of all descriptors until it executes its
/// own program.
pub fn copy_program(from: impl AsRef<std::ffi::OsStr>, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "cp to {}", to.display());
}

/// Every process that can be seen.
pub fn processes() -> Vec<ProcessInfo> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in brackets may hold anything, so fields count from the last bracket.
            let mut fields = stat.rsplit(')').next()?.split_whitespace();
            let state = fields.next()?.chars().next()?;
            let parent = fields.next()?.parse().ok()?;
            let words = std::fs::read(entry.path().join("cmdline")).ok()?;
            let words = words
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            Some(ProcessInfo { pid, parent, state, words })
        })
        .collect()
}

/// Whether a process is one of these, or was started by one of them.
pub fn descends(mut pid: u32, from: &[u32]) -> bool {
    let all = processes();
    while !from.contains(&pid) {
        let Some(process) = all.iter().find(|process| process.pid == pid) else { return false };
        pid = process.parent;
    }
    true
}

/// The result so far of a run that goes on, or was killed; absent before its first trial.
pub fn so_far(out: &Path) -> Option<Value> {
    let result = nm_report::folder::load(out).ok()?;
    serde_json::to_value(result).ok()
}

/// Reads a JSON file.
pub fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A setting of a series in JSON, by its kind.
pub fn setting<'a>(series: &'a Value, kind: &str) -> Option<&'a Value> {
    series["settings"].as_array()?.iter().find(|setting| setting["kind"] == kind)
}

/// The facts of one endpoint of a result in JSON.
pub fn facts<'a>(result: &'a Value, environment: &str, side: &str) -> &'a Value {
    let of_endpoint = |one: &&Value| {
        one["endpoint"]["environment"] == environment && one["endpoint"]["side"] == side
    };
    let all = result["facts"].as_array().unwrap();
    &all.iter().find(of_endpoint).unwrap_or_else(|| panic!("{environment} {side}"))["facts"]
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Has the accelerator's library built, beside the binary and in its profile: for tests cargo
/// builds no library of that kind by itself.
pub fn accelerator() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(BINARY).parent().expect("the binary is in a folder");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            Some(name) => name,
            None => "dev",
        };
        let target = folder.parent().expect("the folder of a profile is in the target folder");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--offline", "--package", "nm-accel", "--profile", profile]);
        build.arg("--target-dir").arg(target).current_dir(root());
        let output = build.output().expect("cargo starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the library cannot be built: {errors}");
    });
}

/// A port that was free a moment ago. It is below those that the kernel gives to connections, and
/// no other test of this program gets it: either could take it before its server does.
pub fn free_port() -> u16 {
    nm_operate::addresses::free_ports(1).expect("a free port")[0]
}

/// A stand-alone server on loopback that is ready for clients.
pub fn server(probe: &str, port: u16) -> Running {
    let port_text = port.to_string();
    let server = Running::start(&[probe, "server", "--bind", "127.0.0.1", "--port", &port_text]);
    wait_for("the server", || listens(port).then_some(()));
    server
}

/// Whether somebody listens on a TCP port, without connecting to it.
pub fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let is_ours = fields.next().is_some_and(|address| address.ends_with(&wanted));
            is_ours && fields.nth(1) == Some("0A")
        })
    })
}
