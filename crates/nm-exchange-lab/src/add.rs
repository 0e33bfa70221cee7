//! Adds a mediator to a running network, with a cell of its own, and removes it again.
//!
//! A cell that was added is spare: it gets instruments by [`resize::grow`], by moves, or from the
//! policies.

use std::time::Duration;

use nm_exchange::control::RemoveError;
use nm_exchange::control::admin::{self, MoveOutcome, NetworkStatus};
use nm_exchange::network::{Network, Node, Role};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;

use crate::resize;

/// How long control may take to log a change.
const LOG_LIMIT: Duration = Duration::from_secs(10);

/// How long a mediator that was added may take until it is up and its cell has a leader: a process
/// starts, and three replicas begin.
const UP_LIMIT: Duration = Duration::from_secs(15);

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Interval at which it is asked whether the mediator is up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A mediator that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Its number, which is also that of its cell.
    pub mediator: u16,
    /// Where it listens.
    pub node: Node,
    /// Whether it is up and its cell has a leader.
    pub is_up: bool,
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

/// Adds a mediator that listens at these addresses, and waits until it is up. Whoever runs the
/// network on this machine starts it.
///
/// # Errors
/// If it cannot be added, or control does not log it in time.
pub fn add(network: &Network, node: Node) -> Result<Added, Failure> {
    let mediator = admin::add_mediator(network, &node, LOG_LIMIT)?;
    let deadline = Deadline::after(UP_LIMIT);
    loop {
        let status = admin::status(network, ANSWER_LIMIT);
        let is_up = status.is_ok_and(|status| works(&status, mediator));
        if is_up || deadline.passed() {
            return Ok(Added { mediator, node, is_up });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether a mediator is up, and its cell has a leader.
fn works(status: &NetworkStatus, mediator: u16) -> bool {
    let id = (Role::Mediator, usize::from(mediator));
    let is_up = status.nodes.iter().any(|node| (node.role, node.index) == id && node.is_up);
    is_up && status.cell(mediator).is_some_and(|cell| cell.leader.is_some())
}

/// Moves the instruments of a mediator that was added to other cells, and removes it with its cell.
///
/// # Errors
/// If it was not added, no other cell can take its instruments, or control does not log it in time.
pub fn remove(network: &Network, mediator: u16) -> Result<Removed, Failure> {
    let bad = |error: RemoveError| Failure::new(FailureKind::BadRequest, error.to_string());
    if usize::from(mediator) < network.founders() {
        return Err(bad(RemoveError::Founder(mediator)));
    }
    if !network.cells().any(|cell| cell == mediator) {
        return Err(bad(RemoveError::NoSuchMediator(mediator)));
    }
    let moves = resize::empty(network, mediator)?.moves;
    let is_removed = moves.iter().all(|outcome| outcome.refused.is_none());
    if is_removed {
        admin::remove_mediator(network, mediator, LOG_LIMIT)?;
    }
    Ok(Removed { mediator, moves, is_removed })
}
