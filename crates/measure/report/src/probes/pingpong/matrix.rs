//! The summary matrix: stacks × environments with median and p99 of ping-pong at one size.

use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{Series, Statistic};
use nm_model::stack::StackPair;
use nm_model::{Doubt, Metric, RunResult, StackClass};

use crate::probes::case_words;
use crate::table::{Column, Table};
use crate::units::{LatencyUnit, NOT_AVAILABLE};
use crate::view::{self, Notes};

/// The size that is shown, or the nearest one that was measured, bytes.
const SIZE_BYTES: f64 = 64.0;

/// Median and p99 by stack and environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// The case of all cells.
    pub case: Case,
    /// What one value is.
    pub statistic: Statistic,
    /// The unit that suits the medians.
    pub unit: LatencyUnit,
    /// Columns, in order of first appearance.
    pub environments: Vec<String>,
    /// Rows, kernel first.
    pub groups: Vec<MatrixGroup>,
}

/// The stacks of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixGroup {
    /// The class; absent for another tool's transports.
    pub class: Option<StackClass>,
    /// Its stacks, in order of first appearance.
    pub rows: Vec<MatrixRow>,
}

/// One stack.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixRow {
    /// Name of the stack.
    pub stack: String,
    /// One cell for each environment; absent where it has no figure.
    pub cells: Vec<Option<MatrixCell>>,
}

/// The figures of one stack in one environment: medians over rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixCell {
    /// Median, ns.
    pub median_ns: f64,
    /// 99th percentile, ns; absent where rounds are too short for it.
    pub p99_ns: Option<f64>,
    /// Whether its guests were emulated.
    pub is_emulated: bool,
    /// Doubts about the series.
    pub doubts: Vec<Doubt>,
}

impl MatrixGroup {
    /// The class in words.
    pub fn title(&self) -> &'static str {
        match self.class {
            Some(StackClass::Kernel) => "kernel",
            Some(StackClass::Bypass) => "AF_XDP and other bypass",
            Some(StackClass::SameHost) => "same host: shared memory, Unix",
            Some(StackClass::NoNetwork) | None => "other",
        }
    }
}

impl Matrix {
    /// The matrix of `result`; `None` if it has no ping-pong.
    pub fn of(result: &RunResult) -> Option<Matrix> {
        let with_median = result.series.iter().filter(|series| {
            series.key.probe == ProbeKind::Pingpong && view::value(series, Metric::Median).is_some()
        });
        let statistic = with_median.clone().next()?.key.statistic;
        let all = with_median.filter(|series| series.key.statistic == statistic);
        let distance = |case: &Case| {
            let size_bytes = case.size_bytes().map_or(f64::INFINITY, |size| f64::from(size.max(1)));
            (size_bytes / SIZE_BYTES).ln().abs()
        };
        let cases = all.clone().map(|series| series.key.case);
        let case = cases.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let shown: Vec<&Series> = all.filter(|series| series.key.case == case).collect();
        let mut environments: Vec<String> = vec![];
        for series in &shown {
            if !environments.contains(&series.key.environment) {
                environments.push(series.key.environment.clone());
            }
        }
        let groups = groups(&shown, &environments);
        let unit = view::unit_of(shown);
        Some(Matrix { case, statistic, unit, environments, groups })
    }

    /// The matrix as a table; `notes` number the doubts.
    pub fn table(&self, notes: &Notes) -> Table {
        let rows =
            || self.groups.iter().flat_map(|group| group.rows.iter().map(move |r| (group, r)));
        let cells: Vec<Option<&MatrixCell>> =
            rows().flat_map(|(_, row)| row.cells.iter().map(Option::as_ref)).collect();
        let medians = cells.iter().map(|cell| cell.map(|cell| cell.median_ns));
        let p99s = cells.iter().map(|cell| cell.and_then(|cell| cell.p99_ns));
        // One precision for all cells.
        let texts = self.unit.column(&medians.chain(p99s).collect::<Vec<_>>());
        let (medians, p99s) = texts.split_at(cells.len());
        let text = |at: usize| match cells[at] {
            Some(cell) => {
                let marks = notes.marks(&cell.doubts);
                let mark = if cell.is_emulated { view::EMULATED } else { "" };
                let parts = [medians[at].as_str(), "/", &p99s[at], mark, &marks];
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
            }
            None => NOT_AVAILABLE.to_string(),
        };
        let n_columns = self.environments.len();
        let mut columns: Vec<(Column, Vec<String>)> = vec![
            (Column::text("stack"), rows().map(|(_, row)| row.stack.clone()).collect()),
            (Column::text("class"), rows().map(|(group, _)| group.title().to_string()).collect()),
        ];
        for (column, environment) in self.environments.iter().enumerate() {
            let title = Column::figure(environment);
            columns.push((title, (column..cells.len()).step_by(n_columns).map(text).collect()));
        }
        Table::of_columns(self.caption(), columns)
    }

    /// `median / p99 of half round trip at 64 B, µs`.
    pub fn caption(&self) -> String {
        format!(
            "median / p99 of {} at {}, {}",
            self.statistic.label(),
            case_words::text(&self.case),
            self.unit.name()
        )
    }
}

fn groups(shown: &[&Series], environments: &[String]) -> Vec<MatrixGroup> {
    let mut groups: Vec<MatrixGroup> = vec![];
    for series in shown {
        let class = series.key.stack.parse::<StackPair>().ok().map(|pair| pair.class());
        let group = match groups.iter().position(|group| group.class == class) {
            Some(at) => &mut groups[at],
            None => {
                groups.push(MatrixGroup { class, rows: vec![] });
                groups.last_mut().expect("it was just added")
            }
        };
        if group.rows.iter().any(|row| row.stack == series.key.stack) {
            continue;
        }
        let cell = |environment: &String| {
            let found = shown.iter().find(|other| {
                other.key.environment == *environment && other.key.stack == series.key.stack
            });
            found.and_then(|series| cell_of(series))
        };
        let cells = environments.iter().map(cell).collect();
        group.rows.push(MatrixRow { stack: series.key.stack.clone(), cells });
    }
    groups.sort_by_key(|group| (group.class.is_none(), group.class));
    groups
}

fn cell_of(series: &Series) -> Option<MatrixCell> {
    Some(MatrixCell {
        median_ns: view::value(series, Metric::Median)?,
        p99_ns: view::value(series, Metric::Percentile(99.0)),
        is_emulated: series.is_emulated(),
        doubts: series.doubts.clone(),
    })
}
