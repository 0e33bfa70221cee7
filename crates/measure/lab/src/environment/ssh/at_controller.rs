//! An end whose agent has connected to a controller on this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

use nm_controller::local;
use nm_model::hosts::Destination;
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, Side};
use nm_ssh::{HostError, VERSION};

use crate::agent::Handle;
use crate::environment::setup::Setup;
use crate::environment::ssh::end::{End, HostName, START_LIMIT};

/// Begins a session with the agent `name` of the controller at `socket`.
pub fn end(
    setup: &Setup,
    (name, socket): (&Destination, &Path),
    address: Option<IpAddr>,
    side: Side,
) -> Result<End, Failure> {
    if let Some(launcher) = setup.launcher(side) {
        let message = format!(
            "the agent of host {name} runs without {launcher}: an agent that connects out has no \
             launcher"
        );
        return Err(Failure::new(FailureKind::NotAvailable, message)
            .hint("choose another stack, or reach the host by ssh"));
    }
    let is_interrupted =
        || setup.interrupted.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
    let session = local::open(socket, name.as_str(), &is_interrupted).map_err(|error| {
        let kind = match is_interrupted() {
            true => FailureKind::Cancelled,
            false => FailureKind::NotAvailable,
        };
        Failure::new(kind, error.to_string())
    })?;
    let address = address.unwrap_or_else(|| session.address());
    let agent = &session.agent;
    let translated = agent.is_translated().then(|| {
        format!(
            "host {name} has the address {} and the controller sees {}, so a NAT is between",
            agent.card.address, agent.seen
        )
    });
    let shown = format!("agent `{side}` of {} on {name}", EnvironmentKind::Ssh);
    let mut agent = Handle::over_session(&shown, session.stream)?;
    agent.wait_until_interrupted(setup.interrupted.clone());
    let host = name.to_string();
    agent.explain_end(Box::new(move |_, _| {
        let output = "its connection to the controller has ended".to_string();
        HostError::Ended { host: host.clone(), output }.into()
    }));
    let mut agent = agent.handshake_within(START_LIMIT)?;
    if agent.version() != VERSION {
        let message = format!("host {name} has nearmetal {}, not {VERSION}", agent.version());
        return Err(Failure::new(FailureKind::NotAvailable, message));
    }
    agent.keep_alive()?;
    Ok(End { agent, address, host: HostName::Other(name.clone()), translated })
}

/// The end that is behind a NAT, if one is: then it may be why one end does not reach the other.
pub fn translated(client: &End, server: &End) -> Option<String> {
    match (&client.translated, &server.translated) {
        (Some(reason), None) | (None, Some(reason)) => Some(reason.clone()),
        // Behind one NAT they reach each other; behind two, neither is to blame more.
        _ => None,
    }
}

/// The failure of a path with one end behind a NAT. It names that host only, so that this one is
/// set aside and not its peers.
pub fn behind_nat(reason: &str, failure: Failure) -> Failure {
    let cause = failure.message.replace("host ", "");
    Failure::new(failure.kind, format!("{reason}, which lets no trial through: {cause}"))
        .hint("measure it with agents behind the same NAT, or give --address if it has another one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_behind_a_nat_names_that_host_alone() {
        let failure = Failure::new(
            FailureKind::NotAvailable,
            "host a at x cannot reach host b at y: no route",
        );
        let reason = "host b has the address y and the controller sees z, so a NAT is between";
        let text = behind_nat(reason, failure).message;
        assert_eq!(text.matches("host ").count(), 1, "{text}");
        assert!(text.ends_with("a at x cannot reach b at y: no route"), "{text}");
    }
}
