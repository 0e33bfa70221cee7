//! Baselines as files: one for each accepted run, in a folder that git can hold.
//!
//! A file's name begins with the start of its run, so names sort by date. It ends with a digest of
//! its figures, so no two runs have the same name and one run has only one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nm_model::baseline::{BYTES_MAX, Baseline, SCHEMA_VERSION, unit};
use nm_sys::{complete_file, text_file};
use sha2::{Digest, Sha256};

use crate::folder::file_name;

/// Most files of a folder that are read, the last ones by name.
pub const FILES_MAX: usize = 1000;

/// Most names of a folder that are looked at.
const NAMES_MAX: usize = 1_000_000;

/// Most characters of the machine in a file's name.
const MACHINE_CHARS_MAX: usize = 40;

/// How the name of a baseline ends.
const EXTENSION: &str = "json";

/// Why baselines cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// Neither a file nor a folder.
    #[error(
        "there is no baseline {}; `nearmetal baseline save RESULT --to DIR` makes one", .0.display()
    )]
    NotFound(PathBuf),
    /// A file or folder that cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is no baseline.
    #[error("{} is no baseline: {reason}; save it again, or remove it", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A file of another version.
    #[error(
        "{} has version {version} of the baseline format; this nearmetal reads version \
         {SCHEMA_VERSION}", .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The run is in the folder already.
    #[error("this run is saved already, as {}; a run counts once", .0.display())]
    SameRun(PathBuf),
    /// The file exists.
    #[error("{} exists already; name another file with --to, or a folder", .0.display())]
    Exists(PathBuf),
    /// The run has no time.
    #[error("the run has no start, so it has no place in a series; save it as a file of its own")]
    NoStart,
    /// The run has no figure that decides.
    #[error("the run has no primary figure to save")]
    NoFigure,
    /// Too many rows or rounds.
    #[error(
        "the baseline would have {bytes} bytes, {BYTES_MAX} are the most; mark fewer rows of the \
         plan as primary, or measure fewer rounds"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A file or folder that cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BaselineError {
    /// Whether something is there already.
    pub fn is_conflict(&self) -> bool {
        matches!(self, BaselineError::SameRun(_) | BaselineError::Exists(_))
    }
}

/// The accepted runs of a file or folder.
#[derive(Debug)]
pub struct Accepted {
    /// File and content, in the order of the names.
    pub baselines: Vec<(PathBuf, Baseline)>,
    /// Files before the last [`FILES_MAX`], which are not read.
    pub n_not_read: usize,
}

/// A baseline as its file has it.
///
/// # Errors
/// [`BaselineError::TooLarge`].
pub fn json(baseline: &Baseline) -> Result<String, BaselineError> {
    let text = serde_json::to_string_pretty(baseline);
    let text = text.expect("numbers, texts and lists can always be written as JSON") + "\n";
    match text.len() as u64 > BYTES_MAX {
        true => Err(BaselineError::TooLarge { bytes: text.len() }),
        false => Ok(text),
    }
}

/// The name of a baseline in a folder: start, machine, digest.
fn name(baseline: &Baseline) -> Result<String, BaselineError> {
    let started = baseline.started.as_ref().ok_or(BaselineError::NoStart)?;
    let start: String = started.chars().filter(|c| !"-:".contains(*c)).collect();
    let machine: String = baseline.machine.to_string().chars().take(MACHINE_CHARS_MAX).collect();
    Ok(file_name(&format!("{start}-{machine}-{}.{EXTENSION}", digest(baseline))))
}

