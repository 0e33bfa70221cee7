//! Two hosts, reached by ssh: agents there, or one there and one here, and the network between
//! them. Agents that have connected to a controller are hosts too.
//!
//! An agent on another host ends with its input, which is when this process ends for any reason. It
//! also ends when this end has been silent for [`SILENCE_LIMIT`], which is when the host is cut
//! off. ssh ends by itself, and with it the session, when the host has not answered for 20 s.
//!
//! Guests that others made are ends of the same kind, some of which run their agent already.

mod at_controller;
mod copied;
mod end;
mod path;
mod script;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nm_model::attached::GuestPlace;
use nm_model::hosts::{Destination, HostSpec};
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, Side};
use nm_ssh::{HostError, Patience, Started, VERSION};

use crate::environment::guest_port;
use crate::environment::running::Environment;
use crate::environment::setup::Setup;
use crate::pair::Pair;
use copied::Copied;
use end::{End, HostName, START_LIMIT};
use script::{GREETING, Program, Script};

/// Silence after which an agent on another host ends.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Where the path of nearmetal on a host is named.
const NAMED_IN: &str = "`program` of the plan";

/// Starts an agent on each host and checks the path between them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let hosts = setup.hosts.as_ref().ok_or_else(|| {
        Failure::new(FailureKind::BadRequest, "ssh has no hosts")
            .hint("write [hosts] into the plan, or give --server")
    })?;
    between(
        EnvironmentKind::Ssh,
        setup,
        [&hosts.client, &hosts.server]
            .map(|host| Place::of_host(host, hosts.controller.as_deref())),
    )
}

/// Where an end is, and how its agent is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub reach: Reach<'a>,
    /// Its address on the path, if it is given.
    pub address: Option<IpAddr>,
}

/// How an agent is reached.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reach<'a> {
    /// On this machine.
    Here,
    /// ssh starts the program there; this one is copied there if none is named.
    Ssh { destination: &'a Destination, program: Option<&'a str> },
    /// It runs in a guest already.
    Running(&'a GuestPlace),
    /// It has connected to a controller on this machine.
    Connected { name: &'a Destination, controller: &'a Path },
}

impl<'a> Place<'a> {
    fn of_host(host: &'a HostSpec, controller: Option<&'a Path>) -> Place<'a> {
        let reach = match (&host.ssh, controller) {
            (Some(name), Some(controller)) => Reach::Connected { name, controller },
            (Some(destination), None) => {
                Reach::Ssh { destination, program: host.program.as_deref() }
            }
            (None, _) => Reach::Here,
        };
        Place { reach, address: host.address }
    }
}

/// Two ends, client and server, with agents that have answered and reach each other.
pub(super) fn between(
    kind: EnvironmentKind,
    setup: &Setup,
    [client, server]: [Place<'_>; 2],
) -> Result<Environment, Failure> {
    let starting = |side| Starting { kind, setup, side };
    let mut server = starting(Side::Server).end(server, None)?;
    let mut client = starting(Side::Client).end(client, Some(server.address))?;
    let links = path::links(&mut client, &mut server)?;
    let addresses = (client.address, server.address);
    let translated = at_controller::translated(&client, &server);
    let names = (client.host, server.host);
    let agents = (client.agent, server.agent);
    let mut pair = match kind {
        EnvironmentKind::VmAttached => {
            let names = (names.0.to_string(), names.1.to_string());
            Pair::of_attached(kind.name(), agents, addresses, &links[0], &names)?
        }
        _ => Pair::of_hosts(kind.name(), agents, addresses, &links[0])?,
    };
    let checked = path::check(&mut pair, &names);
    match translated {
        None => checked?,
        Some(reason) => checked
            .and_then(|()| path::try_trial(&mut pair))
            .map_err(|failure| at_controller::behind_nat(&reason, failure))?,
    }
    Ok(Environment::of_hosts(kind, pair))
}

/// What an end is started for.
struct Starting<'a> {
    kind: EnvironmentKind,
    setup: &'a Setup,
    side: Side,
}

