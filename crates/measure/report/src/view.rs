//! What all reports show of a result. It puts the series into groups, with the figures over all
//! rounds, doubts as numbered notes, and the tables made of them.

use nm_model::RunResult;
use nm_model::Side;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::Metric;
use nm_model::probe::ProbeKind;
use nm_model::result::{
    LatencyRound, Round, RoundData, Series, Source, Statistic, ThroughputRound,
};
use nm_model::verdict::{Interval, Verdict};
use nm_stats::rounds;

use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, LatencyUnit, NOT_AVAILABLE};

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

/// The figure of a series over its rounds: smallest minimum, largest maximum, else the median over
/// rounds.
pub fn value(series: &Series, metric: Metric) -> Option<f64> {
    rounds::figure(&series.rounds, metric)
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

/// The distribution of latencies of a round, if it is one.
pub fn latency_of(round: &Round) -> Option<&LatencyRound> {
    match &round.data {
        RoundData::Latency(data) => Some(data),
        RoundData::Throughput(_) => None,
    }
}

/// The rounds that are distributions of latencies.
pub fn latency_rounds(series: &Series) -> impl Iterator<Item = &LatencyRound> + use<'_> {
    series.rounds.iter().filter_map(latency_of)
}

/// The rounds that are flows.
pub fn throughput_rounds(series: &Series) -> impl Iterator<Item = &ThroughputRound> + use<'_> {
    series.rounds.iter().filter_map(|round| match &round.data {
        RoundData::Throughput(data) => Some(data),
        RoundData::Latency(_) => None,
    })
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

/// The word beside each figure of emulated guests.
pub const EMULATED: &str = "EMULATED";

/// How much a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The figures that most readers look for.
    Main,
    /// What fits a terminal.
    Brief,
    /// Everything.
    Full,
}

/// What executed the guests that a series was measured in: `EMULATED by tcg`, `real-kvm`; empty
/// without guests.
pub fn execution_text(series: &Series) -> String {
    let name = || series.comparability.execution.map(|execution| execution.to_string());
    series.emulated_mark().or_else(name).unwrap_or_default()
}

/// `name`, with the word that belongs beside each figure of emulated guests.
pub fn marked(series: &Series, name: impl Into<String>) -> String {
    let name = name.into();
    if series.is_emulated() { format!("{name} {EMULATED}") } else { name }
}

/// The unit that suits the medians of `series`.
pub fn unit_of<'a>(series: impl IntoIterator<Item = &'a Series>) -> LatencyUnit {
    LatencyUnit::fitting(series.into_iter().filter_map(|s| value(s, Metric::Median)))
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

/// The evidence of one verdict.
pub fn evidence_table(verdict: &Verdict) -> Table {
    let all = &verdict.evidence;
    let ends = |end: fn(Interval) -> f64| all.iter().map(move |e| e.interval.map(end));
    let values = all.iter().map(|evidence| evidence.value);
    let values: Vec<_> = values.chain(ends(|i| i.low)).chain(ends(|i| i.high)).collect();
    // One precision for values and intervals.
    let texts = match &verdict.require {
        Some(target) => units::figure_column(target.metric, &values),
        None => units::column(&values, 4, 4),
    };
    let interval = |at: usize| match all[at].interval {
        Some(interval) => {
            let (low, high) = (&texts[all.len() + at], &texts[2 * all.len() + at]);
            format!("{low} to {high} ({} %)", units::plain(interval.level * 100.0))
        }
        None => NOT_AVAILABLE.to_string(),
    };
    let columns = vec![
        (Column::text("series"), all.iter().map(|evidence| evidence.series.clone()).collect()),
        (
            Column::text("outcome"),
            all.iter().map(|evidence| evidence.outcome.to_string()).collect(),
        ),
        (Column::figure("value"), texts[..all.len()].to_vec()),
        (Column::text("interval"), (0..all.len()).map(interval).collect()),
        (Column::text("reason"), all.iter().map(|evidence| evidence.reason.clone()).collect()),
    ];
    Table::of_columns(format!("Evidence for {}", verdict.target), columns)
        .with_tones(all.iter().map(|evidence| evidence.outcome.into()))
}

/// Rows of the plan that could not run.
pub fn not_available_table(result: &RunResult) -> Table {
    let mut table = Table::new(
        "Not available on this machine",
        ["environment", "stack", "probe", "reason"].map(Column::text),
    );
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
         maximum; so is one that a round of the series lacks. n is the number of samples of all \
         rounds."
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
    if has(Statistic::Interruption) {
        notes.push(
            "Length of an interruption: the time between two readings of the clock by a thread \
             that does nothing else, where it is at least the threshold; percentiles are of \
             gaps, not of time. The gaps of all CPUs are one distribution."
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
