//! The agent protocol: one JSON object a line, requests in one direction and answers in the other,
//! over any byte stream (pipe, TCP, ssh, virtio-serial).
//!
//! Steps of one task, the same for every probe and for both ends:
//! 1. `prepare` with [`Stage::Listen`]: listen for the peer, answer the addresses.
//! 2. `prepare` with [`Stage::Connect`]: connect to the peer's addresses.
//! 3. `run`: execute the task, then answer [`Answer::Done`]. The listening end finishes when its
//!    peer disconnects or on `cancel`.
//!
//! An agent sends [`Answer::Hello`] as soon as it starts, so that a version mismatch is detected
//! before the first request.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::doubt::Doubt;
use crate::facts::Facts;
use crate::limits::{self, SpecError};
use crate::named_enum::{named_enum, text_serde};
use crate::probe::Side;
pub use crate::probe::Work;
use crate::result::{Flow, LatencyRound, Placement, Statistic};
use crate::setting::Settings;
use crate::stack::Stack;

/// Version of the protocol; both ends must have the same.
pub const PROTOCOL_VERSION: u32 = 5;

/// Longest line that either end accepts, bytes, its newline included.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// What the controller sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Report the facts of the machine.
    Describe,
    /// Prepare a task.
    Prepare {
        /// Which end this agent is.
        side: Side,
        /// The task.
        task: Box<Task>,
        /// Which step of the preparation.
        stage: Stage,
    },
    /// Accept connections of tasks from one address only, and say which link is at this end.
    Path {
        /// Address of this end.
        own: IpAddr,
        /// Address of the other end.
        peer: IpAddr,
    },
    /// Nothing: the controller is there. It has no answer.
    Alive,
    /// Run the prepared task.
    Run,
    /// End the running or prepared task as soon as possible.
    Cancel,
    /// Forget a controller before this one and all that it has begun, and greet with this token. So
    /// a controller finds its first answer on a line where there was something before: the words of
    /// a boot, or an earlier session.
    Attach {
        /// Another one each time.
        token: Token,
    },
    /// End the agent.
    Bye,
}

/// The two steps of the preparation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "lowercase")]
pub enum Stage {
    /// Listen for the peer.
    Listen {
        /// Address to listen on, without port; the agent's own choice of port.
        address: String,
    },
    /// Connect to the peer.
    Connect {
        /// Addresses of the peer's [`Answer::Prepared`].
        addresses: Vec<String>,
    },
}

/// A secret of both ends of a task: the first datagrams of a connection carry it, so that nobody
/// else is taken for the peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Why a text is not a [`Token`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token has 32 hexadecimal digits")]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let is_token = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_token);
        number.map(|number| Token(number.to_be_bytes())).ok_or(TokenError)
    }
}

text_serde!(Token);

/// One case over one stack: what one agent does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// This end's stack.
    pub stack: Stack,
    /// CPUs for the hot threads, assigned in turn; empty leaves the threads unpinned.
    pub cpus: Vec<u32>,
    /// The work.
    pub work: Work,
    /// Seed of everything random, such as the jitter of a schedule.
    pub seed: u64,
    /// Whether to send all samples in addition to the histogram.
    pub raw_samples: bool,
    /// The same at both ends.
    pub token: Token,
}

impl Task {
    /// Checks all numbers against the limits of a plan.
    ///
    /// # Errors
    /// The field that is out of range.
    pub fn check(&self) -> Result<(), SpecError> {
        limits::check_count("cpus", self.cpus.len(), limits::CPUS_MAX)?;
        self.work.check(self.stack.protocol)
    }
}

