//! The figures of a result that a finding threatens.

use nm_model::finding::{Finding, Threat};
use nm_model::result::{Series, Statistic};
use nm_model::stack::StackPair;
use nm_model::{Metric, RunResult, StackClass};

use crate::units;
use crate::view;

/// Figures that are named of each kind of threat.
const FIGURES_MAX: usize = 2;

/// Environments in which packets pass no network device.
const LOCAL: [&str; 3] = ["loopback", "netns", "bridge"];

/// What `finding` threatens: figures of `result` with their values, or kinds of figures where the
/// result has none.
pub fn threatened(finding: &Finding, result: Option<&RunResult>) -> Vec<String> {
    let of_threat = |threat: &Threat| -> Vec<String> {
        let figures = result.map_or(vec![], |result| figures(*threat, result));
        match (figures.is_empty(), result) {
            (false, _) => figures,
            (true, Some(_)) => vec![format!("{} (none in this run)", threat.title())],
            (true, None) => vec![threat.title().to_string()],
        }
    };
    let mut all: Vec<String> = finding.threatens.iter().flat_map(of_threat).collect();
    all.dedup();
    all
}

fn figures(threat: Threat, result: &RunResult) -> Vec<String> {
    let metric = match threat {
        Threat::Median | Threat::Wakeup | Threat::Network | Threat::Clock => Metric::Median,
        Threat::Tail => Metric::Percentile(99.0),
        Threat::Maximum => Metric::Max,
        Threat::Throughput => return throughput(result),
        Threat::Loss => return losses(result),
        // No probe measures it.
        Threat::OneWay => return vec![],
    };
    let mut values: Vec<(f64, &Series)> = result
        .series
        .iter()
        .filter(|series| series.key.statistic != Statistic::Throughput)
        .filter(|series| concerns(threat, series))
        .filter_map(|series| Some((view::value(series, metric)?, series)))
        .collect();
    values.sort_by(|a, b| b.0.total_cmp(&a.0));
    // One figure of a stack says enough.
    let mut named: Vec<String> = vec![];
    let mut texts = vec![];
    for (value, series) in values {
        if texts.len() == FIGURES_MAX {
            break;
        }
        let path = series.key.path();
        if named.contains(&path) {
            continue;
        }
        texts.push(format!("{metric} of {}: {}", series.key, units::latency(value)));
        named.push(path);
    }
    texts
}

fn concerns(threat: Threat, series: &Series) -> bool {
    let is_local = LOCAL.contains(&series.key.environment.as_str());
    match threat {
        Threat::Network => !is_local && series.key.class() != Some(StackClass::SameHost),
        Threat::Wakeup => series
            .key
            .stack
            .parse::<StackPair>()
            .is_ok_and(|stacks| !stacks.to_string().contains("spin")),
        _ => true,
    }
}

fn throughput(result: &RunResult) -> Vec<String> {
    let series = result.series.iter().filter(|s| s.key.statistic == Statistic::Throughput);
    let text = |series: &Series| {
        let value = view::value(series, Metric::Throughput)?;
        Some(format!("throughput of {}: {}", series.key, units::throughput(value)))
    };
    series.filter_map(text).take(FIGURES_MAX).collect()
}

fn losses(result: &RunResult) -> Vec<String> {
    let series = result.series.iter().filter(|series| view::lost(series) > 0);
    let text = |series: &Series| format!("{} lost of {}", view::lost(series), series.key);
    series.map(text).take(FIGURES_MAX).collect()
}
