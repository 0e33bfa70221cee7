//! Why a probe failed, and the failure that the agent reports for it.

use std::io;
use std::time::Duration;

use nm_model::probe::Side;
use nm_model::{Failure, FailureKind};
use nm_transport::{ConnectionError, TransportError, failure};

use crate::compute::error::ComputeError;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The connection could not be made.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A call of the transport failed.
    #[error("{action} failed")]
    Transport {
        /// What was being done, such as `sending a request`.
        action: String,
        /// The error of the call.
        source: TransportError,
    },
    /// The task was cancelled.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task was run before its connections were made.
    #[error("the task was run before it was connected")]
    NotConnected,
    /// A thread could not be started.
    #[error("a thread could not be started")]
    SpawnThread(#[source] io::Error),
    /// A thread panicked.
    #[error("the thread `{0}` panicked")]
    Panicked(String),
    /// A thread could not be pinned to its CPU.
    #[error("the {side}'s {thread} could not be pinned to CPU {cpu}")]
    PinThread {
        /// The end of the thread.
        side: Side,
        /// Name of the thread.
        thread: String,
        /// The CPU.
        cpu: u32,
        /// CPUs that the process may use.
        allowed: Vec<u32>,
        /// The error of the call.
        source: io::Error,
    },
    /// A closed loop would need more memory than a round may have.
    #[error("{samples} samples are more than {samples_max}")]
    TooManySamples {
        /// Samples of the plan.
        samples: u64,
        /// Most samples of a round.
        samples_max: u64,
    },
    /// An open loop would send no request, or more than a round may have.
    #[error("{rate_per_s} requests/s for {seconds} s are not 1 to {requests_max} requests")]
    RequestCount {
        /// Requests a second.
        rate_per_s: f64,
        /// Measuring time, s.
        seconds: f64,
        /// Most requests of a round.
        requests_max: f64,
    },
    /// No response over a stream, which loses nothing.
    #[error("no response in {timeout_ms} ms over a connection that is still open")]
    ResponseTimeout {
        /// How long the response was waited for, ms.
        timeout_ms: u64,
    },
    /// A datagram peer has sent no response for so long that it counts as gone.
    #[error("no response at all for {silence_s:.0} s")]
    Silence {
        /// How long, s.
        silence_s: f64,
    },
    /// The receiver of a flow did not signal the start.
    #[error("no start signal in {0:?}")]
    NoStart(Duration),
    /// The sender of a flow sent nothing.
    #[error("nothing was received in {0:?}")]
    NothingReceived(Duration),
    /// The sender of a flow stopped sending.
    #[error("nothing was received for {0:?}")]
    FlowStopped(Duration),
    /// The compute probe failed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// A flow failed.
    #[error("flow {index} failed")]
    Flow {
        /// Number of the flow.
        index: u32,
        /// Its error.
        source: Box<ProbeError>,
    },
}

impl ProbeError {
    /// A failed call of the transport while doing `action`, for `map_err`.
    pub(crate) fn transport(
        action: impl Into<String>,
    ) -> impl FnOnce(TransportError) -> ProbeError {
        move |source| ProbeError::Transport { action: action.into(), source }
    }
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Failure {
        let text = error.to_string();
        let new = |kind| Failure::new(kind, text.clone());
        match error {
            ProbeError::Connection(error) => failure::from_connection(error),
            ProbeError::Transport { action, source } => failure::from_transport(source, action),
            ProbeError::Cancelled => failure::cancelled(),
            ProbeError::NotConnected => {
                new(FailureKind::BadRequest).hint("prepare it with `listen` and `connect` first")
            }
            ProbeError::SpawnThread(error) => {
                Failure::new(FailureKind::System, format!("starting a thread: {error}"))
                    .hint("check the limits of processes and memory (`ulimit -a`, pids.max)")
            }
            ProbeError::Panicked(thread) => {
                let what = format!("the thread `{thread}` ended by an internal error");
                Failure::new(FailureKind::System, what)
                    .hint("this is a defect of nearmetal; please report it with the log")
            }
            ProbeError::PinThread { side, thread, cpu, allowed, source } => {
                let what = format!("pinning the {side}'s {thread} to CPU {cpu}: {source}");
                let allowed: Vec<String> = allowed.iter().map(u32::to_string).collect();
                Failure::new(FailureKind::BadRequest, what)
                    .hint(format!("this process may use CPUs {}", allowed.join(",")))
            }
            ProbeError::TooManySamples { samples, samples_max } => {
                let what = format!("{samples} samples are more than the {samples_max} of a round");
                Failure::new(FailureKind::BadRequest, what)
                    .hint("lower max_iterations or max_ms, and run more rounds")
            }
            ProbeError::RequestCount { .. } => {
                new(FailureKind::BadRequest).hint("lower the rate or the time, and run more rounds")
            }
            ProbeError::ResponseTimeout { .. } => new(FailureKind::Peer).hint(
                "check that the peer's machine is alive, or give a response more time: timeout_ms \
                 of a ping-pong (--timeout), deadline_ms of requests (--deadline)",
            ),
            ProbeError::Silence { .. } => new(FailureKind::Peer)
                .hint("check that the peer runs and that messages of this size get through"),
            ProbeError::NoStart(_) | ProbeError::NothingReceived(_) => {
                new(FailureKind::Peer).hint("check that the peer runs its end")
            }
            ProbeError::FlowStopped(_) => new(FailureKind::Peer),
            ProbeError::Compute(error) => error.into(),
            ProbeError::Flow { index, source } => {
                let failure = Failure::from(*source);
                Failure { message: format!("flow {index}: {}", failure.message), ..failure }
            }
        }
    }
}
