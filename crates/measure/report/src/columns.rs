//! The columns of a group's table, which grow one by one.

use nm_model::result::Series;

use crate::probes::case_words;
use crate::table::Table;
use crate::units::Precision;
use crate::view::{Detail, Group, Notes, execution_text};

/// Title of the column that says what executed guests.
const EXECUTION: &str = "execution";

/// The columns of a group's table, which grow one by one.
pub(crate) struct Columns<'g, 'a> {
    group: &'g Group<'a>,
    doubts: Vec<String>,
    columns: Vec<(String, Vec<String>)>,
}

impl<'g, 'a> Columns<'g, 'a> {
    /// Stack and case, and the doubts unless they come last.
    pub fn of(group: &'g Group<'a>, notes: &Notes, detail: Detail) -> Columns<'g, 'a> {
        let doubts = group.series.iter().map(|series| notes.marks(&series.doubts)).collect();
        let mut columns = Columns { group, doubts, columns: vec![] };
        columns.add_texts("stack", |series| series.key.stack.clone());
        columns.add_texts("case", |series| case_words::text(&series.key.case));
        columns.add_texts(EXECUTION, execution_text);
        if detail != Detail::Main {
            columns.add("doubts", columns.doubts.clone());
        }
        columns
    }

    pub fn add(&mut self, title: impl Into<String>, cells: Vec<String>) {
        self.columns.push((title.into(), cells));
    }

    pub fn add_texts(&mut self, title: &str, text: impl Fn(&Series) -> String) {
        self.add(title, self.group.series.iter().map(|series| text(series)).collect());
    }

    /// Adds figures with equal precision.
    pub fn add_figures(
        &mut self,
        title: &str,
        precision: Precision,
        value: impl Fn(&Series) -> Option<f64>,
    ) {
        let cells = self.group.series.iter().map(|series| precision.cell(value(series)));
        self.add(title, cells.collect());
    }

    pub fn with_rounds_and_doubts(mut self, caption: String) -> Table {
        self.add_texts("#rounds", |series| series.rounds.len().to_string());
        self.add("doubts", self.doubts.clone());
        let mut table = self.table(caption);
        table.drop_empty(&["doubts"]);
        table
    }

    pub fn table(self, caption: String) -> Table {
        let mut table = Table::of_columns(caption, self.columns);
        table.drop_empty(&[EXECUTION]);
        table
    }
}
