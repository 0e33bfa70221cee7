//! Unmodified programs, each run on the kernel's sockets and under `nearmetal accel`. What they say
//! must be the same both times, and the accelerator must tell where their connections were.
//!
//! A program that is not installed fails its test and names the package. Servers listen on free
//! ports of loopback, are ended by their own ids, and live in folders that are removed.

mod ab;
mod apache;
mod children;
mod copies;
mod databases;
mod erlang;
mod haproxy;
mod languages;
mod limits;
mod mariadb;
mod messages;
mod nobody;
mod speed_tools;
mod ssh;
mod web;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::support::{BINARY, PATIENCE, accelerator, free_port, listens, root, wait_for};

/// Which of the two ends of a test run under the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    OnlyClient,
    OnlyServer,
    Accelerated,
}

/// Where a test expects the connections of its client when both ends are accelerated.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Shared memory, at least one.
    SharedMemory,
    /// The kernel, for a reason that holds this text.
    Kernel(&'static str),
}

/// What one run of a test's body saw.
pub struct Seen {
    /// What must not depend on the way: answers, counts, contents.
    pub words: Vec<String>,
    /// The exit reports of the clients that were accelerated.
    pub reports: Vec<Value>,
}

impl Seen {
    pub fn new() -> Seen {
        Seen { words: vec![], reports: vec![] }
    }

    /// Adds a client's run: its report, and what it wrote.
    pub fn add(&mut self, ran: Ran) {
        self.words.push(ran.stdout);
        self.reports.extend(ran.report);
    }

    /// Adds a client's run of which only `words` can be compared.
    pub fn add_as(&mut self, ran: Ran, words: impl Into<String>) {
        self.words.push(words.into());
        self.reports.extend(ran.report);
    }
}

/// Runs `body` on the kernel and accelerated, and compares.
pub fn alike(place: Place, body: impl Fn(Way) -> Seen) {
    compare(place, &[Way::Accelerated], body);
}

/// The same, and with only one end accelerated as well: then all must stay on the kernel.
pub fn alike_by_halves(place: Place, body: impl Fn(Way) -> Seen) {
    compare(place, &[Way::OnlyClient, Way::OnlyServer, Way::Accelerated], body);
}

fn compare(place: Place, ways: &[Way], body: impl Fn(Way) -> Seen) {
    let plain = plainly(&body);
    for &way in ways {
        let run = || {
            let seen = body(way);
            assert_eq!(plain.words, seen.words, "plain (left) and {way:?} (right) differ");
            seen
        };
        let mut seen = run();
        if matches!((way, place), (Way::Accelerated, Place::SharedMemory)) {
            // On a busy machine an end may sleep whenever bytes are sent: see below.
            for _ in 1..SHARE_RUNS {
                if !seen.reports.iter().flat_map(sockets).any(|socket| socket.is_shared) {
                    seen = run();
                }
            }
        }
        let sockets: Vec<Socket> = seen.reports.iter().flat_map(sockets).collect();
        match (way, place) {
            (Way::Plain | Way::OnlyServer, _) => {}
            (Way::OnlyClient, _) => {
                assert!(!sockets.is_empty(), "the exit report names no socket: {:?}", seen.reports);
                let shared = sockets.iter().find(|socket| socket.is_shared);
                assert!(shared.is_none(), "shared with a plain server: {shared:?}");
            }
            (Way::Accelerated, Place::SharedMemory) => {
                let is_shared = sockets.iter().any(|socket| socket.is_shared);
                let is_excused = || {
                    let reasons = sockets.iter().map(|socket| socket.reason.as_str());
                    // A server that is its client's standard stream has others for the data.
                    let of_data = reasons.filter(|reason| *reason != "used as a standard stream");
                    ends_slept(of_data) && is_machine_busy()
                };
                assert!(
                    is_shared || is_excused(),
                    "no connection was in shared memory: {sockets:?}"
                );
            }
            (Way::Accelerated, Place::Kernel(reason)) => {
                let has_reason = sockets.iter().any(|s| !s.is_shared && s.reason.contains(reason));
                assert!(has_reason, "no connection on the kernel with `{reason}`: {sockets:?}");
            }
        }
    }
}

