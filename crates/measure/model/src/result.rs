//! Results: what was measured, with everything needed to judge, compare and draw it again.
//!
//! One [`RunResult`] is one `result.json`. Runs of other tools and published runs are read into the
//! same type, so everything that works on a result works on them.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::campaign::NotAvailable;
use crate::class::StackClass;
use crate::compute::ComputeRound;
use crate::coverage::{NotJudged, PlanPart};
use crate::doubt::Doubt;
use crate::exchange::ExchangeRound;
use crate::factor::Factor;
use crate::factor_check::FactorCheck;
use crate::facts::Facts;
use crate::finding::Audit;
use crate::gate::Gate;
use crate::guest::GuestRecord;
use crate::guest_execution::GuestExecution;
use crate::jitter::JitterRound;
use crate::link_transport::LinkTransport;
use crate::machine::MachineUse;
use crate::metric::Metric;
use crate::named_enum::named_enum;
pub use crate::percentile::PercentileValue;
use crate::plan::{Plan, PlanRow};
use crate::probe::{Case, ProbeKind, Side};
use crate::row::{EndpointId, RowId};
use crate::selector::Selector;
use crate::setting::Settings;
use crate::stack::{Comparability, StackPair};
pub use crate::statistic::Statistic;
use crate::undecided::Undecided;
use crate::verdict::{Comparison, ComparisonRow, Interval, Outcome, Verdict};

/// Version of the result format. Readers refuse a newer one and convert older ones (see
/// [`crate::v1`]).
pub const SCHEMA_VERSION: u32 = 2;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Name: result folder, reference run or imported file.
    pub name: String,
    /// Where the figures come from.
    pub source: Source,
    /// Label of the site, as the user gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Start, RFC 3339 in UTC, if known.
    #[serde(default)]
    pub started: Option<String>,
    /// Wall-clock time of the run, s.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// Whether the run is complete.
    pub state: RunState,
    /// The plan, whole, for our own runs.
    #[serde(default)]
    pub plan: Option<Plan>,
    /// The part of the plan that was run, if that is not all.
    #[serde(default)]
    pub part: Option<PlanPart>,
    /// Facts of each endpoint.
    #[serde(default, with = "facts_list")]
    #[schemars(with = "Vec<EndpointFacts>")]
    pub facts: BTreeMap<EndpointId, Facts>,
    /// What the machine that started the run did meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineUse>,
    /// Audits of the machines that it ran on, taken at its start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audits: Vec<Audit>,
    /// The virtual machines that it ran in, an environment each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestRecord>,
    /// Other things known about the run, such as a published run's description: name to text.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// The figures.
    pub series: Vec<Series>,
    /// Rows of the plan that could not run, with the reason.
    #[serde(default)]
    pub not_available: Vec<NotAvailable>,
    /// Trials that were started and failed.
    #[serde(default)]
    pub failures: Vec<TrialFailure>,
    /// Verdict of each target.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// Comparisons that the plan asked for.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// The run against the accepted runs of its machine, if it was tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Box<Gate>>,
    /// What was measured with the factors of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<FactorResult>,
    /// Targets and comparisons of the plan that were not judged, or not on all of their rows.
    #[serde(default)]
    pub not_judged: Vec<NotJudged>,
    /// Outcome of all targets together.
    pub outcome: Outcome,
    /// Why the outcome is open although targets were missed or trials failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<Undecided>,
    /// Doubts about the run.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
}

impl RunResult {
    /// A complete run without figures, facts or verdicts, for the caller to fill.
    pub fn new(name: impl Into<String>, source: Source) -> RunResult {
        RunResult {
            schema: SCHEMA_VERSION,
            name: name.into(),
            source,
            label: None,
            started: None,
            duration_s: None,
            state: RunState::Complete,
            plan: None,
            part: None,
            facts: BTreeMap::new(),
            machine: None,
            audits: vec![],
            guests: vec![],
            notes: BTreeMap::new(),
            series: vec![],
            not_available: vec![],
            failures: vec![],
            verdicts: vec![],
            comparisons: vec![],
            gate: None,
            factors: vec![],
            not_judged: vec![],
            outcome: Outcome::Inconclusive,
            undecided: None,
            doubts: vec![],
        }
    }

