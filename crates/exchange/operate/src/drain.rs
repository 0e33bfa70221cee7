//! Makes a node of a running network carry nothing, so that it can be stopped without a pause for
//! clients. Of a mediator, others lead its cells, or, where cells have one replica, its instruments
//! move away. The clients of a gateway go to another one.

use std::fmt;
use std::time::Duration;

use nm_exchange::control::Work;
use nm_exchange::network::{CONTROL, Durability, Network, NodeId, Role, group_name};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use thiserror::Error;

use crate::admin::{self, CellStatus, MoveOutcome, NetworkStatus};
use crate::resize;

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long control may take to log that a node is drained.
const LOG_LIMIT: Duration = Duration::from_secs(10);

/// How long others may take to lead.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(30);

/// How long the clients of a gateway may take to go to another one.
const CLIENTS_LIMIT: Duration = Duration::from_secs(30);

/// Interval at which it is asked who leads, or how many sessions are left.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a node cannot be drained.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DrainError {
    /// There is no such node.
    #[error("the network has no {node}: it has {count} of them")]
    NoSuchNode {
        /// Which.
        node: NodeId,
        /// How many there are.
        count: usize,
    },
    /// Nothing can do its work meanwhile.
    #[error("{0} 0 is the only one, so nothing can do its work meanwhile")]
    OnlyOne(Role),
    /// All others that could do its work are drained as well.
    #[error(
        "no other mediator could work for mediator {0}: those that could are drained; resume one"
    )]
    NobodyElse(u16),
    /// A router needs none.
    #[error(
        "router {0} needs no draining: stop it, and the gateways use another router at once; no \
         request is lost"
    )]
    Router(u16),
    /// No other gateway could take the clients of one.
    #[error(
        "no other gateway could take the clients of gateway {0}: the others are drained or not \
         up; resume or start one"
    )]
    NoOtherGateway(u16),
    /// Clients stay at a gateway.
    #[error(
        "after {seconds} s {sessions} sessions are still at gateway {index}: their clients do not \
         go to another gateway; stop them, or stop the gateway when they may have a pause"
    )]
    ClientsStay {
        /// Which gateway.
        index: u16,
        /// How many sessions.
        sessions: u32,
        /// How long they were waited for.
        seconds: u64,
    },
    /// A gateway does not say how many clients it has.
    #[error("gateway {0} does not answer: look whether it is up")]
    NoAnswer(u16),
    /// A processor needs none, if there is another one.
    #[error(
        "processor {0} needs no draining: stop it, and the replies of its cells take another \
         processor at once; no request is lost"
    )]
    Processor(u16),
}

