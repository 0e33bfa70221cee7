//! A comparison in at most 30 lines for a terminal. They say what decided, what the pair can find,
//! the primary figures, and what else to look at.

use nm_model::comparison::change_text;
use nm_model::verdict::{Comparison, ComparisonRow, Interval, Outcome, Relation};

use crate::comparison::{heading, relation_tone, rows, title};
use crate::style::{Style, clean, wrap};
use crate::table::{Column, Table};
use crate::units;

/// Most lines of one sentence.
pub(crate) const SENTENCE_LINES_MAX: usize = 3;

/// Most lines of the table, its heads included.
const TABLE_LINES_MAX: usize = 12;

/// Most secondary figures, and most reasons where nothing could be decided.
const LOOK_MAX: usize = 5;

/// The comparison in brief. `--all` prints the rest.
pub fn text(comparison: &Comparison, style: &Style) -> String {
    let word = comparison.outcome.name().to_uppercase();
    let word = if comparison.is_cost { "COST".to_string() } else { word };
    let head = format!(": {}", title(comparison));
    let mut text = style.bold(&style.tone(comparison.outcome.into(), &word));
    text += &sentence(&head, 0, 1, style);
    let primary: Vec<&ComparisonRow> = rows(comparison).filter(|row| row.is_primary).collect();
    let sentences = sentences(comparison, &primary);
    text.extend(sentences.iter().map(|one| sentence(one, 2, SENTENCE_LINES_MAX, style)));
    let (table, n_hidden) = figures(comparison, &primary, style);
    text += &table;
    let looks = looks(comparison);
    if !looks.is_empty() && !comparison.is_cost {
        text += &format!("\n{}\n", style.bold("look at this, which decides nothing"));
        text.extend(looks.iter().take(LOOK_MAX).map(|row| sentence(&look(row), 2, 1, style)));
    }
    text + &rest(comparison, n_hidden + looks.len().saturating_sub(LOOK_MAX), style)
}

/// At most so many lines of a sentence, each behind `indent` spaces.
pub(crate) fn sentence(text: &str, indent: usize, n_lines_max: usize, style: &Style) -> String {
    let width = style.width.saturating_sub(indent + 12).max(20);
    let mut lines = wrap(&clean(text), width);
    if lines.len() > n_lines_max {
        lines.truncate(n_lines_max);
        if let Some(last) = lines.last_mut() {
            last.push_str(" …");
        }
    }
    lines.iter().map(|line| format!("{}{line}\n", " ".repeat(indent))).collect()
}

/// The deciding sentence and what the pair finds; the costs; or why nothing is decided.
fn sentences(comparison: &Comparison, primary: &[&ComparisonRow]) -> Vec<String> {
    let size = |row: &&&ComparisonRow| row.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    let worse = primary.iter().filter(|row| row.relation == Relation::Worse);
    let worst = worse.max_by(|x, y| size(x).total_cmp(&size(y)));
    let finds = comparison.reasons.iter().find(|reason| reason.starts_with("this pair finds"));
    let reasons = comparison.reasons.iter().cloned();
    match (comparison.outcome, worst) {
        (Outcome::Fail, Some(row)) => {
            let figure = |value| units::figure(row.metric, value);
            let (a, b) = (figure(row.a), figure(row.b));
            let deciding = format!("{}: {b} against {a}", change(row));
            std::iter::once(deciding).chain(finds.cloned()).collect()
        }
        _ if comparison.is_cost => reasons.take(LOOK_MAX).collect(),
        _ => reasons.take(1).chain(finds.cloned()).collect(),
    }
}

/// `p99 for 64 B is 344 times slower`.
fn change(row: &ComparisonRow) -> String {
    let change = row.ratio.and_then(|ratio| change_text(row.metric, ratio));
    let change = change.unwrap_or_else(|| "not a ratio".to_string());
    format!("{} {} is {change}", row.metric, row.place())
}

/// A secondary figure in one line.
fn look(row: &ComparisonRow) -> String {
    format!("{} ({})", change(row), row.finding())
}

/// The primary figures as a table, and how many are left out of it.
fn figures(comparison: &Comparison, primary: &[&ComparisonRow], style: &Style) -> (String, usize) {
    if primary.is_empty() {
        return (String::new(), 0);
    }
    let (a, b) = (heading(&comparison.a, 'A'), heading(&comparison.b, 'B'));
    let columns = [
        Column::text("primary figure of"),
        Column::text("figure"),
        Column::figure(a),
        Column::figure(b),
        Column::text("change"),
        Column::figure("B ÷ A at most"),
        Column::text("B is"),
    ];
    let table_of = |shown: &[&ComparisonRow]| {
        let mut table = Table::new(String::new(), columns.clone());
        for row in shown {
            table.push(relation_tone(row.relation), cells(row));
        }
        table.to_text(style)
    };
    let mut sorted = primary.to_vec();
    sorted.sort_by_key(|row| row.relation != Relation::Worse);
    let mut n_shown = sorted.len();
    let mut text = table_of(&sorted);
    while text.lines().count() > TABLE_LINES_MAX && n_shown > 1 {
        n_shown -= 1;
        text = table_of(&sorted[..n_shown]);
    }
    (format!("\n{text}"), sorted.len() - n_shown)
}

