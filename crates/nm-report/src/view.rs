//! What all reports show of a result: the series put into groups, the figures over all rounds,
//! doubts as numbered notes, and the tables made of them.

use nm_model::RunResult;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{RoundData, Series, Source, Statistic, ThroughputRound};
use nm_model::verdict::{Interval, Verdict};
use nm_model::{SettingKind, Side};

use crate::style::Tone;
use crate::table::Table;
use crate::units::{self, LatencyUnit, NOT_AVAILABLE, or_not_available, significant};

/// What made the figures.
pub fn source_text(source: &Source) -> String {
    match source {
        Source::Measured { version } => format!("nearmetal {version}"),
        Source::Reference { study, tool } => format!("{tool}, published in {study}"),
        Source::Imported { tool } => format!("{tool}, imported"),
    }
}

/// Series of one environment, probe and statistic: what one table shows.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// Environment.
    pub environment: &'a str,
    /// Probe.
    pub probe: ProbeKind,
    /// What one value is.
    pub statistic: Statistic,
    /// Series, those of one stack together.
    pub series: Vec<&'a Series>,
}

impl Group<'_> {
    /// `netns · pingpong · half round trip`.
    pub fn title(&self) -> String {
        format!("{} · {} · {}", self.environment, self.probe, self.statistic.label())
    }
}

/// The series of `result` by environment, probe and statistic, in order of first appearance; in a
/// group by stack in order of first appearance.
pub fn groups(result: &RunResult) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = vec![];
    for series in &result.series {
        let key = &series.key;
        let found = groups.iter_mut().find(|g| {
            g.environment == key.environment && g.probe == key.probe && g.statistic == key.statistic
        });
        match found {
            Some(group) => {
                let same = group.series.iter().rposition(|s| s.key.stack == key.stack);
                group.series.insert(same.map_or(group.series.len(), |at| at + 1), series);
            }
            None => groups.push(Group {
                environment: &key.environment,
                probe: key.probe,
                statistic: key.statistic,
                series: vec![series],
            }),
        }
    }
    groups
}

/// The figure of a series over its rounds: smallest minimum, largest maximum, else the estimate
/// (median over rounds), made here where an imported series has none.
pub fn value(series: &Series, metric: Metric) -> Option<f64> {
    let mut values: Vec<f64> = series.rounds.iter().filter_map(|r| r.value(metric)).collect();
    values.retain(|v| v.is_finite());
    values.sort_by(f64::total_cmp);
    match metric {
        Metric::Min => values.first().copied(),
        Metric::Max => values.last().copied(),
        _ => series.estimate(metric).map(|e| e.value).or_else(|| {
            let n_values = values.len();
            let upper = *values.get(n_values / 2)?;
            let is_even = n_values.is_multiple_of(2);
            Some(if is_even { (values[n_values / 2 - 1] + upper) / 2.0 } else { upper })
        }),
    }
}

/// Messages of all rounds that never came back.
pub fn lost(series: &Series) -> u64 {
    latency_rounds(series).fold(0, |sum, data| sum.saturating_add(data.lost))
}

/// Samples of all rounds together, if each round records its number.
pub fn samples(series: &Series) -> Option<u64> {
    let mut n_samples: Option<u64> = None;
    for data in latency_rounds(series) {
        n_samples = Some(n_samples.unwrap_or(0).saturating_add(data.count?));
    }
    n_samples
}

/// The sum, if every value is known.
pub fn sum(values: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    values.into_iter().try_fold(0u64, |sum, value| Some(sum.saturating_add(value?)))
}

/// The rounds that are distributions of latencies.
pub fn latency_rounds(
    series: &Series,
) -> impl Iterator<Item = &nm_model::result::LatencyRound> + use<'_> {
    series.rounds.iter().filter_map(|round| match &round.data {
        RoundData::Latency(data) => Some(data),
        RoundData::Throughput(_) => None,
    })
}

/// The rounds that are flows.
pub fn throughput_rounds(series: &Series) -> impl Iterator<Item = &ThroughputRound> + use<'_> {
    series.rounds.iter().filter_map(|round| match &round.data {
        RoundData::Throughput(data) => Some(data),
        RoundData::Latency(_) => None,
    })
}

