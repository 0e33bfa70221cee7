//! Doubts about a series: those of its rounds merged, and those that only a comparison of its
//! rounds can show.

use std::collections::BTreeSet;

use nm_model::metric::Quantity;
use nm_model::result::{LatencyRound, Round, RoundData, Series};
use nm_model::{Doubt, DoubtKind, Metric, SettingKind, SettingValue};

use crate::describe::{cv_percent, median, thinned};
use crate::mann_kendall::{mann_kendall, slope};
use crate::modes;
use crate::outliers::outliers;
use crate::quantile::samples_needed;
use crate::summary::PERCENTILES;
use crate::unit::with_unit;
use crate::values::{ROUNDS_MIN, principal, values};

/// Kinds that are found in this file, and therefore replaced by it.
const FOUND_HERE: [DoubtKind; 6] = [
    DoubtKind::TooFewSamples,
    DoubtKind::TooFewRounds,
    DoubtKind::Bimodal,
    DoubtKind::Unstable,
    DoubtKind::Drift,
    DoubtKind::Outliers,
];

/// Allowed coefficient of variation of throughput over rounds, %, unless the series' settings name
/// another as `max_cv_percent`. The published studies kept to 1 %.
const THROUGHPUT_CV_MAX: f64 = 1.0;

/// Allowed coefficient of variation of median latency over rounds, %.
const LATENCY_CV_MAX: f64 = 10.0;

/// Details of one kind that are listed; the others are counted.
const DETAILS_MAX: usize = 3;

/// A round this close to the others is never an outlier, as a ratio.
const OUTLIER_RATIO_MIN: f64 = 1.05;

/// A fixed percentile up to this one is expected in every round. Higher ones are shown as `n/a` in
/// a short round, which is no reason for a doubt.
const EXPECTED_PERCENTILE_MAX: f64 = 99.0;

/// Drift over rounds.
const ROUNDS_DRIFT: DriftRule = DriftRule { values_min: 8, p_max: 0.01, change_min: 0.01 };

/// Drift inside a round. Its slices are not independent, so the rule is stricter.
const SLICES_DRIFT: DriftRule = DriftRule { values_min: 16, p_max: 0.001, change_min: 0.05 };

/// Most values that are tested for drift.
const DRIFT_VALUES_MAX: usize = 1000;

/// When a change over time is called a drift.
struct DriftRule {
    values_min: usize,
    p_max: f64,
    change_min: f64,
}

/// All doubts about `series`: in the order of kinds, each kind once.
pub(crate) fn of(series: &Series) -> Vec<Doubt> {
    let rounds = &series.rounds;
    let mut found = vec![];
    found.extend(too_few_samples(rounds));
    found.extend(too_few_rounds(rounds));
    if let Some(metric) = principal(rounds) {
        let values = values(rounds, metric);
        found.extend(bimodal(metric, &values));
        found.extend(unstable(series, metric, &values));
        found.extend(outlying(metric, &values));
        found.extend(drift(metric, &values, rounds));
    }
    let of_rounds = of_rounds(rounds);
    let kept = series.doubts.iter().filter(|doubt| {
        !FOUND_HERE.contains(&doubt.kind) && of_rounds.iter().all(|other| other.kind != doubt.kind)
    });
    let kept: Vec<Doubt> = kept.cloned().collect();
    let mut all: Vec<Doubt> = vec![];
    for doubt in found.into_iter().chain(of_rounds).chain(kept) {
        match all.iter_mut().find(|other| other.kind == doubt.kind) {
            Some(other) if other.detail != doubt.detail => {
                other.detail = format!("{}; {}", other.detail, doubt.detail);
            }
            Some(_) => {}
            None => all.push(doubt),
        }
    }
    all.sort_by_key(|doubt| doubt.kind);
    all
}

/// The doubts of the rounds: one for each kind, with the number of rounds that have it.
fn of_rounds(rounds: &[Round]) -> Vec<Doubt> {
    let mut merged = vec![];
    for &kind in DoubtKind::ALL {
        let details_of = |round: &Round| -> Vec<String> {
            round.doubts.iter().filter(|d| d.kind == kind).map(|d| d.detail.clone()).collect()
        };
        let all: Vec<Vec<String>> =
            rounds.iter().map(details_of).filter(|details| !details.is_empty()).collect();
        if all.is_empty() {
            continue;
        }
        let mut seen = BTreeSet::new();
        let mut distinct: Vec<String> =
            all.iter().flatten().filter(|detail| seen.insert(*detail)).cloned().collect();
        let more = distinct.len().saturating_sub(DETAILS_MAX);
        distinct.truncate(DETAILS_MAX);
        if more > 0 {
            distinct.push(format!("and {more} more"));
        }
        let details = distinct.join("; ");
        merged.push(Doubt::new(kind, in_rounds(all.len(), rounds.len(), &details)));
    }
    merged
}

fn in_rounds(some: usize, all: usize, what: &str) -> String {
    match (some, all) {
        (_, 1) => what.to_string(),
        _ if some == all => format!("in all {all} rounds: {what}"),
        _ => format!("in {some} of {all} rounds: {what}"),
    }
}

fn too_few_rounds(rounds: &[Round]) -> Option<Doubt> {
    let n = rounds.len();
    let plural = if n == 1 { "" } else { "s" };
    let detail = || format!("{n} round{plural}, no interval below {ROUNDS_MIN}");
    (n < ROUNDS_MIN).then(|| Doubt::new(DoubtKind::TooFewRounds, detail()))
}

