//! The summary at the end of a run, for a terminal. The figures come first, the verdict and its
//! reasons last, beside the report's path: a reader looks there when the run has ended.
//!
//! Colour repeats what the words state; without it nothing is lost.

use nm_model::result::Statistic;
use nm_model::{Outcome, RunResult};

use crate::factors;
use crate::first_screen::first_screen;
use crate::group_table::group_table;
use crate::guests;
use crate::headline::not_judged;
use crate::probes;
use crate::style::{Style, clean, wrap};
use crate::view::{self, Detail, Notes};
use crate::weight;

/// How much of a result is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Figures, doubts, comparisons, targets, verdict, path of the report.
    Everything,
    /// Comparisons, targets, verdict, path of the report.
    Targets,
    /// Verdict, path of the report.
    Verdict,
}

/// Everything about `result`; `report` is the path of the full report.
pub fn summary(result: &RunResult, style: &Style, report: Option<&str>) -> String {
    extract(result, Extent::Everything, style, report)
}

/// What `extent` selects of `result`; `report` is the path of the full report.
pub fn extract(result: &RunResult, extent: Extent, style: &Style, report: Option<&str>) -> String {
    let mut text = String::new();
    if extent == Extent::Everything {
        text += &figures(result, style);
    }
    if extent != Extent::Verdict {
        text += &comparisons(result, style);
        text += &targets(result, style);
        text.push('\n');
    }
    text += &verdict_lines(result, style);
    if let Some(report) = report {
        text += &format!("report: {}\n", clean(report));
    }
    text.trim_start_matches('\n').to_string()
}

/// The lines of the first screen, the outcome in one word before them.
pub fn verdict_lines(result: &RunResult, style: &Style) -> String {
    let screen = first_screen(result);
    let word = style.bold(&style.tone(screen.tone, screen.word));
    let mut text = String::new();
    for (index, line) in screen.lines.iter().enumerate() {
        text += &match (index, line.topic.label()) {
            (0, _) => {
                let first = format!(": {}", line.text);
                format!("{word}{}", paragraph(&first, style, screen.word.len(), 2))
            }
            (_, Some(label)) => paragraph(&format!("{label}: {}", line.text), style, 0, 2),
            (_, None) => paragraph(&line.text, style, 0, 2),
        };
    }
    text
}

/// The doubts that weigh most on the outcome, with what to do.
fn heaviest_doubts(result: &RunResult, notes: &Notes, style: &Style) -> String {
    let weighed = weight::weighed(result, notes);
    let lines: Vec<String> = weighed
        .iter()
        .take(weight::FIRST_MAX)
        .map(|doubt| {
            let kind = doubt.note.kind;
            let line = format!("{}: {}; {}", kind.title(), doubt.extent(), kind.remedy());
            format!("  {}", paragraph(&line, style, 2, 4))
        })
        .collect();
    let heading = style.bold("doubts that weigh most");
    if lines.is_empty() { String::new() } else { format!("\n{heading}\n{}", lines.concat()) }
}

/// The tables, what is missing from them, and the doubts about them.
fn figures(result: &RunResult, style: &Style) -> String {
    let notes = Notes::collect(result);
    let mut text = String::new();
    for group in view::groups(result) {
        let table = group_table(&group, &notes, Detail::Brief);
        text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
        if group.statistic == Statistic::Throughput {
            text += &settings(&group, style);
        }
    }
    for table in probes::sections(result).iter().flat_map(|section| &section.brief) {
        text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
    }
    text += &virtual_machines(result, style);
    text += &factors(result, style);
    if !result.not_available.is_empty() {
        text += &format!("\n{}\n", style.bold("not available"));
        text += &view::not_available_table(result).to_text(style);
    }
    if !result.failures.is_empty() {
        text += &format!("\n{}\n", style.bold("failed trials"));
        for failure in &result.failures {
            text += &format!("  {}", paragraph(&failure.to_string(), style, 2, 4));
        }
    }
    text + &doubts(&notes, style) + &heaviest_doubts(result, &notes, style)
}

/// `text` cleaned and wrapped. `taken` columns of its first line are already written; the lines
/// after it start at column `hang`.
pub(crate) fn paragraph(text: &str, style: &Style, taken: usize, hang: usize) -> String {
    // The part already written counts as letters of the first word.
    let padded = format!("{}{}", "x".repeat(taken - hang.min(taken)), clean(text));
    let lines = wrap(&padded, style.width.saturating_sub(hang).max(20));
    let skip = padded.len() - clean(text).len();
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        match index {
            0 => out += &line[skip.min(line.len())..],
            _ => out += &format!("{}{line}", " ".repeat(hang)),
        }
        out.push('\n');
    }
    out
}

