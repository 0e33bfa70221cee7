//! Other tools' output imported as a result, so that it can be compared and reported like our own.
//!
//! The tool is recognised by its text; nearmetal's own texts and tables are read back, too. Output
//! of several runs in one text, one after the other, becomes rounds of one series. Every import is
//! marked with [`nm_model::doubt::DoubtKind::Imported`]: its samples and what disturbed them are
//! not known. Numbers that no measurement can have are refused, not repaired.

mod builder;
mod fault;
mod iperf3;
mod join;
mod netperf;
mod nuttcp;
mod records;
mod series_csv;
mod sfnt;
mod sockperf;
mod sweep_csv;
mod sweep_row;

use nm_model::result::RunResult;

use builder::ResultBuilder;

pub use fault::{ImportFault, TEXT_BYTES_MAX, TOOLS};
pub use join::join;

/// Why a text could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {fault}", position(.name, .fault.line()))]
pub struct ImportError {
    /// Name of the text, such as its file.
    pub name: String,
    /// What is wrong.
    pub fault: ImportFault,
}

/// `name:line`, or the name where no line is known.
fn position(name: &str, line: Option<usize>) -> String {
    line.map_or_else(|| name.to_string(), |line| format!("{name}:{line}"))
}

/// Reads another tool's output. `name` names it in the result and in errors, such as its file.
///
/// # Errors
/// The text is of no known tool, is damaged, or reports that its run failed.
pub fn read(text: &str, name: &str) -> Result<RunResult, ImportError> {
    let named = |fault| ImportError { name: name.to_string(), fault };
    if text.len() > TEXT_BYTES_MAX {
        return Err(named(ImportFault::TooLong));
    }
    let clean = without_escapes(text);
    let mut import = ResultBuilder::new(name);
    recognise(&clean)
        .ok_or_else(|| unknown_tool(&clean))
        .and_then(|read| read(&clean, &mut import))
        .and_then(|()| import.finish())
        .map_err(named)
}

type Reader = fn(&str, &mut ResultBuilder) -> Result<(), ImportFault>;

/// The reader for a text, by words that only one tool prints.
fn recognise(text: &str) -> Option<Reader> {
    if text.contains("id=\"result\" data-without=") {
        return Some(refuse_result);
    }
    if series_csv::is_series(text) {
        return Some(series_csv::read);
    }
    if sweep_csv::is_sweep(text) {
        return Some(sweep_csv::read);
    }
    let signs: [(&[&str], Reader); 5] = [
        (&["sockperf: "], sockperf::read),
        (&["%ile\tstddev\titer", "sfnt-pingpong"], sfnt::read),
        (&[" TEST from ", "THROUGHPUT=", "Throughput Units", "netserver"], netperf::read),
        (&["megabytes=", " Mbps", "nuttcp"], nuttcp::read),
        (&["Connecting to host", "iperf Done."], iperf3::refuse_text),
    ];
    if text.trim_start().starts_with('{') {
        let is_result = ["\"schema\"", "\"source\"", "\"series\""].iter().all(|k| text.contains(k));
        return Some(if is_result { refuse_result } else { iperf3::read });
    }
    let known = signs.into_iter().find(|(signs, _)| signs.iter().any(|sign| text.contains(sign)));
    known
        .map(|(_, read)| read)
        .or_else(|| sfnt::header_line(text).map(|_| sfnt::read as Reader))
        .or_else(|| text.lines().any(netperf::is_heading).then_some(netperf::read as Reader))
}

/// A result needs no import.
fn refuse_result(_: &str, _: &mut ResultBuilder) -> Result<(), ImportFault> {
    Err(ImportFault::OwnResult)
}

fn unknown_tool(text: &str) -> ImportFault {
    if text.trim().is_empty() {
        return ImportFault::Empty;
    }
    let is_figure = |word: &str| word.parse::<f64>().is_ok() || word.ends_with("/s");
    let mut words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
    let netperf_row = words.all(is_figure);
    if netperf_row { ImportFault::NoHeading } else { ImportFault::UnknownTool }
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
