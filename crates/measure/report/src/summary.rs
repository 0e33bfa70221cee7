//! The summary of a result for a pull request or a job summary, as Markdown. It has the verdict,
//! why, a table of targets, and the details folded. It is always below 64 KB, the most that GitHub
//! takes as a comment; what has no place is counted and stands in the report.

use nm_model::verdict::Verdict;
use nm_model::{Outcome, RunResult};

use crate::file_names::REPORT;
use crate::first_screen::first_screen;
use crate::headline::not_judged;
use crate::markdown::{doubts_table, lines_of};
use crate::probes::pingpong::matrix::Matrix;
use crate::style::Tone;
use crate::table::{Column, Table, markdown_text};
use crate::title::title;
use crate::view::{self, Notes};

/// Most bytes of a summary.
pub const BYTES_MAX: usize = 64_000;

/// Longest text of a line or a cell, characters.
const TEXT_MAX: usize = 600;

/// Room for what closes a table, a fold and the page.
const CLOSING_BYTES: usize = 800;

/// A page with a limit.
struct Page(String);

impl Page {
    /// Adds `text` if it has a place.
    fn push(&mut self, text: &str) -> bool {
        let fits = self.0.len() + text.len() + CLOSING_BYTES <= BYTES_MAX;
        if fits {
            self.0 += text;
        }
        fits
    }

    /// Adds a table, with as many rows as have a place, and says how many are left out.
    fn table(&mut self, table: &Table) {
        let markdown = table.to_markdown();
        let lines: Vec<&str> = markdown.split_inclusive('\n').collect();
        let (head, rows) = lines.split_at(lines.len() - table.rows.len());
        if !self.push(&head.concat()) {
            return;
        }
        let shown = rows.iter().take_while(|row| self.push(row)).count();
        if shown < rows.len() {
            let left_out = rows.len() - shown;
            self.0 += &format!("\n{left_out} more in `{REPORT}`.\n");
        }
    }

    /// Adds a folded table; nothing if it has no rows.
    fn fold(&mut self, title: &str, table: &Table) {
        if table.rows.is_empty() {
            return;
        }
        let title = markdown_text(&short(title));
        if self.push(&format!("\n<details><summary>{title}</summary>\n\n")) {
            self.table(table);
            self.0 += "\n</details>\n";
        }
    }
}

/// The summary of `result`.
pub fn report(result: &RunResult) -> String {
    let mut page = Page(String::new());
    let screen = first_screen(result);
    page.push(&format!("## {}: {}\n\n", screen.word, markdown_text(&short(&title(result)))));
    let mut lines = screen.lines.clone();
    lines.iter_mut().for_each(|line| line.text = short(&line.text));
    for line in lines_of(&lines) {
        page.push(&format!("{line}\n"));
    }
    if !result.verdicts.is_empty() {
        page.table(&targets(result));
    }
    for verdict in result.verdicts.iter().filter(|verdict| verdict.outcome != Outcome::Pass) {
        let mut evidence = shortened(view::evidence_table(verdict));
        evidence.caption.clear();
        page.fold(&format!("{}: {}", verdict.outcome, verdict.target), &evidence);
    }
    let notes = Notes::collect(result);
    page.fold("compared", &comparisons(result));
    if let Some(matrix) = Matrix::of(result) {
        page.fold("figures", &shortened(matrix.table(&notes)));
    }
    page.fold("doubts", &shortened(doubts_table(&notes)));
    page.fold("not judged", &list("what and why", not_judged(result)));
    let failures = result.failures.iter().map(ToString::to_string);
    page.fold("failed trials", &list("what and why", failures));
    page.fold("not available", &shortened(view::not_available_table(result)));
    let source = short(&view::source_text(&result.source));
    page.0 + &format!("\nEverything is in `{REPORT}`, made by {}.\n", markdown_text(&source))
}

/// All targets; what is missed comes first, then what is open.
fn targets(result: &RunResult) -> Table {
    let mut table = Table::new("", ["outcome", "target", "why"].map(Column::text));
    let order = |verdict: &&Verdict| match verdict.outcome {
        Outcome::Fail => 0,
        Outcome::Inconclusive => 1,
        Outcome::Pass => 2,
    };
    let mut verdicts: Vec<&Verdict> = result.verdicts.iter().collect();
    verdicts.sort_by_key(order);
    for verdict in verdicts {
        let outcome = verdict.outcome.to_string();
        table.push(Tone::Plain, vec![outcome, verdict.target.clone(), verdict.reason.clone()]);
    }
    shortened(table)
}

fn comparisons(result: &RunResult) -> Table {
    let mut table = Table::new("", ["outcome", "what", "why"].map(Column::text));
    for one in &result.comparisons {
        let what = format!("{} against {}", one.b, one.a);
        table.push(Tone::Plain, vec![one.outcome.to_string(), what, one.reasons.join("; ")]);
    }
    shortened(table)
}

fn list(title: &str, lines: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new("", [title].map(Column::text));
    lines.into_iter().for_each(|line| table.push(Tone::Plain, vec![line]));
    shortened(table)
}

/// The table with cells and titles that have a limit.
fn shortened(mut table: Table) -> Table {
    table.caption = short(&table.caption);
    table.columns.iter_mut().for_each(|column| column.title = short(&column.title));
    let cells = table.rows.iter_mut().flat_map(|row| &mut row.cells);
    cells.for_each(|cell| *cell = short(cell));
    table
}

/// The text, cut if it is too long.
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        None => text.to_string(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
