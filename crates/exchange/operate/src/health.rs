//! Whether a network trades, by what its nodes answer themselves. What control knows of a node is
//! as old as the last message about it, and control may be dead as well.
//!
//! Each node is asked whether it answers, and each mediator whether it leads the cells that it may
//! have. The instruments of a cell are traded if somebody leads it and a majority of its replicas
//! answers. One of its processors must answer as well, and a gateway with a router.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nm_exchange::client::ClientError;
use nm_exchange::control::Access;
use nm_exchange::network::{CONTROL, Durability, Network, NodeId, Role};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use schemars::JsonSchema;
use serde::Serialize;

use crate::admin::{self, CellStatus, ControlStatus, NetworkStatus, NodeStatus};

/// Whether a network does what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trading {
    /// All instruments are traded, and every node is there.
    Healthy,
    /// Some instruments cannot be traded, or a node is missing that another one stands in for.
    Degraded,
    /// No instrument can be traded.
    NotTrading,
}

impl Trading {
    /// From the best to the worst.
    pub const ALL: [Trading; 3] = [Trading::Healthy, Trading::Degraded, Trading::NotTrading];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Trading::Healthy => "healthy",
            Trading::Degraded => "degraded",
            Trading::NotTrading => "not trading",
        }
    }
}

/// The status of a network, by all that its nodes answer within `limit` each.
///
/// # Errors
/// If the network's secret cannot be read, or no key lets us ask.
pub fn ask(network: &Network, limit: Duration) -> Result<NetworkStatus, Failure> {
    let mut status = match admin::status(network, limit) {
        Ok(status) => status,
        Err(failure) if failure.kind == FailureKind::Peer => unknown(network),
        Err(failure) => return Err(failure),
    };
    ask_nodes(&mut status, limit);
    if let Some(control) = &mut status.control {
        let leader = control.leader.map(|leader| Role::Mediator.node(leader));
        let is_silent = |node: &NodeStatus| Some(node.id) == leader && node.answers == Some(false);
        if status.nodes.iter().any(is_silent) {
            (control.leader, control.term) = (None, None);
        }
    }
    ask_leaders(&mut status, limit);
    for at in 0..status.cells.len() {
        // A leader that has just lost its majority does not know it yet.
        if status.has_no_majority(&status.cells[at]) {
            status.cells[at].leader = None;
        }
        let hindrance = status.hindrance(&status.cells[at]);
        status.cells[at].hindrance = hindrance;
    }
    Ok(status)
}

/// What is known of a network of which nobody answers: its file.
fn unknown(network: &Network) -> NetworkStatus {
    let nodes = network.all().map(|(id, node)| NodeStatus {
        id,
        address: node.address.to_string(),
        is_up: false,
        answers: None,
        is_gone: false,
        starts: None,
        since_unix_ms: None,
        is_drained: false,
    });
    let cells = network.cells().map(|cell| CellStatus {
        cell,
        leader: None,
        term: 0,
        voters: vec![],
        hindrance: None,
    });
    let control = network.has_control().then(|| ControlStatus {
        voters: network.replicas(CONTROL).iter().map(NodeId::to_string).collect(),
        leader: None,
        term: None,
        stalled_ms: 0,
        age_ms: None,
        index: 0,
        hash: String::new(),
    });
    NetworkStatus {
        durability: network.durability,
        control,
        nodes: nodes.collect(),
        cells: cells.collect(),
        map_version: 0,
        active_cells: network.active_cells(),
        exceptions: vec![],
        pending_moves: vec![],
        network: network.clone(),
    }
}

/// Asks each node, all at the same time, whether it answers within `limit`. Where no key lets us
/// ask, that stays unknown.
fn ask_nodes(status: &mut NetworkStatus, limit: Duration) {
    let network = status.network.clone();
    let Ok(access) = Access::new(&network) else { return };
    std::thread::scope(|scope| {
        for node in &mut status.nodes {
            let (id, access) = (node.id, &access);
            let Some(known) = network.node(id) else { continue };
            let ask = move || match access.observe(&known.address, limit) {
                Ok(_) => node.answers = Some(true),
                Err(error) => {
                    (node.answers, node.is_gone) = silence(&error);
                }
            };
            // Without a thread for it, that stays unknown as well.
            drop(std::thread::Builder::new().spawn_scoped(scope, ask));
        }
    });
}

/// What an error says of a node: whether it answers, and whether nothing listens there.
fn silence(error: &ClientError) -> (Option<bool>, bool) {
    match error {
        ClientError::Timeout(_) | ClientError::NoChallenge(_) => (Some(false), false),
        ClientError::Io(error) => {
            let is_gone =
                [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound].contains(&error.kind());
            (Some(false), is_gone)
        }
        ClientError::Mistaken { .. } => (Some(false), true),
        _ => (None, false),
    }
}

