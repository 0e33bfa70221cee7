//! The result that an import makes, and the readers' parts that all of them use.

use std::collections::BTreeMap;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::limits::PERCENTILES_MAX;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    PercentileValue, Round, RoundData, RunResult, Series, SeriesKey, Source, Statistic,
};
use nm_model::stack::Comparability;
use nm_model::{SettingValue, Settings};

use super::fault::{ImportFault, ROUNDS_MAX};

/// Largest number that any field may have. Nothing that is measured comes near.
pub const NUMBER_MAX: f64 = 1e15;

/// Longest note, in characters; the rest of a line is cut.
pub const NOTE_CHARS_MAX: usize = 1000;

/// A number that a measurement can have: finite, not negative, at most [`NUMBER_MAX`].
pub fn number(line: usize, what: &str, text: &str) -> Result<f64, ImportFault> {
    let number = text.trim().parse::<f64>().ok().filter(|n| (0.0..=NUMBER_MAX).contains(n));
    match number {
        // Minus zero is a zero.
        Some(number) => Ok(number.abs()),
        None => Err(ImportFault::NotAFigure { line, what: what.to_string(), text: shown(text) }),
    }
}

/// An integer within the range of `T`.
pub fn integer<T: std::str::FromStr>(
    line: usize,
    what: &str,
    text: &str,
) -> Result<T, ImportFault> {
    text.trim().parse().map_err(|_| ImportFault::NotAnInteger {
        line,
        what: what.to_string(),
        text: shown(text),
    })
}

/// A word of the text as an error shows it.
pub fn shown(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

/// The result while it is read.
pub struct ResultBuilder {
    result: RunResult,
    /// Where each series is in the result.
    series: SeriesIndex,
    environment: Option<String>,
    rounds: usize,
}

/// Finds series by their keys, so that adding one does not take longer the more there are.
#[derive(Default)]
pub struct SeriesIndex(BTreeMap<[String; 5], usize>);

impl SeriesIndex {
    /// Where the series with this key is; `new` if there is none, where it is from now on.
    pub fn find_or_insert(&mut self, key: &SeriesKey, new: usize) -> usize {
        let SeriesKey { environment, stack, probe, case, statistic } = key;
        let [probe, case, statistic] = [probe.to_string(), case.to_string(), statistic.to_string()];
        let text = [environment.clone(), stack.clone(), probe, case, statistic];
        *self.0.entry(text).or_insert(new)
    }
}

impl ResultBuilder {
    pub fn new(name: &str) -> ResultBuilder {
        ResultBuilder {
            result: RunResult::new(name, Source::Imported { tool: String::new() }),
            series: SeriesIndex::default(),
            environment: None,
            rounds: 0,
        }
    }

    /// Name of the text.
    pub fn name(&self) -> &str {
        &self.result.name
    }

    /// Names the environment of the runs that follow; absent, it is named after the text.
    pub fn environment(&mut self, environment: Option<&str>) {
        self.environment = environment.map(str::to_string);
    }

    /// Keeps the start of the run, if it is a time (RFC 3339). Of several the first is kept.
    pub fn started(&mut self, text: &str) {
        if self.result.started.is_none() {
            let time: Option<jiff::Timestamp> = text.parse().ok();
            self.result.started = time.map(|time| time.to_string());
        }
    }

    /// Names the tool that made the text.
    pub fn tool(&mut self, tool: impl Into<String>) {
        self.result.source = Source::Imported { tool: tool.into() };
    }

    /// Keeps something that is known about the run. Of equal names the first is kept.
    pub fn note(&mut self, name: &str, text: &str) {
        let text: String = text.trim().chars().take(NOTE_CHARS_MAX).collect();
        if !text.is_empty() && self.result.notes.len() < ROUNDS_MAX {
            self.result.notes.entry(name.to_string()).or_insert(text);
        }
    }

    /// Adds a doubt about the whole run, once.
    pub fn doubt(&mut self, kind: DoubtKind, detail: impl Into<String>) {
        let doubt = Doubt::new(kind, detail);
        if !self.result.doubts.contains(&doubt) {
            self.result.doubts.push(doubt);
        }
    }

    /// Adds one run of one case; a case that is already there gets one more round.
    pub fn push(&mut self, found: ImportedRun) -> Result<(), ImportFault> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(ImportFault::TooManyRuns);
        }
        if let RoundData::Latency(data) = &found.data
            && data.percentiles.len() > PERCENTILES_MAX
        {
            return Err(ImportFault::TooManyPercentiles);
        }
        let key = SeriesKey {
            environment: match &self.environment {
                Some(environment) => environment.clone(),
                None => environment_name(&self.result.name),
            },
            stack: found.stack,
            probe: found.probe,
            case: found.case,
            statistic: found.statistic,
        };
        let comparability =
            Comparability { statistic: Some(key.statistic.to_string()), ..found.comparability };
        let count = self.result.series.len();
        let at = self.series.find_or_insert(&key, count);
        if at == count {
            self.result.series.push(Series {
                key,
                comparability,
                settings: Settings::new(),
                rounds: vec![],
                estimates: vec![],
                doubts: vec![],
            });
        }
        let series = &mut self.result.series[at];
        for (name, value) in found.settings.into_iter().filter(|(_, value)| !value.is_empty()) {
            series.settings.set_if_absent(name.into(), SettingValue::text(value));
        }
        series.rounds.push(Round {
            round: series.rounds.len() as u32,
            started_s: 0.0,
            data: found.data,
            placements: vec![],
            doubts: found.doubts,
        });
        Ok(())
    }

    pub fn finish(mut self) -> Result<RunResult, ImportFault> {
        let Source::Imported { tool } = &self.result.source else { return Ok(self.result) };
        if self.result.series.is_empty() {
            return Err(ImportFault::NoFigures { tool: tool.clone() });
        }
        let imported = Doubt::new(DoubtKind::Imported, format!("by {tool}"));
        for series in &mut self.result.series {
            series.doubts.push(imported.clone());
            nm_stats::rounds::estimate(series);
        }
        self.result.doubts.insert(0, imported);
        Ok(self.result)
    }
}

