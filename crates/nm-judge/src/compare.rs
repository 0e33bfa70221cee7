//! Comparison of two results, or of two parts of one.
//!
//! Results that are not like for like get no pass, whatever their figures, and the reasons list the
//! differences. Then each figure is compared (see `rows`). The outcome depends only on the figures
//! that count: fail if the rounds show one to be worse beyond the margin, pass
//! if they show all of them to be as good or better, else inconclusive. Single runs have no rounds;
//! their figures are reported, but do not affect the outcome, because identical runs may differ by
//! half.

use std::collections::BTreeSet;

use nm_model::doubt::DoubtKind;
use nm_model::plan::PlanComparison;
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, RunState, Series, Source, Statistic};
use nm_model::stack::Difference;
use nm_model::verdict::{Comparison, Outcome, Relation};

use crate::envdiff::envdiff_of;
use crate::options::CompareOptions;
use crate::pairing::{SeriesPair, pair};
use crate::rows::{Draft, decide, is_close, metrics, single, together};
use crate::select::{Selector, paths};
use crate::wording::{count, list, ratio};

/// Reason for two runs that were measured one after the other. Of recorded rounds of one machine,
/// ten and then ten, 99 of 181 comparisons found a difference; of interleaved rounds, none.
const NOT_INTERLEAVED: &str = "the two runs were not interleaved: what the machine did between \
     them may be part of the difference; where both can be reached at once, put them into one plan";

/// Whether two measured runs took place at different times.
fn were_apart(a: &RunResult, b: &RunResult) -> bool {
    let measured = |run: &RunResult| matches!(run.source, Source::Measured { .. });
    measured(a) && measured(b) && a.started != b.started
}

/// Compares B with A.
pub fn compare(a: &RunResult, b: &RunResult, options: &CompareOptions) -> Comparison {
    let chosen = |result: &'_ RunResult, selector: &Selector| -> Vec<usize> {
        let all = result.series.iter().enumerate();
        all.filter(|(_, series)| selector.matches_key(&series.key)).map(|(at, _)| at).collect()
    };
    let of_a: Vec<&Series> = chosen(a, &options.a).iter().map(|&at| &a.series[at]).collect();
    let of_b: Vec<&Series> = chosen(b, &options.b).iter().map(|&at| &b.series[at]).collect();
    let pairing = pair(&of_a, &of_b);
    let mut comparison = Comparison {
        a: name(a, &options.a),
        b: name(b, &options.b),
        margin_percent: options.margin_percent,
        differences: differences(&pairing.pairs),
        facts: vec![],
        rows: vec![],
        overall: vec![],
        unmatched: pairing.unmatched,
        outcome: Outcome::Inconclusive,
        reasons: vec![],
    };
    if pairing.pairs.is_empty() {
        comparison.reasons.push(nothing_in_common(a, &of_a, b, &of_b, options));
        return comparison;
    }
    let environments = |side: for<'p> fn(&'p SeriesPair<'_>) -> &'p Series| -> BTreeSet<String> {
        pairing.pairs.iter().map(|pair| side(pair).key.environment.clone()).collect()
    };
    comparison.facts = envdiff_of(a, &environments(|pair| pair.a), b, &environments(|pair| pair.b));

    let mut rows: Vec<Draft> = pairing
        .pairs
        .iter()
        .flat_map(|pair| {
            let metrics = metrics(pair.a.key.statistic, options);
            metrics.into_iter().filter_map(|metric| single(pair, metric, options))
        })
        .collect();
    let (mut overall, not_known) = over_all_cases(&pairing.pairs, options);
    let counts = |draft: &Draft| options.fail_on.contains(&draft.row.metric);
    decide(overall.iter_mut().filter(|draft| counts(draft)), options);
    decide(overall.iter_mut().filter(|draft| !counts(draft)), options);
    decide(rows.iter_mut(), options);

    let is_complete = a.state == RunState::Complete && b.state == RunState::Complete;
    comparison.outcome =
        if rows.iter().chain(&overall).any(|draft| {
            counts(draft) && draft.has_rounds() && draft.row.relation == Relation::Worse
        }) {
            Outcome::Fail
        } else if comparison.differences.is_empty()
            && is_complete
            && not_known.is_empty()
            && is_as_good(overall.iter().filter(|draft| counts(draft)))
        {
            Outcome::Pass
        } else {
            Outcome::Inconclusive
        };
    comparison.reasons = reasons(&comparison, &rows, &overall, &not_known, options);
    if !is_complete {
        comparison.reasons.push("a run did not come to its end".to_string());
    }
    if were_apart(a, b) {
        comparison.reasons.push(NOT_INTERLEAVED.to_string());
    }
    comparison.reasons.extend(doubts(&pairing.pairs));
    comparison.rows = rows.into_iter().map(|draft| draft.row).collect();
    comparison.overall = overall.into_iter().map(|draft| draft.row).collect();
    comparison
}

