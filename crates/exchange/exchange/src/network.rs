//! The topology of a network: how many nodes of each class, where they listen, and which are
//! linked. It is read from a TOML file that all of its nodes share.
//!
//! ```toml
//! cluster = 7                  # number that no other network has; optional
//! durability = "none"          # or "memory-quorum", "disk-quorum"
//! data = "data"                # journals go to ROLE-INDEX below it; relative to this file
//! record = false               # whether batches are recorded without durability, too
//! secret = "secret"            # file, see [`nm_auth`]; needed unless all addresses are local
//! spare_mediators = 0          # so many mediators, the last ones, begin without instruments
//! added_mediators = 0          # so many mediators, behind those, were added while it ran
//! removed_mediators = []       # which of these were removed again
//! added_routers = 0            # the same for routers: the last ones
//! removed_routers = []
//! added_processors = 0         # and for transaction processors
//! removed_processors = []
//! added_gateways = 0           # and for gateways
//! removed_gateways = []
//!
//! [logs]                       # of each node, where `exchange serve` runs it; optional
//! bytes = 16777216             # after so many, another file is begun
//! files = 5                    # so many full ones are kept
//!
//! [[gateway]]
//! address = "127.0.0.1:5001"   # or "unix:/run/exchange/gateway-0"
//!
//! [[router]]
//! address = "127.0.0.1:5002"
//!
//! [[mediator]]
//! address = "127.0.0.1:5003"
//! replication = "127.0.0.1:5004"   # without it and without a log, nothing can be moved
//!
//! [[processor]]
//! address = "127.0.0.1:5005"
//! replication = "127.0.0.1:5006"
//!
//! [[instrument]]               # of the instrument master: see [`crate::master`]; optional
//! number = 1000
//! symbol = "ACME"
//! tick = "0.01"
//! lot = "1"
//!
//! [[firm]]                     # whose sessions may connect: see [`crate::firms`]; optional
//! number = 7
//! name = "ACME Capital"
//! sessions = ["9001-9010"]
//! ```
//!
//! Links of each class:
//!
//! - A gateway has links to two routers, of which it uses one, and to those that were added.
//! - A router has links to all mediators.
//! - A mediator has links to two processors and to those that were added, or to all where cells
//!   have replicas.
//! - A processor has links to all gateways.
//!
//! The upstream end makes the link.
//!
//! One more group of replicas keeps what all nodes must agree on: see [`crate::control`].
//!
//! A network that runs can get more nodes than its file has
//! ([`InstrumentMap::extended`](crate::control::InstrumentMap::extended)). Where replicas are, and
//! which cells have instruments at first, follows from the *founders* alone: the nodes that were
//! not added. So it stays as it is when one is added.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_auth::{Credentials, CredentialsError, Secret};
use nm_book::order::InstrumentId;
use nm_sys::text_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use nm_model::exchange::{Durability, NodeCounts};
pub use nm_replica::Address as ReplicaAddress;
use nm_replica::MEMBERS_MAX;
pub use nm_wire::{NodeId, NodeIdError, PerClass, Role, UnknownRole};

use crate::firms::Firms;
use crate::link::Address;
use crate::master::Master;

mod file;

/// Number of the control group, which is not a cell.
pub const CONTROL: u16 = u16::MAX;

/// Name of a group of replicas: its folder.
pub fn group_name(group: u16) -> String {
    if group == CONTROL { "control".to_string() } else { format!("cell-{group}") }
}

/// Most nodes of one class.
pub const NODES_MAX: usize = NodeCounts::MAX as usize;

/// Bytes of a network file.
pub const NETWORK_BYTES_MAX: u64 = 4 << 20;

/// How much a supervisor keeps of what a node writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogLimits {
    /// Bytes of a file after which another one is begun, 4 KiB to 1 GiB.
    #[schemars(range(min = 4096, max = 1073741824))]
    pub bytes: u64,
    /// How many full files are kept beside the one that is written, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub files: u32,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits { bytes: 16 << 20, files: 5 }
    }
}

impl LogLimits {
    /// Bytes that a file may have.
    pub const BYTES: RangeInclusive<u64> = 4096..=1 << 30;
    /// Full files that may be kept.
    pub const FILES: RangeInclusive<u32> = 1..=100;

    fn is_default(&self) -> bool {
        *self == LogLimits::default()
    }

    fn check(self) -> Result<(), NetworkError> {
        match LogLimits::BYTES.contains(&self.bytes) && LogLimits::FILES.contains(&self.files) {
            true => Ok(()),
            false => Err(NetworkError::Logs(self)),
        }
    }
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Where it accepts its upstream links, `IP:PORT` or `unix:PATH`; a gateway also its clients.
    #[serde(with = "address")]
    #[schemars(with = "String")]
    pub address: Address,
    /// Where it accepts the other replicas of its cells.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "replica_address")]
    #[schemars(with = "Option<String>")]
    pub replication: Option<ReplicaAddress>,
}

/// A node that the network did not begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedNode {
    /// Where it listens.
    pub node: Node,
    /// Whether it was removed again. Its number is not given to another one, because files of a
    /// mediator's cell may be left, and nodes that were cut off may still look for it.
    pub is_removed: bool,
}

