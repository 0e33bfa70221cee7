//! Comparison of two results, or of two parts of one.
//!
//! Each figure is compared (see `rows`). The outcome depends only on the primary figures (see
//! `primary`). It is fail if one is worse beyond what equal runs differ by and beyond the margin.
//! It is pass if none is worse by more than the pair can find, else inconclusive (see `gate`). All
//! other figures are a family of their own. Series without counterpart or not like for like are
//! listed. None of these changes the outcome. Primary series that are missing or not like for like
//! do: what was not measured again may have become worse. Results that are equal pass.
//!
//! Parts that differ by design have a cost and no verdict (see `cost`).
//!
//! Series of emulated guests are not compared; a sentence for each says so.

use std::collections::BTreeSet;

use nm_model::campaign::NotAvailable;
use nm_model::comparison::change_text;
use nm_model::doubt::DoubtKind;
use nm_model::plan::{PlanComparison, published_run};
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, RunState, Series, Source, Statistic};
use nm_model::stack::Difference;
use nm_model::verdict::{Comparison, Outcome, Relation};

use crate::cost;
use crate::envdiff::envdiff_of;
use crate::gate::{self, detection_text};
use crate::options::{CompareOptions, Setup};
use crate::pairing::{Pairing, SeriesPair, pair};
use crate::primary::Primary;
use crate::rows::{Draft, decide, is_close, metrics, single, together};
use crate::select::{Selector, paths};
use crate::wording::{count, list, ratio};

/// Reason for two runs that were measured one after the other. Of recorded rounds of one machine,
/// ten and then ten, 99 of 181 comparisons found a difference; of interleaved rounds, none.
const NOT_INTERLEAVED: &str = "the two runs were not interleaved: what the machine did between \
     them may be part of the difference; where both can be reached at once, use one plan or \
     `compare --against`";

/// Reason for two sides that hold the same figures.
const EQUAL: &str = "the two sides are equal: every figure of every round is the same";

/// Whether two measured runs took place at different times.
fn were_apart(a: &RunResult, b: &RunResult) -> bool {
    let measured = |run: &RunResult| matches!(run.source, Source::Measured { .. });
    measured(a) && measured(b) && a.started != b.started
}

/// Whether both sides are parts of one run, whose rounds are interleaved.
fn are_one_run(a: &RunResult, b: &RunResult) -> bool {
    let is_same_start = a.started.is_some() && a.started == b.started;
    std::ptr::eq(a, b) || (is_same_start && a.name == b.name)
}

/// Whether every round of every pair has the same figures on both sides.
fn are_equal(pairing: &Pairing) -> bool {
    let figures = |series: &Series| -> Vec<_> {
        series.rounds.iter().map(|round| round.data.clone()).collect()
    };
    pairing.only_a.is_empty()
        && pairing.only_b.is_empty()
        && pairing.pairs.iter().all(|pair| figures(pair.a) == figures(pair.b))
}

