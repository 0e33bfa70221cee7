//! Jitter: what interrupts the client's threads. A case has no parameter that a sweep would vary,
//! so its work is the specification; the server has nothing to do.

use crate::jitter::JitterSpec;
use crate::limits::SpecError;
use crate::metric::Metric;
use crate::probe::case::Case;
use crate::probe::definition::{OneCase, Probe, records_latency};
use crate::stack::Protocol;

impl Probe for JitterSpec {
    type Work = JitterSpec;
    const USES_NETWORK: bool = false;

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        JitterSpec::check(self)
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::Total]
    }

    fn work(&self, case: Case) -> Option<JitterSpec> {
        (case == Case::Total).then(|| self.clone())
    }

    fn duration_s(&self) -> f64 {
        self.seconds
    }

    fn records(&self, metric: Metric) -> bool {
        match metric {
            Metric::TimeLost => true,
            Metric::Loss | Metric::Rate => false,
            _ => records_latency(metric, &self.percentiles()),
        }
    }
}

impl OneCase for JitterSpec {
    fn case(&self) -> Case {
        Case::Total
    }

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        JitterSpec::check(self)
    }
}
