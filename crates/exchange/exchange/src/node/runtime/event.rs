//! What a node reports to the process that started it.

use serde::{Serialize, Serializer};

use crate::network::{AddedNode, NodeId, PerClass};

/// What a node reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum NodeEvent {
    /// Its address can be connected to.
    Listening {
        /// Which node.
        #[serde(flatten)]
        node: NodeId,
        /// Where.
        address: String,
    },
    /// All of its links are up; once more after each loss.
    Ready {
        /// Which node.
        #[serde(flatten)]
        node: NodeId,
    },
    /// Nodes were added to the network, or removed from it.
    AddedNodes {
        /// Which node reports.
        #[serde(flatten)]
        node: NodeId,
        /// Those that were added, in the order of their numbers.
        #[serde(flatten, serialize_with = "by_plural")]
        added: PerClass<Vec<AddedNode>>,
    },
    /// A link is closed, or something was refused.
    #[serde(rename = "trouble")]
    Warning {
        /// Which node.
        #[serde(flatten)]
        node: NodeId,
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
    /// Which node.
    #[serde(flatten)]
    pub node: NodeId,
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

/// One field for each class: `gateways`, `routers`, `mediators`, `processors`.
fn by_plural<S: Serializer>(added: &PerClass<Vec<AddedNode>>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(added.iter().map(|(class, added)| (format!("{class}s"), added)))
}
