//! The trials of a run that is not finished yet: what each of them adds to the result, as one
//! record behind the others.
//!
//! A record is one line: a checksum and JSON. Its size depends on its trial alone, so a run costs
//! the same per trial from the first to the last. [`fold()`] makes the result of the records, at
//! the end of the run or when somebody asks for the result of one that was killed. A record that a
//! crash has cut off is dropped; a damaged one before others is an error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nm_model::factor_check::FactorCheck;
use nm_model::finding::Audit;
use nm_model::result::{Series, TrialFailure};
use nm_model::setting::NanosecondRange;
use nm_model::{
    Doubt, EndpointId, FactorResult, Facts, Failure, GuestRecord, MachineUse, NotAvailable,
    RunResult, SettingKind, SettingValue, Settings,
};
use serde::{Deserialize, Serialize};

use crate::file_failure::failure;
use crate::record_line;

/// Longest record, bytes: more than a trial with the most series and rounds has.
const RECORD_BYTES_MAX: u64 = 256 << 20;

/// What a trial, or what happens beside the trials, adds to a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "is", rename_all = "snake_case")]
pub enum Addition {
    /// The run as it was before the first record.
    Begun(Box<RunResult>),
    /// Facts of an endpoint; the first ones count.
    Facts(EndpointId, Box<Facts>),
    /// Guests of an environment; the first ones count, with the time of their first result.
    Guests(Box<GuestRecord>),
    /// The audit of a machine.
    Audit(Box<Audit>),
    /// Rounds of a series, with a factor of the plan or without one.
    Rounds {
        /// The factor.
        factor: Option<String>,
        /// The series with these rounds alone, without estimates.
        series: Box<Series>,
    },
    /// Whether a factor was in force in a trial.
    Shown {
        /// The factor.
        factor: String,
        /// What was seen.
        check: Box<FactorCheck>,
        /// What limits that.
        note: Option<String>,
    },
    /// A row that cannot run; it counts once.
    NotAvailable {
        /// The factor.
        factor: Option<String>,
        /// The row and the reason.
        missing: NotAvailable,
    },
    /// A sentence about the run, by its name.
    Note(String, String),
    /// A doubt about the run.
    Doubt(Doubt),
    /// A trial that failed.
    Failed(TrialFailure),
    /// What the machine did.
    Machine(MachineUse),
}

/// The file to which a run appends.
#[derive(Debug)]
pub struct TrialLog {
    path: PathBuf,
    file: File,
    /// Length of the complete records, bytes.
    bytes: u64,
}

impl TrialLog {
    /// A new log at `path`.
    ///
    /// # Errors
    /// If there is one already, or it cannot be made.
    pub fn create(path: &Path) -> io::Result<TrialLog> {
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(path)?;
        if let Some(folder) = path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(TrialLog { path: path.to_path_buf(), file, bytes: 0 })
    }

    /// Appends one record and returns when it is on the disk.
    ///
    /// # Errors
    /// If it cannot be written. The records before it stay.
    pub fn append(&mut self, additions: &[Addition]) -> Result<(), Failure> {
        self.write(additions).map_err(|error| failure("write", &self.path, &error))
    }