fn plainly(body: &impl Fn(Way) -> Seen) -> Seen {
    accelerator();
    let plain = body(Way::Plain);
    assert!(!plain.words.is_empty(), "the test looks at nothing");
    plain
}

/// Runs until a share of the bytes was in shared memory.
const SHARE_RUNS: usize = 5;

/// Runs `body` on the kernel and accelerated, and compares. Each client must have more than
/// `least` of its bytes in shared memory in one of several runs: bytes to an end that sleeps go
/// through the kernel, and on a machine that others keep busy an end may sleep often. There it is
/// enough that no other reason kept the bytes from memory.
pub fn alike_mostly_in_memory(least: f64, body: impl Fn(Way) -> Seen) {
    let plain = plainly(&body);
    // After each run, because the other work may have ended when all of them are over.
    let was_busy = Cell::new(false);
    let watched = |way: Way| {
        let seen = body(way);
        let has_less = seen.reports.iter().map(share).any(|share| share <= least);
        was_busy.set(was_busy.get() || (has_less && is_machine_busy()));
        seen
    };
    if let Err(tried) = try_shares(least, &plain.words, &watched) {
        let reasons = tried.iter().flat_map(|one| &one.reasons).map(String::as_str);
        let is_excused = ends_slept(reasons) && was_busy.get();
        let fault = "the share of bytes in shared memory is never above";
        assert!(is_excused, "{fault} {least}: {tried:?}");
    }
}

/// Whether sleeping ends are the only reason why bytes went through the kernel.
fn ends_slept<'a>(mut reasons: impl Iterator<Item = &'a str>) -> bool {
    let asleep = [
        "",
        "its receivers waited in the kernel whenever bytes were sent",
        "it was closed before the handshake of both ends",
    ];
    reasons.all(|reason| asleep.contains(&reason))
}

/// Whether other programs keep this machine so busy that not even a ping-pong of two threads always
/// has nearly all of its bytes in shared memory.
fn is_machine_busy() -> bool {
    let control = || python(Way::Accelerated, "thread-server", &["loop-client"]);
    (0..3).any(|_| control().reports.iter().any(|report| share(report) < 0.999))
}

/// The same, where a busy machine is recognised by `control`, a body that nothing keeps from shared
/// memory: at most twice as large a share as in the worst run of it may be on the kernel.
pub fn alike_in_memory_beside(
    least: f64,
    body: impl Fn(Way) -> Seen,
    control: impl Fn(Way) -> Seen,
) {
    let plain = plainly(&body);
    let Err(tried) = try_shares(least, &plain.words, &body) else { return };
    let shares = || control(Way::Accelerated).reports.iter().map(share).fold(1.0, f64::min);
    let possible = (0..SHARE_RUNS).map(|_| shares()).fold(least, f64::min);
    let best = tried.iter().map(|one| one.least_share).fold(0.0, f64::max);
    assert!(
        1.0 - best <= 2.0 * (1.0 - possible),
        "never as much in shared memory as possible: {tried:?}, {possible}"
    );
}

/// A run in which not each client had its share.
#[derive(Debug)]
struct Tried {
    /// That of the client with the least.
    least_share: f64,
    reasons: BTreeSet<String>,
}

/// Accelerated runs of `body`, each with these words, until each client has its share.
fn try_shares(least: f64, words: &[String], body: &impl Fn(Way) -> Seen) -> Result<(), Vec<Tried>> {
    let mut tried = vec![];
    for _ in 0..SHARE_RUNS {
        let seen = body(Way::Accelerated);
        assert_eq!(words, seen.words, "plain (left) and accelerated (right) differ");
        assert!(!seen.reports.is_empty(), "no client was accelerated");
        let least_share = seen.reports.iter().map(share).fold(1.0, f64::min);
        if least_share > least {
            return Ok(());
        }
        let reasons = seen.reports.iter().flat_map(sockets).map(|socket| socket.reason);
        let reasons = reasons.filter(|reason| !reason.is_empty()).collect();
        tried.push(Tried { least_share, reasons });
    }
    Err(tried)
}

