//! One request to a running network: its status, its work, a move, a node that comes, goes or
//! carries nothing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_book::order::InstrumentId;
use nm_exchange::client::ClientError;
use nm_exchange::control::{
    Access, AddError, AdminRequest, AdminResponse, CellReplicas, ControlReplica, InstrumentMap,
    Observer, RemoveError, State, Work, addresses_of, share_an_address, unreachable,
};
use nm_exchange::network::{
    AddedNode, CONTROL, Durability, Network, NetworkError, Node, NodeId, Role,
};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::{self, Deadline};
use schemars::JsonSchema;
use serde::Serialize;

/// Why nothing can be changed in a network without control.
const NO_CONTROL: &str = "the network has no control group, so its map is that of the network \
                          file: give its mediators `replication` addresses";

/// A node of a network, as it is seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeStatus {
    /// Which.
    #[serde(flatten)]
    pub id: NodeId,
    /// Where it listens.
    pub address: String,
    /// Whether it is up.
    pub is_up: bool,
    /// Whether it answers, if it was asked: see [`crate::health`]. One that stands still (SIGSTOP)
    /// keeps its links, and the others take it for up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// Whether nothing listens at its address, so that it has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
    /// How often it has started; none without control.
    pub starts: Option<u32>,
    /// Since when it is up or not, ms since 1970; none without control.
    pub since_unix_ms: Option<u64>,
    /// Whether it is drained: it is to carry nothing.
    pub is_drained: bool,
}

impl NodeStatus {
    /// Whether it carries what it should, as far as that is known.
    pub fn works(&self) -> bool {
        self.is_up && self.answers != Some(false)
    }
}

/// A cell and its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CellStatus {
    /// Which.
    pub cell: u16,
    /// The mediator that leads it; none if that one has ended, or none has led it yet.
    pub leader: Option<u16>,
    /// Term of that leader, or the last one.
    #[serde(rename = "epoch")]
    pub term: u32,
    /// Its replicas, such as `mediator 0`, if its leader was asked: see [`crate::health`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub voters: Vec<String>,
    /// Why its instruments cannot be traded, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
}

/// The control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ControlStatus {
    /// Its replicas, such as `mediator 0`.
    pub voters: Vec<String>,
    /// The mediator that leads it, if one does.
    pub leader: Option<u16>,
    /// Term of that leader.
    #[serde(rename = "epoch")]
    pub term: Option<u32>,
    /// For how long a pending change could not be logged, ms; zero if all is well.
    pub stalled_ms: u64,
    /// How old what it says of nodes may be, ms, if nobody leads it: since its last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Index of the last entry that is part of the state.
    pub index: u64,
    /// Hash of the state.
    pub hash: String,
}

/// An instrument and its cell, which is not that of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapException {
    /// Which.
    pub instrument: InstrumentId,
    /// Its cell.
    pub cell: u16,
}

/// The status of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NetworkStatus {
    /// The network with the nodes that were added to it.
    #[serde(skip)]
    pub network: Network,
    /// When a request counts as executed.
    pub durability: Durability,
    /// The control group; none if nothing is replicated: the map is then the network file's.
    pub control: Option<ControlStatus>,
    /// All nodes.
    pub nodes: Vec<NodeStatus>,
    /// All cells.
    pub cells: Vec<CellStatus>,
    /// Version of the map: instruments belong to cells by the rule `instrument % cells`, but for
    /// the exceptions.
    #[serde(rename = "map_epoch")]
    pub map_version: u32,
    /// Over how many cells the rule spreads instruments.
    pub active_cells: u16,
    /// Instruments in other cells than the rule gives.
    pub exceptions: Vec<MapException>,
    /// Instruments that are being moved, with their new cells.
    #[serde(rename = "moving")]
    pub pending_moves: Vec<MapException>,
}

impl NetworkStatus {
    /// Whether all nodes are up and answer, every cell has a leader, and so has control.
    pub fn is_healthy(&self) -> bool {
        let is_led = |control: &ControlStatus| control.leader.is_some() && control.stalled_ms == 0;
        self.nodes.iter().all(NodeStatus::works)
            && self.cells.iter().all(|cell| cell.leader.is_some())
            && self.control.as_ref().is_none_or(is_led)
    }