/// What the flows of a group were sent with, each combination once.
fn settings(group: &view::Group<'_>, style: &Style) -> String {
    let mut lines: Vec<String> = group.series.iter().map(|s| view::settings_text(s)).collect();
    lines.retain(|line| !line.is_empty());
    lines.dedup();
    lines.iter().map(|line| format!("  {}", paragraph(line, style, 2, 4))).collect()
}

/// Columns before the words of a target or comparison: margin and outcome.
const OUTCOME_WIDTH: usize = 16;

/// The outcome in its colour, padded to [`OUTCOME_WIDTH`].
fn outcome_cell(outcome: Outcome, style: &Style) -> String {
    let gap = " ".repeat(OUTCOME_WIDTH - 2 - outcome.name().len());
    format!("  {}{gap}", style.tone(outcome.into(), outcome.name()))
}

/// The targets; those that decide the outcome stand last, beside it.
fn targets(result: &RunResult, style: &Style) -> String {
    let mut text = String::new();
    for sentence in not_judged(result) {
        text += &format!("  {:<width$}", "not judged", width = OUTCOME_WIDTH - 2);
        text += &paragraph(&sentence, style, OUTCOME_WIDTH, OUTCOME_WIDTH);
    }
    let of = |outcome| result.verdicts.iter().filter(move |verdict| verdict.outcome == outcome);
    let ordered = [Outcome::Pass, Outcome::Inconclusive, Outcome::Fail].into_iter().flat_map(of);
    for verdict in ordered {
        let line = format!("{}: {}", verdict.target, verdict.reason);
        text += &outcome_cell(verdict.outcome, style);
        text += &paragraph(&line, style, OUTCOME_WIDTH, OUTCOME_WIDTH);
    }
    if text.is_empty() { text } else { format!("\n{}\n{text}", style.bold("targets")) }
}

/// What guests were and ran on, and what virtualization costs.
fn virtual_machines(result: &RunResult, style: &Style) -> String {
    if !guests::has_any(result) {
        return String::new();
    }
    let steps = guests::steps_table(&guests::steps(result));
    let tables = [guests::brief_table(result), guests::findings_table(result), steps];
    let mut text = String::new();
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
    }
    text
}

/// What the factors of the plan did.
fn factors(result: &RunResult, style: &Style) -> String {
    if result.factors.is_empty() {
        return String::new();
    }
    let table = factors::table(result);
    let mut text = format!("\n{}\n", style.bold(&clean(&table.caption)));
    if !table.rows.is_empty() {
        text += &table.to_text(style);
    }
    let limits = factors::limits(result);
    text + &limits.iter().map(|l| format!("  {}", paragraph(l, style, 2, 4))).collect::<String>()
}

fn comparisons(result: &RunResult, style: &Style) -> String {
    let mut text = String::new();
    for comparison in &result.comparisons {
        let reason = comparison.reasons.first().map_or("", String::as_str);
        let line = format!("{} against {}: {reason}", comparison.b, comparison.a);
        text += &match comparison.is_cost && comparison.outcome == Outcome::Pass {
            true => format!("  {:<width$}", "cost", width = OUTCOME_WIDTH - 2),
            false => outcome_cell(comparison.outcome, style),
        };
        text += &paragraph(&line, style, OUTCOME_WIDTH, OUTCOME_WIDTH);
        if !comparison.differences.is_empty() && !comparison.is_cost {
            let fields: Vec<&str> =
                comparison.differences.iter().map(|d| d.field.as_str()).collect();
            let line = format!("not like for like in {}", fields.join(", "));
            text += &" ".repeat(OUTCOME_WIDTH);
            text += &paragraph(&line, style, OUTCOME_WIDTH, OUTCOME_WIDTH);
        }
    }
    if text.is_empty() { text } else { format!("\n{}\n{text}", style.bold("comparisons")) }
}

fn doubts(notes: &Notes, style: &Style) -> String {
    let mut text = String::new();
    for (index, note) in notes.notes.iter().enumerate() {
        let (series, detail) = &note.occurrences[0];
        let series = series.as_ref().map_or(String::new(), |series| format!(" ({series})"));
        let more = match note.occurrences.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let line = format!(
            "[{}] {}: {detail}{series}{more}; {}",
            index + 1,
            note.kind.title(),
            note.kind.remedy()
        );
        text += &format!("  {}", paragraph(&line, style, 2, 6));
    }
    if text.is_empty() { text } else { format!("\n{}\n{text}", style.bold("doubts")) }
}
