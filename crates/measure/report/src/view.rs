//! What all reports show of a result. It puts the series into groups, with the figures over all
//! rounds, doubts as numbered notes, and the tables made of them.

use nm_model::RunResult;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::{Metric, PERCENTILES};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    Flow, LatencyRound, Round, RoundData, Series, Source, Statistic, ThroughputRound,
};
use nm_model::verdict::{Interval, Verdict};
use nm_model::{SettingKind, Side};
use nm_stats::describe::{cv_percent, mean, stddev};
use nm_stats::rounds;

use crate::style::Tone;
use crate::table::Table;
use crate::units::{self, LatencyUnit, NOT_AVAILABLE, Precision};

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

/// The case as a cell: sizes short, the rest as it is.
pub fn case_text(case: &Case) -> String {
    match case {
        Case::Message { size_bytes } => units::bytes(u64::from(*size_bytes)),
        Case::Paced { size_bytes, think_time_us } => {
            let pause = units::latency_tick(*think_time_us as f64 * 1e3);
            format!("{}, think time {pause}", units::bytes(u64::from(*size_bytes)))
        }
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
    let mut table = Columns::of(group, notes, detail);
    for metric in latency_metrics(detail, &group.series) {
        let values: Vec<_> = group.series.iter().map(|series| value(series, metric)).collect();
        table.add(format!("#{metric}"), unit.column(&values));
    }
    if detail == Detail::Main {
        return table.with_rounds_and_doubts(format!("{}, {}", group.title(), unit.name()));
    }
    let rates: Vec<_> = group.series.iter().map(|series| value(series, Metric::Rate)).collect();
    table.add_texts("#n", |series| {
        samples(series).map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
    });
    table.add_texts("#lost", |series| units::count(lost(series)));
    table.add("#rate /s", units::column(&rates, 4, 1));
    table.add_texts("#rounds", |series| series.rounds.len().to_string());
    table.add_texts(&format!("#{}", SettingKind::CacheLineLimit), |series| {
        let limit = series.settings.get(&SettingKind::CacheLineLimit);
        limit.map_or_else(|| NOT_AVAILABLE.to_string(), ToString::to_string)
    });
    if detail == Detail::Full {
        let medians: Vec<_> = group.series.iter().map(|s| s.estimate(Metric::Median)).collect();
        let intervals: Vec<_> = medians.iter().map(|median| (*median)?.interval).collect();
        let cvs: Vec<_> = medians.iter().map(|median| (*median)?.cv_percent).collect();
        table.add("#95 % of median", interval_cells(unit, &intervals));
        table.add("#CV %", units::column(&cvs, 2, 1));
    }
    let mut table = table.table(format!("{}, {}", group.title(), unit.name()));
    let limit = SettingKind::CacheLineLimit.name();
    table.drop_empty(&["lost", "rate /s", "doubts", limit]);
    table.expendable(&[limit, "n", "rate /s", "min", "rounds", "max"])
}

/// The figures of a table of latencies, with the percentiles that the user asked for beside the
/// usual ones.
fn latency_metrics(detail: Detail, series: &[&Series]) -> Vec<Metric> {
    let mut metrics = match detail {
        Detail::Main => return vec![Metric::Median, Metric::Percentile(99.0)],
        Detail::Brief => vec![Metric::Min, Metric::Median, Metric::Percentile(99.0), Metric::Max],
        Detail::Full => vec![
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
    let max = metrics.iter().position(|metric| *metric == Metric::Max).unwrap_or(metrics.len());
    metrics.splice(max..max, unusual_percentiles(series).into_iter().map(Metric::Percentile));
    metrics
}

/// The percentiles of the series that are not recorded unless they are asked for, rising.
fn unusual_percentiles(series: &[&Series]) -> Vec<f64> {
    let rounds = series.iter().flat_map(|series| &series.rounds);
    let mut found: Vec<f64> = rounds
        .flat_map(|round| match &round.data {
            RoundData::Latency(data) => data.percentiles.as_slice(),
            RoundData::Throughput(_) => &[],
        })
        .map(|value| value.percentile)
        .filter(|percentile| !PERCENTILES.contains(percentile))
        .collect();
    found.sort_by(f64::total_cmp);
    found.dedup();
    found
}

/// Title of the column that says what executed guests.
const EXECUTION: &str = "execution";

/// The columns of a group's table, which grow one by one.
struct Columns<'g, 'a> {
    group: &'g Group<'a>,
    doubts: Vec<String>,
    columns: Vec<(String, Vec<String>)>,
}

impl<'g, 'a> Columns<'g, 'a> {
    /// Stack and case, and the doubts unless they come last.
    fn of(group: &'g Group<'a>, notes: &Notes, detail: Detail) -> Columns<'g, 'a> {
        let doubts = group.series.iter().map(|series| notes.marks(&series.doubts)).collect();
        let mut columns = Columns { group, doubts, columns: vec![] };
        columns.add_texts("stack", |series| series.key.stack.clone());
        columns.add_texts("case", |series| case_text(&series.key.case));
        columns.add_texts(EXECUTION, execution_text);
        if detail != Detail::Main {
            columns.add("doubts", columns.doubts.clone());
        }
        columns
    }

    fn add(&mut self, title: impl Into<String>, cells: Vec<String>) {
        self.columns.push((title.into(), cells));
    }

    fn add_texts(&mut self, title: &str, text: impl Fn(&Series) -> String) {
        self.add(title, self.group.series.iter().map(|series| text(series)).collect());
    }

    /// Adds figures with equal precision.
    fn add_figures(
        &mut self,
        title: &str,
        precision: Precision,
        value: impl Fn(&Series) -> Option<f64>,
    ) {
        let cells = self.group.series.iter().map(|series| precision.cell(value(series)));
        self.add(title, cells.collect());
    }

    fn with_rounds_and_doubts(mut self, caption: String) -> Table {
        self.add_texts("#rounds", |series| series.rounds.len().to_string());
        self.add("doubts", self.doubts.clone());
        let mut table = self.table(caption);
        table.drop_empty(&["doubts"]);
        table
    }

    fn table(self, caption: String) -> Table {
        let mut table = Table::of_columns(caption, self.columns);
        table.drop_empty(&[EXECUTION]);
        table
    }
}

/// Cells `LOW to HIGH` with equal precision.
fn interval_cells(unit: LatencyUnit, intervals: &[Option<Interval>]) -> Vec<String> {
    let low = intervals.iter().map(|interval| interval.map(|ends| ends.low));
    let high = intervals.iter().map(|interval| interval.map(|ends| ends.high));
    let ends = unit.column(&low.chain(high).collect::<Vec<_>>());
    let (low, high) = ends.split_at(intervals.len());
    let text = |((interval, low), high): ((&Option<Interval>, &String), &String)| match interval {
        Some(_) => format!("{low} to {high}"),
        None => NOT_AVAILABLE.to_string(),
    };
    intervals.iter().zip(low).zip(high).map(text).collect()
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
    let rounds = |series: &Series| round_values(series, Metric::Throughput);
    let precision = Precision::of(group.series.iter().flat_map(|s| rounds(s)), 4, 3);
    let mut table = Columns::of(group, notes, detail);
    let caption = format!("{}, Gb/s (1e9 bit/s)", group.title());
    table.add_figures("#median", precision, |series| value(series, Metric::Throughput));
    if detail != Detail::Main {
        table.add_figures("#mean", precision, |series| mean(&rounds(series)));
    }
    table.add_figures("#± SD", precision, |series| stddev(&rounds(series)));
    if detail == Detail::Main {
        return table.with_rounds_and_doubts(caption);
    }
    let cvs = group.series.iter().map(|series| cv_percent(&rounds(series)));
    table.add("#CV %", units::column(&cvs.collect::<Vec<_>>(), 2, 1));
    table.add_figures("#min", precision, |series| rounds(series).into_iter().reduce(f64::min));
    table.add_figures("#max", precision, |series| rounds(series).into_iter().reduce(f64::max));
    table.add_texts("#rounds", |series| series.rounds.len().to_string());
    table.add_texts("#retransmits", |series| {
        let round = typical_throughput(series).filter(|round| !round.flows.is_empty());
        let counted = round.and_then(|round| sum(round.flows.iter().map(|f| f.retransmits)));
        counted.map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
    });
    let cpu = Precision { decimals: 2 };
    table.add_figures("#CPU client", cpu, |s| typical_throughput(s)?.client_cpu);
    table.add_figures("#CPU server", cpu, |s| typical_throughput(s)?.server_cpu);
    if detail == Detail::Full {
        table.add_texts("flows of the middle round", |series| {
            let flows = typical_throughput(series).into_iter().flat_map(|round| &round.flows);
            let text = |flow: &Flow| format!("{} from {}", precision.text(flow.gbps), flow.sender);
            flows.map(text).collect::<Vec<_>>().join(", ")
        });
        table.add_texts("settings", settings_text);
    }
    let mut table = table.table(caption);
    table.drop_empty(&["retransmits", "CPU client", "CPU server", "doubts"]);
    table.expendable(&["± SD", "CPU client", "CPU server", "mean", "retransmits", "min", "max"])
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
        ("series", all.iter().map(|evidence| evidence.series.clone()).collect()),
        ("outcome", all.iter().map(|evidence| evidence.outcome.to_string()).collect()),
        ("#value", texts[..all.len()].to_vec()),
        ("interval", (0..all.len()).map(interval).collect()),
        ("reason", all.iter().map(|evidence| evidence.reason.clone()).collect()),
    ];
    Table::of_columns(format!("Evidence for {}", verdict.target), columns)
        .with_tones(all.iter().map(|evidence| evidence.outcome.into()))
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
