//! What can be wrong with a text that is imported.

use nm_model::limits;
use thiserror::Error;

/// Longest text that is read, bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// Most rounds that one text may hold, over all series.
pub const ROUNDS_MAX: usize = 100_000;

/// The tools whose output is read, in words.
pub const TOOLS: &str = "sfnt-pingpong, sockperf, netperf, nuttcp, iperf3 -J, and nearmetal's own \
     pingpong --sfnt, sfnt/*.csv and series.csv";

/// What is wrong with a text: lower case, no full stop.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImportFault {
    /// It is longer than [`TEXT_BYTES_MAX`].
    #[error("the text is longer than {} MiB", TEXT_BYTES_MAX >> 20)]
    TooLong,
    /// It has only white space.
    #[error("the text is empty; supported are {TOOLS}")]
    Empty,
    /// It is a result, which needs no import.
    #[error("this is a result of nearmetal; name it to `compare`, `trend` or `report` as it is")]
    OwnResult,
    /// No tool that is known prints this.
    #[error("not the output of a known tool; supported are {TOOLS}")]
    UnknownTool,
    /// netperf's numbers without their headings.
    #[error("numbers without a heading; run netperf without -P 0")]
    NoHeading,
    /// iperf3's output for people.
    #[error("iperf3's text is rounded; run it with -J and read the JSON")]
    RoundedText,
    /// It begins like iperf3's JSON, and is not JSON.
    #[error("not the JSON of iperf3 -J: {message}")]
    NotJson {
        /// Line, counted from 1.
        line: usize,
        /// What the JSON parser says.
        message: String,
    },
    /// It holds more than `ROUNDS_MAX` runs.
    #[error("more than {ROUNDS_MAX} runs in one text")]
    TooManyRuns,
    /// A run has more percentiles than a plan may ask for.
    #[error("more than {max} percentiles in one run", max = limits::PERCENTILES_MAX)]
    TooManyPercentiles,
    /// It has a tool's head, but no figures.
    #[error("{tool} printed no figures; was the run cut short?")]
    NoFigures {
        /// The tool.
        tool: String,
    },
    /// A field is no number that a measurement can have.
    #[error("{what} is `{text}`, which is not a valid figure")]
    NotAFigure {
        /// Line, counted from 1.
        line: usize,
        /// The field.
        what: String,
        /// Its beginning.
        text: String,
    },
    /// A field is no integer of its range.
    #[error("{what} is `{text}`, which is not a valid integer")]
    NotAnInteger {
        /// Line, counted from 1.
        line: usize,
        /// The field.
        what: String,
        /// Its beginning.
        text: String,
    },
    /// A line is not as the tool prints it, or says that the run failed.
    #[error("{message}")]
    Line {
        /// Line, counted from 1.
        line: usize,
        /// What is wrong with it and what is expected instead.
        message: String,
    },
    /// A part of the tool's JSON is missing or wrong, or says that the run failed.
    #[error("{message}")]
    Json {
        /// What is wrong and what is expected instead.
        message: String,
    },
}

impl ImportFault {
    /// The line, counted from 1, if it is known.
    pub fn line(&self) -> Option<usize> {
        use ImportFault::{Line, NotAFigure, NotAnInteger, NotJson};
        match self {
            ImportFault::UnknownTool | ImportFault::NoHeading | ImportFault::RoundedText => Some(1),
            NotJson { line, .. } | NotAFigure { line, .. } => Some(*line),
            NotAnInteger { line, .. } | Line { line, .. } => Some(*line),
            ImportFault::TooLong
            | ImportFault::Empty
            | ImportFault::OwnResult
            | ImportFault::TooManyRuns
            | ImportFault::TooManyPercentiles
            | ImportFault::NoFigures { .. }
            | ImportFault::Json { .. } => None,
        }
    }
}

/// A fault of a line.
pub fn fault<T>(line: usize, message: impl Into<String>) -> Result<T, ImportFault> {
    Err(ImportFault::Line { line, message: message.into() })
}
