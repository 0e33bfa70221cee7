//! What each probe tells of itself: its cases, its figures, and what an agent is asked to do.

use crate::limits::SpecError;
use crate::metric::{Metric, PERCENTILES};
use crate::probe::case::Case;
use crate::stack::{Protocol, StackPair};

/// The specification of a probe, as a plan or a command's flags give it.
pub(crate) trait Probe: Sized {
    /// What an agent is asked to do for one case.
    type Work;

    /// Whether both ends exchange bytes over a stack. The other probes measure the client's
    /// machine alone.
    const USES_NETWORK: bool = true;

    /// Fills in what follows from other parameters and is not among those that were `given`.
    fn completed(self, given: &[String]) -> Self {
        let _ = given;
        self
    }

    /// Checks what types cannot: ranges and combinations with `protocol`.
    fn check(&self, protocol: Protocol) -> Result<(), SpecError>;

    /// The single cases, in order.
    fn cases(&self) -> Vec<Case>;

    /// What an agent is asked to do for a case; none if the case is another probe's.
    fn work(&self, case: Case) -> Option<Self::Work>;

    /// How long one round of all cases measures, s, without set-up.
    fn duration_s(&self) -> f64;

    /// Whether its rounds have the figure, samples permitting.
    fn records(&self, metric: Metric) -> bool {
        records_latency(metric, &self.percentiles())
    }

    /// The percentiles that its rounds have, samples permitting, 0 to 100.
    fn percentiles(&self) -> Vec<f64> {
        PERCENTILES.to_vec()
    }

    /// The stack in the keys of its series.
    fn stack_name(&self, stacks: &StackPair) -> String {
        stacks.to_string()
    }
}

/// Whether the rounds of a probe of latencies have the figure.
pub(crate) fn records_latency(metric: Metric, percentiles: &[f64]) -> bool {
    match metric {
        Metric::Throughput | Metric::TimeLost => false,
        Metric::Percentile(percentile) => percentiles.contains(&percentile),
        _ => true,
    }
}

/// What an agent is asked to do for one case, with parameters of its own.
pub(crate) trait OneCase {
    /// The case that it measures.
    fn case(&self) -> Case;

    /// Checks the ranges, and combinations with `protocol`.
    fn check(&self, protocol: Protocol) -> Result<(), SpecError>;
}
