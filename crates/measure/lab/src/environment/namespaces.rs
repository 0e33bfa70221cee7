//! Agents in network namespaces of their own, created by root or, where the kernel allows it, by an
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

use crate::agent::Handle;
use crate::environment::running::Addresses;
use crate::environment::setup::Setup;
use crate::environment::shared_folder;

/// How long the helper that creates the links may take.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);

/// What can fail while namespaces are created and connected.
#[derive(Debug, thiserror::Error)]
enum NamespaceError {
    #[error("cannot {operation}: {source}")]
    System { operation: String, source: io::Error },
    #[error("creating the links took more than {} s", HELPER_TIMEOUT.as_secs())]
    HelperTimeout,
    #[error("`lab-wire` reported no addresses")]
    NoAddresses,
    #[error("`lab-wire` ended without an answer")]
    NoAnswer,
    #[error(transparent)]
    Helper(Failure),
}

impl NamespaceError {
    fn system(operation: impl Into<String>) -> impl FnOnce(io::Error) -> NamespaceError {
        let operation = operation.into();
        |source| NamespaceError::System { operation, source }
    }
}

impl From<NamespaceError> for Failure {
    fn from(error: NamespaceError) -> Failure {
        let kind = match &error {
            NamespaceError::System { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                FailureKind::Permission
            }
            NamespaceError::Helper(failure) => return failure.clone(),
            _ => FailureKind::System,
        };
        Failure::new(kind, error.to_string())
    }
}

/// Both agents in their namespaces, not connected yet.
pub struct IsolatedAgents {
    client: Handle,
    server: Handle,
    /// Whether the client's user namespace owns all others.
    within_user: bool,
}

impl IsolatedAgents {
    /// Starts both agents.
    pub fn start(setup: &Setup, kind: EnvironmentKind) -> Result<IsolatedAgents, Failure> {
        let within_user = !privileged();
        let first = if within_user { Isolation::UserAndNetwork } else { Isolation::Network };
        let agent = |side, isolation| {
            let mut command = setup.agent(side)?;
            isolate(&mut command, isolation);
            setup.launch(kind, side, command).map_err(|failure| explain(failure, within_user))
        };
        let client = agent(Side::Client, first)?;
        let server = agent(Side::Server, isolation_beside(&client, within_user)?)?;
        Ok(IsolatedAgents { client, server, within_user })
    }

    /// Starts a process that only keeps a namespace open.
    pub fn start_namespace_keeper(&self, setup: &Setup) -> Result<ChildProcess, Failure> {
        let mut command = setup.subcommand(&["lab-hold"])?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        isolate(&mut command, isolation_beside(&self.client, self.within_user)?);
        ChildProcess::spawn(command)
            .map_err(NamespaceError::system("start a process for a namespace"))
            .map_err(|error| explain(error.into(), self.within_user))
    }

