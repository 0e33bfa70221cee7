//! Throughput bars: by stack and pattern, divided by flow, with targets and expected ranges.

use nm_model::RunResult;
use nm_model::metric::Metric;
use nm_model::result::{Series, Statistic};
use nm_model::{SettingKind, SettingValue};
use nm_stats::describe;

use crate::probes::case_words;
use crate::style::Tone;
use crate::svg::{Axis, Chart, Look, Mark};
use crate::table::{Column, Table};
use crate::units::{self, Precision};
use crate::view;

use crate::html::charts::family::{environments, reference_label};
use crate::html::charts::figure::{Figure, ROWS_MAX, number, spread};
use crate::html::charts::limits::{Limit, limits_of};

/// A row of the throughput chart.
#[derive(Clone)]
struct Bar<'a> {
    label: String,
    series: &'a Series,
    look: Look,
    /// Limits of targets that judged it.
    limits: Vec<Limit>,
    /// Range that the study of a reference run expected.
    expected: Option<(f64, f64)>,
}

impl<'a> Bar<'a> {
    fn own(result: &RunResult, series: &'a Series) -> Bar<'a> {
        let label = format!("{} {}", series.key.path(), case_words::text(&series.key.case));
        let label = view::marked(series, label);
        let look = Look::of_stack(&series.key.stack);
        let mut limits = limits_of(&result.verdicts, series);
        limits.retain(|limit| limit.metric == Metric::Throughput);
        Bar { label, series, look, limits, expected: None }
    }

    fn of_reference(run: &RunResult, series: &'a Series) -> Bar<'a> {
        let case = case_words::text(&series.key.case);
        let label = format!("{} {case}", reference_label(run, &series.key.stack));
        let setting = |kind: SettingKind| match series.settings.get(&kind)? {
            SettingValue::GigabitsPerSecond(gbps) => Some(*gbps),
            _ => None,
        };
        let expected = setting(SettingKind::ExpectedMin).zip(setting(SettingKind::ExpectedMax));
        Bar { label, series, look: Look::faint(0), limits: vec![], expected }
    }

    /// Every value that the axis must hold.
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        view::round_values(self.series, Metric::Throughput)
            .into_iter()
            .chain(self.limits.iter().map(|limit| limit.value))
            .chain(self.expected.map(|(_, high)| high))
    }

    fn expectation(&self) -> String {
        let limits = self.limits.iter().map(|limit| limit.text.clone());
        let range = self.expected.map(|(low, high)| {
            format!("{} to {} by its study", units::plain(low), units::plain(high))
        });
        limits.chain(range).collect::<Vec<_>>().join(", ")
    }
}

pub(crate) fn figures(result: &RunResult, references: &[RunResult]) -> Vec<(String, Figure)> {
    let is_flows = |s: &&Series| s.key.statistic == Statistic::Throughput;
    let own: Vec<Bar<'_>> =
        result.series.iter().filter(is_flows).map(|s| Bar::own(result, s)).collect();
    let others: Vec<Bar<'_>> = references
        .iter()
        .flat_map(|run| run.series.iter().filter(is_flows).map(|s| Bar::of_reference(run, s)))
        .collect();
    // One scale for all charts, so that they can be compared.
    let high = own.iter().chain(&others).flat_map(Bar::values).fold(0.0, f64::max);
    let mut figures = vec![];
    for environment in environments(own.iter().map(|bar| bar.series.key.environment.as_str())) {
        let of_environment = own.iter().filter(|bar| bar.series.key.environment == environment);
        let bars: Vec<Bar<'_>> = of_environment.chain(&others).cloned().collect();
        let n_charts = bars.len().div_ceil(ROWS_MAX);
        for (index, part) in bars.chunks(ROWS_MAX).enumerate() {
            let number = number(index, n_charts);
            let title = format!("stream · {environment}{number}: throughput by stack and pattern");
            figures.push((environment.to_string(), throughput_figure(title, part, high)));
        }
    }
    figures
}

/// The flows of all environments in one chart, with those of `references` below.
pub(crate) fn beside(result: &RunResult, references: &[RunResult]) -> Option<Figure> {
    let is_flows = |s: &&Series| s.key.statistic == Statistic::Throughput;
    let own = result.series.iter().filter(is_flows).map(|series| Bar::own(result, series));
    let mut bars: Vec<Bar<'_>> = own.take(ROWS_MAX).collect();
    if bars.is_empty() {
        return None;
    }
    for run in references {
        bars.extend(run.series.iter().filter(is_flows).map(|s| Bar::of_reference(run, s)));
    }
    bars.truncate(ROWS_MAX);
    let high = bars.iter().flat_map(Bar::values).fold(0.0, f64::max);
    Some(throughput_figure("stream · all environments: throughput".to_string(), &bars, high))
}

/// The marks of one row at height `y`.
fn bar_marks(bar: &Bar<'_>, y: f64) -> Vec<Mark> {
    let mut marks = vec![];
    if let Some(x) = bar.expected {
        marks.push(Mark::Range { x, y: (y - 0.42, y + 0.42) });
    }
    let Some(total) = view::value(bar.series, Metric::Throughput) else { return marks };
    let flows: Vec<f64> = view::typical_throughput(bar.series)
        .map_or_else(Vec::new, |round| round.flows.iter().map(|f| f.gbps).collect());
    let sum: f64 = flows.iter().sum();
    // Flows are those of the middle round, scaled to the figure that the bar shows.
    let parts =
        if sum > 0.0 { flows.iter().map(|f| f * total / sum).collect() } else { vec![total] };
    let mut from = 0.0;
    for part in parts {
        marks.push(Mark::Bar { look: bar.look, y: (y, 0.56), x: (from, from + part) });
        from += part;
    }
    let rounds = view::round_values(bar.series, Metric::Throughput);
    if rounds.len() > 1 {
        let dot = |(i, v): (usize, &f64)| (*v, y + spread(i, rounds.len()));
        marks.push(Mark::Open(Look::neutral(), rounds.iter().enumerate().map(dot).collect()));
    }
    let end = bar.values().fold(total, f64::max);
    marks.push(Mark::Label((end, y), throughput_text(bar.series, total)));
    marks.extend(bar.limits.iter().map(|limit| Mark::Limit {
        x: limit.value,
        y: (y - 0.42, y + 0.42),
        text: limit.text.clone(),
    }));
    marks
}

fn throughput_figure(title: String, bars: &[Bar<'_>], high: f64) -> Figure {
    let rows = bars.iter().enumerate();
    let marks = rows.flat_map(|(index, bar)| bar_marks(bar, -(index as f64))).collect();
    let names: Vec<String> = bars.iter().map(|bar| bar.label.clone()).collect();
    let label = "throughput, Gb/s (sum of flows, counted by the receivers)";
    let key = "bar: median over rounds, one part a flow · circles: rounds · upright line: target · \
               area behind a reference: range that its study expected";
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "Throughput of {}; the table below holds every value.",
                units::plural(bars.len(), "row", "rows")
            ),
            x: Axis::linear(label, 0.0, high.max(1e-9), 8, units::plain),
            y: Axis::rows("", &names),
            plot_height: 30.0 * bars.len() as f64 + 14.0,
            marks,
            legend: vec![],
            key: key.to_string(),
            title: title.clone(),
        },
        table: throughput_table(title, bars),
    }
}