/// Standard deviation of `values` (n - 1); absent below two.
pub fn stddev(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// A kind of doubt with everything that it applies to.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Kind.
    pub kind: DoubtKind,
    /// Series (`None` for the run itself) and figures of each occurrence.
    pub occurrences: Vec<(Option<String>, String)>,
}

/// The doubts of a result, one note for each kind, numbered from 1 in order of appearance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Notes {
    /// The notes.
    pub notes: Vec<Note>,
}

impl Notes {
    /// Collects the doubts of the run, then of each series.
    pub fn collect(result: &RunResult) -> Notes {
        let mut notes = Notes::default();
        for doubt in &result.doubts {
            notes.add(doubt, None);
        }
        for series in &result.series {
            for doubt in &series.doubts {
                notes.add(doubt, Some(series.key.to_string()));
            }
        }
        notes
    }

    fn add(&mut self, doubt: &Doubt, series: Option<String>) {
        let entry = (series, doubt.detail.clone());
        match self.notes.iter_mut().find(|n| n.kind == doubt.kind) {
            Some(note) => note.occurrences.push(entry),
            None => self.notes.push(Note { kind: doubt.kind, occurrences: vec![entry] }),
        }
    }

    /// Numbers of the notes that `doubts` are of, rising.
    pub fn numbers(&self, doubts: &[Doubt]) -> Vec<usize> {
        let is_of = |note: &Note| doubts.iter().any(|d| d.kind == note.kind);
        (0..self.notes.len()).filter(|&i| is_of(&self.notes[i])).map(|i| i + 1).collect()
    }

    /// Marks of `doubts` in a table: `[1,3]`, empty if there are none.
    pub fn marks(&self, doubts: &[Doubt]) -> String {
        let numbers: Vec<String> = self.numbers(doubts).iter().map(usize::to_string).collect();
        if numbers.is_empty() { String::new() } else { format!("[{}]", numbers.join(",")) }
    }
}

/// How much a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// What fits a terminal.
    Brief,
    /// Everything.
    Full,
}

/// The case as a cell: sizes short, the rest as it is.
pub fn case_text(case: &Case) -> String {
    match case {
        Case::Message { size_bytes } => units::bytes(u64::from(*size_bytes)),
        Case::Flows { pattern, write_bytes } => {
            format!("{pattern}, {} writes", units::bytes(u64::from(*write_bytes)))
        }
        other => other.to_string(),
    }
}

/// The table of a group.
pub fn group_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    match group.statistic {
        Statistic::Throughput => throughput_table(group, notes, detail),
        _ => latency_table(group, notes, detail),
    }
}

/// The unit that suits the medians of `series`.
pub fn unit_of<'a>(series: impl IntoIterator<Item = &'a Series>) -> LatencyUnit {
    LatencyUnit::fitting(series.into_iter().filter_map(|s| value(s, Metric::Median)))
}

