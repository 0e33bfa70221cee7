//! The trials of `tune ab`: a ping-pong in blocks of four (without, with, with and without the
//! step), and the figures of each.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nm_lab::environment::{self, Environment, Setup};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::plan::EnvironmentKind;
use nm_model::probe::PingpongSpec;
use nm_model::result::{Round, RoundData};
use nm_model::{Metric, ProbeSpec, StackPair};
use nm_stats::experiment::Block;

use crate::cli::server_address::ServerAddress;
use crate::cli::tune::{AbArgs, AbEnvironment};
use crate::commands::standalone;
use crate::exit::{Exit, Stop};

/// Samples beyond a percentile below which it is not measured.
const SAMPLES_BEYOND_MIN: f64 = 10.0;

/// How long an answer may take, ms. On a machine with other work an end may stand still for
/// seconds; that is no reason to give up the whole experiment.
const ANSWER_MS_MAX: u64 = 10_000;

/// The two ends of the ping-pong.
pub enum Ends {
    /// On this host.
    Environment(Box<Environment>),
    /// On two hosts.
    Hosts(Box<Pair>),
}

impl Ends {
    /// Starts them.
    pub fn start(
        environment: AbEnvironment,
        server: Option<&ServerAddress>,
        stack: &StackPair,
    ) -> Result<Ends> {
        let kind = match environment {
            AbEnvironment::Loopback => EnvironmentKind::Loopback,
            AbEnvironment::Netns => EnvironmentKind::Netns,
        };
        Ok(match server {
            Some(address) => Ends::Hosts(Box::new(standalone::connect(address, None)?)),
            None => Ends::Environment(Box::new(environment::start(kind, &Setup::new(stack))?)),
        })
    }

    fn pair(&mut self) -> &mut Pair {
        match self {
            Ends::Environment(environment) => &mut environment.pair,
            Ends::Hosts(pair) => pair,
        }
    }
}

/// The ping-pong of all rounds.
pub fn probe(args: &AbArgs) -> Result<ProbeSpec> {
    let chosen = match args.percentile {
        Metric::Percentile(percentile) => vec![percentile],
        Metric::Median => vec![],
        other => {
            let message =
                format!("--percentile {other}: choose a percentile such as p99, or median");
            return Err(Stop::usage(message));
        }
    };
    let probe = ProbeSpec::Pingpong(PingpongSpec {
        sizes: vec![args.size],
        max_ms: args.ms,
        warmup_ms: args.ms / 10,
        timeout_ms: ANSWER_MS_MAX,
        percentiles: chosen,
        ..PingpongSpec::default()
    });
    probe.check(args.stack.wire_protocol()).map_err(|error| Stop::usage(error.to_string()))?;
    Ok(probe)
}

/// The values of one figure in all rounds.
pub struct Values {
    /// The figure.
    pub metric: Metric,
    /// Its values, block by block.
    pub blocks: Vec<Block>,
}

/// All rounds of an experiment.
pub struct Rounds {
    /// The chosen figure first, then the guards.
    pub figures: Vec<Values>,
}

impl Rounds {
    /// No rounds yet.
    pub fn new(chosen: Metric) -> Rounds {
        let guards = [Metric::Median, Metric::Percentile(99.9), Metric::Loss];
        let all = std::iter::once(chosen).chain(guards.into_iter().filter(|one| *one != chosen));
        let values = |metric| Values { metric, blocks: vec![] };
        Rounds { figures: all.map(values).collect() }
    }

    /// Begins the next block.
    pub fn begin_block(&mut self) {
        for figure in &mut self.figures {
            figure.blocks.push(Block::default());
        }
    }

    fn add(&mut self, round: &Round, is_with: bool) {
        for Values { metric, blocks } in &mut self.figures {
            let (Some(value), Some(block)) = (value(round, *metric), blocks.last_mut()) else {
                continue;
            };
            if is_with { block.with.push(value) } else { block.without.push(value) }
        }
    }
}

/// The value of a figure, if enough samples lie beyond it.
fn value(round: &Round, metric: Metric) -> Option<f64> {
    let RoundData::Latency(data) = &round.data else { return None };
    if let Metric::Percentile(percentile) = metric {
        let beyond = data.count? as f64 * (1.0 - percentile / 100.0);
        if beyond < SAMPLES_BEYOND_MIN {
            return None;
        }
    }
    round.value(metric)
}

/// Runs one trial and adds its figures; false after Ctrl-C.
pub fn trial(
    ends: &mut Ends,
    (stack, probe): (&StackPair, &ProbeSpec),
    rounds: &mut Rounds,
    (number, is_with): (u32, bool),
    interrupted: &AtomicBool,
) -> Result<bool> {
    if interrupted.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let options = Options::new(u64::from(number));
    match trial::run(ends.pair(), stack, probe, number, &options, &mut |_| {}, interrupted) {
        Ok(outcome) => {
            if let Some((_, reason)) = outcome.skipped.first() {
                return Err(Stop::with(Exit::Environment, format!("not available: {reason}")));
            }
            for measured in &outcome.measured {
                rounds.add(&measured.round, is_with);
            }
            Ok(true)
        }
        Err(_) if interrupted.load(Ordering::Relaxed) => Ok(false),
        Err(ended) => Err(ended.failure.into()),
    }
}
