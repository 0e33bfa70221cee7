//! What is measured: the probes with their parameters, and the cases that one probe is split into.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compute::{ComputeSpec, Layout, Workload};
use crate::exchange::{self, ExchangeSpec};
use crate::jitter::JitterSpec;
pub use crate::limits::SIZE_BYTES_MAX;
use crate::limits::{self, SpecError};
use crate::metric::{Metric, PERCENTILES};
use crate::named_enum::{named_enum, text_serde};
use crate::stack::{Protocol, StackPair};
use crate::words::UnknownWord;

named_enum!(
    /// The kinds of probe.
    ProbeKind, "probe", {
        /// Closed-loop ping-pong: half round trip.
        Pingpong = "pingpong",
        /// Bulk flows in one or both directions: throughput.
        Stream = "stream",
        /// Request-response, open loop at a rate or closed loop: full round trip.
        Rr = "rr",
        /// Work of the processor alone.
        Compute = "compute",
        /// Interruptions of a spinning thread.
        Jitter = "jitter",
        /// The distributed stock exchange.
        Exchange = "exchange",
    }
);

named_enum!(
    /// One of the two endpoints of an environment.
    Side, "side", {
        /// The end that sends first; `A` in flow directions.
        Client = "client",
        /// The end that answers; `B` in flow directions.
        Server = "server",
    }
);

named_enum!(
    /// The defaults of another tool, so that figures of both compare like for like.
    Preset, "preset", {
        /// netperf: 16 KiB writes.
        Netperf = "netperf",
        /// nuttcp: 64 KiB writes.
        Nuttcp = "nuttcp",
        /// iperf3: 128 KiB writes.
        Iperf3 = "iperf3",
    }
);

impl ProbeKind {
    /// Whether both ends exchange bytes over a stack. The other probes measure the client's
    /// machine alone.
    pub fn uses_network(self) -> bool {
        !matches!(self, ProbeKind::Compute | ProbeKind::Jitter)
    }
}

impl Side {
    /// The opposite end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

impl Preset {
    /// Bytes of one write by that tool's defaults.
    pub fn write_bytes(self) -> u32 {
        match self {
            Preset::Netperf => 16 * 1024,
            Preset::Nuttcp => 64 * 1024,
            Preset::Iperf3 => 128 * 1024,
        }
    }
}

/// How the flows of a stream run: `N-uni-N` is N flows from client to server; `N-bi-N` is N flows,
/// half in each direction (so N is even).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// Number of flows in all, 1 to 256.
    pub flows: u32,
    /// Whether half of them run from server to client.
    pub bidirectional: bool,
}

impl Pattern {
    /// The largest number of flows.
    pub const MAX_FLOWS: u32 = 256;

    /// The end that sends on flow `index` (counted from 0): even flows run from the client, and in
    /// a bidirectional pattern odd flows from the server.
    pub fn sender(self, index: u32) -> Side {
        if self.bidirectional && index % 2 == 1 { Side::Server } else { Side::Client }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.bidirectional { "bi" } else { "uni" };
        f.pad(&format!("{}-{direction}-{}", self.flows, self.flows))
    }
}

/// A text that is no [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown pattern `{0}`: write N-uni-N or N-bi-N, such as 2-bi-2, with N from 1 to {max}, even \
     for bi",
    max = Pattern::MAX_FLOWS
)]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let unknown = || PatternError(text.to_string());
        let parts: Vec<&str> = text.split('-').collect();
        let [left, direction, right] = parts[..] else { return Err(unknown()) };
        let flows: u32 = left.parse().map_err(|_| unknown())?;
        let bidirectional = match direction {
            "uni" => false,
            "bi" => true,
            _ => return Err(unknown()),
        };
        let fits = left == right
            && (1..=Pattern::MAX_FLOWS).contains(&flows)
            && !(bidirectional && flows % 2 == 1);
        if fits { Ok(Pattern { flows, bidirectional }) } else { Err(unknown()) }
    }
}

