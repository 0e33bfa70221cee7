//! `nearmetal stream`: the client of the stand-alone throughput measurement.

use anyhow::Result;
use nm_model::ProbeSpec;
use nm_model::probe::StreamSpec;

use super::standalone;
use crate::cli::standalone::StreamClientArgs;
use crate::exit::{Exit, Stop};

pub fn run(args: &StreamClientArgs) -> Result<Exit> {
    let address = standalone::required(args.address.as_ref())?;
    let by_preset = args.preset.map(|preset| preset.write_bytes());
    let defaults = StreamSpec::default();
    let probe = ProbeSpec::Stream(StreamSpec {
        patterns: args.pattern.clone(),
        seconds: args.seconds,
        omit_ms: args.omit,
        write_bytes: args.write.or(by_preset).unwrap_or(defaults.write_bytes),
        congestion: args.congestion.clone(),
        buffer_bytes: args.buffer,
        preset: args.preset,
        max_cv_percent: args.max_cv,
    });
    let stacks = standalone::stacks(args.protocol, &args.common);
    probe.check(stacks.wire_protocol()).map_err(|error| Stop::usage(error.to_string()))?;
    let run = standalone::measure(&args.common, address, stacks, &probe, args.repeat)?;
    run.show()?;
    Ok(run.exit())
}
