//! The folder of one run: `trials.log` grows by a record after every trial; at the end the result
//! and the reports take its place.
//!
//! Files are replaced completely or not at all ([`nm_sys::complete_file`]): a crash loses only what
//! was not saved yet. A run that was killed has a log and no result, and is read from that.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nm_model::result::{SCHEMA_VERSION, Series, Source};
use nm_model::v1::RunResultV1;
use nm_model::{Failure, FailureKind, RunResult, SeriesKey, limits};
use nm_stats::rounds;
use nm_sys::complete_file::{self, Origin};
use nm_sys::text_file;

use crate::file_failure::failure;
pub use crate::file_names::{REPORT, RESULT, SUMMARY, TRIALS};
use crate::probes::pingpong::sfnt;
use crate::trial_log::{self, TrialLog};
use crate::{consistency, csv, hlog, html, junit, markdown, openmetrics, summary};

/// Name of the reference runs that the report draws, kept so that it can be made again.
pub const REFERENCES: &str = "references.json";

/// Most runs of one name in one folder.
const SAME_NAME_MAX: u32 = 1000;

/// A folder that holds, or will hold, one run.
#[derive(Debug)]
pub struct ResultFolder {
    path: PathBuf,
    /// Holds the lock of a folder that is being written, see [`lock`].
    _lock: Option<File>,
}

impl ResultFolder {
    /// Creates the folder `name` in `out` and checks that it is writable, so that a wrong path is
    /// reported before anything is measured. A name that another run has is continued by a number.
    ///
    /// # Errors
    /// If it cannot be made or written to.
    pub fn create(out: &Path, name: &str) -> Result<ResultFolder, Failure> {
        let name = file_name(name);
        let mut created = ResultFolder::at(&out.join(&name));
        for number in 2..=SAME_NAME_MAX {
            match &created {
                Err(failure) if failure.kind == FailureKind::Conflict => {
                    created = ResultFolder::at(&out.join(format!("{name}-{number}")));
                }
                _ => break,
            }
        }
        created
    }

    /// Uses `path` as the folder, creates it if it is missing, and checks that it is writable. No
    /// other run can use it as long as this value exists.
    ///
    /// # Errors
    /// If it cannot be made or written to; [`FailureKind::Conflict`] if another run writes into it,
    /// or if it already holds a result with figures. One that measured nothing gives its place up.
    pub fn at(path: &Path) -> Result<ResultFolder, Failure> {
        fs::create_dir_all(path).map_err(|error| failure("make the folder", path, &error))?;
        let lock = lock_unoccupied(path)?;
        remove_empty_result(path)?;
        let folder = ResultFolder { path: path.to_path_buf(), _lock: lock };
        complete_file::check_writable(path).map_err(|error| failure("write into", path, &error))?;
        Ok(folder)
    }

    /// Checks that [`ResultFolder::at`] would find no other run in `path`, and makes nothing.
    ///
    /// # Errors
    /// [`FailureKind::Conflict`] if another run writes into it, or if it already holds a result.
    pub fn check_unoccupied(path: &Path) -> Result<(), Failure> {
        lock_unoccupied(path).map(drop)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the report is, or will be.
    pub fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// Writes another file that belongs to the run, or replaces it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        write(&self.path.join(name), text, Origin::Measured)
    }

