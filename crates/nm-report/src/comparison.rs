//! One comparison of two results: its table, and its text for a terminal and for Markdown.

use nm_model::verdict::{Comparison, ComparisonRow, Relation};

use crate::style::{Style, Tone, clean};
use crate::table::{Table, markdown_text};
use crate::terminal::paragraph;
use crate::units::{self, or_not_available, significant};
use crate::view::interval_text;

/// The rows of a comparison, those over all cases first.
pub fn table(comparison: &Comparison) -> Table {
    let caption = format!(
        "{} (B) against {} (A), margin {} %",
        comparison.b,
        comparison.a,
        units::plain(comparison.margin_percent)
    );
    let titles =
        ["case", "figure", "#A", "#B", "#B ÷ A", "interval", "#p", "B is", "how it was found"];
    let mut table = Table::new(caption, &titles);
    for row in comparison.overall.iter().chain(&comparison.rows) {
        table.push(relation_tone(row.relation), cells(row));
    }
    table.drop_empty(&["p"]);
    table
}

fn cells(row: &ComparisonRow) -> Vec<String> {
    vec![
        row.case.clone(),
        row.metric.to_string(),
        units::figure(row.metric, row.a),
        units::figure(row.metric, row.b),
        or_not_available(row.ratio, |v| format!("{v:.3}")),
        interval_text(row.interval, |v| format!("{v:.3}")),
        or_not_available(row.p_value, |v| significant(v, 2)),
        row.relation.to_string(),
        row.basis.clone(),
    ]
}

/// Colour of a relation.
fn relation_tone(relation: Relation) -> Tone {
    match relation {
        Relation::Better | Relation::Equivalent => Tone::Good,
        Relation::Worse => Tone::Bad,
        Relation::Differs | Relation::Unclear => Tone::Unsure,
    }
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
    if !comparison.differences.is_empty() {
        text += &format!("\n{}\n", style.bold("not like for like"));
        for difference in &comparison.differences {
            let line = format!("{}: {} (A), {} (B)", difference.field, difference.a, difference.b);
            text += &format!("  {}", paragraph(&line, style, 2, 4));
        }
    }
    let table = table(comparison);
    text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
    if !comparison.facts.is_empty() {
        text += &format!("\n{}\n", style.bold("facts that differ"));
        for fact in &comparison.facts {
            let line = format!("{}: {} (A), {} (B)", fact.field, fact.a, fact.b);
            text += &format!("  {}", paragraph(&line, style, 2, 4));
        }
    }
    for unmatched in &comparison.unmatched {
        text += &format!("  {}", paragraph(unmatched, style, 2, 4));
    }
    text
}

/// The comparison as a section of a Markdown report.
pub fn section(comparison: &Comparison) -> String {
    let mut text = format!(
        "\n### {}: {} against {}\n\n",
        comparison.outcome,
        markdown_text(&comparison.b),
        markdown_text(&comparison.a)
    );
    for reason in &comparison.reasons {
        text += &format!("- {}\n", markdown_text(reason));
    }
    if !comparison.differences.is_empty() {
        let mut table = Table::new("Not like for like", &["field", "A", "B"]);
        for row in &comparison.differences {
            table.push(Tone::Differs, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
        }
        text += &format!("\n{}", table.to_markdown());
    }
    let rows = table(comparison);
    if !rows.rows.is_empty() {
        text += &format!("\n{}", rows.to_markdown());
    }
    text += &comparison
        .unmatched
        .iter()
        .map(|line| format!("\n{}\n", markdown_text(line)))
        .collect::<String>();
    text
}