text_serde!(Pattern);

/// Ping-pong: one message in flight, client and server echo it in turn.
///
/// Method of sfnt-pingpong: for each size a warm-up, then samples until `max_iterations` or
/// `max_ms`, but at least `min_iterations`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PingpongSpec {
    /// Message sizes in bytes.
    pub sizes: Vec<u32>,
    /// Most samples for each size.
    pub max_iterations: u64,
    /// Fewest samples for each size.
    pub min_iterations: u64,
    /// Longest measuring time for each size, ms.
    pub max_ms: u64,
    /// Warm-up time before each size, ms.
    pub warmup_ms: u64,
    /// A message that has not come back after this long is lost (UDP) or an error (TCP), ms.
    pub timeout_ms: u64,
    /// Pause of the client between an answer and the next message, µs: it sleeps, or spins where
    /// its stack spins. It is not part of the samples.
    pub think_time_us: u64,
    /// Percentiles beside the fixed ones, 0 to 100.
    pub percentiles: Vec<f64>,
}

/// sfnt-pingpong's stream sizes: powers of two, 1 to 65536.
pub const PINGPONG_SIZES: [u32; 17] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

impl Default for PingpongSpec {
    fn default() -> PingpongSpec {
        PingpongSpec {
            sizes: PINGPONG_SIZES.to_vec(),
            max_iterations: 1_000_000,
            min_iterations: 1_000,
            max_ms: 3_000,
            warmup_ms: 100,
            timeout_ms: 1_000,
            think_time_us: 0,
            percentiles: vec![],
        }
    }
}

/// Bulk throughput of parallel flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSpec {
    /// Flow patterns, each a case of its own.
    pub patterns: Vec<Pattern>,
    /// Measuring time, s; counted at the receivers after `omit_ms`.
    pub seconds: f64,
    /// Time from the common start that is not counted, ms.
    pub omit_ms: u64,
    /// Bytes of one write.
    pub write_bytes: u32,
    /// Congestion control by name; the host's default if absent.
    pub congestion: Option<String>,
    /// `SO_SNDBUF` and `SO_RCVBUF`, bytes; the kernel's own tuning if absent.
    pub buffer_bytes: Option<u32>,
    /// The other tool whose defaults were taken, if any.
    pub preset: Option<Preset>,
    /// Coefficient of variation over rounds above which the result is called unstable, %.
    pub max_cv_percent: f64,
}

impl Default for StreamSpec {
    fn default() -> StreamSpec {
        StreamSpec {
            patterns: vec![Pattern { flows: 1, bidirectional: false }],
            seconds: 10.0,
            omit_ms: 200,
            write_bytes: 128 * 1024,
            congestion: None,
            buffer_bytes: None,
            preset: None,
            max_cv_percent: 1.0,
        }
    }
}

/// Request-response. Open loop where `rate_per_s` is given: requests leave on an absolute
/// schedule, and latency counts from the intended send time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RrSpec {
    /// Requests a second; closed loop (the next when the answer is in) if null, or 0 in TOML, which
    /// has no null.
    #[serde(deserialize_with = "rate_or_closed_loop")]
    pub rate_per_s: Option<f64>,
    /// Measuring time, s.
    pub seconds: f64,
    /// Request and response sizes in bytes, each pair a case of its own.
    pub sizes: Vec<RrSize>,
    /// An answer later than this counts as lost, ms.
    pub deadline_ms: u64,
    /// Warm-up time, ms.
    pub warmup_ms: u64,
}

impl Default for RrSpec {
    fn default() -> RrSpec {
        RrSpec {
            rate_per_s: Some(1_000.0),
            seconds: 5.0,
            sizes: vec![RrSize { request_bytes: 64, response_bytes: 64 }],
            deadline_ms: 1_000,
            warmup_ms: 100,
        }
    }
}

fn rate_or_closed_loop<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.filter(|rate| *rate != 0.0))
}

