//! Complete series: estimates and doubts from rounds.

use nm_model::probe::Case;
use nm_model::result::{
    LatencyRound, PercentileValue, Round, RoundData, Series, SeriesKey, Slice, Statistic,
    ThroughputRound,
};
use nm_model::stack::Comparability;
use nm_model::{Doubt, DoubtKind, Metric, ProbeKind, SettingKind, SettingValue, Settings};
use nm_stats::{Sample, estimate, summarise};
use proptest::prelude::*;

fn series(statistic: Statistic, data: Vec<RoundData>) -> Series {
    let probe =
        if statistic == Statistic::Throughput { ProbeKind::Stream } else { ProbeKind::Pingpong };
    let round = |(i, data)| Round {
        round: i as u32,
        started_s: i as f64,
        data,
        placements: vec![],
        doubts: vec![],
    };
    Series {
        key: SeriesKey {
            environment: "loopback".into(),
            stack: "tcp-spin".into(),
            probe,
            case: Case::Message { size_bytes: 64 },
            statistic,
        },
        comparability: Comparability::default(),
        settings: Settings::new(),
        rounds: data.into_iter().enumerate().map(round).collect(),
        estimates: vec![],
        doubts: vec![],
    }
}

/// Rounds of 2100 samples, each around one of `medians_ns`.
fn latencies(medians_ns: &[u64]) -> Series {
    let round = |centre: &u64| {
        let sample = |i: u64| Sample { start_ns: i * 5000, latency_ns: centre - 10 + (i * 8) % 21 };
        RoundData::Latency(summarise(&(0..2100).map(sample).collect::<Vec<_>>(), 0, &[99.5]))
    };
    series(Statistic::HalfRoundTrip, medians_ns.iter().map(round).collect())
}

fn throughputs(gbps: &[f64]) -> Series {
    let round = |total_gbps: &f64| {
        RoundData::Throughput(ThroughputRound { total_gbps: *total_gbps, ..Default::default() })
    };
    series(Statistic::Throughput, gbps.iter().map(round).collect())
}

fn estimated(mut series: Series) -> Series {
    estimate(&mut series);
    series
}

fn detail(series: &Series, kind: DoubtKind) -> Option<&str> {
    series.doubts.iter().find(|doubt| doubt.kind == kind).map(|doubt| doubt.detail.as_str())
}

#[test]
fn each_metric_gets_the_median_of_its_rounds() {
    let series = estimated(latencies(&[4000, 4010, 4020, 4030, 4100]));
    let median = series.estimate(Metric::Median).unwrap();
    assert_eq!((median.value, median.rounds), (4020.0, 5));
    let interval = median.interval.unwrap();
    assert_eq!((interval.low, interval.high, interval.level), (4000.0, 4100.0, 0.95));
    assert!(median.cv_percent.unwrap() > 0.9);
    assert_eq!(series.estimate(Metric::Percentile(99.5)).unwrap().rounds, 5);
    assert_eq!(series.estimate(Metric::Loss).unwrap().value, 0.0);
    // So few samples do not make a p99.99, and no probe gave a rate.
    assert_eq!(series.estimate(Metric::Percentile(99.99)), None);
    assert_eq!(series.estimate(Metric::Rate), None);
    assert_eq!(series.doubts, []);
}

#[test]
fn few_rounds_have_no_interval_and_a_doubt() {
    let series = estimated(latencies(&[4000, 4010]));
    assert_eq!(series.estimate(Metric::Mean).unwrap().interval, None);
    assert_eq!(detail(&series, DoubtKind::TooFewRounds), Some("2 rounds, no interval below 5"));
    let empty = estimated(latencies(&[]));
    assert_eq!(empty.estimates, []);
    assert_eq!(detail(&empty, DoubtKind::TooFewRounds), Some("0 rounds, no interval below 5"));
}

