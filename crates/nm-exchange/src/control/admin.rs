//! Asking a running network who is in it, and giving an instrument to another cell: what an
//! observer and a node say to each other, and the observer's side of it.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_codec::{Fields, Meaningless};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use serde::Serialize;

use crate::link::{Address, Link, Stream};
use crate::network::{CONTROL, Durability, Network, Role};
use crate::wire::{self, FrameKind, Header};

use super::State;

/// Body of an observer's hello.
pub const OBSERVER: &str = "observer";

/// How long somebody is looked for who leads control.
const LEADER_LIMIT: Duration = Duration::from_secs(2);

/// Pause between two rounds of questions.
const AGAIN: Duration = Duration::from_millis(50);

/// What an observer asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRequest {
    /// The state of control.
    Status,
    /// To give an instrument to a cell.
    Assign {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        cell: u16,
    },
}

impl AdminRequest {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            AdminRequest::Status => vec![0],
            AdminRequest::Assign { instrument, cell } => {
                let mut out = vec![1];
                out.extend_from_slice(&instrument.to_le_bytes());
                out.extend_from_slice(&cell.to_le_bytes());
                out
            }
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn whole(bytes: &[u8]) -> Result<AdminRequest, Meaningless> {
        let mut from = Fields(bytes);
        let ask = match from.u8()? {
            0 => AdminRequest::Status,
            1 => AdminRequest::Assign { instrument: from.u32()?, cell: from.u16()? },
            _ => return Err(Meaningless),
        };
        if from.0.is_empty() { Ok(ask) } else { Err(Meaningless) }
    }
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminResponse {
    /// The state of control as this replica has it.
    Status {
        /// Epoch in which this replica leads control, if it does.
        lead: Option<u32>,
        /// For how long nothing could be written down though something was to be, ms; zero if all
        /// is well.
        stalled_ms: u64,
        /// The state.
        state: Box<State>,
    },
    /// The instrument belongs to the cell, in this epoch of the map.
    Assigned(u32),
    /// It cannot be; why, in a sentence.
    Refused(String),
    /// This node does not lead control, or does not any more.
    NotLeading,
}

impl AdminResponse {
    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            AdminResponse::Status { lead, stalled_ms, state } => {
                out.push(0);
                out.extend_from_slice(&lead.unwrap_or_default().to_le_bytes());
                out.extend_from_slice(&stalled_ms.to_le_bytes());
                out.extend_from_slice(&state.save());
            }
            AdminResponse::Assigned(epoch) => {
                out.push(1);
                out.extend_from_slice(&epoch.to_le_bytes());
            }
            AdminResponse::Refused(why) => {
                out.push(2);
                out.extend_from_slice(why.as_bytes());
            }
            AdminResponse::NotLeading => out.push(3),
        }
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// If they mean nothing.
    pub fn whole(bytes: &[u8]) -> Result<AdminResponse, Meaningless> {
        let mut from = Fields(bytes);
        Ok(match from.u8()? {
            0 => {
                let (lead, stalled_ms) = (from.u32()?, from.u64()?);
                let state = Box::new(State::load(from.0).map_err(|_| Meaningless)?);
                AdminResponse::Status { lead: (lead > 0).then_some(lead), stalled_ms, state }
            }
            1 => AdminResponse::Assigned(from.u32()?),
            2 => {
                let why = std::str::from_utf8(from.0).map_err(|_| Meaningless)?;
                AdminResponse::Refused(why.to_string())
            }
            3 => AdminResponse::NotLeading,
            _ => return Err(Meaningless),
        })
    }
}

/// A link to one node, as one who only looks.
#[derive(Debug)]
pub struct Observer(Link);

