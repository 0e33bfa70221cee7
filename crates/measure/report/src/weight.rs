//! Which doubts weigh most on the outcome.

use std::collections::BTreeSet;

use nm_model::RunResult;

use crate::units;
use crate::view::{Note, Notes};

/// Doubts that a reader sees beside the verdict.
pub const FIRST_MAX: usize = 3;

/// A note with its weight on the outcome.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighed<'n> {
    /// Number of the note, as tables show it.
    pub number: usize,
    /// The note.
    pub note: &'n Note,
    /// Series that have this doubt; all where it is one of the entire run.
    pub n_series: usize,
    /// Series of the result.
    pub n_series_all: usize,
    /// Series that decide the outcome and have this doubt.
    pub n_deciding: usize,
    /// Series that decide the outcome.
    pub n_deciding_all: usize,
}

impl Weighed<'_> {
    /// How many series have this doubt: `12 of 70 series, 3 of the 8 that decide the outcome`.
    pub fn extent(&self) -> String {
        let series = match self.n_series == self.n_series_all {
            true => format!("all {}", units::plural(self.n_series, "series", "series")),
            false => format!("{} of {} series", self.n_series, self.n_series_all),
        };
        match (self.n_deciding, self.n_deciding_all) {
            (0, _) => series,
            (n, all) if n == all => format!("{series}, with all {all} that decide the outcome"),
            (n, all) => format!("{series}, {n} of the {all} that decide the outcome"),
        }
    }
}

/// All notes, heaviest first: those on series that decide the outcome, then by number of series.
pub fn weighed<'n>(result: &RunResult, notes: &'n Notes) -> Vec<Weighed<'n>> {
    let deciding = deciding(result);
    let weigh = |(index, note): (usize, &'n Note)| {
        let is_of_run = note.occurrences.iter().any(|(series, _)| series.is_none());
        let named: BTreeSet<&str> =
            note.occurrences.iter().filter_map(|(series, _)| series.as_deref()).collect();
        let (n_series, n_deciding) = match is_of_run {
            true => (result.series.len(), deciding.len()),
            false => (named.len(), named.intersection(&deciding).count()),
        };
        Weighed {
            number: index + 1,
            note,
            n_series,
            n_series_all: result.series.len(),
            n_deciding,
            n_deciding_all: deciding.len(),
        }
    };
    let mut all: Vec<Weighed<'n>> = notes.notes.iter().enumerate().map(weigh).collect();
    all.sort_by_key(|w| (std::cmp::Reverse((w.n_deciding > 0, w.n_series)), w.number));
    all
}

/// Names of the series that decide the outcome: those with the outcome of a target that has the
/// outcome of the result.
fn deciding(result: &RunResult) -> BTreeSet<&str> {
    let verdicts = result.verdicts.iter().filter(|verdict| verdict.outcome == result.outcome);
    let evidence = verdicts
        .flat_map(|verdict| verdict.evidence.iter().filter(|e| e.outcome == verdict.outcome));
    evidence.map(|evidence| evidence.series.as_str()).collect()
}