/// Percentiles that were requested and have no value.
fn too_few_samples(rounds: &[Round]) -> Option<Doubt> {
    let latency = |round: &Round| match &round.data {
        // Each job takes as long as many messages, so nobody expects a percentile of them.
        RoundData::Latency(data) if data.compute.is_some() => None,
        RoundData::Latency(data) => data.count.map(|count| (count, missing(data))),
        RoundData::Throughput(_) => None,
    };
    let short: Vec<(u64, Vec<f64>)> =
        rounds.iter().filter_map(latency).filter(|(_, missing)| !missing.is_empty()).collect();
    let least = short.iter().map(|(count, _)| *count).min()?;
    let mut percentiles: Vec<f64> = short.into_iter().flat_map(|(_, missing)| missing).collect();
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    let needs = percentiles.iter().map(|p| format!("p{p} needs {}", samples_needed(*p)));
    let needs = needs.collect::<Vec<_>>().join(", ");
    let detail = format!("{needs} samples; the shortest round has {least}");
    Some(Doubt::new(DoubtKind::TooFewSamples, detail))
}

fn missing(data: &LatencyRound) -> Vec<f64> {
    let expected = |p: f64| p <= EXPECTED_PERCENTILE_MAX || !PERCENTILES.contains(&p);
    let missing = data.percentiles.iter().filter(|p| p.value_ns.is_none());
    missing.map(|p| p.percentile).filter(|p| expected(*p)).collect()
}

fn bimodal(metric: Metric, values: &[f64]) -> Option<Doubt> {
    let groups = groups(values)?;
    if groups.len() < 2 {
        return None;
    }
    let describe = |group: &Vec<f64>| {
        let centre = median(group).unwrap_or_default();
        format!("{} of {} about {}", group.len(), values.len(), with_unit(metric, centre))
    };
    let detail = groups.iter().map(describe).collect::<Vec<_>>().join(", ");
    Some(Doubt::new(DoubtKind::Bimodal, format!("{metric} of the rounds: {detail}")))
}

/// The values by mode; `None` if they have no logarithms.
fn groups(values: &[f64]) -> Option<Vec<Vec<f64>>> {
    let positive = values.iter().all(|value| *value > 0.0);
    positive.then(|| modes::split(values, &modes::boundaries(values)))
}

fn unstable(series: &Series, metric: Metric, values: &[f64]) -> Option<Doubt> {
    let limit = match metric.quantity() {
        Quantity::Throughput => match series.settings.get(&SettingKind::MaxCv) {
            Some(SettingValue::Percent(limit)) if *limit > 0.0 => *limit,
            _ => THROUGHPUT_CV_MAX,
        },
        _ => LATENCY_CV_MAX,
    };
    let cv = cv_percent(values).filter(|cv| *cv > limit)?;
    let n = values.len();
    let detail = format!("the {metric} of {n} rounds has a CV of {cv:.1} %, allowed {limit} %");
    Some(Doubt::new(DoubtKind::Unstable, detail))
}

/// Rounds that are far from the others of their mode.
fn outlying(metric: Metric, values: &[f64]) -> Option<Doubt> {
    let mut out = vec![];
    for group in groups(values)?.iter().filter(|group| group.len() >= ROUNDS_MIN) {
        let logs: Vec<f64> = group.iter().map(|value| value.ln()).collect();
        let centre = with_unit(metric, median(group)?);
        let far = outliers(&logs, OUTLIER_RATIO_MIN.ln());
        out.extend(
            far.iter().map(|i| format!("{} against {centre}", with_unit(metric, group[*i]))),
        );
    }
    let n = out.len();
    let plural = if n == 1 { "" } else { "s" };
    let of = values.len();
    let detail = format!("{n} round{plural} of {of}: {metric} {}", out.join(", "));
    (n > 0).then(|| Doubt::new(DoubtKind::Outliers, detail))
}

fn drift(metric: Metric, values: &[f64], rounds: &[Round]) -> Option<Doubt> {
    let over_rounds = change(values, &ROUNDS_DRIFT)
        .map(|change| format!("the {metric} {} through {} rounds", rises_by(change), values.len()));
    let inside = drift_inside(rounds);
    let details: Vec<String> = over_rounds.into_iter().chain(inside).collect();
    (!details.is_empty()).then(|| Doubt::new(DoubtKind::Drift, details.join("; ")))
}

/// Drift inside rounds, if at least half of them drift in the same direction.
fn drift_inside(rounds: &[Round]) -> Option<String> {
    let medians = |round: &Round| -> Vec<f64> {
        match &round.data {
            RoundData::Latency(data) => data.slices.iter().map(|s| s.median_ns).collect(),
            RoundData::Throughput(_) => vec![],
        }
    };
    let changes: Vec<f64> =
        rounds.iter().filter_map(|round| change(&medians(round), &SLICES_DRIFT)).collect();
    let (rising, falling): (Vec<f64>, Vec<f64>) = changes.iter().partition(|c| **c > 0.0);
    let same = if rising.len() >= falling.len() { rising } else { falling };
    if 2 * same.len() < rounds.len() {
        return None;
    }
    let what = format!("the median of the slices {}", rises_by(median(&same)?));
    Some(in_rounds(same.len(), rounds.len(), &what))
}

/// Change from first to last as a share of the median, if `rule` calls it a drift.
fn change(values: &[f64], rule: &DriftRule) -> Option<f64> {
    let values = thinned(values, DRIFT_VALUES_MAX);
    if values.len() < rule.values_min || mann_kendall(&values).p_value > rule.p_max {
        return None;
    }
    let change = slope(&values)? * (values.len() - 1) as f64 / median(&values)?;
    (change.is_finite() && change.abs() >= rule.change_min).then_some(change)
}

fn rises_by(change: f64) -> String {
    let word = if change > 0.0 { "rises" } else { "falls" };
    format!("{word} by {:.1} %", 100.0 * change.abs())
}
