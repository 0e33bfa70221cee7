//! `nearmetal agent --connect`: an agent that connects out.

use std::path::Path;

use anyhow::Result;
use nm_controller::agent::{Agent, AgentError, Notice};
use nm_controller::hello::{EntryToken, LABELS_MAX, Refusal};
use nm_controller::tls::{PEM_BYTES_MAX, Trust};
use nm_sys::{random, text_file};

use crate::campaign::interrupt;
use crate::cli::controller::{AgentArgs, Label};
use crate::cli::server_address::ServerAddress;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(to: &ServerAddress, args: &AgentArgs) -> Result<Exit> {
    let agent = agent(to, args)?;
    // The kernel takes back all that it has, and ends its child.
    interrupt::end_at_once(|| {})?;
    let at = to.with_port(agent.port);
    let name = agent.name.clone();
    let ended = agent.run(|notice| {
        output::message(&match notice {
            Notice::Waiting => format!("agent {name} waits for work at {at}"),
            Notice::Begun => format!("agent {name} has begun to work"),
            Notice::Lost(why) => format!("{why}; agent {name} tries again"),
        });
    });
    match ended {
        Ok(()) => Ok(Exit::Pass),
        Err(error) => Err(Stop::with(exit_of(&error), error.to_string())),
    }
}

fn exit_of(error: &AgentError) -> Exit {
    match error {
        AgentError::Refused { refusal: Refusal::Version { .. }, .. }
        | AgentError::Tls(nm_controller::tls::TlsError::Processor)
        | AgentError::System(_) => Exit::Environment,
        _ => Exit::Usage,
    }
}

fn agent(to: &ServerAddress, args: &AgentArgs) -> Result<Agent> {
    let trust = match (args.pin, &args.ca) {
        (Some(pin), _) => Trust::Pin(pin),
        (None, Some(file)) => Trust::Authorities(pem(file)?),
        (None, None) => return Err(Stop::usage("name the controller's key by --pin or --ca")),
    };
    let file = args.token_file.as_deref().ok_or_else(|| Stop::usage("name --token-file"))?;
    if args.label.len() > LABELS_MAX {
        return Err(Stop::usage(format!("an agent has at most {LABELS_MAX} labels")));
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let labels = args.label.iter().map(|Label(name, value)| (name.clone(), value.clone()));
    Ok(Agent {
        host: to.host.clone(),
        port: to.port.unwrap_or(nm_controller::PORT),
        token: token(file)?,
        trust,
        name,
        labels: labels.collect(),
        address: args.address,
        instance: u64::from_le_bytes(random::bytes()?),
    })
}

/// The token in a private file.
pub fn token(file: &Path) -> Result<EntryToken> {
    let text = nm_auth::read_private(file).map_err(|error| Stop::usage(error.to_string()))?;
    EntryToken::parse(&text).map_err(|error| Stop::usage(format!("{}: {error}", file.display())))
}

/// The text of a file in PEM.
pub fn pem(file: &Path) -> Result<String> {
    text_file::read(file, PEM_BYTES_MAX)
        .map_err(|error| Stop::usage(format!("cannot read {}: {error}", file.display())))
}
