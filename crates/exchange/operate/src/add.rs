//! Adds a node to a running network, a mediator with a cell of its own, and removes it.
//!
//! A router that was added takes its turn of the gateways when it is up. When it is removed, those
//! gateways go on to the next one. So does a processor of the cells, where these have no replicas;
//! else it stands in for the processors that have them. A cell that was added is spare: it gets
//! instruments by [`resize::grow`], by moves, or from the policies. Clients come to a gateway that
//! was added as to any other, and it is drained before it is removed.

use std::time::Duration;

use nm_exchange::control::RemoveError;
use nm_exchange::network::{Network, Node, NodeId, Role};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use thiserror::Error;

use crate::admin::{self, MoveOutcome, NetworkStatus};
use crate::drain::{self, Drained};
use crate::resize;

/// How long control may take to log a change.
const LOG_LIMIT: Duration = Duration::from_secs(10);

/// How long a node that was added may take until it is up, and the cell of a mediator has a leader:
/// a process starts, and three replicas begin.
pub const UP_LIMIT: Duration = Duration::from_secs(15);

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Interval at which it is asked whether the node is up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a node is not removed: nothing could do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NothingElse {
    /// Gateways have no other router.
    #[error("router {0} is the only one that is up: start another one before it is removed")]
    Router(u16),
    /// A cell has no other processor.
    #[error(
        "no processor that is up but {processor} could send the replies of cell {cell}: start \
         another one before it is removed"
    )]
    Processor {
        /// Which one is to be removed.
        processor: u16,
        /// The cell.
        cell: u16,
    },
}

/// A mediator that was removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed {
    /// Its number.
    pub mediator: u16,
    /// What became of each move of an instrument from its cell.
    pub moves: Vec<MoveOutcome>,
    /// Whether it was removed: not if an instrument has stayed.
    pub is_removed: bool,
}

/// Adds a node of a class that listens at these addresses; its number, which is also that of a
/// mediator's cell. Whoever runs the network on this machine starts it.
///
/// # Errors
/// If it cannot be added, or control does not log it in time.
pub fn add(network: &Network, role: Role, node: &Node) -> Result<u16, Failure> {
    admin::add_node(network, role, node, LOG_LIMIT)
}

/// Waits until a node that was added works; whether it does within [`UP_LIMIT`].
pub fn wait_until_up(network: &Network, node: NodeId) -> bool {
    let deadline = Deadline::after(UP_LIMIT);
    loop {
        let status = admin::status(network, ANSWER_LIMIT);
        let is_up = status.is_ok_and(|status| works(&status, node));
        if is_up || deadline.passed() {
            return is_up;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_up(status: &NetworkStatus, node: NodeId) -> bool {
    status.node(node).is_some_and(|node| node.is_up)
}

/// Whether a node is up, and the cell of a mediator has a leader.
fn works(status: &NetworkStatus, node: NodeId) -> bool {
    let has_leader = |cell| status.cell(cell).is_some_and(|cell| cell.leader.is_some());
    is_up(status, node) && (node.class != Role::Mediator || has_leader(node.index))
}

/// Moves the instruments of a mediator that was added to other cells, and removes it with its cell.
///
/// # Errors
/// If it was not added, no other cell can take its instruments, or control does not log it in time.
pub fn remove_mediator(network: &Network, mediator: u16) -> Result<Removed, Failure> {
    let node = Role::Mediator.node(mediator);
    let bad = |error: RemoveError| Failure::new(FailureKind::BadRequest, error.to_string());
    if usize::from(mediator) < network.founders() {
        return Err(bad(RemoveError::Founder(node)));
    }
    if !network.cells().any(|cell| cell == mediator) {
        return Err(bad(RemoveError::NoSuchNode(node)));
    }
    let moves = resize::empty(network, mediator)?.moves;
    let is_removed = moves.iter().all(|outcome| outcome.refused.is_none());
    if is_removed {
        admin::remove_node(network, node, LOG_LIMIT)?;
    }
    Ok(Removed { mediator, moves, is_removed })
}

/// Removes a node that was added and is no mediator. Gateways that use a router, and cells that use
/// a processor, go on to the next one, and what has no answer is sent again. The clients of a
/// gateway go to another one first: what was done for that, if it is up.
///
/// # Errors
/// If it is no such node, nothing else could do its work, or control does not log it in time. If
/// clients stay at a gateway, it stays as well, and is drained.
pub fn remove(network: &Network, node: NodeId) -> Result<Option<Drained>, Failure> {
    let mut drained = None;
    let is_part = network.node(node).is_some() && !network.is_removed(node);
    if network.was_added(node) && is_part {
        let status = admin::status(network, ANSWER_LIMIT)?;
        if let Some(nothing) = nothing_else(&status, node) {
            return Err(Failure::new(FailureKind::BadRequest, nothing.to_string()));
        }
        if node.class == Role::Gateway && is_up(&status, node) {
            drained = Some(drain::drain(network, node)?);
        }
    }
    admin::remove_node(network, node, LOG_LIMIT)?;
    Ok(drained)
}

/// What would be without a node if this router or processor were removed.
fn nothing_else(status: &NetworkStatus, node: NodeId) -> Option<NothingElse> {
    let NodeId { class, index } = node;
    let is_other = |other: &u16| *other != index;
    let is_up = |other: u16| is_up(status, class.node(other));
    match class {
        Role::Router => {
            let routers = status.network.nodes(Role::Router).len() as u16;
            let mut others = (0..routers).filter(is_other);
            (!others.any(is_up)).then_some(NothingElse::Router(index))
        }
        Role::Processor => {
            let is_alone = |cell: &u16| {
                let processors = status.network.processors_of(*cell).into_iter();
                !processors.filter(is_other).any(is_up)
            };
            let cell = status.network.cells().find(is_alone)?;
            Some(NothingElse::Processor { processor: index, cell })
        }
        Role::Mediator | Role::Gateway => None,
    }
}
