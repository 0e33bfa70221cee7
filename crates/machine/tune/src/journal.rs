//! The folder of journals: one file of JSON lines for each run, only appended to, and synced before
//! anything else happens. A lock keeps two runs apart.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::record::{Begin, FORMAT, FORMAT_OLDEST, Record, RunId};
use crate::run::Run;

/// Where journals are kept without `--state`.
pub const FOLDER: &str = "/var/lib/nearmetal/journal";

/// Longest journal that is read, bytes.
pub const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Most journals in a folder.
pub const JOURNALS_MAX: usize = 10_000;

const EXTENSION: &str = "jsonl";

/// What can be wrong with journals.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or folder.
    #[error("cannot {action} {}: {source}", .path.display())]
    System {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could write what is later written to the machine.
    #[error(
        "{path} must belong to this user and be writable by nobody else; \
         run `chown {euid} {path}; chmod go-w {path}`, or name another folder with --state",
        path = .path.display()
    )]
    NotPrivate {
        /// The folder or file.
        path: PathBuf,
        /// This user.
        euid: u32,
    },
    /// Another process has the lock.
    #[error("another nearmetal works on {}; wait until it has ended", .0.display())]
    Busy(PathBuf),
    /// A line that is not the last one cannot be read.
    #[error(
        "line {line} of {path} is damaged ({reason}): `mv {path} {path}.damaged` lets other runs \
         begin, and each `old` in its lines is a value to put back by hand; a restart of the \
         machine resets them too",
        path = .path.display()
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// The journal does not begin as one, or is of another version.
    #[error("{} is not a journal of this version of nearmetal", .0.display())]
    Foreign(PathBuf),
    /// There is none of this id.
    #[error("there is no run {0}; `nearmetal tune status` lists them")]
    Unknown(RunId),
    /// It is too long, or there are too many.
    #[error("{} exceeds {limit}; move old journals elsewhere", .path.display())]
    TooLarge {
        /// The file or folder.
        path: PathBuf,
        /// What may be.
        limit: String,
    },
}

fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_path_buf();
    move |source| JournalError::System { action, path, source }
}

/// Where the records of a run go.
pub trait Log {
    /// Appends a record; it is on the disk when this returns.
    ///
    /// # Errors
    /// If it is not known to be on the disk.
    fn append(&mut self, record: &Record) -> Result<(), JournalError>;
}

/// The folder of journals.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

