//! Starting the programs of a case: servers that are ended as their users do, and clients with
//! their exit reports.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::{Build, CLIENT_CPU, NotInstalled, SERVER_CPU, require_tool};
use crate::{leftovers, shell};

/// Longest time of one client, s.
const TIMEOUT_S: &str = "60";

/// Checks of whether a server listens or has ended, one every 20 ms.
const CHECKS: u32 = 1000;

/// Debian's user and group of least rights.
const NOBODY: u32 = 65534;

/// The folder of a run: all that its programs read and write. Removed on drop.
pub struct Folder {
    path: PathBuf,
    binary: PathBuf,
}

impl Folder {
    /// A folder that every user can read, with copies of the build's files: some programs run as
    /// nobody, who may not read where it was built.
    pub fn make(build: Build) -> Result<Folder> {
        let within = std::env::temp_dir();
        leftovers::remove_folders(&within, FOLDER);
        let path = within.join(leftovers::own_name(FOLDER));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let folder = Folder { binary: path.join("nearmetal"), path };
        open_to_all(&folder.path)?;
        let built = Path::new(build.binary);
        for name in ["nearmetal", "libnm_accel.so"] {
            let from = if name == "nearmetal" { built } else { &built.with_file_name(name) };
            std::fs::copy(from, folder.path.join(name))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
        Ok(folder)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A subfolder of that name, whether new, made for a user.
    pub fn subfolder(&self, name: &str, user: User) -> Result<(PathBuf, bool)> {
        let path = self.path.join(name);
        let is_new = !path.exists();
        if is_new {
            std::fs::create_dir(&path)?;
            open_to_all(&path)?;
            if let User(Some(user)) = user {
                chown(&path, Some(user), Some(user))?;
            }
        }
        Ok((path, is_new))
    }
}

/// Name of a run's folder, before the number of its process.
const FOLDER: &str = "nearmetal-programs-";

fn open_to_all(path: &Path) -> Result<()> {
    Ok(std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Whom a program runs as: none is the user of this task.
#[derive(Clone, Copy)]
pub struct User(Option<u32>);

impl User {
    pub const OWN: User = User(None);

    /// For programs that refuse to run as root.
    pub fn not_root() -> User {
        User(is_root().then_some(NOBODY))
    }

    pub fn of(self, command: &mut Command) -> &mut Command {
        if let User(Some(user)) = self {
            command.uid(user).gid(user);
        }
        command
    }
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The rate of a run and the exit reports of its clients.
pub struct Outcome {
    pub rate: f64,
    pub reports: Vec<Value>,
}

/// Starts programs, accelerated or not.
pub struct Launcher<'a> {
    pub folder: &'a Folder,
    pub is_accelerated: bool,
}

impl Launcher<'_> {
    /// The command of a server in the run's folder, pinned. It ends as its users end it when this
    /// task is killed.
    pub fn server(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "taskset"]);
        self.pinned(command, SERVER_CPU, &[], words)
    }

    /// The command of a client; accelerated, it writes an exit report.
    pub fn client(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", TIMEOUT_S, "taskset"]);
        self.pinned(command, CLIENT_CPU, &["--stats", "--format", "json"], words)
    }

    fn pinned(&self, mut command: Command, cpu: u32, options: &[&str], words: &[&str]) -> Command {
        command.arg("-c").arg(cpu.to_string()).current_dir(&self.folder.path);
        if self.is_accelerated {
            command.arg(&self.folder.binary).arg("accel").args(options).arg("--");
        }
        command.args(words);
        command
    }

    /// Runs a client to its good end, and gives what it wrote and its exit report.
    pub fn finish(&self, command: &mut Command) -> Result<(String, Vec<Value>)> {
        let shown = format!("{command:?}");
        let output = command.stdin(Stdio::null()).output().with_context(|| shown.clone())?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = stderr.rfind("\n{\n").or_else(|| stderr.starts_with("{\n").then_some(0));
        let (written, report) = stderr.split_at(at.unwrap_or(stderr.len()));
        if !output.status.success() {
            eprintln!("{shown}: {stdout}{written}");
            if matches!(output.status.code(), Some(124 | 137)) {
                bail!("its client did not end within {TIMEOUT_S} s");
            }
            let cause = written.lines().find(|line| !line.trim().is_empty());
            bail!("its client ended with {}: {}", output.status, cause.unwrap_or("no error"));
        }
        if !self.is_accelerated {
            return Ok((stdout, vec![]));
        }
        let report = serde_json::from_str(report.trim()).context("there is no exit report")?;
        Ok((stdout, vec![report]))
    }

    /// Runs a client whose output `rate` finds its figure in.
    pub fn measure(
        &self,
        command: &mut Command,
        rate: impl Fn(&str) -> Option<f64>,
    ) -> Result<Outcome> {
        let (stdout, reports) = self.finish(command)?;
        let rate = rate(&stdout).with_context(|| format!("no figure in: {stdout}"))?;
        Ok(Outcome { rate, reports })
    }
}

/// A server at the head of its own group of processes; all of it ends on drop.
pub struct Service {
    child: Child,
    /// The signal by which its users end it.
    signal: &'static str,
}

impl Service {
    /// Starts a server that listens on `port`.
    pub fn start(command: &mut Command, port: u16, signal: &'static str) -> Result<Service> {
        let shown = format!("{command:?}");
        let log = std::env::temp_dir().join(format!("nearmetal-service-{}", std::process::id()));
        let file = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {shown}"))?;
        let mut service = Service { child, signal };
        let is_ready = service.wait_for(|service| {
            let has_ended = matches!(service.child.try_wait(), Ok(Some(_)));
            has_ended.then_some(false).or_else(|| listens(port).then_some(true))
        });
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        if is_ready != Some(true) {
            bail!("{shown} does not listen: {}", text.lines().last().unwrap_or("no output"));
        }
        Ok(service)
    }

