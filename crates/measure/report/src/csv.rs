//! Comma-separated tables. One has every figure of every round, the others sweeps in the columns of
//! the published runs (`size,mean,min,median,max,p99,stddev,iter`, ns). So both can be compared
//! with `cut` and `diff`.

use std::borrow::Cow;

use nm_model::RunResult;
use nm_model::compute::ComputeRound;
use nm_model::jitter::{CpuJitter, JitterRound};
use nm_model::metric::{Metric, Quantity};
use nm_model::result::{Round, RoundData, Series};

use crate::probes::pingpong::sfnt;
use crate::units;
use crate::view;

/// First line of [`long`].
pub const LONG_HEADING: &str =
    "environment,stack,probe,case,statistic,round,figure,value,unit,execution";

/// What stands for the round in figures over all rounds.
pub const ALL_ROUNDS: &str = "all";

/// First line of [`sweep`], as the published runs have it.
pub const SWEEP_HEADING: &str = "size,mean,min,median,max,p99,stddev,iter";

/// Whether a figure tells what a round's other figures are made of, such as what each CPU lost. A
/// reader of the table passes over these.
pub(crate) fn is_detail(figure: &str) -> bool {
    let of_parts = ["flow ", "cpu ", "thread "];
    ["threshold", "window"].contains(&figure) || of_parts.iter().any(|it| figure.starts_with(it))
}

/// Every figure of every round, and the figures over all rounds (round `all`), one a line.
pub fn long(result: &RunResult) -> String {
    let mut text = format!("{LONG_HEADING}\n");
    for series in &result.series {
        for round in &series.rounds {
            let number = round.round.to_string();
            for (figure, value, unit) in figures(round) {
                text += &line(series, &number, &figure, value, unit);
            }
        }
        for estimate in &series.estimates {
            let figure = estimate.metric.to_string();
            text += &line(series, ALL_ROUNDS, &figure, estimate.value, unit(estimate.metric));
            if let Some(interval) = estimate.interval {
                let unit = unit(estimate.metric);
                text += &line(series, ALL_ROUNDS, &format!("{figure} low"), interval.low, unit);
                text += &line(series, ALL_ROUNDS, &format!("{figure} high"), interval.high, unit);
            }
        }
    }
    text
}

/// A sweep's table as the published runs have it, rounded to ns; an empty cell is n/a.
pub fn sweep(sweep: &sfnt::Sweep<'_>) -> String {
    let mut text = format!("{SWEEP_HEADING}\n");
    for row in sweep.rows() {
        let cells: Vec<String> =
            row.cells.iter().map(|c| c.map_or(String::new(), |v| format!("{v:.0}"))).collect();
        text += &format!("{},{}\n", row.size_bytes, cells.join(","));
    }
    text
}

fn line(series: &Series, round: &str, figure: &str, value: f64, unit: &str) -> String {
    let key = &series.key;
    let value = units::plain(value);
    let case = key.case.to_string();
    let name = [&key.environment, &key.stack, key.probe.name(), &case, key.statistic.name()];
    let texts = name.into_iter().chain([round, figure]).map(|text| quoted(&as_text(text)));
    // A figure is a number, which a spreadsheet may read as one, also if it is negative.
    let unit = as_text(unit).into_owned();
    let cells: Vec<String> = texts.chain([value, unit, view::execution_text(series)]).collect();
    format!("{}\n", cells.join(","))
}

/// Whether a spreadsheet takes a cell with this beginning for a formula, or would without the
/// apostrophes before it.
fn is_formula(text: &str) -> bool {
    text.trim_start_matches('\'').starts_with(['=', '+', '-', '@', '\t', '\r'])
}

/// A text as a cell that no spreadsheet executes: with an apostrophe where it looks like a formula.
/// Names in a result may come from a file or a peer of somebody else.
pub(crate) fn as_text(text: &str) -> Cow<'_, str> {
    if is_formula(text) { format!("'{text}").into() } else { text.into() }
}

/// The text of a cell that [`long`] wrote.
pub(crate) fn text_of(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|text| is_formula(text)).unwrap_or(cell)
}

/// A cell, in quotes where it needs them (RFC 4180).
pub(crate) fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_string(),
    }
}

fn unit(metric: Metric) -> &'static str {
    match metric.quantity() {
        Quantity::Latency => "ns",
        Quantity::Ratio => "1",
        Quantity::Throughput => "Gb/s",
        Quantity::Rate => "1/s",
    }
}

