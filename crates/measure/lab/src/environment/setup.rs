//! What an environment is started with: launchers, log folder, and the commands of agents and
//! helper processes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nm_model::plan::EnvironmentKind;
use nm_model::{
    AttachedSpec, Failure, FailureKind, GuestSpec, HostsSpec, Launcher, Side, StackPair,
};
use nm_sys::process;

use crate::agent::Handle;
use crate::launcher;

/// What to start an environment with.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// What the client's agent is started under.
    pub client_launcher: Option<Launcher>,
    /// What the server's agent is started under.
    pub server_launcher: Option<Launcher>,
    /// Existing folder for the error output of the agents: `agent-ENVIRONMENT-client.log` and
    /// `…-server.log`.
    pub log_folder: Option<PathBuf>,
    /// Folder for the handshake sockets of accelerated agents in different namespaces; created if
    /// absent and needed.
    pub shared_folder: Option<PathBuf>,
    /// What the virtual machines are like, in environments that have some.
    pub guests: GuestSpec,
    /// The hosts of the environment `ssh`.
    pub hosts: Option<HostsSpec>,
    /// The guests of the environment `vm-attached`.
    pub attached: Option<AttachedSpec>,
    /// The program that has the subcommands `agent`, `lab-hold` and `lab-wire`; this one if absent.
    pub program: Option<PathBuf>,
    /// Cancels the start once it is set.
    pub interrupted: Option<Arc<AtomicBool>>,
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

    /// The error output of the agents goes to files in this folder.
    #[must_use]
    pub fn log_folder(self, folder: &Path) -> Setup {
        Setup { log_folder: Some(folder.to_path_buf()), ..self }
    }

    fn program(&self) -> Result<PathBuf, Failure> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => process::own_program().map_err(|error| {
                let message = format!("cannot find this program's own file: {error}");
                Failure::new(FailureKind::System, message)
            }),
        }
    }

    /// The command of one of the hidden subcommands.
    pub(super) fn subcommand(&self, arguments: &[&str]) -> Result<Command, Failure> {
        let mut command = Command::new(self.program()?);
        command.args(arguments);
        Ok(command)
    }

    /// The command of one end's agent.
    pub(super) fn agent(&self, side: Side) -> Result<Command, Failure> {
        let (launcher, program) = (self.launcher(side), self.program()?);
        let mut command = match launcher {
            Some(launcher) => launcher::command(launcher, &program, self.shared_folder.as_deref())?,
            None => Command::new(program),
        };
        command.arg("agent");
        Ok(command)
    }

    pub(super) fn launcher(&self, side: Side) -> Option<Launcher> {
        match side {
            Side::Client => self.client_launcher,
            Side::Server => self.server_launcher,
        }
    }

    /// Whether the agents need a shared folder: if they are accelerated and in different
    /// namespaces.
    pub(super) fn needs_shared_folder(&self, kind: EnvironmentKind) -> bool {
        let is_accelerated = |side| self.launcher(side) == Some(Launcher::Accel);
        kind != EnvironmentKind::Loopback
            && (is_accelerated(Side::Client) || is_accelerated(Side::Server))
    }

    /// Starts the agent of `end`, a side or a guest, without waiting for its handshake.
    pub(super) fn launch(
        &self,
        kind: EnvironmentKind,
        end: impl Display,
        command: Command,
    ) -> Result<Handle, Failure> {
        self.launch_named(&format!("agent `{end}` of {kind}"), kind, end, command)
    }

    /// As [`Setup::launch`], with the agent's `name` in error messages.
    pub(super) fn launch_named(
        &self,
        name: &str,
        kind: EnvironmentKind,
        end: impl Display,
        command: Command,
    ) -> Result<Handle, Failure> {
        let log = self.log_folder.as_ref().map(|f| f.join(format!("agent-{kind}-{end}.log")));
        let mut handle = Handle::launch(name, command, log.as_deref())?;
        handle.wait_until_interrupted(self.interrupted.clone());
        Ok(handle)
    }
}
