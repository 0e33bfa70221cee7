//! The trials of a watched machine as a file: one record behind the others, each on the disk before
//! the next trial begins. The end that a crash has cut off is dropped when the file is opened.
//!
//! The file keeps what is young enough and fits. It is written anew without the rest at the start,
//! and whenever it has outgrown its size.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use nm_model::watch::WatchTrial;
use nm_sys::complete_file::{self, Origin};

use crate::record_line;

/// Longest record, bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// What a log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Largest file, bytes.
    pub bytes_max: u64,
    /// Trials that began before this time are left out, seconds since 1970.
    pub oldest_s: i64,
}

/// A log that grows.
#[derive(Debug)]
pub struct WatchLog {
    path: PathBuf,
    file: File,
    /// Length of the complete records.
    bytes: u64,
    /// When the oldest trial began, seconds since 1970.
    first_s: Option<i64>,
}

impl WatchLog {
    /// Opens the log at `path`, or makes one; with its trials.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if a record before the last one is damaged; those of a file.
    pub fn open(path: &Path) -> io::Result<(WatchLog, Vec<WatchTrial>)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let (trials, bytes) = read_records(&file)?;
        file.set_len(bytes)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        let first_s = trials.first().map(|trial| trial.at_s);
        Ok((WatchLog { path: path.to_path_buf(), file, bytes, first_s }, trials))
    }

    /// Appends a trial and returns when it is on the disk. One whose record would be too long to be
    /// read again is kept as a failure.
    ///
    /// # Errors
    /// Those of the file. The records before it stay, and nothing of this one.
    pub fn append(&mut self, trial: &WatchTrial) -> io::Result<()> {
        let mut line = sealed(trial)?;
        if line.len() as u64 > RECORD_BYTES_MAX {
            let failure = Some(format!("its record has more than {RECORD_BYTES_MAX} bytes"));
            let trial = WatchTrial { figures: vec![], facts: None, failure, ..trial.clone() };
            line = sealed(&trial)?;
        }
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.bytes += line.len() as u64;
                self.first_s.get_or_insert(trial.at_s);
            }
            // Half a record would pass for the end of the log.
            Err(_) => self.file.set_len(self.bytes)?,
        }
        written
    }

    /// Writes the log anew if it holds what is not kept.
    ///
    /// # Errors
    /// Those of the file; the log is then as it was.
    pub fn retain(&mut self, retention: Retention) -> io::Result<()> {
        let is_old = self.first_s.is_some_and(|first_s| first_s < retention.oldest_s);
        if self.bytes <= retention.bytes_max && !is_old {
            return Ok(());
        }
        let (trials, _) = read_records(&File::open(&self.path)?)?;
        let trials = kept(trials, retention)?;
        let text = trials.iter().map(sealed).collect::<io::Result<String>>()?;
        complete_file::replace(&self.path, text.as_bytes(), Origin::Measured)?;
        self.file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        self.bytes = text.len() as u64;
        self.first_s = trials.first().map(|trial| trial.at_s);
        Ok(())
    }
}

fn sealed(trial: &WatchTrial) -> io::Result<String> {
    Ok(record_line::sealed(&serde_json::to_string(trial)?))
}

/// The trials that are kept. Of a file that is too large a quarter goes, so that it is not written
/// anew after each trial. The first one has all facts.
fn kept(mut trials: Vec<WatchTrial>, retention: Retention) -> io::Result<Vec<WatchTrial>> {
    let mut room = retention.bytes_max / 4 * 3;
    let mut first = trials.len();
    while let Some(trial) = first.checked_sub(1).and_then(|at| trials.get(at)) {
        let bytes = sealed(trial)?.len() as u64;
        if trial.at_s < retention.oldest_s || bytes > room {
            break;
        }
        room -= bytes;
        first -= 1;
    }
    let facts = trials.iter().take(first + 1).rev().find_map(|trial| trial.facts.clone());
    let mut kept = trials.split_off(first);
    if let Some(trial) = kept.first_mut() {
        trial.facts = facts;
    }
    Ok(kept)
}

/// The trials of a log.
///
/// # Errors
/// As those of [`WatchLog::open`].
pub fn read(path: &Path) -> io::Result<Vec<WatchTrial>> {
    Ok(read_records(&File::open(path)?)?.0)
}

/// The trials, and the length of their records.
fn read_records(file: &File) -> io::Result<(Vec<WatchTrial>, u64)> {
    let mut lines = BufReader::new(file);
    let (mut trials, mut bytes) = (vec![], 0);
    let mut damaged = None;
    loop {
        let mut line = vec![];
        if lines.by_ref().take(RECORD_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok((trials, bytes));
        }
        if let Some(number) = damaged {
            let message = format!("record {number} is damaged");
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        match record_line::opened(&line).and_then(|json| serde_json::from_str(json).ok()) {
            Some(trial) => {
                trials.push(trial);
                bytes += line.len() as u64;
            }
            None => damaged = Some(trials.len() + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nm_model::watch::WatchCost;

    use super::*;

    fn trial(at_s: i64, kernel: Option<&str>) -> WatchTrial {
        let facts = |kernel: &str| BTreeMap::from([("kernel".to_string(), kernel.to_string())]);
        WatchTrial {
            at_s,
            cost: WatchCost::default(),
            plan: None,
            figures: vec![],
            failure: Some("no figure".to_string()),
            facts: kernel.map(facts),
        }
    }

    #[test]
    fn a_torn_end_is_dropped_and_a_damaged_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, trials) = WatchLog::open(&path).unwrap();
        assert!(trials.is_empty());
        (0..3).for_each(|at| log.append(&trial(at, Some("6.1"))).unwrap());
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut log, trials) = WatchLog::open(&path).unwrap();
            let n = whole[..end].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(trials.len(), n, "cut off at {end}");
            log.append(&trial(9, None)).unwrap();
            assert_eq!(read(&path).unwrap().len(), n + 1);
        }
        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "record 1 is damaged");
    }

    #[test]
    fn a_record_that_is_too_long_is_a_failure_and_the_log_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, _) = WatchLog::open(&path).unwrap();
        log.append(&trial(1, Some(&"x".repeat(RECORD_BYTES_MAX as usize)))).unwrap();
        log.append(&trial(2, Some("6.1"))).unwrap();
        let trials = read(&path).unwrap();
        assert_eq!((trials.len(), &trials[0].facts), (2, &None));
        let failure = trials[0].failure.as_deref();
        assert_eq!(failure, Some("its record has more than 1048576 bytes"));
    }

    #[test]
    fn what_is_too_old_or_does_not_fit_is_left_out_and_facts_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, _) = WatchLog::open(&path).unwrap();
        (0..100).for_each(|at| log.append(&trial(at, (at == 0).then_some("6.1"))).unwrap());
        let all = std::fs::metadata(&path).unwrap().len();
        log.retain(Retention { bytes_max: all, oldest_s: 40 }).unwrap();
        let kept = read(&path).unwrap();
        assert_eq!((kept.len(), kept[0].at_s), (60, 40));
        assert_eq!(kept[0].facts, trial(0, Some("6.1")).facts);
        log.append(&trial(100, None)).unwrap();
        let bytes_max = std::fs::metadata(&path).unwrap().len() / 2;
        log.retain(Retention { bytes_max, oldest_s: 0 }).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() <= bytes_max);
        let kept = read(&path).unwrap();
        assert_eq!(kept.last().unwrap().at_s, 100);
        assert_eq!(kept[0].facts, trial(0, Some("6.1")).facts);
    }
}
