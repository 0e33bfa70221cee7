//! `nearmetal compute`: jobs of the processor in layouts of threads.

use anyhow::Result;
use nm_model::ProbeSpec;
use nm_model::compute::ComputeSpec;

use super::cpus::not_usable;
use super::machine::MachineRun;
use crate::cli::compute::ComputeRunArgs;
use crate::exit::{Exit, Stop};

pub fn run(args: &ComputeRunArgs) -> Result<Exit> {
    // The repeats are rounds, so that all layouts take turns and figures have intervals.
    let probe = ProbeSpec::Compute(ComputeSpec {
        workloads: args.workload.clone(),
        layouts: args.layout.clone(),
        repeats: 1,
        cpus: args.cpus.list(),
    });
    probe.check(nm_model::Protocol::Cpu).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(list) = &args.cpus.cpus {
        not_usable(&list.0)?;
    }
    let run = MachineRun {
        targets: &args.target.target,
        out: args.out.out.as_deref(),
        show: &args.show,
        rounds: args.repeats,
    };
    let run = run.measure(&probe)?;
    run.show()?;
    Ok(run.exit())
}
