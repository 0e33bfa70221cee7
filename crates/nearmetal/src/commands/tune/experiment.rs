//! The trials of `tune ab`: a ping-pong in blocks of four (without, with, with and without the
//! step), and the figures of each.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nm_lab::environment::{self, Environment, Setup};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::metric::PERCENTILES;
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

/// The highest percentile without which nothing is kept.
pub const TAIL_GUARD: f64 = 99.9;

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
pub fn probe(args: &AbArgs) -> Result<PingpongSpec> {
    let chosen = match args.percentile {
        Metric::Percentile(percentile) => vec![percentile],
        Metric::Median => vec![],
        other => {
            let message =
                format!("--percentile {other}: choose a percentile such as p99, or median");
            return Err(Stop::usage(message));
        }
    };
    let spec = PingpongSpec {
        sizes: vec![args.size],
        max_ms: args.ms,
        warmup_ms: args.ms / 10,
        timeout_ms: ANSWER_MS_MAX,
        percentiles: chosen,
        ..PingpongSpec::default()
    };
    let probe = ProbeSpec::Pingpong(spec.clone());
    probe.check(args.stack.wire_protocol()).map_err(|error| Stop::usage(error.to_string()))?;
    Ok(spec)
}

/// How long a round must be so that the guard p99.9 and the chosen figure are measured, ms, where
/// one of `ms` had `samples`. Half as much again, as no round is like another.
pub fn needed_ms(ms: u64, samples: u64, chosen: Metric) -> u64 {
    const MARGIN: f64 = 1.5;
    let percentile = match chosen {
        Metric::Percentile(percentile) => percentile.max(TAIL_GUARD),
        _ => TAIL_GUARD,
    };
    let needed = SAMPLES_BEYOND_MIN / (1.0 - percentile / 100.0) * MARGIN;
    let factor = needed / samples.max(1) as f64;
    if factor <= 1.0 { ms } else { (ms as f64 * factor).round() as u64 }
}

/// The longest that a round is made, ms, unless the user asks for more.
pub const LENGTHENED_MS_MAX: u64 = 10_000;

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
        let percentiles = PERCENTILES.iter().map(|percentile| match *percentile {
            50.0 => Metric::Median,
            other => Metric::Percentile(other),
        });
        let guards = percentiles.chain([Metric::Loss]).filter(|one| *one != chosen);
        let all = std::iter::once(chosen).chain(guards);
        let values = |metric| Values { metric, blocks: vec![] };
        Rounds { figures: all.map(values).collect() }
    }

    /// Leaves out percentiles beyond p99.9 that not all rounds have: their samples do not carry
    /// them. p99.9 and what lies below it must be measured.
    pub fn leave_out_beyond_samples(&mut self) {
        let n_rounds = |values: &Values| -> usize {
            values.blocks.iter().map(|block| block.with.len() + block.without.len()).sum()
        };
        let n_all = self.figures.iter().map(n_rounds).max().unwrap_or(0);
        let mut is_first = true;
        self.figures.retain(|values| {
            let is_beyond = matches!(values.metric, Metric::Percentile(p) if p > TAIL_GUARD);
            let is_chosen = std::mem::take(&mut is_first);
            is_chosen || !is_beyond || n_rounds(values) == n_all
        });
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

/// The samples of a round that is not counted; absent after Ctrl-C.
pub fn pilot(
    ends: &mut Ends,
    what: (&StackPair, &ProbeSpec),
    interrupted: &AtomicBool,
) -> Result<Option<u64>> {
    let Some(rounds) = measure(ends, what, 0, interrupted)? else { return Ok(None) };
    let samples = rounds.iter().filter_map(|round| match &round.data {
        RoundData::Latency(data) => data.count,
        RoundData::Throughput(_) => None,
    });
    Ok(Some(samples.min().unwrap_or(0)))
}

/// Runs one trial and adds its figures; false after Ctrl-C.
pub fn trial(
    ends: &mut Ends,
    what: (&StackPair, &ProbeSpec),
    rounds: &mut Rounds,
    (number, is_with): (u32, bool),
    interrupted: &AtomicBool,
) -> Result<bool> {
    let Some(measured) = measure(ends, what, number, interrupted)? else { return Ok(false) };
    measured.iter().for_each(|round| rounds.add(round, is_with));
    Ok(true)
}

/// The rounds of one trial; absent after Ctrl-C.
fn measure(
    ends: &mut Ends,
    (stack, probe): (&StackPair, &ProbeSpec),
    number: u32,
    interrupted: &AtomicBool,
) -> Result<Option<Vec<Round>>> {
    if interrupted.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let options = Options::new(u64::from(number));
    match trial::run(ends.pair(), stack, probe, number, &options, &mut |_| {}, interrupted) {
        Ok(outcome) => {
            if let Some((_, reason)) = outcome.skipped.first() {
                return Err(Stop::with(Exit::Environment, format!("not available: {reason}")));
            }
            Ok(Some(outcome.measured.into_iter().map(|one| one.round).collect()))
        }
        Err(_) if interrupted.load(Ordering::Relaxed) => Ok(None),
        Err(ended) => Err(ended.failure.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_as_long_as_their_tail_needs() {
        let p99 = Metric::Percentile(99.0);
        assert_eq!(needed_ms(1_000, 40_000, p99), 1_000, "enough samples");
        assert_eq!(needed_ms(20, 1_000, p99), 300, "15000 samples");
        assert_eq!(needed_ms(20, 1_000, Metric::Median), 300);
        assert_eq!(needed_ms(1_000, 40_000, Metric::Percentile(99.99)), 3_750);
        assert!(needed_ms(1_000, 0, p99) > LENGTHENED_MS_MAX, "no sample at all");
    }

    #[test]
    fn percentiles_that_the_samples_carry_are_guards() {
        let mut rounds = Rounds::new(Metric::Percentile(99.0));
        let all = |rounds: &Rounds| -> Vec<String> {
            rounds.figures.iter().map(|one| one.metric.to_string()).collect()
        };
        assert_eq!(all(&rounds).len(), 7, "{:?}", all(&rounds));
        rounds.begin_block();
        for figure in &mut rounds.figures {
            let is_short = figure.metric == Metric::Percentile(99.999);
            figure.blocks[0].with.push(1.0);
            figure.blocks[0].without.extend((!is_short).then_some(1.0));
        }
        rounds.leave_out_beyond_samples();
        assert_eq!(all(&rounds).len(), 6, "one round is too short for p99.999: {:?}", all(&rounds));
        rounds.figures[4].blocks.clear();
        assert_eq!(rounds.figures[3].metric, Metric::Percentile(99.9));
        rounds.figures[3].blocks.clear();
        rounds.leave_out_beyond_samples();
        let left = all(&rounds);
        assert!(left.contains(&"p99.9".to_string()) && !left.contains(&"p99.99".to_string()));
    }
}