    /// A new log of trials.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn trial_log(&self) -> Result<TrialLog, Failure> {
        let path = self.path.join(TRIALS);
        TrialLog::create(&path).map_err(|error| failure("write", &path, &error))
    }

    /// Writes the published runs that the report draws beside the result, if there are any.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn references(&self, references: &[RunResult]) -> Result<(), Failure> {
        match references.is_empty() {
            true => Ok(()),
            false => write(&self.path.join(REFERENCES), &json(&references)?, Origin::Measured),
        }
    }

    /// Writes the result.
    ///
    /// # Errors
    /// If it cannot be written. The result saved before stays intact.
    pub fn save(&self, result: &RunResult, references: &[RunResult]) -> Result<(), Failure> {
        write(&self.path.join(RESULT), &json(result)?, Origin::Measured)?;
        self.references(references)
    }

    /// Writes all samples of one round, one value in ns a line, as `samples/SERIES-ROUND.dat`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn samples(&self, key: &SeriesKey, round: u32, samples_ns: &[u32]) -> Result<(), Failure> {
        let folder = self.path.join("samples");
        fs::create_dir_all(&folder).map_err(|error| failure("make the folder", &folder, &error))?;
        let mut text = String::with_capacity(samples_ns.len() * 6);
        for ns in samples_ns {
            text += &format!("{ns}\n");
        }
        let file = folder.join(format!("{}-{round}.dat", series_name(key)));
        write(&file, &text, Origin::Measured)
    }

    /// Removes logs of agents that wrote nothing.
    ///
    /// # Errors
    /// If the folder cannot be read, or a log cannot be removed.
    pub fn remove_empty_logs(&self) -> Result<(), Failure> {
        let entries = fs::read_dir(&self.path).map_err(|e| failure("read", &self.path, &e))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_empty = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.len() == 0);
            if is_empty && path.extension().is_some_and(|extension| extension == "log") {
                fs::remove_file(&path).map_err(|error| failure("remove", &path, &error))?;
            }
        }
        Ok(())
    }

    /// Writes the result, which takes the place of the log of trials, and all its reports.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(&self, result: &RunResult, references: &[RunResult]) -> Result<(), Failure> {
        self.save(result, references)?;
        remove(&self.path.join(TRIALS))?;
        self.write_reports(result, references)
    }

    fn write_reports(&self, result: &RunResult, references: &[RunResult]) -> Result<(), Failure> {
        for (name, text) in report_files(result, references) {
            let path = self.path.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)
                    .map_err(|error| failure("make the folder", parent, &error))?;
            }
            write(&path, &text, Origin::Derived)?;
        }
        Ok(())
    }
}

fn remove(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failure("remove", file, &error)),
        _ => Ok(()),
    }
}

/// Locks a folder that holds no result with figures.
fn lock_unoccupied(path: &Path) -> Result<Option<File>, Failure> {
    let lock = lock(path)?;
    let has = |name: &str| path.join(name).exists();
    if (has(RESULT) || has(TRIALS)) && !has_measured_nothing(path) {
        let holder = load(path).map(|run| format!(" of `{}`", run.name)).unwrap_or_default();
        return Err(Failure::new(
            FailureKind::Conflict,
            format!("{} already holds the result{holder}", path.display()),
        )
        .hint("name another folder with --out, or move that one away"));
    }
    Ok(lock)
}

/// Whether the run in the folder measured nothing, so that the folder can be used again.
fn has_measured_nothing(path: &Path) -> bool {
    let measured_nothing = |run: &RunResult| {
        let is_own = matches!(run.source, Source::Measured { .. });
        is_own && run.series.is_empty() && run.factors.iter().all(|one| one.series.is_empty())
    };
    let is_empty_log = !path.join(RESULT).exists()
        && trial_log::fold(&path.join(TRIALS)).is_ok_and(|result| result.is_none());
    is_empty_log || load(path).as_ref().is_ok_and(measured_nothing)
}

/// Removes the result of a run that measured nothing: a report of the next run would take it for a
/// part of its own.
fn remove_empty_result(path: &Path) -> Result<(), Failure> {
    [RESULT, TRIALS, REFERENCES].iter().try_for_each(|name| remove(&path.join(name)))
}

