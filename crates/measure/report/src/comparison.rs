//! One comparison of two results: its table, and its text for a terminal and for Markdown.

use nm_model::stack::Difference;
use nm_model::verdict::{Comparison, ComparisonRow, Interval, Relation};

use nm_model::comparison::change_text;

use crate::style::{Style, Tone, clean};
use crate::table::{Column, Table, markdown_text};
use crate::terminal::paragraph;
use crate::units::{self, NOT_AVAILABLE, or_not_available, significant};
use crate::view::Detail;

/// Longest name of a side at the head of a column, characters.
const NAME_CHARS_MAX: usize = 20;

/// How to read the table, as sentences.
pub const READING: [&str; 4] = [
    "B ÷ A is the ratio of the medians over rounds; the change says the same in words. \
     \"2.4 times slower\" takes 2.4 times as long.",
    "p is the probability of so large a difference between two equal systems, corrected for the \
     number of rows (Holm), with the test that it is of.",
    "\"as good\" means that the whole interval of the ratio lies inside the margin, \"different\" \
     that a difference is shown which may lie inside it, \"unclear\" that neither is shown.",
    "With fewer than five rounds a side nothing is claimed; the row then says whether the ranges \
     of both sides overlap.",
];

/// A name with its letter, once.
fn with_letter(name: &str, letter: char) -> String {
    let letter = format!("({letter})");
    if name.ends_with(&letter) { name.to_string() } else { format!("{name} {letter}") }
}

/// A name at the head of a column: long ones are shortened in the middle.
pub(crate) fn heading(name: &str, letter: char) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= NAME_CHARS_MAX {
        return with_letter(name, letter);
    }
    let half = NAME_CHARS_MAX / 2 - 1;
    let (head, tail) = (&letters[..half], &letters[letters.len() - half..]);
    with_letter(&format!("{}…{}", String::from_iter(head), String::from_iter(tail)), letter)
}

/// The rows of a comparison, those over all cases first.
pub fn table(comparison: &Comparison, detail: Detail) -> Table {
    let caption = format!(
        "{} against {}, margin {} %",
        with_letter(&comparison.b, 'B'),
        with_letter(&comparison.a, 'A'),
        units::plain(comparison.margin_percent)
    );
    let (a, b) = (heading(&comparison.a, 'A'), heading(&comparison.b, 'B'));
    let mut columns = vec![
        Column::text("case"),
        Column::text("figure"),
        Column::figure(a),
        Column::figure(b),
        Column::figure("B ÷ A"),
        Column::text("change"),
        Column::figure(format!("{} interval", level_text(comparison))).optional(),
        Column::text("p, test").optional(),
        Column::text("B is"),
    ];
    if detail == Detail::Full {
        columns.push(Column::text("how it was found"));
    }
    let mut table = Table::new(caption, columns);
    for row in rows(comparison) {
        table.push(relation_tone(row.relation), cells(row, detail));
    }
    table.drop_empty();
    table
}

/// Every row once. Older results repeat a row over a single case among the rows of single cases.
pub(crate) fn rows(comparison: &Comparison) -> impl Iterator<Item = &ComparisonRow> {
    let repeats = |row: &&ComparisonRow| {
        comparison.overall.iter().any(|other| {
            (&other.case, other.metric, other.a, other.b) == (&row.case, row.metric, row.a, row.b)
        })
    };
    comparison.overall.iter().chain(comparison.rows.iter().filter(move |row| !repeats(row)))
}

/// `95 %`, the level of the intervals.
fn level_text(comparison: &Comparison) -> String {
    let level = rows(comparison).find_map(|row| row.interval).map_or(0.95, |i| i.level);
    format!("{} %", units::plain(level * 100.0))
}