/// Sizes of one request and its response: `64` or `64,1000` in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RrSize {
    /// Bytes of the request, 1 to [`SIZE_BYTES_MAX`].
    pub request_bytes: u32,
    /// Bytes of the response, 1 to [`SIZE_BYTES_MAX`].
    pub response_bytes: u32,
}

impl fmt::Display for RrSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.request_bytes == self.response_bytes {
            f.pad(&self.request_bytes.to_string())
        } else {
            f.pad(&format!("{},{}", self.request_bytes, self.response_bytes))
        }
    }
}

/// A text that is no [`RrSize`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("size `{0}` must be a number of bytes from 1 to {SIZE_BYTES_MAX}, or two, such as 64,1000")]
pub struct RrSizeError(String);

impl FromStr for RrSize {
    type Err = RrSizeError;

    fn from_str(text: &str) -> Result<RrSize, RrSizeError> {
        let size = |part: &str| {
            part.trim()
                .parse::<u32>()
                .ok()
                .filter(|n| (1..=SIZE_BYTES_MAX).contains(n))
                .ok_or_else(|| RrSizeError(text.to_string()))
        };
        let (request, response) = text.split_once(',').unwrap_or((text, text));
        Ok(RrSize { request_bytes: size(request)?, response_bytes: size(response)? })
    }
}

text_serde!(RrSize);

/// A probe with its parameters, as a plan's `[[trials]]` block or a command's flags give them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "probe", rename_all = "lowercase")]
pub enum ProbeSpec {
    /// See [`PingpongSpec`].
    Pingpong(PingpongSpec),
    /// See [`StreamSpec`].
    Stream(StreamSpec),
    /// See [`RrSpec`].
    Rr(RrSpec),
    /// See [`ComputeSpec`].
    Compute(ComputeSpec),
    /// See [`JitterSpec`].
    Jitter(JitterSpec),
    /// See [`ExchangeSpec`].
    Exchange(ExchangeSpec),
}

impl ProbeSpec {
    /// The kind of this probe.
    pub fn kind(&self) -> ProbeKind {
        match self {
            ProbeSpec::Pingpong(_) => ProbeKind::Pingpong,
            ProbeSpec::Stream(_) => ProbeKind::Stream,
            ProbeSpec::Rr(_) => ProbeKind::Rr,
            ProbeSpec::Compute(_) => ProbeKind::Compute,
            ProbeSpec::Jitter(_) => ProbeKind::Jitter,
            ProbeSpec::Exchange(_) => ProbeKind::Exchange,
        }
    }

    /// The stack in the keys of this probe's series over `stacks`: the name of the stacks, or the
    /// layout of the exchange with its options.
    pub fn stack_name(&self, stacks: &StackPair) -> String {
        match self {
            ProbeSpec::Exchange(spec) => spec.name(stacks.client),
            _ => stacks.to_string(),
        }
    }

    /// Whether the rounds of this probe have the figure, samples permitting.
    pub fn records(&self, metric: Metric) -> bool {
        match (self, metric) {
            (ProbeSpec::Stream(_), _) => metric == Metric::Throughput,
            (_, Metric::Throughput) => false,
            (ProbeSpec::Jitter(_), Metric::TimeLost) => true,
            (_, Metric::TimeLost) => false,
            (ProbeSpec::Compute(_) | ProbeSpec::Jitter(_), Metric::Loss) => false,
            (ProbeSpec::Jitter(_), Metric::Rate) => false,
            (_, Metric::Percentile(percentile)) => self.percentiles().contains(&percentile),
            _ => true,
        }
    }

    /// The percentiles that its rounds have, samples permitting, 0 to 100; none if it does not
    /// measure latency.
    pub fn percentiles(&self) -> Vec<f64> {
        let more: &[f64] = match self {
            ProbeSpec::Stream(_) => return vec![],
            ProbeSpec::Pingpong(spec) => &spec.percentiles,
            ProbeSpec::Rr(_)
            | ProbeSpec::Exchange(_)
            | ProbeSpec::Compute(_)
            | ProbeSpec::Jitter(_) => &[],
        };
        let others = more.iter().filter(|percentile| !PERCENTILES.contains(percentile));
        PERCENTILES.iter().chain(others).copied().collect()
    }

