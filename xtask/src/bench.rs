//! What the benchmark commands share. It is the network they run on, pinned programs at both ends
//! of it, and the lines of a report that name the machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nm_stats::quantile::interval_ranks;
use serde_json::Value;

use crate::{leftovers, shell};

/// Start of the namespaces' names, before the number of the process.
const NAMESPACE: &str = "nmbench-";

/// Addresses of the client's and the server's end.
const ADDRESSES: [&str; 2] = ["10.78.1.1", "10.78.1.2"];
pub const CLIENT_CPU: u32 = 1;
pub const SERVER_CPU: u32 = 0;

/// Longest time of one measurement, s: a program that hangs does not stop the run.
const TIMEOUT_S: u32 = 40;

/// The network between both ends of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Loopback,
    /// Two namespaces joined by a veth pair. Needs a [`VethPair`].
    Veth,
}

impl Network {
    /// The server's address.
    pub fn address(self) -> &'static str {
        match self {
            Network::Loopback => "127.0.0.1",
            Network::Veth => ADDRESSES[1],
        }
    }

    /// The start of a command line that runs at an end: 0 is the client's, 1 the server's.
    fn exec_prefix(self, end: usize) -> String {
        match self {
            Network::Loopback => String::new(),
            Network::Veth => format!("ip netns exec {} ", namespaces()[end]),
        }
    }
}

/// Names of the client's and the server's namespace: those of another run stay as they are.
fn namespaces() -> [String; 2] {
    ["a", "b"].map(|end| format!("{}-{end}", leftovers::own_name(NAMESPACE)))
}

/// Two namespaces joined by a veth pair; removed on drop.
pub struct VethPair;

impl VethPair {
    pub fn create() -> Result<VethPair> {
        leftovers::remove_namespaces(NAMESPACE);
        let pair = VethPair;
        let ([a, b], [a_address, b_address]) = (namespaces(), ADDRESSES);
        for line in [
            format!("ip netns add {a}"),
            format!("ip netns add {b}"),
            format!("ip -n {a} link add nm0 type veth peer name nm0 netns {b}"),
            format!("ip -n {a} addr add {a_address}/24 dev nm0"),
            format!("ip -n {b} addr add {b_address}/24 dev nm0"),
            format!("ip -n {a} link set nm0 up"),
            format!("ip -n {b} link set nm0 up"),
            format!("ip -n {a} link set lo up"),
            format!("ip -n {b} link set lo up"),
        ] {
            let (text, ok) = shell::output(&line)?;
            if !ok {
                bail!("`{line}` failed: {text}");
            }
        }
        Ok(pair)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        namespaces().iter().for_each(|name| leftovers::remove_namespace(name));
    }
}

/// A server; ended on drop.
pub struct Server(Child);

impl Server {
    /// Starts `line` on the server's CPU, or on `cpu`.
    pub fn start_on(network: Network, cpu: u32, line: &str) -> Result<Server> {
        let server = Server::spawn(&format!("{}taskset -c {cpu} {line}", network.exec_prefix(1)))?;
        sleep(Duration::from_millis(300));
        Ok(server)
    }

    pub fn start(network: Network, line: &str) -> Result<Server> {
        Server::start_on(network, SERVER_CPU, line)
    }

    fn spawn(line: &str) -> Result<Server> {
        let child = shell::command(line)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        Ok(Server(child))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a client wrote.
pub struct ClientOutput {
    pub stdout: String,
    pub stderr: String,
}

/// Runs `line` on the client's CPU; fails if it fails.
pub fn client(network: Network, line: &str) -> Result<ClientOutput> {
    let line = format!(
        "{}timeout -k 1 {TIMEOUT_S} taskset -c {CLIENT_CPU} {line}",
        network.exec_prefix(0)
    );
    let ended = shell::command(&line).stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let output = ClientOutput { stdout: text(&ended.stdout), stderr: text(&ended.stderr) };
    if ended.status.success() {
        return Ok(output);
    }
    eprintln!("`{line}` ended with {}: {}{}", ended.status, output.stdout, output.stderr);
    // `timeout` ended it.
    if matches!(ended.status.code(), Some(124 | 137)) {
        bail!("did not end within {TIMEOUT_S} s");
    }
    let lines = || output.stderr.lines().chain(output.stdout.lines());
    let cause = lines().find(|line| line.to_lowercase().contains("error"));
    let cause = cause.or_else(|| lines().find(|line| !line.trim().is_empty()));
    bail!("{}: {}", ended.status, cause.unwrap_or("it wrote no error"))
}

/// A build of nearmetal: the path of its binary, with the accelerator's library beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub binary: &'static str,
}

impl Build {
    /// That of `cargo build --release` of this workspace.
    pub fn current() -> Build {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = shell::root().join(target.unwrap_or_else(|| "target".into()));
        Build::of(&target.join("release/nearmetal"))
    }

