//! What a run and the agent on one of its hosts say to each other, as JSON lines over ssh.
//!
//! The agent reports first that it is ready. Slots are numbers that the run gives its nodes. Each
//! start of a node has a number as well. So messages of an earlier start are not taken for those of
//! a later one.

use std::path::PathBuf;
use std::time::Duration;

use nm_exchange::network::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of this program: both ends must have the same one, because nodes must.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Interval at which the run asks each agent whether it is there.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Silence after which an agent ends its nodes, and a run counts a host as lost.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// How long nodes may take to exit after their input is closed.
pub const END_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of reports that wait until the run reads them. Beyond it what nodes write is dropped.
pub const REPORTS_BYTES_MAX: usize = 16 << 20;

/// How long an agent that ends waits until its last reports are read.
pub const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// What a run asks of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// Keep these files for the nodes.
    Files {
        /// The network's file, which names the secret's file beside it.
        network: String,
        /// The secret's file; empty if the network has no secret.
        secret: String,
    },
    /// Start a node, in place of an earlier one with this slot.
    Start {
        /// Number of the node.
        slot: usize,
        /// Number of the start.
        start: u32,
        /// Which.
        #[serde(flatten)]
        node: NodeId,
    },
    /// Kill a node immediately.
    Kill {
        /// Number of the node.
        slot: usize,
    },
    /// Have a node end.
    End {
        /// Number of the node.
        slot: usize,
    },
    /// Have all nodes end.
    Stop,
    /// Answer.
    Alive,
}

/// What an agent reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum Report {
    /// It is there.
    Ready {
        /// Version of its program.
        version: String,
        /// Its folder, removed when it ends.
        folder: PathBuf,
    },
    /// A node wrote a line of JSON.
    Node {
        /// Number of the node.
        slot: usize,
        /// Number of the start.
        start: u32,
        /// The line.
        line: Value,
    },
    /// A node wrote a line that is for people.
    Log {
        /// Number of the node.
        slot: usize,
        /// The line.
        text: String,
    },
    /// A node has ended, and everything that it wrote is on the disk.
    Ended {
        /// Number of the node.
        slot: usize,
        /// Number of the start.
        start: u32,
    },
    /// Answer to [`Request::Alive`].
    Alive,
    /// The run did not read for a while: reports of nodes are missing.
    Dropped {
        /// How many.
        count: u64,
    },
}

impl Report {
    /// Its line, without the line break.
    pub fn line(&self) -> String {
        // Maps have text for keys, and nothing else can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}