/// The nodes of a class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassNodes {
    /// All that there ever were.
    pub nodes: Vec<Node>,
    /// How many of them, the last ones, were added while the network ran. A mediator that was
    /// added has no instruments at first, and replicas of its own cell only; a processor has none.
    pub added: usize,
    /// Those of them that were removed again.
    pub removed: BTreeSet<u16>,
}

impl ClassNodes {
    /// How many the network began with.
    pub fn founders(&self) -> usize {
        self.nodes.len().saturating_sub(self.added)
    }
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Number that no other network has, or zero; replicas of another one are refused.
    pub cluster: u64,
    /// When a request counts as executed.
    pub durability: Durability,
    /// Folder below which each node has its own for what it writes.
    pub data: Option<PathBuf>,
    /// Whether executed batches are recorded even where durability needs no journal.
    pub record: bool,
    /// File of the secret by which nodes and clients authenticate; for a peer that is no node, of
    /// its keys. Relative to the folder of the network's file.
    pub secret: Option<PathBuf>,
    /// How many mediators, the last ones, have no instruments at first.
    pub spare_mediators: usize,
    /// How much a supervisor keeps of what nodes write.
    pub logs: LogLimits,
    /// What may be traded at first; anything if there is no instrument master.
    pub master: Option<Arc<Master>>,
    /// Whose sessions may connect; any session if there are no firms.
    pub firms: Option<Arc<Firms>>,
    /// The nodes.
    pub classes: PerClass<ClassNodes>,
}

