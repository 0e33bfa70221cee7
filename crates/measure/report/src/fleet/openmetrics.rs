//! A fleet as OpenMetrics text, as [`crate::openmetrics`] has it for one run.

use nm_fleet::result::FleetResult;
use nm_model::Outcome;

use crate::openmetrics::{Family, Labels, families_text};

/// The text, closed by `# EOF`.
pub fn text(found: &FleetResult) -> String {
    families_text(&[
        fleet(found),
        host_outcomes(found),
        host_set_aside(found),
        host_ratios(found),
        pair_outcomes(found),
        pair_latency(found),
    ])
}

fn fleet(found: &FleetResult) -> Family {
    let labels = vec![
        ("plan", found.plan.clone()),
        ("pairs", found.pairs_chosen.clone()),
        ("state", found.state.to_string()),
        ("outcome", found.outcome.to_string()),
    ];
    Family {
        name: "nearmetal_fleet",
        unit: "",
        help: "The run of a fleet that all other samples are of; always 1.",
        samples: vec![(labels, 1.0)],
    }
}

/// A sample for each outcome that something could have come to: 1 for the one that it has.
fn by_outcome(labels: &Labels, has: Outcome) -> Vec<(Labels, f64)> {
    let sample = |outcome: &Outcome| {
        let mut labels = labels.clone();
        labels.push(("outcome", outcome.to_string()));
        (labels, f64::from(u8::from(*outcome == has)))
    };
    Outcome::ALL.iter().map(sample).collect()
}

fn host_outcomes(found: &FleetResult) -> Family {
    let of_host = found.hosts.iter().flat_map(|host| {
        let labels = vec![("host", host.host.name.clone())];
        by_outcome(&labels, host.outcome)
    });
    Family {
        name: "nearmetal_fleet_host_verdict",
        unit: "",
        help: "1 for the outcome of the host, else 0.",
        samples: of_host.collect(),
    }
}

fn host_set_aside(found: &FleetResult) -> Family {
    let of_host = found.hosts.iter().map(|host| {
        let labels = vec![("host", host.host.name.clone())];
        (labels, f64::from(u8::from(host.set_aside.is_some())))
    });
    Family {
        name: "nearmetal_fleet_host_set_aside",
        unit: "",
        help: "1 if the host failed and its pairs were not measured, else 0.",
        samples: of_host.collect(),
    }
}

fn host_ratios(found: &FleetResult) -> Family {
    let mut samples = vec![];
    for host in &found.hosts {
        for one in &host.ratios {
            let bounds = [("estimate", one.ratio), ("low", one.low), ("high", one.high)];
            for (bound, value) in bounds {
                let labels = vec![
                    ("host", host.host.name.clone()),
                    ("metric", one.metric.clone()),
                    ("bound", bound.to_string()),
                ];
                samples.push((labels, value));
            }
        }
    }
    Family {
        name: "nearmetal_fleet_host_ratio",
        unit: "ratio",
        help: "The figure of the host's pairs to that of the median host, with its 95 % interval.",
        samples,
    }
}

fn pair_outcomes(found: &FleetResult) -> Family {
    let measured = found.pairs.iter().filter_map(|pair| Some((pair, pair.outcome?)));
    let of_pair = measured.flat_map(|(pair, outcome)| {
        let labels = vec![("client", pair.client.clone()), ("server", pair.server.clone())];
        by_outcome(&labels, outcome)
    });
    Family {
        name: "nearmetal_fleet_pair_verdict",
        unit: "",
        help: "1 for the outcome of the pair, else 0; pairs without a result are absent.",
        samples: of_pair.collect(),
    }
}

fn pair_latency(found: &FleetResult) -> Family {
    let mut samples = vec![];
    for pair in &found.pairs {
        for (quantile, ns) in [("0.5", pair.median_ns), ("0.99", pair.p99_ns)] {
            let Some(ns) = ns else { continue };
            let labels = vec![
                ("client", pair.client.clone()),
                ("server", pair.server.clone()),
                ("quantile", quantile.to_string()),
            ];
            samples.push((labels, ns / 1e9));
        }
    }
    Family {
        name: "nearmetal_fleet_pair_latency_seconds",
        unit: "seconds",
        help: "Latency of the pair's first series by quantile.",
        samples,
    }
}
