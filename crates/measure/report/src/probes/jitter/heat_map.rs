//! The heat map of the jitter probe: time × CPU, shaded by what was lost. The part that other
//! threads took has a band of its own.

use nm_model::jitter::{CpuJitter, JitterRound, JitterSlice};
use nm_model::result::Series;

use crate::html::charts::figure::Figure;
use crate::probes::jitter::worst_round;
use crate::style::Tone;
use crate::svg::{Axis, Chart, HeatBox, Mark};
use crate::table::{Column, Table};
use crate::units;
use crate::view;

/// Shares of a cell's time from which on it has the next shade.
pub const SHADES_FROM: [f64; 5] = [f64::MIN_POSITIVE, 0.001, 0.01, 0.1, 0.5];

/// Most cells of a row; slices are put together where there are more.
const COLUMNS_MAX: usize = 100;

/// Most CPUs of a map: those that lost most.
const ROWS_MAX: usize = 24;

/// One CPU, its slices put together.
struct Row<'a> {
    cpu: &'a CpuJitter,
    cells: Vec<JitterSlice>,
    /// Length of a cell, s.
    cell_s: f64,
}

impl Row<'_> {
    /// A part of a cell as a share of its time. The last cell may be shorter than the others.
    fn share(&self, at: usize, ns: u64) -> f64 {
        let begin_s = at as f64 * self.cell_s;
        let elapsed_s = self.cpu.elapsed_ns as f64 / 1e9;
        let length_s = (elapsed_s - begin_s).clamp(self.cell_s * 1e-3, self.cell_s);
        (ns as f64 / 1e9 / length_s).min(1.0)
    }
}

/// The map of the round that lost most, with its table; none without slices.
pub fn figure(series: &Series, id: String) -> Option<Figure> {
    let (number, round) = worst_round(series)?;
    let rows = rows(round);
    let n_cells = rows.iter().map(|row| row.cells.len()).max().filter(|n| *n > 0)?;
    let cell_s = rows.first()?.cell_s;
    let n_cpus = round.cpus.len();
    let which = match (series.rounds.len(), rows.len() < n_cpus) {
        (0 | 1, false) => String::new(),
        (0 | 1, true) => format!(", the {} of {n_cpus} CPUs that lost most", rows.len()),
        (n, false) => format!(", round {} of {n}, which lost most", number + 1),
        (n, true) => format!(
            ", round {} of {n}, which lost most, its worst {} of {n_cpus} CPUs",
            number + 1,
            rows.len()
        ),
    };
    let environment = view::marked(series, series.key.environment.as_str());
    let title = format!("Lost time of {environment}{which}");
    let names: Vec<String> = rows.iter().map(|row| format!("CPU {}", row.cpu.cpu)).collect();
    let high = n_cells as f64 * cell_s;
    Some(Figure {
        table: table(format!("{title}, % of each slice"), &rows, n_cells),
        chart: Chart {
            id,
            description: format!(
                "Time lost by {} in {n_cells} slices; the table below holds every value.",
                units::plural(rows.len(), "CPU", "CPUs")
            ),
            x: Axis::linear("time, s", 0.0, high, 10, units::plain),
            y: Axis::rows("", &names),
            plot_height: 30.0 * rows.len() as f64 + 10.0,
            marks: marks(&rows),
            legend: vec![],
            key: "upper band: time lost, by any cause · lower band: the part that other threads \
                  took · light to dark: above 0, 0.1, 1, 10, 50 % of a slice"
                .to_string(),
            title,
        },
    })
}

/// The CPUs that lost most, in the order of their numbers.
fn rows(round: &JitterRound) -> Vec<Row<'_>> {
    let mut cpus: Vec<&CpuJitter> = round.cpus.iter().collect();
    cpus.sort_by_key(|cpu| std::cmp::Reverse(cpu.lost_ns));
    cpus.truncate(ROWS_MAX);
    cpus.sort_by_key(|cpu| cpu.cpu);
    let n_slices = cpus.iter().map(|cpu| cpu.slices.len()).max().unwrap_or(0);
    let together = n_slices.div_ceil(COLUMNS_MAX).max(1);
    let cell_s = round.slice_ms / 1e3 * together as f64;
    let row = |cpu| Row { cpu, cells: cells(cpu, together), cell_s };
    cpus.into_iter().map(row).collect()
}

fn cells(cpu: &CpuJitter, together: usize) -> Vec<JitterSlice> {
    let sum = |slices: &[JitterSlice]| {
        slices.iter().fold(JitterSlice::default(), |sum, slice| JitterSlice {
            gaps: sum.gaps.saturating_add(slice.gaps),
            lost_ns: sum.lost_ns.saturating_add(slice.lost_ns),
            longest_ns: sum.longest_ns.max(slice.longest_ns),
            preempted_gaps: sum.preempted_gaps.saturating_add(slice.preempted_gaps),
            preempted_ns: sum.preempted_ns.saturating_add(slice.preempted_ns),
        })
    };
    cpu.slices.chunks(together).map(sum).collect()
}

/// The shade of a share, from 1; none for nothing.
fn shade(share: f64) -> Option<usize> {
    // A tenth of a slice is a tenth, whatever the fractions of its length are.
    let share = share * (1.0 + 1e-9);
    let shade = SHADES_FROM.iter().take_while(|from| share >= **from).count();
    (shade > 0).then_some(shade)
}