    /// The rows of the plan that belong to this run: all, or those of its part.
    pub fn planned_rows(&self) -> Vec<PlanRow<'_>> {
        let rows = self.plan.iter().flat_map(Plan::rows);
        let filter = self.part.as_ref().map(|part| &part.only);
        rows.filter(|row| filter.is_none_or(|filter| row.is_taken_by(filter))).collect()
    }

    /// Why a row of the plan cannot run here, if it cannot.
    pub fn unavailable_row(&self, row: &PlanRow<'_>) -> Option<&NotAvailable> {
        self.not_available.iter().find(|one| {
            one.environment == row.environment
                && one.stack == row.stacks
                && one.probe == row.probe().kind()
        })
    }

    /// What emulated the guests of a row, if they were: as one of its series says, else as the
    /// record of its environment does.
    pub fn emulation_of(&self, row: &PlanRow<'_>) -> Option<GuestExecution> {
        if !row.environment.has_guests() {
            return None;
        }
        let (environment, stack) = (row.environment.to_string(), row.stack_name());
        let is_of_row = |key: &SeriesKey| {
            key.environment == environment && key.stack == stack && key.probe == row.probe().kind()
        };
        let mut of_row = self.series.iter().filter(|one| is_of_row(&one.key)).peekable();
        let emulated = |execution: GuestExecution| execution.is_emulated().then_some(execution);
        if of_row.peek().is_some() {
            return of_row.find_map(|series| series.comparability.execution.and_then(emulated));
        }
        let guests = self.guests.iter().find(|one| one.environment == row.environment);
        guests.and_then(|record| emulated(record.execution))
    }

    /// The optional rows that were left out because they cannot run here.
    pub fn left_out_rows(&self) -> Vec<PlanRow<'_>> {
        let mut rows = self.planned_rows();
        rows.retain(|row| {
            let unavailable = self.unavailable_row(row);
            row.block.optional && unavailable.is_some_and(|one| !one.has_failed)
        });
        rows
    }
}

/// What was measured with a factor, and what it did. Series with the factor are kept here only, so
/// that no target and no comparison takes them for those of the plan's rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactorResult {
    /// The factor.
    pub factor: Factor,
    /// Series with the factor. Each has the key of the series without it.
    #[serde(default)]
    pub series: Vec<Series>,
    /// What showed in each trial that the factor was in force.
    #[serde(default)]
    pub checks: Vec<FactorCheck>,
    /// Rows for which the factor cannot be switched on here, with the reason.
    #[serde(default)]
    pub not_available: Vec<NotAvailable>,
    /// What limits the finding on this machine, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
    /// With the factor against without it, a case each.
    #[serde(default)]
    pub effects: Vec<FactorEffect>,
}

impl FactorResult {
    /// A factor that nothing was measured with yet.
    pub fn new(factor: Factor) -> FactorResult {
        FactorResult {
            factor,
            series: vec![],
            checks: vec![],
            not_available: vec![],
            notes: vec![],
            effects: vec![],
        }
    }

    /// The trials of a series in which the factor was shown to be in force, and all of them.
    pub fn shown(&self, key: &SeriesKey) -> (usize, usize) {
        let of_row = self.checks.iter().filter(|check| key.is_of_row(&check.row));
        let of_case = of_row.filter(|check| check.row.case.is_none_or(|case| case == key.case));
        let checks: Vec<&FactorCheck> = of_case.collect();
        (checks.iter().filter(|check| check.is_in_force == Some(true)).count(), checks.len())
    }
}

/// With a factor against without it, in one case of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactorEffect {
    /// The series, without the factor.
    pub key: SeriesKey,
    /// The figure that the factor is judged by: A without it, B with it.
    pub figure: ComparisonRow,
    /// Other figures, which must not become worse.
    pub guards: Vec<ComparisonRow>,
    /// Doubts about the finding.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
}

/// A trial that was started and failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrialFailure {
    /// What failed; absent if only the reason is known.
    #[serde(default)]
    pub row: Option<RowId>,
    /// Why, as one sentence.
    pub reason: String,
}

