//! The agents at a controller: a list of them, and the hosts of a fleet.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::sleep;

use anyhow::Result;
use nm_controller::local;
use nm_controller::registry::Known;
use nm_fleet::FleetHost;
use nm_report::document::Document;
use nm_report::units;
use schemars::JsonSchema;
use serde::Serialize;

use super::children::NAP;
use crate::campaign::interrupt;
use crate::cli::fleet::FleetAgentsArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// The agents at a controller.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentsDocument {
    /// By name.
    agents: Vec<Known>,
}

impl Document for AgentsDocument {
    const NAME: &'static str = "fleet-agents";
}

pub fn run(args: &FleetAgentsArgs) -> Result<Exit> {
    let agents = list(&args.controller)?;
    if args.format.format == Format::Json {
        output::json(&AgentsDocument { agents })?;
        return Ok(Exit::Pass);
    }
    let mut text = String::new();
    for Known { card, seen, is_busy } in &agents {
        let state = if *is_busy { "works" } else { "waits" };
        text += &format!("{} at {}, seen as {seen}, {state}", card.name, card.address);
        card.labels.iter().for_each(|(name, value)| text += &format!(" {name}={value}"));
        text += "\n";
    }
    text += &format!("{}\n", units::plural(agents.len(), "agent", "agents"));
    output::text(&text)?;
    Ok(Exit::Pass)
}

fn list(socket: &Path) -> Result<Vec<Known>> {
    local::list(socket).map_err(|error| Stop::with(Exit::Environment, error.to_string()))
}

/// The agents as hosts; with `n`, as soon as so many are there.
pub fn hosts(socket: &Path, n: Option<usize>) -> Result<Vec<FleetHost>> {
    let wanted = n.unwrap_or(0);
    let mut agents = list(socket)?;
    if agents.len() < wanted {
        let missing = units::plural(wanted - agents.len(), "agent", "agents");
        output::message(&format!("waiting for {missing} at the controller; Ctrl-C ends it"));
        let interrupted = interrupt::flag()?;
        while agents.len() < wanted {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Stop::with(Exit::Interrupted, "ended before all agents were there"));
            }
            sleep(NAP);
            agents = list(socket)?;
        }
    }
    if agents.len() < 2 {
        return Err(Stop::usage(format!(
            "{} at the controller; a fleet has two or more: start some, and wait for them by \
             --agents N",
            units::plural(agents.len(), "agent is", "agents are")
        )));
    }
    let host = |Known { card, .. }: Known| FleetHost {
        ssh: card.name.clone(),
        name: card.name,
        address: None,
        groups: vec![],
        labels: card.labels,
    };
    Ok(agents.into_iter().map(host).collect())
}