    /// Whose requests wait because nobody takes the place of nodes that do not answer, a sentence
    /// each. They go on when these do, or start again.
    pub fn waits(&self) -> Vec<String> {
        let network = &self.network;
        let stands = |class: Role, index: u16| {
            self.node(class.node(index)).is_some_and(|node| !node.works())
        };
        let all_stand = |class, of: &[u16]| of.iter().all(|index| stands(class, *index));
        let names = |class: Role, of: &[u16]| {
            of.iter().map(|index| class.node(*index).to_string()).collect::<Vec<_>>().join(" and ")
        };
        let mut waits = vec![];
        let gateways = network.all().filter(|(id, _)| id.class == Role::Gateway);
        for gateway in gateways.map(|(id, _)| id.index) {
            let routers = network.routers_of(gateway);
            if stands(Role::Gateway, gateway) {
                let name = Role::Gateway.node(gateway);
                waits.push(format!("the clients of {name}, which may go to another gateway"));
            } else if all_stand(Role::Router, &routers) {
                let (name, of) = (Role::Gateway.node(gateway), names(Role::Router, &routers));
                waits.push(format!("all requests at {name}: {of} would carry them"));
            }
        }
        for cell in network.cells() {
            let processors = network.processors_of(cell);
            let is_alone = self.durability == Durability::None;
            if is_alone && stands(Role::Mediator, cell) {
                let of = Role::Mediator.node(cell);
                waits.push(format!("requests for cell {cell}: only {of} has its books"));
            } else if all_stand(Role::Processor, &processors) {
                let of = names(Role::Processor, &processors);
                waits.push(format!("replies of cell {cell}: {of} would send them"));
            }
        }
        waits
    }

    /// A cell, unless it was removed.
    pub fn cell(&self, cell: u16) -> Option<&CellStatus> {
        self.cells.iter().find(|known| known.cell == cell)
    }

    /// A node, unless it was removed.
    pub fn node(&self, node: NodeId) -> Option<&NodeStatus> {
        self.nodes.iter().find(|known| known.id == node)
    }

    /// Whether a node is drained.
    pub fn is_drained(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|node| node.is_drained)
    }

    /// Whether instruments can be moved to a cell, and from it: somebody leads it, and not only a
    /// mediator that is to carry nothing.
    pub fn takes_instruments(&self, cell: &CellStatus) -> bool {
        let is_alone = self.durability == Durability::None;
        cell.leader.is_some() && !(is_alone && self.is_drained(Role::Mediator.node(cell.cell)))
    }
}

/// The status of a running network.
///
/// # Errors
/// If no node that could know it answers within `limit`.
pub fn status(network: &Network, limit: Duration) -> Result<NetworkStatus, Failure> {
    let access = Access::new(network)?;
    match network.has_control() {
        true => Ok(status_with_control(network, &access.control(limit)?)),
        false => status_without_control(&access, limit),
    }
}

fn status_with_control(network: &Network, replica: &ControlReplica) -> NetworkStatus {
    let state = &replica.state;
    let network = state.routes().map.extended(network);
    let nodes = network.all().map(|(id, node)| {
        let known = state.nodes().get(&id);
        NodeStatus {
            id,
            address: node.address.to_string(),
            is_up: known.is_some_and(|known| known.is_up),
            answers: None,
            is_gone: false,
            starts: Some(known.map_or(0, |known| known.starts)),
            since_unix_ms: known.map(|known| known.since_ms),
            is_drained: state.routes().map.drained().contains(&id),
        }
    });
    let routes = state.routes();
    let cells = network.cells().map(|cell| {
        let known = routes.leaders.get(&cell);
        let leader = known.filter(|leader| state.is_running(leader)).map(|it| it.mediator);
        let term = known.map_or(0, |leader| leader.term);
        CellStatus { cell, leader, term, voters: vec![], hindrance: None }
    });
    let exception = |instrument, cell| MapException { instrument, cell };
    let voters = network.replicas(CONTROL).into_iter();
    NetworkStatus {
        durability: network.durability,
        control: Some(ControlStatus {
            voters: voters.map(|node| node.to_string()).collect(),
            leader: replica.leading_term.map(|_| replica.mediator),
            term: replica.leading_term,
            stalled_ms: replica.stalled_ms,
            age_ms: replica.leading_term.is_none().then(|| age_ms(state)),
            index: state.index(),
            hash: format!("{:016x}", state.hash()),
        }),
        nodes: nodes.collect(),
        cells: cells.collect(),
        map_version: routes.map.version(),
        active_cells: network.active_cells(),
        exceptions: routes.map.exceptions().map(|(at, cell)| exception(at, cell)).collect(),
        pending_moves: state
            .pending_moves()
            .iter()
            .map(|(at, to)| exception(*at, to.cell))
            .collect(),
        network: network.into_owned(),
    }
}

