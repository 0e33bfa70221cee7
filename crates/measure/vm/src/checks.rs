//! `lab plan`: what this host can run, why not the rest, and what to do about it. Files of `/proc`
//! and `/sys` are read, nothing is written, and nothing is opened for writing.

mod devices;
mod environments;
mod execution;
mod machine;
mod report;
mod software;
mod view;

use nm_model::lab_plan::LabPlan;
use nm_sys::clock::Moment;

pub use view::View;

/// What the host of `view` can run.
pub fn lab_plan(view: &View<'_>) -> LabPlan {
    let start = Moment::now();
    let nics = devices::nics(view);
    let mut checks = execution::checks(view);
    checks.extend(devices::checks(view, &nics));
    checks.extend(machine::checks(view));
    checks.extend(software::checks(view));
    let execution = execution::expected(view);
    let environments = environments::environments(&checks, &nics, &execution);
    let took_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    LabPlan { format: LabPlan::FORMAT, execution, environments, checks, took_us }
}
