//! A finished run: its result, how it is shown, and its exit code.

use std::path::PathBuf;

use anyhow::Result;
use nm_campaign::{EndedRun, Runner};
use nm_model::result::RunState;
use nm_model::{Failure, Outcome, RunResult};
use nm_report::{gate, terminal};

use crate::campaign::show::Show;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// A finished run.
pub struct FinishedRun {
    /// The judged result.
    pub result: RunResult,
    /// The report, if there is a result folder.
    pub report: Option<PathBuf>,
    /// How it is shown.
    pub show: Show,
    /// The failure that ended it.
    pub aborted_by: Option<Failure>,
}

impl FinishedRun {
    /// Ends a run: judges the result and writes the reports.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn of(runner: Runner, show: Show) -> Result<FinishedRun> {
        let EndedRun { result, report, aborted_by } = runner.finish()?;
        Ok(FinishedRun { result, report, show, aborted_by })
    }

    /// The result as text: figures, verdict, and the path of the report.
    pub fn summary(&self) -> String {
        let report = self.report.as_ref().map(|path| path.display().to_string());
        let style = output::style();
        let text = terminal::extract(&self.result, self.show.extent, &style, report.as_deref());
        match &self.result.gate {
            Some(found) => format!("{text}\n{}", gate::text(found, &style)),
            None => text,
        }
    }

    /// Writes the result to stdout.
    ///
    /// # Errors
    /// If it cannot be written; the failure that ended the run, if there was one.
    pub fn show(&self) -> Result<()> {
        match self.show.format {
            Format::Json => output::json_file(&self.result)?,
            Format::Text => output::text(&self.summary())?,
        }
        self.check_aborted()
    }

    /// Whether the run came to its end.
    ///
    /// # Errors
    /// The failure that ended it, with where the rounds before it are.
    pub fn check_aborted(&self) -> Result<()> {
        let Some(failure) = &self.aborted_by else { return Ok(()) };
        let place = match &self.report {
            Some(report) => format!("in {}", report.display()),
            None => "above; --out keeps it".to_string(),
        };
        let hint = format!("what was measured before is {place}");
        Err(Failure::new(failure.kind, failure.to_string()).hint(hint).into())
    }

    /// Whether every trial was run; otherwise the user or a failure ended the run.
    pub fn is_complete(&self) -> bool {
        self.result.state == RunState::Complete
    }

    /// Whether anything was measured, if the run came to its end.
    ///
    /// # Errors
    /// Where the reasons are.
    pub fn check_measured(&self) -> Result<()> {
        if !self.is_complete() || !self.result.series.is_empty() {
            return Ok(());
        }
        let report = self.report.clone().unwrap_or_default();
        let message = format!("nothing could be measured; the reasons are in {}", report.display());
        Err(Stop::with(Exit::Environment, message))
    }

    /// The exit code: the verdict if there are targets, or the gate if that is worse; else whether
    /// the run came to its end.
    pub fn exit(&self) -> Exit {
        let gate = self.result.gate.as_ref().map_or(Outcome::Pass, |gate| gate.outcome);
        // A plan without targets has no verdict of its own.
        let has_targets = !self.result.verdicts.is_empty() || !self.result.not_judged.is_empty();
        let is_gate_alone = self.result.gate.is_some() && !has_targets;
        match (self.is_complete(), &self.result.plan) {
            (false, _) => Exit::Interrupted,
            (true, Some(_)) if !is_gate_alone => Outcome::all([self.result.outcome, gate]).into(),
            (true, _) => gate.into(),
        }
    }
}
