//! Watching a machine: small trials for weeks, what they found, and what happened meanwhile.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::FigureKey;
use crate::metric::Quantity;

/// The fact that changes when a host is started again.
pub const BOOT: &str = "start of the system";

/// One trial, as the log has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchTrial {
    /// Its start, seconds since 1970 in UTC.
    pub at_s: i64,
    /// What it cost.
    pub cost: WatchCost,
    /// Digest of the plan, if it was run.
    pub plan: Option<String>,
    /// Its figures; none of a trial that failed.
    pub figures: Vec<WatchFigure>,
    /// Why it has no figures.
    pub failure: Option<String>,
    /// Facts of the hosts, where they are others than in the record before.
    pub facts: Option<BTreeMap<String, String>>,
}

/// A figure of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchFigure {
    /// What it is of.
    pub key: FigureKey,
    /// Median of the trial's rounds, in the unit of the metric.
    pub value: f64,
}

/// What watching cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchCost {
    /// CPU time of the watcher itself since the trial before, ns.
    pub own_cpu_ns: u64,
    /// Time since the trial before, ns.
    pub between_ns: u64,
    /// CPU time of the trial, ns.
    pub trial_cpu_ns: u64,
}

impl WatchCost {
    /// The watcher's own share of one CPU between trials.
    pub fn share(&self) -> Option<f64> {
        (self.between_ns > 0).then(|| self.own_cpu_ns as f64 / self.between_ns as f64)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: WatchCost) -> WatchCost {
        WatchCost {
            own_cpu_ns: self.own_cpu_ns.saturating_add(other.own_cpu_ns),
            between_ns: self.between_ns.saturating_add(other.between_ns),
            trial_cpu_ns: self.trial_cpu_ns.saturating_add(other.trial_cpu_ns),
        }
    }
}

/// What a folder of trials shows.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WatchReport {
    /// The plan, as it was named.
    pub plan: String,
    /// Time from trial to trial, s.
    pub every_s: u64,
    /// Trials in the folder.
    pub n_trials: usize,
    /// Trials that failed.
    pub n_failed: usize,
    /// Start of the last trial, seconds since 1970 in UTC.
    pub last_s: Option<i64>,
    /// What all trials cost together.
    pub cost: WatchCost,
    /// The figures over time.
    pub lines: Vec<WatchLine>,
    /// Changes of level, oldest first.
    pub changes: Vec<WatchChange>,
    /// What else happened, oldest first.
    pub events: Vec<WatchEvent>,
}

/// One figure over time.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WatchLine {
    /// What it is of.
    pub figure: FigureKey,
    /// Trials since the last change of level.
    pub n_known: usize,
    /// Trials after which a change can be found.
    pub n_needed: usize,
    /// Median since then.
    pub level: Option<f64>,
    /// The smallest ratio by which the figure may grow and be noticed within five trials, in 95 of
    /// 100 draws from its own values; absent while too few are known.
    pub found_ratio: Option<f64>,
    /// Time of each trial and its value.
    pub points: Vec<(i64, f64)>,
}

/// A change of level.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WatchChange {
    /// Start of the first trial of the new level, seconds since 1970 in UTC.
    pub since_s: i64,
    /// Start of the trial that showed it.
    pub found_s: i64,
    /// The figure.
    pub figure: FigureKey,
    /// Trials since the change when it was found.
    pub n_trials: usize,
    /// Level before, in the unit of the metric.
    pub before: f64,
    /// Level after.
    pub after: f64,
    /// Events between the last trial of the old level and the first one of the new level.
    pub events: Vec<String>,
}

impl WatchChange {
    /// The level after as a ratio to that before.
    pub fn ratio(&self) -> f64 {
        self.after / self.before
    }

    /// Whether it is one for the worse.
    pub fn is_worse(&self) -> bool {
        (self.ratio() > 1.0) == (self.figure.metric.quantity() != Quantity::Throughput)
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WatchEvent {
    /// Start of the trial that noticed it, seconds since 1970 in UTC.
    pub at_s: i64,
    /// A sentence without a full stop.
    pub what: String,
}
