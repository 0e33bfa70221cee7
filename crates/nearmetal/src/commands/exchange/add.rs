//! `nearmetal exchange add` and `remove`: nodes that join a running network, and leave it.

use anyhow::Result;
use nm_exchange::network::{Node, NodeId, Role};
use nm_operate::add::{self, Removed, UP_LIMIT};
use nm_operate::addresses;
use nm_operate::admin::MoveOutcome;
use nm_operate::drain::Drained;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::{AddArgs, ChosenNodeArgs};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// The number of a node, in the field of its class.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct NodeName {
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    router: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mediator: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<u16>,
}

impl NodeName {
    fn of(NodeId { class, index }: NodeId) -> NodeName {
        let mut name = NodeName::default();
        *match class {
            Role::Gateway => &mut name.gateway,
            Role::Router => &mut name.router,
            Role::Mediator => &mut name.mediator,
            Role::Processor => &mut name.processor,
        } = Some(index);
        name
    }
}

/// A node that was added.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AddedDocument {
    #[serde(flatten)]
    node: NodeName,
    address: String,
    is_up: bool,
}

impl Document for AddedDocument {
    const NAME: &'static str = "exchange-added";
}

/// A node that was removed, or that stays.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RemovedDocument {
    #[serde(flatten)]
    node: NodeName,
    is_removed: bool,
    /// Of a mediator: the moves of its instruments.
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<Vec<MoveOutcome>>,
    /// Of a gateway: the sessions that are at other gateways now.
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<u32>,
}

impl Document for RemovedDocument {
    const NAME: &'static str = "exchange-removed";
}

/// Adds a node.
pub fn add(args: &AddArgs) -> Result<Exit> {
    let AddArgs { role, address, replication, access } = args;
    let role = *role;
    if role != Role::Mediator && replication.is_some() {
        let which = if role == Role::Processor { " that is added" } else { "" };
        let message = format!("a {role}{which} has no replicas: leave out --replication");
        return Err(Stop::usage(message));
    }
    let network = status::current(access)?;
    let node = match address {
        None => addresses::one_more(&network, role)?,
        Some(address) => {
            let of_replicas = replication.clone().map(TryInto::try_into).transpose();
            let replication = of_replicas.map_err(|why| Stop::usage(format!("{why}")))?;
            Node { address: address.clone(), replication }
        }
    };
    let id = role.node(add::add(&network, role, &node)?);
    let index = id.index;
    let file = status::file(&access.running)?;
    let command = format!(
        "nearmetal exchange node --role {role} --index {index} --network {}",
        nm_ssh::quoted(&file.to_string_lossy())
    );
    output::message(&format!(
        "{id} is logged; waiting until it is up, for {} s at most; where the network was \
         started by hand, start it now by `{command}`",
        UP_LIMIT.as_secs()
    ));
    let is_up = add::wait_until_up(&network, id);
    let address = &node.address;
    match access.format.format {
        Format::Json => {
            let address = address.to_string();
            output::json(&AddedDocument { node: NodeName::of(id), address, is_up })?;
        }
        Format::Text if is_up && role == Role::Mediator => {
            output::text(&format!("{id} was added at {address}; its cell {index} is spare\n"))?
        }
        Format::Text if is_up => {
            output::text(&format!("{id} was added at {address}\n"))?;
        }
        Format::Text => output::text(&format!(
            "{id} was added at {address}, and does not work yet; where the network was \
             started by hand, start it by `{command}`\n"
        ))?,
    }
    Ok(Exit::Pass)
}

/// Removes a node that was added.
pub fn remove(args: &ChosenNodeArgs) -> Result<Exit> {
    let id = args.node;
    let network = status::current(&args.access)?;
    if id.class == Role::Mediator {
        let removed = add::remove_mediator(&network, id.index)?;
        return report_mediator(&removed, args.access.format.format);
    }
    let drained = add::remove(&network, id)?;
    match (args.access.format.format, drained) {
        (Format::Json, Some(Drained { sessions, .. })) => {
            output::json(&RemovedDocument {
                node: NodeName::of(id),
                is_removed: true,
                moves: None,
                sessions,
            })?;
        }
        (Format::Json, None) => output::json(&RemovedDocument {
            node: NodeName::of(id),
            is_removed: true,
            moves: None,
            sessions: None,
        })?,
        (Format::Text, Some(drained)) => {
            output::text(&format!("{id} was removed: {drained}\n"))?;
        }
        (Format::Text, None) => output::text(&format!("{id} was removed\n"))?,
    }
    Ok(Exit::Pass)
}

fn report_mediator(removed: &Removed, format: Format) -> Result<Exit> {
    let Removed { mediator, moves, is_removed } = removed;
    let refused = moves.iter().filter(|outcome| outcome.refused.is_some()).count();
    match format {
        Format::Json => output::json(&RemovedDocument {
            node: NodeName::of(Role::Mediator.node(*mediator)),
            is_removed: *is_removed,
            moves: Some(moves.clone()),
            sessions: None,
        })?,
        Format::Text => {
            let what = if *is_removed { "was removed" } else { "stays" };
            let moved = moves.len() - refused;
            output::text(&format!(
                "mediator {mediator} {what}: {moved} instruments moved, {refused} refused\n"
            ))?;
        }
    }
    Ok(if *is_removed { Exit::Pass } else { Exit::Conflict })
}
