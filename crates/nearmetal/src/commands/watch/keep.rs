//! The folder of a watch: what is asked for, the log of trials, metrics, and a lock.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_judge::Watched;
use nm_model::watch::{WatchChange, WatchTrial};
use nm_report::watch;
use nm_report::watch_log::{self, Retention, WatchLog};
use nm_sys::complete_file::{self, Origin};
use nm_sys::text_file;
use serde::{Deserialize, Serialize};

use crate::cli::watch::WatchRunArgs;
use crate::exit::{Exit, Stop};
use crate::output;

const REQUEST: &str = "watch.json";
const LOG: &str = "trials.log";
const METRICS: &str = "metrics.prom";
const LOCK: &str = "lock";

/// Largest request, bytes.
const REQUEST_BYTES_MAX: u64 = 1 << 16;

/// Most trials that wait until there is room on the disk.
const WAITING_MAX: usize = 1000;

/// What was asked for.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    plan: String,
    every_s: u64,
}

/// The folder of a watch that runs.
pub struct Keep {
    path: PathBuf,
    log: WatchLog,
    /// Trials that are not on the disk yet.
    waiting: VecDeque<WatchTrial>,
    keep_s: i64,
    bytes_max: u64,
    _lock: File,
}

impl Keep {
    /// Opens the folder of `--keep`, or makes it; with what its trials show.
    ///
    /// # Errors
    /// A conflict if another watch uses it, or if it holds other files; if it cannot be read or
    /// written.
    pub fn open(args: &WatchRunArgs, every_s: u64) -> Result<(Keep, Watched)> {
        let path = args.keep.clone();
        fs::create_dir_all(&path).map_err(|error| output::file_error(&path, &error))?;
        refuse_others(&path)?;
        let lock = locked(&path)?;
        let request = Request { plan: args.plan.clone(), every_s };
        let text = serde_json::to_string_pretty(&request)? + "\n";
        let file = path.join(REQUEST);
        complete_file::replace(&file, text.as_bytes(), Origin::Measured)
            .map_err(|error| output::file_error(&file, &error))?;
        let file = path.join(LOG);
        let (log, trials) = WatchLog::open(&file).map_err(|error| unreadable(&file, &error))?;
        let mut watched = Watched::new(&request.plan, every_s);
        trials.iter().for_each(|trial| {
            watched.take(trial);
        });
        let keep_s = i64::from(args.log_days) * 86_400;
        let (waiting, bytes_max) = (VecDeque::new(), args.log_mib << 20);
        Ok((Keep { path, log, waiting, keep_s, bytes_max, _lock: lock }, watched))
    }

    /// Keeps a trial; the changes that it shows. Where the disk is full it is kept in memory, and
    /// written when there is room.
    pub fn take(&mut self, trial: &WatchTrial, watched: &mut Watched) -> Vec<WatchChange> {
        let changes = watched.take(trial);
        self.waiting.push_back(trial.clone());
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
        }
        if let Err((file, error)) = self.write(watched) {
            output::message(&output::warning(&format!(
                "{file} cannot be written: {error}; watching goes on, and {} are kept in memory",
                nm_report::units::plural(self.waiting.len(), "trial", "trials")
            )));
        }
        changes
    }

    fn write(&mut self, watched: &Watched) -> Result<(), (String, io::Error)> {
        while let Some(trial) = self.waiting.front() {
            let named = |error| (self.path.join(LOG).display().to_string(), error);
            self.log.append(trial).map_err(named)?;
            self.waiting.pop_front();
        }
        let path = self.path.join(METRICS);
        let text = watch::openmetrics(&watched.levels());
        complete_file::replace(&path, text.as_bytes(), Origin::Derived)
            .map_err(|error| (path.display().to_string(), error))
    }

    /// Leaves out what is too old at `at_s`, or does not fit.
    pub fn retain(&mut self, at_s: i64) {
        let retention = Retention { bytes_max: self.bytes_max, oldest_s: at_s - self.keep_s };
        if let Err(error) = self.log.retain(retention) {
            let file = self.path.join(LOG).display().to_string();
            let message = format!("{file} keeps trials that are too old: {error}");
            output::message(&output::warning(&message));
        }
    }
}

/// A folder with files of others is none of a watch, which removes and replaces what it needs.
fn refuse_others(path: &Path) -> Result<()> {
    let mut entries = fs::read_dir(path).map_err(|error| output::file_error(path, &error))?;
    // The lock is there before the request if another watch begins now.
    let is_other = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|it| it.file_name() != LOCK);
    if path.join(REQUEST).exists() || !entries.any(is_other) {
        return Ok(());
    }
    let message =
        format!("{} holds other files and no watch; name a new folder by --keep", path.display());
    Err(Stop::with(Exit::Conflict, message))
}

fn locked(path: &Path) -> Result<File> {
    let file = path.join(LOCK);
    let lock = OpenOptions::new().create(true).append(true).open(&file);
    let lock = lock.map_err(|error| output::file_error(&file, &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "another watch writes into {}; end it, or name another folder by --keep",
                path.display()
            );
            Err(Stop::with(Exit::Conflict, message))
        }
        Err(TryLockError::Error(error)) => Err(output::file_error(&file, &error)),
    }
}

fn unreadable(file: &Path, error: &io::Error) -> anyhow::Error {
    let file = file.display();
    Stop::usage(format!("{file} cannot be read: {error}; move it away to begin anew"))
}

/// What the trials of a folder show, also while a watch runs.
///
/// # Errors
/// If it holds no watch.
pub fn load(folder: &Path) -> Result<Watched> {
    let shown = folder.display();
    let text = text_file::read(&folder.join(REQUEST), REQUEST_BYTES_MAX).map_err(|error| {
        Stop::usage(format!("{shown} holds no watch ({error}); begin one by --keep {shown}"))
    })?;
    let request: Request = serde_json::from_str(&text)
        .map_err(|error| Stop::usage(format!("{shown}/{REQUEST} is damaged: {error}")))?;
    let file = folder.join(LOG);
    let trials = watch_log::read(&file).map_err(|error| unreadable(&file, &error))?;
    let mut watched = Watched::new(&request.plan, request.every_s);
    trials.iter().for_each(|trial| {
        watched.take(trial);
    });
    Ok(watched)
}
