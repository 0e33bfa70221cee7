//! The folder of a fleet: its request, a folder for each pair, and the result.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_fleet::facts;
use nm_fleet::hunt::HuntResult;
use nm_fleet::pairs::Pair;
use nm_fleet::result::{FleetRequest, FleetResult, Measured};
use nm_model::result::RunState;
use nm_model::{EndpointId, Metric, RunResult, Series, Side, limits};
use nm_report::document::Versioned;
use nm_report::{fleet, folder, html};
use nm_sys::complete_file::{self, Origin};
use nm_sys::text_file;

use crate::exit::{Exit, Stop};
use crate::output;

/// Folder without `--out`.
const FOLDER: &str = "nearmetal-fleet";

/// File with what was asked for, which `--resume` reads.
const REQUEST: &str = "fleet-request.json";

/// File with what a hunt found.
const HUNT: &str = "hunt.json";

/// Copy of a plan that is a file, which may change before `--resume`.
const PLAN: &str = "plan.toml";

/// Largest request, bytes.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// A folder of a fleet, which no other run can use.
pub struct FleetFolder {
    path: PathBuf,
    /// Locked as long as the run lasts.
    _lock: File,
}

impl FleetFolder {
    /// A new one for `request`.
    ///
    /// # Errors
    /// A conflict if it holds a fleet; if it cannot be written.
    pub fn create(path: Option<&Path>, request: &FleetRequest) -> Result<FleetFolder> {
        let path = path.unwrap_or(Path::new(FOLDER)).to_path_buf();
        let file = path.join(REQUEST);
        if file.exists() || path.join(folder::RESULT).exists() {
            let shown = path.display();
            let message = format!(
                "{shown} holds another run: go on with a fleet by --resume {shown}, or name \
                 another folder by --out"
            );
            return Err(Stop::with(Exit::Conflict, message));
        }
        let failed = |error: io::Error| output::file_error(&path, &error);
        fs::create_dir_all(path.join("pairs")).map_err(failed)?;
        if let Some(text) = plan_file(&request.plan)? {
            let copy = path.join(PLAN);
            complete_file::replace(&copy, text.as_bytes(), Origin::Measured)
                .map_err(|error| output::file_error(&copy, &error))?;
        }
        let text = serde_json::to_string_pretty(request)? + "\n";
        complete_file::create(&file, text.as_bytes(), complete_file::MODE_PUBLIC)
            .map_err(|error| output::file_error(&file, &error))?;
        FleetFolder::open(&path)
    }

    /// The folder of an earlier run.
    ///
    /// # Errors
    /// If it holds none, or one that still runs.
    pub fn open(path: &Path) -> Result<FleetFolder> {
        let shown = path.display();
        let lock = File::open(path.join(REQUEST)).map_err(|error| {
            Stop::usage(format!(
                "{shown} holds no fleet that was begun ({error}); begin one by --hosts and --out"
            ))
        })?;
        match lock.try_lock() {
            Ok(()) => Ok(FleetFolder { path: path.to_path_buf(), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let message = format!("another run writes into {shown}; wait for its end");
                Err(Stop::with(Exit::Conflict, message))
            }
            Err(TryLockError::Error(error)) => Err(output::file_error(path, &error)),
        }
    }

    /// What was asked for.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn request(&self) -> Result<FleetRequest> {
        let path = self.path.join(REQUEST);
        let bad = |fault: String| Stop::usage(format!("{}: {fault}; begin anew", path.display()));
        let text = text_file::read(&path, REQUEST_BYTES_MAX).map_err(|it| bad(it.to_string()))?;
        let request: FleetRequest =
            serde_json::from_str(&text).map_err(|it| bad(format!("it is damaged: {it}")))?;
        let n_hosts = request.hosts.len();
        match (2..=nm_fleet::hosts::HOSTS_MAX).contains(&n_hosts) && request.parallel > 0 {
            true => Ok(request),
            false => Err(bad(format!("it is damaged: it has {n_hosts} hosts"))),
        }
    }

    /// Its name in messages.
    pub fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// The folder of a pair, by its number and its hosts.
    pub fn pair(&self, request: &FleetRequest, pair: Pair) -> PathBuf {
        let [client, server] = pair.ends().map(|end| request.hosts[end].name.as_str());
        let name = folder::file_name(&format!("{client}-{server}"));
        self.path.join("pairs").join(format!("{}-{}-{name}", pair.client + 1, pair.server + 1))
    }