/// Time since the last change of control that it knows of, ms.
fn age_ms(state: &State) -> u64 {
    let last_ms = state.nodes().values().map(|node| node.since_ms).max().unwrap_or(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() as u64).saturating_sub(last_ms)
}

/// The status of a network without durability: a node that answers is up, and each mediator leads
/// its own cell.
fn status_without_control(access: &Access<'_>, limit: Duration) -> Result<NetworkStatus, Failure> {
    let network = access.network;
    let mut refused = String::new();
    let mut nodes = vec![];
    for (id, node) in network.all() {
        let connected = access.observe(&node.address, limit);
        if let Err(error) = &connected {
            refused = format!("{id} at {}: {error}", node.address);
        }
        let (address, is_up) = (node.address.to_string(), connected.is_ok());
        nodes.push(NodeStatus {
            id,
            address,
            is_up,
            answers: None,
            is_gone: false,
            starts: None,
            since_unix_ms: None,
            is_drained: false,
        });
    }
    if nodes.iter().all(|node| !node.is_up) {
        return Err(unreachable(format!("no node of the network answers: {refused}")));
    }
    let mediators = nodes.iter().filter(|node| node.id.class == Role::Mediator);
    let cells = mediators.map(|node| {
        let cell = node.id.index;
        let leader = node.is_up.then_some(cell);
        CellStatus { cell, leader, term: 0, voters: vec![], hindrance: None }
    });
    Ok(NetworkStatus {
        network: network.clone(),
        durability: network.durability,
        control: None,
        cells: cells.collect(),
        nodes,
        map_version: 0,
        active_cells: network.active_cells(),
        exceptions: vec![],
        pending_moves: vec![],
    })
}

/// What became of the move of one instrument.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct MoveOutcome {
    /// Which instrument.
    pub instrument: InstrumentId,
    /// Version of the map in which it belongs to the cell; none if it was refused.
    pub map_version: Option<u32>,
    /// Why it was refused, if it was.
    pub refused: Option<String>,
    /// From the request to the response, ms.
    pub took_ms: f64,
}

/// Moves that are requested at once.
const REQUESTED_AT_ONCE: usize = 64;

/// Moves instruments to a cell; what became of each.
///
/// # Errors
/// If they cannot be moved, or no node leads control within `limit`.
pub fn move_instruments(
    network: &Network,
    instruments: &[InstrumentId],
    cell: u16,
    limit: Duration,
) -> Result<Vec<MoveOutcome>, Failure> {
    let moves: Vec<(InstrumentId, u16)> = instruments.iter().map(|it| (*it, cell)).collect();
    move_all(network, &moves, limit)
}

/// Moves each instrument to its cell; what became of each.
///
/// # Errors
/// As [`move_instruments`].
pub fn move_all(
    network: &Network,
    moves: &[(InstrumentId, u16)],
    limit: Duration,
) -> Result<Vec<MoveOutcome>, Failure> {
    InstrumentMover::new(network)?.move_all(moves, limit)
}

/// Moves instruments of a network, again and again, over one link to the leader of control.
pub struct InstrumentMover<'a> {
    access: Access<'a>,
    /// The mediator that answered the last request as leader of control.
    leader: Option<(u16, Observer)>,
}

