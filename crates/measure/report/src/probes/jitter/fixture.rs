//! A result of the jitter probe, for tests.

use nm_model::RunResult;
use nm_model::jitter::{Balance, Counted, CpuJitter, JitterRound, JitterSlice};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    LatencyRound, PercentileValue, Round, RoundData, Series, SeriesKey, Source, Statistic,
};
use nm_model::stack::Comparability;

/// One series of equal rounds: a quiet CPU, and one that other threads took half of for a while.
pub fn result(n_rounds: u32) -> RunResult {
    let cpus = vec![cpu(0, 0), cpu(1, 50_000_000)];
    let jitter = JitterRound {
        threshold_ns: 104,
        window_s: 1.0,
        slice_ms: 100.0,
        is_guest: Some(true),
        naming: None,
        lost_histogram: None,
        cpus,
    };
    let data = LatencyRound {
        count: Some(500),
        max_ns: Some(4e6),
        percentiles: vec![value(50.0, 14_000.0)],
        jitter: Some(Box::new(jitter)),
        ..LatencyRound::default()
    };
    let mut result = RunResult::new("x", Source::Measured { version: "0".into() });
    result.series.push(Series {
        key: SeriesKey {
            environment: "loopback".into(),
            stack: "cpu-spin".into(),
            probe: ProbeKind::Jitter,
            case: Case::Total,
            statistic: Statistic::Interruption,
        },
        comparability: Comparability::default(),
        settings: Default::default(),
        rounds: (0..n_rounds)
            .map(|round| Round {
                round,
                started_s: f64::from(round),
                data: RoundData::Latency(data.clone()),
                placements: vec![],
                doubts: vec![],
            })
            .collect(),
        estimates: vec![],
        doubts: vec![],
    });
    result
}

fn value(percentile: f64, ns: f64) -> PercentileValue {
    PercentileValue { percentile, value_ns: Some(ns), low_ns: None, high_ns: None }
}

fn cpu(cpu: u32, run_delay_ns: u64) -> CpuJitter {
    let balance = Balance {
        run_delay_ns: Some(run_delay_ns),
        interrupts_ns: None,
        steal_ns: Some(0),
        steal_step_ns: 10_000_000,
        unexplained_ns: 0,
        below_system_min_ns: 1_000_000,
    };
    let lost_ns = run_delay_ns + 5_000_000;
    let slice = |number: u64| {
        let preempted_ns = if number < 5 { run_delay_ns / 5 } else { 0 };
        JitterSlice {
            gaps: 25,
            lost_ns: preempted_ns + 500_000,
            longest_ns: preempted_ns.max(40_000),
            preempted_gaps: preempted_ns / 2_000_000,
            preempted_ns,
        }
    };
    CpuJitter {
        cpu,
        elapsed_ns: 1_000_000_000,
        gaps: 250,
        lost_ns,
        longest_ns: 4_000_000,
        preempted_gaps: Some(run_delay_ns / 2_000_000),
        preempted_ns: Some(run_delay_ns),
        balance: balance.of(lost_ns),
        counted: Counted {
            involuntary_switches: run_delay_ns / 2_000_000,
            interrupts: Some([("LOC Local timer interrupts".to_string(), 250)].into()),
            ..Counted::default()
        },
        percentiles: vec![value(50.0, 14_000.0), value(99.0, 2_000_000.0)],
        delays: vec![value(99.0, 0.0), value(99.9, 1_500.0)],
        slices: (0..10).map(slice).collect(),
        ..CpuJitter::default()
    }
}

/// The rounds, to be changed.
pub fn rounds(result: &mut RunResult) -> Vec<&mut JitterRound> {
    let rounds = result.series[0].rounds.iter_mut();
    rounds
        .filter_map(|round| match &mut round.data {
            RoundData::Latency(data) => data.jitter.as_deref_mut(),
            RoundData::Throughput(_) => None,
        })
        .collect()
}

/// The first round, to be changed.
pub fn round(result: &mut RunResult) -> &mut JitterRound {
    rounds(result).remove(0)
}

/// The CPUs of the first round, to be changed.
pub fn cpus(result: &mut RunResult) -> impl Iterator<Item = &mut CpuJitter> {
    round(result).cpus.iter_mut()
}
