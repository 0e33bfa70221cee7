//! The rows of a comparison: one figure of one case, and one figure over all cases together.
//!
//! With five rounds a side or more, a row is found by `nm_stats::compare` over the rounds' values.
//! Over several cases the value of a round is the geometric mean of its cases. With fewer rounds,
//! as in published and imported runs, single cases claim nothing. Over several cases the ratio is
//! the median of the cases' ratios, and the cases are the blocks of a sign test. That shows whether
//! the two *runs* differ, not whether two *machines* do, and each such row says so.
//!
//! Rows without enough rounds also say whether the ranges of both sides overlap (see `ranges`).
//!
//! Probabilities are corrected by Holm within three families: the primary figures, the other
//! figures over all cases, and the single cases. Of these only the first decide, and by the
//! deviation between runs (see `gate`).

use nm_model::comparison::{Ranges, SignificanceTest, ValueRange};
use nm_model::metric::Metric;
use nm_model::plan::Plan;
use nm_model::probe::Case;
use nm_model::result::{Series, SeriesKey, Statistic};
use nm_model::verdict::{ComparisonRow, Interval, Relation};
use nm_stats::compare::{Claim, compare as compare_rounds};
use nm_stats::describe::median;
use nm_stats::{holm, rounds};

use crate::options::{CLOSE_PERCENT, CompareOptions, Setup};
use crate::pairing::SeriesPair;
use crate::ranges::ranges;
use crate::wording::{count, figure};

/// Largest chance that a claim of difference is wrong.
const ALPHA: f64 = 0.05;

/// Largest message that takes part in the rows over all sizes: above it the link dominates.
pub(crate) const SIZE_BYTES_MAX: u32 = 1024;

const LATENCY_METRICS: [Metric; 7] = [
    Metric::Median,
    Metric::Percentile(99.0),
    Metric::Percentile(99.9),
    Metric::Mean,
    Metric::Es10,
    Metric::Stddev,
    Metric::Max,
];

/// A row before its probability is corrected.
pub(crate) struct Draft {
    pub row: ComparisonRow,
    /// The series of A, for a row of a single case.
    pub key: Option<SeriesKey>,
    /// Whether all of its pairs are like for like.
    pub is_like_for_like: bool,
    /// The claim of the rounds and its interval; absent if there are too few rounds.
    found: Option<(Claim, Option<Interval>)>,
    /// Values of the rounds of A and B.
    pub rounds: [Vec<f64>; 2],
}

impl Draft {
    /// Whether there are enough rounds for a claim.
    pub fn has_rounds(&self) -> bool {
        self.found.is_some()
    }
}