/// One of the two bands of a row.
struct Band {
    class: &'static str,
    /// From and to, from the middle of the row.
    y: (f64, f64),
    lost_ns: fn(&JitterSlice) -> u64,
}

const BANDS: [Band; 2] = [
    Band { class: "lost", y: (-0.06, 0.44), lost_ns: |slice| slice.lost_ns },
    Band { class: "preempted", y: (-0.44, -0.12), lost_ns: |slice| slice.preempted_ns },
];

/// The cells of both bands by shade.
fn marks(rows: &[Row<'_>]) -> Vec<Mark> {
    let mut marks = vec![];
    for band in &BANDS {
        for shade in 1..=SHADES_FROM.len() {
            let boxes: Vec<HeatBox> = rows
                .iter()
                .enumerate()
                .flat_map(|(number, row)| boxes(row, -(number as f64), band, shade))
                .collect();
            if !boxes.is_empty() {
                marks.push(Mark::Heat { class: band.class, shade, boxes });
            }
        }
    }
    marks
}

/// The cells of one shade in a band of the row at `middle`, neighbours in one box.
fn boxes(row: &Row<'_>, middle: f64, band: &Band, wanted: usize) -> Vec<HeatBox> {
    let shades: Vec<Option<usize>> = (0..row.cells.len())
        .map(|at| shade(row.share(at, (band.lost_ns)(&row.cells[at]))))
        .collect();
    let mut boxes = vec![];
    let mut at = 0;
    for same in shades.chunk_by(|a, b| a == b) {
        if same[0] == Some(wanted) {
            let x = (at as f64 * row.cell_s, (at + same.len()) as f64 * row.cell_s);
            boxes.push((x, (middle + band.y.0, middle + band.y.1)));
        }
        at += same.len();
    }
    boxes
}

/// Every cell: what was lost, the part that other threads took, and the longest gap.
fn table(caption: String, rows: &[Row<'_>], n_cells: usize) -> Table {
    let cell_s = rows.first().map_or(1.0, |row| row.cell_s);
    let time = |at: usize| units::significant(at as f64 * cell_s, 3);
    let mut columns = vec![(Column::figure("from s"), (0..n_cells).map(time).collect::<Vec<_>>())];
    for row in rows {
        let cell = |at: usize| {
            let Some(cell) = row.cells.get(at) else { return String::new() };
            let percent = |ns| units::significant(100.0 * row.share(at, ns), 3);
            let longest = units::latency(cell.longest_ns as f64);
            match cell.preempted_ns {
                0 => format!("{}; longest {longest}", percent(cell.lost_ns)),
                ns => format!(
                    "{}, preempted {}; longest {longest}",
                    percent(cell.lost_ns),
                    percent(ns)
                ),
            }
        };
        columns
            .push((Column::text(format!("CPU {}", row.cpu.cpu)), (0..n_cells).map(cell).collect()));
    }
    Table::of_columns(caption, columns).with_tones((0..n_cells).map(|_| Tone::Plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::jitter::{fixture, series};

    fn drawn(result: &nm_model::RunResult) -> Figure {
        figure(series(result).next().unwrap(), "jitter-1".to_string()).unwrap()
    }

    #[test]
    fn shades_follow_the_share() {
        let shades = [0.0, 1e-9, 0.001, 0.05, 0.3, 0.5, 1.0].map(shade);
        assert_eq!(shades, [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(5)]);
    }

    #[test]
    fn each_cpu_has_a_row_and_what_others_took_a_band() {
        let figure = drawn(&fixture::result(1));
        let names: Vec<&str> = figure.chart.y.ticks.iter().map(|tick| &*tick.label).collect();
        assert_eq!(names, ["CPU 0", "CPU 1"]);
        let of = |wanted: &str| -> Vec<&Mark> {
            let is_of = |mark: &&Mark| matches!(mark, Mark::Heat { class, .. } if *class == wanted);
            figure.chart.marks.iter().filter(is_of).collect()
        };
        // The first half of CPU 1: a tenth of the time, in one box.
        let [Mark::Heat { shade, boxes, .. }] = of("preempted")[..] else { panic!() };
        assert_eq!((*shade, boxes.len()), (4, 1));
        assert_eq!(boxes[0].0, (0.0, 0.5));
        assert_eq!(of("lost").len(), 2);
        assert_eq!(figure.table.rows[0].cells[2], "10.5, preempted 10.0; longest 10.00 ms");
    }

    #[test]
    fn many_slices_and_cpus_are_put_together() {
        let mut result = fixture::result(1);
        let round = fixture::round(&mut result);
        let one = round.cpus[1].clone();
        round.cpus = (0..200)
            .map(|cpu| CpuJitter {
                cpu,
                elapsed_ns: 60_000_000_000,
                slices: one.slices.repeat(60),
                ..one.clone()
            })
            .collect();
        let figure = drawn(&result);
        assert_eq!(figure.chart.y.ticks.len(), ROWS_MAX);
        assert_eq!(figure.table.rows.len(), COLUMNS_MAX);
        let svg = figure.chart.draw().into_string();
        assert!(svg.len() < 200_000, "{}", svg.len());
    }
}