#[test]
fn rounds_in_two_modes_are_reported_and_not_called_outliers() {
    let series =
        estimated(latencies(&[3950, 5990, 3980, 3990, 5920, 4010, 6010, 3960, 5950, 4000]));
    assert_eq!(
        detail(&series, DoubtKind::Bimodal),
        Some("median of the rounds: 6 of 10 about 3.98 us, 4 of 10 about 5.97 us")
    );
    assert_eq!(
        detail(&series, DoubtKind::Unstable),
        Some("the median of 10 rounds has a CV of 21.5 %, allowed 10 %")
    );
    assert_eq!(detail(&series, DoubtKind::Outliers), None);
}

#[test]
fn round_far_from_the_others_is_reported() {
    let series = estimated(latencies(&[4000, 4010, 4020, 4005, 9000, 4015]));
    assert_eq!(
        detail(&series, DoubtKind::Outliers),
        Some("1 round of 6: median 9.00 us against 4.01 us")
    );
    assert_eq!(detail(&series, DoubtKind::Bimodal), None);
}

#[test]
fn throughput_may_vary_by_one_percent_or_by_the_setting() {
    let mut series = estimated(throughputs(&[10.0, 10.3, 9.8, 10.1, 10.0]));
    assert_eq!(series.estimate(Metric::Throughput).unwrap().value, 10.0);
    assert_eq!(
        detail(&series, DoubtKind::Unstable),
        Some("the throughput of 5 rounds has a CV of 1.8 %, allowed 1 %")
    );
    series.settings.set(SettingKind::MaxCv, SettingValue::Percent(5.0));
    assert_eq!(estimated(series).doubts, []);
}

#[test]
fn drift_is_found_over_rounds_and_inside_them() {
    let rising: Vec<u64> = (0..10).map(|i| 4000 + 20 * i).collect();
    let series = estimated(latencies(&rising));
    assert_eq!(
        detail(&series, DoubtKind::Drift),
        Some("the median rises by 4.4 % through 10 rounds")
    );
    let slice = |i: u32| Slice {
        start_ms: f64::from(i),
        count: 10,
        median_ns: 5000.0 - 20.0 * f64::from(i),
        p99_ns: 6000.0,
        max_ns: 7000.0,
    };
    let round = LatencyRound { slices: (0..40).map(slice).collect(), ..Default::default() };
    let inside = series_of_one(round);
    assert_eq!(detail(&inside, DoubtKind::Drift), None, "the round has no figures");
    let known = LatencyRound {
        mean_ns: Some(4600.0),
        slices: (0..40).map(slice).collect(),
        ..Default::default()
    };
    assert_eq!(
        detail(&series_of_one(known), DoubtKind::Drift),
        Some("the median of the slices falls by 16.9 %")
    );
}

fn series_of_one(round: LatencyRound) -> Series {
    estimated(series(Statistic::HalfRoundTrip, vec![RoundData::Latency(round)]))
}

#[test]
fn missing_percentiles_are_doubted_only_where_requested() {
    let short = |n: u64| {
        let sample = |i| Sample { start_ns: i, latency_ns: 4000 };
        RoundData::Latency(summarise(&(0..n).map(sample).collect::<Vec<_>>(), 0, &[99.5]))
    };
    let series = estimated(series(Statistic::HalfRoundTrip, vec![short(1500), short(900)]));
    assert_eq!(
        detail(&series, DoubtKind::TooFewSamples),
        Some("p99 needs 1000, p99.5 needs 2000 samples; the shortest round has 900")
    );
}

#[test]
fn doubts_of_rounds_are_merged_and_other_doubts_kept() {
    let mut series = latencies(&[4000; 5]);
    for (round, count) in [(0, 3), (2, 5), (3, 3)] {
        let detail = format!("{count} switches of the pinger");
        series.rounds[round].doubts.push(Doubt::new(DoubtKind::Preempted, detail));
    }
    for round in &mut series.rounds {
        round.doubts.push(Doubt::new(DoubtKind::NotPinned, "pinger"));
    }
    series.doubts.push(Doubt::new(DoubtKind::Imported, "from sockperf"));
    let series = estimated(series);
    assert_eq!(
        detail(&series, DoubtKind::Preempted),
        Some("in 3 of 5 rounds: 3 switches of the pinger; 5 switches of the pinger")
    );
    assert_eq!(detail(&series, DoubtKind::NotPinned), Some("in all 5 rounds: pinger"));
    assert_eq!(detail(&series, DoubtKind::Imported), Some("from sockperf"));
}

