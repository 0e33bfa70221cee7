//! A made-up result for tests of the faces. Nothing in it was measured: the numbers come from a
//! formula, chosen so that every part of a report has something to show.

use std::collections::BTreeMap;

use nm_model::comparison::SignificanceTest;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::facts::{Facts, LinkFacts};
use nm_model::metric::Metric;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::{Case, ProbeKind, RrSize, Side};
use nm_model::result::*;
use nm_model::stack::{Comparability, Difference};
use nm_model::verdict::{Comparison, ComparisonRow, Evidence, Interval, Relation, Verdict};
use nm_model::{EndpointId, RowId, SettingKind, SettingValue, Settings};
use nm_model::{NotAvailable, Outcome, Plan};
use nm_stats::histogram;
use nm_test_support::sorted;

/// Numbers that look random and are the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How large a made-up result is.
#[derive(Clone, Copy)]
pub struct Size {
    pub environments: &'static [&'static str],
    pub stacks: &'static [&'static str],
    pub sizes: &'static [u32],
    pub n_rounds: u32,
    pub n_samples: usize,
}

/// Enough for every chart, small enough to be kept as golden files.
pub const SMALL: Size = Size {
    environments: &["loopback", "netns"],
    stacks: &["tcp-spin", "udp-blocking"],
    sizes: &[1, 64, 1024, 32_768],
    n_rounds: 5,
    n_samples: 3_000,
};

/// A full plan: 54 series of ping-pong beside stream and rr.
pub const LARGE: Size = Size {
    environments: &["loopback", "netns", "bridge"],
    stacks: &["tcp-spin", "tcp-blocking", "tcp-epoll", "udp-spin", "udp-blocking", "unix-spin"],
    sizes: &[64, 1024, 65_536],
    n_rounds: 5,
    n_samples: 100_000,
};

/// The made-up result.
pub fn result(size: Size) -> RunResult {
    let mut series = vec![];
    for (e, environment) in size.environments.iter().enumerate() {
        for (s, stack) in size.stacks.iter().enumerate() {
            for &size_bytes in size.sizes {
                let faster = if *environment == "made-up-reference" { 0.6 } else { 1.0 };
                let base = faster * 3_000.0 * (1.0 + e as f64 * 0.4) * (1.0 + s as f64 * 0.8)
                    + f64::from(size_bytes) * 0.35;
                let case = Case::Message { size_bytes };
                let key =
                    key(environment, stack, ProbeKind::Pingpong, case, Statistic::HalfRoundTrip);
                series.push(latency(key, base, size));
            }
        }
        let patterns = ["1-uni-1", "2-bi-2"].into_iter();
        series.extend(patterns.map(|p| throughput(environment, p, 20.0 - e as f64 * 6.0, size)));
        let case = Case::Request {
            size: RrSize { request_bytes: 64, response_bytes: 64 },
            rate_per_s: Some(1000.0),
        };
        for (statistic, base) in
            [(Statistic::RoundTripFromIntended, 16_000.0), (Statistic::RoundTrip, 12_000.0)]
        {
            let key = key(environment, "tcp-epoll", ProbeKind::Rr, case, statistic);
            series.push(latency(key, base, size));
        }
    }
    series[1].doubts.push(Doubt::new(DoubtKind::Bimodal, "3 rounds near 3.0 µs, 2 near 3.9 µs"));
    series[2]
        .doubts
        .push(Doubt::new(DoubtKind::Preempted, "12 involuntary switches of the pinger"));
    series[3].doubts.push(Doubt::new(DoubtKind::Preempted, "2 involuntary switches of the pinger"));
    let environment = size.environments[0];
    let source = Source::Measured { version: "0.0.0-made-up".into() };
    RunResult {
        started: Some("2026-01-02T03:04:05Z".into()),
        duration_s: Some(112.4),
        state: RunState::Complete,
        plan: Some(plan()),
        facts: facts(size),
        notes: BTreeMap::from([("warning".into(), "made-up figures for a test".into())]),
        series,
        not_available: vec![NotAvailable {
            environment: EnvironmentKind::VmSwitch,
            stack: "tcp-spin".parse().unwrap(),
            probe: ProbeKind::Pingpong,
            reason: "this version has no virtual machines".into(),
            has_failed: false,
        }],
        failures: vec![failure()],
        verdicts: verdicts(environment),
        comparisons: vec![comparison()],
        outcome: Outcome::Fail,
        doubts: vec![Doubt::new(DoubtKind::BusyHost, "load average 1.4 on 2 CPUs")],
        ..RunResult::new("2026-01-02T030405Z-made-up", source)
    }
}

