//! The built-in plans judge the published runs that they reproduce as the studies did. A limit that
//! a study's own machine misses would ask more than the study showed.

use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{Series, Statistic};
use nm_model::{Plan, StackPair};

use super::load;

/// Figures of a published run, and the row of a plan that reproduces them.
struct Reproduced {
    run: &'static str,
    /// The stack of its series; all of them if empty.
    of: &'static str,
    plan: &'static str,
    row: &'static str,
    /// The requirements that the study's machine missed.
    missed: &'static [&'static str],
}

const fn met(
    run: &'static str,
    of: &'static str,
    plan: &'static str,
    row: &'static str,
) -> Reproduced {
    Reproduced { run, of, plan, row, missed: &[] }
}

const ONLOAD: &str = "onload+tcp-spin";

const REPRODUCED: &[Reproduced] = &[
    met("deftech-hft-bm-sfc9220", ONLOAD, "deftech-hft", "ssh/onload+tcp-spin"),
    met("deftech-hft-bm-sfc9250", ONLOAD, "deftech-hft", "ssh/onload+tcp-spin"),
    met("deftech-hft-bm-sfc9250", ONLOAD, "deftech-hft", "netns/onload+tcp-spin"),
    met("deftech-hft-vm-pf", ONLOAD, "deftech-hft", "vm-sriov/onload+tcp-spin"),
    // The older hosts were the reason for the newer ones.
    Reproduced {
        missed: &["median < 2.2us at size>256,size<=512", "median < 2us at size<=256"],
        ..met("deftech-e5-bm-ull", ONLOAD, "deftech-hft", "ssh/onload+tcp-spin")
    },
    Reproduced {
        missed: &[
            "median < 2.2us at size>256,size<=512",
            "median < 2us at size<=256",
            "p99 < 3.2us at size>512,size<=1024",
            "p99 < 3us at size<=512",
        ],
        ..met("deftech-e5-bm-full", ONLOAD, "deftech-hft", "ssh/onload+tcp-spin")
    },
    Reproduced {
        missed: &[
            "median < 2.5us at size>512,size<=1024",
            "median < 2us at size<=512",
            "p99 < 3.2us at size>512,size<=1024",
            "p99 < 3us at size<=512",
        ],
        ..met("deftech-e5-vm-pf", ONLOAD, "deftech-hft", "vm-sriov/onload+tcp-spin")
    },
    met("prose-figures", "vmware-rtt-vnic", "vmware-pingpong", "vm-vswitch/tcp-blocking"),
    met("prose-figures", "vmware-rtt-passthrough", "vmware-pingpong", "vm-sriov/tcp-blocking"),
    met("prose-figures", "vmware-rtt-bypass-low", "vmware-pingpong", "vm-sriov/onload+tcp-spin"),
    met("prose-figures", "vmware-rtt-bypass-high", "vmware-pingpong", "vm-sriov/onload+tcp-spin"),
    met("prose-figures", "vmware-rtt-vnic", "full", "vm-vswitch/tcp-blocking"),
    met("prose-figures", "vmware-rtt-passthrough", "full", "netns/tcp-blocking"),
    met("prose-figures", "vmware-rtt-passthrough", "quick", "netns/tcp-blocking"),
    met("prose-figures", "vmware-rtt-vnic", "quick", "bridge/tcp-blocking"),
    met("prose-figures", "vmware-rtt-vnic", "two-hosts", "ssh/tcp-blocking"),
    met("prose-figures", "vmware-rtt-vnic", "attached", "vm-attached/tcp-blocking"),
    met("prose-figures", "monterey-tcprr-lat-1B", "monterey-network", "netns/tcp-blocking"),
    met("prose-figures", "monterey-tcprr-lat-1kB", "monterey-network", "netns/tcp-blocking"),
    met("prose-figures", "monterey-tcprr-lat-100kB", "monterey-network", "netns/tcp-blocking"),
    met("monterey-throughput", "nuttcp", "monterey-network", "netns/tcp-blocking"),
    met("monterey-throughput", "netperf", "monterey-network", "netns/tcp-blocking"),
    met("monterey-ezbrokerage-latency", "", "monterey-exchange", "loopback/tcp-epoll"),
    met("monterey-ezbrokerage-latency", "", "monterey-mobility", "loopback/tcp-epoll"),
    met("monterey-ezbrokerage-latency", "", "full", "loopback/tcp-epoll"),
    met("monterey-ezbrokerage-latency", "", "quick", "loopback/tcp-epoll"),
    met("prose-figures", "xen-total-accel", "xenserver-stream", "vm-vswitch/tcp-blocking"),
    met("prose-figures", "xen-total-accel", "xenserver-stream", "vm-sriov/tcp-blocking"),
    Reproduced {
        missed: &["throughput >= 18.5 Gb/s"],
        ..met("prose-figures", "xen-total-noaccel", "xenserver-stream", "vm-vswitch/tcp-blocking")
    },
];