/// Makes a comparison of a plan. A part is `ENVIRONMENT/STACK`; a published run is
/// `reference:NAME`, or `reference:NAME/STACK` for a part of it.
pub(crate) fn compare_parts(
    result: &RunResult,
    planned: &PlanComparison,
    references: &dyn Fn(&str) -> Option<RunResult>,
) -> Comparison {
    let impossible = |reason: String| Comparison {
        a: planned.a.clone(),
        b: planned.b.clone(),
        margin_percent: planned.margin_percent,
        differences: vec![],
        facts: vec![],
        rows: vec![],
        overall: vec![],
        unmatched: vec![],
        outcome: Outcome::Inconclusive,
        reasons: vec![reason],
    };
    let reference = |text: &str| -> Option<Result<(RunResult, Selector), String>> {
        let rest = text.strip_prefix("reference:")?;
        let (name, part) = match rest.split_once('/') {
            Some((name, stack)) => (name, Selector::new(&format!("*/{stack}"))),
            None => (rest, Selector::any()),
        };
        let found = references(name).map(|found| (found, part));
        Some(found.ok_or_else(|| format!("there is no published run `{name}`")))
    };
    let seed = result.plan.as_ref().map_or(1, |plan| plan.seed);
    let mut options =
        CompareOptions { margin_percent: planned.margin_percent, seed, ..Default::default() };
    let (published_a, published_b) =
        match (reference(&planned.a).transpose(), reference(&planned.b).transpose()) {
            (Err(reason), _) | (_, Err(reason)) => return impossible(reason),
            (Ok(a), Ok(b)) => (a, b),
        };
    let side = |published: Option<(RunResult, Selector)>, text: &str| match published {
        Some((run, selector)) => (Some(run), selector),
        None => (None, Selector::new(text)),
    };
    let (run_a, selector_a) = side(published_a, &planned.a);
    let (run_b, selector_b) = side(published_b, &planned.b);
    options.a = selector_a;
    options.b = selector_b;
    let comparison =
        compare(run_a.as_ref().unwrap_or(result), run_b.as_ref().unwrap_or(result), &options);
    Comparison { a: planned.a.clone(), b: planned.b.clone(), ..comparison }
}

fn name(result: &RunResult, selector: &Selector) -> String {
    if selector.is_any() {
        result.name.clone()
    } else {
        format!("{} {}", result.name, selector.text())
    }
}

/// The differences in comparability of all pairs, each once.
fn differences(pairs: &[SeriesPair]) -> Vec<Difference> {
    let mut found: Vec<Difference> = vec![];
    for pair in pairs {
        for difference in pair.a.comparability.differences(&pair.b.comparability) {
            if !found.contains(&difference) {
                found.push(difference);
            }
        }
    }
    found
}

fn nothing_in_common(
    a: &RunResult,
    of_a: &[&Series],
    b: &RunResult,
    of_b: &[&Series],
    options: &CompareOptions,
) -> String {
    let nothing = |side: &str, result: &RunResult, selector: &Selector| {
        let paths = paths(&result.series);
        match paths.is_empty() {
            true => format!("{side} has no figures"),
            false => format!(
                "nothing in {side} matches `{}`; it has {}",
                selector.text(),
                list(&paths, 8)
            ),
        }
    };
    match (of_a.is_empty(), of_b.is_empty()) {
        (true, _) => nothing("A", a, &options.a),
        (_, true) => nothing("B", b, &options.b),
        _ => format!(
            "nothing in common: A has {}, B has {}",
            list(&paths(of_a.iter().copied()), 4),
            list(&paths(of_b.iter().copied()), 4)
        ),
    }
}

/// The rows over all cases, and sentences about figures that count and that are not known.
fn over_all_cases(pairs: &[SeriesPair], options: &CompareOptions) -> (Vec<Draft>, Vec<String>) {
    type GroupId<'a> = (&'a str, &'a str, ProbeKind, Statistic);
    let mut groups: Vec<(GroupId, Vec<&SeriesPair>)> = vec![];
    for pair in pairs {
        let key = &pair.a.key;
        let group = (&*key.environment, &*key.stack, key.probe, key.statistic);
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, of_group)) => of_group.push(pair),
            None => groups.push((group, vec![pair])),
        }
    }
    let mut overall = vec![];
    let mut not_known = vec![];
    for ((.., probe, statistic), of_group) in &groups {
        for metric in metrics(*statistic, options) {
            match together(of_group, metric, options) {
                Some(draft) => overall.push(draft),
                None if options.fail_on.contains(&metric) => {
                    let over = match of_group.first().map_or("", |pair| &pair.path) {
                        "" => String::new(),
                        path => format!(" of {path}"),
                    };
                    not_known.push(format!("{metric} of {probe}{over} is not known on both sides"));
                }
                None => {}
            }
        }
    }
    (overall, not_known)
}