/// Why a network file cannot be used.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// It cannot be read.
    #[error("the network file {} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its content is wrong.
    #[error("{}: {source}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<NetworkError>,
    },
    /// It is not a network in TOML.
    #[error("{}", .0.message())]
    Toml(#[from] toml::de::Error),
    /// A class has too few or too many nodes.
    #[error("it has {count} {role} nodes: 1 to {NODES_MAX} are possible")]
    NodeCount {
        /// Which class.
        role: Role,
        /// How many it has.
        count: usize,
    },
    /// Two nodes have the same address.
    #[error("{0} listens where another node does")]
    DuplicateAddress(NodeId),
    /// A node lacks the address that its replicas need.
    #[error("{node} has no `replication` address, which {durability} needs")]
    NoReplicationAddress {
        /// Which one.
        node: NodeId,
        /// What needs it.
        durability: Durability,
    },
    /// All mediators are spare.
    #[error("it has {spares} spare mediators of {mediators}: one must have instruments")]
    TooManySpares {
        /// How many are spare.
        spares: usize,
        /// How many there are.
        mediators: usize,
    },
    /// All nodes of a class were added.
    #[error("it has {added} added {role}s of {count}: one must have been there first")]
    TooManyAdded {
        /// Which class.
        role: Role,
        /// How many were added.
        added: usize,
        /// How many there are.
        count: usize,
    },
    /// A node was removed that was never added.
    #[error("it has removed {0}, which was not added: only the last ones were")]
    NeverAdded(NodeId),
    /// Logs would be too small, too large or too many.
    #[error(
        "its logs have {} bytes and {} files: {} to {} bytes and {} to {} files are possible",
        .0.bytes, .0.files, LogLimits::BYTES.start(), LogLimits::BYTES.end(),
        LogLimits::FILES.start(), LogLimits::FILES.end()
    )]
    Logs(LogLimits),
    /// Journals have no place.
    #[error("it has no `data` folder for its journals")]
    NoDataFolder,
    /// Nodes listen where other hosts can connect, and there is no secret.
    #[error(
        "{node} listens at {address}, which other hosts may reach, and the network has no \
         secret: run `nearmetal exchange secret new FILE` and add `secret = \"FILE\"` to the \
         network file"
    )]
    NoSecret {
        /// Which one.
        node: NodeId,
        /// Where.
        address: String,
    },
    /// The file of the secret cannot be used.
    #[error("the network's secret: {0}")]
    Secret(#[from] CredentialsError),
    /// It cannot be written, because a path is not UTF-8.
    #[error("the network cannot be written: {0}")]
    Write(#[from] toml::ser::Error),
}

impl Network {
    /// A network without durability, with addresses from `node`.
    pub fn new(counts: NodeCounts, mut node: impl FnMut(NodeId) -> Node) -> Network {
        let mut nodes =
            |class: Role| (0..class.count(counts) as u16).map(|at| node(class.node(at))).collect();
        Network {
            cluster: 0,
            durability: Durability::None,
            data: None,
            record: false,
            secret: None,
            spare_mediators: 0,
            logs: LogLimits::default(),
            master: None,
            firms: None,
            classes: PerClass::new(|class| ClassNodes {
                nodes: nodes(class),
                ..ClassNodes::default()
            }),
        }
    }

    /// Reads a network file. Its `data` and `secret` are relative to the folder of the file.
    ///
    /// # Errors
    /// If it cannot be read, or its content is wrong.
    pub fn read(path: &Path) -> Result<Network, NetworkError> {
        let mut network = Network::read_unresolved(path)?;
        let Network { data, secret, .. } = &mut network;
        for named in [data, secret].into_iter().flatten() {
            *named = path.parent().unwrap_or(Path::new("")).join(&*named);
        }
        Ok(network)
    }

    /// As [`Network::read`], with `data` and `secret` as they are in the file.
    ///
    /// # Errors
    /// As [`Network::read`].
    #[expect(clippy::disallowed_methods, reason = "before a node begins")]
    pub fn read_unresolved(path: &Path) -> Result<Network, NetworkError> {
        let text = text_file::read(path, NETWORK_BYTES_MAX)
            .map_err(|source| NetworkError::Read { path: path.to_path_buf(), source })?;
        Network::parse(&text).map_err(|error| NetworkError::Content {
            path: path.to_path_buf(),
            source: Box::new(error),
        })
    }

    /// The secret of a node; none if the network has none and does not need one.
    ///
    /// # Errors
    /// If it cannot be read, or is missing although other hosts may reach a node.
    pub fn secret_of_nodes(&self) -> Result<Option<Secret>, NetworkError> {
        if let Some(path) = &self.secret {
            return Ok(Some(Secret::read(path)?));
        }
        match self.reachable_node() {
            Some((node, address)) => {
                Err(NetworkError::NoSecret { node, address: address.to_string() })
            }
            None => Ok(None),
        }
    }

    /// The first node that other hosts may reach, and where.
    fn reachable_node(&self) -> Option<(NodeId, SocketAddr)> {
        self.all().find_map(|(id, node)| match (&node.address, &node.replication) {
            (Address::Tcp(address), _) if !is_local(address) => Some((id, *address)),
            (_, Some(ReplicaAddress::Tcp(address))) if !is_local(address) => Some((id, *address)),
            _ => None,
        })
    }

    /// What whoever starts its nodes has to know, if they have a secret and other hosts may reach
    /// one: in a sentence.
    pub fn exposure(&self) -> Option<String> {
        let (node, address) = self.secret.as_ref().and_then(|_| self.reachable_node())?;
        Some(format!(
            "{node} listens at {address}, which other hosts may reach: both ends of a link prove \
             who they are, but frames are not encrypted; use an isolated network, or one that is \
             encrypted, such as WireGuard"
        ))
    }

    /// What a peer that is no node has to prove who it is; none if the network has no secret.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn credentials(&self) -> Result<Option<Credentials>, NetworkError> {
        Ok(self.secret.as_deref().map(Credentials::read).transpose()?)
    }

    /// Reads a network from the text of its file.
    ///
    /// # Errors
    /// If the text is wrong.
    pub fn parse(text: &str) -> Result<Network, NetworkError> {
        let network: Network = toml::from_str(text)?;
        network.logs.check()?;
        for (role, class) in network.classes.iter() {
            let count = class.nodes.len();
            if !(1..=NODES_MAX).contains(&count) {
                return Err(NetworkError::NodeCount { role, count });
            }
        }
        for (role, class) in network.classes.iter() {
            let (count, added) = (class.nodes.len(), class.added);
            if added >= count {
                return Err(NetworkError::TooManyAdded { role, added, count });
            }
            let nodes = class.removed.iter().map(|index| role.node(*index));
            let was_added = |node: NodeId| (count - added..count).contains(&node.position());
            if let Some(node) = nodes.into_iter().find(|node| !was_added(*node)) {
                return Err(NetworkError::NeverAdded(node));
            }
        }
        let (spares, founders) = (network.spare_mediators, network.founders());
        if spares >= founders {
            return Err(NetworkError::TooManySpares { spares, mediators: founders });
        }
        let mut known = std::collections::HashSet::new();
        let durability = network.durability;
        for (id, node) in network.all() {
            if !known.insert(node.address.to_string()) {
                return Err(NetworkError::DuplicateAddress(id));
            }
            let replicates = network.may_have_replicas(id);
            if durability != Durability::None && replicates && node.replication.is_none() {
                return Err(NetworkError::NoReplicationAddress { node: id, durability });
            }
        }
        let needs_data = network.record || durability == Durability::DiskQuorum;
        if network.data.is_none() && needs_data {
            return Err(NetworkError::NoDataFolder);
        }
        Ok(network)
    }

    /// The text of its file.
    ///
    /// # Errors
    /// If a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, NetworkError> {
        Ok(toml::to_string(self)?)
    }

    /// The nodes of a class.
    pub fn nodes(&self, class: Role) -> &[Node] {
        &self.classes[class].nodes
    }

    /// A node, if there is or was one of this name.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes(node.class).get(node.position())
    }

    /// Every node with its name, in the ring's order; none that was removed.
    pub fn all(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let all = self.classes.iter().flat_map(|(class, of)| {
            of.nodes.iter().zip(0..).map(move |(node, index)| (class.node(index), node))
        });
        all.filter(|(id, _)| !self.is_removed(*id))
    }

    /// How many mediators the network began with.
    pub fn founders(&self) -> usize {
        self.founders_of(Role::Mediator)
    }

    /// How many nodes of a class the network began with.
    pub fn founders_of(&self, class: Role) -> usize {
        self.classes[class].founders()
    }

    /// Takes over the nodes of a class that were added.
    pub fn set_added(&mut self, class: Role, added: &[AddedNode]) {
        let class = &mut self.classes[class];
        let founders = class.founders();
        class.nodes.truncate(founders);
        class.nodes.extend(added.iter().map(|it| it.node.clone()));
        class.added = added.len();
        let all = (founders as u16..).zip(added).filter(|(_, it)| it.is_removed);
        class.removed = all.map(|(index, _)| index).collect();
    }

    /// Whether a node was added while the network ran.
    pub fn was_added(&self, node: NodeId) -> bool {
        node.position() >= self.founders_of(node.class)
    }

    /// Whether a node was removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.classes[node.class].removed.contains(&node.index)
    }

    /// Whether the same nodes were added to a network and removed from it: their numbers never
    /// fall.
    pub fn has_nodes_of(&self, other: &Network) -> bool {
        Role::ALL.iter().all(|class| self.added_counts(*class) == other.added_counts(*class))
    }

    /// How many nodes of a class were added, and how many of them removed again.
    pub fn added_counts(&self, class: Role) -> (usize, usize) {
        let class = &self.classes[class];
        (class.added, class.removed.len())
    }

    /// The numbers of the nodes of a class that were not removed.
    fn present(&self, class: Role) -> impl Iterator<Item = u16> {
        let all = 0..self.nodes(class).len() as u16;
        all.filter(move |index| !self.is_removed(class.node(*index)))
    }

    /// Whether a node may have replicas, if anything is replicated: a processor that was added has
    /// none, because a log knows its places by their positions, which never change.
    pub fn may_have_replicas(&self, node: NodeId) -> bool {
        match node.class {
            Role::Mediator => true,
            Role::Processor => !self.was_added(node),
            Role::Gateway | Role::Router => false,
        }
    }

    /// The cells that there are: one for each mediator that was not removed.
    pub fn cells(&self) -> impl Iterator<Item = u16> {
        self.present(Role::Mediator)
    }

    /// How many nodes there are of each class.
    pub fn counts(&self) -> NodeCounts {
        let mut of_class = [0; 4];
        for (class, of) in self.classes.iter() {
            of_class[usize::from(class.code())] = of.nodes.len() as u16;
        }
        NodeCounts { of_class }
    }

    /// The nodes to which a node makes its links.
    pub fn downstream(&self, node: NodeId) -> Vec<NodeId> {
        let (class, indices) = match node.class {
            _ if self.is_removed(node) => return vec![],
            Role::Gateway => (Role::Router, self.routers_of(node.index)),
            Role::Router => (Role::Mediator, self.cells().collect()),
            Role::Mediator => match self.durability {
                Durability::None => (Role::Processor, self.processors_of(node.index)),
                // A replica of any cell may be given to it, and to any processor.
                Durability::MemoryQuorum | Durability::DiskQuorum => {
                    (Role::Processor, self.present(Role::Processor).collect())
                }
            },
            Role::Processor => (Role::Gateway, self.present(Role::Gateway).collect()),
        };
        indices.into_iter().map(|index| class.node(index)).collect()
    }

    /// The routers that a gateway uses: the first one, and the next one if that fails.
    pub fn routers_of(&self, gateway: u16) -> Vec<u16> {
        self.in_turn(Role::Router, gateway)
    }

    /// The nodes of a class that the upstream node, or the cell, of this number uses: the first
    /// one, and the next one if that fails. Two of them are of those that the network began with,
    /// and the others those that were added: so no link is given up for a node that may not be up
    /// yet. The upstream ones take turns at all nodes.
    fn in_turn(&self, class: Role, number: u16) -> Vec<u16> {
        let founders = self.founders_of(class) as u16;
        let mut added: Vec<u16> = self.present(class).filter(|it| *it >= founders).collect();
        let mut all = vec![number % founders, (number % founders + 1) % founders];
        all.dedup();
        let turn = number % (founders + added.len() as u16);
        if let Some(at) = turn.checked_sub(founders) {
            added.rotate_left(usize::from(at));
            all.insert(0, added.remove(0));
        }
        all.extend(added);
        all
    }

    /// How many nodes make their link to a node.
    pub fn upstream_count(&self, node: NodeId) -> usize {
        self.all().filter(|(other, _)| self.downstream(*other).contains(&node)).count()
    }

    /// How many cells have instruments at first.
    pub fn active_cells(&self) -> u16 {
        self.founders().saturating_sub(self.spare_mediators).max(1) as u16
    }

    /// The cell of an instrument that has not moved.
    pub fn cell_of(&self, instrument: InstrumentId) -> u16 {
        (instrument % u32::from(self.active_cells())) as u16
    }

    /// Whether it has a control group: with durability; without it, if the replicas of control
    /// have addresses.
    pub fn has_control(&self) -> bool {
        let has_address = |id: NodeId| self.node(id).is_some_and(|node| node.replication.is_some());
        self.durability != Durability::None || self.replicas(CONTROL).into_iter().all(has_address)
    }

    /// The processor that has a replica of a cell at first, if cells have replicas.
    pub fn processor_of(&self, cell: u16) -> u16 {
        cell % self.founders_of(Role::Processor) as u16
    }

    /// The processors that a cell's replies may take: its own, and others if the link to that is
    /// broken. Without durability cells take turns at all processors. With it a cell's own one is
    /// that with the replica, and cells take turns at the others that stand in for it.
    pub fn processors_of(&self, cell: u16) -> Vec<u16> {
        let mut processors = self.in_turn(Role::Processor, cell);
        if self.durability != Durability::None {
            let own = self.processor_of(cell);
            processors.retain(|other| *other != own);
            processors.insert(0, own);
        }
        processors
    }

    /// The cells whose replies may take a processor.
    pub fn cells_through(&self, processor: u16) -> Vec<u16> {
        self.cells().filter(|cell| self.processors_of(*cell).contains(&processor)).collect()
    }

    /// Where the replicas of a cell are at first: its mediator, the next founder if there is one,
    /// its processor. Those of the control group: three mediators, or all there are and the first
    /// processor. When one node dies, a majority remains wherever there are two mediators. Without
    /// durability only mediators have one of control, and nothing is lost with it but the books of
    /// the same node.
    pub fn replicas(&self, cell: u16) -> Vec<NodeId> {
        let founders = self.founders() as u16;
        if cell == CONTROL {
            let mediators = 0..founders.min(3);
            let mut voters: Vec<_> = mediators.map(|index| Role::Mediator.node(index)).collect();
            if voters.len() < 3 && self.durability != Durability::None {
                voters.push(Role::Processor.node(0));
            }
            return voters;
        }
        let mut replicas = vec![Role::Mediator.node(cell)];
        if founders > 1 || cell >= founders {
            replicas.push(Role::Mediator.node((cell % founders + 1) % founders));
        }
        replicas.push(Role::Processor.node(self.processor_of(cell)));
        replicas
    }

    /// The nodes that may have a replica of a group, no more than there may be: those that have one
    /// at first, then, for a cell, the other founders of both classes where replicas can listen. A
    /// log knows a place by its position, so it must never change.
    pub fn replica_places(&self, group: u16) -> Vec<NodeId> {
        let mut places = self.replicas(group);
        if group != CONTROL {
            let can_have_one = |(id, node): &(NodeId, &Node)| {
                let may_have = self.may_have_replicas(*id);
                may_have && !self.was_added(*id) && node.replication.is_some()
            };
            let others = self.all().filter(can_have_one).map(|(id, _)| id);
            let others: Vec<_> = others.filter(|place| !places.contains(place)).collect();
            places.extend(others);
        }
        places.truncate(MEMBERS_MAX);
        places
    }

    /// The cells that a node has a replica of at first.
    pub fn cells_at(&self, node: NodeId) -> Vec<u16> {
        self.cells().filter(|cell| self.replicas(*cell).contains(&node)).collect()
    }

    /// The groups that a node has a replica of at first: its cells, then control.
    pub fn groups_at(&self, node: NodeId) -> Vec<u16> {
        let is_replicated = self.durability != Durability::None;
        let mut groups = if is_replicated { self.cells_at(node) } else { vec![] };
        if self.has_control() && self.replicas(CONTROL).contains(&node) {
            groups.push(CONTROL);
        }
        groups
    }

    /// The folder of a node, if the network has one.
    pub fn folder(&self, node: NodeId) -> Option<PathBuf> {
        self.data.as_ref().map(|data| data.join(node.file_name()))
    }
}