/// What the agent sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// First line of every agent, and answer to `attach`.
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// Version of nearmetal.
        version: String,
        /// Process id.
        pid: u32,
        /// That of the request, if `attach` has asked for this answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// Answer to `describe`.
    Facts(Box<Facts>),
    /// Answer to `path`.
    Path {
        /// Name of the link with the address of this end; absent if none has it.
        link: Option<String>,
    },
    /// Answer to `prepare`: addresses for the peer, one for each connection that it makes; empty if
    /// the peer needs none.
    Prepared {
        /// Addresses in the transport's own text form.
        addresses: Vec<String>,
    },
    /// A current estimate while a task runs, a few each second at most.
    Progress {
        /// What the value is, such as `half round trip`.
        statistic: Statistic,
        /// Value so far: ns, or Gb/s for throughput.
        value: f64,
    },
    /// A block of raw samples, before [`Answer::Done`], if the task requested them.
    Samples {
        /// What one value is.
        statistic: Statistic,
        /// Little-endian u32 ns (saturated), base64.
        block: String,
    },
    /// The task has ended.
    Done(Box<TaskReport>),
    /// A request failed. The agent is ready for the next one.
    Failed(Failure),
    /// Answer to `bye`; the agent ends.
    Bye,
}

/// The report of one end about a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Latencies, each with the meaning of its values; empty at an end that measures none.
    pub latencies: Vec<(Statistic, LatencyRound)>,
    /// Flows that this end received.
    pub received: Vec<Flow>,
    /// Retransmits of flows that this end sent, by flow number.
    pub retransmits: Vec<(u32, u64)>,
    /// CPU time of the process during the window, s per s.
    pub cpu: Option<f64>,
    /// Settings in effect: buffers, congestion control, MSS, …
    pub settings: Settings,
    /// Hot threads.
    pub placements: Vec<Placement>,
    /// Doubts of this end.
    pub doubts: Vec<Doubt>,
}