/// Compares B with A.
pub fn compare(a: &RunResult, b: &RunResult, options: &CompareOptions) -> Comparison {
    let setup = &Setup::new(a, b, options);
    let chosen = |result: &'_ RunResult, selector: &Selector| -> Vec<usize> {
        let all = result.series.iter().enumerate();
        all.filter(|(_, series)| selector.matches_key(&series.key)).map(|(at, _)| at).collect()
    };
    let of_a: Vec<&Series> = chosen(a, &options.a).iter().map(|&at| &a.series[at]).collect();
    let of_b: Vec<&Series> = chosen(b, &options.b).iter().map(|&at| &b.series[at]).collect();
    let pairing = pair(&of_a, &of_b);
    let (pairing, refused) = without_emulated(pairing, setup.names());
    let mut comparison = empty(setup.names.clone(), options.margin_percent);
    comparison.differences = differences(&pairing.pairs);
    comparison.refused = refused;
    let emulated = emulated_reason(comparison.refused.len(), pairing.pairs.len());
    if pairing.pairs.is_empty() {
        comparison.unmatched = pairing.unmatched(setup.names());
        let nothing = || nothing_in_common(a, &of_a, b, &of_b, setup);
        comparison.reasons.push(emulated.unwrap_or_else(nothing));
        return comparison;
    }
    let environments = |side: for<'p> fn(&'p SeriesPair<'_>) -> &'p Series| -> BTreeSet<String> {
        pairing.pairs.iter().map(|pair| side(pair).key.environment.clone()).collect()
    };
    comparison.facts = envdiff_of(a, &environments(|pair| pair.a), b, &environments(|pair| pair.b));
    let is_complete = a.state == RunState::Complete && b.state == RunState::Complete;
    let is_one_run = are_one_run(a, b);
    comparison.is_cost = options.is_cost || (is_one_run && options.a != options.b);
    let is_left = |one: &&Series| {
        let is_one = |other: &Series| std::ptr::eq(*one, other);
        pairing.pairs.iter().any(|pair| is_one(pair.a)) || pairing.only_a.iter().any(|o| is_one(o))
    };
    let left: Vec<&Series> = of_a.iter().copied().filter(is_left).collect();
    let is_one_run = is_one_run || options.is_interleaved;
    let rules = Rules { primary: Primary::of(a, b, &left), is_complete, is_one_run };
    fill(&mut comparison, &pairing, &rules, setup);
    if comparison.refused.is_empty() && are_equal(&pairing) {
        let is_alike = comparison.differences.is_empty();
        comparison.reasons.insert(usize::from(!is_alike), EQUAL.to_string());
        if is_alike && a.state == b.state {
            comparison.outcome = Outcome::Pass;
        }
    }
    if !is_complete {
        comparison.reasons.push("a run did not come to its end".to_string());
    }
    if were_apart(a, b) && !options.is_interleaved {
        comparison.reasons.push(NOT_INTERLEAVED.to_string());
    }
    comparison.reasons.extend(emulated);
    comparison.reasons.extend(doubts(&pairing.pairs, setup.names()));
    comparison.unmatched = pairing.unmatched(setup.names());
    comparison
}

/// The pairing without pairs of which a side was measured in emulated guests, and a sentence for
/// each of these.
fn without_emulated<'a>(
    mut pairing: Pairing<'a>,
    [name_a, name_b]: [&str; 2],
) -> (Pairing<'a>, Vec<String>) {
    let mut refused = vec![];
    pairing.pairs.retain(|pair| {
        let marks = [pair.a, pair.b].map(Series::emulated_mark);
        let sides = match &marks {
            [Some(a), Some(b)] => format!("{name_a} is {a}, {name_b} is {b}"),
            [Some(a), None] => format!("{name_a} is {a}"),
            [None, Some(b)] => format!("{name_b} is {b}"),
            [None, None] => return true,
        };
        let series = match &marks {
            [Some(_), _] => &pair.a.key,
            _ => &pair.b.key,
        };
        refused.push(format!("{series} is not compared: {sides}"));
        false
    });
    (pairing, refused)
}

/// The reason for pairs that are not compared.
fn emulated_reason(n_refused: usize, n_left: usize) -> Option<String> {
    let what = match n_left {
        0 => "nothing is compared".to_string(),
        _ => format!(
            "{} not compared",
            match n_refused {
                1 => "1 series is".to_string(),
                n => format!("{n} series are"),
            }
        ),
    };
    (n_refused > 0).then(|| {
        format!(
            "{what}: guests were emulated, so the figures say nothing about virtualization here"
        )
    })
}

/// A comparison in which nothing is compared yet.
fn empty([a, b]: [String; 2], margin_percent: f64) -> Comparison {
    Comparison {
        a,
        b,
        margin_percent,
        differences: vec![],
        facts: vec![],
        rows: vec![],
        overall: vec![],
        unmatched: vec![],
        refused: vec![],
        detection: None,
        is_cost: false,
        outcome: Outcome::Inconclusive,
        reasons: vec![],
    }
}

/// What decides, and how.
struct Rules {
    primary: Primary,
    is_complete: bool,
    is_one_run: bool,
}

