//! `nearmetal exchange add` and `remove`: mediators that join a running network, and leave it.

use anyhow::Result;
use nm_exchange::network::{Node, Role};
use nm_exchange_lab::add::{self, Added, Removed};
use nm_exchange_lab::place;
use serde_json::json;

use crate::cli::exchange::{AddArgs, ChosenNodeArgs};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Adds a mediator.
pub fn add(args: &AddArgs) -> Result<Exit> {
    let AddArgs { address, replication, access } = args;
    let network = status::current(access)?;
    let node = match address {
        None => place::one_more_mediator(&network)?,
        Some(address) => {
            let of_replicas = replication.clone().map(TryInto::try_into).transpose();
            let replication = of_replicas.map_err(|why| Stop::usage(format!("{why}")))?;
            Node { address: address.clone(), replication }
        }
    };
    let Added { mediator, node, is_up } = add::add(&network, node)?;
    let file = status::file(&access.running)?;
    let command = format!(
        "nearmetal exchange node --role mediator --index {mediator} --network {}",
        nm_ssh::quoted(&file.to_string_lossy())
    );
    match access.format.format {
        Format::Json => output::json(&json!({
            "mediator": mediator, "address": node.address.to_string(), "is_up": is_up,
        }))?,
        Format::Text if is_up => output::data(&format!(
            "mediator {mediator} was added at {}; its cell {mediator} is spare\n",
            node.address
        ))?,
        Format::Text => output::data(&format!(
            "mediator {mediator} was added at {}, and is not up or leads nothing yet; where the \
             network was started by hand, start it by `{command}`\n",
            node.address
        ))?,
    }
    Ok(Exit::Pass)
}

/// Removes a mediator that was added.
pub fn remove(args: &ChosenNodeArgs) -> Result<Exit> {
    let (role, index) = args.node;
    if role != Role::Mediator {
        let message =
            format!("{role} {index} cannot be removed: only mediators that were added can");
        return Err(Stop::usage(message));
    }
    let network = status::current(&args.access)?;
    let mediator = u16::try_from(index).unwrap_or(u16::MAX);
    let Removed { mediator, moves, is_removed } = add::remove(&network, mediator)?;
    let refused = moves.iter().filter(|outcome| outcome.refused.is_some()).count();
    match args.access.format.format {
        Format::Json => output::json(&json!({
            "mediator": mediator, "is_removed": is_removed, "moves": moves,
        }))?,
        Format::Text => {
            let what = if is_removed { "was removed" } else { "stays" };
            let moved = moves.len() - refused;
            output::data(&format!(
                "mediator {mediator} {what}: {moved} instruments moved, {refused} refused\n"
            ))?;
        }
    }
    Ok(if is_removed { Exit::Pass } else { Exit::Conflict })
}
