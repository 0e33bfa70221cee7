//! A result of the exchange, for tests.

use nm_model::RunResult;
use nm_model::exchange::{ClassCpu, Durations, ExchangeRound, Fault, Hop, Moves};
use nm_model::probe::{Case, ProbeKind, RrSize};
use nm_model::result::{
    LatencyRound, PercentileValue, Round, RoundData, Series, SeriesKey, Source, Statistic,
};
use nm_model::stack::Comparability;

/// One series of `n_rounds` equal rounds with figures of CPU time, hops and, in the first round,
/// faults.
pub fn result(p99_ms: f64, n_rounds: u32) -> RunResult {
    let percentile = |percentile, ms: f64| PercentileValue {
        percentile,
        value_ns: Some(ms * 1e6),
        low_ns: None,
        high_ns: None,
    };
    let cpu = |class: &str, us| ClassCpu { class: class.into(), nodes: 2, cpu_us_per_txn: us };
    let exchange = ExchangeRound {
        cpu: vec![
            cpu("gateway", 4.0),
            cpu("router", 3.0),
            cpu("mediator", 5.0),
            cpu("processor", 6.0),
            cpu("load", 2.0),
        ],
        hops: vec![Hop {
            name: "gateway to router".into(),
            mean_ns: 30_000.0,
            median_ns: 25_000.0,
            p99_ns: 90_000.0,
        }],
        faults: vec![Fault {
            node: "mediator 1".into(),
            at_s: 2.5,
            back_ms: Some(321.0),
            worst_ms: Some(330.0),
        }],
        moves: Some(Moves {
            due: 10,
            asked: 10,
            done: 10,
            refused: 0,
            took: durations(10, [12.0, 30.0, 44.0]),
            pauses: durations(10, [0.3, 0.7, 0.9]),
        }),
        ..ExchangeRound::default()
    };
    let data = LatencyRound {
        count: Some(50_000),
        mean_ns: Some(0.2e6),
        es10_ns: Some(0.6e6),
        percentiles: vec![percentile(90.0, 0.3), percentile(99.0, p99_ms)],
        exchange: Some(Box::new(exchange)),
        ..LatencyRound::default()
    };
    let size = RrSize { request_bytes: 800, response_bytes: 800 };
    let mut result = RunResult::new("x", Source::Measured { version: "0".into() });
    result.series.push(Series {
        key: SeriesKey {
            environment: "loopback".into(),
            stack: "2-2-2-2 unix".into(),
            probe: ProbeKind::Exchange,
            case: Case::Request { size, rate_per_s: Some(10_000.0) },
            statistic: Statistic::RoundTripFromIntended,
        },
        comparability: Comparability::default(),
        settings: Default::default(),
        rounds: (0..n_rounds).map(|number| round(number, data.clone())).collect(),
        estimates: vec![],
        doubts: vec![],
    });
    result
}

fn durations(count: u64, ms: [f64; 3]) -> Durations {
    let [median_ns, p99_ns, max_ns] = ms.map(|ms| Some(ms * 1e6));
    Durations { count, median_ns, p99_ns, max_ns }
}

fn round(number: u32, mut data: LatencyRound) -> Round {
    if number > 0
        && let Some(exchange) = &mut data.exchange
    {
        exchange.faults.clear();
    }
    Round {
        round: number,
        started_s: f64::from(number),
        data: RoundData::Latency(data),
        placements: vec![],
        doubts: vec![],
    }
}