impl From<DrainError> for Failure {
    fn from(error: DrainError) -> Failure {
        let kind = match error {
            DrainError::ClientsStay { .. } | DrainError::NoAnswer(_) => FailureKind::Peer,
            _ => FailureKind::BadRequest,
        };
        Failure::new(kind, error.to_string())
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Drained {
    /// Groups that another node leads now, by name.
    pub groups: Vec<String>,
    /// What became of each move.
    pub moves: Vec<MoveOutcome>,
    /// Of a gateway: the sessions that were at it, and are at others.
    pub sessions: Option<u32>,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sessions {
            Some(0) => return f.write_str("it had no sessions"),
            Some(1) => return f.write_str("its session is at another gateway"),
            Some(sessions) => return write!(f, "its {sessions} sessions are at other gateways"),
            None => {}
        }
        let (count, refused) = (self.moves.len(), self.refused());
        if count > 0 {
            write!(f, "{} instruments moved, {refused} refused; ", count - refused)?;
        }
        match self.groups.is_empty() {
            true => f.write_str("it led no group"),
            false => write!(f, "others lead {}", self.groups.join(", ")),
        }
    }
}

impl Drained {
    /// How many moves were refused.
    pub fn refused(&self) -> usize {
        self.moves.iter().filter(|outcome| outcome.refused.is_some()).count()
    }
}

/// Makes a node carry nothing, until it is resumed.
///
/// # Errors
/// If it is no mediator or gateway, nothing can do its work, or others do not lead its groups or
/// have its clients in time; it is drained all the same then, and hands over as soon as it can.
pub fn drain(network: &Network, node: NodeId) -> Result<Drained, Failure> {
    drain_within(network, node, CLIENTS_LIMIT)
}

/// As [`drain`], where the clients of a gateway may take so long to go to another one.
///
/// # Errors
/// As [`drain`].
pub fn drain_within(
    network: &Network,
    node: NodeId,
    clients_limit: Duration,
) -> Result<Drained, Failure> {
    check(network, node)?;
    let NodeId { class, index } = node;
    if network.nodes(class).len() == 1 {
        Err(DrainError::OnlyOne(class))?;
    }
    let status = admin::status(network, ANSWER_LIMIT)?;
    if class == Role::Gateway {
        return drain_gateway(network, index, &status, clients_limit);
    }
    let mediator = index;
    if !can_be_replaced(mediator, network, &status) {
        Err(DrainError::NobodyElse(mediator))?;
    }
    let led = led_by(mediator, network, &status);
    admin::set_drained(network, node, true, LOG_LIMIT)?;
    let moves = match network.durability {
        Durability::None => resize::empty(network, mediator)?.moves,
        Durability::MemoryQuorum | Durability::DiskQuorum => vec![],
    };
    wait_until_handed_over(network, mediator)?;
    let groups = led.into_iter().map(group_name).collect();
    Ok(Drained { groups, moves, sessions: None })
}

/// Lets the clients of a gateway go to others, and waits until they have.
fn drain_gateway(
    network: &Network,
    index: u16,
    status: &NetworkStatus,
    limit: Duration,
) -> Result<Drained, Failure> {
    let mut gateways = status.nodes.iter().filter(|node| node.id.class == Role::Gateway);
    if !gateways.any(|node| node.id.index != index && node.is_up && !node.is_drained) {
        Err(DrainError::NoOtherGateway(index))?;
    }
    let before = gateway_work(network, index)?.map_or(0, |work| work.sessions);
    admin::set_drained(network, Role::Gateway.node(index), true, LOG_LIMIT)?;
    let deadline = Deadline::after(limit);
    loop {
        let work = gateway_work(network, index)?;
        let left = work.map(|work| (work.is_leaving, work.sessions));
        if left == Some((true, 0)) {
            return Ok(Drained { sessions: Some(before), ..Drained::default() });
        }
        if deadline.passed() {
            let (_, sessions) = left.ok_or(DrainError::NoAnswer(index))?;
            let seconds = limit.as_secs();
            Err(DrainError::ClientsStay { index, sessions, seconds })?;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// What a gateway says of itself, if it answers.
fn gateway_work(network: &Network, index: u16) -> Result<Option<Work>, Failure> {
    let answers = admin::work_of(network, &[Role::Gateway.node(index)], ANSWER_LIMIT)?;
    Ok(answers.into_iter().next().map(|(_, work)| work))
}

/// Lets a drained node work again. It gets nothing back by that; whether it was drained.
///
/// # Errors
/// If it is no mediator or gateway, or control does not log it in time.
pub fn resume(network: &Network, node: NodeId) -> Result<bool, Failure> {
    check(network, node)?;
    let was_drained = admin::status(network, ANSWER_LIMIT)?.is_drained(node);
    admin::set_drained(network, node, false, LOG_LIMIT)?;
    if node.class == Role::Gateway {
        wait_until_open(network, node.index)?;
    }
    Ok(was_drained)
}

/// Waits until a gateway that answers takes clients again: those of the next one that is drained
/// may come to it at once.
fn wait_until_open(network: &Network, index: u16) -> Result<(), Failure> {
    let deadline = Deadline::after(LOG_LIMIT);
    while gateway_work(network, index)?.is_some_and(|work| work.is_leaving) && !deadline.passed() {
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Whether a node of this name is one that can be drained.
fn check(network: &Network, node: NodeId) -> Result<(), DrainError> {
    let count = network.nodes(node.class).len();
    match node.class {
        _ if network.node(node).is_none() || network.is_removed(node) => {
            Err(DrainError::NoSuchNode { node, count })
        }
        Role::Router | Role::Processor if count == 1 => Err(DrainError::OnlyOne(node.class)),
        Role::Router => Err(DrainError::Router(node.index)),
        Role::Processor => Err(DrainError::Processor(node.index)),
        Role::Mediator | Role::Gateway => Ok(()),
    }
}

/// Whether there are other mediators for the work of one, which are not drained: for each of its
/// cells a replica, or where cells have one replica, anybody.
fn can_be_replaced(mediator: u16, network: &Network, status: &NetworkStatus) -> bool {
    let works = |other: u16| other != mediator && !status.is_drained(Role::Mediator.node(other));
    if network.durability == Durability::None {
        return network.cells().any(works);
    }
    status
        .cells
        .iter()
        .map(|cell| mediators_of(cell, network))
        .all(|mediators| !mediators.contains(&mediator) || mediators.into_iter().any(works))
}

/// The mediators that have a replica of a cell: what its leader says, or where nobody does, those
/// at first.
fn mediators_of(cell: &CellStatus, network: &Network) -> Vec<u16> {
    let known = cell.leader.and_then(|leader| {
        admin::replicas(network, leader, cell.cell, ANSWER_LIMIT).ok().flatten()
    });
    let voters = known.map_or_else(|| network.replicas(cell.cell), |known| known.voters);
    let mediators = voters.into_iter().filter(|node| node.class == Role::Mediator);
    mediators.map(|node| node.index).collect()
}

/// Waits until others lead what a drained mediator leads.
fn wait_until_handed_over(network: &Network, mediator: u16) -> Result<(), Failure> {
    let deadline = Deadline::after(HAND_OVER_LIMIT);
    loop {
        let led = led_by(mediator, network, &admin::status(network, ANSWER_LIMIT)?);
        if led.is_empty() {
            return Ok(());
        }
        if deadline.passed() {
            let groups: Vec<String> = led.into_iter().map(group_name).collect();
            let message = format!(
                "after {} s mediator {mediator} still leads {}, because no other replica is ready \
                 to; it hands over when one is",
                HAND_OVER_LIMIT.as_secs(),
                groups.join(", ")
            );
            let hint = format!(
                "look at `nearmetal exchange status`, and start what is not up; `nearmetal \
                 exchange resume mediator:{mediator}` lets it work again"
            );
            return Err(Failure::new(FailureKind::Peer, message).hint(hint));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The groups that a mediator leads, and another one could lead.
fn led_by(mediator: u16, network: &Network, status: &NetworkStatus) -> Vec<u16> {
    let is_led = |leader: Option<u16>| leader == Some(mediator);
    let has_replicas = network.durability != Durability::None;
    let cells = status.cells.iter().filter(|cell| has_replicas && is_led(cell.leader));
    let control = status.control.as_ref().filter(|control| is_led(control.leader));
    cells.map(|cell| cell.cell).chain(control.map(|_| CONTROL)).collect()
}
