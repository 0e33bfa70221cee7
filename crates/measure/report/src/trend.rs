//! A trend of several results: its tables, and its text for a terminal and for Markdown.

use nm_model::comparison::change_text;
use nm_model::metric::Metric;
use nm_model::probe::ProbeKind;
use nm_model::result::{RunState, Statistic};
use nm_model::trend::{Trend, TrendLine, TrendPoint, TrendResult};

use crate::gate;
use crate::probes::case_words;
use crate::style::{Style, Tone, clean};
use crate::table::{Column, Table, markdown_text};
use crate::terminal::paragraph;
use crate::units::{self, NOT_AVAILABLE};

/// Most results that have a column of their own at a terminal: the first and the last ones.
const COLUMNS_MAX: usize = 4;

/// Most machines whose last result has its gate in full at a terminal.
const GATES_MAX: usize = 3;

/// Most changes that are listed at the head.
const CHANGES_MAX: usize = 5;

/// Mark of a figure that is not like for like with the first one of its line.
const UNLIKE: &str = "≠";

/// Text for a series that a result does not have.
const NOT_MEASURED: &str = "not measured";

/// How to read it, as sentences.
pub const READING: [&str; 4] = [
    "Results of one machine stand together, in the order of their start. A figure is that of its \
     result: the median over rounds, with the 95 % interval over rounds where there are five or \
     more.",
    "Changes are against the first result of the machine that has the figure, and against the last \
     one before. \"2.4 times slower\" takes 2.4 times as long.",
    "≠ marks a figure whose conditions are not like for like with those of the first.",
    "Each result is tested against those before it on its machine, by the rules of `nearmetal \
     baseline gate`; one that failed is not accepted. With --fail-on the last result of each \
     machine decides the exit code.",
];

/// Lines of one environment, probe and statistic.
pub struct TrendGroup<'a> {
    /// Environment.
    pub environment: &'a str,
    /// Probe.
    pub probe: ProbeKind,
    /// What one value is.
    pub statistic: Statistic,
    /// Lines, in order.
    pub lines: Vec<&'a TrendLine>,
}

impl TrendGroup<'_> {
    /// `netns · pingpong · half round trip`.
    pub fn title(&self) -> String {
        format!("{} · {} · {}", self.environment, self.probe, self.statistic.label())
    }
}

/// The lines of a trend in groups, in order of first appearance.
pub fn groups(trend: &Trend) -> Vec<TrendGroup<'_>> {
    let mut groups: Vec<TrendGroup<'_>> = vec![];
    for line in &trend.lines {
        let key = &line.series;
        let found = groups.iter_mut().find(|group| {
            (group.environment, group.probe, group.statistic)
                == (key.environment.as_str(), key.probe, key.statistic)
        });
        match found {
            Some(group) => group.lines.push(line),
            None => groups.push(TrendGroup {
                environment: &key.environment,
                probe: key.probe,
                statistic: key.statistic,
                lines: vec![line],
            }),
        }
    }
    groups
}

/// `3 results, 2026-01-02T03:04:05Z to 2026-03-02T03:04:05Z`.
pub fn title(trend: &Trend) -> String {
    let n_results = units::plural(trend.results.len(), "result", "results");
    let started = || trend.results.iter().filter_map(|result| result.started.as_deref());
    match (started().min(), started().max()) {
        (Some(first), Some(last)) if first != last => format!("{n_results}, {first} to {last}"),
        _ => n_results,
    }
}

/// Number and name of a result: `2: after`.
pub fn label(trend: &Trend, at: usize) -> String {
    trend.results.get(at).map_or_else(String::new, |result| format!("{}: {}", at + 1, result.name))
}

/// The results, and what changed from one to the next.
pub fn results_table(trend: &Trend) -> Table {
    let titles = [
        Column::figure("no."),
        Column::text("result"),
        Column::text("machine").optional(),
        Column::text("started (UTC)"),
        Column::text("plan").optional(),
        Column::text("state"),
        Column::text("changed since the last").optional(),
    ];
    let mut table = Table::new("Results", titles);
    for (at, result) in trend.results.iter().enumerate() {
        let started = result.started.clone().unwrap_or_else(|| "not known".to_string());
        table.push(
            if result.state == RunState::Complete { Tone::Plain } else { Tone::Unsure },
            vec![
                (at + 1).to_string(),
                result.name.clone(),
                if trend.has_machines() { result.identity.to_string() } else { String::new() },
                started,
                result.plan.clone().unwrap_or_default(),
                result.state.to_string(),
                changes(result),
            ],
        );
    }
    table.drop_empty();
    table
}