/// Asks the mediators of each replicated cell who leads it, and which replicas it has: those may be
/// others than at first. Who was not asked in time stays what control says.
fn ask_leaders(status: &mut NetworkStatus, limit: Duration) {
    let deadline = Deadline::after(limit);
    let network = status.network.clone();
    let silent: BTreeSet<NodeId> = status
        .nodes
        .iter()
        .filter(|node| node.answers == Some(false))
        .map(|node| node.id)
        .collect();
    for cell in &mut status.cells {
        if network.durability == Durability::None {
            let mediator = Role::Mediator.node(cell.cell);
            cell.leader = cell.leader.filter(|_| !silent.contains(&mediator));
            continue;
        }
        let known = cell.leader.map(|leader| Role::Mediator.node(leader));
        let places = network.replica_places(cell.cell).into_iter();
        let others = places.filter(|place| place.class == Role::Mediator && Some(*place) != known);
        let (mut leader, mut is_certain) = (None, true);
        for mediator in known.into_iter().chain(others).filter(|it| !silent.contains(it)) {
            let left = deadline.remaining();
            if left.is_zero() {
                is_certain = false;
                break;
            }
            match admin::replicas(&network, mediator.index, cell.cell, left) {
                Ok(Some(replicas)) if replicas.is_leader => {
                    leader = Some(mediator.index);
                    cell.voters = replicas.voters.iter().map(NodeId::to_string).collect();
                    break;
                }
                Ok(_) => {}
                Err(_) => is_certain = false,
            }
        }
        let is_dead = known.is_some_and(|known| silent.contains(&known));
        if leader.is_some() || is_certain || is_dead {
            cell.leader = leader;
        }
    }
}

impl NetworkStatus {
    /// Whether the network does what it is for.
    pub fn trading(&self) -> Trading {
        let mut carrying = self.cells.iter().filter(|cell| self.has_instruments(cell.cell));
        if carrying.all(|cell| cell.hindrance.is_some()) {
            return Trading::NotTrading;
        }
        if self.is_healthy() && self.cells.iter().all(|cell| cell.hindrance.is_none()) {
            Trading::Healthy
        } else {
            Trading::Degraded
        }
    }

    /// Which instruments cannot be traded, and why, a sentence for each cell.
    pub fn not_traded(&self) -> Vec<String> {
        let carrying = self.cells.iter().filter(|cell| self.has_instruments(cell.cell));
        let why = carrying.filter_map(|cell| Some((cell.cell, cell.hindrance.as_ref()?)));
        why.map(|(cell, why)| format!("{} (cell {cell}): {why}", self.instruments_of(cell)))
            .collect()
    }

    fn has_instruments(&self, cell: u16) -> bool {
        cell < self.active_cells || self.exceptions.iter().any(|it| it.cell == cell)
    }

    /// The instruments of a cell in words.
    fn instruments_of(&self, cell: u16) -> String {
        let cells = self.active_cells;
        let in_cell = |instrument: u32| instrument % u32::from(cells.max(1)) == u32::from(cell);
        let list = |all: Vec<String>| all.join(", ");
        let came = self.exceptions.iter().filter(|it| it.cell == cell && !in_cell(it.instrument));
        let came = list(came.map(|it| it.instrument.to_string()).collect());
        let left = self.exceptions.iter().filter(|it| it.cell != cell && in_cell(it.instrument));
        let left = list(left.map(|it| it.instrument.to_string()).collect());
        let mut text = match (cell < cells, cells) {
            (false, _) => return format!("instruments {came}"),
            (true, 0 | 1) => "all instruments".to_string(),
            (true, _) => format!("instruments with number % {cells} = {cell}"),
        };
        if !left.is_empty() {
            text += &format!(" but {left}");
        }
        if !came.is_empty() {
            text += &format!(", and {came}");
        }
        text
    }

    /// Why the instruments of a cell cannot be traded; none if they can.
    fn hindrance(&self, cell: &CellStatus) -> Option<String> {
        let network = &self.network;
        let works = |id: NodeId| self.node(id).is_some_and(NodeStatus::works);
        let works_of = |class: Role, index: u16| works(class.node(index));
        let mut gateways = network.all().filter(|(id, _)| id.class == Role::Gateway);
        let has_way = gateways.any(|(id, _)| {
            let mut routers = network.routers_of(id.index).into_iter();
            works(id) && routers.any(|router| works_of(Role::Router, router))
        });
        if !has_way {
            return Some("no gateway answers that has a router".to_string());
        }
        let number = cell.cell;
        let silent = |of: Vec<NodeId>| -> Vec<String> {
            of.into_iter().filter(|id| !works(*id)).map(|id| id.to_string()).collect()
        };
        if self.durability == Durability::None {
            let own = Role::Mediator.node(number);
            if !works(own) {
                return Some(format!("only {own} has its books, and it does not answer"));
            }
        } else {
            if self.has_no_majority(cell) {
                let replicas = self.replicas_of(cell);
                let (all, silent) = (replicas.len(), silent(replicas));
                let (count, names) = (silent.len(), silent.join(" and "));
                return Some(format!("{count} of its {all} replicas do not answer: {names}"));
            }
            if cell.leader.is_none() {
                return Some("none of its replicas leads it".to_string());
            }
        }
        let processors: Vec<NodeId> =
            network.processors_of(number).into_iter().map(|it| Role::Processor.node(it)).collect();
        let (all, silent) = (processors.len(), silent(processors));
        (silent.len() == all)
            .then(|| format!("{} would send its replies, and does not answer", silent.join(" or ")))
    }

    /// Whether too many nodes with a replica of a cell do not answer.
    fn has_no_majority(&self, cell: &CellStatus) -> bool {
        let replicas = self.replicas_of(cell);
        let works = |id: &&NodeId| self.node(**id).is_some_and(NodeStatus::works);
        let working = replicas.iter().filter(works).count();
        self.durability != Durability::None && 2 * working <= replicas.len()
    }

    /// The nodes that have a replica of a cell: as its leader says, or those of the beginning.
    fn replicas_of(&self, cell: &CellStatus) -> Vec<NodeId> {
        let named = self.nodes.iter().map(|node| node.id);
        let voters: Vec<NodeId> =
            named.filter(|id| cell.voters.contains(&id.to_string())).collect();
        if voters.is_empty() { self.network.replicas(cell.cell) } else { voters }
    }
}
