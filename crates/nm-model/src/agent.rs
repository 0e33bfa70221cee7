//! The agent protocol: one JSON object a line, requests one way and answers the other, over any
//! byte stream (pipe, TCP, ssh, virtio-serial).
//!
//! Course of one task, the same for every probe and for both ends:
//! 1. `prepare` with [`Stage::Listen`]: open what the peer will connect to, answer its addresses.
//! 2. `prepare` with [`Stage::Connect`]: connect to the peer's addresses.
//! 3. `run`: do it, answer [`Answer::Done`] when the task has ended. The listening end ends when
//!    its peer has gone or on `cancel`.
//!
//! An agent greets with [`Answer::Hello`] as soon as it starts, so that a version mismatch is seen
//! before anything else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::doubt::Doubt;
use crate::facts::Facts;
use crate::probe::{Pattern, PingpongSpec, RrSize, Side, StreamSpec};
use crate::result::{Flow, LatencyRound, Placement, Statistic};
use crate::setting::Settings;
use crate::stack::{Stack, named_enum};

/// Version of the protocol; both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 2;

/// Longest line that either end accepts, bytes, its newline included.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// What the controller asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Tell the facts of the machine.
    Describe,
    /// Get ready for a task.
    Prepare {
        /// Which end this agent is.
        side: Side,
        /// What to do.
        task: Box<Task>,
        /// How far to get ready.
        stage: Stage,
    },
    /// Do the prepared task.
    Run,
    /// End the running or prepared task as soon as possible.
    Cancel,
    /// End the agent.
    Bye,
}

/// The two steps of getting ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "lowercase")]
pub enum Stage {
    /// Open what the peer connects to.
    Listen {
        /// Address to listen on, without port; the agent's own choice of port.
        address: String,
    },
    /// Connect to the peer.
    Connect {
        /// What the peer's [`Answer::Prepared`] named.
        addresses: Vec<String>,
    },
}

/// One case over one stack: what one agent does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// This end's stack.
    pub stack: Stack,
    /// CPUs for the hot threads, in order and round again; empty leaves them free.
    pub cpus: Vec<u32>,
    /// The work.
    pub work: Work,
    /// Seed of everything random, such as the jitter of a schedule.
    pub seed: u64,
    /// Whether all samples are wanted beside the histogram.
    pub raw_samples: bool,
}

/// The work of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "lowercase")]
pub enum Work {
    /// Ping-pong with one size; `spec.sizes` is ignored.
    Pingpong {
        /// Message size.
        size_bytes: u32,
        /// Durations and counts.
        spec: PingpongSpec,
    },
    /// Flows with one pattern; `spec.patterns` is ignored.
    Stream {
        /// Number and direction of flows.
        pattern: Pattern,
        /// Durations and settings.
        spec: StreamSpec,
    },
    /// Request-response with one size.
    Rr {
        /// Sizes.
        size: RrSize,
        /// Requests a second; closed loop if absent.
        rate_per_s: Option<f64>,
        /// Measuring time, s.
        seconds: f64,
        /// Warm-up, ms.
        warmup_ms: u64,
        /// An answer later than this counts as lost, ms.
        deadline_ms: u64,
    },
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// First line of every agent.
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// Version of nearmetal.
        version: String,
        /// Process id.
        pid: u32,
    },
    /// Answer to `describe`.
    Facts(Box<Facts>),
    /// Answer to `prepare`: addresses for the peer, one for each connection it shall make; empty if
    /// the peer needs none.
    Prepared {
        /// Addresses in the transport's own text form.
        addresses: Vec<String>,
    },
    /// A current estimate while a task runs, a few each second at most.
    Progress {
        /// What it is, such as `half round trip`.
        statistic: Statistic,
        /// Value so far: ns, or Gb/s for throughput.
        value: f64,
    },
    /// A block of raw samples, ahead of [`Answer::Done`], where they were asked for.
    Samples {
        /// What one value is.
        statistic: Statistic,
        /// Little-endian u32 ns (saturated), base64.
        block: String,
    },
    /// The task has ended.
    Done(Box<TaskReport>),
    /// A request could not be done. The agent is ready for the next one.
    Failed(Failure),
    /// Answer to `bye`; the agent ends.
    Bye,
}

/// What one end has to tell about a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Latencies, each with what one value is; empty at an end that takes no times.
    pub latencies: Vec<(Statistic, LatencyRound)>,
    /// Flows that this end received.
    pub received: Vec<Flow>,
    /// Retransmits of flows that this end sent, by flow number.
    pub retransmits: Vec<(u32, u64)>,
    /// CPU time of the process during the window, s per s.
    pub cpu: Option<f64>,
    /// Settings as they came to be: buffers, congestion control, MSS, …
    pub settings: Settings,
    /// Hot threads.
    pub placements: Vec<Placement>,
    /// Doubts of this end.
    pub doubts: Vec<Doubt>,
}

named_enum!(
    /// What kind of failure it is; decides the exit code.
    FailureKind, "failure", {
        /// The request makes no sense or is out of range.
        BadRequest = "bad-request",
        /// The peer cannot be reached or has gone.
        Peer = "peer",
        /// An address or port is taken.
        AddressInUse = "address-in-use",
        /// Permission is missing.
        Permission = "permission",
        /// This machine or version cannot do it.
        NotAvailable = "not-available",
        /// The task was cancelled.
        Cancelled = "cancelled",
        /// Any other error of the system.
        System = "system",
    }
);

/// A failure as one sentence, with what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What kind.
    pub kind: FailureKind,
    /// What was wrong and where: lower case, no full stop.
    pub message: String,
    /// What to do, if anything can be said.
    #[serde(default)]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_words_on_the_wire_are_those_of_the_design() {
        let line = |request: &Request| serde_json::to_string(request).unwrap();
        assert_eq!(line(&Request::Describe), r#"{"do":"describe"}"#);
        assert_eq!(line(&Request::Bye), r#"{"do":"bye"}"#);
        let hello = Answer::Hello { protocol: 1, version: "0".into(), pid: 7 };
        assert_eq!(
            serde_json::to_string(&hello).unwrap(),
            r#"{"answer":"hello","protocol":1,"version":"0","pid":7}"#
        );
    }

    #[test]
    fn every_answer_reads_back() {
        let mut facts = Facts::default();
        facts.cpu.numa_nodes.insert(3, 1);
        for answer in [
            Answer::Facts(Box::new(facts)),
            Answer::Prepared { addresses: vec!["127.0.0.1:1".into()] },
            Answer::Progress { statistic: Statistic::HalfRoundTrip, value: 1.5 },
            Answer::Done(Box::default()),
            Answer::Failed(Failure::new(FailureKind::Peer, "gone").hint("start it")),
            Answer::Bye,
        ] {
            let line = serde_json::to_string(&answer).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused_without_a_panic(line in "\\PC{0,120}") {
            let _ = serde_json::from_str::<Request>(&line);
            let _ = serde_json::from_str::<Answer>(&line);
        }
    }
}