fn throughput_text(series: &Series, total: f64) -> String {
    let values = view::round_values(series, Metric::Throughput);
    let spread = describe::stddev(&values)
        .map_or(String::new(), |sd| format!(" ± {}", units::significant(sd, 2)));
    let text = format!("{}{spread} (n = {})", units::significant(total, 4), values.len());
    view::marked(series, text)
}

fn throughput_table(title: String, bars: &[Bar<'_>]) -> Table {
    let rounds = |bar: &Bar<'_>| view::round_values(bar.series, Metric::Throughput);
    let all = bars.iter().flat_map(rounds);
    // One precision for the figures and the lists.
    let precision = Precision::of(all, 4, 3);
    let cells = |value: &dyn Fn(&Bar<'_>) -> Option<f64>| -> Vec<String> {
        bars.iter().map(|bar| precision.cell(value(bar))).collect()
    };
    let list = |values: Vec<f64>| {
        values.into_iter().map(|v| precision.text(v)).collect::<Vec<_>>().join(", ")
    };
    let flows = |bar: &Bar<'_>| {
        let typical = view::typical_throughput(bar.series);
        list(typical.map_or_else(Vec::new, |round| round.flows.iter().map(|f| f.gbps).collect()))
    };
    let columns = vec![
        (Column::text("series"), bars.iter().map(|bar| bar.label.clone()).collect()),
        (Column::figure("median"), cells(&|bar| view::value(bar.series, Metric::Throughput))),
        (Column::figure("SD"), cells(&|bar| describe::stddev(&rounds(bar)))),
        (Column::figure("min"), cells(&|bar| rounds(bar).into_iter().reduce(f64::min))),
        (Column::figure("max"), cells(&|bar| rounds(bar).into_iter().reduce(f64::max))),
        (Column::figure("rounds"), bars.iter().map(|bar| rounds(bar).len().to_string()).collect()),
        (Column::text("rounds in order"), bars.iter().map(|bar| list(rounds(bar))).collect()),
        (Column::text("flows of the middle round"), bars.iter().map(flows).collect()),
        (Column::text("expected"), bars.iter().map(Bar::expectation).collect()),
    ];
    let tone = |bar: &Bar<'_>| if bar.look.is_faint { Tone::Faint } else { Tone::Plain };
    Table::of_columns(format!("{title}, Gb/s"), columns).with_tones(bars.iter().map(tone))
}