impl Observer {
    /// Connects to a node and greets it.
    ///
    /// # Errors
    /// A sentence without the node's name.
    pub fn connect(address: &Address, limit: Duration) -> Result<Observer, String> {
        let stream = Stream::connect(address, limit).map_err(|error| error.to_string())?;
        let mut link = Link::new(stream).map_err(|error| error.to_string())?;
        wire::write(&Header::new(FrameKind::Hello), OBSERVER.as_bytes(), 0, &mut link.output);
        let mut observer = Observer(link);
        observer.receive(FrameKind::Welcome, limit)?;
        Ok(observer)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// A sentence without the node's name.
    pub fn ask(&mut self, ask: &AdminRequest, limit: Duration) -> Result<AdminResponse, String> {
        wire::write(&Header::new(FrameKind::AdminRequest), &ask.bytes(), 0, &mut self.0.output);
        let body = self.receive(FrameKind::AdminResponse, limit)?;
        AdminResponse::whole(&body).map_err(|error| error.to_string())
    }

    /// Writes what is to be sent, and waits for a frame of a kind; its body.
    fn receive(&mut self, kind: FrameKind, limit: Duration) -> Result<Vec<u8>, String> {
        let deadline = Deadline::after(limit);
        loop {
            self.0.flush().map_err(|why| why.to_string())?;
            while let Some(frame) = self.0.input.next_frame().map_err(|why| why.to_string())? {
                if frame.header.kind == kind {
                    return Ok(frame.body().to_vec());
                }
            }
            if deadline.passed() {
                return Err(format!("no answer within {} ms", limit.as_millis()));
            }
            let fd = self.0.as_fd().as_raw_fd();
            let wait = deadline.remaining().min(AGAIN);
            nm_sys::poll::readable(fd, wait).map_err(|error| error.to_string())?;
            self.0.receive().map_err(|why| why.to_string())?;
        }
    }
}

/// A node of a network, as it is seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its class.
    pub role: Role,
    /// Which one of its class.
    pub index: usize,
    /// Where it listens.
    pub address: String,
    /// Whether it is up.
    pub is_up: bool,
    /// How often it has started; none where nobody keeps count.
    pub starts: Option<u32>,
    /// Since when it is up or not, ms since 1970; none where nobody keeps it.
    pub since_unix_ms: Option<u64>,
}

/// A cell and its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellStatus {
    /// Which.
    pub cell: u16,
    /// The mediator that leads it; none if that one has ended, or nobody has led it yet.
    pub leader: Option<u16>,
    /// Epoch of that leader, or the last one.
    pub epoch: u32,
}

/// The control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControlStatus {
    /// Its replicas, such as `mediator 0`.
    pub voters: Vec<String>,
    /// The mediator that leads it, if one does.
    pub leader: Option<u16>,
    /// Epoch of that leader.
    pub epoch: Option<u32>,
    /// For how long nothing could be written down though something was to be, ms; zero if all is
    /// well.
    pub stalled_ms: u64,
    /// Index of the last entry that is part of the state, and the state's hash.
    pub index: u64,
    /// See `index`.
    pub hash: String,
}

/// An instrument that does not follow the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Exception {
    /// Which.
    pub instrument: InstrumentId,
    /// Its cell.
    pub cell: u16,
}

/// A network as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkStatus {
    /// When a request counts as done.
    pub durability: Durability,
    /// The control group; none if nothing is replicated: the map is then the network file's.
    pub control: Option<ControlStatus>,
    /// All nodes.
    pub nodes: Vec<NodeStatus>,
    /// All cells.
    pub cells: Vec<CellStatus>,
    /// Epoch of the map: instruments belong to cells by the rule `instrument % cells`, but for the
    /// exceptions.
    pub map_epoch: u32,
    /// See `map_epoch`.
    pub exceptions: Vec<Exception>,
    /// An instrument that is on its way to another cell.
    #[serde(rename = "on_its_way")]
    pub pending_move: Option<Exception>,
}

