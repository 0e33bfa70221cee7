//! Other tools' output read into a result, so that it compares and reports like our own.
//!
//! The tool is told by its text. Output of several runs in one text, one after the other, becomes
//! rounds of one series. Every import is marked with [`DoubtKind::Imported`]: its samples and what
//! disturbed them are not known. Numbers that no measurement can have are refused, not repaired.

mod iperf3;
mod netperf;
mod nuttcp;
mod sfnt;
mod sockperf;

use std::fmt;

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    PercentileValue, Round, RoundData, RunResult, Series, SeriesKey, Source, Statistic,
};
use nm_model::stack::Comparability;
use nm_model::{SettingValue, Settings};

/// Longest text that is read, bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// Most rounds that one text may hold, over all series.
const ROUNDS_MAX: usize = 100_000;

/// Largest number that any field may have. Nothing that is measured comes near.
const NUMBER_MAX: f64 = 1e15;

/// Longest note, in characters; the rest of a line is cut.
const NOTE_CHARS_MAX: usize = 1000;

/// The tools whose output is read, in words.
pub const TOOLS: &str = "sfnt-pingpong, sockperf, netperf, nuttcp and iperf3 -J";

/// Why a text could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// Name of the text, such as its file.
    pub name: String,
    /// Line, counted from 1, if the fault lies in one.
    pub line: Option<usize>,
    /// What is wrong and what is read instead: lower case, no full stop.
    pub message: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.name, self.message),
            None => write!(f, "{}: {}", self.name, self.message),
        }
    }
}

impl std::error::Error for ImportError {}

/// A fault inside a text: its line, if known, and what is wrong.
type Fault = (Option<usize>, String);

fn fault<T>(line: usize, message: impl Into<String>) -> Result<T, Fault> {
    Err((Some(line), message.into()))
}

/// Reads another tool's output. `name` names it in the result and in errors, such as its file.
///
/// # Errors
/// The text is of no known tool, is damaged, or says itself that its run failed.
pub fn read(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let named = |(line, message): Fault| ImportError { name: name.to_string(), line, message };
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("the text is longer than {} MiB", TEXT_BYTES_MAX >> 20);
        return Err(named((None, message)));
    }
    let clean = without_escapes(text);
    let mut import = Import::new(name);
    recognise(&clean)
        .ok_or_else(|| unknown_tool(&clean))
        .and_then(|read| read(&clean, &mut import))
        .and_then(|()| import.finish())
        .map_err(named)
}

type Reader = fn(&str, &mut Import) -> Result<(), Fault>;

/// The reader for a text, by signs that only one tool prints.
fn recognise(text: &str) -> Option<Reader> {
    let signs: [(&[&str], Reader); 5] = [
        (&["sockperf: "], sockperf::read),
        (&["%ile\tstddev\titer", "sfnt-pingpong"], sfnt::read),
        (&[" TEST from ", "THROUGHPUT=", "Throughput Units", "netserver"], netperf::read),
        (&["megabytes=", " Mbps", "nuttcp"], nuttcp::read),
        (&["Connecting to host", "iperf Done."], iperf3::refuse_text),
    ];
    if text.trim_start().starts_with('{') {
        return Some(iperf3::read);
    }
    let known = signs.into_iter().find(|(signs, _)| signs.iter().any(|sign| text.contains(sign)));
    known.map(|(_, read)| read).or_else(|| sfnt::header_line(text).map(|_| sfnt::read as Reader))
}

fn unknown_tool(text: &str) -> Fault {
    if text.trim().is_empty() {
        return (None, format!("the text is empty; read are {TOOLS}"));
    }
    let netperf_row =
        text.lines().all(|line| line.split_whitespace().all(|word| word.parse::<f64>().is_ok()));
    if netperf_row {
        let message = "numbers without a heading; run netperf without -P 0";
        return (Some(1), message.to_string());
    }
    (Some(1), format!("not the output of a tool that is known; read are {TOOLS}"))
}

/// The text without the colour codes of terminals.
fn without_escapes(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            clean.push(character);
            continue;
        }
        // `ESC [ … letter`; anything else loses only the escape itself.
        if characters.clone().next() == Some('[') {
            characters.by_ref().find(char::is_ascii_alphabetic);
        }
    }
    clean
}