    /// Checks what types cannot: ranges and combinations with `protocol`.
    ///
    /// # Errors
    /// The field that is out of range.
    pub fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        match self {
            ProbeSpec::Pingpong(spec) => spec.check(protocol),
            ProbeSpec::Stream(spec) => spec.check(),
            ProbeSpec::Rr(spec) => spec.check(),
            ProbeSpec::Exchange(spec) => spec.check(),
            ProbeSpec::Compute(spec) => spec.check(),
            ProbeSpec::Jitter(spec) => spec.check(),
        }
    }

    /// The single cases of this probe, in order.
    pub fn cases(&self) -> Vec<Case> {
        match self {
            ProbeSpec::Pingpong(spec) => {
                let case = |&size_bytes| Case::of_message(size_bytes, spec.think_time_us);
                spec.sizes.iter().map(case).collect()
            }
            ProbeSpec::Stream(spec) => spec
                .patterns
                .iter()
                .map(|&pattern| Case::Flows { pattern, write_bytes: spec.write_bytes })
                .collect(),
            ProbeSpec::Rr(spec) => spec
                .sizes
                .iter()
                .map(|&size| Case::Request { size, rate_per_s: spec.rate_per_s })
                .collect(),
            ProbeSpec::Exchange(spec) => {
                let bytes = exchange::MESSAGE_BYTES;
                let size = RrSize { request_bytes: bytes, response_bytes: bytes };
                vec![Case::Request { size, rate_per_s: Some(spec.rate_per_s) }]
            }
            ProbeSpec::Compute(spec) => {
                let of_layout = |layout| {
                    spec.workloads.iter().map(move |&workload| Case::Layout { workload, layout })
                };
                spec.layouts.iter().flat_map(|&layout| of_layout(layout)).collect()
            }
            ProbeSpec::Jitter(_) => vec![Case::Total],
        }
    }

    /// How long one round of all cases measures, s, without set-up. It may take longer: the fewest
    /// samples are taken whatever their round trip is, and jobs of the processor are finished.
    pub fn duration_s(&self) -> f64 {
        match self {
            ProbeSpec::Pingpong(s) => {
                let pauses_ms = s.min_iterations.saturating_mul(s.think_time_us).div_ceil(1_000);
                let each_ms = s.max_ms.max(pauses_ms) + s.warmup_ms;
                each_ms as f64 / 1e3 * s.sizes.len() as f64
            }
            ProbeSpec::Stream(s) => (s.seconds + s.omit_ms as f64 / 1e3) * s.patterns.len() as f64,
            ProbeSpec::Rr(s) => (s.seconds + s.warmup_ms as f64 / 1e3) * s.sizes.len() as f64,
            ProbeSpec::Exchange(s) => s.seconds + s.warmup_ms as f64 / 1e3,
            ProbeSpec::Compute(s) => {
                s.layouts.len() as f64 * s.workloads.len() as f64 * f64::from(s.repeats)
            }
            ProbeSpec::Jitter(s) => s.seconds,
        }
    }
}

fn check_not_empty<T>(field: &'static str, list: &[T]) -> Result<(), SpecError> {
    if list.is_empty() { Err(SpecError::Empty { field }) } else { Ok(()) }
}

