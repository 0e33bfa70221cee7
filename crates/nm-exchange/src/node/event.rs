//! What a node reports to the process that started it.

use serde::Serialize;

use crate::control::AddedMediator;
use crate::network::Role;

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
    /// Mediators were added to the network, or removed from it.
    Mediators {
        /// Class.
        role: Role,
        /// Index.
        index: usize,
        /// How many mediators the network began with.
        founders: usize,
        /// Those that were added, in the order of their numbers.
        added: Vec<AddedMediator>,
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