/// The environment's name for a text: the last part of a path, since slashes separate the parts of
/// a series' name.
fn environment_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.is_empty() { "imported".to_string() } else { last.to_string() }
}

/// One run of one case, as a reader found it.
pub struct ImportedRun {
    pub stack: String,
    pub probe: ProbeKind,
    pub case: Case,
    pub statistic: Statistic,
    pub comparability: Comparability,
    pub settings: Vec<(&'static str, String)>,
    pub data: RoundData,
    pub doubts: Vec<Doubt>,
}

/// A percentile that another tool prints. Absent where fewer than ten samples lie beyond it, for
/// then it only repeats the maximum.
pub fn percentile(percentile: f64, value_ns: f64, count: Option<u64>) -> PercentileValue {
    let beyond = |count: u64| count as f64 * (100.0 - percentile) / 100.0;
    // The products of decimal fractions fall slightly short of integers.
    let enough = count.is_none_or(|count| beyond(count) >= 10.0 - 1e-6);
    PercentileValue {
        percentile,
        value_ns: enough.then_some(value_ns),
        low_ns: None,
        high_ns: None,
    }
}

/// Percentiles in rising order, the 50th among them.
pub fn in_order(mut percentiles: Vec<PercentileValue>) -> Vec<PercentileValue> {
    if !percentiles.iter().any(|known| known.percentile == 50.0) {
        let absent = PercentileValue { value_ns: None, ..percentile(50.0, 0.0, None) };
        percentiles.push(absent);
    }
    percentiles.sort_by(|a, b| a.percentile.total_cmp(&b.percentile));
    percentiles.dedup_by(|a, b| a.percentile == b.percentile);
    percentiles
}
