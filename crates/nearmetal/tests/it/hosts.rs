//! Hosts for tests: network namespaces, each with an sshd of its own, joined by a bridge in one
//! more namespace, where nearmetal is started.
//!
//! The namespaces have no names, and end with the processes in them: those end with the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nm_sys::process::ChildProcess;

use crate::programs::need;
use crate::support::{BINARY, ProcessInfo, Run, finish, processes, wait_for};

/// Address of a host, from 1 on.
pub fn address(host: usize) -> String {
    format!("10.77.0.{host}")
}

/// A network namespace, kept by a process that ends with its input or with the test.
pub struct Namespace(ChildProcess);

impl Namespace {
    pub fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        Namespace(ready(command))
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// A program within it.
    pub fn within(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).arg("--").arg(program);
        command
    }

    /// The processes within it, besides the one that keeps it.
    pub fn processes(&self) -> Vec<ProcessInfo> {
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = of(self.pid());
        let is_within =
            |it: &ProcessInfo| own.is_some() && of(it.pid) == own && it.pid != self.pid();
        processes().into_iter().filter(is_within).collect()
    }

    /// Runs a shell command within it.
    pub fn shell(&self, script: &str) {
        let run = finish(self.within("sh").args(["-ec", script]).stdin(Stdio::null()));
        assert_eq!(run.code, 0, "{script}: {}{}", run.stdout, run.stderr);
    }
}

/// A session of sshd is no child of the test, and one that was cut off waits for TCP to give up:
/// all processes within end with the namespace.
impl Drop for Namespace {
    fn drop(&mut self) {
        for process in self.processes() {
            // It may have ended meanwhile.
            let _ = Command::new("kill").args(["-KILL", &process.pid.to_string()]).output();
        }
    }
}

/// Starts a program that says `ready` and runs until its input ends.
pub fn ready(mut command: Command) -> ChildProcess {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = ChildProcess::spawn(command).expect("the program starts");
    let mut line = String::new();
    BufReader::new(process.take_stdout().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "it takes root to make network namespaces");
    process
}

/// Hosts `h1`, `h2`, … with the addresses of [`address`], the bridge between them, and what ssh
/// needs.
pub struct Hosts {
    folder: tempfile::TempDir,
    bridge: Namespace,
    hosts: Vec<Namespace>,
    _servers: Vec<ChildProcess>,
}

impl Hosts {
    /// This many hosts that can be reached.
    pub fn new(count: usize) -> Hosts {
        Hosts::with_views(count, |_, _| String::new())
    }

    /// The same, each of which seems to be a machine of its own: its kernel has another boot id.
    pub fn as_machines(count: usize) -> Hosts {
        Hosts::with_views(count, |folder, number| boot_id(folder, number) + " && ")
    }

    /// The same; `view` makes what a host sees of the machine, as the start of a shell command.
    fn with_views(count: usize, view: impl Fn(&Path, usize) -> String) -> Hosts {
        assert!(nm_sys::namespace::privileged(), "this test makes namespaces: run it as root");
        let folder = tempfile::tempdir().unwrap();
        let bridge = Namespace::new();
        let hosts: Vec<Namespace> = (0..count).map(|_| Namespace::new()).collect();
        bridge.shell(
            "ip link add bridge0 type bridge && ip addr add 10.77.0.254/24 dev bridge0 && \
             ip link set bridge0 up",
        );
        for (number, host) in (1..).zip(&hosts) {
            bridge.shell(&format!(
                "ip link add port{number} type veth peer name lan0 netns {} && \
                 ip link set port{number} master bridge0 up",
                host.pid()
            ));
            host.shell(&format!(
                "ip addr add {}/24 dev lan0 && ip link set lan0 up",
                address(number)
            ));
        }
        let _servers = servers(folder.path(), &hosts, view);
        client(folder.path(), count);
        let hosts = Hosts { folder, bridge, hosts, _servers };
        for host in 1..=count {
            wait_for("a login", || {
                let login = hosts.ssh(host, "true");
                (login.code == 0).then_some(())
            });
        }
        hosts
    }

    /// What a command on a host gives.
    pub fn ssh(&self, host: usize, script: &str) -> Run {
        let mut login = self.bridge.within(self.path("bin/ssh"));
        finish(login.args([&format!("h{host}"), script]).stdin(Stdio::null()))
    }

