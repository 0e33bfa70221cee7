//! One run that measures: its result folder, recorder, progress and end by the user.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use nm_host::machine_use::MachineWatch;
use nm_lab::affinity::Affinity;
use nm_lab::trial::Options;
use nm_model::result::RunState;
use nm_model::{Doubt, DoubtKind, Failure, FailureKind, RowId, RunResult};

use crate::concurrent::ConcurrentRuns;
use crate::destination::{Destination, RunName};
use crate::progress::ProgressDisplay;
use crate::recorder::Recorder;
use crate::schedule::Schedule;
use crate::trial::{Completed, TrialContext, TrialResult};

/// What the failure of a trial means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It is recorded, and the others follow.
    Continue,
    /// The run ends with it; what was measured before is kept.
    Abort,
}

/// A run that has ended.
pub struct EndedRun {
    /// The judged result.
    pub result: RunResult,
    /// The report, if there is a result folder.
    pub report: Option<PathBuf>,
    /// The failure that ended it.
    pub aborted_by: Option<Failure>,
}

/// A run of trials.
pub struct Runner {
    /// The result so far.
    pub recorder: Recorder,
    options: Options,
    display: Box<dyn ProgressDisplay>,
    concurrent: ConcurrentRuns,
    machine: MachineWatch,
    interrupted: Arc<AtomicBool>,
    state: RunState,
    on_failure: OnFailure,
    /// The failure that ended the run.
    aborted_by: Option<Failure>,
}

impl Runner {
    /// Creates the result folder, so that a bad path fails before anything runs, and warns of other
    /// runs on this machine. Once `interrupted` is set, the run ends in order.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn begin(
        name: RunName,
        destination: &Destination<'_>,
        options: Options,
        on_failure: OnFailure,
        display: Box<dyn ProgressDisplay>,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Runner, Failure> {
        let started = Timestamp::now();
        let name = name.at(started);
        let folder = destination.folder(&name)?;
        let started = started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut runner = Runner {
            recorder: Recorder::new(&name, &started, folder),
            options,
            display,
            concurrent: ConcurrentRuns::announce(),
            machine: MachineWatch::start(),
            interrupted,
            state: RunState::Complete,
            on_failure,
            aborted_by: None,
        };
        runner.note_concurrent_runs();
        Ok(runner)
    }

    /// CPUs that the user chose.
    pub fn affinity(&self) -> Option<&Affinity> {
        self.options.affinity.as_ref()
    }

    /// Announces that `what` runs and how long it takes, and shows the progress of its trials.
    pub fn show_progress(&mut self, what: &str, schedule: Schedule) {
        self.display.announce(what, schedule);
    }

    /// Warns of runs on this machine that were not known before, and records them.
    fn note_concurrent_runs(&mut self) {
        for other in self.concurrent.new_runs() {
            self.display.warning(&format!(
                "another nearmetal measures on this machine: {other}; the figures of both suffer, \
                 so repeat this run when the other has ended"
            ));
            self.recorder.doubt(Doubt::new(DoubtKind::ConcurrentRun, other.to_string()));
        }
    }