/// Locks a folder (`flock`), so that of two runs that name it, also at the same time, one is
/// refused. The kernel removes the lock when the process ends, in whichever way, and no file is
/// left behind. Without a lock where the file system has none.
fn lock(path: &Path) -> Result<Option<File>, Failure> {
    let Ok(folder) = File::open(path) else { return Ok(None) };
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => {
            let message = format!("another run is writing its result into {}", path.display());
            Err(Failure::new(FailureKind::Conflict, message).hint("name another folder with --out"))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// All reports as files: name in the folder, content.
pub fn report_files(result: &RunResult, references: &[RunResult]) -> Vec<(String, String)> {
    let mut files = vec![
        (REPORT.to_string(), html::report(result, references)),
        ("report.md".to_string(), markdown::report(result)),
        (SUMMARY.to_string(), summary::report(result)),
        ("series.csv".to_string(), csv::long(result)),
        ("junit.xml".to_string(), junit::report(result)),
        ("metrics.prom".to_string(), openmetrics::text(result)),
    ];
    let mut taken = BTreeMap::new();
    for sweep in sfnt::sweeps(result) {
        let stem = unique(&mut taken, &format!("{}-{}", sweep.environment, sweep.stack));
        files.push((format!("sfnt/{stem}.csv"), csv::sweep(&sweep)));
    }
    taken.clear();
    for series in &result.series {
        if let Some(log) = hlog::log(result, series) {
            let name = unique(&mut taken, &series_name(&series.key));
            files.push((format!("samples/{name}.hlog"), log));
        }
    }
    files
}

/// A series as a file name.
fn series_name(key: &SeriesKey) -> String {
    let SeriesKey { environment, stack, probe, case, statistic } = key;
    file_name(&format!("{environment}-{stack}-{probe}-{case}-{statistic}"))
}

/// `text` as a file name: letters, digits and `-_.+` stay, all else becomes `_`; never empty,
/// hidden or long.
pub fn file_name(text: &str) -> String {
    const LENGTH_MAX: usize = 120;
    let keep = |c: char| if c.is_ascii_alphanumeric() || "-_.+".contains(c) { c } else { '_' };
    let name: String = text.chars().map(keep).take(LENGTH_MAX).collect();
    match name.starts_with('.') || name.is_empty() {
        true => format!("_{name}"),
        false => name,
    }
}

/// A file name that is not yet in `taken`, ignoring case. `taken` has the last number by which each
/// name was continued, so that of many equal ones each is not compared with all before it.
fn unique(taken: &mut BTreeMap<String, u32>, text: &str) -> String {
    let stem = file_name(text);
    let mut number = taken.get(&stem.to_lowercase()).copied().unwrap_or(1);
    let mut name = stem.clone();
    while taken.contains_key(&name.to_lowercase()) {
        number += 1;
        name = format!("{stem}-{number}");
    }
    taken.insert(stem.to_lowercase(), number);
    taken.entry(name.to_lowercase()).or_insert(1);
    name
}

/// Reads a result: a folder, a `result.json`, a `report.html` that holds one, or the `trials.log`
/// of a run that was killed.
///
/// # Errors
/// If it cannot be read, is damaged (with the line) or has a newer format.
pub fn load(path: &Path) -> Result<RunResult, Failure> {
    let log = path.join(TRIALS);
    let file = match path.is_dir() {
        true if log.exists() => log,
        true => path.join(RESULT),
        false => path.to_path_buf(),
    };
    if file.ends_with(TRIALS) {
        return load_log(&file);
    }
    let text = text_file::read(&file, limits::RESULT_BYTES_MAX).map_err(|error| {
        let failure = failure("read", &file, &error);
        match error.kind() {
            ErrorKind::NotFound => failure.hint("give a result folder, result.json or report.html"),
            _ => failure,
        }
    })?;
    let json = match file.extension().is_some_and(|e| e == "html") {
        true => html::embedded(&text).ok_or_else(|| {
            Failure::new(
                FailureKind::BadRequest,
                format!("{} holds no nearmetal result", file.display()),
            )
        })?,
        false => &text,
    };
    parse(json, &file.display().to_string())
}

/// The result of a log of trials, so far.
fn load_log(file: &Path) -> Result<RunResult, Failure> {
    let name = file.display();
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    let folded = trial_log::fold(file).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => bad(format!("{name} is not a log of trials: {error}")),
        _ => failure("read", file, &error),
    })?;
    let mut result = folded.ok_or_else(|| bad(format!("{name} ends before its first trial")))?;
    check_version(&Version { schema: result.schema }, &name.to_string())?;
    drop_partial_estimates(&mut result);
    consistency::check(&result, &name.to_string())?;
    Ok(result)
}

