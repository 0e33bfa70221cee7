//! Replaces a replica of a cell of a running network by one of another node. So a cell gets back
//! all copies after a node is lost for good, or a node is freed of them.

use std::time::Duration;

use nm_exchange::network::{Durability, Network, NodeId};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::{Deadline, Moment};
use thiserror::Error;

use crate::admin::{self, NetworkStatus};

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long the replacement may take: the leader gives the new replica two minutes.
const REPLACE_LIMIT: Duration = Duration::from_secs(150);

/// Interval at which the leader is asked whether it is done, and after which the order is repeated:
/// another replica may lead meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const REPEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Why a replica cannot be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplaceError {
    /// Cells have one replica.
    #[error("cells have no replicas with durability none: move their instruments instead")]
    NotReplicated,
    /// There is no such cell.
    #[error("there is no cell {cell}: the network has {cells}")]
    NoSuchCell {
        /// The one that was asked for.
        cell: u16,
        /// How many there are.
        cells: usize,
    },
    /// The network has no such node, or its class has no replicas.
    #[error("{place} can have no replica of cell {cell}: those that can are {possible}")]
    ImpossiblePlace {
        /// The node.
        place: NodeId,
        /// The cell.
        cell: u16,
        /// Nodes that can.
        possible: String,
    },
    /// A mediator would replace a processor, or the opposite.
    #[error(
        "{to} cannot replace {from}: a cell needs mediators that can lead it, and a processor \
         that sends its replies"
    )]
    OtherClass {
        /// The old one.
        from: NodeId,
        /// The new one.
        to: NodeId,
    },
    /// The old one has none.
    #[error("{from} has no replica of cell {cell}: those are at {voters}")]
    NoReplica {
        /// The old one.
        from: NodeId,
        /// The cell.
        cell: u16,
        /// Who has one.
        voters: String,
    },
    /// The new one has one.
    #[error("{to} has a replica of cell {cell} already: those are at {voters}")]
    HasReplica {
        /// The new one.
        to: NodeId,
        /// The cell.
        cell: u16,
        /// Who has one.
        voters: String,
    },
    /// The new one does not run.
    #[error("{to} is not up: start it first")]
    NotUp {
        /// The new one.
        to: NodeId,
    },
}

impl From<ReplaceError> for Failure {
    fn from(error: ReplaceError) -> Failure {
        Failure::new(FailureKind::BadRequest, error.to_string())
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Replaced {
    /// The nodes that have the cell's replicas now, by name.
    pub voters: Vec<String>,
    /// How long it took, ms.
    pub took_ms: f64,
}

/// Replaces a node's replica of a cell by one of another node of the same class, while the network
/// works: the new one is brought up to date, then it counts in the place of the old one.
///
/// # Errors
/// If that is impossible, or not done in time; then the replicas are as before, or the leader is
/// still at it.
pub fn replace(
    network: &Network,
    cell: u16,
    from: NodeId,
    to: NodeId,
) -> Result<Replaced, Failure> {
    let begin = Moment::now();
    let status = admin::status(network, ANSWER_LIMIT)?;
    check_places(network, &status, cell, (from, to))?;
    // The leader that has the order, and when it gets it again.
    let (deadline, mut ordered) = (Deadline::after(REPLACE_LIMIT), None::<(u16, Deadline)>);
    let mut last = String::new();
    loop {
        match leader_of(network, cell) {
            Ok((leader, voters)) => {
                let (has_old, has_new) = (voters.contains(&from), voters.contains(&to));
                if ordered.is_none() {
                    check_voters(cell, (from, to), &voters)?;
                }
                if has_new && !has_old {
                    let took_ms = begin.elapsed().as_secs_f64() * 1e3;
                    return Ok(Replaced { voters: names(&voters), took_ms });
                }
                if ordered.is_none_or(|(by, repeat)| by != leader || repeat.passed()) {
                    let order = (cell, from, to);
                    ordered = Some((leader, Deadline::after(REPEAT_INTERVAL)));
                    // A leader that has just ended does not answer: the next one gets the order.
                    match admin::replace_replica(network, leader, order, ANSWER_LIMIT) {
                        Ok(known) => last = known.and_then(|it| it.replace_failed).unwrap_or(last),
                        Err(failure) => last = failure.message,
                    }
                }
            }
            Err(failure) if failure.kind != FailureKind::Peer => return Err(failure),
            Err(failure) => last = failure.message,
        }
        if deadline.passed() {
            let seconds = REPLACE_LIMIT.as_secs();
            let message =
                format!("after {seconds} s {to} has not replaced {from} in cell {cell}: {last}");
            let hint = "look at `nearmetal exchange status`: a majority of the cell's replicas \
                        must be up, and the new node";
            return Err(Failure::new(FailureKind::Peer, message).hint(hint));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The mediator that leads a cell, and the nodes that have its replicas.
fn leader_of(network: &Network, cell: u16) -> Result<(u16, Vec<NodeId>), Failure> {
    let status = admin::status(network, ANSWER_LIMIT)?;
    let leader = status.cells.iter().find(|it| it.cell == cell).and_then(|it| it.leader);
    let nobody = || Failure::new(FailureKind::Peer, format!("nobody leads cell {cell}"));
    let leader = leader.ok_or_else(nobody)?;
    let known = admin::replicas(network, leader, cell, ANSWER_LIMIT)?;
    let known = known.filter(|known| known.is_leader).ok_or_else(nobody)?;
    Ok((leader, known.voters))
}

fn check_places(
    network: &Network,
    status: &NetworkStatus,
    cell: u16,
    (from, to): (NodeId, NodeId),
) -> Result<(), ReplaceError> {
    let cells = network.cells().count();
    if network.durability == Durability::None {
        return Err(ReplaceError::NotReplicated);
    }
    if !network.cells().any(|known| known == cell) {
        return Err(ReplaceError::NoSuchCell { cell, cells });
    }
    let places = network.replica_places(cell);
    if let Some(place) = [from, to].into_iter().find(|it| !places.contains(it)) {
        let possible = names(&places).join(", ");
        return Err(ReplaceError::ImpossiblePlace { place, cell, possible });
    }
    if from.class != to.class {
        return Err(ReplaceError::OtherClass { from, to });
    }
    match status.node(to) {
        Some(node) if node.is_up => Ok(()),
        _ => Err(ReplaceError::NotUp { to }),
    }
}

fn check_voters(
    cell: u16,
    (from, to): (NodeId, NodeId),
    voters: &[NodeId],
) -> Result<(), ReplaceError> {
    let (has_old, has_new) = (voters.contains(&from), voters.contains(&to));
    let voters = names(voters).join(", ");
    match (has_old, has_new) {
        (true, false) => Ok(()),
        (false, _) => Err(ReplaceError::NoReplica { from, cell, voters }),
        (true, true) => Err(ReplaceError::HasReplica { to, cell, voters }),
    }
}

fn names(voters: &[NodeId]) -> Vec<String> {
    voters.iter().map(NodeId::to_string).collect()
}
