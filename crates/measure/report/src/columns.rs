//! The columns of a group's table, which grow one by one.

use nm_model::result::Series;

use crate::probes::case_words;
use crate::table::{Column, Table};
use crate::units::Precision;
use crate::view::{Detail, Group, Notes, execution_text};

/// The columns of a group's table, which grow one by one.
pub(crate) struct Columns<'g, 'a> {
    group: &'g Group<'a>,
    doubts: Vec<String>,
    columns: Vec<(Column, Vec<String>)>,
}

impl<'g, 'a> Columns<'g, 'a> {
    /// Stack and case, and the doubts unless they come last.
    pub fn of(group: &'g Group<'a>, notes: &Notes, detail: Detail) -> Columns<'g, 'a> {
        let doubts = group.series.iter().map(|series| notes.marks(&series.doubts)).collect();
        let mut columns = Columns { group, doubts, columns: vec![] };
        columns.add_texts(Column::text("stack"), |series| series.key.stack.clone());
        columns.add_texts(Column::text("case"), |series| case_words::text(&series.key.case));
        columns.add_texts(Column::text("execution").optional(), execution_text);
        if detail != Detail::Main {
            columns.add(Column::doubts(), columns.doubts.clone());
        }
        columns
    }

    pub fn add(&mut self, column: Column, cells: Vec<String>) {
        self.columns.push((column, cells));
    }

    pub fn add_texts(&mut self, column: Column, text: impl Fn(&Series) -> String) {
        self.add(column, self.group.series.iter().map(|series| text(series)).collect());
    }

    /// Adds figures with equal precision.
    pub fn add_figures(
        &mut self,
        column: Column,
        precision: Precision,
        value: impl Fn(&Series) -> Option<f64>,
    ) {
        let cells = self.group.series.iter().map(|series| precision.cell(value(series)));
        self.add(column, cells.collect());
    }

    pub fn with_rounds_and_doubts(mut self, caption: String) -> Table {
        self.add_texts(Column::figure("rounds"), |series| series.rounds.len().to_string());
        self.add(Column::doubts(), self.doubts.clone());
        self.table(caption)
    }

    pub fn table(self, caption: String) -> Table {
        let mut table = Table::of_columns(caption, self.columns);
        table.drop_empty();
        table
    }
}
