//! `nearmetal pingpong`: the client of the stand-alone ping-pong.

use anyhow::Result;
use nm_model::capability::case_obstacle;
use nm_model::limits::SIZE_BYTES_MAX;
use nm_model::probe::{PINGPONG_SIZES, PingpongSpec};
use nm_model::words::UnknownWord;
use nm_model::{Case, ProbeSpec, Protocol, StackPair};
use nm_report::probes::pingpong::sfnt;
use nm_report::terminal;

use super::{standalone, targets};
use crate::cli::standalone::PingpongClientArgs;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &PingpongClientArgs) -> Result<Exit> {
    let (stack, address) = (
        standalone::required(args.stack.as_deref())?,
        standalone::required(args.address.as_ref())?,
    );
    let stacks = stacks(stack, args)?;
    let sizes = match args.sizes.is_empty() {
        false => sizes(&args.sizes, &stacks)?,
        true => default_sizes(&stacks),
    };
    let targets = &args.common.target.target;
    let probe = ProbeSpec::Pingpong(PingpongSpec {
        sizes,
        max_iterations: args.maxiter,
        min_iterations: args.miniter,
        max_ms: args.maxms,
        warmup_ms: args.warmupms,
        timeout_ms: args.timeout,
        think_time_us: 0,
        percentiles: args.percentile.iter().copied().chain(targets::percentiles(targets)).collect(),
    });
    probe.check(stacks.wire_protocol()).map_err(|error| Stop::usage(error.to_string()))?;
    let run = standalone::measure(&args.common, address, stacks, &probe, args.rounds)?;
    if args.sfnt {
        let percentile = args.percentile.first().copied().unwrap_or(99.0);
        output::text(&sfnt::text(&run.result, percentile))?;
        if !targets.is_empty() {
            output::styled(terminal::verdict_lines(&run.result, &output::style()).trim_end());
        }
        run.check_aborted()?;
    } else {
        run.show()?;
    }
    Ok(run.exit())
}

/// The sizes that the user gave. A datagram may be empty. Text and numbers out of the range are
/// answered alike.
fn sizes(texts: &[String], stacks: &StackPair) -> Result<Vec<u32>> {
    let range = stacks.wire_protocol().message_bytes_min()..=SIZE_BYTES_MAX;
    let size = |text: &String| {
        let found = text.trim().parse().ok().filter(|size| range.contains(size));
        found.ok_or_else(|| {
            Stop::usage(format!(
                "--sizes: size `{text}` must be a number of bytes from {} to {SIZE_BYTES_MAX}, \
                 such as 64,1024",
                range.start()
            ))
        })
    };
    texts.iter().map(size).collect()
}

/// sfnt-pingpong's sizes, as far as these stacks carry them; over datagrams up to 32768, without
/// the empty datagram.
fn default_sizes(stacks: &StackPair) -> Vec<u32> {
    let is_carried =
        |&size_bytes: &u32| case_obstacle(stacks, &Case::Message { size_bytes }).is_none();
    PINGPONG_SIZES.into_iter().filter(is_carried).collect()
}

/// `tcp` with the mode that the flags select, a complete stack such as `tcp-epoll-spin`, or the
/// client's and the server's with a colon between them.
fn stacks(stack: &str, args: &PingpongClientArgs) -> Result<StackPair> {
    if let Ok(protocol) = stack.parse::<Protocol>() {
        return Ok(standalone::stacks(protocol, &args.common));
    }
    if !stack.contains('-') {
        let names: Vec<&str> = Protocol::ALL.iter().map(|p| p.name()).collect();
        return Err(Stop::usage(UnknownWord::new("stack", stack, &names).to_string()));
    }
    let pair: StackPair = stack.parse().map_err(|e: UnknownWord| Stop::usage(e.to_string()))?;
    let client = pair.client;
    if client.launcher.is_some() || pair.server.launcher.is_some() {
        return Err(Stop::usage(format!(
            "put the launcher in front of nearmetal itself: `onload nearmetal pingpong {}-{} …`",
            client.protocol, client.mode
        )));
    }
    if stack.contains(':') {
        return Ok(pair);
    }
    Ok(standalone::with_server_mode(client, &args.common))
}