/// `round 2 of netns/tcp-spin pingpong: the peer has gone`.
impl fmt::Display for TrialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.row {
            Some(row) => write!(f, "{row}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// The facts of one endpoint, as a result lists them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct EndpointFacts {
    /// Which endpoint.
    endpoint: EndpointId,
    /// Its facts.
    facts: Facts,
}

/// JSON has no maps with structured keys, so facts are written as a list.
mod facts_list {
    use super::{BTreeMap, EndpointFacts, EndpointId, Facts};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(
        facts: &BTreeMap<EndpointId, Facts>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(facts.iter().map(|(endpoint, facts)| EndpointFacts {
            endpoint: endpoint.clone(),
            facts: facts.clone(),
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<EndpointId, Facts>, D::Error> {
        let list = Vec::<EndpointFacts>::deserialize(from)?;
        Ok(list.into_iter().map(|one| (one.endpoint, one.facts)).collect())
    }
}

named_enum!(
    /// Whether a run is complete.
    RunState, "state", {
        /// Every trial was started.
        Complete = "complete",
        /// Ended by the user, or by a failure that ends the run; completed trials are kept.
        Interrupted = "interrupted",
        /// Still running, or killed: the file was written after the last completed trial.
        Running = "running",
    }
);

/// Where figures come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// Measured by nearmetal.
    Measured {
        /// Version of nearmetal.
        version: String,
    },
    /// A published run that is built in.
    Reference {
        /// The study, such as `deftech-2019 (Define Tech, 2019)`.
        study: String,
        /// The tool that made the figures.
        tool: String,
    },
    /// Read from another tool's output.
    Imported {
        /// The tool that made the figures.
        tool: String,
    },
}

/// Identifies a series. Unique in a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesKey {
    /// Environment of the plan, or the published run's or imported file's name.
    pub environment: String,
    /// Stack pair as text, the layout of an exchange, or the name of another tool's transport.
    pub stack: String,
    /// The probe.
    pub probe: ProbeKind,
    /// The case of the probe.
    pub case: Case,
    /// What one value is.
    pub statistic: Statistic,
}

impl SeriesKey {
    /// Whether the series is one of `row`, whatever its case.
    pub fn is_of_row(&self, row: &RowId) -> bool {
        self.environment == row.environment && self.stack == row.stack && self.probe == row.probe
    }

    /// Whether both series have the same environment, stack, probe and case; they may differ in
    /// the statistic.
    pub fn is_same_case(&self, other: &SeriesKey) -> bool {
        self.environment == other.environment
            && self.stack == other.stack
            && self.probe == other.probe
            && self.case == other.case
    }

    /// The class of its stack; none if the stack is another tool's.
    pub fn class(&self) -> Option<StackClass> {
        if let Ok(stacks) = self.stack.parse::<StackPair>() {
            return Some(stacks.class());
        }
        // A layout: `2-2-2-2 unix disk-quorum`.
        let is_layout = self.probe == ProbeKind::Exchange;
        let mut words = self.stack.split(' ').skip(1);
        let transport = words.find_map(|word| word.parse::<LinkTransport>().ok());
        is_layout.then(|| transport.unwrap_or_default().stack().class())
    }

    /// `environment/stack`, for people. Code compares the fields.
    pub fn path(&self) -> String {
        format!("{}/{}", self.environment, self.stack)
    }
}

impl Selector {
    /// Whether the path of a series matches.
    pub fn matches_key(&self, key: &SeriesKey) -> bool {
        self.matches(&key.environment, &key.stack)
    }
}

impl fmt::Display for SeriesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {} {}", self.environment, self.stack, self.probe, self.case)?;
        match (self.probe, self.statistic) {
            (ProbeKind::Rr, Statistic::RoundTrip) => f.write_str(" service time"),
            (ProbeKind::Rr, Statistic::RoundTripFromIntended) => f.write_str(" from intended send"),
            _ => Ok(()),
        }
    }
}

/// All rounds of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Identifies the series.
    pub key: SeriesKey,
    /// Properties that must agree for a like-for-like comparison.
    pub comparability: Comparability,
    /// Settings that explain the figure: write size, buffers, MTU, congestion control, …
    #[serde(default)]
    pub settings: Settings,
    /// One entry a round, in the order in which they were measured.
    pub rounds: Vec<Round>,
    /// Figures over all rounds.
    #[serde(default)]
    pub estimates: Vec<Estimate>,
    /// Doubts about the series, including those of its rounds.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
}

impl Series {
    /// The estimate of `metric`, if there is one.
    pub fn estimate(&self, metric: Metric) -> Option<&Estimate> {
        self.estimates.iter().find(|e| e.metric == metric)
    }

    /// Whether it was measured in guests whose code was emulated. Such a series is shown, but
    /// neither judged nor compared.
    pub fn is_emulated(&self) -> bool {
        self.comparability.execution.is_some_and(GuestExecution::is_emulated)
    }

    /// The mark beside its figures, if it is: `EMULATED by tcg`.
    pub fn emulated_mark(&self) -> Option<String> {
        self.comparability.execution.and_then(GuestExecution::mark)
    }
}

/// One figure over all rounds of a series: the median of the rounds' values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Which figure.
    pub metric: Metric,
    /// Median over rounds, in the metric's unit.
    pub value: f64,
    /// 95 % interval by bootstrap over rounds; absent below five rounds.
    pub interval: Option<Interval>,
    /// Coefficient of variation over rounds, %; absent below two rounds.
    pub cv_percent: Option<f64>,
    /// Rounds that have this figure.
    pub rounds: u32,
}

/// One round of a series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Which round, counted from 0.
    pub round: u32,
    /// Start, s since the start of the run.
    pub started_s: f64,
    /// The figures.
    pub data: RoundData,
    /// CPUs of the hot threads and their interruptions.
    #[serde(default)]
    pub placements: Vec<Placement>,
    /// Doubts about this round.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
}

