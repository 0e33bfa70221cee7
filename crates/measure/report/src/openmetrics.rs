//! The figures as OpenMetrics text (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), for
//! a textfile collector: base units, no time stamps.

use nm_model::metric::Metric;
use nm_model::result::{Series, Statistic};
use nm_model::{Outcome, RunResult};

use crate::probes::jitter::{self, CpuTotal};
use crate::style::clean;
use crate::view;

/// Labels of one sample.
pub type Labels = Vec<(&'static str, String)>;

/// One metric family.
pub struct Family {
    /// Its name, which ends in its unit; that of a counter ends in `_total` after it.
    pub name: &'static str,
    /// Its unit, if it has one.
    pub unit: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Its samples.
    pub samples: Vec<(Labels, f64)>,
}

/// The text, closed by `# EOF`.
pub fn text(result: &RunResult) -> String {
    families_text(&[
        run(result),
        verdicts(result),
        latency(result),
        latency_figure(
            result,
            "nearmetal_latency_mean_seconds",
            "Arithmetic mean of the latency.",
            Metric::Mean,
        ),
        latency_figure(
            result,
            "nearmetal_latency_stddev_seconds",
            "Standard deviation of the latency inside a round.",
            Metric::Stddev,
        ),
        latency_figure(
            result,
            "nearmetal_latency_es10_seconds",
            "Mean of the slowest 10 % of the samples.",
            Metric::Es10,
        ),
        counts(result, "nearmetal_samples", "Samples of all rounds together.", view::samples),
        counts(result, "nearmetal_lost", "Messages that never came back.", |series| {
            Some(view::lost(series))
        }),
        throughput(result),
        lost_time(result),
        jitter_figure(
            result,
            "nearmetal_jitter_gaps_per_second",
            "",
            "Gaps a second of the thread on a CPU, over all rounds.",
            |total| total.per_s(total.gaps()),
        ),
        jitter_figure(
            result,
            "nearmetal_jitter_longest_seconds",
            "seconds",
            "The longest gap of the thread on a CPU.",
            |total| total.longest_ns() as f64 / 1e9,
        ),
    ])
}

/// The text of some families; one without samples is left out.
pub fn families_text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        // The format names a counter without the end of its samples' name.
        let (name, kind) = match family.name.strip_suffix("_total") {
            Some(name) => (name, "counter"),
            None => (family.name, "gauge"),
        };
        text += &format!("# TYPE {name} {kind}\n");
        if !family.unit.is_empty() {
            text += &format!("# UNIT {name} {}\n", family.unit);
        }
        text += &format!("# HELP {name} {}\n", family.help);
        for (labels, value) in &family.samples {
            text += &format!("{}{} {}\n", family.name, braces(labels), number(*value));
        }
    }
    text + "# EOF\n"
}

fn braces(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

/// A value as the format wants it. Control characters of what others named command no terminal.
fn escaped(value: &str) -> String {
    let lines = value.split('\n').map(clean).collect::<Vec<_>>().join("\n");
    lines.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_string()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_string()
    } else {
        format!("{value:?}")
    }
}

fn labels(series: &Series) -> Labels {
    let key = &series.key;
    let mut labels = vec![
        ("environment", key.environment.clone()),
        ("stack", key.stack.clone()),
        ("probe", key.probe.to_string()),
        ("case", key.case.to_string()),
        ("statistic", key.statistic.to_string()),
    ];
    if series.comparability.execution.is_some() {
        labels.push(("execution", view::execution_text(series)));
    }
    labels
}

fn run(result: &RunResult) -> Family {
    let labels = vec![
        ("name", result.name.clone()),
        ("source", view::source_text(&result.source)),
        ("started", result.started.clone().unwrap_or_default()),
        ("state", result.state.to_string()),
        ("outcome", result.outcome.to_string()),
    ];
    Family {
        name: "nearmetal_run",
        unit: "",
        help: "The run that all other samples are of; always 1.",
        samples: vec![(labels, 1.0)],
    }
}

fn verdicts(result: &RunResult) -> Family {
    let mut samples = vec![];
    for (index, verdict) in result.verdicts.iter().enumerate() {
        for outcome in Outcome::ALL {
            let labels = vec![
                ("target", verdict.target.clone()),
                // Two targets of a plan may have the same words.
                ("index", index.to_string()),
                ("outcome", outcome.to_string()),
            ];
            samples.push((labels, f64::from(u8::from(verdict.outcome == *outcome))));
        }
    }
    Family {
        name: "nearmetal_verdict",
        unit: "",
        help: "1 for the outcome that the judgement of the target came to, else 0.",
        samples,
    }
}

fn is_latency(series: &&Series) -> bool {
    series.key.statistic != Statistic::Throughput
}

