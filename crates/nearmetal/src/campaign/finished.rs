//! A finished run: its result, how it is shown, and its exit code.

use std::path::PathBuf;

use anyhow::Result;
use nm_model::RunResult;
use nm_model::result::RunState;
use nm_report::terminal;

use crate::cli::format::Format;
use crate::exit::Exit;
use crate::output;

/// A finished run.
pub struct FinishedRun {
    /// The judged result.
    pub result: RunResult,
    /// The report, if there is a result folder.
    pub report: Option<PathBuf>,
}

impl FinishedRun {
    /// The result as text: verdicts, tables, and the path of the report.
    pub fn summary(&self) -> String {
        let report = self.report.as_ref().map(|path| path.display().to_string());
        terminal::summary(&self.result, &output::style(), report.as_deref())
    }

    /// Writes the result to stdout.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn show(&self, format: Format) -> Result<()> {
        match format {
            Format::Json => output::json(&self.result),
            Format::Text => output::data(&self.summary()),
        }
    }

    /// Whether every trial was run; otherwise the user ended the run.
    pub fn is_complete(&self) -> bool {
        self.result.state == RunState::Complete
    }

    /// The exit code of a run with targets: the verdict.
    pub fn verdict_exit(&self) -> Exit {
        match self.is_complete() {
            true => self.result.outcome.into(),
            false => Exit::Interrupted,
        }
    }

    /// The exit code of a run without targets, which has no verdict.
    pub fn completion_exit(&self) -> Exit {
        match self.is_complete() {
            true => Exit::Pass,
            false => Exit::Interrupted,
        }
    }
}
