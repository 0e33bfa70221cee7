//! The jitter probe: how long threads that spin are interrupted, and by what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SpecError};

/// Interruptions of threads that do nothing but read the clock, one on each CPU, all at the same
/// time. A gap is the time between two readings where it is at least the threshold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JitterSpec {
    /// Measuring time, s.
    pub seconds: f64,
    /// Shortest time between two readings that counts as a gap, ns; chosen from the smallest step
    /// of the clock if absent.
    pub threshold_ns: Option<u64>,
    /// CPUs to measure; all that the process may use if empty.
    pub cpus: Vec<u32>,
}

impl Default for JitterSpec {
    fn default() -> JitterSpec {
        JitterSpec { seconds: 5.0, threshold_ns: None, cpus: vec![] }
    }
}

impl JitterSpec {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        limits::check_positive("seconds", self.seconds, limits::JITTER_SECONDS_MAX)?;
        if let Some(threshold_ns) = self.threshold_ns {
            limits::check("threshold_ns", threshold_ns, 1..=limits::JITTER_THRESHOLD_NS_MAX)?;
        }
        limits::check_count("cpus", self.cpus.len(), limits::CPUS_MAX)
    }
}

/// What interrupted the threads of one round; the lengths of the gaps are the round's latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JitterRound {
    /// Shortest gap that was counted, ns.
    pub threshold_ns: u64,
    /// Measuring time, s.
    pub window_s: f64,
    /// Each CPU that was measured.
    pub cpus: Vec<CpuJitter>,
}

impl JitterRound {
    /// Largest share of its time that a CPU's thread lost, 0 to 1.
    pub fn time_lost(&self) -> Option<f64> {
        let window_ns = self.window_s * 1e9;
        let shares = self.cpus.iter().map(|cpu| cpu.lost_ns as f64 / window_ns);
        shares.filter(|share| share.is_finite()).max_by(f64::total_cmp)
    }
}

/// What the thread on one CPU lost, and to what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuJitter {
    /// Which CPU.
    pub cpu: u32,
    /// Number of gaps.
    pub gaps: u64,
    /// Sum of the gaps, ns.
    pub lost_ns: u64,
    /// Longest gap, ns.
    pub longest_ns: u64,
    /// Gaps in which the kernel ran another thread; absent where that cannot be seen.
    pub preempted_gaps: Option<u64>,
    /// Sum of these gaps, ns.
    pub preempted_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_limits_are_refused_with_their_field() {
        let field = |spec: JitterSpec| spec.check().unwrap_err().field();
        assert_eq!(JitterSpec::default().check(), Ok(()));
        assert_eq!(field(JitterSpec { seconds: 1e9, ..Default::default() }), "seconds");
        assert_eq!(field(JitterSpec { seconds: f64::NAN, ..Default::default() }), "seconds");
        assert_eq!(
            field(JitterSpec { threshold_ns: Some(0), ..Default::default() }),
            "threshold_ns"
        );
        assert_eq!(field(JitterSpec { cpus: vec![0; 1_025], ..Default::default() }), "cpus");
    }

    #[test]
    fn the_worst_cpu_is_the_time_lost() {
        let cpu = |lost_ns| CpuJitter { lost_ns, ..Default::default() };
        let round = JitterRound {
            window_s: 2.0,
            cpus: vec![cpu(1_000_000_000), cpu(500_000_000)],
            ..Default::default()
        };
        assert_eq!(round.time_lost(), Some(0.5));
        assert_eq!(JitterRound::default().time_lost(), None);
    }
}