fn latency(result: &RunResult) -> Family {
    let quantiles = [
        ("0", Metric::Min),
        ("0.5", Metric::Median),
        ("0.9", Metric::Percentile(90.0)),
        ("0.99", Metric::Percentile(99.0)),
        ("0.999", Metric::Percentile(99.9)),
        ("0.9999", Metric::Percentile(99.99)),
        ("1", Metric::Max),
    ];
    let mut samples = vec![];
    for series in result.series.iter().filter(is_latency) {
        for (quantile, metric) in quantiles {
            if let Some(ns) = view::value(series, metric) {
                let mut labels = labels(series);
                labels.push(("quantile", quantile.to_string()));
                samples.push((labels, ns / 1e9));
            }
        }
    }
    Family {
        name: "nearmetal_latency_seconds",
        unit: "seconds",
        help: "Latency by quantile; the label statistic says half or full round trip.",
        samples,
    }
}

fn latency_figure(
    result: &RunResult,
    name: &'static str,
    help: &'static str,
    metric: Metric,
) -> Family {
    let sample = |series: &Series| Some((labels(series), view::value(series, metric)? / 1e9));
    let samples = result.series.iter().filter(is_latency).filter_map(sample).collect();
    Family { name, unit: "seconds", help, samples }
}

fn counts(
    result: &RunResult,
    name: &'static str,
    help: &'static str,
    count: impl Fn(&Series) -> Option<u64>,
) -> Family {
    let sample = |series: &Series| Some((labels(series), count(series)? as f64));
    let samples = result.series.iter().filter(is_latency).filter_map(sample).collect();
    Family { name, unit: "", help, samples }
}

fn throughput(result: &RunResult) -> Family {
    let sample =
        |series: &Series| Some((labels(series), view::value(series, Metric::Throughput)? * 1e9));
    Family {
        name: "nearmetal_throughput_bits_per_second",
        unit: "bits_per_second",
        help: "Sum of all flows, counted by the receivers.",
        samples: result.series.iter().filter_map(sample).collect(),
    }
}

/// What each CPU lost, and the parts that are known.
fn lost_time(result: &RunResult) -> Family {
    let mut samples = vec![];
    for series in jitter::series(result) {
        for total in CpuTotal::of_series(series) {
            let parts = [
                ("all", Some(total.lost_ns())),
                ("preempted", total.preempted_ns()),
                ("interrupts", total.interrupts_ns()),
                ("steal", total.steal_ns()),
                ("unexplained", Some(total.unexplained_time_ns())),
                ("certainly below the OS", Some(total.below_system_ns())),
            ];
            for (cause, ns) in parts {
                let Some(ns) = ns else { continue };
                let mut labels = labels(series);
                labels.push(("cpu", total.cpu.to_string()));
                labels.push(("cause", cause.to_string()));
                samples.push((labels, total.share(ns)));
            }
        }
    }
    Family {
        name: "nearmetal_jitter_lost_ratio",
        unit: "ratio",
        help: "Share of time that the thread on a CPU lost, by cause; unknown ones are absent.",
        samples,
    }
}

fn jitter_figure(
    result: &RunResult,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    value: impl Fn(&CpuTotal<'_>) -> f64,
) -> Family {
    let mut samples = vec![];
    for series in jitter::series(result) {
        for total in CpuTotal::of_series(series) {
            let mut labels = labels(series);
            labels.push(("cpu", total.cpu.to_string()));
            samples.push((labels, value(&total)));
        }
    }
    Family { name, unit, help, samples }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::jitter::fixture;

    #[test]
    fn each_cpu_of_the_jitter_probe_has_its_causes() {
        let text = text(&fixture::result(2));
        let line = |cause: &str| {
            let is_wanted = |line: &&str| {
                line.starts_with("nearmetal_jitter_lost_ratio{")
                    && line.contains("cpu=\"1\"")
                    && line.contains(&format!("cause=\"{cause}\""))
            };
            text.lines().find(is_wanted).map(|line| line.rsplit(' ').next().unwrap().to_string())
        };
        assert_eq!(line("all").as_deref(), Some("0.055"));
        assert_eq!(line("preempted").as_deref(), Some("0.05"));
        assert_eq!(line("interrupts"), None);
        assert!(text.contains("nearmetal_jitter_gaps_per_second{"));
    }

    #[test]
    fn label_values_are_escaped_as_the_format_wants() {
        let labels = vec![("a", "x\\y\"z\nw".to_string())];
        assert_eq!(braces(&labels), "{a=\"x\\\\y\\\"z\\nw\"}");
        let hostile = vec![("a", "x\u{1b}[2J\u{7}".to_string())];
        assert_eq!(braces(&hostile), "{a=\"x\u{fffd}[2J\u{fffd}\"}");
        assert_eq!(number(1.5e-6), "1.5e-6");
        assert_eq!(number(1.0), "1.0");
    }
}