fn failure() -> TrialFailure {
    let row = RowId {
        environment: "netns".into(),
        stack: "udp-blocking".into(),
        probe: ProbeKind::Pingpong,
        case: Some(Case::Message { size_bytes: 65536 }),
        round: Some(0),
        factor: None,
    };
    TrialFailure { row: Some(row), reason: "the peer has gone".into() }
}

/// A made-up reference run with half round trips.
pub fn reference() -> RunResult {
    let size = Size {
        environments: &["made-up-reference"],
        stacks: &["tcp"],
        sizes: &[1, 64, 1024, 32_768],
        n_rounds: 1,
        n_samples: 1_000,
    };
    let mut run = result(size);
    run.name = "made-up-reference".into();
    run.source = Source::Reference {
        study: "made-up-2000 (Nobody, 2000)".into(),
        tool: "made-up-tool 1.0".into(),
    };
    run.plan = None;
    run.facts.clear();
    run.verdicts.clear();
    run.comparisons.clear();
    run.failures.clear();
    run.not_available.clear();
    run.doubts.clear();
    run.outcome = Outcome::Inconclusive;
    run.series.retain(|s| s.key.probe != ProbeKind::Rr);
    for series in &mut run.series {
        if series.key.probe == ProbeKind::Stream {
            let gbps = SettingValue::GigabitsPerSecond;
            series.settings.set(SettingKind::ExpectedMin, gbps(6.0));
            series.settings.set(SettingKind::ExpectedMax, gbps(20.0));
        }
        series.doubts.clear();
        for round in &mut series.rounds {
            round.placements.clear();
            if let RoundData::Latency(data) = &mut round.data {
                data.histogram = None;
                data.slices.clear();
            }
        }
    }
    run
}

/// A made-up reference run with round trips, which must never stand beside half round trips.
pub fn round_trip_reference() -> RunResult {
    let mut run = reference();
    run.name = "made-up-full-round-trips".into();
    run.series.retain(|s| s.key.probe == ProbeKind::Pingpong);
    for series in &mut run.series {
        series.key.statistic = Statistic::RoundTrip;
    }
    run
}

fn plan() -> Plan {
    Plan::parse(
        "name='made-up'\nsummary='A made-up plan for tests.'\nrounds=5\n\
         [[trials]]\nenvironments=['loopback','netns','vm']\nstacks=['tcp-spin','udp-blocking']\n\
         probe='pingpong'\nsizes=[1,64,1024,32768]\n\
         [[trials]]\nenvironments=['loopback','netns']\nstacks=['tcp-blocking']\n\
         probe='stream'\npatterns=['1-uni-1','2-bi-2']\n\
         [[targets]]\nrequire='median_ns < 6000 at size<=1024'\non='*'\nprobe='pingpong'\n\
         why='a made-up source'\n\
         [[targets]]\nrequire='throughput >= 10 Gb/s'\non='*'\n\
         [[targets]]\nrequire='p99.99 <= 50us'\non='loopback/*'\n\
         [[comparisons]]\na='loopback/tcp-spin'\nb='netns/tcp-spin'\n",
    )
    .unwrap()
}

pub fn key(
    environment: &str,
    stack: &str,
    probe: ProbeKind,
    case: Case,
    statistic: Statistic,
) -> SeriesKey {
    SeriesKey { environment: environment.into(), stack: stack.into(), probe, case, statistic }
}