    fn write(&mut self, additions: &[Addition]) -> io::Result<()> {
        let json = serde_json::to_string(additions).map_err(io::Error::other)?;
        let line = record_line::sealed(&json);
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.bytes += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record would pass for the end of the log.
                let _ = self.file.set_len(self.bytes);
                Err(error)
            }
        }
    }

    /// The result of all records, also of a log that somebody has removed meanwhile; absent if
    /// there is no record.
    ///
    /// # Errors
    /// As those of [`fold()`].
    pub fn result(&mut self) -> Result<Option<RunResult>, Failure> {
        let folded = self.file.seek(SeekFrom::Start(0)).and_then(|_| fold_records(&self.file));
        folded.map_err(|error| failure("read", &self.path, &error))
    }

    /// Removes a log without a record: what fails here has failed before.
    pub fn discard(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The result of a log; absent if it has no complete record.
///
/// # Errors
/// [`ErrorKind::InvalidData`] if a record before the last one is damaged, and those of the file.
pub fn fold(path: &Path) -> io::Result<Option<RunResult>> {
    fold_records(&File::open(path)?)
}

fn fold_records(file: &File) -> io::Result<Option<RunResult>> {
    let mut lines = BufReader::new(file);
    let mut result = None;
    let mut number = 0_u64;
    let mut damaged = None;
    loop {
        let mut line = vec![];
        let mut limited = io::Read::take(&mut lines, RECORD_BYTES_MAX);
        if limited.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Some(number) = damaged {
            let message = format!("record {number} is damaged");
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        number += 1;
        match record(&line) {
            Some(additions) => fold_record(&mut result, additions, number)?,
            None => damaged = Some(number),
        }
    }
    if let Some(result) = &mut result {
        estimate(result);
    }
    Ok(result)
}

/// The additions of a complete line with the right checksum.
fn record(line: &[u8]) -> Option<Vec<Addition>> {
    serde_json::from_str(record_line::opened(line)?).ok()
}

fn fold_record(
    result: &mut Option<RunResult>,
    additions: Vec<Addition>,
    number: u64,
) -> io::Result<()> {
    for addition in additions {
        match (&mut *result, addition) {
            (None, Addition::Begun(begun)) => *result = Some(*begun),
            (Some(result), addition) => {
                add(result, addition);
            }
            (None, _) => {
                let message = format!("record {number} comes before the beginning of the run");
                return Err(io::Error::new(ErrorKind::InvalidData, message));
            }
        }
    }
    Ok(())
}

/// Adds to a result, and says whether that changed it.
pub fn add(result: &mut RunResult, addition: Addition) -> bool {
    match addition {
        Addition::Begun(_) => return false,
        Addition::Facts(endpoint, facts) => {
            if result.facts.contains_key(&endpoint) {
                return false;
            }
            result.facts.insert(endpoint, *facts);
        }
        Addition::Guests(guests) => return add_guests(&mut result.guests, *guests),
        Addition::Audit(audit) => result.audits.push(*audit),
        Addition::Rounds { factor: None, series } => add_rounds(&mut result.series, *series),
        Addition::Rounds { factor: Some(name), series } => {
            let Some(factor) = factor_of(result, &name) else { return false };
            add_rounds(&mut factor.series, *series);
        }
        Addition::Shown { factor, check, note } => {
            let Some(factor) = factor_of(result, &factor) else { return false };
            factor.checks.push(*check);
            if let Some(note) = note.filter(|note| !factor.notes.contains(note)) {
                factor.notes.push(note);
            }
        }
        Addition::NotAvailable { factor, missing } => {
            let known = match factor {
                None => Some(&mut result.not_available),
                Some(name) => factor_of(result, &name).map(|factor| &mut factor.not_available),
            };
            let Some(known) = known.filter(|known| !known.contains(&missing)) else {
                return false;
            };
            known.push(missing);
        }
        Addition::Note(name, sentence) => {
            return result.notes.insert(name, sentence.clone()) != Some(sentence);
        }
        Addition::Doubt(doubt) => result.doubts.push(doubt),
        Addition::Failed(failure) => result.failures.push(failure),
        Addition::Machine(machine) => result.machine = Some(machine),
    }
    true
}

fn add_guests(known: &mut Vec<GuestRecord>, guests: GuestRecord) -> bool {
    match known.iter_mut().find(|one| one.environment == guests.environment) {
        None => known.push(guests),
        Some(one) if one.boot_ms == guests.boot_ms && one.first_result_ms.is_none() => {
            one.first_result_ms = guests.first_result_ms;
            return one.first_result_ms.is_some();
        }
        // Known, or guests that were started again after a failure.
        Some(_) => return false,
    }
    true
}

/// What was measured with a factor of the plan.
fn factor_of<'a>(result: &'a mut RunResult, name: &str) -> Option<&'a mut FactorResult> {
    let known = result.factors.iter().position(|one| one.factor.name == name);
    let at = match known {
        Some(at) => at,
        None => {
            let factors = &result.plan.as_ref()?.factors;
            let factor = factors.iter().find(|factor| factor.name == name)?.clone();
            result.factors.push(FactorResult::new(factor));
            result.factors.len() - 1
        }
    };
    result.factors.get_mut(at)
}

/// Adds rounds to their series.
fn add_rounds(all: &mut Vec<Series>, one: Series) {
    let Some(series) = all.iter_mut().find(|series| series.key == one.key) else {
        all.push(one);
        return;
    };
    if let Some(limit) = cache_line_limit(&one.settings) {
        let widest = cache_line_limit(&series.settings).unwrap_or(limit).widened(limit);
        series.settings.set(SettingKind::CacheLineLimit, SettingValue::Nanoseconds(widest));
    }
    series.rounds.extend(one.rounds);
}

fn cache_line_limit(settings: &Settings) -> Option<NanosecondRange> {
    match settings.get(&SettingKind::CacheLineLimit)? {
        SettingValue::Nanoseconds(range) => Some(*range),
        _ => None,
    }
}

/// Makes the estimates of all series.
pub fn estimate(result: &mut RunResult) {
    let factors = result.factors.iter_mut().flat_map(|factor| &mut factor.series);
    for series in result.series.iter_mut().chain(factors) {
        nm_stats::rounds::estimate(series);
    }
}