/// What tells runs apart: start, machine and figures. The name of the folder is no part of it.
fn digest(baseline: &Baseline) -> String {
    let what = (&baseline.started, &baseline.machine, &baseline.figures);
    let content = serde_json::to_vec(&what).unwrap_or_default();
    Sha256::digest(&content).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `--to` names a folder: one that exists, or a name without `.json`.
fn is_folder(to: &Path) -> bool {
    to.is_dir() || to.extension().is_none_or(|extension| extension != EXTENSION)
}

/// Saves a baseline as a new file, or as one in a folder, which is created.
///
/// # Errors
/// If it is too large, was saved already, or cannot be written.
pub fn save(to: &Path, baseline: &Baseline) -> Result<PathBuf, BaselineError> {
    if baseline.figures.is_empty() {
        return Err(BaselineError::NoFigure);
    }
    let text = json(baseline)?;
    let write = |path: &Path| {
        let path = path.to_path_buf();
        move |source| BaselineError::Write { path, source }
    };
    let path = match is_folder(to) {
        false => to.to_path_buf(),
        true => {
            let name = name(baseline)?;
            fs::create_dir_all(to).map_err(write(to))?;
            let suffix = format!("{}.{EXTENSION}", digest(baseline));
            if let Some(same) = names(to)?.into_iter().find(|known| known.ends_with(&suffix)) {
                return Err(BaselineError::SameRun(to.join(same)));
            }
            to.join(name)
        }
    };
    complete_file::create(&path, text.as_bytes(), 0o644).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => BaselineError::Exists(path.clone()),
        _ => write(&path)(error),
    })?;
    Ok(path)
}

/// The names of the baselines of a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>, BaselineError> {
    let read = |source| BaselineError::Read { path: folder.to_path_buf(), source };
    let mut names = vec![];
    for entry in fs::read_dir(folder).map_err(read)?.take(NAMES_MAX) {
        let name = entry.map_err(read)?.file_name();
        let name = name.to_string_lossy();
        let is_hidden = name.starts_with('.');
        if !is_hidden && Path::new(&*name).extension().is_some_and(|found| found == EXTENSION) {
            names.push(name.into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads the baseline of a file, or those of a folder.
///
/// # Errors
/// If there is nothing of that name, or one of the files is no baseline.
pub fn load(from: &Path) -> Result<Accepted, BaselineError> {
    if !from.is_dir() {
        let baselines = vec![(from.to_path_buf(), load_file(from)?)];
        return Ok(Accepted { baselines, n_not_read: 0 });
    }
    let names = names(from)?;
    let n_not_read = names.len().saturating_sub(FILES_MAX);
    let paths = names.into_iter().skip(n_not_read).map(|name| from.join(name));
    let baselines: Result<_, _> =
        paths.map(|path| load_file(&path).map(|baseline| (path, baseline))).collect();
    Ok(Accepted { baselines: baselines?, n_not_read })
}

/// The one field that every version of the format has.
#[derive(serde::Deserialize)]
struct Version {
    schema: u32,
}

fn load_file(path: &Path) -> Result<Baseline, BaselineError> {
    let text = text_file::read(path, BYTES_MAX).map_err(|source| match source.kind() {
        ErrorKind::NotFound => BaselineError::NotFound(path.to_path_buf()),
        _ => BaselineError::Read { path: path.to_path_buf(), source },
    })?;
    parse(&text, path)
}

/// Reads a baseline; `path` is what an error names.
///
/// # Errors
/// If it is damaged, of another version, or holds what no run has.
pub fn parse(text: &str, path: &Path) -> Result<Baseline, BaselineError> {
    let damaged = |reason: String| BaselineError::Damaged { path: path.to_path_buf(), reason };
    let version: Version = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    if version.schema != SCHEMA_VERSION {
        let version = version.schema;
        return Err(BaselineError::Version { path: path.to_path_buf(), version });
    }
    let baseline: Baseline = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    match fault(&baseline) {
        Some(fault) => Err(damaged(fault)),
        None => Ok(baseline),
    }
}

/// What a baseline holds that no run has.
pub(crate) fn fault(baseline: &Baseline) -> Option<String> {
    let is_time = |text: &String| text.parse::<jiff::Timestamp>().is_ok();
    if !baseline.started.iter().all(is_time) {
        return Some("its start is no time".to_string());
    }
    let is_value = |value: &f64| (0.0..1e300).contains(value);
    baseline.figures.iter().find_map(|figure| match () {
        () if figure.rounds.is_empty() || !figure.rounds.iter().all(is_value) => {
            Some(format!("the rounds of {} are no figures", figure.key))
        }
        () if figure.unit != unit(figure.key.metric) => {
            Some(format!("the unit of {} is {}", figure.key, figure.unit))
        }
        () => None,
    })
}