    /// A path in the folder of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes nearmetal a program of all hosts.
    pub fn install(&self) {
        fs::create_dir(self.path("installed")).unwrap();
        std::os::unix::fs::symlink(BINARY, self.path("installed/nearmetal")).unwrap();
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// A host, from 1 on.
    pub fn host(&self, number: usize) -> &Namespace {
        &self.hosts[number - 1]
    }

    /// A program beside the bridge.
    pub fn bridge(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.bridge.within(program)
    }

    /// nearmetal beside the bridge.
    pub fn nearmetal(&self, words: &[&str]) -> Command {
        let mut command = self.bridge(BINARY);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Takes a host from the network, or gives it back.
    pub fn set_link(&self, host: usize, state: &str) {
        self.bridge.shell(&format!("ip link set port{host} {state}"));
    }
}

/// Makes a key.
pub fn key(path: &Path) {
    let mut keygen = Command::new(need("ssh-keygen", "openssh-client"));
    let made = finish(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path));
    assert_eq!(made.code, 0, "{}", made.stderr);
}

/// A shell command that gives a mount namespace the boot id of machine `number`.
pub fn boot_id(folder: &Path, number: usize) -> String {
    let path = folder.join(format!("boot{number}"));
    fs::write(&path, format!("{number:08}-0000-4000-8000-000000000000\n")).unwrap();
    format!("mount --bind {} /proc/sys/kernel/random/boot_id", path.display())
}

/// An sshd on each host, with its own key, that lets only the test's key in. Each has its own view
/// of its links, and its own temporary folder.
fn servers(
    folder: &Path,
    hosts: &[Namespace],
    view: impl Fn(&Path, usize) -> String,
) -> Vec<ChildProcess> {
    let sshd = need("sshd", "openssh-server");
    // The empty folder that sshd locks its unprivileged half into.
    let _ = fs::create_dir_all("/run/sshd");
    key(&folder.join("user"));
    let mut known = String::new();
    let mut servers = vec![];
    for (number, host) in (1..).zip(hosts) {
        let path = folder.join(format!("host{number}"));
        key(&path);
        let public = fs::read_to_string(path.with_extension("pub")).unwrap();
        known += &format!("{} {public}", address(number));
        let temporary = folder.join(format!("tmp{number}"));
        fs::create_dir(&temporary).unwrap();
        let config = folder.join(format!("sshd{number}"));
        let text = format!(
            "ListenAddress {}\nPort 22\nHostKey {}\nPidFile none\nStrictModes no\n\
             AuthorizedKeysFile {}\nPasswordAuthentication no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nAllowUsers root\n\
             SetEnv TMPDIR={} PATH={}:/usr/sbin:/usr/bin:/sbin:/bin\n",
            address(number),
            path.display(),
            folder.join("user.pub").display(),
            temporary.display(),
            folder.join("installed").display()
        );
        fs::write(&config, text).unwrap();
        let mut server = host.within("unshare");
        let view = view(folder, number);
        let script = format!("mount -t sysfs none /sys && {view} exec \"$0\" -D -e -f \"$1\"");
        server.args(["--mount", "sh", "-c", &script]).arg(&sshd).arg(config);
        server.stdin(Stdio::null()).stderr(Stdio::null());
        servers.push(ChildProcess::spawn(server).unwrap());
    }
    fs::write(folder.join("known"), known).unwrap();
    servers
}

/// An ssh that reads a configuration of ours: the user's own has no part in the test.
fn client(folder: &Path, count: usize) {
    let mut config = String::new();
    for number in 1..=count {
        config += &format!("Host h{number}\n  HostName {}\n", address(number));
    }
    let at = folder.display();
    config += &format!(
        "Host *\n  User root\n  IdentityFile {at}/user\n  IdentitiesOnly yes\n  \
         StrictHostKeyChecking yes\n  UserKnownHostsFile {at}/known\n  \
         GlobalKnownHostsFile /dev/null\n"
    );
    fs::write(folder.join("config"), config).unwrap();
    let ssh = need("ssh", "openssh-client");
    let text = format!("#!/bin/sh\nexec {} -F '{at}/config' \"$@\"\n", ssh.display());
    fs::create_dir(folder.join("bin")).unwrap();
    let mut file = fs::File::create(folder.join("bin/ssh")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
}
