//! Output: data on stdout, messages on stderr. The only module that prints.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nm_report::style::{self, Style};

use crate::document::{Document, SelfVersioned, Versioned};
use crate::exit::{self, Exit, Stop};

/// Writes text for people to stdout. Parts of it may come from a peer or a file, which must not
/// command the user's terminal.
///
/// # Errors
/// As [`data`].
pub fn text(text: &str) -> Result<()> {
    data(&style::printable(text))
}

/// Writes data for programs to stdout. A closed pipe is not an error; a full disk behind stdout is
/// one of usage, as no environment is missing.
///
/// # Errors
/// If it cannot be written.
pub fn data(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes JSON as a line, or lines.
fn data_json(json: String) -> Result<()> {
    data(&(escaped(json) + "\n"))
}

/// JSON whose strings command no terminal. All else in it is ASCII, and its writer has escaped the
/// control characters of that already.
fn escaped(json: String) -> String {
    let is_hostile = |c: char| c != '\n' && style::is_command(c);
    if !json.contains(is_hostile) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match is_hostile(c) {
            true => text += &format!("\\u{:04x}", u32::from(c)),
            false => text.push(c),
        }
    }
    text
}

/// What came of writing to stdout.
pub fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let message = format!(
                "the output cannot be written to stdout: {error}; make room there, or write it \
                 elsewhere"
            );
            Err(Stop::usage(message))
        }
        _ => Ok(()),
    }
}

/// A file of the user's that cannot be written: one that exists is a conflict, all else is the
/// place.
pub fn file_error(path: &Path, error: &io::Error) -> anyhow::Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::AlreadyExists => {
            let message = format!("{path} exists already; remove it, or name another place");
            Stop::with(Exit::Conflict, message)
        }
        ErrorKind::StorageFull | ErrorKind::FileTooLarge | ErrorKind::QuotaExceeded => {
            let message = format!(
                "{path} cannot be written: {error}; make room there, or name another place"
            );
            Stop::with(Exit::Environment, message)
        }
        _ => Stop::with(Exit::Environment, format!("{path} cannot be written: {error}")),
    }
}

/// Writes a document as JSON to stdout.
pub fn json(document: &impl Document) -> Result<()> {
    data_json(serde_json::to_string_pretty(&Versioned::new(document))?)
}

/// Writes a document as one line of JSON to stdout.
pub fn json_line(document: &impl Document) -> Result<()> {
    data_json(serde_json::to_string(&Versioned::new(document))?)
}

/// Writes a result or a plan, whose form is that of its file, as JSON to stdout.
pub fn json_file(value: &impl SelfVersioned) -> Result<()> {
    data_json(serde_json::to_string_pretty(value)?)
}

/// Writes a document of another standard to stdout.
pub fn sarif(document: &serde_json::Value) -> Result<()> {
    data_json(format!("{document:#}"))
}

/// Writes a message to stderr. Parts of it may come from a peer or a file, which must not command
/// the user's terminal.
pub fn message(text: &str) {
    styled(&without_commands(text));
}

fn without_commands(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(style::clean).collect();
    lines.join("\n")
}

/// Writes text that this program has coloured to stderr.
pub fn styled(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// How long a process that must not outlive its work waits until its last message is read.
const MESSAGE_LIMIT: Duration = Duration::from_secs(2);

/// The exit code of a process that ends although nobody reads its stderr: the sentence of an error
/// is written by a thread, which gets [`MESSAGE_LIMIT`].
pub fn ended_in_time(result: anyhow::Result<()>) -> Exit {
    let Err(error) = result else { return Exit::Pass };
    let (exit, text) = (exit::of_error(&error), format!("nearmetal: {error:#}"));
    let (written, is_written) = channel();
    let write = move || {
        message(&text);
        let _ = written.send(());
    };
    if thread::Builder::new().name("message".into()).spawn(write).is_ok() {
        let _ = is_written.recv_timeout(MESSAGE_LIMIT);
    }
    exit
}

/// `text` as a warning, for [`message`].
pub fn warning(text: &str) -> String {
    format!("nearmetal: warning: {text}")
}

/// Colour only on a terminal, and not if `NO_COLOR` is set.
pub fn style() -> Style {
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    Style { colour, width: width() }
}

/// Columns where there is no terminal and `COLUMNS` is not set.
const COLUMNS_DEFAULT: usize = 100;

/// Columns of the terminal, else those of `COLUMNS`.
fn width() -> usize {
    width_or(COLUMNS_DEFAULT)
}

/// Columns of the terminal, else those of `COLUMNS`, else `columns`.
pub fn width_or(columns: usize) -> usize {
    let of_terminal = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0);
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let columns = of_terminal.or_else(of_variable).unwrap_or(columns);
    columns.clamp(40, 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_lines_and_commands_no_terminal() {
        let hostile = "refused: \x1b]0;title\x07\x1b[2J\u{9b}1m gone\r\u{202e}\nhint: one";
        let shown = without_commands(hostile);
        assert!(shown.starts_with("refused: ") && shown.ends_with("\nhint: one"), "{shown:?}");
        assert!(shown.chars().all(|c| !c.is_control() || c == '\n'), "{shown:?}");
    }

    #[test]
    fn json_means_the_same_and_commands_no_terminal() {
        let hostile = "a\u{9b}2J\x1b[2J\u{7f}\u{202e}ä\n";
        let document = serde_json::json!({ "name": hostile, "of": [1, "x"] });
        let shown = escaped(format!("{document:#}"));
        assert!(!shown.contains(|c: char| c != '\n' && style::is_command(c)), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), document);
    }
}
