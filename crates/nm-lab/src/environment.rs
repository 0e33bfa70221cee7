//! Environments: where the two agents run. Each starts its agents and takes everything down again,
//! also when this process is killed: namespaces and links have no names, so they end with the
//! processes that hold them, and those end with this one.

mod bridge;
mod loopback;
mod netns;
mod share;
mod spaces;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, Launcher, Side, StackPair};
use nm_sys::process::ChildProcess;

use crate::agent::Handle;
use crate::launcher;
use crate::pair::Pair;

use share::Share;

pub use spaces::hold;
pub(crate) use spaces::{obstacle as namespaces_obstacle, try_isolation};

/// What to start an environment with.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// What the client's agent is started under.
    pub client_launcher: Option<Launcher>,
    /// What the server's agent is started under.
    pub server_launcher: Option<Launcher>,
    /// Existing folder for what the agents say: `agent-ENVIRONMENT-client.log` and
    /// `…-server.log`.
    pub log_folder: Option<PathBuf>,
    /// Folder in which accelerated agents of different namespaces meet; made where it is needed.
    pub share: Option<PathBuf>,
    /// The program that takes the subcommands `agent`, `lab-hold` and `lab-wire`; this one if
    /// absent.
    pub program: Option<PathBuf>,
}

impl Setup {
    /// With the launchers of a pair of stacks.
    pub fn new(stacks: &StackPair) -> Setup {
        Setup {
            client_launcher: stacks.client.launcher,
            server_launcher: stacks.server.launcher,
            ..Setup::default()
        }
    }

    /// What the agents say goes to files in this folder.
    #[must_use]
    pub fn log_folder(self, folder: &Path) -> Setup {
        Setup { log_folder: Some(folder.to_path_buf()), ..self }
    }

    fn program(&self) -> Result<PathBuf, Failure> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => std::env::current_exe().map_err(|error| {
                Failure::new(FailureKind::System, format!("cannot find the own program: {error}"))
            }),
        }
    }

    /// The command of one of the hidden subcommands.
    fn subcommand(&self, words: &[&str]) -> Result<Command, Failure> {
        let mut command = Command::new(self.program()?);
        command.args(words);
        Ok(command)
    }

    /// The command of one end's agent.
    fn agent(&self, side: Side) -> Result<Command, Failure> {
        let launcher = match side {
            Side::Client => self.client_launcher,
            Side::Server => self.server_launcher,
        };
        let mut command = match launcher {
            Some(launcher) => launcher::command(launcher, &self.program()?, self.share.as_deref())?,
            None => Command::new(self.program()?),
        };
        command.arg("agent");
        Ok(command)
    }

    /// Whether the agents need a folder to meet in: accelerated ones that are in namespaces.
    fn needs_share(&self, kind: EnvironmentKind) -> bool {
        let accelerated = [self.client_launcher, self.server_launcher];
        kind != EnvironmentKind::Loopback && accelerated.contains(&Some(Launcher::Accel))
    }

    /// Starts one end's agent, to be waited for.
    fn launch(
        &self,
        kind: EnvironmentKind,
        side: Side,
        command: Command,
    ) -> Result<Handle, Failure> {
        let log = self.log_folder.as_ref().map(|f| f.join(format!("agent-{kind}-{side}.log")));
        Handle::launch(&format!("agent `{side}` of {kind}"), command, log.as_deref())
    }
}

/// Addresses of the two ends: pairs of client and server, IPv4 first.
type Addresses = Vec<(IpAddr, IpAddr)>;

/// Two running agents and what was made for them.
pub struct Environment {
    /// Which kind it is.
    pub kind: EnvironmentKind,
    /// The agents, reaching each other by IPv4 unless told otherwise.
    pub pair: Pair,
    addresses: Addresses,
    /// Holds a namespace that no agent is in.
    holder: Option<ChildProcess>,
    /// Where accelerated agents meet.
    share: Option<Share>,
}

impl Environment {
    /// Takes in both agents, which have been launched, and what lies between them.
    fn new(
        kind: EnvironmentKind,
        (client, server): (Handle, Handle),
        addresses: Addresses,
        layer: &str,
        holder: Option<ChildProcess>,
    ) -> Result<Environment, Failure> {
        let agents = (Handle::wait(client)?, Handle::wait(server)?);
        let first = *addresses.first().ok_or_else(|| {
            Failure::new(FailureKind::System, format!("{kind} came without addresses"))
        })?;
        let pair = Pair::on_virtual_links(kind.name(), agents, first, layer)?;
        Ok(Environment { kind, pair, addresses, holder, share: None })
    }

    /// Has the agents reach each other by IPv6, or by IPv4 again.
    ///
    /// # Errors
    /// If the environment has no such addresses.
    pub fn use_ipv6(&mut self, ipv6: bool) -> Result<(), Failure> {
        let wanted = self.addresses.iter().find(|(client, _)| client.is_ipv6() == ipv6);
        let (client, server) = wanted.ok_or_else(|| {
            let message = format!("{} has no IPv{} here", self.kind, if ipv6 { 6 } else { 4 });
            Failure::new(FailureKind::NotAvailable, message)
        })?;
        (self.pair.client_address, self.pair.server_address) = (*client, *server);
        Ok(())
    }

    /// Ends both agents and all that was made for them. May be called again; dropping does it too.
    pub fn close(&mut self) {
        self.pair.close();
        if let Some(mut holder) = self.holder.take() {
            holder.kill();
        }
        self.share = None;
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        self.close();
    }
}

/// Starts an environment.
///
/// # Errors
/// What is missing or forbidden, and how to get it.
pub fn start(kind: EnvironmentKind, setup: &Setup) -> Result<Environment, Failure> {
    if setup.share.is_none() && setup.needs_share(kind) {
        let share = Share::new(setup.subcommand(&["lab-hold"])?)?;
        let setup = Setup { share: Some(share.path().to_path_buf()), ..setup.clone() };
        let mut environment = start(kind, &setup)?;
        environment.share = Some(share);
        return Ok(environment);
    }
    match kind {
        EnvironmentKind::Loopback => loopback::start(setup),
        EnvironmentKind::Netns => netns::start(setup),
        EnvironmentKind::Bridge => bridge::start(setup),
        EnvironmentKind::Vm | EnvironmentKind::Ssh => {
            let reason = crate::resolve::environment_obstacle(kind).unwrap_or_default();
            Err(Failure::new(FailureKind::NotAvailable, format!("{kind}: {reason}")))
        }
    }
}