/// Fills in rows, outcome and the reasons that follow from them.
fn fill(comparison: &mut Comparison, pairing: &Pairing, rules: &Rules, setup: &Setup) {
    let options = setup.options;
    let mut rows: Vec<Draft> = pairing
        .pairs
        .iter()
        .flat_map(|pair| {
            let metrics = metrics(pair.a.key.statistic, options);
            metrics.into_iter().filter_map(|metric| single(pair, metric, setup))
        })
        .collect();
    let Overall { rows: mut overall, not_known, mut is_primary_missing } =
        over_all_cases(&pairing.pairs, &rules.primary, setup);
    decide(overall.iter_mut().filter(|draft| draft.row.is_primary), options);
    decide(overall.iter_mut().filter(|draft| !draft.row.is_primary), options);
    decide(rows.iter_mut(), options);
    // A group of one case has the same figures in both lists; it is kept where it is decided.
    let repeats = |row: &Draft| {
        let is_same = |other: &Draft| other.key == row.key && other.row.metric == row.row.metric;
        row.key.is_some() && overall.iter().any(is_same)
    };
    rows.retain(|row| !repeats(row));
    if comparison.is_cost {
        comparison.reasons = cost::sentences(&overall, setup);
        if !comparison.reasons.is_empty() {
            comparison.outcome = Outcome::Pass;
        }
        overall.iter_mut().for_each(|draft| draft.row.is_primary = false);
    } else {
        let primary = overall.iter_mut().filter(|draft| draft.row.is_primary);
        let gate = gate::decide(primary, rules.is_one_run, setup);
        is_primary_missing |= pairing.only_a.iter().any(|one| rules.primary.has(one));
        let is_open = is_primary_missing || !rules.is_complete;
        comparison.outcome = match gate.outcome {
            Outcome::Pass if is_open => Outcome::Inconclusive,
            outcome => outcome,
        };
        comparison.detection = gate.detection;
        let drafts = Drafts { rows: &rows, overall: &overall, not_known: &not_known };
        let sentence = gate.sentence.as_ref();
        comparison.reasons = reasons(comparison, &drafts, sentence, is_primary_missing, pairing);
    }
    comparison.rows = rows.into_iter().map(|draft| draft.row).collect();
    comparison.overall = overall.into_iter().map(|draft| draft.row).collect();
}

/// Makes a comparison of a plan. A part is `ENVIRONMENT/STACK`; a published run is
/// `reference:NAME`, or `reference:NAME/STACK` for a part of it.
pub(crate) fn compare_parts(
    result: &RunResult,
    planned: &PlanComparison,
    references: &dyn Fn(&str) -> Option<RunResult>,
) -> Comparison {
    let names = [planned.a.clone(), planned.b.clone()];
    let impossible = |reason: String| Comparison {
        reasons: vec![reason],
        ..empty(names, planned.margin_percent)
    };
    let reference = |text: &str| -> Option<Result<(RunResult, Selector), String>> {
        let (name, stack) = published_run(text)?;
        let part = stack.map_or(Selector::any(), |stack| Selector::new(&format!("*/{stack}")));
        let found = references(name).map(|found| (found, part));
        Some(found.ok_or_else(|| format!("there is no published run `{name}`")))
    };
    let seed = result.plan.as_ref().map_or(1, |plan| plan.seed);
    let mut options = CompareOptions {
        margin_percent: planned.margin_percent,
        name_a: Some(planned.a.clone()),
        name_b: Some(planned.b.clone()),
        seed,
        is_cost: true,
        ..Default::default()
    };
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
    compare(run_a.as_ref().unwrap_or(result), run_b.as_ref().unwrap_or(result), &options)
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
    setup: &Setup,
) -> String {
    let [name_a, name_b] = setup.names();
    let nothing = |side: &str, result: &RunResult, selector: &Selector| {
        let is_meant =
            |row: &&NotAvailable| selector.matches(row.environment.name(), &row.stack.to_string());
        let unavailable = result.not_available.iter().find(is_meant);
        let paths = paths(&result.series);
        match (unavailable, paths.is_empty()) {
            (Some(NotAvailable { environment, stack, reason, .. }), _) => {
                format!("{environment}/{stack} is not available: {reason}")
            }
            (None, true) => format!("{side} has no figures"),
            (None, false) => format!(
                "nothing in {side} matches `{}`; it has {}",
                selector.text(),
                list(&paths, 8)
            ),
        }
    };
    match (of_a.is_empty(), of_b.is_empty()) {
        (true, _) => nothing(name_a, a, &setup.options.a),
        (_, true) => nothing(name_b, b, &setup.options.b),
        _ => format!(
            "nothing in common: {name_a} has {}, {name_b} has {}",
            list(&paths(of_a.iter().copied()), 4),
            list(&paths(of_b.iter().copied()), 4)
        ),
    }
}