    /// The build in another folder, for example that of an earlier version.
    pub fn in_folder(folder: &Path) -> Result<Build> {
        let binary = folder.join("nearmetal");
        let binary = binary.canonicalize().with_context(|| format!("no {}", binary.display()))?;
        Ok(Build::of(&binary))
    }

    /// The path is kept for the life of the program, so that measurements can copy it.
    pub fn of(binary: &Path) -> Build {
        Build { binary: Box::leak(binary.display().to_string().into_boxed_str()) }
    }
}

/// Builds [`Build::current`].
pub fn build() -> Result<()> {
    shell::run("cargo build --release --locked")
}

/// nearmetal's own client and server; it sets both ends' CPUs itself, as its users do.
pub fn nearmetal(build: Build, network: Network, words: &str) -> Result<Value> {
    let binary = build.binary;
    let line = format!("{}{binary} pingpong server --once", network.exec_prefix(1));
    let _server = Server::spawn(&line)?;
    sleep(Duration::from_millis(200));
    let line = format!(
        "{}timeout -k 1 {TIMEOUT_S} {binary} {words} --affinity \
         '{CLIENT_CPU};{SERVER_CPU}' --format json",
        network.exec_prefix(0)
    );
    let output = Command::new("sh").args(["-c", &line]).current_dir(shell::root()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .map_err(|_| anyhow::anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A program of another package that is missing here.
#[derive(Debug)]
pub struct NotInstalled {
    pub program: String,
    pub package: &'static str,
}

impl std::fmt::Display for NotInstalled {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} is not installed; apt-get install {}", self.program, self.package)
    }
}

impl std::error::Error for NotInstalled {}

/// Fails where a tool is missing, naming its package: [`NotInstalled`].
pub fn require_tool(tool: &str, package: &'static str) -> Result<()> {
    if shell::output(&format!("which {tool}"))?.1 {
        return Ok(());
    }
    Err(NotInstalled { program: tool.to_string(), package }.into())
}

/// Median of values; not a number where there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Between which values the median of all rounds there could be lies with 95 % confidence; none if
/// there are too few.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = interval_ranks(sorted.len(), 50.0)?;
    Some((sorted[low - 1], sorted[high - 1]))
}

/// Least and greatest value.
pub fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    })
}

/// The cells of a row whose command failed.
pub fn failure(text: &str, cells: usize) -> String {
    format!("{}failed: {} | —", "n/a | ".repeat(cells - 2), first_line(text))
}

/// The first line of what a command wrote, for a cell of a table.
pub fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it wrote nothing");
    line.replace('|', "/")
}

/// Prints a table, and writes it to a file of the workspace if one is given.
pub fn write_table(text: &str, out: Option<&str>) -> Result<()> {
    print!("{text}");
    let Some(path) = out else { return Ok(()) };
    std::fs::write(shell::root().join(path), text).with_context(|| format!("cannot write {path}"))
}

/// Lines that name the date, the commit, the machine, the versions of the tools and the load.
pub fn environment_lines(packages: &[&str]) -> String {
    let mut lines = vec![
        ("date", "date -u +%F".to_string()),
        ("CPUs", "nproc --all".into()),
        ("kernel", "uname -srm".into()),
    ];
    lines.extend(packages.iter().map(|name| (*name, format!("dpkg-query -W {name}"))));
    lines.push(("load at the end", "cat /proc/loadavg".into()));
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find(|line| line.starts_with("model name"));
    let mut text = String::new();
    if let Some((_, model)) = model.and_then(|line| line.split_once(": ")) {
        let _ = writeln!(text, "- processor: {model}");
    }
    if let Some(commit) = commit() {
        let _ = writeln!(text, "- commit, and -dirty if files were changed: {commit}");
    }
    for (name, line) in lines {
        if let Ok((found, true)) = shell::output(&line) {
            let found = found.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(text, "- {name}: {found}");
        }
    }
    text
}

/// The commit of the tree, with `-dirty` if files differ from it. Pages of results do not count:
/// a run that makes several writes the first before it measures the second.
fn commit() -> Option<String> {
    let (commit, is_ok) = shell::output("git describe --always").ok()?;
    let (changed, _) = shell::output("git diff --name-only HEAD -- . :!docs/results").ok()?;
    let mark = if changed.is_empty() { "" } else { "-dirty" };
    is_ok.then(|| format!("{}{mark}", commit.trim()))
}