fn cells(row: &ComparisonRow, detail: Detail) -> Vec<String> {
    let ratio = |v: f64| if v < 100.0 { format!("{v:.3}") } else { significant(v, 4) };
    let interval = |i: Interval| format!("{} to {}", ratio(i.low), ratio(i.high));
    let change = row.ratio.and_then(|ratio| change_text(row.metric, ratio));
    let p_value = row.p_value.map(|p| match row.test {
        Some(test) => format!("{} {}", significant(p, 2), test.title()),
        None => significant(p, 2),
    });
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NOT_AVAILABLE.to_string());
    let mut cells = vec![
        row.case.clone(),
        row.metric.to_string(),
        units::figure(row.metric, row.a),
        units::figure(row.metric, row.b),
        or_not_available(row.ratio, ratio),
        or_none(change),
        or_none(row.interval.map(interval)),
        or_none(p_value),
        row.finding().to_string(),
    ];
    if detail == Detail::Full {
        cells.push(row.basis.clone());
    }
    cells
}

/// Colour of a relation.
pub(crate) fn relation_tone(relation: Relation) -> Tone {
    match relation {
        Relation::Better | Relation::Equivalent => Tone::Good,
        Relation::Worse => Tone::Bad,
        Relation::Differs | Relation::Unclear => Tone::Unsure,
    }
}