impl InstrumentMover<'_> {
    /// A mover that has no link yet.
    ///
    /// # Errors
    /// If the network has no control group, or the file of the secret cannot be read.
    pub fn new(network: &Network) -> Result<InstrumentMover<'_>, Failure> {
        if !network.has_control() {
            return Err(Failure::new(FailureKind::BadRequest, NO_CONTROL));
        }
        Ok(InstrumentMover { access: Access::new(network)?, leader: None })
    }

    /// Moves each instrument to its cell; what became of each.
    ///
    /// # Errors
    /// As [`move_instruments`].
    pub fn move_all(
        &mut self,
        moves: &[(InstrumentId, u16)],
        limit: Duration,
    ) -> Result<Vec<MoveOutcome>, Failure> {
        let network = self.access.network;
        let has_cell = |cell: u16| network.cells().any(|known| known == cell);
        if let Some((_, cell)) = moves.iter().find(|(_, cell)| !has_cell(*cell)) {
            let cells = network.cells().count();
            let message = format!("there is no cell {cell}: the network has {cells}");
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        let deadline = Deadline::after(limit);
        let (mut outcomes, mut left) = (vec![], moves.to_vec());
        while !left.is_empty() {
            let before = left.len();
            let reason = self.request_from_all(&mut left, &mut outcomes, deadline)?;
            if deadline.passed() && !left.is_empty() {
                let (seconds, count) = (limit.as_secs(), left.len());
                let message = format!(
                    "control has not moved {count} instruments within {seconds} s: {reason}"
                );
                return Err(Failure::new(FailureKind::Peer, message));
            }
            if left.len() == before {
                std::thread::sleep(Access::RETRY_PAUSE);
            }
        }
        Ok(outcomes)
    }

    /// Requests moves from the leader of before, or else from each mediator that could lead. Those
    /// that have ended are removed from `left`; why others have not.
    fn request_from_all(
        &mut self,
        left: &mut Vec<(InstrumentId, u16)>,
        outcomes: &mut Vec<MoveOutcome>,
        deadline: Deadline,
    ) -> Result<String, Failure> {
        let mut reason = "none of its mediators leads it".to_string();
        let first = self.leader.as_ref().map(|(mediator, _)| *mediator);
        for mediator in first.into_iter().chain(self.access.mediators()) {
            match self.request_from(mediator, left, outcomes, deadline) {
                Ok(()) => {}
                Err(error) if error.is_lasting() => {
                    let message = self.access.named(mediator, &error);
                    return Err(Failure::new(FailureKind::Peer, message));
                }
                Err(error) => reason = self.access.named(mediator, &error),
            }
            if left.is_empty() {
                break;
            }
        }
        Ok(reason)
    }

    /// Requests moves from a mediator, some at a time, as long as it leads control. Those that have
    /// ended are removed from `left`. The link is kept if all have.
    fn request_from(
        &mut self,
        mediator: u16,
        left: &mut Vec<(InstrumentId, u16)>,
        outcomes: &mut Vec<MoveOutcome>,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let limit = deadline.remaining().min(Access::HANDSHAKE_LIMIT);
        if limit.is_zero() {
            // The caller has the reason of an attempt that had time.
            return Ok(());
        }
        let mut operator = match self.leader.take().filter(|(known, _)| *known == mediator) {
            Some((_, operator)) => operator,
            None => self.access.operate(mediator, limit)?,
        };
        while !left.is_empty() {
            if !request_moves(&mut operator, left, outcomes, deadline)? {
                return Ok(());
            }
        }
        self.leader = Some((mediator, operator));
        Ok(())
    }
}