fn changes(result: &TrendResult) -> String {
    let shown: Vec<String> = result
        .changes
        .iter()
        .take(CHANGES_MAX)
        .map(|change| format!("{}: {} → {}", change.field, change.a, change.b))
        .collect();
    match result.changes.len() - shown.len() {
        0 => shown.join("; "),
        more => format!("{} and {more} more", shown.join("; ")),
    }
}

/// The figure of a point, with the mark of one that is not like for like.
fn value_text(metric: Metric, point: &TrendPoint) -> String {
    if !point.is_measured {
        return NOT_MEASURED.to_string();
    }
    let value = units::figure(metric, point.value);
    if point.differences.is_empty() { value } else { format!("{value} {UNLIKE}") }
}

fn interval_text(metric: Metric, point: &TrendPoint) -> String {
    point.interval.map_or_else(
        || NOT_AVAILABLE.to_string(),
        |ends| {
            let end = |value| units::figure(metric, Some(value));
            format!("{} to {}", end(ends.low), end(ends.high))
        },
    )
}

fn change(metric: Metric, ratio: Option<f64>) -> String {
    ratio.and_then(|ratio| change_text(metric, ratio)).unwrap_or_default()
}

/// What limits a point, in words.
fn remarks(point: &TrendPoint) -> String {
    let mut remarks: Vec<String> = vec![];
    if !point.differences.is_empty() {
        let each: Vec<String> = point
            .differences
            .iter()
            .map(|found| format!("{} is {}, was {}", found.field, found.b, found.a))
            .collect();
        remarks.push(format!("not like for like: {}", each.join(", ")));
    }
    if !point.doubts.is_empty() {
        let titles: Vec<&str> = point.doubts.iter().map(|kind| kind.title()).collect();
        remarks.push(format!("doubts: {}", titles.join(", ")));
    }
    remarks.join("; ")
}

/// Everything about the lines of a group: a row for each figure of each result.
pub fn full_table(trend: &Trend, group: &TrendGroup<'_>) -> Table {
    let titles = [
        Column::text("stack"),
        Column::text("case"),
        Column::text("figure"),
        Column::text("result"),
        Column::figure("value"),
        Column::figure("95 % interval").optional(),
        Column::figure("rounds"),
        Column::text("against the first"),
        Column::text("against the last before"),
        Column::text("remarks").optional(),
    ];
    let mut table = Table::new(group.title(), titles);
    for line in &group.lines {
        for (at, point) in line.points.iter().enumerate() {
            let is_like = point.differences.is_empty();
            table.push(
                if is_like { Tone::Plain } else { Tone::Differs },
                vec![
                    line.series.stack.clone(),
                    case_words::text(&line.series.case),
                    line.metric.to_string(),
                    label(trend, at),
                    value_text(line.metric, point),
                    interval_text(line.metric, point),
                    point.rounds.to_string(),
                    change(line.metric, point.ratio_to_first),
                    change(line.metric, point.ratio_to_previous),
                    remarks(point),
                ],
            );
        }
    }
    table.drop_empty();
    table
}

/// The results that have a column at a terminal: the first one and the last ones.
fn shown(n_results: usize) -> Vec<usize> {
    let n_last = COLUMNS_MAX - 1;
    (0..n_results).filter(|&at| at == 0 || at + n_last >= n_results).collect()
}

/// The lines of a group, one a row, with a column for each result.
fn brief_table(trend: &Trend, group: &TrendGroup<'_>) -> Table {
    let columns = shown(trend.results.len());
    let mut titles = ["stack", "case", "figure"].map(Column::text).to_vec();
    titles.extend(columns.iter().map(|at| Column::figure(format!("({})", at + 1))));
    titles.extend(["last against the first", "last against the one before"].map(Column::text));
    let mut table = Table::new(group.title(), titles);
    for line in &group.lines {
        let mut cells = vec![
            line.series.stack.clone(),
            case_words::text(&line.series.case),
            line.metric.to_string(),
        ];
        cells.extend(columns.iter().map(|&at| value_text(line.metric, &line.points[at])));
        let last = line.points.last();
        cells.push(change(line.metric, last.and_then(|point| point.ratio_to_first)));
        cells.push(change(line.metric, last.and_then(|point| point.ratio_to_previous)));
        table.push(Tone::Plain, cells);
    }
    table
}

