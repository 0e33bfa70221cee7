//! A baseline: the primary figures of an accepted run, small enough to be kept beside the code.
//!
//! A gate tests a new run against the baselines of its machine (see [`crate::gate`]).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::doubt::DoubtKind;
use crate::metric::{Metric, Quantity};
use crate::probe::ProbeKind;
use crate::stack::{Comparability, Difference};
use crate::statistic::Statistic;
use crate::verdict::Outcome;

/// Version of the format. Readers refuse another one.
pub const SCHEMA_VERSION: u32 = 1;

/// Most bytes of a baseline as a file.
pub const BYTES_MAX: u64 = 100_000;

/// The primary figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Baseline {
    /// [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Name of the run.
    pub name: String,
    /// Start of the run, RFC 3339 in UTC, if known.
    pub started: Option<String>,
    /// Version of nearmetal that measured it, if it did.
    pub nearmetal_version: Option<String>,
    /// The plan, if there was one.
    pub plan: Option<PlanIdentity>,
    /// The machine.
    pub machine: MachineIdentity,
    /// Kernels of its ends, which may change on one machine.
    pub kernels: Vec<String>,
    /// Outcome of the run's targets.
    pub outcome: Outcome,
    /// Whether the run came to its end.
    pub is_complete: bool,
    /// Doubts about the run and its primary series.
    pub doubts: Vec<DoubtKind>,
    /// The primary figures.
    pub figures: Vec<BaselineFigure>,
}

/// Which plan a run followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanIdentity {
    /// Its name.
    pub name: String,
    /// First 16 digits of the SHA-256 of its content without the number of rounds, hexadecimal.
    pub hash: String,
}

/// What tells one machine from another one, as far as it is known. Runs of different machines make
/// no series.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineIdentity {
    /// Label of the site. Machines with one label may have different host names.
    pub label: Option<String>,
    /// Host names of the ends.
    pub hosts: Vec<String>,
    /// Models and numbers of CPUs.
    pub cpus: Vec<String>,
    /// Hypervisors below them.
    pub hypervisors: Vec<String>,
}

impl MachineIdentity {
    /// In what two machines differ; nothing for one and the same.
    pub fn differences(&self, other: &MachineIdentity) -> Vec<Difference> {
        let has_label = self.label.is_some() && self.label == other.label;
        let label = |one: &MachineIdentity| one.label.clone().unwrap_or_else(|| "none".to_string());
        let hosts = |one: &MachineIdentity| match has_label {
            true => String::new(),
            false => joined(&one.hosts),
        };
        [
            ("label", label(self), label(other)),
            ("host", hosts(self), hosts(other)),
            ("CPU", joined(&self.cpus), joined(&other.cpus)),
            ("hypervisor", joined(&self.hypervisors), joined(&other.hypervisors)),
        ]
        .into_iter()
        .filter(|(_, a, b)| a != b)
        .map(|(field, a, b)| Difference { field: field.to_string(), a, b })
        .collect()
    }
}

/// `rack 7`, `host-1 and host-2`, `a machine that is not known`.
impl fmt::Display for MachineIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.label, self.hosts.is_empty()) {
            (Some(label), _) => f.write_str(label),
            (None, false) => f.write_str(&self.hosts.join(" and ")),
            (None, true) => f.write_str("a machine that is not known"),
        }
    }
}

fn joined(values: &[String]) -> String {
    if values.is_empty() { "unknown".to_string() } else { values.join(" and ") }
}

/// What a figure is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureKey {
    /// Environment.
    pub environment: String,
    /// Stack pair.
    pub stack: String,
    /// Probe.
    pub probe: ProbeKind,
    /// What one value is.
    pub statistic: Statistic,
    /// The cases that it is over: `64 B`, `over 1..1024 B`.
    pub cases: String,
    /// The figure.
    pub metric: Metric,
}

impl FigureKey {
    /// `netns/tcp-spin pingpong over 1..1024 B`.
    pub fn place(&self) -> String {
        format!("{}/{} {} {}", self.environment, self.stack, self.probe, self.cases)
    }
}

/// `p99 of netns/tcp-spin pingpong over 1..1024 B`.
impl fmt::Display for FigureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.metric, self.place())
    }
}

/// One primary figure of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BaselineFigure {
    /// What it is of.
    pub key: FigureKey,
    /// Unit of the values: `ns`, `Gb/s`, `1/s`, or `1` for a share.
    pub unit: String,
    /// Properties that must agree for a like-for-like comparison.
    pub comparability: Comparability,
    /// Fewest samples behind a round's value, if they were counted.
    pub samples_min: Option<u64>,
    /// Value of each round, the geometric mean over the cases; six significant digits.
    pub rounds: Vec<f64>,
}

/// The unit of the values of a metric.
pub fn unit(metric: Metric) -> &'static str {
    match metric.quantity() {
        Quantity::Latency => "ns",
        Quantity::Throughput => "Gb/s",
        Quantity::Rate => "1/s",
        Quantity::Ratio => "1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(label: Option<&str>, host: &str, cpu: &str) -> MachineIdentity {
        MachineIdentity {
            label: label.map(String::from),
            hosts: vec![host.to_string()],
            cpus: vec![cpu.to_string()],
            hypervisors: vec![],
        }
    }

    #[test]
    fn a_shared_label_makes_host_names_irrelevant() {
        let fields = |a: MachineIdentity, b: MachineIdentity| -> Vec<String> {
            a.differences(&b).into_iter().map(|found| found.field).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(fields(machine(Some("ci"), "a", "x"), machine(Some("ci"), "b", "x")), none);
        assert_eq!(fields(machine(None, "a", "x"), machine(None, "b", "x")), ["host"]);
        assert_eq!(fields(machine(Some("ci"), "a", "x"), machine(Some("ci"), "a", "y")), ["CPU"]);
        assert_eq!(fields(machine(Some("ci"), "a", "x"), machine(None, "a", "x")), ["label"]);
    }
}