/// The figures that are compared for a series.
pub(crate) fn metrics(statistic: Statistic, options: &CompareOptions) -> Vec<Metric> {
    let mut metrics = match statistic {
        Statistic::Throughput => vec![Metric::Throughput],
        _ => LATENCY_METRICS.to_vec(),
    };
    for &metric in &options.fail_on {
        let is_of_flows = metric == Metric::Throughput;
        if is_of_flows == (statistic == Statistic::Throughput) && !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    metrics
}

/// The values over rounds as estimates take them: none if a round lacks the percentile.
pub(crate) fn values(series: &Series, metric: Metric) -> Vec<f64> {
    let mut values = rounds::values(&series.rounds, metric);
    values.retain(|value| *value >= 0.0);
    values
}

/// One figure of one pair; nothing if a side has no such figure.
pub(crate) fn single(pair: &SeriesPair, metric: Metric, setup: &Setup) -> Option<Draft> {
    let (a, b) = (values(pair.a, metric), values(pair.b, metric));
    let case = match pair.path.as_str() {
        "" => pair.a.key.case.to_string(),
        path => format!("{path} {}", pair.a.key.case),
    };
    let mut draft = draft(case, metric, &a, &b, setup)?;
    draft.key = Some(pair.a.key.clone());
    draft.is_like_for_like = pair.is_like_for_like();
    if !draft.has_rounds() {
        draft.row.ranges = ranges(pair.a, pair.b, metric);
        draft.row.ranges_apart = draft.row.ranges.map(|ranges| ranges.are_apart());
        if let Some(ranges) = &draft.row.ranges {
            draft.row.basis += &format!("; {}", ranges_text(metric, ranges, setup.names()));
        }
    }
    Some(draft)
}

/// `p5 to p95 of the samples: 1.2 us to 1.4 us of before, 360 us to 420 us of after`.
fn ranges_text(metric: Metric, ranges: &Ranges, names: [&str; 2]) -> String {
    let side = |range: ValueRange, name: &str| {
        format!("{} to {} of {name}", figure(metric, range.low), figure(metric, range.high))
    };
    format!("{}: {}, {}", ranges.span, side(ranges.a, names[0]), side(ranges.b, names[1]))
}

fn draft(case: String, metric: Metric, a: &[f64], b: &[f64], setup: &Setup) -> Option<Draft> {
    let (median_a, median_b) = (median(a)?, median(b)?);
    let mut row = ComparisonRow {
        case,
        metric,
        a: Some(median_a),
        b: Some(median_b),
        ratio: (median_a > 0.0).then(|| median_b / median_a),
        interval: None,
        p_value: None,
        test: None,
        relation: Relation::Unclear,
        is_primary: false,
        bounds: None,
        n_cases: 1,
        ranges_apart: None,
        ranges: None,
        basis: String::new(),
    };
    let rounds = [a.to_vec(), b.to_vec()];
    let rounds_min = Plan::ROUNDS_MIN as usize;
    if a.len().min(b.len()) < rounds_min {
        row.basis = few(a.len(), b.len(), setup.names());
        return Some(Draft { row, key: None, is_like_for_like: false, found: None, rounds });
    }
    let options = setup.options;
    let ratio = compare_rounds(a, b, options.margin_percent / 100.0, options.seed);
    row.interval = ratio.interval;
    row.p_value = ratio.p_value;
    row.test = ratio.test();
    row.basis = ratio.note(metric, setup.names());
    let (_, interval) = ratio.decisive();
    let found = Some((ratio.claim, interval));
    Some(Draft { row, key: None, is_like_for_like: false, found, rounds })
}

fn few(a: usize, b: usize, names: [&str; 2]) -> String {
    match (a, b) {
        (1, 1) => "a single run a side: no interval over rounds".to_string(),
        _ => format!(
            "{} of {} and {b} of {}: below {} a side nothing is claimed",
            count(a, "round", "rounds"),
            names[0],
            names[1],
            Plan::ROUNDS_MIN
        ),
    }
}

/// One figure over all cases of a group of pairs that share path, probe and statistic.
pub(crate) fn together(pairs: &[&SeriesPair], metric: Metric, setup: &Setup) -> Option<Draft> {
    let known: Vec<&SeriesPair> = pairs
        .iter()
        .copied()
        .filter(|pair| pair.a.key.case.size_bytes().is_none_or(|size| size <= SIZE_BYTES_MAX))
        .filter(|pair| !values(pair.a, metric).is_empty() && !values(pair.b, metric).is_empty())
        .collect();
    if let [pair] = known[..] {
        return single(pair, metric, setup);
    }
    let label = range(&known);
    let side = |side: for<'p> fn(&'p SeriesPair<'_>) -> &'p Series| {
        let series: Vec<&Series> = known.iter().map(|pair| side(pair)).collect();
        round_means(&series, metric)
    };
    let (a, b) = (side(|pair| pair.a), side(|pair| pair.b));
    let mut found = if a.len().min(b.len()) >= Plan::ROUNDS_MIN as usize {
        draft(label, metric, &a, &b, setup)?
    } else {
        blocks(label, metric, &known, setup)?
    };
    if !found.has_rounds() {
        found.rounds = [a, b];
    }
    found.row.n_cases = u32::try_from(known.len()).unwrap_or(u32::MAX);
    found.is_like_for_like = known.iter().all(|pair| pair.is_like_for_like());
    Some(found)
}

/// The geometric mean over cases of each round in which every case has the figure.
pub(crate) fn round_means(series: &[&Series], metric: Metric) -> Vec<f64> {
    let Some(first) = series.first() else { return vec![] };
    let numbers = first.rounds.iter().map(|round| round.round);
    numbers
        .filter_map(|number| {
            let logs: Option<Vec<f64>> = series
                .iter()
                .map(|series| {
                    let round = series.rounds.iter().find(|round| round.round == number)?;
                    let value = round.value(metric)?;
                    (value.is_finite() && value > 0.0).then(|| value.ln())
                })
                .collect();
            let logs = logs?;
            Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
        })
        .collect()
}

/// The median ratio over cases with a sign test, for runs that have too few rounds.
fn blocks(label: String, metric: Metric, pairs: &[&SeriesPair], setup: &Setup) -> Option<Draft> {
    let cases: Vec<(&SeriesPair, f64, f64)> = pairs
        .iter()
        .filter_map(|pair| {
            let (a, b) = (median(&values(pair.a, metric))?, median(&values(pair.b, metric))?);
            (a > 0.0 && b > 0.0).then_some((*pair, a, b))
        })
        .collect();
    let ratios: Vec<f64> = cases.iter().map(|(_, a, b)| b / a).collect();
    let ratio = median(&ratios)?;
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let below = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let is_single = |series: &Series| values(series, metric).len() == 1;
    let single_runs = pairs.iter().all(|pair| is_single(pair.a) && is_single(pair.b));
    let runs = if single_runs { "a single run a side" } else { "too few rounds a side" };
    let apart = cases_apart(&cases, metric);
    let n_cases = count(ratios.len(), "case", "cases");
    let overlap = match apart {
        None => String::new(),
        Some(0) => "; the ranges overlap in every case".to_string(),
        Some(n) if n == cases.len() => "; the ranges do not overlap in any case".to_string(),
        Some(n) => format!("; the ranges do not overlap in {n} of {n_cases}"),
    };
    let row = ComparisonRow {
        case: label,
        metric,
        a: median(&cases.iter().map(|(_, a, _)| *a).collect::<Vec<_>>()),
        b: median(&cases.iter().map(|(.., b)| *b).collect::<Vec<_>>()),
        ratio: Some(ratio),
        interval: None,
        p_value: Some(sign_test(above, below)),
        test: Some(SignificanceTest::Sign),
        relation: Relation::Unclear,
        is_primary: false,
        bounds: None,
        n_cases: 0,
        ranges_apart: apart.map(|n| n == cases.len()),
        ranges: None,
        basis: format!(
            "{runs}, so no interval over rounds: {n_cases} compared, {} larger in {above}{overlap}",
            setup.names[1]
        ),
    };
    Some(Draft { row, key: None, is_like_for_like: false, found: None, rounds: [vec![], vec![]] })
}

/// In how many cases the ranges of both sides do not overlap; nothing if one is not known.
fn cases_apart(cases: &[(&SeriesPair, f64, f64)], metric: Metric) -> Option<usize> {
    cases.iter().try_fold(0, |n_apart, (pair, ..)| {
        Some(n_apart + usize::from(ranges(pair.a, pair.b, metric)?.are_apart()))
    })
}

/// Two-sided probability of at least so uneven a split of `above + below` even chances. Ties do not
/// count.
pub(crate) fn sign_test(above: usize, below: usize) -> f64 {
    // Beyond a thousand the powers of two leave f64; no result has so many cases.
    let n = (above + below).min(1000);
    let fewer = above.min(below).min(n / 2);
    let mut term = 0.5f64.powi(i32::try_from(n).unwrap_or(1000));
    let mut sum = term;
    for k in 0..fewer {
        term *= (n - k) as f64 / (k + 1) as f64;
        sum += term;
    }
    (2.0 * sum).min(1.0)
}

/// The cases of a row over several cases, with what tells it from the other rows.
fn range(pairs: &[&SeriesPair]) -> String {
    let cases: Vec<Case> = pairs.iter().map(|pair| pair.a.key.case).collect();
    match pairs.first().map(|pair| pair.path.as_str()) {
        None | Some("") => cases_text(&cases),
        Some(path) => format!("{path} {}", cases_text(&cases)),
    }
}

/// `over 1..1024 B`, `over all 4 cases`; one case by its name.
pub(crate) fn cases_text(cases: &[Case]) -> String {
    if let [case] = cases {
        return case.to_string();
    }
    let sizes: Option<Vec<u32>> = cases
        .iter()
        .map(|case| match case {
            Case::Message { size_bytes } => Some(*size_bytes),
            _ => None,
        })
        .collect();
    match sizes.as_deref() {
        Some([first, rest @ ..]) => {
            let low = rest.iter().fold(*first, |low, size| low.min(*size));
            let high = rest.iter().fold(*first, |high, size| high.max(*size));
            format!("over {low}..{high} B")
        }
        _ => format!("over all {} cases", cases.len()),
    }
}

/// Corrects the probabilities of one family and decides how B stands to A in each row.
pub(crate) fn decide<'a>(
    family: impl IntoIterator<Item = &'a mut Draft>,
    options: &CompareOptions,
) {
    let mut family: Vec<&mut Draft> = family.into_iter().collect();
    let known: Vec<usize> = (0..family.len())
        .filter(|&at| family[at].row.p_value.is_some_and(|p| p.is_finite()))
        .collect();
    let raw: Vec<f64> = known.iter().filter_map(|&at| family[at].row.p_value).collect();
    for (&at, corrected) in known.iter().zip(holm(&raw)) {
        family[at].row.p_value = Some(corrected);
    }
    for draft in &mut family {
        draft.row.relation = match draft.found {
            Some((found, interval)) => by_rounds(&draft.row, found, interval, options),
            None => by_cases(&draft.row, options),
        };
    }
}