/// A number that a measurement can have: finite, not negative, not absurd.
fn number(line: usize, what: &str, text: &str) -> Result<f64, Fault> {
    let number = text.trim().parse::<f64>().ok().filter(|n| (0.0..=NUMBER_MAX).contains(n));
    match number {
        // Minus zero is a zero.
        Some(number) => Ok(number.abs()),
        None => fault(line, format!("{what} is `{}`, which is no such figure", shown(text))),
    }
}

/// A whole number within the range of `T`.
fn whole<T: std::str::FromStr>(line: usize, what: &str, text: &str) -> Result<T, Fault> {
    let fits = text.trim().parse::<T>();
    fits.or_else(|_| fault(line, format!("{what} is `{}`, which is no such number", shown(text))))
}

/// A word of the text as an error shows it.
fn shown(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

/// A result in the making.
struct Import {
    result: RunResult,
    rounds: usize,
}

impl Import {
    fn new(name: &str) -> Import {
        Import { result: RunResult::new(name, Source::Imported { tool: String::new() }), rounds: 0 }
    }

    /// Names the tool that made the text.
    fn tool(&mut self, tool: impl Into<String>) {
        self.result.source = Source::Imported { tool: tool.into() };
    }

    /// Keeps something that is known about the run. Of equal names the first is kept.
    fn note(&mut self, name: &str, text: &str) {
        let text: String = text.trim().chars().take(NOTE_CHARS_MAX).collect();
        if !text.is_empty() && self.result.notes.len() < ROUNDS_MAX {
            self.result.notes.entry(name.to_string()).or_insert(text);
        }
    }

    /// Adds a doubt about the whole run, once.
    fn doubt(&mut self, kind: DoubtKind, detail: impl Into<String>) {
        let doubt = Doubt::new(kind, detail);
        if !self.result.doubts.contains(&doubt) {
            self.result.doubts.push(doubt);
        }
    }

    /// Adds one run of one case; a case that is already there gets one more round.
    fn push(&mut self, found: Found) -> Result<(), Fault> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err((None, format!("more than {ROUNDS_MAX} runs in one text")));
        }
        let key = SeriesKey {
            environment: place(&self.result.name),
            stack: found.stack,
            probe: found.probe,
            case: found.case,
            statistic: found.statistic,
        };
        let comparability =
            Comparability { statistic: Some(key.statistic.to_string()), ..found.comparability };
        let at = match self.result.series.iter().position(|known| known.key == key) {
            Some(at) => at,
            None => {
                self.result.series.push(Series {
                    key,
                    comparability,
                    settings: Settings::new(),
                    rounds: vec![],
                    estimates: vec![],
                    doubts: vec![],
                });
                self.result.series.len() - 1
            }
        };
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

    fn finish(mut self) -> Result<RunResult, Fault> {
        let Source::Imported { tool } = &self.result.source else { return Ok(self.result) };
        if self.result.series.is_empty() {
            return Err((None, format!("{tool} printed no figures; was the run cut short?")));
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

/// The environment's name for a text: the last part of a path, since places are parted by slashes.
fn place(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.is_empty() { "imported".to_string() } else { last.to_string() }
}

/// One run of one case, as a reader found it.
struct Found {
    stack: String,
    probe: ProbeKind,
    case: Case,
    statistic: Statistic,
    comparability: Comparability,
    settings: Vec<(&'static str, String)>,
    data: RoundData,
    doubts: Vec<Doubt>,
}

/// A percentile that another tool prints. Absent where fewer than ten samples lie beyond it, for
/// then it only repeats the maximum.
fn percentile(percentile: f64, value_ns: f64, count: Option<u64>) -> PercentileValue {
    let beyond = |count: u64| count as f64 * (100.0 - percentile) / 100.0;
    // The products of decimal fractions fall a hair short of whole numbers.
    let enough = count.is_none_or(|count| beyond(count) >= 10.0 - 1e-6);
    PercentileValue {
        percentile,
        value_ns: enough.then_some(value_ns),
        low_ns: None,
        high_ns: None,
    }
}

/// Percentiles in rising order, the 50th among them.
fn in_order(mut percentiles: Vec<PercentileValue>) -> Vec<PercentileValue> {
    if !percentiles.iter().any(|known| known.percentile == 50.0) {
        let absent = PercentileValue { value_ns: None, ..percentile(50.0, 0.0, None) };
        percentiles.push(absent);
    }
    percentiles.sort_by(|a, b| a.percentile.total_cmp(&b.percentile));
    percentiles.dedup_by(|a, b| a.percentile == b.percentile);
    percentiles
}