/// The one field that every version of the format has.
#[derive(serde::Deserialize)]
struct Version {
    schema: u32,
}

/// Reads the JSON of a result; `name` is what an error calls it.
///
/// # Errors
/// If it is damaged (with the line), cannot be what a run has written, or has a newer format.
pub fn parse(json: &str, name: &str) -> Result<RunResult, Failure> {
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    let damaged = |error: serde_json::Error| match error.is_eof() {
        true => bad(format!("{name} ends too early, at line {}", error.line()))
            .hint("it was cut off; copy it again or repeat the run"),
        false => bad(format!("{name} is not a nearmetal result: {error}")),
    };
    let version: Version = serde_json::from_str(json).map_err(damaged)?;
    check_version(&version, name)?;
    let mut result = match version.schema {
        1 => serde_json::from_str::<RunResultV1>(json).map(RunResult::from).map_err(damaged)?,
        _ => serde_json::from_str(json).map_err(damaged)?,
    };
    drop_partial_estimates(&mut result);
    consistency::check(&result, name)?;
    Ok(result)
}

/// The versions of the format that can be read.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=SCHEMA_VERSION;

fn check_version(Version { schema }: &Version, name: &str) -> Result<(), Failure> {
    if VERSIONS.contains(schema) {
        return Ok(());
    }
    let failure = Failure::new(
        FailureKind::BadRequest,
        format!(
            "{name} has format version {schema}; this nearmetal reads the versions {} to {}",
            VERSIONS.start(),
            VERSIONS.end()
        ),
    );
    let is_newer = schema > VERSIONS.end();
    Err(failure.hint(match is_newer {
        true => "use a newer nearmetal",
        false => "there was never such a version: the file was changed; repeat the run",
    }))
}

/// Removes the estimates that older versions made of percentiles that only some rounds have.
fn drop_partial_estimates(result: &mut RunResult) {
    for Series { rounds, estimates, .. } in &mut result.series {
        estimates.retain(|estimate| rounds::figure(rounds, estimate.metric).is_some());
    }
}

/// Writes all reports of a folder again from its result, with the same bytes if `check` leaves it
/// as it is. `path` is the folder, or its result or report. Gives the result and the report's path.
///
/// # Errors
/// If the result or the references cannot be read, or a file cannot be written.
pub fn rebuild(
    path: &Path,
    check: impl FnOnce(&mut RunResult),
) -> Result<(RunResult, PathBuf), Failure> {
    let folder = folder_of(path)?;
    let mut result = load(&folder.path)?;
    let references = load_references(&folder.path)?;
    check(&mut result);
    let is_running = lock(&folder.path).is_err();
    match is_running {
        // Its log is the result, to which it appends.
        true => folder.write_reports(&result, &references)?,
        false => folder.finish(&result, &references)?,
    }
    Ok((result, folder.report()))
}

/// The folder that is named by itself, or by its result or report. Another file is refused: the
/// reports of a folder are those of the result in it.
fn folder_of(path: &Path) -> Result<ResultFolder, Failure> {
    let folder = match path.parent() {
        Some(parent) if path.is_file() => {
            let is_part = [RESULT, REPORT, TRIALS].iter().any(|name| path.ends_with(name));
            if !is_part {
                let message =
                    format!("{} is neither {RESULT} nor {REPORT} of a folder", path.display());
                let failure = Failure::new(FailureKind::BadRequest, message);
                return Err(failure.hint("give a result folder"));
            }
            // The parent of a name alone is empty.
            Path::new(".").join(parent)
        }
        _ => path.to_path_buf(),
    };
    Ok(ResultFolder { path: folder, _lock: None })
}

