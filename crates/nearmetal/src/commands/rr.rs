//! `nearmetal rr`: the client of the stand-alone request-response measurement.

use anyhow::Result;
use nm_model::ProbeSpec;
use nm_model::probe::RrSpec;

use super::standalone;
use crate::cli::standalone::RrClientArgs;
use crate::exit::{Exit, Stop};

pub fn run(args: &RrClientArgs) -> Result<Exit> {
    let address = standalone::required(args.address.as_ref())?;
    let probe = ProbeSpec::Rr(RrSpec {
        rate_per_s: (!args.closed).then_some(args.rate),
        seconds: args.seconds,
        sizes: args.sizes.clone(),
        deadline_ms: args.deadline,
        ..RrSpec::default()
    });
    let stacks = standalone::stacks(args.protocol, &args.common);
    probe.check(stacks.wire_protocol()).map_err(|error| Stop::usage(error.to_string()))?;
    let run = standalone::measure(&args.common, address, stacks, &probe, args.repeat)?;
    run.show()?;
    Ok(run.exit())
}
