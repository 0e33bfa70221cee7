//! What a node reports to the process that started it.

use serde::Serialize;

use crate::network::{AddedNode, Role};

/// What a node reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum NodeEvent {
    /// Its address can be connected to.
    Listening {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
        /// Where.
        address: String,
    },
    /// All of its links are up; once more after each loss.
    Ready {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
    },
    /// Nodes were added to the network, or removed from it.
    AddedNodes {
        /// Class of the node that reports.
        role: Role,
        /// Its index.
        index: usize,
        /// The mediators that were added, in the order of their numbers.
        mediators: Vec<AddedNode>,
        /// The routers that were added, in the order of their numbers.
        routers: Vec<AddedNode>,
        /// The processors that were added, in the order of their numbers.
        processors: Vec<AddedNode>,
        /// The gateways that were added, in the order of their numbers.
        gateways: Vec<AddedNode>,
    },
    /// A link is closed, or something was refused.
    #[serde(rename = "trouble")]
    Warning {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
        /// What, in one sentence.
        message: String,
    },
    /// It was stopped.
    #[serde(rename = "end")]
    Stopped(NodeSummary),
}

/// What a node did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeSummary {
    /// Class.
    pub role: Role,
    /// Index.
    pub index: usize,
    /// Requests that it handled; for a processor, replies.
    pub requests: u64,
    /// Requests that it resent.
    pub resent: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Iterations of its event loop.
    pub turns: u64,
    /// CPU time of the process, µs.
    pub cpu_us: u64,
}
