//! `nearmetal jitter`: how long threads that spin are interrupted, and by what.

use anyhow::Result;
use nm_model::jitter::JitterSpec;
use nm_model::{ProbeSpec, Protocol};

use super::cpus::not_usable;
use super::machine::MachineRun;
use super::targets;
use crate::cli::jitter::JitterArgs;
use crate::exit::{Exit, Stop};

pub fn run(args: &JitterArgs) -> Result<Exit> {
    let probe = ProbeSpec::Jitter(JitterSpec {
        seconds: args.seconds,
        threshold_ns: args.threshold,
        cpus: args.cpus.list(),
        trace: !args.no_trace,
    });
    probe.check(Protocol::Cpu).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(list) = &args.cpus.cpus {
        not_usable(&list.0)?;
    }
    let by_target = if args.target.target.is_empty() { 1 } else { targets::ROUNDS };
    let run = MachineRun {
        targets: &args.target.target,
        out: args.out.out.as_deref(),
        show: &args.show,
        rounds: args.rounds.unwrap_or(by_target),
    };
    let run = run.measure(&probe)?;
    run.show()?;
    Ok(run.exit())
}
