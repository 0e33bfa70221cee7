//! Makes a mediator of a running network carry nothing, so that it can be stopped without a pause
//! for clients: others lead its cells, or, where cells have one replica, its instruments move away.

use std::time::Duration;

use nm_exchange::control::admin::{self, MoveOutcome, NetworkStatus};
use nm_exchange::network::{CONTROL, Durability, Network, Role, group_name};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use thiserror::Error;

use crate::resize;

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long others may take to lead.
const LIMIT: Duration = Duration::from_secs(30);

/// Pause between two attempts: an election takes some tenths of a second.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Interval at which it is asked who leads.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a node cannot be drained.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DrainError {
    /// There is no such node.
    #[error("the network has no {role} {index}: it has {count} of them")]
    NoSuchNode {
        /// Its class.
        role: Role,
        /// Which one of its class.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Nothing can do its work meanwhile.
    #[error("{0} 0 is the only one, so nothing can do its work meanwhile")]
    OnlyOne(Role),
    /// A router needs none.
    #[error(
        "router {0} needs no draining: stop it, and the gateways use another router at once; no \
         request is lost"
    )]
    Router(usize),
    /// A gateway has clients.
    #[error(
        "gateway {0} cannot be drained, because its clients are connected with it: stop it when \
         they may have a pause; they connect again, and no request is lost"
    )]
    Gateway(usize),
    /// A processor has cells.
    #[error(
        "processor {0} cannot be drained, because it alone sends the replies of its cells: stop it \
         when clients may have a pause; no request is lost"
    )]
    Processor(usize),
}

impl From<DrainError> for Failure {
    fn from(error: DrainError) -> Failure {
        Failure::new(FailureKind::BadRequest, error.to_string())
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Drained {
    /// Groups that another node leads now, by name.
    pub groups: Vec<String>,
    /// What became of each move.
    pub moves: Vec<MoveOutcome>,
}

/// Makes a node carry nothing.
///
/// # Errors
/// If it is no mediator, nothing can do its work, or others do not lead its groups in time.
pub fn drain(network: &Network, role: Role, index: usize) -> Result<Drained, Failure> {
    let count = network.nodes(role).len();
    match role {
        _ if index >= count => Err(DrainError::NoSuchNode { role, index, count })?,
        Role::Router | Role::Mediator if count == 1 => Err(DrainError::OnlyOne(role))?,
        Role::Router => Err(DrainError::Router(index))?,
        Role::Gateway => Err(DrainError::Gateway(index))?,
        Role::Processor => Err(DrainError::Processor(index))?,
        Role::Mediator => {}
    }
    let mediator = index as u16;
    let moves = match network.durability {
        Durability::None => resize::empty(network, mediator)?.moves,
        Durability::MemoryQuorum | Durability::DiskQuorum => vec![],
    };
    Ok(Drained { groups: hand_over(network, mediator)?, moves })
}

/// Lets others lead what a mediator leads; the names of these groups.
fn hand_over(network: &Network, mediator: u16) -> Result<Vec<String>, Failure> {
    let deadline = Deadline::after(LIMIT);
    let handed_over = led_by(mediator, network, &admin::status(network, ANSWER_LIMIT)?);
    let mut left = handed_over.clone();
    while !left.is_empty() {
        admin::hand_over(network, mediator, ANSWER_LIMIT)?;
        let attempt = Deadline::after(RETRY_PAUSE);
        while !left.is_empty() && !attempt.passed() {
            std::thread::sleep(POLL_INTERVAL);
            left = led_by(mediator, network, &admin::status(network, ANSWER_LIMIT)?);
        }
        if !left.is_empty() && deadline.passed() {
            let groups: Vec<String> = left.iter().map(|group| group_name(*group)).collect();
            let message = format!(
                "after {} s mediator {mediator} still leads {}: no other replica is ready to",
                LIMIT.as_secs(),
                groups.join(", ")
            );
            return Err(Failure::new(FailureKind::Peer, message)
                .hint("look at `nearmetal exchange status`, and start what is not up"));
        }
    }
    Ok(handed_over.into_iter().map(group_name).collect())
}

/// The groups that a mediator leads, and another one could lead.
fn led_by(mediator: u16, network: &Network, status: &NetworkStatus) -> Vec<u16> {
    let is_led = |leader: Option<u16>| leader == Some(mediator);
    let has_replicas = network.durability != Durability::None;
    let cells = status.cells.iter().filter(|cell| has_replicas && is_led(cell.leader));
    let control = status.control.as_ref().filter(|control| is_led(control.leader));
    cells.map(|cell| cell.cell).chain(control.map(|_| CONTROL)).collect()
}
