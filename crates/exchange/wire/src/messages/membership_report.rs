//! Which nodes a node is connected to.

use crate::node_id::NodeId;
use crate::nodes::MapContent;
use crate::{message, record};

use super::routing_table::LedCell;

record! {
    /// A node that is up.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Member {
        /// Which.
        node: NodeId,
        /// Number that identifies the start of its process.
        start: u64,
    }
}

message! {
    /// Which nodes a node is connected to, for control: a gateway reports its processors, a router
    /// all that it knows.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MembershipReport;
    head {}
    tail {
        /// Nodes that it is connected to, or that others reported.
        nodes: Vec<Member>,
        /// The newest map that it knows.
        map: MapContent,
        /// The leaders that it knows.
        leaders: Vec<LedCell>,
    }
}