/// Whether only this host can connect to an address.
fn is_local(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Addresses as text.
mod address {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::link::Address;

    pub fn serialize<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Addresses of replicas as text.
mod replica_address {
    use nm_replica::Address;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::link;

    pub fn serialize<S: Serializer>(address: &Option<Address>, to: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => to.collect_str(address),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Address>, D::Error> {
        let address: link::Address =
            String::deserialize(from)?.parse().map_err(D::Error::custom)?;
        address.try_into().map(Some).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(counts: &str) -> Network {
        let mut port = 5000;
        Network::new(counts.parse().unwrap(), |_| {
            port += 1;
            Node { address: format!("127.0.0.1:{port}").parse().unwrap(), replication: None }
        })
    }

    #[test]
    fn a_network_is_read_back_from_its_file() {
        let network = network("2-1-3-2");
        let text = network.to_toml().unwrap();
        assert_eq!(Network::parse(&text).unwrap(), network);
        let refused = |text: &str, why: &str| {
            let error = Network::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&text.replace("127.0.0.1:5001", "localhost:1"), "`localhost:1` is not an address");
        refused(&text.replace("127.0.0.1:5001", "127.0.0.1:5002"), "gateway 1 listens where");
        refused(&text.replace("\"none\"", "\"disk-quorum\""), "mediator 0 has no `replication`");
        let shared = text.replace("5001\"", "5001\"\nreplication = \"shm:/run/node\"");
        refused(&shared, "`shm:/run/node` is not an address of a replica");
        refused(&text.replace("record = false", "record = true"), "no `data` folder");
        refused(&text.replace("[[router]]", "[[rooter]]"), "rooter");
        refused("gateway = []\nrouter = []\nmediator = []\nprocessor = []", "0 gateway nodes");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("network.toml");
        for (data, resolved) in [("data", folder.path().join("data")), ("/var/x", "/var/x".into())]
        {
            let network = Network { data: Some(data.into()), ..network.clone() };
            std::fs::write(&file, network.to_toml().unwrap()).unwrap();
            assert_eq!(Network::read(&file).unwrap().data, Some(resolved));
            assert_eq!(Network::read_unresolved(&file).unwrap(), network);
        }
        assert!(Network::read(Path::new("/no/file")).unwrap_err().to_string().contains("/no/file"));
    }

    #[test]
    fn a_network_that_other_hosts_may_reach_needs_a_secret() {
        let mut network = network("1-1-1-1");
        assert!(network.secret_of_nodes().unwrap().is_none());
        for local in ["[::1]:1", "127.7.7.7:1", "[::ffff:127.0.0.1]:1", "unix:/n", "shm:/n"] {
            network.classes[Role::Router].nodes[0].address = local.parse().unwrap();
            assert!(network.secret_of_nodes().unwrap().is_none(), "{local}");
        }
        let replication = "192.0.2.1:7".parse::<Address>().unwrap().try_into().unwrap();
        network.classes[Role::Processor].nodes[0].replication = Some(replication);
        let refused = network.secret_of_nodes().unwrap_err().to_string();
        assert!(refused.contains("processor 0 listens at 192.0.2.1:7"), "{refused}");
        for far in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1]:1"] {
            network.classes[Role::Gateway].nodes[0].address = far.parse().unwrap();
            let refused = network.secret_of_nodes().unwrap_err().to_string();
            assert!(refused.contains("exchange secret new"), "{refused}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, secret) = (folder.path().join("network.toml"), Secret::random().unwrap());
        secret.create(&folder.path().join("secret")).unwrap();
        network.secret = Some("secret".into());
        std::fs::write(&file, network.to_toml().unwrap()).unwrap();
        let read = Network::read(&file).unwrap();
        assert_eq!(read.secret_of_nodes().unwrap(), Some(secret));
        network.secret = Some("/no/such/file".into());
        let refused = network.secret_of_nodes().unwrap_err().to_string();
        assert!(refused.contains("/no/such/file"), "{refused}");
    }

    #[test]
    fn logs_have_limits() {
        let with = |logs: &str| {
            let text = network("1-1-1-1").to_toml().unwrap();
            Network::parse(&format!("{text}\n[logs]\n{logs}")).map_err(|it| it.to_string())
        };
        let kept = with("bytes = 4096").unwrap();
        assert_eq!(kept.logs, LogLimits { bytes: 4096, files: 5 });
        assert_eq!(Network::parse(&kept.to_toml().unwrap()).unwrap(), kept);
        for wrong in ["bytes = 4095", "bytes = 1073741825", "files = 0", "files = 101"] {
            let why = with(wrong).unwrap_err();
            assert!(why.contains("4096 to 1073741824 bytes and 1 to 100 files"), "{why}");
        }
        assert!(with("lines = 7").unwrap_err().contains("unknown field `lines`"));
    }

    #[test]
    fn a_file_that_is_too_long_or_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.toml");
        std::fs::File::create(&path).unwrap().set_len(NETWORK_BYTES_MAX + 1).unwrap();
        for (path, why) in [
            (path.as_path(), "it has more than 4194304 bytes"),
            (Path::new("/dev/zero"), "it is a device, not a file"),
        ] {
            let refused = Network::read(path).unwrap_err();
            let text = format!("{refused}: {:?}", std::error::Error::source(&refused));
            assert!(text.contains(why), "{text}");
        }
        let page = include_str!("../../../../docs/limits.md");
        assert!(page.contains(&format!("\n| network file | {NETWORK_BYTES_MAX} | ")));
    }

    #[test]
    fn links_and_replicas_follow_from_the_counts() {
        let mut network = network("3-2-4-2");
        network.durability = Durability::DiskQuorum;
        assert_eq!(
            network.downstream(Role::Gateway.node(2)),
            [Role::Router.node(0), Role::Router.node(1)]
        );
        assert_eq!(network.downstream(Role::Router.node(1)).len(), 4);
        // Those of cells 2 and 3, and for each another one.
        let processors = [0, 1].map(|index| Role::Processor.node(index));
        assert_eq!(network.downstream(Role::Mediator.node(3)), processors);
        assert_eq!((network.processors_of(3), network.processors_of(2)), (vec![1, 0], vec![0, 1]));
        assert_eq!(network.cells_through(0), [0, 1, 2, 3]);
        assert_eq!(network.downstream(Role::Processor.node(0)).len(), 3);
        assert_eq!(network.upstream_count(Role::Gateway.node(0)), 2);
        assert_eq!(network.upstream_count(Role::Router.node(0)), 3);
        assert_eq!(network.upstream_count(Role::Router.node(1)), 3);
        let (m, p) = (Role::Mediator, Role::Processor);
        assert_eq!(network.replicas(3), [m.node(3), m.node(0), p.node(1)]);
        assert_eq!(network.cells_at(Role::Mediator.node(0)), [0, 3]);
        assert_eq!(network.cells_at(Role::Processor.node(1)), [1, 3]);
        assert!(network.cells_at(Role::Gateway.node(1)).is_empty());
        assert_eq!(network.replicas(CONTROL), [m.node(0), m.node(1), m.node(2)]);
        assert_eq!(network.groups_at(m.node(2)), [1, 2, CONTROL]);
        assert_eq!(network.groups_at(m.node(3)), [2, 3]);
        assert_eq!(network.counts().to_string(), "3-2-4-2");
        let durable = |counts: &str| Network {
            durability: Durability::MemoryQuorum,
            ..self::network(counts)
        };
        assert_eq!(durable("1-1-2-3").replicas(CONTROL), [m.node(0), m.node(1), p.node(0)]);
        assert_eq!(durable("1-1-1-1").replicas(CONTROL), [m.node(0), p.node(0)]);
        // Without durability control is on mediators only, if it has addresses.
        let mut none = self::network("1-1-2-3");
        assert_eq!(none.replicas(CONTROL), [m.node(0), m.node(1)]);
        assert!(!none.has_control() && none.groups_at(m.node(1)).is_empty());
        for node in &mut none.classes[Role::Mediator].nodes {
            node.replication =
                Some("unix:/run/replica".parse::<Address>().unwrap().try_into().unwrap());
        }
        assert!(none.has_control());
        assert_eq!((none.groups_at(m.node(1)), none.groups_at(p.node(0))), (vec![CONTROL], vec![]));
    }

    #[test]
    fn gateways_take_turns_at_routers_that_were_added_and_keep_their_links() {
        let mut it = network("6-2-1-1");
        let before: Vec<_> = (0..6).map(|gateway| it.routers_of(gateway)).collect();
        for name in ["a", "b"] {
            let address = format!("unix:/{name}").parse().unwrap();
            it.classes[Role::Router].nodes.push(Node { address, replication: None });
        }
        it.classes[Role::Router].added = 2;
        let all = |it: &Network| (0..6).map(|at| it.routers_of(at)).collect::<Vec<_>>();
        let first = |it: &Network| all(it).iter().map(|routers| routers[0]).collect::<Vec<_>>();
        assert_eq!(first(&it), [0, 1, 2, 3, 0, 1]);
        for (before, after) in before.iter().zip(all(&it)) {
            assert!(before.iter().all(|router| after.contains(router)) && after.len() == 4);
        }
        assert_eq!((it.upstream_count(Role::Router.node(2)), it.counts().of_class[1]), (6, 4));
        assert_eq!(it.downstream(Role::Router.node(3)), [Role::Mediator.node(0)]);
        assert_eq!(Network::parse(&it.to_toml().unwrap()).unwrap(), it);
        it.classes[Role::Router].removed.insert(2);
        assert_eq!(first(&it), [0, 1, 3, 1, 0, 3]);
        assert!(all(&it).iter().all(|routers| !routers.contains(&2)));
        assert!(it.downstream(Role::Router.node(2)).is_empty());
        it.classes[Role::Router].removed.insert(3);
        assert_eq!(all(&it), before);
        let refused = |change: &dyn Fn(&mut Network)| {
            let mut wrong = it.clone();
            change(&mut wrong);
            Network::parse(&wrong.to_toml().unwrap()).unwrap_err().to_string()
        };
        assert!(refused(&|it| it.classes[Role::Router].added = 4).contains("4 added routers of 4"));
        let never = refused(&|it| it.classes[Role::Router].removed.extend([0]));
        assert!(never.contains("router 0, which was not added"), "{never}");
    }

    #[test]
    fn cells_take_turns_at_processors_that_were_added_and_replicas_stay_where_they_are() {
        let mut before = network("2-2-4-2");
        for node in before.classes.iter_mut().skip(2).flat_map(|(_, of)| &mut of.nodes) {
            let unix: Address = format!("unix:/r/{}", node.address).parse().unwrap();
            node.replication = Some(unix.try_into().unwrap());
        }
        let mut it = before.clone();
        for name in ["a", "b"] {
            let address = format!("unix:/{name}").parse().unwrap();
            it.classes[Role::Processor].nodes.push(Node { address, replication: None });
        }
        it.classes[Role::Processor].added = 2;
        let ways = |it: &Network| (0..5).map(|cell| it.processors_of(cell)).collect::<Vec<_>>();
        let first = |it: &Network| ways(it).iter().map(|way| way[0]).collect::<Vec<_>>();
        assert_eq!(first(&it), [0, 1, 2, 3, 0]);
        assert_eq!(
            (it.processors_of(2), it.processors_of(3)),
            (vec![2, 0, 1, 3], vec![3, 1, 0, 2])
        );
        let (m, p) = (Role::Mediator, Role::Processor);
        assert_eq!(it.downstream(m.node(0)), [0, 1, 2, 3].map(|index| p.node(index)));
        assert_eq!((it.cells_through(3), it.upstream_count(p.node(3))), (vec![0, 1, 2, 3], 4));
        assert_eq!(it.downstream(p.node(2)), [0, 1].map(|index| Role::Gateway.node(index)));
        // With replicas those that were added stand in for the others.
        it.durability = Durability::MemoryQuorum;
        before.durability = Durability::MemoryQuorum;
        assert_eq!(first(&it), [0, 1, 0, 1, 0]);
        assert_eq!(
            (it.processors_of(2), it.processors_of(1)),
            (vec![0, 2, 1, 3], vec![1, 0, 2, 3])
        );
        for group in [0, 1, 2, 3, CONTROL] {
            assert_eq!(it.replicas(group), before.replicas(group));
            assert_eq!(it.replica_places(group), before.replica_places(group));
        }
        assert!(it.groups_at(p.node(2)).is_empty() && !it.may_have_replicas(p.node(2)));
        assert_eq!(Network::parse(&it.to_toml().unwrap()).unwrap(), it);
        it.classes[Role::Processor].removed.extend([2, 3]);
        assert_eq!((ways(&it), it.upstream_count(p.node(2))), (ways(&before), 0));
        assert!(it.downstream(p.node(2)).is_empty());
        assert_eq!(it.downstream(m.node(1)), before.downstream(m.node(1)));
        it.classes[Role::Processor].added = 4;
        let refused = Network::parse(&it.to_toml().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("4 added processors of 4"), "{refused}");
    }

    #[test]
    fn processors_make_links_to_gateways_that_were_added_until_they_are_removed() {
        let mut it = network("2-2-2-2");
        let address = "unix:/a".parse().unwrap();
        it.classes[Role::Gateway].nodes.push(Node { address, replication: None });
        it.classes[Role::Gateway].added = 1;
        let gateways = |it: &Network| it.downstream(Role::Processor.node(1)).len();
        assert_eq!((gateways(&it), it.upstream_count(Role::Router.node(0))), (3, 3));
        assert_eq!((it.routers_of(2), it.upstream_count(Role::Gateway.node(2))), (vec![0, 1], 2));
        assert_eq!(Network::parse(&it.to_toml().unwrap()).unwrap(), it);
        it.classes[Role::Gateway].removed.insert(2);
        assert_eq!((gateways(&it), it.upstream_count(Role::Router.node(0))), (2, 2));
        assert_eq!(
            (it.upstream_count(Role::Gateway.node(2)), it.classes[Role::Gateway].nodes.len()),
            (0, 3)
        );
        it.classes[Role::Gateway].removed.insert(0);
        let refused = Network::parse(&it.to_toml().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("gateway 0, which was not added"), "{refused}");
    }

    #[test]
    fn a_mediator_that_is_added_changes_nothing_for_the_others() {
        let mut before = network("2-2-3-2");
        before.durability = Durability::MemoryQuorum;
        before.spare_mediators = 1;
        for node in before.classes.iter_mut().skip(2).flat_map(|(_, of)| &mut of.nodes) {
            let unix: Address = format!("unix:/r/{}", node.address).parse().unwrap();
            node.replication = Some(unix.try_into().unwrap());
        }
        let mut after = before.clone();
        for name in ["a", "b"] {
            let address: Address = format!("unix:/{name}").parse().unwrap();
            let replication = format!("unix:/{name}-r").parse::<Address>().unwrap();
            let replication = Some(replication.try_into().unwrap());
            after.classes[Role::Mediator].nodes.push(Node { address, replication });
        }
        after.classes[Role::Mediator].added = 2;
        let groups = [0, 1, 2, CONTROL];
        for group in groups {
            assert_eq!(after.replicas(group), before.replicas(group));
            assert_eq!(after.replica_places(group), before.replica_places(group));
        }
        assert_eq!((after.founders(), after.active_cells()), (3, before.active_cells()));
        let (m, p) = (Role::Mediator, Role::Processor);
        assert_eq!(after.replicas(3), [m.node(3), m.node(1), p.node(1)]);
        let places = after.replica_places(4);
        assert_eq!(places, [m.node(4), m.node(2), p.node(0), m.node(0), m.node(1), p.node(1)]);
        assert_eq!(after.groups_at(m.node(1)), [0, 1, 3, CONTROL]);
        assert_eq!(after.groups_at(m.node(4)), [4]);
        assert_eq!(after.upstream_count(m.node(4)), 2);
        // It is removed again.
        after.classes[Role::Mediator].removed.insert(3);
        assert_eq!(after.cells().collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(after.groups_at(m.node(1)), before.groups_at(m.node(1)));
        assert_eq!(after.all().filter(|(id, _)| id.class == m).count(), 4);
        assert_eq!(after.downstream(Role::Router.node(0)), [0, 1, 2, 4].map(|index| m.node(index)));
        assert!(after.downstream(m.node(3)).is_empty() && after.cells_through(1) == [0, 1, 2, 4]);
        assert_eq!(after.replicas(4), [m.node(4), m.node(2), p.node(0)]);
        assert_eq!(Network::parse(&after.to_toml().unwrap()).unwrap(), after);
        let refused = |change: &dyn Fn(&mut Network)| {
            let mut wrong = after.clone();
            change(&mut wrong);
            Network::parse(&wrong.to_toml().unwrap()).unwrap_err().to_string()
        };
        assert!(
            refused(&|it| it.classes[Role::Mediator].added = 5).contains("5 added mediators of 5")
        );
        assert!(refused(&|it| it.spare_mediators = 3).contains("3 spare mediators of 3"));
        let never = refused(&|it| it.classes[Role::Mediator].removed.extend([2]));
        assert!(never.contains("mediator 2, which was not added"), "{never}");
    }

    #[test]
    fn one_mediator_at_least_is_not_spare() {
        let mut network = network("1-1-3-1");
        network.spare_mediators = 2;
        assert_eq!((network.active_cells(), network.cell_of(7)), (1, 0));
        assert_eq!(Network::parse(&network.to_toml().unwrap()).unwrap(), network);
        network.spare_mediators = 3;
        let refused = Network::parse(&network.to_toml().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("3 spare mediators of 3"), "{refused}");
    }
}