/// The right to append to journals; it ends with this value.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Folder {
    /// Opens a folder, and makes it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or somebody else could write to it.
    pub fn open(path: &Path) -> Result<Folder, JournalError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(system("create", path))?;
        check_private(path)?;
        Ok(Folder { path: path.to_path_buf() })
    }

    /// Opens a folder that exists; absent if it does not.
    ///
    /// # Errors
    /// If somebody else could write to it.
    pub fn existing(path: &Path) -> Result<Option<Folder>, JournalError> {
        match fs::symlink_metadata(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(system("open", path)(error)),
        }
        check_private(path)?;
        Ok(Some(Folder { path: path.to_path_buf() }))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// If another process has it.
    pub fn lock(&self) -> Result<Lock, JournalError> {
        let path = self.path.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(system("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(JournalError::Busy(self.path.clone())),
            Err(TryLockError::Error(error)) => Err(system("lock", &path)(error)),
        }
    }

    /// Ids of all runs, oldest first: ids begin with the time.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn ids(&self) -> Result<Vec<RunId>, JournalError> {
        let entries = fs::read_dir(&self.path).map_err(system("read", &self.path))?;
        let mut ids = vec![];
        for entry in entries {
            let path = entry.map_err(system("read", &self.path))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                ids.extend(stem.and_then(|stem| stem.parse::<RunId>().ok()));
            }
        }
        if ids.len() > JOURNALS_MAX {
            let limit = format!("{JOURNALS_MAX} journals");
            return Err(JournalError::TooLarge { path: self.path.clone(), limit });
        }
        ids.sort();
        Ok(ids)
    }

    /// All runs, oldest first.
    ///
    /// # Errors
    /// If a journal cannot be read or is damaged.
    pub fn runs(&self) -> Result<Vec<Run>, JournalError> {
        self.ids()?.iter().filter_map(|id| self.run(id).transpose()).collect()
    }

    /// All runs that can be read, oldest first, and why the others cannot.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn readable_runs(&self) -> Result<(Vec<Run>, Vec<JournalError>), JournalError> {
        let (mut runs, mut errors) = (vec![], vec![]);
        for id in self.ids()? {
            match self.run(&id) {
                Ok(run) => runs.extend(run),
                Err(error) => errors.push(error),
            }
        }
        Ok((runs, errors))
    }

    /// Reads one run. Absent if its first line was never completed, so that nothing was changed.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn run(&self, id: &RunId) -> Result<Option<Run>, JournalError> {
        let path = self.file(id);
        let (records, _) = read(&path).map_err(|error| match error {
            JournalError::System { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                JournalError::Unknown(id.clone())
            }
            other => other,
        })?;
        let Some((first, others)) = records.split_first() else { return Ok(None) };
        match first {
            Record::Begin(begin)
                if (FORMAT_OLDEST..=FORMAT).contains(&begin.format) && begin.run == *id =>
            {
                Run::new(begin.clone(), others).map(Some).ok_or(JournalError::Foreign(path))
            }
            _ => Err(JournalError::Foreign(path)),
        }
    }

    /// Begins the journal of a new run.
    ///
    /// # Errors
    /// If it exists already or cannot be written.
    pub fn begin(&self, begin: &Begin, _lock: &Lock) -> Result<FileLog, JournalError> {
        let path = self.file(&begin.run);
        let mut options = OpenOptions::new();
        options.append(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(system("create", &path))?;
        let mut log = FileLog { file, path };
        log.append(&Record::Begin(begin.clone()))?;
        // The name of the file must survive a power failure too.
        let folder = File::open(&self.path).and_then(|folder| folder.sync_all());
        folder.map_err(system("sync", &self.path))?;
        Ok(log)
    }

    /// Opens the journal of a run to append to it. What a killed writer left of a line is removed.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn resume(&self, id: &RunId, _lock: &Lock) -> Result<FileLog, JournalError> {
        let path = self.file(id);
        let (_, valid_bytes) = read(&path)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(system("open", &path))?;
        file.set_len(valid_bytes).map_err(system("shorten", &path))?;
        file.sync_data().map_err(system("sync", &path))?;
        Ok(FileLog { file, path })
    }

    fn file(&self, id: &RunId) -> PathBuf {
        self.path.join(format!("{id}.{EXTENSION}"))
    }
}

/// A folder or file of this user, which nobody else can write to.
fn check_private(path: &Path) -> Result<(), JournalError> {
    let metadata = fs::symlink_metadata(path).map_err(system("open", path))?;
    let euid = rustix::process::geteuid().as_raw();
    match !metadata.is_symlink() && metadata.uid() == euid && metadata.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(JournalError::NotPrivate { path: path.to_path_buf(), euid }),
    }
}

/// The records of a journal, and how many bytes they take: a last line without its end, or that
/// cannot be parsed, was torn by the death of its writer, who had done nothing after it yet.
fn read(path: &Path) -> Result<(Vec<Record>, u64), JournalError> {
    let file = File::open(path).map_err(system("read", path))?;
    check_private(path)?;
    let mut bytes = vec![];
    file.take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(system("read", path))?;
    if bytes.len() as u64 > JOURNAL_BYTES_MAX {
        let limit = format!("{JOURNAL_BYTES_MAX} bytes");
        return Err(JournalError::TooLarge { path: path.to_path_buf(), limit });
    }
    let (mut records, mut valid_bytes) = (vec![], 0);
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let is_last = lines.peek().is_none();
        if is_last && !line.ends_with(b"\n") {
            break;
        }
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(_) if is_last => break,
            Err(error) => {
                let (path, line) = (path.to_path_buf(), index + 1);
                return Err(JournalError::Damaged { path, line, reason: error.to_string() });
            }
        }
        valid_bytes += line.len() as u64;
    }
    Ok((records, valid_bytes))
}

/// The file of a journal.
#[derive(Debug)]
pub struct FileLog {
    file: File,
    path: PathBuf,
}

impl Log for FileLog {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let to_json = serde_json::to_string(record).map_err(io::Error::from);
        let line = to_json.map_err(system("write", &self.path))? + "\n";
        self.file.write_all(line.as_bytes()).map_err(system("write", &self.path))?;
        self.file.sync_data().map_err(system("sync", &self.path))
    }
}
