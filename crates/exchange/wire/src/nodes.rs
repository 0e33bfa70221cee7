//! Nodes, and which cell an instrument belongs to, as messages and the log of control have them.

use std::fmt;

use crate::{codes, record};

codes! {
    /// A class of nodes.
    pub enum Role {
        /// Keeps the clients' connections, and their requests until they are answered.
        Gateway = 0,
        /// Sends each request to the mediator that leads its instrument's cell.
        Router = 1,
        /// Puts requests in order and matches them.
        Mediator = 2,
        /// Transaction processor: sends replies and broadcasts out.
        Processor = 3,
    }
}

impl Role {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Router => "router",
            Role::Mediator => "mediator",
            Role::Processor => "processor",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

record! {
    /// A node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct NodeId {
        /// Its class.
        class: Role,
        /// Which one of its class.
        index: u16,
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.class, self.index)
    }
}

record! {
    /// Where a node listens.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NodeAddresses {
        /// For its upstream links; a gateway also for its clients. `HOST:PORT`, `unix:PATH` or
        /// `shm:PATH`.
        address: String,
        /// For the other replicas of its cells. `HOST:PORT` or `unix:PATH`.
        replication: Option<String>,
    }
}

record! {
    /// A node that was added to a running network.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AddedNode {
        /// Where it listens.
        addresses: NodeAddresses,
        /// Whether it was removed again.
        is_removed: bool,
    }
}

record! {
    /// The nodes of a class.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClassNodes {
        /// How many the network began with.
        founded: u16,
        /// Those that were added, in the order of their numbers.
        added: Vec<AddedNode>,
    }
}

record! {
    /// An instrument that has moved.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Moved {
        /// Which.
        instrument: u32,
        /// Its cell.
        cell: u16,
        /// The move that brought it there.
        epoch: u32,
    }
}

record! {
    /// Which cell each instrument belongs to: `instrument % active_cells`, but for those that have
    /// moved. And which nodes there are.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MapContent {
        /// Rises with each change.
        version: u32,
        /// Over how many cells the rule spreads instruments.
        active_cells: u16,
        /// By the code of the class; four of them.
        classes: Vec<ClassNodes>,
        /// Instruments that have moved, also those that are back.
        moved: Vec<Moved>,
        /// Nodes that are to carry nothing.
        drained: Vec<NodeId>,
    }
}

record! {
    /// The leader of a cell.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CellLeader {
        /// Which mediator.
        mediator: u16,
        /// In which term.
        term: u32,
        /// Number that identifies the start of its process.
        start: u64,
    }
}