impl PingpongSpec {
    /// Checks the ranges; only a datagram may be empty.
    pub(crate) fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        check_not_empty("sizes", &self.sizes)?;
        for &size in &self.sizes {
            limits::check("sizes", size, protocol.message_bytes_min()..=SIZE_BYTES_MAX)?;
        }
        limits::check_each_once("sizes", &self.sizes)?;
        limits::check("max_iterations", self.max_iterations, 1..=limits::ITERATIONS_MAX)?;
        limits::check("min_iterations", self.min_iterations, 0..=limits::ITERATIONS_MAX)?;
        limits::check_count("percentiles", self.percentiles.len(), limits::PERCENTILES_MAX)?;
        for &percentile in &self.percentiles {
            limits::check("percentiles", percentile, 0.0..=100.0)?;
        }
        limits::check("think_time_us", self.think_time_us, 0..=limits::THINK_TIME_US_MAX)?;
        let pauses_s = self.min_iterations as f64 * self.think_time_us as f64 / 1e6;
        if pauses_s > limits::SECONDS_MAX {
            let limit = format!("such that min_iterations take at most {} s", limits::SECONDS_MAX);
            return Err(SpecError::out_of_range("think_time_us", self.think_time_us, limit));
        }
        limits::check_pause_ms("warmup_ms", self.warmup_ms)?;
        limits::check_ms("max_ms", self.max_ms)?;
        limits::check_ms("timeout_ms", self.timeout_ms)
    }
}

impl StreamSpec {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        check_not_empty("patterns", &self.patterns)?;
        limits::check_each_once("patterns", &self.patterns)?;
        limits::check("write_bytes", self.write_bytes, 1..=SIZE_BYTES_MAX)?;
        for pattern in &self.patterns {
            limits::check("patterns", pattern.flows, 1..=Pattern::MAX_FLOWS)?;
            let write_bytes_max = limits::STREAM_BYTES_MAX / u64::from(pattern.flows);
            if u64::from(self.write_bytes) > write_bytes_max {
                let limit = format!("at most {write_bytes_max} in {pattern}");
                return Err(SpecError::out_of_range("write_bytes", self.write_bytes, limit));
            }
        }
        if let Some(name) = &self.congestion
            && name.len() > limits::CONGESTION_BYTES_MAX
        {
            let shown: String = name.chars().take(40).collect();
            let limit = format!("a name of at most {} bytes", limits::CONGESTION_BYTES_MAX);
            return Err(SpecError::out_of_range("congestion", shown, limit));
        }
        if let Some(bytes) = self.buffer_bytes {
            limits::check("buffer_bytes", bytes, 0..=limits::BUFFER_BYTES_MAX)?;
        }
        limits::check("max_cv_percent", self.max_cv_percent, 0.0..=limits::CV_PERCENT_MAX)?;
        limits::check_pause_ms("omit_ms", self.omit_ms)?;
        limits::check_positive("seconds", self.seconds, limits::SECONDS_MAX)
    }
}

impl RrSpec {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        check_not_empty("sizes", &self.sizes)?;
        for &RrSize { request_bytes, response_bytes } in &self.sizes {
            limits::check("sizes", request_bytes, 1..=SIZE_BYTES_MAX)?;
            limits::check("sizes", response_bytes, 1..=SIZE_BYTES_MAX)?;
        }
        limits::check_each_once("sizes", &self.sizes)?;
        limits::check_pause_ms("warmup_ms", self.warmup_ms)?;
        limits::check_ms("deadline_ms", self.deadline_ms)?;
        limits::check_positive("seconds", self.seconds, limits::SECONDS_MAX)?;
        let Some(rate_per_s) = self.rate_per_s else { return Ok(()) };
        limits::check_positive("rate_per_s", rate_per_s, limits::RATE_PER_S_MAX)?;
        limits::check_requests(self.seconds, self.warmup_ms, rate_per_s)
    }
}

