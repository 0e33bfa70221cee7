//! Agents in network namespaces of their own, made by root or, where the kernel allows it, by an
//! ordinary user within a user namespace.

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nm_model::plan::EnvironmentKind;
use nm_model::{Answer, Failure, FailureKind, Side};
use nm_sys::hostfiles::HostFiles;
use nm_sys::namespace::{Isolation, Namespace, isolate, privileged};
use nm_sys::process::ChildProcess;

use super::{Addresses, Setup};
use crate::agent::Handle;

/// How long the helper that lays the wires may take.
const WIRE_PATIENCE: Duration = Duration::from_secs(20);

/// Both agents in their namespaces, not wired yet.
pub struct Spaces {
    client: Handle,
    server: Handle,
    /// Whether the client's user namespace owns all others.
    within_user: bool,
}

impl Spaces {
    /// Starts both agents.
    pub fn start(setup: &Setup, kind: EnvironmentKind) -> Result<Spaces, Failure> {
        let within_user = !privileged();
        let first = if within_user { Isolation::UserAndNetwork } else { Isolation::Network };
        let agent = |side, isolation| {
            let mut command = setup.agent(side)?;
            isolate(&mut command, isolation);
            setup.launch(kind, side, command).map_err(|failure| explain(failure, within_user))
        };
        let client = agent(Side::Client, first)?;
        let server = agent(Side::Server, next_to(&client, within_user)?)?;
        Ok(Spaces { client, server, within_user })
    }

    /// Starts a process that only holds a namespace.
    pub fn holder(&self, setup: &Setup) -> Result<ChildProcess, Failure> {
        let mut command = setup.subcommand(&["lab-hold"])?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        isolate(&mut command, next_to(&self.client, self.within_user)?);
        ChildProcess::spawn(command)
            .map_err(|error| explain(failure("start a holder", &error), self.within_user))
    }

    /// Has the helper lay the wires; gives the addresses.
    pub fn wire(&self, setup: &Setup, shape: &str, more: &[u32]) -> Result<Addresses, Failure> {
        let user = match self.within_user {
            true => self.client.pid().to_string(),
            false => "-".to_string(),
        };
        let mut command = setup.subcommand(&["lab-wire", shape, &user])?;
        for pid in [self.client.pid(), self.server.pid()].iter().chain(more) {
            command.arg(pid.to_string());
        }
        let addresses = run_helper(command).map_err(|f| explain(f, self.within_user))?;
        Ok(addresses.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// The agents, to be taken in.
    pub fn agents(self) -> (Handle, Handle) {
        (self.client, self.server)
    }
}

/// How to isolate a further process so that one helper may act on all of them.
fn next_to(client: &Handle, within_user: bool) -> Result<Isolation, Failure> {
    if !within_user {
        return Ok(Isolation::Network);
    }
    Namespace::user_of(client.pid())
        .map(Isolation::JoinUser)
        .map_err(|error| failure(&format!("open the user namespace of {}", client.name()), &error))
}

/// Runs `lab-wire` to its end and reads its answer.
fn run_helper(mut command: Command) -> Result<Vec<IpAddr>, Failure> {
    const ANSWER_BYTES_MAX: u64 = 1 << 16;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper =
        ChildProcess::spawn(command).map_err(|error| failure("start `lab-wire`", &error))?;
    let output = helper.take_stdout();
    if helper.wait_timeout(WIRE_PATIENCE).is_none() {
        let message = format!("laying the wires took more than {} s", WIRE_PATIENCE.as_secs());
        return Err(Failure::new(FailureKind::System, message));
    }
    let mut text = String::new();
    if let Some(output) = output {
        // The helper has ended, so the pipe has too; what is no text is no answer either.
        let _ = output.take(ANSWER_BYTES_MAX).read_to_string(&mut text);
    }
    let line = text.lines().next().unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(Answer::Prepared { addresses }) => {
            let addresses: Vec<IpAddr> = addresses.iter().flat_map(|text| text.parse()).collect();
            if addresses.is_empty() {
                return Err(Failure::new(FailureKind::System, "`lab-wire` gave no addresses"));
            }
            Ok(addresses)
        }
        Ok(Answer::Failed(failure)) => Err(failure),
        _ => Err(Failure::new(FailureKind::System, "`lab-wire` ended without an answer")),
    }
}

/// The hidden subcommand `lab-hold`: holds its namespaces until its standard input ends, and then
/// removes the folder that agents met in, if it was given one.
pub fn hold(share: Option<&Path>) {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    if let Some(folder) = share {
        // The owner removes it as well, and may have been first.
        let _ = super::share::remove(folder);
    }
}

fn failure(what: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => FailureKind::Permission,
        _ => FailureKind::System,
    };
    Failure::new(kind, format!("cannot {what}: {error}"))
}