impl Starting<'_> {
    /// One end; `peer` is the address of the other one, if it is known.
    fn end(&self, place: Place<'_>, peer: Option<IpAddr>) -> Result<End, Failure> {
        match place.reach {
            Reach::Here => self.local(place.address, peer),
            Reach::Ssh { destination, program } => self.remote(destination, program, place.address),
            Reach::Running(guest) => self.running(guest, place.address),
            Reach::Connected { name, controller } => {
                at_controller::end(self.setup, (name, controller), place.address, self.side)
            }
        }
    }

    /// An end on this machine.
    fn local(&self, address: Option<IpAddr>, peer: Option<IpAddr>) -> Result<End, Failure> {
        let Starting { kind, setup, side } = *self;
        let agent = setup.launch(kind, side, setup.agent(side)?)?.handshake()?;
        let address = match (address, peer) {
            (Some(address), _) => address,
            (None, Some(peer)) => path::own_address_towards(peer)?,
            (None, None) => {
                return Err(Failure::new(FailureKind::BadRequest, format!("{kind} has no path")));
            }
        };
        Ok(End { agent, address, host: HostName::ThisMachine, translated: None })
    }

    /// An end in a guest whose agent runs already.
    fn running(&self, guest: &GuestPlace, address: Option<IpAddr>) -> Result<End, Failure> {
        let host = HostName::Guest(guest.clone());
        if let Some(launcher) = self.setup.launcher(self.side) {
            let message = format!("the agent of {host} runs already, and not under {launcher}");
            return Err(Failure::new(FailureKind::NotAvailable, message).hint(format!(
                "start it there under {launcher} and measure the stack without it, or let ssh \
                 start it"
            )));
        }
        let agent = guest_port::attach(guest, self.setup.interrupted.clone())?;
        let address = address.ok_or_else(|| {
            Failure::new(FailureKind::BadRequest, format!("{host} has no address"))
        })?;
        Ok(End { agent, address, host, translated: None })
    }

    /// An end on another host.
    fn remote(
        &self,
        destination: &Destination,
        installed: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<End, Failure> {
        let Starting { kind, setup, side } = *self;
        let copied = match installed {
            Some(_) => None,
            // The link leads to the running program even if its file was replaced.
            None => {
                let own = setup.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
                Some(Copied::of(own)?)
            }
        };
        let program = match (installed, &copied) {
            (Some(path), _) => Program::Installed(path),
            (None, copied) => Program::Copied(copied.as_ref().map_or(0, |it| it.bytes.len())),
        };
        let script = Script::new(program, setup.launcher(side), SILENCE_LIMIT);
        let command = nm_ssh::command(destination, &script.text()?, Patience::Short);
        let name = format!("agent `{side}` of {kind} on {destination}");
        let mut agent = setup.launch_named(&name, kind, side, command)?;
        let started = Started {
            host: destination.clone(),
            program: installed.unwrap_or_default().to_string(),
            named_in: NAMED_IN,
        };
        let of_end = (started.clone(), installed.is_none());
        agent.explain_end(Box::new(move |code, lines| explain(&of_end.0, of_end.1, code, lines)));
        let connection = agent.shell_line(GREETING, START_LIMIT)?;
        if let Some(copied) = &copied {
            agent.send_bytes(&copied.bytes)?;
        }
        let mut agent = agent.handshake_within(START_LIMIT)?;
        if agent.version() != VERSION {
            return Err(started.other_version(agent.version()).into());
        }
        agent.keep_alive()?;
        let address = address.or_else(|| script::address_in(&connection)).ok_or_else(|| {
            let message =
                format!("host {destination} does not say at which address ssh has reached it");
            Failure::new(FailureKind::NotAvailable, message)
                .hint(format!("write the `address` of the {side} into the plan"))
        })?;
        Ok(End { agent, address, host: HostName::Other(destination.clone()), translated: None })
    }
}

/// Why the agent on a host has ended.
fn explain(started: &Started, is_copied: bool, code: Option<i32>, lines: &[String]) -> Failure {
    let lines = lines.iter().map(String::as_str);
    let last = lines.clone().next_back().unwrap_or("nothing");
    if let Some(error) = script::error(&started.host, code, last) {
        return Failure::new(FailureKind::NotAvailable, error.to_string());
    }
    if is_copied && let Some(error) = copied::error(&started.host, code, lines.clone()) {
        return Failure::new(FailureKind::NotAvailable, error.to_string());
    }
    let error: HostError = started.ended(code, lines);
    error.into()
}