/// One point of a probe's sweep: what a single agent task measures.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "case", rename_all = "lowercase")]
pub enum Case {
    /// A ping-pong message.
    Message {
        /// Bytes of the message.
        size_bytes: u32,
    },
    /// A ping-pong message after a pause.
    Paced {
        /// Bytes of the message.
        size_bytes: u32,
        /// The pause before it, µs.
        think_time_us: u64,
    },
    /// Flows of a stream.
    Flows {
        /// Number and direction.
        pattern: Pattern,
        /// Bytes of one write.
        write_bytes: u32,
    },
    /// A request and its response.
    Request {
        /// Bytes of both.
        size: RrSize,
        /// Requests a second; closed loop if absent.
        rate_per_s: Option<f64>,
    },
    /// Work of the processor in a layout of threads.
    Layout {
        /// What the threads do.
        workload: Workload,
        /// How many, and where.
        layout: Layout,
    },
    /// A run without a sweep, such as the total of a published throughput table.
    #[serde(rename = "whole")]
    Total,
}

impl Case {
    /// The case of a ping-pong message, with the pause before it, if there is one.
    pub(crate) fn of_message(size_bytes: u32, think_time_us: u64) -> Case {
        match think_time_us {
            0 => Case::Message { size_bytes },
            think_time_us => Case::Paced { size_bytes, think_time_us },
        }
    }

    /// Message or request size in bytes, where the case has one.
    pub fn size_bytes(&self) -> Option<u32> {
        match self {
            Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => Some(*size_bytes),
            Case::Request { size, .. } => Some(size.request_bytes),
            Case::Flows { .. } | Case::Layout { .. } | Case::Total => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Case::Message { size_bytes } => format!("{size_bytes} B"),
            Case::Paced { size_bytes, think_time_us } => {
                format!("{size_bytes} B, think time {think_time_us} us")
            }
            Case::Flows { pattern, write_bytes } => format!("{pattern}, {write_bytes} B writes"),
            Case::Request { size, rate_per_s: Some(rate) } => format!("{size} B at {rate}/s"),
            Case::Request { size, rate_per_s: None } => format!("{size} B closed loop"),
            Case::Layout { workload, layout } => format!("{workload} {layout}"),
            Case::Total => "whole".to_string(),
        };
        f.pad(&text)
    }
}

