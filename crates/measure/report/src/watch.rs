//! A watched machine: status for terminals, sentences of alerts, OpenMetrics.

use jiff::Timestamp;
use nm_model::metric::Quantity;
use nm_model::watch::{WatchChange, WatchLine, WatchReport};

use crate::openmetrics::{Family, Labels, families_text};
use crate::style::{Style, Tone, wrap};
use crate::table::{Column, Table};
use crate::units;

/// Most events and changes that the terminal shows, the last ones.
const SHOWN_MAX: usize = 12;

/// `2026-11-22T06:23:01Z`.
pub fn time(at_s: i64) -> String {
    Timestamp::from_second(at_s).map_or_else(|_| format!("{at_s} s"), |at| at.to_string())
}

/// `median of loopback/tcp-spin pingpong 64 B is 1.32 times what it was, 12.1 µs after 9.2 µs,
/// since 2026-11-22T06:23:01Z (5 trials); just before: kernel changed from A to B`.
pub fn sentence(change: &WatchChange) -> String {
    let WatchChange { figure, since_s, n_trials, .. } = change;
    let value = |value| units::figure(figure.metric, Some(value));
    let near = match &change.events[..] {
        [] => "nothing else changed just before".to_string(),
        events => format!("just before: {}", events.join(", ")),
    };
    format!(
        "{figure} is {:.2} times what it was, {} after {}, since {} ({n_trials} trials); {near}",
        change.ratio(),
        value(change.after),
        value(change.before),
        time(*since_s),
    )
}

/// What watching cost: `0.02 % of one CPU between trials, 0.31 s of CPU time a trial`.
pub fn cost(found: &WatchReport) -> String {
    let trial_s = found.cost.trial_cpu_ns as f64 / 1e9 / found.n_trials.max(1) as f64;
    let trial = format!("{} s of CPU time a trial", units::significant(trial_s, 2));
    match found.cost.share() {
        Some(share) => format!("{:.3} % of one CPU between trials, {trial}", share * 100.0),
        None => format!("not known between trials yet, {trial}"),
    }
}

/// What a line can show.
fn power(line: &WatchLine) -> String {
    match line.found_ratio {
        Some(ratio) => format!("{:.0} %", (ratio - 1.0) * 100.0),
        None if line.n_known < line.n_needed => {
            format!("learning: {} of {} trials", line.n_known, line.n_needed)
        }
        None => "none up to 10 times".to_string(),
    }
}

/// The figures, each with what it can show and what watching cost.
pub fn table(found: &WatchReport) -> Table {
    let columns = [
        Column::text("figure"),
        Column::figure("level"),
        Column::figure("last"),
        Column::figure("trials"),
        Column::text("slowdown found in 5 trials"),
        Column::figure("watching"),
    ];
    let mut table = Table::new("Figures", columns);
    for line in &found.lines {
        let metric = line.figure.metric;
        let last = line.points.last().map(|(_, value)| *value);
        let cells = vec![
            line.figure.to_string(),
            units::figure(metric, line.level),
            units::figure(metric, last),
            line.n_known.to_string(),
            power(line),
            found.cost.share().map_or("-".to_string(), |it| format!("{:.2} %", it * 100.0)),
        ];
        table.push(Tone::Plain, cells);
    }
    table
}

/// `plan quick each 10 min: 4320 trials, 2 failed, the last at …`.
pub fn title(found: &WatchReport) -> String {
    let every = units::duration(found.every_s as f64);
    let last = found.last_s.map_or(String::new(), |at| format!(", the last at {}", time(at)));
    format!(
        "plan {} each {every}: {}, {} failed{last}",
        found.plan,
        units::plural(found.n_trials, "trial", "trials"),
        found.n_failed
    )
}

/// Changes of level in sentences, the last ones.
pub fn changes(found: &WatchReport) -> Vec<String> {
    let worse = |change: &WatchChange| if change.is_worse() { "worse" } else { "better" };
    found.changes.iter().map(|it| format!("{}: {}", worse(it), sentence(it))).collect()
}

/// Events, each with its time.
pub fn events(found: &WatchReport) -> Vec<String> {
    found.events.iter().map(|it| format!("{}: {}", time(it.at_s), it.what)).collect()
}

/// The status for terminals.
pub fn text(found: &WatchReport, style: &Style) -> String {
    let mut text = format!(
        "{}\nwatching costs {}\n\n{}",
        title(found),
        cost(found),
        table(found).to_text(style)
    );
    for (heading, lines) in [("changes of level", changes(found)), ("events", events(found))] {
        text += &format!("\n{heading}:\n");
        if lines.is_empty() {
            text += "  none\n";
        }
        let n_before = lines.len().saturating_sub(SHOWN_MAX);
        if n_before > 0 {
            text += &format!("  {n_before} earlier ones: nearmetal watch report\n");
        }
        for line in lines.iter().skip(n_before) {
            for part in wrap(line, style.width.saturating_sub(2).max(20)) {
                text += &format!("  {part}\n");
            }
        }
    }
    text
}

/// The last trial and the levels as OpenMetrics text.
pub fn openmetrics(found: &WatchReport) -> String {
    let labels = |line: &WatchLine| -> Labels {
        let figure = &line.figure;
        vec![
            ("environment", figure.environment.clone()),
            ("stack", figure.stack.clone()),
            ("probe", figure.probe.to_string()),
            ("cases", figure.cases.clone()),
            ("figure", figure.metric.to_string()),
        ]
    };
    let one = |name, unit, help, value: Option<f64>| Family {
        name,
        unit,
        help,
        samples: value.into_iter().map(|value| (vec![], value)).collect(),
    };
    let of_lines = |wanted: fn(&WatchLine) -> Option<f64>, is_latency: bool| {
        let lines = found
            .lines
            .iter()
            .filter(move |line| (line.figure.metric.quantity() == Quantity::Latency) == is_latency);
        let scale = if is_latency { 1e-9 } else { 1.0 };
        lines.filter_map(|line| Some((labels(line), wanted(line)? * scale))).collect()
    };
    let last = |line: &WatchLine| line.points.last().map(|(_, value)| *value);
    let n_worse = found.changes.iter().filter(|change| change.is_worse()).count();
    families_text(&[
        one("nearmetal_watch_trials", "", "Trials in the folder.", Some(found.n_trials as f64)),
        one("nearmetal_watch_failed", "", "Trials that failed.", Some(found.n_failed as f64)),
        one(
            "nearmetal_watch_last_timestamp_seconds",
            "seconds",
            "Start of the last trial.",
            found.last_s.map(|at| at as f64),
        ),
        one("nearmetal_watch_alarms", "", "Changes for the worse.", Some(n_worse as f64)),
        one(
            "nearmetal_watch_cost_ratio",
            "ratio",
            "Share of one CPU that the watcher takes between trials.",
            found.cost.share(),
        ),
        Family {
            name: "nearmetal_watch_latency_seconds",
            unit: "seconds",
            help: "Latency of the last trial.",
            samples: of_lines(last, true),
        },
        Family {
            name: "nearmetal_watch_latency_level_seconds",
            unit: "seconds",
            help: "Median since the last change of level.",
            samples: of_lines(|line| line.level, true),
        },
        Family {
            name: "nearmetal_watch_figure",
            unit: "",
            help: "What is no latency, of the last trial: Gb/s, 1/s or a share.",
            samples: of_lines(last, false),
        },
    ])
}
