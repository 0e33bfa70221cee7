//! Ping-pong sweeps in the text form of sfnt-pingpong, for tools that read it. `# ` lines have the
//! description, then come tab-separated half round trips in ns, without a fraction.

use nm_model::probe::ProbeKind;
use nm_model::result::{Series, Statistic};
use nm_model::{EndpointId, Side};
use nm_model::{Metric, RunResult};

use crate::view;

/// The half round trips of one environment and stack, by size.
#[derive(Debug, Clone)]
pub struct Sweep<'a> {
    /// Environment.
    pub environment: &'a str,
    /// Stack.
    pub stack: &'a str,
    series: Vec<&'a Series>,
}

/// Index of the percentile among the cells of a row.
const PERCENTILE_CELL: usize = 4;

fn metric(percentile: f64) -> Metric {
    match percentile {
        50.0 => Metric::Median,
        100.0 => Metric::Max,
        other => Metric::Percentile(other),
    }
}

/// A line of a sweep: mean, min, median, max, percentile, standard deviation (ns) and samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepRow {
    /// Message size.
    pub size_bytes: u32,
    /// Figures; absent ones are n/a.
    pub cells: [Option<f64>; 7],
}

/// Figures of a sweep's row in the order of the columns.
fn sweep_cells(series: &Series) -> [Option<f64>; 7] {
    let value = |metric| view::value(series, metric);
    [
        value(Metric::Mean),
        value(Metric::Min),
        value(Metric::Median),
        value(Metric::Max),
        value(Metric::Percentile(99.0)),
        value(Metric::Stddev),
        view::samples(series).map(|n| n as f64),
    ]
}

/// All sweeps of `result`, in order of first appearance.
pub fn sweeps(result: &RunResult) -> Vec<Sweep<'_>> {
    let mut sweeps: Vec<Sweep<'_>> = vec![];
    for series in &result.series {
        let key = &series.key;
        let is_half = key.statistic == Statistic::HalfRoundTrip;
        if key.probe != ProbeKind::Pingpong || !is_half || key.case.size_bytes().is_none() {
            continue;
        }
        match sweeps.iter_mut().find(|s| s.environment == key.environment && s.stack == key.stack) {
            Some(sweep) => sweep.series.push(series),
            None => sweeps.push(Sweep {
                environment: &key.environment,
                stack: &key.stack,
                series: vec![series],
            }),
        }
    }
    for sweep in &mut sweeps {
        sweep.series.sort_by_key(|s| s.key.case.size_bytes());
    }
    sweeps
}

impl Sweep<'_> {
    /// The rows by rising size, with the 99th percentile.
    pub fn rows(&self) -> Vec<SweepRow> {
        self.rows_with(99.0)
    }

    /// The rows by rising size, with the given percentile.
    pub fn rows_with(&self, percentile: f64) -> Vec<SweepRow> {
        let row = |series: &&Series| {
            let size_bytes = series.key.case.size_bytes()?;
            let mut cells = sweep_cells(series);
            cells[PERCENTILE_CELL] = view::value(series, metric(percentile));
            Some(SweepRow { size_bytes, cells })
        };
        self.series.iter().filter_map(row).collect()
    }
}

/// Header line of the columns.
pub const HEADING: &str = "#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer";

/// One line of the table, such as `\t64\t1497\t1466\t1492\t17158\t1603\t41\t996000`.
pub fn line(row: &SweepRow) -> String {
    let mut text = format!("\t{}", row.size_bytes);
    for cell in row.cells {
        text += &format!("\t{}", cell.map_or("n/a".to_string(), |v| format!("{v:.0}")));
    }
    text
}

/// How the first line of a description begins, by which an import knows our own text.
pub const MADE_BY: &str = "made by";

/// What the values are, in a description.
pub const REPORTING: &str = "1/2 RTT, ns";

/// The `# ` lines that describe what was measured and how.
pub fn header(result: &RunResult, environment: &str, stack: &str, percentile: f64) -> String {
    let mut lines = vec![
        format!("{MADE_BY}: {}", view::source_text(&result.source)),
        format!("name: {}", result.name),
        format!("environment: {environment}"),
        format!("stack: {stack}"),
    ];
    lines.extend(result.started.iter().map(|started| format!("date: {started}")));
    for side in [Side::Client, Side::Server] {
        if let Some(facts) = result.facts.get(&EndpointId::new(environment, side)) {
            lines.push(format!("{side} host: {} {}", facts.host.name, facts.host.kernel));
            lines.extend(facts.cpu.model.iter().map(|model| format!("{side} cpu: {model}")));
            lines.extend(facts.clock.tsc_hz.map(|hz| format!("{side} tsc_hz: {hz:.0}")));
            let variable = |(name, value): (&String, &String)| format!("{side} {name}={value}");
            lines.extend(facts.variables.iter().map(variable));
        }
    }
    lines.push(format!("percentile: {percentile}"));
    lines.push(format!("reporting: {REPORTING}"));
    let one_line = |line: &String| line.replace(['\n', '\r'], " ");
    lines.iter().map(|line| format!("# {}\n", one_line(line))).collect()
}

/// All sweeps of `result`, each with its header, an empty line between. The %ile column holds
/// `percentile`, as that tool's `--percentile`.
pub fn text(result: &RunResult, percentile: f64) -> String {
    let block = |sweep: &Sweep<'_>| {
        let rows = sweep.rows_with(percentile);
        let rows: String = rows.iter().map(|row| line(row) + "\n").collect();
        let header = header(result, sweep.environment, sweep.stack, percentile);
        format!("{header}{HEADING}\n{rows}")
    };
    sweeps(result).iter().map(block).collect::<Vec<_>>().join("\n")
}
