//! The result of a run. It appends what each trial adds to the log of trials. At the end it folds
//! the result from the log, judges it and writes the reports.

use std::path::{Path, PathBuf};

use nm_lab::factor::Shown;
use nm_lab::trial::Measured;
use nm_model::finding::Audit;
use nm_model::result::{RunState, Source};
use nm_model::{
    Campaign, Case, Doubt, EndpointId, Facts, Failure, Gate, GuestRecord, MachineUse, NotAvailable,
    Plan, RowId, RunResult, Series, Side, TrialFailure,
};
use nm_report::folder::ResultFolder;
use nm_report::reference;
use nm_report::trial_log::{self, Addition, TrialLog};

/// The result of a run that is not finished yet. In a folder, its rounds are in the log of trials
/// alone: what it keeps in memory does not grow with them.
pub struct Recorder {
    /// Without a folder everything; else the run as it began, and what counts once.
    result: RunResult,
    folder: Option<ResultFolder>,
    /// Begun with the first record.
    log: Option<TrialLog>,
    /// What the next record has.
    pending: Vec<Addition>,
    has_figures: bool,
    gate: Option<GateFn>,
}

/// Tests a judged result against accepted runs.
pub type GateFn = Box<dyn Fn(&RunResult) -> Gate>;

impl Recorder {
    /// An empty result, in `folder` if there is one.
    pub fn new(name: &str, started: &str, folder: Option<ResultFolder>) -> Recorder {
        let source = Source::Measured { version: env!("CARGO_PKG_VERSION").to_string() };
        let result = RunResult {
            started: Some(started.to_string()),
            state: RunState::Running,
            ..RunResult::new(name, source)
        };
        Recorder { result, folder, log: None, pending: vec![], has_figures: false, gate: None }
    }

    /// Records the plan, the part of it that is run, and its rows that cannot run here.
    pub fn plan(&mut self, campaign: &Campaign) {
        debug_assert!(self.log.is_none(), "the plan is known before the first trial");
        self.result.plan = Some(campaign.plan.clone());
        self.result.part.clone_from(&campaign.part);
        self.result.not_available = campaign.not_available.clone();
    }

    /// Records the label of the site, if it has one.
    pub fn label(&mut self, label: Option<String>) {
        debug_assert!(self.log.is_none(), "the label is known before the first trial");
        self.result.label = label;
    }

    /// Tests the result at its end.
    pub fn gate(&mut self, gate: Option<GateFn>) {
        self.gate = gate;
    }

    /// Records the audit of a machine.
    pub fn audit(&mut self, audit: Audit) {
        self.push(Addition::Audit(Box::new(audit)));
    }

    /// Records the facts of an endpoint, unless it has some already.
    pub fn facts(&mut self, environment: impl Into<String>, side: Side, facts: Facts) {
        let endpoint = EndpointId::new(environment, side);
        self.push_once(Addition::Facts(endpoint, Box::new(facts)));
    }

    /// Records the guests of an environment. If it has some already, those stay, with the time of
    /// their first result once it is known.
    pub fn guests(&mut self, guests: &GuestRecord) {
        self.push_once(Addition::Guests(Box::new(guests.clone())));
    }

    /// Adds the rounds of one trial and writes them. Those with a factor are kept apart.
    pub fn add(&mut self, row: &RowId, measured: Vec<Measured>) -> Result<(), Failure> {
        for one in measured {
            if let (Some(folder), Some(samples)) = (&self.folder, &one.samples) {
                folder.samples(&one.key, one.round.round, samples)?;
            }
            self.has_figures |= row.factor.is_none();
            let series = Series {
                key: one.key,
                comparability: one.comparability,
                settings: one.settings,
                rounds: vec![one.round],
                estimates: vec![],
                doubts: vec![],
            };
            self.push(Addition::Rounds { factor: row.factor.clone(), series: Box::new(series) });
        }
        self.save()
    }

