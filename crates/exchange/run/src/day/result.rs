//! The result of a day.

use nm_model::Outcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::EventKind;
use super::script::Script;

/// Version of the format.
pub const VERSION: u32 = 1;

/// A day that was run and judged. All times are seconds since its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DayResult {
    /// Version of the format.
    pub version: u32,
    /// The script.
    pub script: Script,
    /// Nodes of each class, such as `2-2-2-2`, and the options of the network.
    pub network: String,
    /// Seed of orders and times.
    pub seed: u64,
    /// Hash of all requests, hexadecimal: the same script, mix and seed give the same. None if the
    /// day did not come to its end.
    pub stream_hash: Option<String>,
    /// Limit for ES10 and p99, ms.
    pub limit_ms: f64,
    /// Whether the day came to its end.
    pub is_complete: bool,
    /// The verdict; none if the day did not come to its end.
    pub outcome: Option<Outcome>,
    /// Why it is not a pass, as sentences.
    pub reasons: Vec<String>,
    /// The phases, as far as they were run.
    pub phases: Vec<PhaseFigures>,
    /// The events in the order of their starts.
    pub events: Vec<EventFigures>,
    /// Events beyond the number that is judged.
    pub events_left_out: u64,
    /// Requests that were sent again after a connection was lost.
    pub resent: u64,
    /// Connections of the load generator that were re-established.
    pub reconnects: u64,
    /// Why the network refused a request, if it did.
    pub first_refusal: Option<String>,
}

/// The figures of a phase. Round trips count from the intended send, by the second in which that
/// lies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseFigures {
    /// Its name.
    pub name: String,
    /// Its start, s.
    pub start_s: u32,
    /// Its length, s.
    pub seconds: u32,
    /// How many of its seconds were run and judged.
    pub judged_s: u32,
    /// Requests that the script expects in them.
    pub offered: f64,
    /// Requests that were sent.
    pub sent: u64,
    /// Replies that arrived in them.
    pub replies: u64,
    /// Requests without a reply, or that were refused.
    pub lost: u64,
    /// Requests that the network refused to execute.
    pub refused: u64,
    /// Mean round trip, ns.
    pub mean_ns: Option<f64>,
    /// 90th percentile, ns.
    pub p90_ns: Option<f64>,
    /// Mean of the slowest 10 %, ns.
    pub es10_ns: Option<f64>,
    /// 99th percentile, ns.
    pub p99_ns: Option<f64>,
    /// Longest round trip, ns.
    pub max_ns: Option<f64>,
    /// Seconds outside the limit.
    pub outside_s: u32,
    /// Seconds that would be, had the load generator itself not been late.
    pub undecided_s: u32,
    /// Seconds that may be outside the limit, if the script says so.
    pub outside_max_s: Option<u32>,
    /// The worst of its seconds.
    pub worst_second: Option<WorstSecond>,
}

impl PhaseFigures {
    /// Replies a second.
    pub fn replies_per_s(&self) -> f64 {
        self.replies as f64 / f64::from(self.judged_s.max(1))
    }

    /// Requests a second that the script expects.
    pub fn offered_per_s(&self) -> f64 {
        self.offered / f64::from(self.judged_s.max(1))
    }
}

/// The second with the largest ES10 or p99, or that lost requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorstSecond {
    /// Its number since the start of the day.
    pub at_s: u32,
    /// Mean of the slowest 10 %, ns.
    pub es10_ns: Option<f64>,
    /// Longest of the fastest 99 %, ns.
    pub p99_ns: Option<f64>,
    /// Requests without a reply, or that were refused.
    pub lost: u64,
}

/// An event, and the seconds around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventFigures {
    /// When it began, s.
    pub at_s: f64,
    /// When it ended, s.
    pub until_s: f64,
    /// Its kind.
    pub kind: EventKind,
    /// What happened.
    pub detail: String,
    /// The seconds before it.
    pub before: Span,
    /// The seconds from its start to its end.
    pub during: Span,
    /// The seconds after it.
    pub after: Span,
    /// Time from its start until newly sent requests were within the limit again, ms; none if too
    /// many requests were above the limit to keep them all.
    pub back_ms: Option<f64>,
    /// Longest round trip above the limit meanwhile, ms; zero if there was none.
    pub worst_ms: Option<f64>,
}

/// Seconds in a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// How many there are.
    pub seconds: u32,
    /// How many are outside the limit.
    pub outside_s: u32,
    /// How many would be, had the load generator itself not been late.
    pub undecided_s: u32,
    /// Requests that the script expects.
    pub offered: f64,
    /// Replies that arrived.
    pub replies: u64,
    /// Requests without a reply, or that were refused.
    pub lost: u64,
    /// Largest mean of the slowest 10 % of a second, ns.
    pub es10_max_ns: Option<f64>,
    /// Largest p99 of a second, ns.
    pub p99_max_ns: Option<f64>,
}