named_enum!(
    /// The kind of a failure; decides the exit code.
    FailureKind, "failure", {
        /// The request is invalid or out of range.
        BadRequest = "bad-request",
        /// The peer cannot be reached or has disconnected.
        Peer = "peer",
        /// An address or port is taken.
        AddressInUse = "address-in-use",
        /// Another run uses what this one needs, such as its folder.
        Conflict = "conflict",
        /// Permission is missing.
        Permission = "permission",
        /// Not supported by this machine or version.
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
    /// What to do, if known.
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
    use crate::compute::{Count, Layout, Workload};
    use crate::jitter::JitterSpec;
    use crate::probe::{
        ComputeWork, Pattern, PingpongSpec, PingpongWork, RrSize, RrWork, StreamSpec, StreamWork,
    };
    use proptest::prelude::*;

    #[test]
    fn requests_and_answers_have_the_documented_json_form() {
        let line = |request: &Request| serde_json::to_string(request).unwrap();
        assert_eq!(line(&Request::Describe), r#"{"do":"describe"}"#);
        assert_eq!(line(&Request::Bye), r#"{"do":"bye"}"#);
        let hello = Answer::Hello { protocol: 1, version: "0".into(), pid: 7, token: None };
        assert_eq!(
            serde_json::to_string(&hello).unwrap(),
            r#"{"answer":"hello","protocol":1,"version":"0","pid":7}"#
        );
    }

    #[test]
    fn answers_round_trip_through_json() {
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

    #[test]
    fn a_token_reads_back_and_nothing_else_is_one() {
        let token = Token([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(token.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(token.to_string().parse(), Ok(token));
        for text in ["", "0", "+00102030405060708090a0b0c0d0eff", &"0".repeat(33), &"g".repeat(32)]
        {
            assert_eq!(text.parse::<Token>(), Err(TokenError), "{text}");
        }
    }

    /// Numbers in and out of range.
    fn any_count() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..100, 0u64..100_000_000, any::<u64>()]
    }

    fn any_number() -> impl Strategy<Value = f64> {
        prop_oneof![0.0..100.0, any::<f64>(), Just(f64::NAN), Just(f64::INFINITY)]
    }

    fn any_work() -> impl Strategy<Value = Work> {
        let bytes = || any_count().prop_map(|count| count as u32);
        let counts = || (any_count(), any_count(), any_count());
        let pingpong = (bytes(), counts(), (any_count(), any_count()), any_number()).prop_map(
            |(size_bytes, (max_iterations, min_iterations, max_ms), (warmup_ms, timeout_ms), p)| {
                let default = PingpongSpec::default().of_size(size_bytes);
                Work::Pingpong(PingpongWork {
                    max_iterations,
                    min_iterations,
                    max_ms,
                    warmup_ms,
                    timeout_ms,
                    percentiles: vec![p],
                    ..default
                })
            },
        );
        let stream = (bytes(), bytes(), any_count(), any_number(), prop::option::of(bytes()))
            .prop_map(|(flows, write_bytes, omit_ms, seconds, buffer_bytes)| {
                let pattern = Pattern { flows, bidirectional: false };
                let default = StreamSpec::default().of_pattern(pattern);
                Work::Stream(StreamWork { write_bytes, omit_ms, seconds, buffer_bytes, ..default })
            });
        let rr = (bytes(), bytes(), counts(), any_number(), prop::option::of(any_number()))
            .prop_map(
                |(
                    request_bytes,
                    response_bytes,
                    (warmup_ms, deadline_ms, _),
                    seconds,
                    rate_per_s,
                )| {
                    let size = RrSize { request_bytes, response_bytes };
                    Work::Rr(RrWork { size, rate_per_s, seconds, warmup_ms, deadline_ms })
                },
            );
        let jitter =
            (any_number(), prop::option::of(any_count())).prop_map(|(seconds, threshold_ns)| {
                Work::Jitter(JitterSpec { seconds, threshold_ns, ..Default::default() })
            });
        let compute = (bytes(), bytes()).prop_map(|(repeats, cores)| {
            let layout = Layout { cores: Count::Exactly(cores), ..Layout::SOLO };
            Work::Compute(ComputeWork { workload: Workload::Pi, layout, repeats, cpus: vec![] })
        });
        prop_oneof![pingpong, stream, rr, jitter, compute]
    }

    /// Memory that the work of a task asks for, bytes, and its longest time, s.
    fn cost(work: &Work) -> (f64, f64) {
        const SAMPLE_BYTES: f64 = 16.0;
        match work {
            Work::Pingpong(work) => {
                let samples = work.max_iterations.max(work.min_iterations) as f64;
                let bytes = f64::from(work.size_bytes) * 2.0 + samples * SAMPLE_BYTES;
                (bytes, work.max_ms.max(work.warmup_ms).max(work.timeout_ms) as f64 / 1e3)
            }
            Work::Stream(work) => {
                let bytes = f64::from(work.write_bytes) * f64::from(work.pattern.flows);
                (bytes, work.seconds.max(work.omit_ms as f64 / 1e3))
            }
            Work::Rr(RrWork { size, rate_per_s, seconds, warmup_ms, deadline_ms }) => {
                let messages = f64::from(size.request_bytes) + f64::from(size.response_bytes);
                let warmup_s = *warmup_ms as f64 / 1e3;
                let samples = rate_per_s.unwrap_or(0.0) * (seconds + warmup_s);
                (
                    messages + samples * SAMPLE_BYTES,
                    seconds.max(warmup_s).max(*deadline_ms as f64 / 1e3),
                )
            }
            Work::Jitter(spec) => (0.0, spec.seconds),
            Work::Compute(work) => (0.0, f64::from(work.repeats)),
        }
    }

    proptest! {
        #[test]
        fn any_request_is_refused_or_within_the_limits(work in any_work(), cpus in 0usize..2_000) {
            let task = Task {
                stack: Stack::new(crate::Protocol::Tcp, crate::Mode::Spin),
                cpus: vec![0; cpus],
                work,
                seed: 1,
                raw_samples: false,
                token: Token::default(),
            };
            match task.check() {
                Ok(()) => {
                    let (bytes, seconds) = cost(&task.work);
                    prop_assert!(bytes <= 4e9 && seconds <= limits::SECONDS_MAX, "{task:?}");
                    prop_assert!(cpus <= limits::CPUS_MAX);
                }
                Err(error) => prop_assert!(error.to_string().contains(error.field()), "{error}"),
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_lines_never_panic(line in "\\PC{0,120}") {
            let _ = serde_json::from_str::<Request>(&line);
            let _ = serde_json::from_str::<Answer>(&line);
        }
    }
}
