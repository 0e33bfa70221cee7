//! The result of a run: adds the rounds of each trial, writes the result file after each, and at
//! the end judges the result and writes the reports.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_lab::factor::Shown;
use nm_lab::trial::Measured;
use nm_model::finding::Audit;
use nm_model::result::{RunState, Source};
use nm_model::setting::NanosecondRange;
use nm_model::{
    Campaign, Case, Doubt, EndpointId, FactorResult, Facts, Gate, GuestRecord, MachineUse,
    NotAvailable, Plan, RowId, RunResult, Series, SettingKind, SettingValue, Settings, Side,
    TrialFailure,
};
use nm_report::folder::ResultFolder;
use nm_report::reference;

/// The result of a run that is not finished yet.
pub struct Recorder {
    result: RunResult,
    folder: Option<ResultFolder>,
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
        Recorder { result, folder, gate: None }
    }

    /// Records the plan, the part of it that is run, and its rows that cannot run here.
    pub fn plan(&mut self, campaign: &Campaign) {
        self.result.plan = Some(campaign.plan.clone());
        self.result.part.clone_from(&campaign.part);
        self.result.not_available = campaign.not_available.clone();
    }

    /// Records the label of the site, if it has one.
    pub fn label(&mut self, label: Option<String>) {
        self.result.label = label;
    }

    /// Tests the result at its end.
    pub fn gate(&mut self, gate: Option<GateFn>) {
        self.gate = gate;
    }

    /// Records the audit of a machine.
    pub fn audit(&mut self, audit: Audit) {
        self.result.audits.push(audit);
    }

    /// Records the facts of an endpoint, unless it has some already.
    pub fn facts(&mut self, environment: impl Into<String>, side: Side, facts: Facts) {
        self.result.facts.entry(EndpointId::new(environment, side)).or_insert(facts);
    }

    /// Records the guests of an environment. If it has some already, those stay, with the time of
    /// their first result once it is known.
    pub fn guests(&mut self, guests: &GuestRecord) {
        let known = &mut self.result.guests;
        match known.iter_mut().find(|one| one.environment == guests.environment) {
            None => known.push(guests.clone()),
            Some(one) if one.boot_ms == guests.boot_ms => {
                one.first_result_ms = one.first_result_ms.or(guests.first_result_ms);
            }
            // Guests that were started again after a failure.
            Some(_) => {}
        }
    }

    /// Adds the rounds of one trial and writes the file. Those with a factor are kept apart.
    pub fn add(&mut self, row: &RowId, measured: Vec<Measured>) -> Result<()> {
        for one in measured {
            if let (Some(folder), Some(samples)) = (&self.folder, &one.samples) {
                folder.samples(&one.key, one.round.round, samples)?;
            }
            match &row.factor {
                None => add_round(&mut self.result.series, one),
                Some(name) => {
                    if let Some(factor) = self.factor(name) {
                        add_round(&mut factor.series, one);
                    }
                }
            }
        }
        self.save()
    }

    /// Records whether the factor of a trial was in force.
    pub fn shown(&mut self, row: &RowId, shown: Shown) {
        let Some(factor) = row.factor.as_ref().and_then(|name| self.factor(name)) else { return };
        factor.checks.push(shown.check);
        if let Some(note) = shown.note.filter(|note| !factor.notes.contains(note)) {
            factor.notes.push(note);
        }
    }

    /// Records a row that turned out not to be available, once.
    pub fn not_available(&mut self, row: &RowId, missing: NotAvailable) -> Result<()> {
        let known = match &row.factor {
            None => Some(&mut self.result.not_available),
            Some(name) => self.factor(name).map(|factor| &mut factor.not_available),
        };
        if let Some(known) = known.filter(|known| !known.contains(&missing)) {
            known.push(missing);
        }
        self.save()
    }

    /// What was measured with a factor of the plan.
    fn factor(&mut self, name: &str) -> Option<&mut FactorResult> {
        let is_named = |one: &FactorResult| one.factor.name == name;
        let known = self.result.factors.iter().position(is_named);
        let at = match known {
            Some(at) => at,
            None => {
                let factors = &self.result.plan.as_ref()?.factors;
                let factor = factors.iter().find(|factor| factor.name == name)?.clone();
                self.result.factors.push(FactorResult::new(factor));
                self.result.factors.len() - 1
            }
        };
        self.result.factors.get_mut(at)
    }

    /// Records cases of a row that cannot be measured.
    pub fn skipped(&mut self, row: &RowId, cases: Vec<(Case, String)>) {
        // The row's own trials say it, too.
        let RowId { environment, stack, probe, factor: None, .. } = row else { return };
        for (case, reason) in cases {
            let name = format!("not available: {environment}/{stack} {probe} {case}");
            self.result.notes.insert(name, reason);
        }
    }

    /// Records what the machine did since the start of the run.
    pub fn machine(&mut self, machine: MachineUse) {
        self.result.machine = Some(machine);
    }

    /// Records a doubt about the run.
    pub fn doubt(&mut self, doubt: Doubt) {
        self.result.doubts.push(doubt);
    }

    /// Whether nothing was measured yet.
    pub fn is_empty(&self) -> bool {
        self.result.series.is_empty()
    }

    /// Records a sentence about the run.
    pub fn note(&mut self, name: &str, sentence: &str) {
        self.result.notes.insert(name.to_string(), sentence.to_string());
    }

    /// Records a failure of `row`.
    pub fn failed(&mut self, row: RowId, reason: String) -> Result<()> {
        self.result.failures.push(TrialFailure { row: Some(row), reason });
        self.save()
    }

    /// Judges the result and writes all reports.
    pub fn finish(mut self, state: RunState, duration_s: f64) -> Result<RunResult> {
        self.result.state = state;
        self.result.duration_s = Some(duration_s);
        nm_judge::judge(&mut self.result, &|name| reference::load(name).ok());
        self.result.gate = self.gate.as_ref().map(|gate| Box::new(gate(&self.result)));
        if let Some(folder) = &self.folder {
            folder.finish(&self.result, &references(self.result.plan.as_ref()))?;
            folder.remove_empty_logs()?;
        }
        Ok(self.result)
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

    /// Writes the result so far.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&mut self) -> Result<()> {
        match &self.folder {
            Some(folder) => Ok(folder.save(&self.result, &references(self.result.plan.as_ref()))?),
            None => Ok(()),
        }
    }
}