/// The rows over all cases.
struct Overall {
    rows: Vec<Draft>,
    /// Sentences about primary figures that are not known.
    not_known: Vec<String>,
    /// Whether a primary figure is not known, or has no pair that is like for like.
    is_primary_missing: bool,
}

fn over_all_cases(pairs: &[SeriesPair], primary: &Primary, setup: &Setup) -> Overall {
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
    let mut found = Overall { rows: vec![], not_known: vec![], is_primary_missing: false };
    for ((.., probe, statistic), mut of_group) in groups {
        let is_primary = of_group.iter().any(|pair| primary.has(pair.a));
        // What is not like for like does not decide; the other cases of the group do.
        if is_primary && of_group.iter().any(|pair| pair.is_like_for_like()) {
            of_group.retain(|pair| pair.is_like_for_like());
        }
        for metric in metrics(statistic, setup.options) {
            let counts = is_primary && setup.options.fail_on.contains(&metric);
            match together(&of_group, metric, setup) {
                Some(mut draft) => {
                    draft.row.is_primary = counts && draft.is_like_for_like;
                    found.is_primary_missing |= counts && !draft.is_like_for_like;
                    found.rows.push(draft);
                }
                None if counts => {
                    let over = match of_group.first().map_or("", |pair| &pair.path) {
                        "" => String::new(),
                        path => format!(" of {path}"),
                    };
                    let text = format!("{metric} of {probe}{over} is not known on both sides");
                    found.not_known.push(text);
                    found.is_primary_missing = true;
                }
                None => {}
            }
        }
    }
    found
}

/// Rows before they are leading.
struct Drafts<'d> {
    rows: &'d [Draft],
    overall: &'d [Draft],
    not_known: &'d [String],
}

/// The reasons, the deciding one first: the primary figures, what they could have shown, the other
/// figures with a clear relation, and limitations.
fn reasons(
    comparison: &Comparison,
    drafts: &Drafts<'_>,
    deciding: Option<&String>,
    is_primary_missing: bool,
    pairing: &Pairing,
) -> Vec<String> {
    let mut missing: Vec<String> = missing_in_b(comparison, pairing).into_iter().collect();
    missing.extend(not_like_for_like(comparison));
    let is_first = is_primary_missing && comparison.outcome != Outcome::Fail;
    let mut reasons = if is_first { missing.clone() } else { vec![] };
    reasons.extend(deciding.cloned());
    let (mut primary, others): (Vec<&Draft>, Vec<&Draft>) =
        drafts.overall.iter().partition(|draft| draft.row.is_primary);
    // Ratios that read the same keep their order, the median first.
    let size =
        |draft: &&Draft| draft.row.ratio.map_or(0.0, |ratio| (ratio.ln().abs() * 1e6).round());
    primary.sort_by(|x, y| {
        let is_worse = |draft: &&Draft| draft.row.relation == Relation::Worse;
        is_worse(y).cmp(&is_worse(x)).then(size(y).total_cmp(&size(x)))
    });
    let leading = usize::from(comparison.outcome == Outcome::Fail).min(primary.len());
    reasons.extend(primary[..leading].iter().copied().map(sentence));
    reasons.extend(comparison.detection.as_ref().map(detection_text));
    reasons.extend(primary[leading..].iter().copied().map(sentence));
    if !is_first {
        reasons.append(&mut missing);
    }
    let is_clear = |draft: &&Draft| draft.row.relation != Relation::Unclear;
    reasons.extend(others.into_iter().filter(is_clear).map(sentence));
    let worse_cases = drafts.rows.iter().filter(|draft| draft.row.relation == Relation::Worse);
    reasons.extend(worse_cases.map(sentence));
    reasons.extend(drafts.not_known.iter().cloned());
    if drafts.overall.iter().any(|draft| !draft.has_rounds()) {
        reasons.push(
            "a side has a single run or too few rounds, so no interval over rounds supports this"
                .to_string(),
        );
    }
    if !pairing.only_b.is_empty() {
        let series = count(pairing.only_b.len(), "series", "series");
        reasons.push(format!("{series} of {} without a counterpart", comparison.b));
    }
    reasons
}