pub fn latency(key: SeriesKey, base: f64, size: Size) -> Series {
    let mut numbers = Numbers(key.to_string().bytes().map(u64::from).sum());
    let rounds: Vec<Round> = (0..size.n_rounds)
        .map(|round| {
            let mode = if round % 2 == 1 { 1.25 } else { 1.0 };
            let data = distribution(base * mode, size.n_samples, &mut numbers);
            Round {
                round,
                started_s: f64::from(round) * 22.0 + base / 4_000.0,
                data: RoundData::Latency(data),
                placements: vec![placement(Side::Client, 0), placement(Side::Server, 1)],
                doubts: vec![],
            }
        })
        .collect();
    let mut medians: Vec<f64> = rounds.iter().filter_map(|r| r.value(Metric::Median)).collect();
    medians.sort_by(f64::total_cmp);
    let interval = (medians.len() >= 5).then(|| Interval {
        low: medians[0],
        high: medians[medians.len() - 1],
        level: 0.95,
    });
    let estimate = Estimate {
        metric: Metric::Median,
        value: medians[medians.len() / 2],
        interval,
        cv_percent: (medians.len() > 1).then_some(12.0),
        rounds: size.n_rounds,
    };
    Series {
        comparability: Comparability {
            statistic: Some(key.statistic.to_string()),
            protocol: Some("tcp".into()),
            ..Comparability::default()
        },
        key,
        settings: Settings::new(),
        rounds,
        estimates: vec![estimate],
        doubts: vec![],
    }
}

fn distribution(base: f64, n_samples: usize, numbers: &mut Numbers) -> LatencyRound {
    let samples: Vec<u64> = (0..n_samples)
        .map(|_| (base * (0.96 + 0.04 / (1.0 - numbers.next() + 1e-7).sqrt())) as u64)
        .collect();
    let n_slices = 8.min(n_samples);
    let slices = samples
        .chunks(n_samples.div_ceil(n_slices))
        .enumerate()
        .map(|(index, chunk)| {
            let sorted = sorted(chunk.to_vec());
            Slice {
                start_ms: index as f64 * 250.0,
                count: chunk.len() as u64,
                median_ns: sorted[chunk.len() / 2] as f64,
                p99_ns: sorted[chunk.len() * 99 / 100] as f64,
                max_ns: sorted[chunk.len() - 1] as f64,
            }
        })
        .collect();
    let sorted = sorted(samples);
    let n = sorted.len();
    let mean = sorted.iter().sum::<u64>() as f64 / n as f64;
    let squares: f64 = sorted.iter().map(|v| (*v as f64 - mean) * (*v as f64 - mean)).sum();
    let percentile = |percentile: f64| {
        let rank = (n as f64 * percentile / 100.0).ceil() as usize;
        let value = sorted[rank.clamp(1, n) - 1] as f64;
        let has_enough = n - rank.min(n) >= 10;
        PercentileValue {
            percentile,
            value_ns: has_enough.then_some(value),
            low_ns: has_enough.then_some(value * 0.99),
            high_ns: has_enough.then_some(value * 1.01),
        }
    };
    LatencyRound {
        count: Some(n as u64),
        lost: 0,
        mean_ns: Some(mean),
        min_ns: Some(sorted[0] as f64),
        max_ns: Some(sorted[n - 1] as f64),
        stddev_ns: Some((squares / (n - 1) as f64).sqrt()),
        es10_ns: Some(sorted[n * 9 / 10..].iter().sum::<u64>() as f64 / (n - n * 9 / 10) as f64),
        percentiles: [50.0, 90.0, 99.0, 99.9, 99.99, 99.999].map(percentile).to_vec(),
        rate_per_s: None,
        histogram: Some(histogram::encode_sorted(&sorted).unwrap()),
        slices,
        ..LatencyRound::default()
    }
}

pub fn throughput(environment: &str, pattern: &str, base: f64, size: Size) -> Series {
    let pattern: nm_model::Pattern = pattern.parse().unwrap();
    let mut numbers = Numbers(base as u64 + u64::from(pattern.flows));
    let round = |round: u32| {
        let flows: Vec<Flow> = (0..pattern.flows)
            .map(|index| {
                let gbps = base / f64::from(pattern.flows) * (0.95 + numbers.next() * 0.1);
                Flow {
                    index,
                    pair: None,
                    sender: pattern.sender(index),
                    bytes: (gbps * 1e9 / 8.0 * 2.0) as u64,
                    seconds: 2.0,
                    gbps,
                    retransmits: Some(u64::from(round * index)),
                }
            })
            .collect();
        Round {
            round,
            started_s: f64::from(round) * 22.0 + 18.0,
            data: RoundData::Throughput(ThroughputRound {
                total_gbps: flows.iter().map(|f| f.gbps).sum(),
                flows,
                client_cpu: Some(0.98),
                server_cpu: Some(0.91),
            }),
            placements: vec![],
            doubts: vec![],
        }
    };
    Series {
        key: key(
            environment,
            "tcp-blocking",
            ProbeKind::Stream,
            Case::Flows { pattern, write_bytes: 131_072 },
            Statistic::Throughput,
        ),
        comparability: Comparability::default(),
        settings: [
            ("congestion".into(), SettingValue::text("cubic")),
            ("mtu".into(), SettingValue::text("1500")),
        ]
        .into_iter()
        .collect(),
        rounds: (0..size.n_rounds).map(round).collect(),
        estimates: vec![],
        doubts: vec![],
    }
}