/// Requests the first moves of `left` together, and removes those that have ended; false if
/// the mediator does not lead control.
fn request_moves(
    operator: &mut Observer,
    left: &mut Vec<(InstrumentId, u16)>,
    outcomes: &mut Vec<MoveOutcome>,
    deadline: Deadline,
) -> Result<bool, ClientError> {
    let now = left.len().min(REQUESTED_AT_ONCE);
    let begin_ns = clock::monotonic_ns();
    for (instrument, cell) in &left[..now] {
        operator.send(&AdminRequest::Move { instrument: *instrument, cell: *cell });
    }
    for _ in 0..now {
        let (instrument, map_version, refused) = match operator.receive(deadline)? {
            AdminResponse::Moved { instrument, map_version } => {
                (instrument, Some(map_version), None)
            }
            AdminResponse::Refused { instrument, reason } => (instrument, None, Some(reason)),
            AdminResponse::NotLeading => return Ok(false),
            _ => return Err(ClientError::Unexpected),
        };
        let took_ms = (clock::monotonic_ns() - begin_ns) as f64 / 1e6;
        left.retain(|(known, _)| *known != instrument);
        outcomes.push(MoveOutcome { instrument, map_version, refused, took_ms });
    }
    Ok(true)
}

/// Lets a mediator or gateway carry nothing, or work again, and waits until control has logged
/// that.
///
/// # Errors
/// If the network has no control group, or it does not log it within `limit`.
pub fn set_drained(
    network: &Network,
    node: NodeId,
    is_drained: bool,
    limit: Duration,
) -> Result<(), Failure> {
    let request = AdminRequest::Drain { node, is_drained };
    change(network, &request, limit, |state| {
        Ok(state.routes().map.drained().contains(&node) == is_drained)
    })
}

/// The state of control, as its leader has it, after a change was asked for that `is_done` shows;
/// asks again until that is so.
pub(crate) fn change(
    network: &Network,
    request: &AdminRequest,
    limit: Duration,
    mut is_done: impl FnMut(&State) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    if !network.has_control() {
        return Err(Failure::new(FailureKind::BadRequest, NO_CONTROL));
    }
    let access = Access::new(network)?;
    let deadline = Deadline::after(limit);
    loop {
        let mut reason = "none of its mediators leads it".to_string();
        for voter in access.mediators() {
            match access.request(voter, request, deadline.remaining().min(Access::HANDSHAKE_LIMIT))
            {
                Ok(AdminResponse::Status { state, leading_term: Some(_), .. }) => {
                    match State::load(&state) {
                        Ok(state) if is_done(&state)? => return Ok(()),
                        Ok(_) => {}
                        Err(error) => reason = access.named(voter, &error.into()),
                    }
                }
                Ok(_) => {}
                Err(error) if error.is_lasting() => {
                    return Err(Failure::new(FailureKind::Peer, access.named(voter, &error)));
                }
                Err(error) => reason = access.named(voter, &error),
            }
        }
        if deadline.passed() {
            let seconds = limit.as_secs();
            let message = format!("control has not logged the change within {seconds} s: {reason}");
            return Err(Failure::new(FailureKind::Peer, message));
        }
        std::thread::sleep(Access::RETRY_PAUSE);
    }
}

/// Adds a node of a class that listens at these addresses to a running network, a mediator with a
/// cell of its own; its number. One that is part of the network already is not added again.
///
/// # Errors
/// If the network can have no more, an address is taken, or control does not log it within `limit`.
pub fn add_node(
    network: &Network,
    role: Role,
    node: &Node,
    limit: Duration,
) -> Result<u16, Failure> {
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    let mut founders = network.all().filter(|(id, _)| !network.was_added(*id));
    if let Some((id, _)) = founders.find(|(_, it)| share_an_address(it, node)) {
        return Err(bad(format!("{id} listens at one of these addresses")));
    }
    let mut extended = network.clone();
    let mut added = InstrumentMap::of(network).added(role).to_vec();
    added.push(AddedNode { node: node.clone(), is_removed: false });
    extended.set_added(role, &added);
    let (count, durability) = (network.nodes(role).len() as u16, network.durability);
    let has_replicas = role == Role::Mediator && durability != Durability::None;
    if has_replicas && node.replication.is_none() {
        let missing = NetworkError::NoReplicationAddress { node: role.node(count), durability };
        return Err(bad(missing.to_string()));
    }
    if network.secret.is_none() {
        extended.secret_of_nodes().map_err(|error| bad(error.to_string()))?;
    }
    let request = AdminRequest::Add { class: role, addresses: addresses_of(node) };
    let mut added = None;
    change(network, &request, limit, |state| {
        added = state.plan_add(role, node).map_err(|error: AddError| bad(error.to_string()))?;
        Ok(added.is_some())
    })?;
    // It is done when there is a number.
    Ok(added.unwrap_or_default())
}

