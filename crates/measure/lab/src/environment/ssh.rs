//! Two hosts, reached by ssh: agents there, or one there and one here, and the network between
//! them. Agents that have connected to a controller are hosts too.
//!
//! An agent on another host ends with its input, which is when this process ends for any reason. It
//! also ends when this end has been silent for [`SILENCE_LIMIT`], which is when the host is cut
//! off. ssh ends by itself, and with it the session, when the host has not answered for 20 s.

mod at_controller;
mod copied;
mod end;
mod path;
mod script;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nm_model::hosts::{Destination, HostSpec, HostsSpec};
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, Side};
use nm_ssh::{HostError, Patience, Started, VERSION};

use crate::environment::running::Environment;
use crate::environment::setup::Setup;
use crate::pair::Pair;
use copied::Copied;
use end::{ALIVE_INTERVAL, End, HostName, START_LIMIT};
use script::{GREETING, Program, Script};

/// Silence after which an agent on another host ends.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);

const KIND: EnvironmentKind = EnvironmentKind::Ssh;

/// Where the path of nearmetal on a host is named.
const NAMED_IN: &str = "`program` of [hosts]";

/// Starts an agent on each host and checks the path between them.
pub fn start(setup: &Setup) -> Result<Environment, Failure> {
    let hosts = setup.hosts.as_ref().ok_or_else(|| {
        Failure::new(FailureKind::BadRequest, "ssh has no hosts")
            .hint("write [hosts] into the plan, or give --server")
    })?;
    let mut server = end(setup, hosts, Side::Server, None)?;
    let mut client = end(setup, hosts, Side::Client, Some(server.address))?;
    let links = path::links(&mut client, &mut server)?;
    let addresses = (client.address, server.address);
    let translated = at_controller::translated(&client, &server);
    let names = (client.host, server.host);
    let mut pair = Pair::of_hosts(KIND.name(), (client.agent, server.agent), addresses, &links[0])?;
    let checked = path::check(&mut pair, &names);
    match translated {
        None => checked?,
        Some(reason) => checked
            .and_then(|()| path::try_trial(&mut pair))
            .map_err(|failure| at_controller::behind_nat(&reason, failure))?,
    }
    Ok(Environment::of_hosts(KIND, pair))
}

/// One end; `peer` is the address of the other one, if it is known.
fn end(setup: &Setup, hosts: &HostsSpec, side: Side, peer: Option<IpAddr>) -> Result<End, Failure> {
    let spec = hosts.host(side);
    match (&spec.ssh, &hosts.controller) {
        (Some(name), Some(socket)) => at_controller::end(setup, spec, (name, socket), side),
        (Some(destination), None) => remote(setup, spec, destination, side),
        (None, _) => local(setup, spec, side, peer),
    }
}

/// An end on this machine.
fn local(setup: &Setup, spec: &HostSpec, side: Side, peer: Option<IpAddr>) -> Result<End, Failure> {
    let agent = setup.launch(KIND, side, setup.agent(side)?)?.handshake()?;
    let address = match (spec.address, peer) {
        (Some(address), _) => address,
        (None, Some(peer)) => path::own_address_towards(peer)?,
        (None, None) => return Err(Failure::new(FailureKind::BadRequest, "ssh has no path")),
    };
    Ok(End { agent, address, host: HostName::ThisMachine, translated: None })
}

/// An end on another host.
fn remote(
    setup: &Setup,
    spec: &HostSpec,
    destination: &Destination,
    side: Side,
) -> Result<End, Failure> {
    let copied = match &spec.program {
        Some(_) => None,
        // The link leads to the running program even if its file was replaced.
        None => {
            let own = setup.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
            Some(Copied::of(own)?)
        }
    };
    let program = match (&spec.program, &copied) {
        (Some(path), _) => Program::Installed(path),
        (None, copied) => Program::Copied(copied.as_ref().map_or(0, |it| it.bytes.len())),
    };
    let script = Script::new(program, setup.launcher(side), SILENCE_LIMIT);
    let command = nm_ssh::command(destination, &script.text()?, Patience::Short);
    let name = format!("agent `{side}` of {KIND} on {destination}");
    let mut agent = setup.launch_named(&name, KIND, side, command)?;
    let started = Started {
        host: destination.clone(),
        program: spec.program.clone().unwrap_or_default(),
        named_in: NAMED_IN,
    };
    let of_end = (started.clone(), spec.program.is_none());
    agent.explain_end(Box::new(move |code, lines| explain(&of_end.0, of_end.1, code, lines)));
    let connection = agent.shell_line(GREETING, START_LIMIT)?;
    if let Some(copied) = &copied {
        agent.send_program(&copied.bytes)?;
    }
    let mut agent = agent.handshake_within(START_LIMIT)?;
    if agent.version() != VERSION {
        return Err(started.other_version(agent.version()).into());
    }
    agent.keep_alive(ALIVE_INTERVAL)?;
    let address = spec.address.or_else(|| script::address_in(&connection)).ok_or_else(|| {
        let message =
            format!("host {destination} does not say at which address ssh has reached it");
        Failure::new(FailureKind::NotAvailable, message)
            .hint(format!("write `address` of the {side} in [hosts]"))
    })?;
    Ok(End { agent, address, host: HostName::Other(destination.clone()), translated: None })
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