fn latency_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    let unit = unit_of(group.series.iter().copied());
    let metrics: &[Metric] = match detail {
        Detail::Brief => &[Metric::Min, Metric::Median, Metric::Percentile(99.0), Metric::Max],
        Detail::Full => &[
            Metric::Min,
            Metric::Median,
            Metric::Mean,
            Metric::Percentile(90.0),
            Metric::Percentile(99.0),
            Metric::Percentile(99.9),
            Metric::Percentile(99.99),
            Metric::Max,
            Metric::Es10,
            Metric::Stddev,
        ],
    };
    let mut titles = vec!["stack".to_string(), "case".to_string(), "doubts".to_string()];
    titles.extend(metrics.iter().map(|metric| format!("#{metric}")));
    titles.extend(["#n", "#lost", "#rate /s", "#rounds"].map(String::from));
    titles.push(format!("#{}", SettingKind::CacheLineLimit));
    if detail == Detail::Full {
        titles.extend(["95 % of median", "#CV %"].map(String::from));
    }
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let mut table = Table::new(format!("{}, {}", group.title(), unit.name()), &titles);
    for series in &group.series {
        let mut cells = vec![
            series.key.stack.clone(),
            case_text(&series.key.case),
            notes.marks(&series.doubts),
        ];
        cells.extend(metrics.iter().map(|&metric| unit.cell(value(series, metric))));
        cells.push(samples(series).map_or_else(|| NOT_AVAILABLE.to_string(), units::count));
        cells.push(units::count(lost(series)));
        cells.push(or_not_available(value(series, Metric::Rate), |v| significant(v, 4)));
        cells.push(series.rounds.len().to_string());
        let limit = series.settings.get(&SettingKind::CacheLineLimit);
        cells.push(limit.map_or_else(|| NOT_AVAILABLE.to_string(), ToString::to_string));
        if detail == Detail::Full {
            let median = series.estimate(Metric::Median);
            let interval = median.and_then(|e| e.interval);
            cells.push(interval.map_or_else(
                || NOT_AVAILABLE.to_string(),
                |i| format!("{} to {}", unit.cell(Some(i.low)), unit.cell(Some(i.high))),
            ));
            cells.push(or_not_available(median.and_then(|e| e.cv_percent), |v| significant(v, 2)));
        }
        table.push(Tone::Plain, cells);
    }
    let limit = SettingKind::CacheLineLimit.name();
    table.drop_empty(&["lost", "rate /s", "doubts", limit]);
    table.expendable(&[limit, "n", "rate /s", "min", "rounds", "max"])
}

/// The values of `metric` in each round.
pub fn round_values(series: &Series, metric: Metric) -> Vec<f64> {
    series.rounds.iter().filter_map(|r| r.value(metric)).filter(|v| v.is_finite()).collect()
}

/// The round whose total is nearest to the series' figure: its flows are shown.
pub fn typical_throughput(series: &Series) -> Option<&ThroughputRound> {
    let middle = value(series, Metric::Throughput)?;
    let distance = |round: &&ThroughputRound| (round.total_gbps - middle).abs();
    throughput_rounds(series).min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The settings of a series in one line: they explain most differences between tools.
pub fn settings_text(series: &Series) -> String {
    let settings: Vec<String> = series.settings.iter().map(ToString::to_string).collect();
    settings.join(", ")
}

fn throughput_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    let mut titles =
        vec!["stack", "case", "doubts", "#median", "#mean", "#± SD", "#CV %", "#min", "#max"];
    titles.extend(["#rounds", "#retransmits", "#CPU client", "#CPU server"]);
    if detail == Detail::Full {
        titles.extend(["flows of the middle round", "settings"]);
    }
    let mut table = Table::new(format!("{}, Gb/s (1e9 bit/s)", group.title()), &titles);
    for series in &group.series {
        let values = round_values(series, Metric::Throughput);
        let cell = |v: Option<f64>| or_not_available(v, |v| significant(v, 4));
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let cv = stddev(&values).filter(|_| mean > 0.0).map(|sd| sd / mean * 100.0);
        let mut cells = vec![
            series.key.stack.clone(),
            case_text(&series.key.case),
            notes.marks(&series.doubts),
            cell(value(series, Metric::Throughput)),
            cell((!values.is_empty()).then_some(mean)),
            cell(stddev(&values)),
            or_not_available(cv, |v| significant(v, 2)),
            cell(values.iter().copied().reduce(f64::min)),
            cell(values.iter().copied().reduce(f64::max)),
            series.rounds.len().to_string(),
        ];
        let typical = typical_throughput(series);
        let counted = typical
            .filter(|r| !r.flows.is_empty())
            .and_then(|r| sum(r.flows.iter().map(|f| f.retransmits)));
        cells.push(counted.map_or_else(|| NOT_AVAILABLE.to_string(), units::count));
        cells.push(or_not_available(typical.and_then(|r| r.client_cpu), |v| significant(v, 3)));
        cells.push(or_not_available(typical.and_then(|r| r.server_cpu), |v| significant(v, 3)));
        if detail == Detail::Full {
            let flows: Vec<String> = typical
                .iter()
                .flat_map(|r| &r.flows)
                .map(|f| format!("{} from {}", significant(f.gbps, 4), f.sender))
                .collect();
            cells.push(flows.join(", "));
            cells.push(settings_text(series));
        }
        table.push(Tone::Plain, cells);
    }
    table.drop_empty(&["retransmits", "CPU client", "CPU server", "doubts"]);
    table.expendable(&["± SD", "CPU client", "CPU server", "mean", "retransmits", "min", "max"])
}