/// Fields or facts in which the sides differ, under the names of the sides.
pub fn differences_table(
    caption: &str,
    field: &str,
    comparison: &Comparison,
    differences: &[Difference],
) -> Table {
    let (a, b) = (heading(&comparison.a, 'A'), heading(&comparison.b, 'B'));
    let columns = [field, &a, &b].map(Column::text);
    let mut table = Table::new(caption, columns);
    for row in differences {
        table.push(Tone::Plain, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
    }
    table
}

/// The comparison in full for a terminal: outcome and reasons, what differs, and every row.
pub fn text(comparison: &Comparison, style: &Style) -> String {
    let mut text = String::new();
    let word = comparison.outcome.name().to_uppercase();
    text += &style.bold(&style.tone(comparison.outcome.into(), &word));
    let line = format!(": {} against {}", comparison.b, comparison.a);
    text += &paragraph(&line, style, word.len(), 2);
    for reason in &comparison.reasons {
        text += &format!("  {}", paragraph(reason, style, 2, 4));
    }
    text += &differences_text("not like for like", comparison, &comparison.differences, style);
    let table = table(comparison, Detail::Brief);
    if !table.rows.is_empty() {
        text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
    }
    text += &differences_text("facts that differ", comparison, &comparison.facts, style);
    for line in comparison.refused.iter().chain(&comparison.unmatched) {
        text += &format!("  {}", paragraph(line, style, 2, 4));
    }
    text
}

fn differences_text(
    title: &str,
    comparison: &Comparison,
    differences: &[Difference],
    style: &Style,
) -> String {
    if differences.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", style.bold(title));
    for row in differences {
        let line =
            format!("{}: {} ({}), {} ({})", row.field, row.a, comparison.a, row.b, comparison.b);
        text += &format!("  {}", paragraph(&line, style, 2, 4));
    }
    text
}

/// The comparison as a section of a Markdown report.
pub fn section(comparison: &Comparison) -> String {
    let title = title(comparison);
    format!("\n### {}: {}\n\n{}", comparison.outcome, markdown_text(&title), body(comparison))
}

/// The comparison as a Markdown document.
pub fn markdown(comparison: &Comparison) -> String {
    let word = comparison.outcome.name().to_uppercase();
    let mut text = format!("# {word}: {}\n\n", markdown_text(&title(comparison)));
    text += &body(comparison);
    if !comparison.facts.is_empty() {
        let table = differences_table("", "fact", comparison, &comparison.facts);
        text += &format!("\n## Facts that differ\n\n{}", table.to_markdown());
    }
    let lines: String = READING.iter().map(|line| format!("- {}\n", markdown_text(line))).collect();
    text + &format!("\n## How to read it\n\n{lines}")
}

/// `after against before`.
pub fn title(comparison: &Comparison) -> String {
    format!("{} against {}", comparison.b, comparison.a)
}

fn body(comparison: &Comparison) -> String {
    let mut text = String::new();
    for reason in &comparison.reasons {
        text += &format!("- {}\n", markdown_text(reason));
    }
    if !comparison.differences.is_empty() {
        let differences = &comparison.differences;
        let table = differences_table("Not like for like", "field", comparison, differences);
        text += &format!("\n{}", table.to_markdown());
    }
    let rows = table(comparison, Detail::Full);
    if !rows.rows.is_empty() {
        text += &format!("\n{}", rows.to_markdown());
    }
    for line in comparison.refused.iter().chain(&comparison.unmatched) {
        text += &format!("\n{}\n", markdown_text(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use nm_model::Metric;
    use nm_model::comparison::SignificanceTest;
    use nm_model::verdict::Outcome;

    use super::*;

    fn row(case: &str, ratio: f64) -> ComparisonRow {
        ComparisonRow {
            case: case.to_string(),
            metric: Metric::Median,
            a: Some(1000.0),
            b: Some(1000.0 * ratio),
            ratio: Some(ratio),
            interval: Some(Interval { low: ratio * 0.9, high: ratio * 1.1, level: 0.95 }),
            p_value: Some(0.0079),
            test: Some(SignificanceTest::MannWhitney),
            relation: Relation::Worse,
            is_primary: false,
            bounds: None,
            n_cases: 1,
            ranges_apart: None,
            ranges: None,
            basis: "6 rounds of before and 6 of after".to_string(),
        }
    }

    fn comparison(overall: Vec<ComparisonRow>, rows: Vec<ComparisonRow>) -> Comparison {
        Comparison {
            a: "before".to_string(),
            b: "a-folder-with-a-very-long-name".to_string(),
            margin_percent: 5.0,
            differences: vec![],
            facts: vec![],
            rows,
            overall,
            unmatched: vec![],
            refused: vec![],
            detection: None,
            is_cost: false,
            outcome: Outcome::Fail,
            reasons: vec![],
        }
    }

    fn column<'t>(table: &'t Table, title: &str) -> Vec<&'t str> {
        let at = table.columns.iter().position(|column| column.title == title);
        let at = at.unwrap_or_else(|| panic!("{title} in {:?}", table.columns));
        table.rows.iter().map(|row| row.cells[at].as_str()).collect()
    }

    #[test]
    fn a_ratio_stands_beside_its_words_and_a_p_value_beside_its_test() {
        let table = table(&comparison(vec![row("64 B", 1.2)], vec![]), Detail::Brief);
        assert_eq!(column(&table, "B ÷ A"), ["1.200"]);
        assert_eq!(column(&table, "change"), ["20 % slower"]);
        assert_eq!(column(&table, "p, test"), ["0.0079 Mann-Whitney"]);
        assert_eq!(column(&table, "95 % interval"), ["1.080 to 1.320"]);
        assert_eq!(column(&table, "B is"), ["worse"]);
    }

    #[test]
    fn columns_have_the_names_of_the_sides() {
        let table = table(&comparison(vec![row("64 B", 1.2)], vec![]), Detail::Full);
        assert_eq!(column(&table, "before (A)"), ["1.000 µs"]);
        assert_eq!(column(&table, "a-folder-…long-name (B)"), ["1.200 µs"]);
        assert_eq!(
            table.caption,
            "a-folder-with-a-very-long-name (B) against before (A), margin 5 %"
        );
        assert_eq!(heading("run (A)", 'A'), "run (A)");
    }

    #[test]
    fn a_row_that_an_older_result_repeats_is_shown_once() {
        let repeated = comparison(
            vec![row("64 B", 1.2)],
            vec![ComparisonRow { p_value: Some(0.04), ..row("64 B", 1.2) }, row("1 B", 1.1)],
        );
        assert_eq!(column(&table(&repeated, Detail::Brief), "case"), ["64 B", "1 B"]);
    }
}
