//! The section of one probe in a report.

use crate::table::Table;

/// The section of one probe in a report.
pub(crate) struct Section {
    /// Anchor in a page.
    pub anchor: &'static str,
    /// Heading.
    pub title: &'static str,
    /// How to read its tables.
    pub reading: Option<&'static str>,
    /// The tables that a terminal shows.
    pub brief: Vec<Table>,
    /// All tables.
    pub tables: Vec<Table>,
}
