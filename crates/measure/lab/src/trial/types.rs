//! Options and results of trials.

use nm_model::agent::TaskReport;
use nm_model::result::{Round, Statistic};
use nm_model::setting::Settings;
use nm_model::stack::Comparability;
use nm_model::{Case, Failure, ProbeKind, SeriesKey, StackPair};
use nm_sys::clock::Moment;

use crate::affinity::Affinity;
use crate::pair::Pair;

/// Options of all trials of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// CPUs of the measuring threads; chosen if absent.
    pub affinity: Option<Affinity>,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether all samples are returned beside the histogram.
    pub raw_samples: bool,
    /// Start of the run.
    pub started: Moment,
}

impl Options {
    /// The defaults, for a run that starts now.
    pub fn new(seed: u64) -> Options {
        Options { affinity: None, seed, raw_samples: false, started: Moment::now() }
    }
}

/// A current estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The case that runs.
    pub case: Case,
    /// Its number, counted from 0.
    pub index: usize,
    /// How many cases the trial has.
    pub cases: usize,
    /// What the value is.
    pub statistic: Statistic,
    /// ns, or Gb/s for throughput.
    pub value: f64,
}

/// One round of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Its series.
    pub key: SeriesKey,
    /// What must agree for a like-for-like comparison.
    pub comparability: Comparability,
    /// Settings that explain the figure.
    pub settings: Settings,
    /// The figures.
    pub round: Round,
    /// All samples in ns (saturated), if requested.
    pub samples: Option<Vec<u32>>,
}

/// Result of a trial.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The rounds, case by case.
    pub measured: Vec<Measured>,
    /// Cases that cannot be measured, with the reason as a clause.
    pub skipped: Vec<(Case, String)>,
    /// When the first case had ended with a result.
    pub first_result: Option<Moment>,
}

/// A trial that failed or was cancelled, with what was measured before.
#[derive(Debug)]
pub struct Interrupted {
    /// Completed cases.
    pub completed: Outcome,
    /// The case that failed; absent if none was started.
    pub case: Option<Case>,
    /// Why it failed.
    pub failure: Failure,
}

/// The conditions under which one case was measured.
pub(crate) struct Conditions<'a> {
    pub pair: &'a Pair,
    /// Pairs between which the case was divided.
    pub pairs: u32,
    /// Those of the row.
    pub stacks: &'a StackPair,
    /// Those that the ends use for it.
    pub in_use: &'a StackPair,
    pub probe: ProbeKind,
    pub case: Case,
    pub round: u32,
    pub started_s: f64,
}

/// The report and the samples of one end.
#[derive(Default)]
pub(crate) struct EndReport {
    pub report: TaskReport,
    pub samples: Vec<(Statistic, Vec<u32>)>,
}