impl NetworkStatus {
    /// Whether all nodes are up, every cell has a leader, and so has control.
    pub fn is_healthy(&self) -> bool {
        let leads = |control: &ControlStatus| control.leader.is_some() && control.stalled_ms == 0;
        self.nodes.iter().all(|node| node.is_up)
            && self.cells.iter().all(|cell| cell.leader.is_some())
            && self.control.as_ref().is_none_or(leads)
    }
}

/// Asks a running network how it is.
///
/// # Errors
/// If nobody who could know answers within `limit`.
pub fn status(network: &Network, limit: Duration) -> Result<NetworkStatus, Failure> {
    if network.durability == Durability::None {
        return unkept(network, limit);
    }
    let deadline = Deadline::after(limit.min(LEADER_LIMIT));
    loop {
        let (mut best, mut refused) = (None::<(Option<u32>, u64, u16, State)>, String::new());
        for mediator in mediators(network) {
            match ask_one(network, mediator, &AdminRequest::Status, limit) {
                Ok(AdminResponse::Status { lead, stalled_ms, state }) => {
                    let rank = |lead: Option<u32>, state: &State| (lead, state.index());
                    let is_better =
                        best.as_ref().is_none_or(|b| rank(lead, &state) > rank(b.0, &b.3));
                    if is_better {
                        best = Some((lead, stalled_ms, mediator, *state));
                    }
                }
                Ok(_) => refused = format!("mediator {mediator} answered something else"),
                Err(why) => refused = why,
            }
        }
        let has_leader = best.as_ref().is_some_and(|best| best.0.is_some());
        if has_leader || deadline.passed() {
            let best = best.ok_or_else(|| nobody(&refused))?;
            return Ok(kept(network, best));
        }
        std::thread::sleep(AGAIN);
    }
}

fn nobody(why: &str) -> Failure {
    let message = format!("no mediator of the control group can be asked: {why}");
    Failure::new(FailureKind::Peer, message).hint("is the network running?")
}

/// Mediators that have a replica of control.
fn mediators(network: &Network) -> impl Iterator<Item = u16> {
    let voters = network.replicas(CONTROL).into_iter();
    voters.filter(|(role, _)| *role == Role::Mediator).map(|(_, index)| index as u16)
}

fn ask_one(
    network: &Network,
    index: u16,
    ask: &AdminRequest,
    limit: Duration,
) -> Result<AdminResponse, String> {
    let address = &network.mediator[usize::from(index)].address;
    let answer = Observer::connect(address, limit).and_then(|mut to| to.ask(ask, limit));
    answer.map_err(|why| format!("mediator {index} at {address}: {why}"))
}

fn kept(network: &Network, asked: (Option<u32>, u64, u16, State)) -> NetworkStatus {
    let (lead, stalled_ms, mediator, state) = asked;
    let nodes = network.all().map(|(role, index, node)| {
        let known = state.nodes().get(&(role, index as u16));
        NodeStatus {
            role,
            index,
            address: node.address.to_string(),
            is_up: known.is_some_and(|known| known.is_up),
            starts: Some(known.map_or(0, |known| known.starts)),
            since_unix_ms: known.map(|known| known.since_ms),
        }
    });
    let routes = state.routes();
    let cells = (0..routes.map.cells()).map(|cell| {
        let known = routes.leaders.get(&cell);
        let leader = known.filter(|leading| state.is_there(leading));
        let epoch = known.map_or(0, |leading| leading.epoch);
        CellStatus { cell, leader: leader.map(|leading| leading.mediator), epoch }
    });
    let exceptions = routes.map.exceptions().iter();
    let voters = network.replicas(CONTROL).into_iter();
    NetworkStatus {
        durability: network.durability,
        control: Some(ControlStatus {
            voters: voters.map(|(role, index)| format!("{role} {index}")).collect(),
            leader: lead.map(|_| mediator),
            epoch: lead,
            stalled_ms,
            index: state.index(),
            hash: format!("{:016x}", state.hash()),
        }),
        nodes: nodes.collect(),
        cells: cells.collect(),
        map_epoch: routes.map.epoch(),
        exceptions: exceptions
            .map(|(at, cell)| Exception { instrument: *at, cell: *cell })
            .collect(),
        pending_move: state
            .change()
            .map(|change| Exception { instrument: change.instrument, cell: change.cell }),
    }
}