impl Round {
    /// The value of `metric` in this round, in the metric's unit.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match &self.data {
            RoundData::Latency(data) => data.value(metric),
            RoundData::Throughput(data) => match metric {
                Metric::Throughput => Some(data.total_gbps),
                _ => None,
            },
        }
    }
}

/// The figures of one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum RoundData {
    /// A distribution of latencies.
    Latency(LatencyRound),
    /// Flows.
    Throughput(ThroughputRound),
}

/// A distribution of latencies. Exact figures from all samples, and a histogram of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LatencyRound {
    /// Samples.
    pub count: Option<u64>,
    /// Messages that never came back.
    pub lost: u64,
    /// Arithmetic mean, ns.
    pub mean_ns: Option<f64>,
    /// Smallest, ns.
    pub min_ns: Option<f64>,
    /// Largest, ns.
    pub max_ns: Option<f64>,
    /// Sample standard deviation, ns.
    pub stddev_ns: Option<f64>,
    /// Mean of the slowest 10 %, ns.
    pub es10_ns: Option<f64>,
    /// Percentiles in rising order, the 50th among them.
    pub percentiles: Vec<PercentileValue>,
    /// Completed transactions a second, where the probe has a rate.
    pub rate_per_s: Option<f64>,
    /// All samples as an HdrHistogram V2 with deflate, base64; values are ns.
    pub histogram: Option<String>,
    /// The round in equal slices of time.
    pub slices: Vec<Slice>,
    /// Figures of the exchange other than latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Box<ExchangeRound>>,
    /// What interrupted the threads, of a jitter probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Box<JitterRound>>,
    /// The work of each thread, of a compute probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<Box<ComputeRound>>,
}

impl LatencyRound {
    /// The value of `metric`, in its unit.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Mean => self.mean_ns,
            Metric::Min => self.min_ns,
            Metric::Median => self.percentile(50.0),
            Metric::Max => self.max_ns,
            Metric::Stddev => self.stddev_ns,
            Metric::Percentile(p) => self.percentile(p),
            Metric::Es10 => self.es10_ns,
            Metric::Loss => {
                let sent = self.count? + self.lost;
                (sent > 0).then(|| self.lost as f64 / sent as f64)
            }
            Metric::Rate => self.rate_per_s,
            Metric::TimeLost => self.jitter.as_ref()?.time_lost(),
            Metric::Throughput => None,
        }
    }

    fn percentile(&self, percentile: f64) -> Option<f64> {
        self.percentiles.iter().find(|p| p.percentile == percentile).and_then(|p| p.value_ns)
    }
}

/// A slice of a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Start, ms since the round's first sample.
    pub start_ms: f64,
    /// Samples in it.
    pub count: u64,
    /// Median, ns.
    pub median_ns: f64,
    /// 99th percentile (the nearest rank, however few the samples), ns.
    pub p99_ns: f64,
    /// Largest, ns.
    pub max_ns: f64,
}

/// Flows of one round, counted at the receivers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThroughputRound {
    /// Sum of flows, Gb/s (1e9 bits).
    pub total_gbps: f64,
    /// Each flow.
    pub flows: Vec<Flow>,
    /// CPU time of the client process during the window, s per s (1.0 is one CPU).
    pub client_cpu: Option<f64>,
    /// CPU time of the server process during the window, s per s.
    pub server_cpu: Option<f64>,
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Number of the flow, counted from 0.
    pub index: u32,
    /// Pair of guests that carries it, counted from 1; absent if there is one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<u32>,
    /// The end that sends.
    pub sender: Side,
    /// Bytes that the receiver counted in the window.
    pub bytes: u64,
    /// Length of the receiver's window, s.
    pub seconds: f64,
    /// `bytes * 8 / seconds / 1e9`.
    pub gbps: f64,
    /// TCP segments retransmitted over the life of the flow.
    #[serde(default)]
    pub retransmits: Option<u64>,
}

/// CPU of a hot thread and its interruptions, as deltas over the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Which end.
    pub side: Side,
    /// Which thread: `pinger`, `ponger`, `sender 0`, …
    pub thread: String,
    /// CPU that it was pinned to.
    pub pinned_cpu: Option<u32>,
    /// CPU at the start.
    pub first_cpu: Option<u32>,
    /// CPU at the end.
    pub last_cpu: Option<u32>,
    /// Moves between CPUs.
    pub migrations: Option<u64>,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Voluntary context switches (blocking).
    pub voluntary_switches: u64,
    /// Time that the thread was ready but did not run, ns.
    pub run_delay_ns: Option<u64>,
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Stolen time of the pinned CPU (or of all CPUs), ms, in the kernel's 10 ms steps.
    pub steal_ms: Option<u64>,
    /// Time that the pinned CPU spent on anything but this thread and idling, as a share of the
    /// measurement, if known.
    #[serde(default)]
    pub foreign_busy: Option<f64>,
}
