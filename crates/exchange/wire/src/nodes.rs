//! Nodes, and which cell an instrument belongs to, as messages and the log of control have them.

use crate::firm::FirmTable;
use crate::listing::Listing;
use crate::node_id::NodeId;
use crate::record;

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
        /// The instrument master: all that may be traded. None if anything may.
        listed: Option<Vec<Listing>>,
        /// The firms, whose sessions alone may connect. None if any session may.
        firms: Option<FirmTable>,
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