/// The largest changes between the first and the last figure of a line, as sentences.
pub fn largest_changes(trend: &Trend) -> Vec<String> {
    let mut found: Vec<(f64, &TrendLine, usize, usize, f64)> = vec![];
    for line in &trend.lines {
        for (first, last, ratio) in line.first_and_last() {
            let size = if ratio > 0.0 { ratio.ln().abs() } else { f64::INFINITY };
            if ratio != 1.0 {
                found.push((size, line, first, last, ratio));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
        .into_iter()
        .take(CHANGES_MAX)
        .filter_map(|(_, line, first, last, ratio)| {
            let machine = match trend.has_machines() {
                true => format!(" on {}", trend.results.get(last)?.identity),
                false => String::new(),
            };
            let (first, last) = (&line.points[first], &line.points[last]);
            let metric = line.metric;
            let overlap = match (first.interval, last.interval) {
                (Some(a), Some(b)) if a.high < b.low || b.high < a.low => {
                    "; the intervals do not overlap"
                }
                (Some(_), Some(_)) => "; the intervals overlap",
                _ => "; too few rounds to claim",
            };
            Some(format!(
                "{} of {}{machine}: {}, from {} to {}{}{overlap}",
                metric,
                line.series,
                change_text(metric, ratio)?,
                units::figure(metric, first.value),
                units::figure(metric, last.value),
                if last.differences.is_empty() { "" } else { " (not like for like)" },
            ))
        })
        .collect()
}

/// The trend for a terminal.
pub fn text(trend: &Trend, style: &Style) -> String {
    let mut text = format!("{}\n", style.bold(&clean(&title(trend))));
    text += &results_table(trend).to_text(style);
    for group in groups(trend) {
        let table = brief_table(trend, &group);
        text += &format!("\n{}\n{}", style.bold(&clean(&table.caption)), table.to_text(style));
    }
    let n_hidden = trend.results.len() - shown(trend.results.len()).len();
    if n_hidden > 0 {
        let hidden = units::plural(n_hidden, "result", "results");
        let line = format!("{hidden} between the first and the last ones: see --out or --format");
        text += &format!("\n{}", paragraph(&line, style, 0, 0));
    }
    let changes = largest_changes(trend);
    if !changes.is_empty() {
        text += &format!("\n{}\n", style.bold("largest changes from the first to the last"));
        for change in changes {
            text += &format!("  {}", paragraph(&change, style, 2, 4));
        }
    }
    if has_unlike(trend) {
        let line = format!("{UNLIKE} not like for like with the first; --format markdown says why");
        text += &format!("\n{}", paragraph(&line, style, 0, 0));
    }
    if !trend.refused.is_empty() {
        text += &format!("\n{}\n", style.bold("left out"));
        for line in &trend.refused {
            text += &format!("  {}", paragraph(line, style, 2, 4));
        }
    }
    let table = gates_table(trend);
    if !trend.gates.is_empty() {
        text += &format!("\n{}\n{}", style.bold(&table.caption), table.to_text(style));
    }
    for one in trend.last_gates().take(GATES_MAX) {
        text += &format!("\n{}", gate::text(&one.gate, style));
    }
    text
}

/// Each result against those before it.
pub fn gates_table(trend: &Trend) -> Table {
    let titles = [
        Column::figure("no."),
        Column::text("result"),
        Column::figure("against"),
        Column::text("outcome"),
        Column::text("why"),
        Column::text("doubts").optional(),
    ];
    let mut table = Table::new("Each result against those before it on its machine", titles);
    for one in &trend.gates {
        let doubts: Vec<&str> = one.gate.doubts.iter().map(|kind| kind.title()).collect();
        table.push(
            one.gate.outcome.into(),
            vec![
                (one.result + 1).to_string(),
                one.gate.run.name.clone(),
                one.gate.baselines.len().to_string(),
                one.gate.outcome.name().to_string(),
                one.gate.reasons.first().cloned().unwrap_or_default(),
                doubts.join(", "),
            ],
        );
    }
    table.drop_empty();
    table
}

fn has_unlike(trend: &Trend) -> bool {
    trend.lines.iter().flat_map(|line| &line.points).any(|point| !point.differences.is_empty())
}

/// The trend as a Markdown document.
pub fn markdown(trend: &Trend) -> String {
    let mut text = format!("# Trend: {}\n\n", markdown_text(&title(trend)));
    let bullets = |lines: &mut dyn Iterator<Item = &str>| -> String {
        lines.map(|line| format!("- {}\n", markdown_text(line))).collect()
    };
    let changes = largest_changes(trend);
    if !changes.is_empty() {
        text += "Largest changes from the first to the last:\n\n";
        text += &format!("{}\n", bullets(&mut changes.iter().map(String::as_str)));
    }
    text += &results_table(trend).to_markdown();
    if !trend.gates.is_empty() {
        text += &format!("\n{}", gates_table(trend).to_markdown());
    }
    text += "\n## Figures\n";
    for group in groups(trend) {
        text += &format!("\n{}", full_table(trend, &group).to_markdown());
    }
    if !trend.refused.is_empty() {
        let lines = bullets(&mut trend.refused.iter().map(String::as_str));
        text += &format!("\n## Left out\n\n{lines}");
    }
    text + &format!("\n## How to read it\n\n{}", bullets(&mut READING.into_iter()))
}