/// Percentiles of the rounds below.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// A round with a minimum, [`PERCENTILES`] and a maximum in rising order; absent ones are not
/// known.
fn round_of(mut values: [f64; 7], known: [bool; 7]) -> RoundData {
    values.sort_by(f64::total_cmp);
    let figure = |at: usize| known[at].then_some(values[at]);
    let percentile = |(at, percentile): (usize, f64)| PercentileValue {
        percentile,
        value_ns: figure(at + 1),
        low_ns: None,
        high_ns: None,
    };
    RoundData::Latency(LatencyRound {
        min_ns: figure(0),
        max_ns: figure(6),
        percentiles: PERCENTILES.into_iter().enumerate().map(percentile).collect(),
        ..Default::default()
    })
}

#[test]
fn a_percentile_that_some_rounds_lack_is_not_estimated() {
    let known = |n: usize| std::array::from_fn(|at| at < n || at == 6);
    // Three rounds know everything up to p99.9, the fast fourth one p99.99 as well.
    let slow = round_of([4.0, 9.0, 20.0, 40.0, 50.0, 60.0, 70.0], known(5));
    let fast = round_of([2.0, 3.0, 5.0, 10.0, 20.0, 21.0, 22.0], known(6));
    let series =
        estimated(series(Statistic::HalfRoundTrip, vec![slow.clone(), slow.clone(), slow, fast]));
    let p999 = series.estimate(Metric::Percentile(99.9)).unwrap();
    assert_eq!((p999.value, p999.rounds), (50.0, 4));
    assert_eq!(series.estimate(Metric::Percentile(99.99)), None);
    assert_eq!(nm_stats::rounds::figure(&series.rounds, Metric::Percentile(99.99)), None);
}

#[test]
fn rounds_without_samples_take_no_percentile_away() {
    let empty = RoundData::Latency(summarise(&[], 3, &[]));
    let full = round_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [true; 7]);
    let series = estimated(series(Statistic::HalfRoundTrip, vec![full.clone(), empty, full]));
    let p99 = series.estimate(Metric::Percentile(99.0)).unwrap();
    assert_eq!((p99.value, p99.rounds), (4.0, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn percentiles_rise_whatever_the_rounds_know(
        rounds in prop::collection::vec((any::<[u32; 7]>(), any::<[bool; 7]>()), 1..9),
    ) {
        let rounds: Vec<RoundData> = rounds
            .into_iter()
            .map(|(values, known)| round_of(values.map(|v| f64::from(v) / 10.0), known))
            .collect();
        let series = estimated(series(Statistic::HalfRoundTrip, rounds));
        let mut order = vec![Metric::Min, Metric::Median];
        order.extend(PERCENTILES[1..].iter().map(|p| Metric::Percentile(*p)));
        order.push(Metric::Max);
        let known: Vec<_> = order.iter().filter_map(|m| series.estimate(*m)).collect();
        prop_assert!(known.is_sorted_by(|a, b| a.value <= b.value), "{known:?}");
        prop_assert!(known.iter().all(|e| e.rounds == known[0].rounds), "{known:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn estimating_twice_gives_the_same_result(
        medians in prop::collection::vec(20u64..100_000, 0..12),
        doubtful in 0usize..12,
    ) {
        let mut series = latencies(&medians);
        if let Some(round) = series.rounds.get_mut(doubtful) {
            round.doubts.push(Doubt::new(DoubtKind::Drift, "seen by the probe"));
            round.doubts.push(Doubt::new(DoubtKind::Steal, "10 ms"));
        }
        let once = estimated(series);
        let twice = estimated(once.clone());
        prop_assert_eq!(&once, &twice);
        let kinds: Vec<_> = once.doubts.iter().map(|doubt| doubt.kind).collect();
        prop_assert!(kinds.is_sorted_by(|a, b| a < b));
    }
}