/// `ratio` beyond the margin as a relation; nothing inside it.
fn beyond(metric: Metric, low: f64, high: f64, options: &CompareOptions) -> Option<Relation> {
    let margin = options.margin_percent / 100.0;
    let larger_is = if metric.more_is_better() { Relation::Better } else { Relation::Worse };
    let smaller_is = if metric.more_is_better() { Relation::Worse } else { Relation::Better };
    if low > 1.0 + margin {
        Some(larger_is)
    } else if high < 1.0 - margin {
        Some(smaller_is)
    } else {
        None
    }
}

fn by_rounds(
    row: &ComparisonRow,
    found: Claim,
    interval: Option<Interval>,
    options: &CompareOptions,
) -> Relation {
    match (found, row.p_value) {
        (Claim::Equivalent, _) => Relation::Equivalent,
        (Claim::Difference, Some(p)) if p <= ALPHA => {
            // Zeros have an order but no ratio and so no interval; their medians must do.
            let medians = row.b.unwrap_or_default() / row.a.unwrap_or_default();
            let (low, high) = interval.map_or((medians, medians), |ends| (ends.low, ends.high));
            beyond(row.metric, low, high, options).unwrap_or(Relation::Differs)
        }
        _ => Relation::Unclear,
    }
}

fn by_cases(row: &ComparisonRow, options: &CompareOptions) -> Relation {
    let (Some(ratio), Some(p)) = (row.ratio, row.p_value) else { return Relation::Unclear };
    match beyond(row.metric, ratio, ratio, options) {
        Some(relation) if p < ALPHA => relation,
        _ if is_close(ratio) => Relation::Equivalent,
        _ => Relation::Unclear,
    }
}

/// Whether a ratio of two single runs is called close.
pub(crate) fn is_close(ratio: f64) -> bool {
    let edge = 1.0 + CLOSE_PERCENT / 100.0;
    (1.0 / edge..=edge).contains(&ratio)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sign_test_has_its_textbook_values() {
        // 2 * C(11,0) / 2^11 and 2 * (C(11,0)+C(11,1)+C(11,2)) / 2^11.
        assert!((sign_test(11, 0) - 2.0 / 2048.0).abs() < 1e-12);
        assert!((sign_test(9, 2) - 2.0 * 67.0 / 2048.0).abs() < 1e-12);
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(3, 3), 1.0);
    }

    proptest! {
        #[test]
        fn the_sign_test_is_a_symmetric_probability(above in 0usize..2000, below in 0usize..2000) {
            let p = sign_test(above, below);
            prop_assert!((0.0..=1.0).contains(&p));
            prop_assert_eq!(p, sign_test(below, above));
        }
    }
}