/// The figures of one round that exist: name, value, unit.
fn figures(round: &Round) -> Vec<(String, f64, &'static str)> {
    let mut figures: Vec<(String, Option<f64>, &'static str)> = vec![];
    match &round.data {
        RoundData::Latency(data) => {
            figures.push(("count".into(), data.count.map(|v| v as f64), "1"));
            figures.push(("lost".into(), Some(data.lost as f64), "1"));
            let before = [Metric::Mean, Metric::Min];
            let percentiles = data.percentiles.iter().map(|p| match p.percentile {
                50.0 => Metric::Median,
                other => Metric::Percentile(other),
            });
            let after = [Metric::Max, Metric::Es10, Metric::Stddev, Metric::Rate, Metric::TimeLost];
            for metric in before.into_iter().chain(percentiles).chain(after) {
                figures.push((metric.to_string(), data.value(metric), unit(metric)));
            }
            figures.extend(data.jitter.iter().flat_map(|jitter| of_jitter(jitter)));
            figures.extend(data.compute.iter().flat_map(|compute| of_compute(compute)));
        }
        RoundData::Throughput(data) => {
            figures.push(("throughput".into(), Some(data.total_gbps), "Gb/s"));
            for flow in &data.flows {
                figures.push((format!("flow {}", flow.index), Some(flow.gbps), "Gb/s"));
                let retransmits = flow.retransmits.map(|v| v as f64);
                figures.push((format!("flow {} retransmits", flow.index), retransmits, "1"));
            }
            figures.push(("client cpu".into(), data.client_cpu, "s/s"));
            figures.push(("server cpu".into(), data.server_cpu, "s/s"));
        }
    }
    let is_known = |value: &f64| value.is_finite();
    figures
        .into_iter()
        .filter_map(|(name, value, unit)| Some((name, value.filter(is_known)?, unit)))
        .collect()
}

/// Name, value if there is one, unit.
type Figure = (String, Option<f64>, &'static str);

fn of_jitter(round: &JitterRound) -> Vec<Figure> {
    let of_round = [
        ("threshold".to_string(), Some(round.threshold_ns as f64), "ns"),
        ("window".to_string(), Some(round.window_s), "s"),
    ];
    of_round.into_iter().chain(round.cpus.iter().flat_map(of_cpu)).collect()
}

/// What one CPU lost, to what.
fn of_cpu(cpu: &CpuJitter) -> Vec<Figure> {
    let balance = &cpu.balance;
    let ns = |ns: Option<u64>| ns.map(|ns| ns as f64);
    let figures = [
        ("gaps", Some(cpu.gaps as f64), "1"),
        ("preempted gaps", ns(cpu.preempted_gaps), "1"),
        ("longest", ns(Some(cpu.longest_ns)), "ns"),
        ("lost", ns(Some(cpu.lost_ns)), "ns"),
        ("run delay", ns(balance.run_delay_ns), "ns"),
        ("interrupts", ns(balance.interrupts_ns), "ns"),
        ("steal", ns(balance.steal_ns), "ns"),
        ("unexplained", Some(balance.unexplained_ns as f64), "ns"),
        ("below system", Some(balance.below_system_ns() as f64), "ns"),
        ("watched", ns(Some(cpu.elapsed_ns)), "ns"),
        ("preempted time", ns(cpu.preempted_ns), "ns"),
        ("involuntary switches", Some(cpu.counted.involuntary_switches as f64), "1"),
        ("minor faults", Some(cpu.counted.minor_faults as f64), "1"),
        ("gaps not kept", Some(cpu.gaps_not_kept as f64), "1"),
    ];
    let named = |(name, value, unit)| (format!("cpu {} {name}", cpu.cpu), value, unit);
    figures.into_iter().map(named).collect()
}

/// What each thread did. Threads are numbered, as several may be on one CPU.
fn of_compute(round: &ComputeRound) -> Vec<Figure> {
    let mut figures = vec![("window".to_string(), Some(round.window_s), "s")];
    for (number, thread) in (1..).zip(&round.threads) {
        let of_thread = [
            ("cpu", Some(f64::from(thread.cpu)), "1"),
            ("jobs", Some(f64::from(thread.jobs)), "1"),
            ("user", Some(thread.user_ns as f64), "ns"),
            ("real", Some(thread.real_ns as f64), "ns"),
            ("run delay", thread.run_delay_ns.map(|ns| ns as f64), "ns"),
            ("steal", thread.steal_ms.map(|ms| ms as f64 * 1e6), "ns"),
        ];
        let named = |(name, value, unit)| (format!("thread {number} {name}"), value, unit);
        figures.extend(of_thread.into_iter().map(named));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::jitter::fixture;

    #[test]
    fn each_cpu_of_the_jitter_probe_has_its_balance() {
        let text = long(&fixture::result(1));
        let value = |figure: &str| -> f64 {
            let line = text.lines().find(|line| line.contains(&format!(",{figure},"))).unwrap();
            line.split(',').nth(7).unwrap().parse().unwrap()
        };
        assert_eq!(value("time-lost"), 0.055);
        let parts =
            ["run delay", "steal", "unexplained"].map(|part| value(&format!("cpu 1 {part}")));
        assert_eq!(parts.iter().sum::<f64>(), value("cpu 1 lost"));
        assert!(!text.contains("cpu 1 interrupts"), "not known");
    }

    #[test]
    fn only_cells_that_need_quotes_get_them() {
        assert_eq!(quoted("64 B"), "64 B");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }

    #[test]
    fn cells_that_look_like_formulas_are_texts() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''-1"] {
            let cell = as_text(text);
            assert_eq!(*cell, format!("'{text}"));
            assert_eq!(text_of(&cell), text, "it reads back");
        }
        for text in ["", "'", "netns", "tcp-spin", "it's", "'quoted'", "64 B"] {
            assert_eq!((&*as_text(text), text_of(text)), (text, text));
        }
    }
}
