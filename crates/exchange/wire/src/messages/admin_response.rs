//! What a node answers an observer.

use nm_book::order::InstrumentId;

use crate::directing::Directed;
use crate::firm::FirmUse;
use crate::node_id::NodeId;
use crate::{choice, record};

use super::stop::StopOrder;

record! {
    /// The latency of the link from the node that reports it to another one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LinkLatency {
        /// The other node.
        peer: NodeId,
        /// Latency of one way, ns: half of the smallest round trip of a TCP connection. It is an
        /// estimate, wrong by half of the difference where the two ways differ. 0 if both nodes are
        /// on one host.
        latency_ns: u64,
    }
}

record! {
    /// What was done on one instrument.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct InstrumentWork {
        /// Which.
        instrument: InstrumentId,
        /// Its cell.
        cell: u16,
        /// Number of the last request that was executed.
        executed: u64,
        /// Time that this mediator took to execute requests as the leader, ns, estimated by a
        /// sample of them.
        busy_ns: u64,
        /// By gateway: requests that this mediator executed as the leader.
        by_gateway: Vec<u64>,
    }
}

record! {
    /// What a node has done since it started. Only mediators move and execute anything.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Work {
        /// When this was counted, ns on the node's monotonic clock.
        at_ns: u64,
        /// CPU time of its process, ns.
        cpu_ns: u64,
        /// How many instruments have left its cells while it led them.
        moved: u64,
        /// Of a gateway: the sessions of its clients.
        sessions: u32,
        /// Of a gateway: whether it takes no more clients, because it is drained.
        is_leaving: bool,
        /// The latest pauses of the instruments that have left: from the release until the new
        /// cell's announcement came back, ns.
        pauses_ns: Vec<u64>,
        /// The latencies of its links to other nodes, as far as they are measured.
        links: Vec<LinkLatency>,
        /// The instruments of the cells that it leads; those with most requests, if an answer has
        /// no room for all of them.
        instruments: Vec<InstrumentWork>,
    }
}

record! {
    /// The replicas of a cell, as one of them knows them.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct CellReplicas {
        /// Whether the one that answers leads the cell.
        is_leader: bool,
        /// The nodes that have one.
        voters: Vec<NodeId>,
        /// Why one was not replaced, since this one was last asked to.
        replace_failed: Option<String>,
    }
}

record! {
    /// What a session or an owner has in a cell, on instruments that are on their way to another
    /// cell as well.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Holdings {
        /// Instruments that it made.
        instruments: u64,
        /// Sessions, counted once on each instrument.
        sessions: u64,
        /// Live orders, pending stops included.
        orders: u64,
    }
}

record! {
    /// Where the book of an instrument stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct BookPosition {
        /// Which.
        instrument: InstrumentId,
        /// Number of the last request that was executed.
        output_seq: u64,
        /// Hash of all that it has executed.
        history: u64,
    }
}

record! {
    /// A piece of the book of an instrument.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct BookImage {
        /// Which, and what it has executed.
        position: BookPosition,
        /// Bytes of the pieces before.
        offset: u64,
        /// Bytes of all pieces; 0 if the node does not have the instrument.
        total: u64,
        /// The piece, of the book as in a snapshot.
        bytes: Box<[u8]>,
    }
}

choice! {
    /// What a node answers to an `AdminRequest`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AdminResponse {
        /// The state of control as this replica has it.
        Status = 0 {
            /// Term in which this replica leads control, if it does.
            leading_term: Option<u32>,
            /// For how long a pending change could not be logged, ms; 0 if all is well.
            stalled_ms: u64,
            /// The state, as in a snapshot of control.
            state: Box<[u8]>,
        },
        /// The instrument belongs to the cell, in this version of the map.
        Moved = 1 {
            /// Which instrument.
            instrument: InstrumentId,
            /// Version of the map.
            map_version: u32,
        },
        /// It cannot be moved, or not be directed.
        Refused = 2 {
            /// Which instrument.
            instrument: InstrumentId,
            /// Why, in a sentence.
            reason: String,
        },
        /// This node does not lead control, or no longer; or it has no replica of the cell.
        NotLeading = 3,
        /// What the node has done since its start.
        Work = 4 {
            /// What.
            work: Work,
        },
        /// The replicas of a cell.
        Replicas = 5 {
            /// What this one knows of them.
            replicas: CellReplicas,
        },
        /// What a session or an owner has in a cell.
        Holdings = 6 {
            /// What.
            holdings: Holdings,
        },
        /// What came of a direction.
        Directed = 30 {
            /// What.
            directed: Directed,
        },
        /// Whether an owner is stopped in a cell, and what it has there.
        Stopped = 31 {
            /// What held before.
            order: StopOrder,
            /// What the owner has.
            holdings: Holdings,
        },
        /// What firms have in a cell.
        FirmUses = 48 {
            /// Version of the firms that the cell knows.
            version: u64,
            /// Of each firm with limits.
            uses: Vec<FirmUse>,
        },
        /// Books whose updates are sent from now on.
        Following = 20 {
            /// Where they stand.
            books: Vec<BookPosition>,
            /// Whether further ones follow in another answer.
            has_more: bool,
        },
        /// A piece of a book.
        Image = 21 {
            /// It.
            image: BookImage,
        },
    }
}
