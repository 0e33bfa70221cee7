//! The trials that run: a `nearmetal qualify` each, which ends with this process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use nm_fleet::blame::blamed;
use nm_fleet::pairs::Pair;
use nm_fleet::result::{FleetRequest, Measured};
use nm_fleet::schedule::{Ended, Trial};
use nm_sys::clock::{Deadline, Moment};
use nm_sys::process::{ChildProcess, Signal, own_program};
use nm_sys::text_file;

use super::folder::{FleetFolder, OUTPUT_BYTES_MAX, PlanWord};
use crate::output;

/// How often children are looked at.
pub const NAP: Duration = Duration::from_millis(50);

/// Shortest time between two lines of progress.
pub const LINES_EVERY: Duration = Duration::from_secs(10);

/// How long children may take to end after Ctrl-C, before they are killed.
const END_LIMIT: Duration = Duration::from_millis(1_200);

/// A trial is given up after this many times the time that it should take, and
/// [`LIMIT_MORE_S`].
const LIMIT_TIMES: f64 = 5.0;

/// Time for hosts that are cut off, s.
const LIMIT_MORE_S: f64 = 300.0;

/// A running trial.
struct Child {
    trial: Trial,
    process: ChildProcess,
    started: Moment,
}

/// All that run.
pub struct Children<'a> {
    folder: &'a FleetFolder,
    request: &'a FleetRequest,
    plan: String,
    limit: Duration,
    running: Vec<Child>,
    /// What was measured, now and in earlier runs.
    pub measured: BTreeMap<Pair, Measured>,
}

impl Children<'_> {
    /// None yet; `measured` is of earlier runs.
    pub fn new<'a>(
        folder: &'a FleetFolder,
        request: &'a FleetRequest,
        trial_s: f64,
        measured: BTreeMap<Pair, Measured>,
    ) -> Children<'a> {
        let limit = Duration::from_secs_f64(trial_s * LIMIT_TIMES + LIMIT_MORE_S);
        let plan = request.plan_word(Some(folder));
        Children { folder, request, plan, limit, running: vec![], measured }
    }

    /// Starts a trial; its end, if it cannot be started.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub fn start(&mut self, trial: Trial) -> Result<Option<Ended>> {
        let folder = self.folder.pair(self.request, trial.pair);
        let failed = |error: std::io::Error| output::file_error(&folder, &error);
        // What an earlier try has left.
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(failed)?;
        }
        let log = File::create(log_of(&folder)).map_err(failed)?;
        let [client, server] = trial.pair.ends().map(|end| self.request.hosts[end].spec());
        let mut command = Command::new(own_program().map_err(failed)?);
        command.args(["qualify", "--quiet", "--plan", &self.plan]);
        command.args(["--client", &client, "--server", &server, "--out"]).arg(&folder);
        if let Some(socket) = &self.request.controller {
            command.arg("--controller").arg(socket);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        match ChildProcess::spawn(command) {
            Ok(process) => {
                self.running.push(Child { trial, process, started: Moment::now() });
                Ok(None)
            }
            Err(error) => {
                let reason = format!("cannot start this program for a pair: {error}");
                Ok(Some(Ended::Failed { reason, host: None }))
            }
        }
    }

    /// The trials that have ended since the last call.
    pub fn ended(&mut self) -> Vec<(Trial, Ended)> {
        let mut ended = vec![];
        let (folder, request, limit) = (self.folder, self.request, self.limit);
        let known = &mut self.measured;
        self.running.retain_mut(|child| {
            let is_late = child.started.elapsed() > limit;
            if is_late {
                child.process.kill();
            }
            let status = child.process.try_wait();
            if status.is_none() && !is_late {
                return true;
            }
            let code = status.and_then(|status| status.code());
            let end = match end_of(folder, request, child.trial, code, is_late) {
                Ok(measured) => {
                    known.insert(child.trial.pair, measured);
                    Ended::Measured
                }
                Err(failed) => failed,
            };
            ended.push((child.trial, end));
            false
        });
        ended
    }

    /// Ends all: in order, or by force after [`END_LIMIT`].
    pub fn end(&mut self) {
        for child in &mut self.running {
            child.process.signal(Signal::INT);
        }
        let deadline = Deadline::after(END_LIMIT);
        for child in &mut self.running {
            let ended = child.process.wait_timeout(deadline.remaining());
            if ended.is_none() {
                child.process.kill();
            }
        }
        self.running.clear();
    }
}

/// What a child that has ended has measured, or why not, by its result or else by its last line.
fn end_of(
    folder: &FleetFolder,
    request: &FleetRequest,
    trial: Trial,
    code: Option<i32>,
    is_late: bool,
) -> Result<Measured, Ended> {
    let log = log_of(&folder.pair(request, trial.pair));
    let found = match is_late {
        true => Err("the trial did not come to its end in time".to_string()),
        false => folder.measured(request, trial.pair),
    };
    let reason = match found {
        Ok(measured) => {
            let _ = fs::remove_file(log);
            return Ok(measured);
        }
        Err(reason) => reason,
    };
    let has_result = folder.pair(request, trial.pair).join(nm_report::folder::RESULT).exists();
    let reason = match (has_result || is_late, last_line(&log)) {
        (false, Some(line)) => line,
        (false, None) => match code {
            Some(code) => format!("the trial ended with exit code {code}, and wrote nothing"),
            None => "the trial was killed".to_string(),
        },
        (true, _) => reason,
    };
    let destinations = trial.pair.ends().map(|end| request.hosts[end].ssh.as_str());
    let host = blamed(&reason, destinations).map(|end| trial.pair.ends()[end]);
    Err(Ended::Failed { reason, host })
}

/// Where the messages of a pair are, beside its folder.
fn log_of(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_os_string();
    name.push(".log");
    folder.with_file_name(name)
}

fn last_line(log: &Path) -> Option<String> {
    let text = text_file::read(log, OUTPUT_BYTES_MAX).ok()?;
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.trim_start_matches("nearmetal: ").to_string())
}