/// A network that keeps nothing: whoever answers is up, and each mediator leads its own cell.
fn unkept(network: &Network, limit: Duration) -> Result<NetworkStatus, Failure> {
    let mut refused = String::new();
    let mut nodes = vec![];
    for (role, index, node) in network.all() {
        let greeted = Observer::connect(&node.address, limit);
        if let Err(why) = &greeted {
            refused = format!("{role} {index} at {}: {why}", node.address);
        }
        let (address, is_up) = (node.address.to_string(), greeted.is_ok());
        nodes.push(NodeStatus { role, index, address, is_up, starts: None, since_unix_ms: None });
    }
    if nodes.iter().all(|node| !node.is_up) {
        let message = format!("no node of the network can be asked: {refused}");
        return Err(Failure::new(FailureKind::Peer, message).hint("is the network running?"));
    }
    let up = nodes.iter().filter(|node| node.role == Role::Mediator);
    let cells = up.map(|node| {
        let cell = node.index as u16;
        CellStatus { cell, leader: node.is_up.then_some(cell), epoch: 0 }
    });
    Ok(NetworkStatus {
        durability: network.durability,
        control: None,
        cells: cells.collect(),
        nodes,
        map_epoch: 0,
        exceptions: vec![],
        pending_move: None,
    })
}

/// Gives an instrument to a cell; the epoch of the map in which it belongs to it.
///
/// # Errors
/// If it cannot be, or nobody leads control within `limit`.
pub fn assign(
    network: &Network,
    instrument: InstrumentId,
    cell: u16,
    limit: Duration,
) -> Result<u32, Failure> {
    if network.durability == Durability::None {
        let message = "a network without durability has no control group: the map is its file's";
        return Err(Failure::new(FailureKind::BadRequest, message));
    }
    let cells = network.mediator.len();
    if usize::from(cell) >= cells {
        let message = format!("there is no cell {cell}: the network has {cells}");
        return Err(Failure::new(FailureKind::BadRequest, message));
    }
    let deadline = Deadline::after(limit);
    loop {
        let mut why = "none of its mediators leads it".to_string();
        for mediator in mediators(network) {
            match ask_one(
                network,
                mediator,
                &AdminRequest::Assign { instrument, cell },
                deadline.remaining(),
            ) {
                Ok(AdminResponse::Assigned(epoch)) => return Ok(epoch),
                Ok(AdminResponse::Refused(why)) => {
                    return Err(Failure::new(FailureKind::NotAvailable, why));
                }
                Ok(_) => {}
                Err(refused) => why = refused,
            }
        }
        if deadline.passed() {
            let message = format!("control has not done it within {} s: {why}", limit.as_secs());
            return Err(Failure::new(FailureKind::Peer, message));
        }
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_come_back() {
        for ask in [AdminRequest::Status, AdminRequest::Assign { instrument: 7, cell: 1 }] {
            assert_eq!(AdminRequest::whole(&ask.bytes()), Ok(ask));
        }
        let state = Box::new(State::new(3));
        for answer in [
            AdminResponse::Status { lead: Some(17), stalled_ms: 3, state },
            AdminResponse::Assigned(4),
            AdminResponse::Refused("it has traded".to_string()),
            AdminResponse::NotLeading,
        ] {
            assert_eq!(AdminResponse::whole(&answer.bytes()), Ok(answer));
        }
        assert!(AdminRequest::whole(&[]).is_err() && AdminRequest::whole(&[0, 0]).is_err());
        assert!(AdminResponse::whole(&[9]).is_err() && AdminResponse::whole(&[0, 1]).is_err());
    }
}