/// In what the sides are not like for like.
fn not_like_for_like(comparison: &Comparison) -> Option<String> {
    let each = comparison.differences.iter();
    let each: Vec<String> =
        each.map(|found| format!("{} is {} against {}", found.field, found.a, found.b)).collect();
    (!each.is_empty()).then(|| format!("not like for like: {}", each.join(", ")))
}

/// Why B cannot be called as good as A if it lacks series of A.
fn missing_in_b(comparison: &Comparison, pairing: &Pairing) -> Option<String> {
    let Comparison { a, b, .. } = comparison;
    let n_missing = pairing.n_missing_in_b();
    let n_all = n_missing + pairing.pairs.len();
    (n_missing > 0).then(|| {
        format!("{n_missing} of {n_all} series of {a} are missing in {b}, and may be worse there")
    })
}

/// A row in words: `p99 is clearly worse: 2.5 times slower (x2.47) over 1..1024 B (…)`, or
/// `median is 300 times slower (x300) for 64 B: too few rounds to claim; … (…)`.
fn sentence(draft: &Draft) -> String {
    let row = &draft.row;
    let is_clear = row.ratio.is_some_and(|ratio| !is_close(ratio)) && !draft.has_rounds();
    let case = row.place();
    let Some(value) = row.ratio else {
        return format!("{} {case}: {} ({})", row.metric, row.finding(), row.basis);
    };
    let change = match change_text(row.metric, value) {
        Some(change) => format!("{change} ({}) {case}", ratio(value)),
        None => format!("{} {case}", ratio(value)),
    };
    let basis = match row.interval {
        Some(ends) => format!(
            "{:.0} % interval {} to {}; {}",
            ends.level * 100.0,
            ratio(ends.low),
            ratio(ends.high),
            row.basis
        ),
        None => row.basis.clone(),
    };
    let found = match row.relation {
        Relation::Unclear if !draft.has_rounds() => {
            return format!("{} is {change}: {} ({basis})", row.metric, row.finding());
        }
        Relation::Worse if is_clear => "clearly worse",
        Relation::Better if is_clear => "clearly better",
        Relation::Unclear => "neither shown to differ nor to be equal",
        Relation::Differs => "different, perhaps within the margin",
        _ => row.finding(),
    };
    format!("{} is {found}: {change} ({basis})", row.metric)
}

/// The doubts of either side.
fn doubts(pairs: &[SeriesPair], [a, b]: [&str; 2]) -> Vec<String> {
    let of_side = |side: &str, series: for<'p> fn(&'p SeriesPair<'_>) -> &'p Series| {
        let kinds: BTreeSet<DoubtKind> = pairs
            .iter()
            .flat_map(|pair| series(pair).doubts.iter().map(|doubt| doubt.kind))
            .collect();
        let titles: Vec<&str> = kinds.into_iter().map(DoubtKind::title).collect();
        (!titles.is_empty()).then(|| format!("doubts about {side}: {}", list(&titles, 8)))
    };
    [of_side(a, |pair| pair.a), of_side(b, |pair| pair.b)].into_iter().flatten().collect()
}