/// Reads what [`fmt::Display`] writes.
impl FromStr for Case {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Case, UnknownWord> {
        let known =
            ["64 B", "1-uni-1, 131072 B writes", "64 B at 1000/s", "64 B closed loop", "pi 2xN"];
        let case = || {
            if text == "whole" {
                return Some(Case::Total);
            }
            if let Some(rest) = text.strip_suffix(" B writes") {
                let (pattern, write_bytes) = rest.split_once(", ")?;
                let pattern = pattern.parse().ok()?;
                return Some(Case::Flows { pattern, write_bytes: write_bytes.parse().ok()? });
            }
            if let Some((size, pause)) = text.split_once(" B, think time ") {
                let think_time_us = pause.strip_suffix(" us")?.parse().ok()?;
                return Some(Case::Paced { size_bytes: size.parse().ok()?, think_time_us });
            }
            if let Some(size) = text.strip_suffix(" B closed loop") {
                return Some(Case::Request { size: size.parse().ok()?, rate_per_s: None });
            }
            if let Some((workload, layout)) = text.split_once(' ')
                && let (Ok(workload), Ok(layout)) = (workload.parse(), layout.parse())
            {
                return Some(Case::Layout { workload, layout });
            }
            if let Some((size, rate)) = text.split_once(" B at ") {
                let rate: f64 = rate.strip_suffix("/s")?.parse().ok()?;
                let rate = Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)?;
                return Some(Case::Request { size: size.parse().ok()?, rate_per_s: Some(rate) });
            }
            Some(Case::Message { size_bytes: text.strip_suffix(" B")?.parse().ok()? })
        };
        case().ok_or_else(|| UnknownWord::new("case", text, &known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_read_back_and_odd_bidirectional_ones_are_refused() {
        for text in ["1-uni-1", "2-uni-2", "2-bi-2", "8-bi-8"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in ["0-uni-0", "3-bi-3", "2-uni-3", "2-up-2", "999-uni-999", "x"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        let pattern: Pattern = "2-bi-2".parse().unwrap();
        assert_eq!((pattern.sender(0), pattern.sender(1)), (Side::Client, Side::Server));
    }

    #[test]
    fn numbers_and_names_beyond_the_limits_are_refused_with_their_field() {
        let stream = |spec: StreamSpec| spec.check().unwrap_err().to_string();
        let default = StreamSpec::default();
        assert_eq!(default.check(), Ok(()));
        let pattern = Pattern { flows: 256, bidirectional: false };
        let large =
            StreamSpec { patterns: vec![pattern], write_bytes: 16 << 20, ..default.clone() };
        assert_eq!(
            stream(large),
            "write_bytes is 16777216, must be at most 4194304 in 256-uni-256"
        );
        let name = StreamSpec { congestion: Some("x".repeat(16)), ..default.clone() };
        assert!(stream(name).starts_with("congestion is xxxxxxxxxxxxxxxx, must be a name of"));
        let buffer = StreamSpec { buffer_bytes: Some(u32::MAX), ..default.clone() };
        assert_eq!(stream(buffer), "buffer_bytes is 4294967295, must be 0 to 1073741824");
        let omit = StreamSpec { omit_ms: 86_400_001, ..default };
        assert_eq!(stream(omit), "omit_ms is 86400001, must be 0 to 86400000");
        let pingpong = |spec: PingpongSpec| spec.check(Protocol::Tcp).unwrap_err().to_string();
        let warmup = PingpongSpec { warmup_ms: u64::MAX, ..PingpongSpec::default() };
        assert!(pingpong(warmup).starts_with("warmup_ms is 18446744073709551615, must be 0 to"));
        let percentiles = PingpongSpec { percentiles: vec![1.0; 101], ..PingpongSpec::default() };
        assert_eq!(pingpong(percentiles), "percentiles has 101 values, must have at most 100");
        let think = |min_iterations, think_time_us| PingpongSpec {
            min_iterations,
            think_time_us,
            ..PingpongSpec::default()
        };
        assert!(pingpong(think(1, 1_000_001)).ends_with("1000001, must be 0 to 1000000"));
        assert!(pingpong(think(100_000, 1_000_000)).contains("min_iterations take at most 86400"));
        assert_eq!(ProbeSpec::Pingpong(think(100, 1_000_000)).duration_s(), 17.0 * 100.1);
    }

    #[test]
    fn request_sizes_read_back() {
        for text in ["64", "1,100000"] {
            assert_eq!(text.parse::<RrSize>().unwrap().to_string(), text);
        }
        assert!("0".parse::<RrSize>().is_err());
        assert!("99999999999".parse::<RrSize>().is_err());
    }

    #[test]
    fn cases_read_back() {
        let size = RrSize { request_bytes: 1, response_bytes: 100_000 };
        for case in [
            Case::Message { size_bytes: 64 },
            Case::Paced { size_bytes: 64, think_time_us: 1000 },
            Case::Flows { pattern: "2-bi-2".parse().unwrap(), write_bytes: 16_384 },
            Case::Request { size, rate_per_s: Some(1000.0) },
            Case::Request { size, rate_per_s: Some(0.25) },
            Case::Request { size, rate_per_s: None },
            Case::Layout { workload: Workload::Pi, layout: "2xN".parse().unwrap() },
            Case::Total,
        ] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in ["", "64", "-1 B", "3-bi-3, 1 B writes", "64 B at x/s", "0 B closed loop"] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_of_zero_is_a_closed_loop_and_no_rate_is_the_default() {
        let rate = |text: &str| serde_json::from_str::<RrSpec>(text).unwrap().rate_per_s;
        assert_eq!(rate(r#"{"rate_per_s": 0}"#), None);
        assert_eq!(rate(r#"{"rate_per_s": null}"#), None);
        assert_eq!(rate(r#"{"rate_per_s": 50}"#), Some(50.0));
        assert_eq!(rate("{}"), Some(1000.0));
    }
}