    /// Records whether the factor of a trial was in force.
    pub fn shown(&mut self, row: &RowId, Shown { check, note }: Shown) {
        if let Some(factor) = row.factor.clone() {
            self.push(Addition::Shown { factor, check: Box::new(check), note });
        }
    }

    /// Records a row that turned out not to be available, once.
    pub fn not_available(&mut self, row: &RowId, missing: NotAvailable) -> Result<(), Failure> {
        self.push_once(Addition::NotAvailable { factor: row.factor.clone(), missing });
        self.save()
    }

    /// Records cases of a row that cannot be measured.
    pub fn skipped(&mut self, row: &RowId, cases: Vec<(Case, String)>) {
        // The row's own trials say it, too.
        let RowId { environment, stack, probe, factor: None, .. } = row else { return };
        for (case, reason) in cases {
            let name = format!("not available: {environment}/{stack} {probe} {case}");
            self.push_once(Addition::Note(name, reason));
        }
    }

    /// Records what the machine did since the start of the run.
    pub fn machine(&mut self, machine: MachineUse) {
        self.push(Addition::Machine(machine));
    }

    /// Records a doubt about the run.
    pub fn doubt(&mut self, doubt: Doubt) {
        self.push(Addition::Doubt(doubt));
    }

    /// Whether nothing was measured yet.
    pub fn is_empty(&self) -> bool {
        !self.has_figures
    }

    /// Records a sentence about the run.
    pub fn note(&mut self, name: &str, sentence: &str) {
        self.push_once(Addition::Note(name.to_string(), sentence.to_string()));
    }

    /// Records a failure of `row`.
    pub fn failed(&mut self, row: RowId, reason: String) -> Result<(), Failure> {
        self.push(Addition::Failed(TrialFailure { row: Some(row), reason }));
        self.save()
    }

    /// What is said of each trial anew. Before the first record it is part of the run as it began.
    fn push(&mut self, addition: Addition) {
        match self.log {
            Some(_) => self.pending.push(addition),
            None => {
                trial_log::add(&mut self.result, addition);
            }
        }
    }

    /// What trials repeat, and the result has once.
    fn push_once(&mut self, addition: Addition) {
        let is_new = trial_log::add(&mut self.result, addition.clone());
        if is_new && self.log.is_some() {
            self.pending.push(addition);
        }
    }

    /// Judges the result and writes all reports.
    pub fn finish(mut self, state: RunState, duration_s: f64) -> Result<RunResult, Failure> {
        self.save()?;
        let folded = match &mut self.log {
            Some(log) => log.result()?,
            None => None,
        };
        let mut result = folded.unwrap_or(self.result);
        trial_log::estimate(&mut result);
        result.state = state;
        result.duration_s = Some(duration_s);
        nm_judge::judge(&mut result, &|name| reference::load(name).ok());
        result.gate = self.gate.as_ref().map(|gate| Box::new(gate(&result)));
        if let Some(folder) = &self.folder {
            folder.finish(&result, &references(result.plan.as_ref()))?;
            folder.remove_empty_logs()?;
        }
        Ok(result)
    }

    /// Removes logs without a line from a folder that is left as it is; what fails here has failed
    /// before.
    pub fn remove_empty_logs(&self) {
        if let Some(folder) = &self.folder {
            let _ = folder.remove_empty_logs();
        }
    }

    /// The result folder.
    pub fn path(&self) -> Option<&Path> {
        self.folder.as_ref().map(ResultFolder::path)
    }

    /// The path of the report.
    pub fn report(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(ResultFolder::report)
    }

