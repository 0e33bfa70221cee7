//! Output: data on stdout, messages on stderr. The only module that prints.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use nm_report::style::Style;
use serde::Serialize;

/// Writes data to stdout. A closed pipe is not an error.
pub fn data(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a value as JSON to stdout.
pub fn json(value: &impl Serialize) -> Result<()> {
    data(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Writes a message to stderr.
pub fn message(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
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
    let of_terminal = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0);
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let columns = of_terminal.or_else(of_variable).unwrap_or(COLUMNS_DEFAULT);
    columns.clamp(40, 400)
}
