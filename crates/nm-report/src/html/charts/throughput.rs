//! Throughput bars: by stack and pattern, divided by flow, with targets and expected ranges.

use nm_model::RunResult;
use nm_model::metric::Metric;
use nm_model::result::{Series, Statistic};
use nm_model::verdict::Verdict;
use nm_model::{SettingKind, SettingValue};

use crate::style::Tone;
use crate::svg::{Axis, Chart, Look, Mark};
use crate::table::Table;
use crate::units;
use crate::view;

use super::figure::{Figure, ROWS_MAX, number, spread};

/// A row of the throughput chart.
struct Bar<'a> {
    label: String,
    series: &'a Series,
    is_faint: bool,
    /// Limits of targets that judged it, with their signs.
    limits: Vec<(f64, String)>,
    /// Range that the study of a reference run expected.
    expected: Option<(f64, f64)>,
}

impl<'a> Bar<'a> {
    fn own(result: &RunResult, series: &'a Series) -> Bar<'a> {
        let label = format!("{} {}", series.key.path(), view::case_text(&series.key.case));
        Bar { label, series, is_faint: false, limits: limits(result, series), expected: None }
    }

    fn of_reference(run: &RunResult, series: &'a Series) -> Bar<'a> {
        let case = view::case_text(&series.key.case);
        let label = format!("reference {} {} {case}", run.name, series.key.stack);
        let setting = |kind: SettingKind| match series.settings.get(&kind)? {
            SettingValue::GigabitsPerSecond(gbps) => Some(*gbps),
            _ => None,
        };
        let expected = setting(SettingKind::ExpectedMin).zip(setting(SettingKind::ExpectedMax));
        Bar { label, series, is_faint: true, limits: vec![], expected }
    }

    /// Every value that the axis must hold.
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        view::round_values(self.series, Metric::Throughput)
            .into_iter()
            .chain(self.limits.iter().map(|(limit, _)| *limit))
            .chain(self.expected.map(|(_, high)| high))
    }

    fn expectation(&self) -> String {
        let limits = self.limits.iter().map(|(_, text)| text.clone());
        let range = self.expected.map(|(low, high)| {
            format!("{} to {} by its study", units::plain(low), units::plain(high))
        });
        limits.chain(range).collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn figures(result: &RunResult, references: &[RunResult]) -> Vec<Figure> {
    let is_flows = |s: &&Series| s.key.statistic == Statistic::Throughput;
    let mut bars: Vec<Bar<'_>> =
        result.series.iter().filter(is_flows).map(|s| Bar::own(result, s)).collect();
    if bars.is_empty() {
        return vec![];
    }
    for run in references {
        bars.extend(run.series.iter().filter(is_flows).map(|s| Bar::of_reference(run, s)));
    }
    let n_charts = bars.len().div_ceil(ROWS_MAX);
    let high = bars.iter().flat_map(Bar::values).fold(0.0, f64::max);
    bars.chunks(ROWS_MAX)
        .enumerate()
        .map(|(index, part)| {
            let title =
                format!("stream: throughput by stack and pattern{}", number(index, n_charts));
            throughput_figure(title, part, high)
        })
        .collect()
}

/// Limits of targets on throughput that judged this very series: value and text with sign. A
/// target may be for some stacks only, so its text alone does not decide.
fn limits(result: &RunResult, series: &Series) -> Vec<(f64, String)> {
    let name = series.key.to_string();
    let limit = |verdict: &Verdict| {
        let target = verdict.require.as_ref()?;
        let is_judged = target.metric == Metric::Throughput
            && verdict.evidence.iter().any(|e| e.series == name);
        let sign = if target.op.is_upper_bound() { "≤" } else { "≥" };
        is_judged.then(|| (target.limit, format!("{sign} {}", units::plain(target.limit))))
    };
    result.verdicts.iter().filter_map(limit).collect()
}

/// The marks of one row at height `y`.
fn bar_marks(bar: &Bar<'_>, y: f64) -> Vec<Mark> {
    let mut marks = vec![];
    if let Some(x) = bar.expected {
        marks.push(Mark::Range { x, y: (y - 0.42, y + 0.42) });
    }
    let Some(total) = view::value(bar.series, Metric::Throughput) else { return marks };
    let look = |flow| if bar.is_faint { Look::faint(flow) } else { Look::of(flow) };
    let flows: Vec<f64> = view::typical_throughput(bar.series)
        .map_or_else(Vec::new, |round| round.flows.iter().map(|f| f.gbps).collect());
    let sum: f64 = flows.iter().sum();
    // Flows are those of the middle round, scaled to the figure that the bar shows.
    let parts =
        if sum > 0.0 { flows.iter().map(|f| f * total / sum).collect() } else { vec![total] };
    let mut from = 0.0;
    for (flow, part) in parts.into_iter().enumerate() {
        marks.push(Mark::Bar { look: look(flow), y: (y, 0.56), x: (from, from + part) });
        from += part;
    }
    let rounds = view::round_values(bar.series, Metric::Throughput);
    if rounds.len() > 1 {
        let dot = |(i, v): (usize, &f64)| (*v, y + spread(i, rounds.len()));
        marks.push(Mark::Open(DOTS, rounds.iter().enumerate().map(dot).collect()));
    }
    let end = bar.values().fold(total, f64::max);
    marks.push(Mark::Label((end, y), throughput_text(bar.series, total)));
    marks.extend(bar.limits.iter().map(|(x, text)| Mark::Limit {
        x: *x,
        y: (y - 0.42, y + 0.42),
        text: text.clone(),
    }));
    marks
}

/// Look of dots on bars: the colour of text, round.
const DOTS: Look = Look { index: 6, is_faint: false };

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
    let spread = view::stddev(&values)
        .map_or(String::new(), |sd| format!(" ± {}", units::significant(sd, 2)));
    format!("{}{spread} (n = {})", units::significant(total, 4), values.len())
}

fn throughput_table(title: String, bars: &[Bar<'_>]) -> Table {
    let titles = [
        "series",
        "#median",
        "#SD",
        "#min",
        "#max",
        "#rounds",
        "rounds in order",
        "flows of the middle round",
        "expected",
    ];
    let mut table = Table::new(format!("{title}, Gb/s"), &titles);
    let cell = |v: Option<f64>| units::or_not_available(v, |v| units::significant(v, 4));
    let list = |values: Vec<f64>| {
        let texts: Vec<String> = values.iter().map(|v| units::significant(*v, 4)).collect();
        texts.join(", ")
    };
    for bar in bars {
        let values = view::round_values(bar.series, Metric::Throughput);
        let flows = view::typical_throughput(bar.series)
            .map_or_else(Vec::new, |round| round.flows.iter().map(|f| f.gbps).collect());
        let cells = vec![
            bar.label.clone(),
            cell(view::value(bar.series, Metric::Throughput)),
            cell(view::stddev(&values)),
            cell(values.iter().copied().reduce(f64::min)),
            cell(values.iter().copied().reduce(f64::max)),
            values.len().to_string(),
            list(values),
            list(flows),
            bar.expectation(),
        ];
        table.push(if bar.is_faint { Tone::Faint } else { Tone::Plain }, cells);
    }
    table
}
