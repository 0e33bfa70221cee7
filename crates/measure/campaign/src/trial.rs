//! One trial as the runner sees it: what it is given and what it returns.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nm_lab::factor::Shown;
use nm_lab::trial::{self, Measured, Options};
use nm_model::{Case, Facts, Failure, GuestRecord, NotAvailable, Side};

use crate::progress::ProgressDisplay;
use crate::recorder::Recorder;

/// What a trial is given.
pub struct TrialContext<'a> {
    /// Options of all trials of the run.
    pub options: &'a Options,
    /// Set by Ctrl-C.
    pub interrupted: &'a Arc<AtomicBool>,
    /// The result folder, if there is one.
    pub folder: Option<&'a Path>,
    pub(crate) display: &'a dyn ProgressDisplay,
    pub(crate) recorder: RefCell<&'a mut Recorder>,
}

impl TrialContext<'_> {
    /// Shows the current estimate.
    pub fn estimate(&self, now: trial::Progress) {
        self.display.estimate(now.statistic, now.value);
    }

    /// Records the guests of an environment at once, so that they are known also if the trial fails
    /// or the run is killed.
    pub fn guests(&self, guests: &GuestRecord) {
        self.recorder.borrow_mut().guests(guests);
    }

    /// Records the facts of an endpoint.
    pub fn facts(&self, environment: &str, side: Side, facts: &Facts) {
        self.recorder.borrow_mut().facts(environment, side, facts.clone());
    }

    /// Writes the result so far.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self) -> Result<(), Failure> {
        self.recorder.borrow_mut().save()
    }

    /// Writes a message that is not an error above the progress bar, unless the user wants none.
    pub fn message(&self, text: &str) {
        self.display.note(text);
    }
}

/// What a trial returns.
pub enum TrialResult {
    /// It came to its end.
    Completed(Completed),
    /// It failed or was cancelled.
    Failed {
        /// Cases that were measured before.
        measured: Vec<Measured>,
        /// The case that failed.
        case: Option<Case>,
        /// Why.
        failure: Failure,
    },
    /// Its environment cannot be started.
    NotAvailable(NotAvailable),
}

/// A trial that came to its end.
#[derive(Default)]
pub struct Completed {
    /// What was measured.
    pub measured: Vec<Measured>,
    /// Facts of the endpoints.
    pub facts: Vec<(Side, Facts)>,
    /// Cases that cannot be measured, with the reason as a clause.
    pub skipped: Vec<(Case, String)>,
    /// For a trial with a factor: whether it was in force.
    pub shown: Option<Shown>,
    /// Sentences about failures during the trial, such as nodes that died.
    pub incidents: Vec<String>,
}
