//! Whether a result that was read can be one of a run: a file that was edited or damaged could
//! otherwise pass for a measurement.

use std::collections::BTreeSet;

use nm_model::result::{LatencyRound, Round, RoundData, RunResult, Series, ThroughputRound};
use nm_model::{Failure, FailureKind};

/// Refuses a result with two series of one name, a round that is there twice, or a figure that
/// nobody can have measured. `name` is what the error calls the result.
///
/// # Errors
/// If there is one, which the error names.
pub fn check(result: &RunResult, name: &str) -> Result<(), Failure> {
    let mut keys = BTreeSet::new();
    let all = result.series.iter();
    let first = all
        .filter_map(|series| {
            let is_new = keys.insert(series.key.to_string());
            let fault = if is_new { fault_of(series) } else { Some("is there twice".to_string()) };
            fault.map(|fault| format!("{name}: the series `{}` {fault}", series.key))
        })
        .next();
    match first {
        Some(message) => Err(Failure::new(FailureKind::BadRequest, message)
            .hint("the file was changed after the run; repeat the run")),
        None => Ok(()),
    }
}

fn fault_of(series: &Series) -> Option<String> {
    let mut numbers = BTreeSet::new();
    series.rounds.iter().find_map(|Round { round, data, .. }| {
        if !numbers.insert(round) {
            return Some(format!("has round {round} twice"));
        }
        let fault = match data {
            RoundData::Latency(latency) => latency_fault(latency),
            RoundData::Throughput(throughput) => throughput_fault(throughput),
        };
        fault.map(|fault| format!("has {fault} in round {round}"))
    })
}

fn latency_fault(round: &LatencyRound) -> Option<String> {
    let LatencyRound { mean_ns, min_ns, max_ns, stddev_ns, percentiles, rate_per_s, .. } = round;
    let named = [
        ("mean", mean_ns),
        ("minimum", min_ns),
        ("maximum", max_ns),
        ("standard deviation", stddev_ns),
        ("rate", rate_per_s),
    ];
    if let Some((what, value)) =
        named.iter().find_map(|(what, value)| Some((what, value.filter(|value| *value < 0.0)?)))
    {
        return Some(format!("a negative {what} ({value})"));
    }
    if let (Some(min), Some(max)) = (min_ns, max_ns)
        && min > max
    {
        return Some(format!("a minimum ({min} ns) above its maximum ({max} ns)"));
    }
    let mut values = percentiles.iter().filter_map(|it| Some((it.percentile, it.value_ns?)));
    let (percentile, value) = values.find(|(_, value)| *value < 0.0)?;
    Some(format!("a negative p{percentile} ({value} ns)"))
}

fn throughput_fault(round: &ThroughputRound) -> Option<String> {
    let flows = round.flows.iter().map(|flow| flow.gbps);
    let negative = flows.chain([round.total_gbps]).find(|gbps| *gbps < 0.0)?;
    Some(format!("a negative throughput ({negative} Gb/s)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut RunResult)) -> String {
        let json = include_str!("../tests/data/quick.json");
        let mut result: RunResult = serde_json::from_str(json).unwrap();
        assert_eq!(check(&result, "it").map_err(|error| error.message), Ok(()));
        change(&mut result);
        check(&result, "it").unwrap_err().message
    }

    fn latency(result: &mut RunResult) -> &mut LatencyRound {
        let rounds = result.series.iter_mut().flat_map(|series| &mut series.rounds);
        let mut latencies = rounds.filter_map(|round| match &mut round.data {
            RoundData::Latency(latency) => Some(latency),
            RoundData::Throughput(_) => None,
        });
        latencies.next().unwrap()
    }

    #[test]
    fn what_no_run_has_written_is_refused_with_its_place() {
        let twice = refused(|result| {
            let rounds = &mut result.series[0].rounds;
            rounds.push(rounds[0].clone());
        });
        assert!(twice.starts_with("it: the series `") && twice.ends_with("` has round 0 twice"));
        let series = refused(|result| result.series.push(result.series[0].clone()));
        assert!(series.ends_with("` is there twice"), "{series}");
        let mean = refused(|result| latency(result).mean_ns = Some(-1.0));
        assert!(mean.ends_with("has a negative mean (-1) in round 0"), "{mean}");
        let percentile = refused(|result| latency(result).percentiles[0].value_ns = Some(-2.5));
        assert!(percentile.contains("has a negative p") && percentile.contains("(-2.5 ns)"));
        let order = refused(|result| {
            let round = latency(result);
            (round.min_ns, round.max_ns) = (Some(9.0), Some(8.0));
        });
        assert!(order.contains("has a minimum (9 ns) above its maximum (8 ns)"), "{order}");
        let throughput = refused(|result| {
            let round = ThroughputRound { total_gbps: -3.0, ..ThroughputRound::default() };
            result.series[0].rounds[0].data = RoundData::Throughput(round);
        });
        assert!(throughput.ends_with("has a negative throughput (-3 Gb/s) in round 0"));
    }
}