/// The figure of a published series as a row of a plan has it: half round trips of messages, round
/// trips of requests. A figure from a sentence is its mean, and that of every size it was said of.
fn figure(series: &Series, probe: ProbeKind, metric: Metric) -> Option<f64> {
    let value = series
        .estimate(metric)
        .or_else(|| series.estimate(Metric::Mean).filter(|_| metric == Metric::Median))?
        .value;
    match (probe, series.key.statistic) {
        (ProbeKind::Pingpong, Statistic::RoundTrip) => Some(value / 2.0),
        (ProbeKind::Rr, Statistic::HalfRoundTrip) => Some(value * 2.0),
        _ => Some(value),
    }
}

/// The cases of a row that a series has, or that a sentence has a figure of.
fn cases(plan: &Plan, row: (&str, StackPair), series: &Series) -> Vec<Case> {
    let rows = plan.rows();
    let rows = rows.iter().filter(|one| {
        one.environment.name() == row.0
            && one.stacks == row.1
            && one.probe().kind() == series.key.probe
    });
    // The study's messages had other sizes.
    let rate = |case: &Case| match case {
        Case::Request { rate_per_s, .. } if series.key.probe == ProbeKind::Exchange => *rate_per_s,
        _ => None,
    };
    let mut cases: Vec<Case> = rows.flat_map(|row| row.probe().cases()).collect();
    match series.key.case {
        Case::Total => cases.retain(|case| case.size_bytes().is_none_or(|size| size <= 1024)),
        case if rate(&case).is_some() => cases.retain(|one| rate(one) == rate(&case)),
        case => cases.retain(|one| *one == case),
    }
    cases
}

/// The requirements that a published run misses in a row of a plan, and how many it was held to.
fn misses(one: &Reproduced) -> (Vec<String>, usize) {
    let plan = load(one.plan).unwrap();
    let (environment, stack) = one.row.split_once('/').unwrap();
    let stacks: StackPair = stack.parse().unwrap();
    let run = nm_report::reference::load(one.run).unwrap();
    let (mut missed, mut n_held) = (vec![], 0);
    for series in run.series.iter().filter(|s| one.of.is_empty() || s.key.stack == one.of) {
        let probe = series.key.probe;
        for case in cases(&plan, (environment, stacks), series) {
            let targets = plan.targets.iter().filter(|target| {
                target.on.matches(environment, stack)
                    && target.covers_probe(probe)
                    && target.covers_class(stacks.class())
                    && target.require.covers(&case)
            });
            for target in targets {
                let Some(value) = figure(series, probe, target.require.metric) else { continue };
                n_held += 1;
                if !target.require.op.holds(value, target.require.limit) {
                    missed.push(target.require.text.clone());
                }
            }
        }
    }
    missed.sort();
    missed.dedup();
    (missed, n_held)
}

#[test]
fn published_runs_pass_and_fail_as_their_studies_did() {
    for one in REPRODUCED {
        let Reproduced { run, of, plan, row, .. } = one;
        let (missed, n_held) = misses(one);
        assert!(n_held > 0, "{plan}: no target is for {run} {of} in {row}");
        assert_eq!(missed, one.missed, "{plan}: {run} {of} in {row}");
    }
}

#[test]
fn every_plan_with_a_published_run_is_judged_against_one() {
    for (name, _) in super::built_in() {
        let has_run = !load(name).unwrap().references.is_empty();
        assert_eq!(REPRODUCED.iter().any(|one| one.plan == *name), has_run, "{name}");
    }
}