/// Adds to a failure for want of permission which setting of the kernel forbids it.
fn explain(failure: Failure, within_user: bool) -> Failure {
    // unshare(2) reports a limit of zero namespaces as "no space left on device".
    let forbidden =
        failure.kind == FailureKind::Permission || failure.message.contains("os error 28");
    if !forbidden {
        return failure;
    }
    let hint = match within_user {
        true => forbidding_setting(&HostFiles::default()),
        false => "this container forbids namespaces; start it with --privileged, or with \
                  --cap-add SYS_ADMIN,NET_ADMIN and without its seccomp filter"
            .to_string(),
    };
    Failure { kind: FailureKind::Permission, ..failure }.hint(hint)
}

/// Which setting forbids user namespaces, and what to do.
fn forbidding_setting(files: &HostFiles) -> String {
    let is = |path: &str, value: &str| files.text(path).as_deref() == Some(value);
    let settings = [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "10000"),
        ("user.max_net_namespaces", "0", "10000"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    for (name, forbids, allows) in settings {
        if is(&format!("/proc/sys/{}", name.replace('.', "/")), forbids) {
            return format!(
                "{name} = {forbids} forbids it to ordinary users: run as root, or allow it by \
                 `sysctl -w {name}={allows}`"
            );
        }
    }
    "the kernel or a container's seccomp filter forbids user namespaces: run as root".to_string()
}

/// Why namespaces cannot be made here, if so; tried once in each process.
pub(crate) fn obstacle() -> Option<String> {
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    TRIED.get_or_init(|| try_isolation(!privileged()).err().map(|f| f.to_string())).clone()
}

/// Starts and ends a process in a namespace of its own.
pub(crate) fn try_isolation(within_user: bool) -> Result<(), Failure> {
    let mut command = Setup::default().subcommand(&["lab-hold"])?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let isolation = match within_user {
        true => Isolation::UserAndNetwork,
        false => Isolation::Network,
    };
    isolate(&mut command, isolation);
    ChildProcess::spawn(command)
        .map(drop)
        .map_err(|error| explain(failure("make a network namespace", &error), within_user))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(name: &str, setting: &str, value: &str) -> HostFiles {
        let root = std::env::temp_dir().join(format!("nm-lab-{name}-{}", std::process::id()));
        let path = root.join(setting);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, value).unwrap();
        HostFiles::new(root)
    }

    #[test]
    fn the_setting_that_forbids_is_named_with_its_remedy() {
        let path = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        let files = root_with("apparmor", path, "1\n");
        let hint = forbidding_setting(&files);
        assert!(
            hint.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
            "{hint}"
        );
        std::fs::remove_dir_all(files.path("/")).unwrap();

        let none = forbidding_setting(&HostFiles::new("/nothing/of/this/name"));
        assert!(none.contains("run as root"), "{none}");
    }

    #[test]
    fn only_want_of_permission_is_explained() {
        let other = Failure::new(FailureKind::System, "cannot start: file not found");
        assert_eq!(explain(other.clone(), true), other);
        let full = failure("start", &io::Error::from_raw_os_error(28));
        assert_eq!(explain(full, true).kind, FailureKind::Permission);
    }
}