    /// Runs one trial, the next one of the schedule, and records its result. The answer is
    /// whether the run goes on: not if the user ended it.
    ///
    /// # Errors
    /// If the result cannot be written, or the trial fails and `OnFailure::Abort` was chosen.
    pub fn trial(
        &mut self,
        label: &str,
        row: &RowId,
        execute: impl FnOnce(&TrialContext<'_>) -> TrialResult,
    ) -> Result<bool, Failure> {
        if self.interrupted.load(Ordering::Relaxed) {
            self.state = RunState::Interrupted;
            return Ok(false);
        }
        self.note_concurrent_runs();
        self.display.begin(label);
        let folder = self.recorder.path().map(Path::to_path_buf);
        let result = execute(&TrialContext {
            options: &self.options,
            display: &*self.display,
            interrupted: &self.interrupted,
            folder: folder.as_deref(),
            recorder: RefCell::new(&mut self.recorder),
        });
        let recorded = self.record(row, result);
        if recorded.is_err() {
            // Nothing more is written, so nobody else removes them.
            self.recorder.remove_empty_logs();
        }
        let goes_on = recorded?;
        if goes_on {
            self.display.advance();
        }
        Ok(goes_on)
    }

    fn record(&mut self, row: &RowId, result: TrialResult) -> Result<bool, Failure> {
        match result {
            TrialResult::Completed(Completed { measured, facts, skipped, shown, incidents }) => {
                for (side, facts) in facts {
                    self.recorder.facts(row.environment.as_str(), side, facts);
                }
                self.recorder.skipped(row, skipped);
                if let Some(shown) = shown {
                    self.recorder.shown(row, shown);
                }
                self.recorder.add(row, measured)?;
                for reason in incidents {
                    self.failed(row.clone(), reason)?;
                }
            }
            TrialResult::Failed { measured, case, failure } => {
                self.recorder.add(row, measured)?;
                if failure.kind == FailureKind::Cancelled {
                    self.state = RunState::Interrupted;
                    return Ok(false);
                }
                let row = row.clone().with_case(case);
                if self.on_failure == OnFailure::Abort {
                    return self.abort(row, failure);
                }
                self.failed(row, failure.to_string())?;
            }
            TrialResult::NotAvailable(missing) => self.recorder.not_available(row, missing)?,
        }
        Ok(true)
    }

    /// Ends the run with a failure; without any figure there is nothing to keep.
    fn abort(&mut self, row: RowId, failure: Failure) -> Result<bool, Failure> {
        self.display.finish();
        if self.recorder.is_empty() {
            return Err(failure);
        }
        self.recorder.failed(row, failure.to_string())?;
        self.state = RunState::Interrupted;
        self.aborted_by = Some(failure);
        Ok(false)
    }

    fn failed(&mut self, row: RowId, reason: String) -> Result<(), Failure> {
        self.display.message(&format!("{row}: {reason}"));
        self.recorder.failed(row, reason)
    }

    /// Judges the result and writes the reports.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(mut self) -> Result<EndedRun, Failure> {
        self.note_concurrent_runs();
        self.display.finish();
        self.recorder.machine(self.machine.so_far());
        let report = self.recorder.report();
        let duration_s = self.options.started.elapsed().as_secs_f64();
        let result = self.recorder.finish(self.state, duration_s)?;
        Ok(EndedRun { result, report, aborted_by: self.aborted_by })
    }
}

#[cfg(test)]
mod tests {
    use nm_model::{Facts, ProbeKind, Side};
    use nm_report::folder::TRIALS;

    use super::*;
    use crate::progress::NoDisplay;

    #[test]
    fn nothing_is_written_while_a_trial_measures() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        let name = RunName::Fixed("quiet".to_string());
        let to = Destination::Folder(&out);
        let (on_failure, display) = (OnFailure::Continue, Box::new(NoDisplay));
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut runner =
            Runner::begin(name, &to, Options::new(1), on_failure, display, interrupted).unwrap();
        runner.recorder.save().unwrap();
        // Names and lengths of all files.
        let files = || {
            let mut all: Vec<(String, u64)> = std::fs::read_dir(&out)
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| {
                    (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
                })
                .collect();
            all.sort();
            all
        };
        let row = RowId {
            environment: "loopback".to_string(),
            stack: "tcp-spin".to_string(),
            probe: ProbeKind::Pingpong,
            case: None,
            round: None,
            factor: None,
        };
        for number in 0..3 {
            let before = files();
            let execute = |context: &TrialContext<'_>| {
                context.facts(&format!("environment-{number}"), Side::Client, &Facts::default());
                context.estimate(nm_lab::trial::Progress {
                    case: nm_model::Case::Message { size_bytes: 1 },
                    index: 0,
                    cases: 1,
                    statistic: nm_model::result::Statistic::HalfRoundTrip,
                    value: 1.0,
                });
                assert_eq!(files(), before, "written while trial {number} measured");
                TrialResult::Completed(Completed::default())
            };
            assert!(runner.trial("a trial", &row, execute).unwrap());
            let after = files();
            assert_eq!(after.len(), before.len());
            assert!(after.iter().any(|(name, _)| name == TRIALS) && after != before);
        }
    }
}
