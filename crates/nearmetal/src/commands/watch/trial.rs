//! One trial: a `nearmetal qualify` as a child, which ends with this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use nm_campaign::schedule::Schedule;
use nm_fleet::facts::flat;
use nm_model::RunResult;
use nm_model::watch::{BOOT, WatchFigure};
use nm_report::folder;
use nm_stats::describe::median;
use nm_sys::clock::Deadline;
use nm_sys::process::{ChildProcess, Signal, own_program};
use nm_sys::text_file;

use crate::commands::{baseline, qualify};
use crate::exit::Stop;
use crate::plans;

/// Folder of the trial that runs, in that of the watch; it is removed after the trial.
const TRIAL: &str = "trial";

/// How often a trial is looked at.
const NAP: Duration = Duration::from_millis(250);

/// How long a trial may take to end after Ctrl-C.
const END_LIMIT: Duration = Duration::from_millis(1_200);

/// A trial is given up after this many times the time that it should take, and
/// [`LIMIT_MORE_S`].
const LIMIT_TIMES: f64 = 5.0;
const LIMIT_MORE_S: f64 = 60.0;

/// Most bytes of messages of a trial that are read.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// What a trial has measured.
pub struct Measured {
    pub plan: Option<String>,
    pub figures: Vec<WatchFigure>,
    pub facts: BTreeMap<String, String>,
}

/// Starts trials of one plan.
pub struct Runner {
    plan: String,
    folder: PathBuf,
    promised_s: f64,
}

impl Runner {
    /// For trials of `plan` in the folder `keep`.
    ///
    /// # Errors
    /// If the plan cannot be read again for each trial, or is none.
    pub fn new(plan: &str, keep: &Path) -> Result<Runner> {
        if plan == "-" {
            return Err(Stop::usage("a plan on stdin cannot be read for each trial; name a file"));
        }
        let campaign = qualify::resolve(plans::load(plan)?, None);
        let promised_s = Schedule::of_campaign(&campaign).promised_s();
        Ok(Runner { plan: plan.to_string(), folder: keep.join(TRIAL), promised_s })
    }

    /// How long a trial should take, s.
    pub fn promised_s(&self) -> f64 {
        self.promised_s
    }

    /// One trial. Its folder is removed in any case, also that of a watch that was killed.
    ///
    /// # Errors
    /// Why there are no figures.
    pub fn measure(&self, interrupted: &AtomicBool) -> Result<Measured, String> {
        self.clean()?;
        let measured = self.run(interrupted).and_then(|()| self.read());
        self.clean()?;
        measured
    }

    fn clean(&self) -> Result<(), String> {
        match self.folder.exists() {
            true => fs::remove_dir_all(&self.folder)
                .map_err(|error| format!("{} cannot be removed: {error}", self.folder.display())),
            false => Ok(()),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("messages.log")
    }

    fn run(&self, interrupted: &AtomicBool) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("the trial cannot be started: {error}");
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let mut command = Command::new(own_program().map_err(failed)?);
        command.args(["qualify", "--quiet", "--plan", &self.plan, "--out"]);
        command.arg(self.folder.join("result"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(self.log()).map_err(failed)?);
        let mut child = ChildProcess::spawn(command).map_err(failed)?;
        let limit = Duration::from_secs_f64(self.promised_s * LIMIT_TIMES + LIMIT_MORE_S);
        let deadline = Deadline::after(limit);
        while child.wait_timeout(NAP).is_none() {
            if interrupted.load(Ordering::Relaxed) {
                child.signal(Signal::INT);
                if child.wait_timeout(END_LIMIT).is_none() {
                    child.kill();
                }
                return Err("it was interrupted".to_string());
            }
            if deadline.passed() {
                child.kill();
                return Err("it did not come to its end in time".to_string());
            }
        }
        Ok(())
    }

    /// What the trial left.
    fn read(&self) -> Result<Measured, String> {
        let path = self.folder.join("result");
        if !path.join(folder::RESULT).exists() {
            let text = text_file::read(&self.log(), LOG_BYTES_MAX).unwrap_or_default();
            let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
            let line = line.unwrap_or("it left no result").trim_start_matches("nearmetal: ");
            return Err(line.to_string());
        }
        measured(&folder::load(&path).map_err(|failure| failure.to_string())?)
    }
}

fn measured(run: &RunResult) -> Result<Measured, String> {
    let found = baseline::of_run(run);
    let figures: Vec<WatchFigure> = found
        .figures
        .into_iter()
        .filter_map(|one| Some(WatchFigure { value: median(&one.rounds)?, key: one.key }))
        .collect();
    if figures.is_empty() {
        let failed = run.failures.last().map(|failure| failure.reason.clone());
        let absent = run.not_available.first().map(|one| one.reason.clone());
        return Err(failed.or(absent).unwrap_or_else(|| "it has no primary figure".to_string()));
    }
    Ok(Measured { plan: found.plan.map(|plan| plan.hash), figures, facts: facts(run) })
}

/// The facts of all hosts, with the host's name before them where there are several.
fn facts(run: &RunResult) -> BTreeMap<String, String> {
    let names: BTreeSet<&str> = run.facts.values().map(|facts| facts.host.name.as_str()).collect();
    let mut all = BTreeMap::new();
    for facts in run.facts.values() {
        let host = &facts.host;
        let before = if names.len() > 1 { format!("{} ", host.name) } else { String::new() };
        let boot = host.boot_id.clone().map(|boot| (BOOT.to_string(), boot));
        for (name, value) in flat(facts).into_iter().chain(boot) {
            all.entry(format!("{before}{name}")).or_insert(value);
        }
    }
    all
}