    /// Writes what came since the last record: the run as it began, or one more record.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&mut self) -> Result<(), Failure> {
        let Some(folder) = &self.folder else { return Ok(()) };
        match &mut self.log {
            None => {
                let mut log = folder.trial_log()?;
                let begun = Addition::Begun(Box::new(self.result.clone()));
                if let Err(failure) = log.append(&[begun]) {
                    log.discard();
                    return Err(failure);
                }
                // From here on the rounds are in the log alone.
                self.result.series.clear();
                for factor in &mut self.result.factors {
                    factor.series.clear();
                    factor.checks.clear();
                }
                self.log = Some(log);
                folder.references(&references(self.result.plan.as_ref()))?;
            }
            Some(log) if !self.pending.is_empty() => {
                log.append(&self.pending)?;
                self.pending.clear();
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// The published runs that the report of a plan shows beside the result.
fn references(plan: Option<&Plan>) -> Vec<RunResult> {
    let names = plan.map_or(&[][..], |plan| &plan.references);
    names.iter().filter_map(|name| reference::load(name).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nm_report::folder::TRIALS;
    use nm_test_support::held_bytes;

    use super::*;

    /// A round of a published run as a trial's result.
    fn measured(round: u32) -> Measured {
        let published = reference::load("deftech-hft-bm-sfc9250").unwrap();
        let series = published.series.into_iter().next().unwrap();
        let mut one = series.rounds[0].clone();
        one.round = round;
        Measured {
            key: series.key,
            comparability: series.comparability,
            settings: series.settings,
            round: one,
            samples: None,
        }
    }

    fn row() -> RowId {
        let Measured { key, .. } = measured(0);
        RowId {
            environment: key.environment,
            stack: key.stack,
            probe: key.probe,
            case: None,
            round: None,
            factor: None,
        }
    }

    #[test]
    fn neither_memory_nor_a_record_grows_with_the_trials() {
        let place = match Path::new("/dev/shm").is_dir() {
            true => tempfile::tempdir_in("/dev/shm").unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let folder = ResultFolder::at(place.path()).unwrap();
        let mut recorder = Recorder::new("long", "2026-01-01T00:00:00Z", Some(folder));
        recorder.save().unwrap();
        let length = || fs::metadata(place.path().join(TRIALS)).unwrap().len();
        let (row, one) = (row(), measured(0));
        let (mut bytes, mut held) = (None, 0);
        for number in 0..10_000 {
            let before = length();
            // What trials repeat is written once.
            recorder.facts("loopback", Side::Client, Facts::default());
            recorder.note("a note", "the same each time");
            let mut one = one.clone();
            // All numbers have as many digits.
            one.round.round = 10_000 + number;
            recorder.add(&row, vec![one]).unwrap();
            if number == 100 {
                held = held_bytes();
            }
            if number > 0 {
                let written = length() - before;
                assert_eq!(written, *bytes.get_or_insert(written), "bytes of trial {number}");
            }
        }
        let more = held_bytes() - held;
        assert!(more.abs() < 4096, "{more} bytes more after 9 900 trials");
        assert!(!recorder.is_empty() && recorder.result.series.is_empty());
        let result = nm_report::folder::load(place.path()).unwrap();
        assert_eq!(result.series[0].rounds.len(), 10_000);
    }

    #[test]
    fn a_run_in_a_folder_ends_with_the_result_of_one_in_memory() {
        let place = tempfile::tempdir().unwrap();
        let run = |folder| {
            let mut recorder = Recorder::new("both", "2026-01-01T00:00:00Z", folder);
            recorder.facts("loopback", Side::Client, Facts::default());
            for number in 0..3 {
                recorder.add(&row(), vec![measured(number)]).unwrap();
                recorder.note("a note", "a sentence");
            }
            recorder.failed(row(), "a reason".to_string()).unwrap();
            recorder.finish(RunState::Complete, 1.0).unwrap()
        };
        let kept = run(Some(ResultFolder::at(place.path()).unwrap()));
        assert_eq!(kept, run(None));
        assert!(!kept.series[0].estimates.is_empty() && kept.failures.len() == 1);
        assert_eq!(nm_report::folder::load(place.path()).unwrap(), kept);
        assert!(!place.path().join(TRIALS).exists());
    }
}