fn is_as_good<'a>(counting: impl Iterator<Item = &'a Draft>) -> bool {
    let mut seen_any = false;
    for draft in counting {
        seen_any = true;
        let good = matches!(draft.row.relation, Relation::Equivalent | Relation::Better);
        if !good || !draft.has_rounds() {
            return false;
        }
    }
    seen_any
}

/// The reasons, most important first: what is not like for like, the figures that count, the other
/// figures with a clear relation, and limitations.
fn reasons(
    comparison: &Comparison,
    rows: &[Draft],
    overall: &[Draft],
    not_known: &[String],
    options: &CompareOptions,
) -> Vec<String> {
    let mut reasons = vec![];
    if !comparison.differences.is_empty() {
        let each: Vec<String> = comparison
            .differences
            .iter()
            .map(|found| format!("{} is {} against {}", found.field, found.a, found.b))
            .collect();
        reasons.push(format!("not like for like: {}", each.join(", ")));
    }
    let counts = |draft: &&Draft| options.fail_on.contains(&draft.row.metric);
    let is_clear = |draft: &&Draft| draft.row.relation != Relation::Unclear;
    let (mut counting, others): (Vec<&Draft>, Vec<&Draft>) = overall.iter().partition(counts);
    counting.sort_by_key(|draft| draft.row.relation != Relation::Worse);
    reasons.extend(counting.into_iter().map(sentence));
    reasons.extend(others.into_iter().filter(is_clear).map(sentence));
    let repeats =
        |row: &Draft| overall.iter().any(|draft| draft.key.is_some() && draft.key == row.key);
    let worse_cases = rows
        .iter()
        .filter(|draft| draft.row.relation == Relation::Worse && counts(draft) && !repeats(draft));
    reasons.extend(worse_cases.map(sentence));
    reasons.extend(not_known.iter().cloned());
    if overall.iter().any(|draft| !draft.has_rounds()) {
        reasons.push(
            "a side has a single run or too few rounds, so no interval over rounds supports this"
                .to_string(),
        );
    }
    if !comparison.unmatched.is_empty() {
        let n = comparison.unmatched.len();
        reasons.push(format!("{} without a counterpart", count(n, "series", "series")));
    }
    reasons
}

/// A row in words: `p99 is clearly worse: x2.47 over 1..1024 B (…)`.
fn sentence(draft: &Draft) -> String {
    let row = &draft.row;
    let clear = row.ratio.is_some_and(|ratio| !is_close(ratio)) && !draft.has_rounds();
    let relation = match (row.relation, draft.has_rounds()) {
        (Relation::Worse, _) if clear => "clearly worse",
        (Relation::Better, _) if clear => "clearly better",
        (Relation::Worse, _) => "worse",
        (Relation::Better, _) => "better",
        (Relation::Equivalent, true) => "as good",
        (Relation::Equivalent, false) => "close",
        (Relation::Differs, _) => "different, perhaps within the margin",
        (Relation::Unclear, _) => "neither shown to differ nor to be equal",
    };
    let shown = match (row.ratio, row.interval) {
        (Some(value), Some(ends)) => format!(
            "{} for {} ({:.0} % interval {} to {}; {})",
            ratio(value),
            row.case,
            ends.level * 100.0,
            ratio(ends.low),
            ratio(ends.high),
            row.basis
        ),
        (Some(value), None) => format!("{} for {} ({})", ratio(value), row.case, row.basis),
        (None, _) => format!("{} ({})", row.case, row.basis),
    };
    format!("{} is {relation}: {shown}", row.metric)
}

/// The doubts of either side.
fn doubts(pairs: &[SeriesPair]) -> Vec<String> {
    let of_side = |side: &str, series: for<'p> fn(&'p SeriesPair<'_>) -> &'p Series| {
        let kinds: BTreeSet<DoubtKind> = pairs
            .iter()
            .flat_map(|pair| series(pair).doubts.iter().map(|doubt| doubt.kind))
            .collect();
        let titles: Vec<&str> = kinds.into_iter().map(DoubtKind::title).collect();
        (!titles.is_empty()).then(|| format!("doubts about {side}: {}", list(&titles, 8)))
    };
    [of_side("A", |pair| pair.a), of_side("B", |pair| pair.b)].into_iter().flatten().collect()
}