    /// What a pair has measured.
    ///
    /// # Errors
    /// Why there is no complete result.
    pub fn measured(&self, request: &FleetRequest, pair: Pair) -> Result<Measured, String> {
        let path = self.pair(request, pair);
        if !path.join(folder::RESULT).exists() {
            return Err("it has no result".to_string());
        }
        let run = folder::load(&path).map_err(|failure| failure.to_string())?;
        measured_of(&run).ok_or_else(|| reason_of(&run))
    }

    /// What all pairs of the rounds have measured that have.
    pub fn all_measured(
        &self,
        request: &FleetRequest,
        rounds: &[Vec<Pair>],
    ) -> BTreeMap<Pair, Measured> {
        let all = rounds.iter().flatten();
        all.filter_map(|pair| Some((*pair, self.measured(request, *pair).ok()?))).collect()
    }

    /// Writes what a hunt found.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_hunt(&self, found: &HuntResult) -> Result<()> {
        let path = self.path.join(HUNT);
        let json = serde_json::to_string_pretty(&Versioned::new(found))? + "\n";
        complete_file::replace(&path, json.as_bytes(), Origin::Derived)
            .map_err(|error| output::file_error(&path, &error))
    }

    /// Writes the result, its tables and its page.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, found: &FleetResult) -> Result<()> {
        let json = serde_json::to_string_pretty(&Versioned::new(found))? + "\n";
        let files = [
            (fleet::FLEET, json),
            (fleet::FLEET_CSV, fleet::csv(found)),
            (fleet::FLEET_JUNIT, fleet::junit::document(found)),
            (fleet::FLEET_METRICS, fleet::openmetrics::text(found)),
            (fleet::FLEET_PAGE, html::fleet(found)),
        ];
        for (name, text) in files {
            let path = self.path.join(name);
            complete_file::replace(&path, text.as_bytes(), Origin::Derived)
                .map_err(|error| output::file_error(&path, &error))?;
        }
        Ok(())
    }
}

/// The text of a plan that is a file.
fn plan_file(word: &str) -> Result<Option<String>> {
    match is_file(word) {
        false => Ok(None),
        true => Ok(Some(crate::plans::read(word)?.text.into_owned())),
    }
}

/// As `plans` has it: a word with a slash or a dot is a file.
fn is_file(word: &str) -> bool {
    word.contains(['/', '.'])
}

/// The word of the plan for a child.
pub trait PlanWord {
    /// That of the copy in the folder, if the plan is a file.
    fn plan_word(&self, folder: Option<&FleetFolder>) -> String;
}

impl PlanWord for FleetRequest {
    fn plan_word(&self, folder: Option<&FleetFolder>) -> String {
        let Some(folder) = folder.filter(|_| is_file(&self.plan)) else {
            return self.plan.clone();
        };
        let copy = Path::new(".").join(&folder.path).join(PLAN).display().to_string();
        let part = match self.plan.rsplit_once(':') {
            Some((_, part)) if !part.contains(['/', '.']) => format!(":{part}"),
            _ => String::new(),
        };
        copy + &part
    }
}

/// The figures of a complete run; none if it was ended early or has no median.
fn measured_of(run: &RunResult) -> Option<Measured> {
    if run.state != RunState::Complete {
        return None;
    }
    let has_median = |series: &&Series| series.estimate(Metric::Median).is_some();
    let series = run.series.iter().find(has_median).or_else(|| run.series.first())?;
    let value = |metric| series.estimate(metric).map(|estimate| estimate.value);
    let environment = &series.key.environment;
    let facts = |side| run.facts.get(&EndpointId::new(environment.clone(), side)).map(facts::flat);
    Some(Measured {
        series: series.key.to_string(),
        figures_ns: [value(Metric::Median), value(Metric::Percentile(99.0))],
        outcome: run.outcome,
        facts: [facts(Side::Client), facts(Side::Server)],
    })
}

/// Why a run has no figures.
fn reason_of(run: &RunResult) -> String {
    let failed = run.failures.last().map(|failure| failure.reason.clone());
    let absent = run.not_available.first().map(|one| one.reason.clone());
    failed.or(absent).unwrap_or_else(|| format!("it was ended early ({})", run.state))
}

/// Largest output of a child that is read, bytes.
pub const OUTPUT_BYTES_MAX: u64 = limits::PLAN_BYTES_MAX;