    /// Creates links and addresses between the namespaces of both agents and of the processes
    /// `more`, in the shape that `lab-wire` calls `shape`.
    pub fn connect(&self, setup: &Setup, shape: &str, more: &[u32]) -> Result<Addresses, Failure> {
        let user = match self.within_user {
            true => self.client.pid().to_string(),
            false => "-".to_string(),
        };
        let mut command = setup.subcommand(&["lab-wire", shape, &user])?;
        for pid in [self.client.pid(), self.server.pid()].iter().chain(more) {
            command.arg(pid.to_string());
        }
        let addresses =
            run_helper(command).map_err(|error| explain(error.into(), self.within_user))?;
        Ok(addresses.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    /// The agents: client and server.
    pub fn into_handles(self) -> (Handle, Handle) {
        (self.client, self.server)
    }
}

/// A virtual switch: a bridge with a tap device for each guest, in a namespace of their own.
pub struct Switch {
    /// Keeps the namespace open.
    keeper: ChildProcess,
    within_user: bool,
}

impl Switch {
    /// Creates the devices for this number of guests.
    pub fn start(setup: &Setup, guests: u32) -> Result<Switch, Failure> {
        let within_user = !privileged();
        let mut command = setup.subcommand(&["lab-hold"])?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        isolate(
            &mut command,
            if within_user { Isolation::UserAndNetwork } else { Isolation::Network },
        );
        let keeper = ChildProcess::spawn(command)
            .map_err(NamespaceError::system("start a process for a namespace"))
            .map_err(|error| explain(error.into(), within_user))?;
        let pid = keeper.pid().to_string();
        let user = if within_user { &pid } else { "-" };
        let guests = guests.to_string();
        let command = setup.subcommand(&["lab-wire", "taps", user, &pid, &guests])?;
        run_helper(command).map_err(|error| explain(error.into(), within_user))?;
        Ok(Switch { keeper, within_user })
    }

    /// How a process gets into the namespace.
    pub fn join(&self) -> Result<Isolation, Failure> {
        let pid = self.keeper.pid();
        let open = || {
            let user = if self.within_user { Some(Namespace::user_of(pid)?) } else { None };
            Ok(Isolation::Join { user, network: Namespace::network_of(pid)? })
        };
        open().map_err(|error| {
            NamespaceError::system("open the namespace of the virtual switch")(error).into()
        })
    }

    /// The process that keeps the namespace open.
    pub fn into_keeper(self) -> ChildProcess {
        self.keeper
    }
}

/// How to isolate a further process so that one helper may enter the namespaces of all of them.
fn isolation_beside(client: &Handle, within_user: bool) -> Result<Isolation, NamespaceError> {
    if !within_user {
        return Ok(Isolation::Network);
    }
    Namespace::user_of(client.pid())
        .map(Isolation::JoinUser)
        .map_err(NamespaceError::system(format!("open the user namespace of {}", client.name())))
}

/// Runs `lab-wire` to its end and reads its answer.
fn run_helper(mut command: Command) -> Result<Vec<IpAddr>, NamespaceError> {
    const ANSWER_BYTES_MAX: u64 = 1 << 16;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper =
        ChildProcess::spawn(command).map_err(NamespaceError::system("start `lab-wire`"))?;
    let output = helper.take_stdout();
    if helper.wait_timeout(HELPER_TIMEOUT).is_none() {
        return Err(NamespaceError::HelperTimeout);
    }
    let mut text = String::new();
    if let Some(output) = output {
        // The helper has ended, so this reads to the end of the pipe. Bytes that are not text are
        // not an answer either.
        let _ = output.take(ANSWER_BYTES_MAX).read_to_string(&mut text);
    }
    let line = text.lines().next().unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(Answer::Prepared { addresses }) => {
            let addresses: Vec<IpAddr> = addresses.iter().flat_map(|text| text.parse()).collect();
            match addresses.is_empty() {
                true => Err(NamespaceError::NoAddresses),
                false => Ok(addresses),
            }
        }
        Ok(Answer::Failed(failure)) => Err(NamespaceError::Helper(failure)),
        _ => Err(NamespaceError::NoAnswer),
    }
}

/// The hidden subcommand `lab-hold`: keeps its namespaces open until its standard input ends, and
/// then removes the shared folder of accelerated agents, if it was given one.
///
/// # Errors
/// If the folder is not one of this user alone; it is then left as it is.
pub fn hold(folder: Option<&Path>) -> Result<(), Failure> {
    let wait = || drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    match folder {
        None => wait(),
        Some(folder) => shared_folder::remove_after(folder, wait)
            .map_err(|error| Failure::new(FailureKind::BadRequest, error.to_string()))?,
    }
    Ok(())
}

/// Adds to a failure for lack of permission which kernel setting forbids namespaces.
fn explain(failure: Failure, within_user: bool) -> Failure {
    // unshare(2) reports a limit of zero namespaces as "no space left on device".
    let is_forbidden =
        failure.kind == FailureKind::Permission || failure.message.contains("os error 28");
    if !is_forbidden {
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
                "{name} = {forbids} forbids it to ordinary users: run as root, or allow it with \
                 `sysctl -w {name}={allows}`"
            );
        }
    }
    "the kernel or a container's seccomp filter forbids user namespaces: run as root".to_string()
}

/// Why namespaces cannot be created here; none if they can. Tried once in each process.
pub(crate) fn unavailable_reason() -> Option<Failure> {
    static TRIED: OnceLock<Option<Failure>> = OnceLock::new();
    TRIED.get_or_init(|| try_isolation(!privileged()).err()).clone()
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
        .map_err(NamespaceError::system("create a network namespace"))
        .map_err(|error| explain(error.into(), within_user))
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
    fn forbidding_setting_is_named_with_its_remedy() {
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
    fn only_lack_of_permission_is_explained() {
        let other = Failure::new(FailureKind::System, "cannot start: file not found");
        assert_eq!(explain(other.clone(), true), other);
        let full = NamespaceError::system("start")(io::Error::from_raw_os_error(28));
        assert_eq!(explain(full.into(), true).kind, FailureKind::Permission);
    }
}
