//! Adds a mediator, with a cell of its own, or a router to a running network, and removes it.
//!
//! A router that was added takes its turn of the gateways when it is up, and those go on to the
//! next one when it is removed. A cell that was added is spare: it gets instruments by
//! [`resize::grow`], by moves, or from the policies.

use std::time::Duration;

use nm_exchange::control::admin::{self, MoveOutcome, NetworkStatus};
use nm_exchange::control::{NodeId, RemoveError};
use nm_exchange::network::{Network, Node, Role};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use thiserror::Error;

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

/// Why a router is not removed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("router {0} is the only one that is up: start another one before it is removed")]
pub struct OnlyRouter(u16);

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

fn is_up(status: &NetworkStatus, (role, index): NodeId) -> bool {
    let id = (role, usize::from(index));
    status.nodes.iter().any(|node| (node.role, node.index) == id && node.is_up)
}

/// Whether a node is up, and the cell of a mediator has a leader.
fn works(status: &NetworkStatus, node: NodeId) -> bool {
    let has_leader = |cell| status.cell(cell).is_some_and(|cell| cell.leader.is_some());
    is_up(status, node) && (node.0 != Role::Mediator || has_leader(node.1))
}

/// Moves the instruments of a mediator that was added to other cells, and removes it with its cell.
///
/// # Errors
/// If it was not added, no other cell can take its instruments, or control does not log it in time.
pub fn remove_mediator(network: &Network, mediator: u16) -> Result<Removed, Failure> {
    let node = (Role::Mediator, mediator);
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

/// Removes a node that is no mediator: a router that was added. Gateways that use it go on to the
/// next one, and send again what has no answer.
///
/// # Errors
/// If it is no such node or no other router is up, or control does not log it in time.
pub fn remove(network: &Network, node: NodeId) -> Result<(), Failure> {
    let (role, index) = node;
    if role == Role::Router && network.was_added(role, usize::from(index)) {
        let status = admin::status(network, ANSWER_LIMIT)?;
        let mut routers = (0..network.router.len() as u16).filter(|other| *other != index);
        if !routers.any(|other| is_up(&status, (role, other))) {
            let message = OnlyRouter(index).to_string();
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
    }
    admin::remove_node(network, node, LOG_LIMIT)
}