/// The reference runs kept in a folder; none if there is no such file.
///
/// # Errors
/// If the file cannot be read or is damaged.
pub fn load_references(path: &Path) -> Result<Vec<RunResult>, Failure> {
    let file = path.join(REFERENCES);
    match text_file::read(&file, limits::RESULT_BYTES_MAX) {
        Ok(text) => parse_references(&text, &file.display().to_string()).map_err(|failure| {
            failure.hint("delete it; the report is then made without reference runs")
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(failure("read", &file, &error)),
    }
}

/// Reference runs of one version of the format.
fn parse_references(json: &str, name: &str) -> Result<Vec<RunResult>, Failure> {
    let damaged = |error: serde_json::Error| {
        Failure::new(FailureKind::BadRequest, format!("{name} is damaged: {error}"))
    };
    let versions: Vec<Version> = serde_json::from_str(json).map_err(damaged)?;
    versions.iter().try_for_each(|version| check_version(version, name))?;
    if versions.iter().any(|version| version.schema == 1) {
        let old: Vec<RunResultV1> = serde_json::from_str(json).map_err(damaged)?;
        return Ok(old.into_iter().map(RunResult::from).collect());
    }
    serde_json::from_str(json).map_err(damaged)
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| {
        Failure::new(FailureKind::System, format!("the result cannot be written as JSON: {error}"))
    })
}

/// Writes a file of the folder, in place of one of that name.
fn write(path: &Path, text: &str, origin: Origin) -> Result<(), Failure> {
    complete_file::replace(path, text.as_bytes(), origin)
        .map_err(|error| failure("write", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_two_series_never_collide() {
        let mut taken = BTreeMap::new();
        assert_eq!(unique(&mut taken, "netns/tcp 64 B"), "netns_tcp_64_B");
        assert_eq!(unique(&mut taken, "netns_TCP_64 B"), "netns_TCP_64_B-2");
        assert_eq!(unique(&mut taken, "netns_TCP_64_B-2"), "netns_TCP_64_B-2-2");
        assert_eq!(unique(&mut taken, "netns_TCP_64 B"), "netns_TCP_64_B-3");
    }

    #[test]
    fn only_versions_that_there_are_are_read() {
        let json = include_str!("../tests/data/quick.json");
        let current = format!("\"schema\":{SCHEMA_VERSION}");
        assert_eq!(json.matches(&current).count(), 1);
        for (version, hint) in [("0", "was changed"), ("3", "newer"), ("4294967295", "newer")] {
            let other = json.replace(&current, &format!("\"schema\":{version}"));
            let refused = parse(&other, "it").unwrap_err();
            let text =
                format!("it has format version {version}; this nearmetal reads the versions");
            assert!(refused.message.starts_with(&text), "{refused}");
            assert!(refused.hint.as_deref().unwrap().contains(hint), "{refused}");
            let refused = parse_references(&format!("[{other}]"), "it").unwrap_err();
            assert!(refused.message.starts_with(&text), "{refused}");
        }
        assert!(parse(json, "it").is_ok());
    }

    #[test]
    fn a_file_is_no_place_for_a_result() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("run");
        fs::write(&file, "a file").unwrap();
        let refused = ResultFolder::at(&file).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
        let below = ResultFolder::create(&file, "run").unwrap_err();
        assert_eq!(below.kind, FailureKind::BadRequest, "{below}");
        // The name is taken: it is continued by a number.
        let beside = ResultFolder::create(place.path(), "run").unwrap();
        assert_eq!(beside.path(), place.path().join("run-2"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "a file");
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_safe_file_name(text in "\\PC{0,200}") {
            let name = file_name(&text);
            prop_assert!(!name.is_empty() && name.len() <= 121);
            prop_assert!(!name.starts_with('.') && !name.contains('/'));
        }

        #[test]
        fn any_text_is_read_as_a_result_or_refused(text in "\\PC{0,200}") {
            prop_assert!(parse(&text, "it").is_err());
        }
    }
}
