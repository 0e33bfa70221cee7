//! A chart of bars with the range that is expected of each.

use super::figure::spread;
use crate::svg::{Axis, Chart, Look, Mark};
use crate::units;

/// One bar.
pub struct Bar {
    pub label: String,
    pub look: Look,
    pub value: f64,
    /// Text at its end.
    pub text: String,
    /// The values of the rounds.
    pub rounds: Vec<f64>,
    /// Range that is expected.
    pub expected: (f64, f64),
}

/// The chart; a table of the same figures belongs below it.
pub fn bars(id: &str, title: &str, key: &str, all: &[Bar]) -> Chart {
    let high = all.iter().flat_map(values).fold(0.0, f64::max);
    let rows = all.iter().enumerate();
    let names: Vec<String> = all.iter().map(|bar| bar.label.clone()).collect();
    Chart {
        id: id.to_string(),
        description: format!(
            "{title}: {}; the table below holds every value.",
            units::plural(all.len(), "bar", "bars")
        ),
        x: Axis::linear(title, 0.0, high.max(1e-9), 8, units::plain),
        y: Axis::rows("", &names),
        plot_height: 30.0 * all.len() as f64 + 14.0,
        marks: rows.flat_map(|(index, bar)| marks(bar, -(index as f64))).collect(),
        legend: vec![],
        key: key.to_string(),
        title: title.to_string(),
    }
}

/// Every value that the axis must hold.
fn values(bar: &Bar) -> impl Iterator<Item = f64> + '_ {
    bar.rounds.iter().copied().chain([bar.value, bar.expected.1])
}

/// The marks of one row at height `y`.
fn marks(bar: &Bar, y: f64) -> Vec<Mark> {
    let mut marks = vec![
        Mark::Range { x: bar.expected, y: (y - 0.42, y + 0.42) },
        Mark::Bar { look: bar.look, y: (y, 0.56), x: (0.0, bar.value) },
    ];
    if bar.rounds.len() > 1 {
        let dot = |(i, v): (usize, &f64)| (*v, y + spread(i, bar.rounds.len()));
        marks.push(Mark::Open(Look::neutral(), bar.rounds.iter().enumerate().map(dot).collect()));
    }
    let end = values(bar).fold(bar.value, f64::max);
    marks.push(Mark::Label((end, y), bar.text.clone()));
    marks
}