/// The share of all bytes of an exit report that was in shared memory.
fn share(report: &Value) -> f64 {
    report["share_in_memory"].as_f64().unwrap_or_else(|| panic!("no byte was sent: {report}"))
}

/// A line of the exit report.
#[derive(Debug)]
struct Socket {
    /// Whether bytes went through shared memory.
    is_shared: bool,
    reason: String,
}

/// The sockets of an exit report.
fn sockets(report: &Value) -> Vec<Socket> {
    let list = report["sockets"].as_array().map_or(&[][..], Vec::as_slice);
    let calls = |socket: &Value, way: &str| socket[way]["memory_calls"].as_u64().unwrap_or(0);
    list.iter()
        .map(|socket| Socket {
            is_shared: calls(socket, "sent") + calls(socket, "received") > 0,
            reason: socket["why"].as_str().unwrap_or_default().to_string(),
        })
        .collect()
}

/// The path of a program, or a failed test that says how to get it.
pub fn need(program: &str, package: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    // The system's own folders first: a version manager's shim in front is not the program.
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].into_iter().chain(path.split(':'));
    let found = folders.map(|folder| Path::new(folder).join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{program} is not installed and this test needs it: apt-get install {package}")
    })
}

/// As [`need`], of Debian's Python with a module.
pub fn need_python_with(module: &str, package: &str) -> PathBuf {
    let python = need("python3", "python3");
    let status = Command::new(&python).args(["-c", &format!("import {module}")]).status();
    let is_there = status.is_ok_and(|status| status.success());
    assert!(is_there, "{} has no module {module}: apt-get install {package}", python.display());
    python
}

/// A program of ours beside this file.
pub fn source(name: &str) -> PathBuf {
    root().join("crates/nearmetal/tests/it/programs").join(name)
}

/// One scenario of `echo.py`: a server of it, then clients of several kinds.
pub fn python(way: Way, kind: &str, clients: &[&str]) -> Seen {
    let python = need("python3", "python3");
    let port = free_port();
    let at = port.to_string();
    let mut command = way.server(&python);
    let server = Started::server(command.arg(source("echo.py")).args([kind, &at]), port);
    let mut seen = Seen::new();
    for &client in clients {
        let mut command = way.client(&python);
        seen.add(finish(command.arg(source("echo.py")).args([client, &at])));
    }
    server.end_by("TERM");
    seen
}

impl Way {
    /// The command of a server, accelerated or not.
    pub fn server(self, program: &Path) -> Command {
        self.command(program, matches!(self, Way::OnlyServer | Way::Accelerated), &[])
    }

    /// The command of a client; accelerated, it writes an exit report.
    pub fn client(self, program: &Path) -> Command {
        let is_accelerated = matches!(self, Way::OnlyClient | Way::Accelerated);
        self.command(program, is_accelerated, &["--stats", "--format", "json"])
    }

    fn command(self, program: &Path, is_accelerated: bool, options: &[&str]) -> Command {
        if !is_accelerated {
            return Command::new(program);
        }
        let mut command = Command::new(BINARY);
        command.arg("accel").args(options).arg("--").arg(program);
        command
    }
}

/// What a client left.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    /// The accelerator's exit report, if the client was accelerated.
    pub report: Option<Value>,
}

/// Runs a client to its end, which must come and be a good one.
pub fn finish(command: &mut Command) -> Ran {
    finish_with(command, "")
}