fn placement(side: Side, cpu: u32) -> Placement {
    Placement {
        side,
        thread: if side == Side::Client { "pinger" } else { "ponger" }.into(),
        pinned_cpu: Some(cpu),
        first_cpu: Some(cpu),
        last_cpu: Some(cpu),
        migrations: Some(0),
        involuntary_switches: 3,
        voluntary_switches: 1,
        run_delay_ns: Some(12_000),
        user_ns: 900_000_000,
        system_ns: 100_000_000,
        minor_faults: 0,
        steal_ms: Some(10),
        foreign_busy: Some(0.001),
    }
}

fn facts(size: Size) -> BTreeMap<EndpointId, Facts> {
    let mut all = BTreeMap::new();
    for environment in size.environments {
        for side in [Side::Client, Side::Server] {
            let mut facts = Facts { nearmetal_version: "0.0.0-made-up".into(), ..Facts::default() };
            facts.host.name = "made-up-host".into();
            facts.host.kernel = "6.0.0-made-up".into();
            facts.host.machine = "x86_64".into();
            facts.cpu.model = Some("Made-up CPU @ 1 GHz".into());
            facts.cpu.online = 2;
            facts.cpu.allowed = vec![0, 1];
            facts.cpu.mitigations = vec!["spectre_v2: made-up".into()];
            facts.clock.source = "tsc".into();
            facts.clock.tsc_hz = Some(1e9);
            facts.clock.pair_cost_ns = 21.0;
            facts.memory.total_bytes = 8 << 30;
            facts.virtualization.hypervisor = Some("KVM".into());
            facts.settings.insert("net.core.busy_read".into(), "0".into());
            facts.links.push(LinkFacts {
                name: if *environment == "loopback" { "lo" } else { "veth0" }.into(),
                mtu: Some(if *environment == "loopback" { 65_536 } else { 1500 }),
                up: true,
                ..LinkFacts::default()
            });
            all.insert(EndpointId::new(*environment, side), facts);
        }
    }
    all
}

fn verdicts(environment: &str) -> Vec<Verdict> {
    let evidence = |series: &str, outcome, value: Option<f64>, reason: &str| Evidence {
        series: format!("{environment}/{series}"),
        outcome,
        value,
        interval: value.map(|v| Interval { low: v * 0.97, high: v * 1.03, level: 0.95 }),
        reason: reason.into(),
    };
    vec![
        Verdict {
            target: "median_ns < 6000 at size<=1024".into(),
            require: "median_ns < 6000 at size<=1024".parse().ok(),
            outcome: Outcome::Pass,
            reason: "4 of 4 series are below 6 µs with their entire interval".into(),
            is_same_host_only: false,
            is_of_machine: false,
            why: "a made-up source".into(),
            decisive: None,
            evidence: vec![
                evidence("tcp-spin pingpong 64 B", Outcome::Pass, Some(3022.0), "below the limit"),
                evidence(
                    "tcp-spin pingpong 1024 B",
                    Outcome::Pass,
                    Some(3358.0),
                    "below the limit",
                ),
            ],
        },
        Verdict {
            target: "throughput >= 10 Gb/s".into(),
            require: "throughput >= 10 Gb/s".parse().ok(),
            outcome: Outcome::Fail,
            reason: "netns/tcp-blocking stream reaches 9.1 Gb/s".into(),
            is_same_host_only: false,
            is_of_machine: false,
            why: String::new(),
            decisive: None,
            evidence: vec![evidence(
                "tcp-blocking stream 1-uni-1, 131072 B writes",
                Outcome::Fail,
                Some(9.1),
                "the entire interval is below the limit",
            )],
        },
        Verdict {
            target: "p99.99 <= 50us".into(),
            require: "p99.99 <= 50us".parse().ok(),
            outcome: Outcome::Inconclusive,
            reason: "too few samples for p99.99 in 3 series".into(),
            is_same_host_only: false,
            is_of_machine: false,
            why: String::new(),
            decisive: None,
            evidence: vec![evidence(
                "tcp-spin pingpong 64 B",
                Outcome::Inconclusive,
                None,
                "p99.99 is n/a",
            )],
        },
    ]
}