/// An interval with its level, each end written by `format`.
pub(crate) fn interval_text(interval: Option<Interval>, format: impl Fn(f64) -> String) -> String {
    interval.map_or_else(
        || NOT_AVAILABLE.to_string(),
        |i| {
            format!("{} to {} ({} %)", format(i.low), format(i.high), units::plain(i.level * 100.0))
        },
    )
}

/// The evidence of one verdict.
pub fn evidence_table(verdict: &Verdict) -> Table {
    let metric = verdict.require.as_ref().map(|target| target.metric);
    let text = |value: f64| match metric {
        Some(metric) => units::figure(metric, Some(value)),
        None => significant(value, 4),
    };
    let mut table = Table::new(
        format!("Evidence for {}", verdict.target),
        &["series", "outcome", "#value", "interval", "reason"],
    );
    for evidence in &verdict.evidence {
        table.push(
            evidence.outcome.into(),
            vec![
                evidence.series.clone(),
                evidence.outcome.to_string(),
                or_not_available(evidence.value, text),
                interval_text(evidence.interval, text),
                evidence.reason.clone(),
            ],
        );
    }
    table
}

/// Rows of the plan that could not run.
pub fn not_available_table(result: &RunResult) -> Table {
    let mut table =
        Table::new("Not available on this machine", &["environment", "stack", "probe", "reason"]);
    for row in &result.not_available {
        table.push(
            Tone::Faint,
            vec![
                row.environment.to_string(),
                row.stack.to_string(),
                row.probe.to_string(),
                row.reason.clone(),
            ],
        );
    }
    table
}

/// How the figures of this result were made, as sentences.
pub fn method_notes(result: &RunResult) -> Vec<String> {
    let mut notes = vec![
        "Minimum and maximum are over all rounds; every other figure is the median of the rounds' \
         values, because rounds differ more than samples inside one round."
            .to_string(),
        "A percentile with fewer than ten samples beyond it is n/a: it would only repeat the \
         maximum. n is the number of samples of all rounds."
            .to_string(),
    ];
    let has = |statistic| result.series.iter().any(|s| s.key.statistic == statistic);
    if has(Statistic::HalfRoundTrip) {
        notes.push(
            "Half round trip: half of the time from before the send to after the matching \
             receive; one message is under way at a time."
                .to_string(),
        );
    }
    if has(Statistic::RoundTripFromIntended) {
        notes.push(
            "Round trip from intended send counts from when the schedule wanted the request to \
             leave, so a stalled end shows in full; round trip (service time) counts from the \
             actual send and hides it."
                .to_string(),
        );
    } else if has(Statistic::RoundTrip) {
        notes.push(
            "Round trip: the time from before the send to after the matching receive. In a \
             closed loop a stall counts once only."
                .to_string(),
        );
    }
    if has(Statistic::Throughput) {
        notes.push(
            "Throughput: payload bytes counted by the receivers in their window after the common \
             start, 1 Gb/s being 1e9 bit/s; SD and CV are over rounds."
                .to_string(),
        );
    }
    notes.push("es10 is the mean of the slowest 10 % of the samples.".to_string());
    notes.extend(clock_notes(result));
    notes
}

fn clock_notes(result: &RunResult) -> Vec<String> {
    let mut notes: Vec<String> = vec![];
    for (endpoint, facts) in &result.facts {
        if endpoint.side != Side::Client || facts.clock.source.is_empty() {
            continue;
        }
        let note = format!(
            "Clock of {endpoint}: {}; a pair of time stamps costs {}, which is part of every \
             sample and never taken off.",
            facts.clock.source,
            units::latency(facts.clock.pair_cost_ns)
        );
        notes.push(note);
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_deviation_needs_two_values() {
        assert_eq!(stddev(&[1.0]), None);
        assert_eq!(stddev(&[1.0, 3.0]), Some(2f64.sqrt()));
    }
}