/// Removes a node that was added, a mediator with its cell.
///
/// # Errors
/// If it was not added, is a mediator whose cell has instruments or a gateway that takes clients,
/// or control does not log it within `limit`.
pub fn remove_node(network: &Network, node: NodeId, limit: Duration) -> Result<(), Failure> {
    let bad = |error: RemoveError| Failure::new(FailureKind::BadRequest, error.to_string());
    let (request, mut was_there) = (AdminRequest::Remove { node }, false);
    change(network, &request, limit, |state| match state.plan_remove(node) {
        Ok(()) => {
            was_there = true;
            Ok(false)
        }
        Err(RemoveError::NoSuchNode(_)) if was_there => Ok(true),
        Err(error) => Err(bad(error)),
    })
}

/// The replicas of a cell, as a mediator knows them; none if it has none of the cell.
///
/// # Errors
/// If it does not answer within `limit`.
pub fn replicas(
    network: &Network,
    mediator: u16,
    cell: u16,
    limit: Duration,
) -> Result<Option<CellReplicas>, Failure> {
    request_replicas(network, mediator, &AdminRequest::Replicas { cell }, limit)
}

/// Asks a mediator that leads a cell to replace one of its replicas by one of another node; the
/// replicas of the cell at this moment.
///
/// # Errors
/// As [`replicas`].
pub fn replace_replica(
    network: &Network,
    mediator: u16,
    (cell, from, to): (u16, NodeId, NodeId),
    limit: Duration,
) -> Result<Option<CellReplicas>, Failure> {
    request_replicas(network, mediator, &AdminRequest::Replace { cell, from, to }, limit)
}

fn request_replicas(
    network: &Network,
    mediator: u16,
    request: &AdminRequest,
    limit: Duration,
) -> Result<Option<CellReplicas>, Failure> {
    let access = Access::new(network)?;
    let failed =
        |error: ClientError| Failure::new(FailureKind::Peer, access.named(mediator, &error));
    match access.request(mediator, request, limit).map_err(failed)? {
        AdminResponse::Replicas { replicas } => Ok(Some(replicas)),
        AdminResponse::NotLeading => Ok(None),
        _ => Err(failed(ClientError::Unexpected)),
    }
}

/// What each mediator has done since it started, by index; none of those that do not answer.
///
/// # Errors
/// If the file of the secret cannot be read.
pub fn work(network: &Network, limit: Duration) -> Result<Vec<(u16, Work)>, Failure> {
    let access = Access::new(network)?;
    let mut all = vec![];
    // Each cell has the number of its mediator.
    for mediator in network.cells() {
        let answer = access.request(mediator, &AdminRequest::Work, limit);
        if let Ok(AdminResponse::Work { work }) = answer {
            all.push((mediator, work));
        }
    }
    Ok(all)
}

/// The work of gateways, routers or mediators: of the first two only the time and the latencies of
/// their links. None of those that do not answer, or were not asked before `limit` was over.
///
/// # Errors
/// If the file of the secret cannot be read.
pub fn work_of(
    network: &Network,
    nodes: &[NodeId],
    limit: Duration,
) -> Result<Vec<(NodeId, Work)>, Failure> {
    let access = Access::new(network)?;
    let deadline = Deadline::after(limit);
    let mut all = vec![];
    for id in nodes {
        let Some(node) = network.node(*id).filter(|_| !deadline.passed()) else { continue };
        let asked = access.observe(&node.address, deadline.remaining());
        let answer = asked
            .and_then(|mut observer| observer.request(&AdminRequest::Work, deadline.remaining()));
        if let Ok(AdminResponse::Work { work }) = answer {
            all.push((*id, work));
        }
    }
    Ok(all)
}