fn cells(row: &ComparisonRow) -> Vec<String> {
    let change = row.ratio.and_then(|ratio| change_text(row.metric, ratio));
    let upper = row.bounds.map(|Interval { low, high, .. }| match row.metric.more_is_better() {
        true => format!("{low:.2} (least)"),
        false => format!("{high:.2}"),
    });
    let or_none = |text: Option<String>| text.unwrap_or_else(|| units::NOT_AVAILABLE.to_string());
    vec![
        row.case.clone(),
        row.metric.to_string(),
        units::figure(row.metric, row.a),
        units::figure(row.metric, row.b),
        or_none(change),
        or_none(upper),
        match row.relation {
            Relation::Equivalent => "not worse".to_string(),
            _ => row.finding().to_string(),
        },
    ]
}

/// The secondary figures with a clear difference: worse ones first, largest first.
fn looks(comparison: &Comparison) -> Vec<&ComparisonRow> {
    let is_clear = |relation| matches!(relation, Relation::Worse | Relation::Better);
    let secondary = rows(comparison).filter(|row| !row.is_primary && is_clear(row.relation));
    let mut looks: Vec<&ComparisonRow> = secondary.collect();
    let size = |row: &ComparisonRow| row.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    looks.sort_by(|x, y| {
        let is_better = |row: &ComparisonRow| row.relation == Relation::Better;
        is_better(x).cmp(&is_better(y)).then(size(y).total_cmp(&size(x)))
    });
    looks
}

/// How much `--all` prints besides.
fn rest(comparison: &Comparison, n_clear: usize, style: &Style) -> String {
    let n_lines = comparison.unmatched.len() + comparison.refused.len();
    let counts = [
        (n_clear, "figure that differs", "figures that differ"),
        (rows(comparison).count(), "row in all", "rows in all"),
        (n_lines, "series not compared", "series not compared"),
        (comparison.facts.len(), "fact that differs", "facts that differ"),
    ];
    let parts: Vec<String> = counts
        .into_iter()
        .filter(|(n, ..)| *n > 0)
        .map(|(n, one, many)| units::plural(n, one, many))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    let line = format!("--all prints the rest: {}.", parts.join(", "));
    format!("\n{}", sentence(&line, 0, 2, style))
}

#[cfg(test)]
mod tests {
    use nm_model::Metric;

    use super::*;

    fn row(case: &str, ratio: f64, is_primary: bool) -> ComparisonRow {
        ComparisonRow {
            case: case.to_string(),
            metric: Metric::Percentile(99.0),
            a: Some(30_000.0),
            b: Some(30_000.0 * ratio),
            ratio: Some(ratio),
            interval: None,
            p_value: None,
            test: None,
            relation: Relation::Worse,
            is_primary,
            bounds: Some(Interval { low: ratio * 0.9, high: ratio * 1.1, level: 0.95 }),
            n_cases: 1,
            ranges_apart: None,
            ranges: None,
            basis: "six rounds".to_string(),
        }
    }

    fn large() -> Comparison {
        let finds = "this pair finds 32 % and more in 4 primary figures; assumed: much".repeat(5);
        Comparison {
            a: "before".to_string(),
            b: "after".to_string(),
            margin_percent: 5.0,
            differences: vec![],
            facts: vec![],
            rows: (0..500).map(|at| row(&format!("{at} B"), 2.0, false)).collect(),
            overall: (0..40)
                .map(|at| row(&format!("netns/tcp-spin over {at}..1024 B"), 344.0, true))
                .collect(),
            unmatched: vec!["only before has much".to_string(); 40],
            refused: vec![],
            detection: None,
            is_cost: false,
            outcome: Outcome::Fail,
            reasons: vec!["p99 is worse, and so on. ".repeat(40), finds],
        }
    }

    #[test]
    fn the_largest_comparison_has_at_most_30_lines() {
        for width in [20, 60, 80, 100, 200] {
            let text = text(&large(), &Style { colour: false, width });
            assert!(text.lines().count() <= 30, "{width}: {text}");
        }
    }

    #[test]
    fn the_first_lines_say_what_decided_and_what_the_pair_finds() {
        let text = text(&large(), &Style { colour: false, width: 100 });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "FAIL: after against before");
        assert!(lines[1].contains("344 times slower: 10.32 ms against 30.00 µs"), "{text}");
        assert!(lines[2].contains("this pair finds 32 % and more"), "{text}");
        assert!(text.contains("look at this"), "{text}");
        assert!(text.contains("--all prints the rest"), "{text}");
    }
}
