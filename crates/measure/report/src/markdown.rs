//! The report as Markdown, for a merge request or a job summary: the same tables, no charts.

use nm_model::RunResult;
use nm_model::verdict::Verdict;

use crate::audit;
use crate::comparison;
use crate::factors;
use crate::facts;
use crate::first_screen::{Line, first_screen};
use crate::group_table::group_table;
use crate::guests;
use crate::headline::not_judged;
use crate::probes;
use crate::probes::pingpong::matrix::Matrix;
use crate::probes::section::Section;
use crate::style::Tone;
use crate::table::{Column, Table, markdown_text};
use crate::title::title;
use crate::view::{self, Detail, Group, Notes};

/// The report of `result`.
pub fn report(result: &RunResult) -> String {
    let notes = Notes::collect(result);
    let screen = first_screen(result);
    let mut text = format!("# {}: {}\n\n", screen.word, markdown_text(&title(result)));
    text += &lines_of(&screen.lines).join("\n");
    text += &audit::markdown::of_result(result);
    if !result.verdicts.is_empty() {
        text += "\n## Why\n";
        result.verdicts.iter().for_each(|verdict| text += &target(verdict));
    }
    text += &bullets("Not judged", &not_judged(result));
    if !result.comparisons.is_empty() {
        text += "\n## What was compared\n";
        result.comparisons.iter().for_each(|comparison| text += &comparison::section(comparison));
    }
    if !result.series.is_empty() {
        text += "\n## Figures\n";
        if let Some(matrix) = Matrix::of(result) {
            text += &format!("\n{}", matrix.table(&notes).to_markdown());
        }
        for group in view::groups(result) {
            text += &figures(&group, &notes);
        }
    }
    probes::sections(result).iter().for_each(|section| text += &probe_section(section));
    text += &virtual_machines(result);
    text += &factors_section(result);
    text += &doubts(&notes);
    text += &endpoints(result);
    if !result.not_available.is_empty() {
        let table = view::not_available_table(result);
        text += &format!("\n## Not available\n\n{}", table.to_markdown());
    }
    let failures: Vec<String> = result.failures.iter().map(ToString::to_string).collect();
    text += &bullets("Failed trials", &failures);
    text += &bullets("Method", &view::method_notes(result));
    text += &format!("\nMade by {}.\n", markdown_text(&view::source_text(&result.source)));
    text
}

/// The lines of the first screen, the verdict in bold.
pub(crate) fn lines_of(lines: &[Line]) -> Vec<String> {
    let lines = lines.iter().enumerate().map(|(index, line)| {
        let shown = markdown_text(&line.text);
        match (index, line.topic.label()) {
            (0, _) => format!("**{shown}**\n"),
            (_, Some(label)) => format!("{label}: {shown}\n"),
            (_, None) => format!("{shown}\n"),
        }
    });
    lines.collect()
}

/// The table of a group, and the one with all figures, folded.
fn figures(group: &Group<'_>, notes: &Notes) -> String {
    let table = |detail| group_table(group, notes, detail).to_markdown();
    format!(
        "\n{}\n<details><summary>every figure of {}</summary>\n\n{}\n</details>\n",
        table(Detail::Main),
        markdown_text(&group.title()),
        table(Detail::Full)
    )
}

/// What guests were and ran on, and what virtualization costs.
fn virtual_machines(result: &RunResult) -> String {
    if !guests::has_any(result) {
        return String::new();
    }
    let tables = [
        guests::full_table(result),
        guests::findings_table(result),
        guests::steps_table(&guests::steps(result)),
        guests::pairs_table(result),
    ];
    let mut text = format!("\n## Virtual machines\n\n{}\n", markdown_text(guests::READING));
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        text += &format!("\n{}", table.to_markdown());
    }
    text
}

/// What the factors of the plan did.
fn factors_section(result: &RunResult) -> String {
    if result.factors.is_empty() {
        return String::new();
    }
    let mut text = format!("\n## Factors\n\n{}\n", markdown_text(factors::READING));
    for table in [factors::table(result), factors::evidence_table(result)] {
        if !table.rows.is_empty() {
            text += &format!("\n{}", table.to_markdown());
        }
    }
    let limits = factors::limits(result);
    let lines: String = limits.iter().map(|line| format!("- {}\n", markdown_text(line))).collect();
    if lines.is_empty() { text } else { format!("{text}\n{lines}") }
}

/// What reports say of one probe alone.
fn probe_section(section: &Section) -> String {
    let mut text = format!("\n## {}\n", section.title);
    if let Some(reading) = section.reading {
        text += &format!("\n{}\n", markdown_text(reading));
    }
    section.tables.iter().for_each(|table| text += &format!("\n{}", table.to_markdown()));
    text
}

fn bullets(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: String = lines.iter().map(|line| format!("- {}\n", markdown_text(line))).collect();
    format!("\n## {title}\n\n{lines}")
}

fn target(verdict: &Verdict) -> String {
    let mut text = format!(
        "\n### {}: {}\n\n{}\n",
        verdict.outcome,
        markdown_text(&verdict.target),
        markdown_text(&verdict.reason)
    );
    let evidence = view::evidence_table(verdict);
    if !evidence.rows.is_empty() {
        text += &format!("\n{}", evidence.to_markdown());
    }
    text
}

fn doubts(notes: &Notes) -> String {
    match notes.notes.is_empty() {
        true => String::new(),
        false => format!("\n## Doubts\n\n{}", doubts_table(notes).to_markdown()),
    }
}

/// Each doubt once, with its first place.
pub(crate) fn doubts_table(notes: &Notes) -> Table {
    let mut table = Table::new("", ["no.", "doubt", "where", "cause", "remedy"].map(Column::text));
    for (index, note) in notes.notes.iter().enumerate() {
        let (series, detail) = &note.occurrences[0];
        let more = match note.occurrences.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        let series = series.as_ref().map_or(String::new(), |series| format!("{series}: "));
        table.push(
            Tone::Plain,
            vec![
                format!("[{}]", index + 1),
                note.kind.title().to_string(),
                format!("{series}{detail}{more}"),
                note.kind.cause().to_string(),
                note.kind.remedy().to_string(),
            ],
        );
    }
    table
}

fn endpoints(result: &RunResult) -> String {
    if result.facts.is_empty() {
        return String::new();
    }
    let mut titles = vec!["fact".to_string(), "differs".to_string()];
    titles.extend(facts::endpoints(result));
    let mut table = Table::new("", titles.into_iter().map(Column::text));
    for row in facts::rows(result) {
        let differs = if row.is_equal() { "" } else { "≠" };
        let mut cells = vec![row.name, differs.to_string()];
        cells.extend(row.values);
        table.push(Tone::Plain, cells);
    }
    let links = facts::links(result);
    let links =
        if links.rows.is_empty() { String::new() } else { format!("\n{}", links.to_markdown()) };
    format!("\n## Endpoints\n\n{}{links}", table.to_markdown())
}
