//! Which rates a network carried: those at which its targets pass, by five rounds or more.

use nm_model::exchange::SLA_MS;
use nm_model::result::Series;
use nm_model::verdict::Outcome;
use nm_model::{Metric, RunResult};
use nm_stats::rounds::ROUNDS_MIN;

use super::figures::{per_s, rate};
use crate::units;
use crate::view;

/// The figures that the limit is for.
const LIMITED: [Metric; 2] = [Metric::Es10, Metric::Percentile(99.0)];

/// What the rounds at one rate show. `Inconclusive` is called "not shown".
fn outcome(result: &RunResult, series: &Series) -> Outcome {
    if series.rounds.len() < ROUNDS_MIN {
        return Outcome::Inconclusive;
    }
    if series.is_emulated() {
        return Outcome::Inconclusive;
    }
    let judged = result.verdicts.iter().flat_map(|verdict| &verdict.evidence);
    let name = series.key.to_string();
    let judged = judged.filter(|evidence| evidence.series == name).map(|one| one.outcome);
    let lost = if view::lost(series) > 0 { Outcome::Fail } else { Outcome::Pass };
    let limited = LIMITED.map(|metric| within_limit(result, series, metric));
    Outcome::all(judged.chain(limited).chain([lost]))
}

/// Whether `metric` stays under the limit: by the verdict of a target that is at least as strict,
/// else in all rounds.
fn within_limit(result: &RunResult, series: &Series, metric: Metric) -> Outcome {
    const LIMIT_NS: f64 = SLA_MS * 1e6;
    let name = series.key.to_string();
    let is_met = result.verdicts.iter().any(|verdict| {
        let is_strict = verdict.require.as_ref().is_some_and(|target| {
            target.metric == metric && target.op.is_upper_bound() && target.limit <= LIMIT_NS
        });
        let passes = |e: &&nm_model::verdict::Evidence| e.outcome == Outcome::Pass;
        is_strict && verdict.evidence.iter().filter(passes).any(|e| e.series == name)
    });
    if is_met {
        return Outcome::Pass;
    }
    let values = view::round_values(series, metric);
    let n_within = values.iter().filter(|ns| **ns < LIMIT_NS).count();
    match n_within {
        n if n == series.rounds.len() => Outcome::Pass,
        0 if values.len() == series.rounds.len() => Outcome::Fail,
        _ => Outcome::Inconclusive,
    }
}

/// Cells for a network that was tried at several rates: the highest rate that it carried, and the
/// other rates with what they came to.
pub fn cells(result: &RunResult, of_network: &[&Series]) -> (String, String) {
    let mut tried: Vec<(f64, &Series, Outcome)> = of_network
        .iter()
        .filter_map(|series| Some((rate(series)?, *series, outcome(result, series))))
        .collect();
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let best = tried.iter().rposition(|(.., outcome)| *outcome == Outcome::Pass);
    let others = tried.iter().enumerate().filter(|(at, _)| Some(*at) != best);
    let others: Vec<String> = others
        .map(|(_, (rate, series, outcome))| {
            format!("{}: {}", per_s(Some(*rate)), words(*outcome, series.rounds.len()))
        })
        .collect();
    let best = best.map_or("none".to_string(), |at| per_s(Some(tried[at].0)));
    (best, others.join("; "))
}

fn words(outcome: Outcome, n_rounds: usize) -> String {
    match outcome {
        Outcome::Pass => "carried".to_string(),
        Outcome::Fail => "not carried".to_string(),
        Outcome::Inconclusive => {
            format!("not shown ({})", units::plural(n_rounds, "round", "rounds"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::exchange::fixture::result;
    use nm_model::probe::Case;
    use nm_model::result::RoundData;
    use nm_model::verdict::{Evidence, Verdict};

    fn cells_of(result: &RunResult) -> (String, String) {
        cells(result, &result.series.iter().collect::<Vec<_>>())
    }

    fn judged(mut run: RunResult, require: &str, outcome: Outcome) -> RunResult {
        run.verdicts.push(Verdict {
            target: require.into(),
            require: require.parse().ok(),
            outcome,
            reason: String::new(),
            why: String::new(),
            is_same_host_only: false,
            is_of_machine: false,
            decisive: None,
            evidence: vec![Evidence {
                series: run.series[0].key.to_string(),
                outcome,
                value: None,
                interval: None,
                reason: String::new(),
            }],
        });
        run
    }

    fn with_p99(mut run: RunResult, round: usize, p99_ms: f64) -> RunResult {
        let RoundData::Latency(data) = &mut run.series[0].rounds[round].data else {
            unreachable!("the rounds are latencies")
        };
        data.percentiles[1].value_ns = Some(p99_ms * 1e6);
        run
    }

    #[test]
    fn fewer_than_five_rounds_show_nothing() {
        let not_shown = |words: &str| ("none".to_string(), format!("10000: not shown ({words})"));
        assert_eq!(cells_of(&result(0.9, 1)), not_shown("1 round"));
        assert_eq!(cells_of(&result(0.9, 4)), not_shown("4 rounds"));
        assert_eq!(cells_of(&result(0.9, 5)), ("10000".to_string(), String::new()));
    }

    #[test]
    fn the_verdict_of_the_rate_decides() {
        let inconclusive = judged(result(0.9, 5), "p99 < 10ms", Outcome::Inconclusive);
        assert_eq!(cells_of(&inconclusive).1, "10000: not shown (5 rounds)");
        let failed = judged(result(0.9, 5), "p99 < 0.5ms", Outcome::Fail);
        assert_eq!(cells_of(&failed).1, "10000: not carried");
        // One slow round in six: most rounds keep the limit, which alone shows nothing.
        let slow = with_p99(result(0.9, 6), 2, 45.0);
        assert_eq!(cells_of(&slow).1, "10000: not shown (6 rounds)");
        let passed = judged(slow.clone(), "p99 < 10ms", Outcome::Pass);
        assert_eq!(cells_of(&passed).0, "10000");
        let looser = judged(slow, "p99 < 50ms", Outcome::Pass);
        assert_eq!(cells_of(&looser).0, "none");
    }

    #[test]
    fn the_highest_carried_rate_stands_alone_and_the_others_beside_it() {
        let mut run = result(0.9, 5);
        for (rate_per_s, p99_ms, n_rounds) in
            [(20_000.0, 4.0, 5), (40_000.0, 4.0, 1), (5.0, 1.0, 5)]
        {
            let mut series = result(p99_ms, n_rounds).series.remove(0);
            let Case::Request { size, .. } = series.key.case else { unreachable!("a request") };
            series.key.case = Case::Request { size, rate_per_s: Some(rate_per_s) };
            run.series.push(series);
        }
        let others = "5: carried; 10000: carried; 40000: not shown (1 round)";
        assert_eq!(cells_of(&run), ("20000".to_string(), others.to_string()));
    }

    #[test]
    fn a_lost_request_is_not_carried() {
        let mut run = result(0.9, 5);
        let RoundData::Latency(data) = &mut run.series[0].rounds[3].data else {
            unreachable!("the rounds are latencies")
        };
        data.lost = 1;
        assert_eq!(cells_of(&run).1, "10000: not carried");
    }
}