fn comparison() -> Comparison {
    let row = |case: &str, ratio: f64, relation| ComparisonRow {
        case: case.into(),
        metric: Metric::Median,
        a: Some(3_000.0),
        b: Some(3_000.0 * ratio),
        ratio: Some(ratio),
        interval: Some(Interval { low: ratio - 0.02, high: ratio + 0.02, level: 0.95 }),
        p_value: Some(0.008),
        test: Some(SignificanceTest::MannWhitney),
        relation,
        is_primary: false,
        bounds: None,
        n_cases: 1,
        ranges_apart: None,
        ranges: None,
        basis: "5 rounds of loopback/tcp-spin and 5 of netns/tcp-spin".into(),
    };
    Comparison {
        a: "loopback/tcp-spin".into(),
        b: "netns/tcp-spin".into(),
        margin_percent: 5.0,
        differences: vec![Difference {
            field: "link speed".into(),
            a: "virtual".into(),
            b: "unknown".into(),
        }],
        facts: vec![Difference { field: "MTU".into(), a: "65536".into(), b: "1500".into() }],
        rows: vec![row("64 B", 1.4, Relation::Worse), row("1 B", 1.01, Relation::Equivalent)],
        overall: vec![ComparisonRow { n_cases: 3, ..row("over 1..1024 B", 1.38, Relation::Worse) }],
        refused: vec![],
        detection: None,
        is_cost: false,
        unmatched: vec!["only loopback/tcp-spin has 65536 B".into()],
        outcome: Outcome::Fail,
        reasons: vec!["the median is 38 % higher at 1..1024 B".into()],
    }
}

/// The made-up result with texts that try to escape from every format.
pub fn hostile(text: &str) -> RunResult {
    let mut run = result(Size {
        environments: &["loopback"],
        stacks: &["tcp-spin"],
        sizes: &[64, 128],
        n_rounds: 2,
        n_samples: 40,
    });
    let put = |into: &mut String| *into = text.to_string();
    put(&mut run.name);
    put(run.started.as_mut().unwrap());
    run.source = Source::Measured { version: text.to_string() };
    run.notes.insert(text.to_string(), text.to_string());
    run.failures.push(TrialFailure { row: None, reason: text.to_string() });
    run.doubts.iter_mut().for_each(|d| put(&mut d.detail));
    run.not_available.iter_mut().for_each(|row| put(&mut row.reason));
    run.facts.values_mut().for_each(|facts| put(&mut facts.host.name));
    let facts = run.facts.values().next().unwrap().clone();
    run.facts.insert(EndpointId::new(text, Side::Client), facts);
    for (index, series) in run.series.iter_mut().enumerate() {
        series.key.environment = format!("{text}{index}");
        series.key.stack = format!("{index}{text}");
        series.settings.set(text.into(), SettingValue::text(text));
        series.doubts.push(Doubt::new(DoubtKind::Loss, text));
    }
    for verdict in &mut run.verdicts {
        put(&mut verdict.target);
        put(&mut verdict.reason);
        for evidence in &mut verdict.evidence {
            put(&mut evidence.series);
            put(&mut evidence.reason);
        }
    }
    for comparison in &mut run.comparisons {
        put(&mut comparison.a);
        put(&mut comparison.b);
        comparison.reasons.iter_mut().for_each(put);
        comparison.unmatched.iter_mut().for_each(put);
        comparison.differences.iter_mut().for_each(|d| put(&mut d.a));
    }
    run
}