/// Adds a round to its series.
fn add_round(all: &mut Vec<Series>, one: Measured) {
    let limit = cache_line_limit(&one.settings);
    let found = all.iter().position(|series| series.key == one.key);
    let index = found.unwrap_or_else(|| {
        all.push(Series {
            key: one.key,
            comparability: one.comparability,
            settings: one.settings,
            rounds: vec![],
            estimates: vec![],
            doubts: vec![],
        });
        all.len() - 1
    });
    let series = &mut all[index];
    if let Some(limit) = limit {
        let widest = cache_line_limit(&series.settings).unwrap_or(limit).widened(limit);
        series.settings.set(SettingKind::CacheLineLimit, SettingValue::Nanoseconds(widest));
    }
    series.rounds.push(one.round);
    nm_stats::rounds::estimate(series);
}

fn cache_line_limit(settings: &Settings) -> Option<NanosecondRange> {
    match settings.get(&SettingKind::CacheLineLimit)? {
        SettingValue::Nanoseconds(range) => Some(*range),
        _ => None,
    }
}

/// The published runs that the report of a plan shows beside the result.
fn references(plan: Option<&Plan>) -> Vec<RunResult> {
    let names = plan.map_or(&[][..], |plan| &plan.references);
    names.iter().filter_map(|name| reference::load(name).ok()).collect()
}