/// The same with `input` on its standard input.
pub fn finish_with(command: &mut Command, input: &str) -> Ran {
    let shown = format!("{command:?}");
    let mut stdin = tempfile::tempfile().expect("a temporary file");
    std::io::Write::write_all(&mut stdin, input.as_bytes()).expect("written");
    stdin.seek(SeekFrom::Start(0)).expect("rewound");
    let outputs = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
    command.stdin(stdin).stdout(copy(&outputs[0])).stderr(copy(&outputs[1]));
    let mut started = Started::new(command);
    let status = started.wait(PATIENCE);
    let [stdout, stderr] = outputs.map(|mut file| {
        let mut bytes = vec![];
        file.seek(SeekFrom::Start(0)).expect("rewound");
        file.read_to_end(&mut bytes).expect("read");
        String::from_utf8_lossy(&bytes).into_owned()
    });
    // The report would hide what the program wrote.
    let written = || report_start(&stderr).map_or(stderr.as_str(), |at| &stderr[..at]);
    let output = || format!("{shown}\nstdout: {}\nstderr: {}", tail(&stdout), tail(written()));
    let status = status.unwrap_or_else(|| panic!("hangs: {}", output()));
    assert!(status.success(), "ended with {:?} {status}: {}", status.signal(), output());
    let is_accelerated = shown.contains("\"accel\" \"--stats\"");
    let report = is_accelerated.then(|| exit_report(&stderr));
    Ran { stdout, stderr, report }
}

/// The report that the accelerator wrote after all that the program wrote itself.
fn exit_report(stderr: &str) -> Value {
    let text = report_start(stderr).map_or(stderr, |at| &stderr[at..]);
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("no exit report ({e}): {stderr}"))
}

/// Where the exit report begins.
fn report_start(stderr: &str) -> Option<usize> {
    stderr.rfind("\n{\n").or_else(|| stderr.starts_with("{\n").then_some(0))
}

fn copy(file: &File) -> File {
    file.try_clone().expect("a descriptor")
}

/// The end of a text, enough to see what went wrong.
fn tail(text: &str) -> String {
    let skip = text.chars().count().saturating_sub(3000);
    text.chars().skip(skip).collect()
}

/// A process of ours at the head of its own group: all of it ends with the test.
pub struct Started(Child);

impl Started {
    pub fn new(command: &mut Command) -> Started {
        let shown = format!("{command:?}");
        let child = command.process_group(0).spawn();
        Started(child.unwrap_or_else(|error| panic!("cannot start {shown}: {error}")))
    }

    /// A server, ready when it listens on `port`. What it writes is in the panic if it is not.
    pub fn server(command: &mut Command, port: u16) -> Started {
        let shown = format!("{command:?}");
        let log = tempfile::tempfile().expect("a temporary file");
        command.stdin(Stdio::null()).stdout(copy(&log)).stderr(copy(&log));
        let mut started = Started::new(command);
        wait_for(&format!("{shown} to listen"), || {
            if let Ok(Some(status)) = started.0.try_wait() {
                let (mut text, mut log) = (String::new(), copy(&log));
                let _ = log.seek(SeekFrom::Start(0));
                let _ = log.read_to_string(&mut text);
                panic!("{shown} ended with {status}: {}", tail(&text));
            }
            listens(port).then_some(())
        });
        started
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the end, or gives none.
    fn wait(&mut self, longest: Duration) -> Option<std::process::ExitStatus> {
        for _ in 0..longest.as_millis() / 5 {
            if let Some(status) = self.0.try_wait().expect("a child of ours") {
                return Some(status);
            }
            sleep(Duration::from_millis(5));
        }
        None
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        self.send(name, &self.pid().to_string());
    }

    fn send(&self, name: &str, target: &str) {
        let _ = Command::new("kill")
            .args([&format!("-{name}"), "--", target])
            .stderr(Stdio::null())
            .status();
    }

    /// Asks for the end by a signal, and waits for it: a server must still hear its signals.
    pub fn end_by(mut self, name: &str) {
        self.signal(name);
        let status = self.wait(PATIENCE);
        assert!(status.is_some(), "process {} does not end by SIG{name}", self.pid());
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The group's id is the head's, which stays ours until it is waited for.
        self.send("KILL", &format!("-{}", self.pid()));
        let _ = self.0.wait();
    }
}

/// The number after `key` in a text such as `SentMessages=12;`.
pub fn number_after(text: &str, key: &str) -> u64 {
    let rest = text.split_once(key).unwrap_or_else(|| panic!("no `{key}` in {text}")).1;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after `{key}` in {text}"))
}

/// Bytes that look random and are the same in each run.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(bytes)
    .collect()
}
