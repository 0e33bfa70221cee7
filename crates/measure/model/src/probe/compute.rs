//! Compute: work of the processor alone.

use serde::{Deserialize, Serialize};

use crate::compute::{ComputeSpec, Layout, Workload};
use crate::limits::{self, SpecError};
use crate::metric::Metric;
use crate::probe::case::Case;
use crate::probe::definition::{OneCase, Probe, records_latency};
use crate::stack::Protocol;

/// One workload in one layout on the client's CPUs; the server has nothing to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComputeWork {
    /// What the threads do.
    pub workload: Workload,
    /// How many, and where.
    pub layout: Layout,
    /// Jobs that each thread does.
    pub repeats: u32,
    /// CPUs to use; all that the process may use if empty.
    pub cpus: Vec<u32>,
}

impl ComputeSpec {
    /// The work of one case.
    pub fn of_layout(&self, workload: Workload, layout: Layout) -> ComputeWork {
        ComputeWork { workload, layout, repeats: self.repeats, cpus: self.cpus.clone() }
    }
}

impl Probe for ComputeSpec {
    type Work = ComputeWork;
    const USES_NETWORK: bool = false;

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        limits::check_not_empty("workloads", &self.workloads)?;
        limits::check_count("workloads", self.workloads.len(), Workload::ALL.len())?;
        limits::check_not_empty("layouts", &self.layouts)?;
        limits::check_count("layouts", self.layouts.len(), limits::COMPUTE_LAYOUTS_MAX)?;
        limits::check_each_once("workloads", &self.workloads)?;
        limits::check_each_once("layouts", &self.layouts)?;
        check_jobs(self.repeats, &self.cpus)
    }

    fn cases(&self) -> Vec<Case> {
        let of_layout =
            |layout| self.workloads.iter().map(move |&workload| Case::Layout { workload, layout });
        self.layouts.iter().flat_map(|&layout| of_layout(layout)).collect()
    }

    fn work(&self, case: Case) -> Option<ComputeWork> {
        match case {
            Case::Layout { workload, layout } => Some(self.of_layout(workload, layout)),
            _ => None,
        }
    }

    /// It may take longer: jobs are finished.
    fn duration_s(&self) -> f64 {
        self.layouts.len() as f64 * self.workloads.len() as f64 * f64::from(self.repeats)
    }

    fn records(&self, metric: Metric) -> bool {
        metric != Metric::Loss && records_latency(metric, &self.percentiles())
    }
}

fn check_jobs(repeats: u32, cpus: &[u32]) -> Result<(), SpecError> {
    limits::check("repeats", repeats, 1..=limits::COMPUTE_REPEATS_MAX)?;
    limits::check_count("cpus", cpus.len(), limits::CPUS_MAX)
}

impl OneCase for ComputeWork {
    fn case(&self) -> Case {
        Case::Layout { workload: self.workload, layout: self.layout }
    }

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        check_jobs(self.repeats, &self.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_limits_are_refused_with_their_field() {
        let field = |spec: ComputeSpec| spec.check(Protocol::Cpu).unwrap_err().field();
        let default = ComputeSpec::default();
        assert_eq!(default.check(Protocol::Cpu), Ok(()));
        assert_eq!(default.layouts.len(), 4);
        assert_eq!(field(ComputeSpec { workloads: vec![], ..default.clone() }), "workloads");
        assert_eq!(field(ComputeSpec { repeats: 1_001, ..default.clone() }), "repeats");
        let twice = ComputeSpec { layouts: vec![Layout::SOLO; 2], ..default.clone() };
        assert_eq!(twice.check(Protocol::Cpu).unwrap_err().to_string(), "layouts has 1x1 twice");
        let layouts = vec![Layout::SOLO; 33];
        assert_eq!(field(ComputeSpec { layouts, ..default }), "layouts");
    }
}