    fn wait_for<T>(&mut self, mut found: impl FnMut(&mut Service) -> Option<T>) -> Option<T> {
        for _ in 0..CHECKS {
            if let Some(found) = found(self) {
                return Some(found);
            }
            sleep(Duration::from_millis(20));
        }
        None
    }

    fn send(&self, signal: &str, target: &str) {
        let _ = Command::new("kill")
            .args([&format!("-{signal}"), "--", target])
            .stderr(Stdio::null())
            .status();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        self.send(self.signal, &id);
        let has_ended =
            self.wait_for(|service| matches!(service.child.try_wait(), Ok(Some(_))).then_some(()));
        if has_ended.is_none() {
            eprintln!("    a server does not end by SIG{}", self.signal);
        }
        // What it left of its group.
        self.send("KILL", &format!("-{id}"));
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether a socket listens on `port`; a connection would be one of the server's.
fn listens(port: u16) -> bool {
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

/// Fails where one of the programs is missing, naming its package.
pub fn require(tools: &[(&str, &'static str)]) -> Result<()> {
    tools.iter().try_for_each(|(tool, package)| require_tool(tool, package))
}

/// Fails where a file of a package is missing.
pub fn require_file(path: &str, package: &'static str) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    Err(NotInstalled { program: path.to_string(), package }.into())
}

/// The path of a program of the tests.
pub fn source(name: &str) -> String {
    let folder = shell::root().join("crates/nearmetal/tests/it/programs");
    folder.join(name).display().to_string()
}

/// The number after `key`.
pub fn number_after(text: &str, key: &str) -> Option<f64> {
    let (_, rest) = text.split_once(key)?;
    let is_part = |char: &char| char.is_ascii_digit() || *char == '.';
    rest.trim_start().chars().take_while(is_part).collect::<String>().parse().ok()
}

/// Bytes in shared memory and, by reason, those on the kernel, of all sockets of the reports.
#[derive(Default)]
pub struct Bytes {
    pub in_memory: u64,
    pub on_kernel: BTreeMap<String, u64>,
}

impl Bytes {
    pub fn add(&mut self, report: &Value) {
        let sum = |sums: &Value, kind: &str| {
            ["sent", "received"]
                .map(|way| sums[way][kind].as_u64().unwrap_or(0))
                .into_iter()
                .fold(0, u64::saturating_add)
        };
        let mut add_on_kernel = |reason: &str, bytes: u64| {
            if bytes > 0 {
                *self.on_kernel.entry(reason.to_string()).or_default() += bytes;
            }
        };
        for socket in report["sockets"].as_array().into_iter().flatten() {
            self.in_memory += sum(socket, "memory_bytes");
            add_on_kernel(socket["why"].as_str().unwrap_or(NO_REASON), sum(socket, "kernel_bytes"));
        }
        add_on_kernel(SHORT, sum(&report["not_listed"], "kernel_bytes"));
    }

    pub fn total(&self) -> u64 {
        self.in_memory + self.on_kernel.values().sum::<u64>()
    }
}

/// Why bytes of a connection that is not listed went through the kernel.
const SHORT: &str = "it was closed before the handshake of both ends";

/// Why bytes of a connection in shared memory went through the kernel.
const NO_REASON: &str = "before both ends had met, or to an end that slept";
