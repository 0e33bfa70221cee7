//! The journal: records in order on disk, in files of one size that are filled with zeros before
//! they are used, so that a sync writes data and no metadata.
//!
//! Records are appended to a buffer; [`Journal::sync`] writes all of them at once and waits for the
//! disk once. What a crash left half written at the end is cut off when the journal is opened;
//! damage before the end is refused, because what was promised would be missing (see [`segment`]
//! for how the two are told apart). After a failed write or sync, nothing is accepted any more:
//! what the disk holds is then unknown.

pub mod segment;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};

use segment::{HEADER_BYTES, Place, RECORD_BYTES};

/// What a record holds, one byte for whoever writes it.
pub type Kind = u8;

/// Kind of the records that hold a batch (see [`crate::batch`]).
pub const BATCH: Kind = 0;

/// How a journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Size of each file, bytes. A record must fit one.
    pub segment_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { segment_bytes: 64 << 20 }
    }
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number; each is one more than the one before.
    pub index: u64,
    /// Under whom it was written: rises with each change of leader.
    pub term: u64,
    /// What it holds.
    pub kind: Kind,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Bytes of a half-written end, which is cut off.
    pub torn_bytes: u64,
}

/// One file.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    first: u64,
    /// Where each record begins; it ends where the next one begins, or at `end`.
    starts: Vec<u64>,
    end: u64,
}

impl Segment {
    /// Index after its last record.
    fn next(&self) -> u64 {
        self.first + self.starts.len() as u64
    }
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    settings: Settings,
    segments: Vec<Segment>,
    file: Option<File>,
    /// The next file, in the making.
    spare: Option<JoinHandle<io::Result<PathBuf>>>,
    /// Records that are not written yet, for the end of the last segment.
    waiting: Vec<u8>,
    /// Index up to which the disk has everything.
    durable: u64,
    /// Why nothing is accepted any more.
    failed: Option<Failure>,
}

/// Name of the file in the making.
const SPARE: &str = "spare.tmp";

impl Journal {
    /// Opens the journal in a folder, which is made if it is missing. Records before `from` are
    /// checked but not handed out.
    ///
    /// # Errors
    /// If the folder cannot be used, or a record before the end is damaged.
    pub fn open(folder: &Path, settings: Settings, from: u64) -> Result<(Journal, Found), Failure> {
        let wrong = |what: &str, error: io::Error| failure(folder, what, &error);
        fs::create_dir_all(folder).map_err(|error| wrong("cannot be made", error))?;
        let mut found = Found::default();
        let mut segments = vec![];
        let mut reader = Reader::open(folder)?;
        while let Some(scanned) = reader.next_segment()? {
            let Scanned { path, first, places, end, torn_bytes, bytes } = scanned;
            found.torn_bytes += torn_bytes;
            let wanted = places.iter().filter(|place| place.index >= from);
            found.records.extend(wanted.map(|place| record(place, &bytes)));
            let starts = places.iter().map(|place| place.start as u64).collect();
            segments.push(Segment { path, first, starts, end });
        }
        let durable = segments.last().map_or(0, |last| last.next() - 1);
        let mut journal = Journal {
            folder: folder.to_path_buf(),
            settings,
            segments,
            file: None,
            spare: None,
            waiting: vec![],
            durable,
            failed: None,
        };
        if let Some(last) = journal.segments.last() {
            let file = cut(&last.path, last.end, settings.segment_bytes)
                .map_err(|error| wrong("cannot be written", error))?;
            journal.file = Some(file);
        }
        journal.prepare();
        Ok((journal, found))
    }

    /// Index of the first record that is kept, and of the last; none if there is no record.
    pub fn span(&self) -> Option<(u64, u64)> {
        let first = self.segments.iter().find(|segment| !segment.starts.is_empty())?.first;
        Some((first, self.next()? - 1))
    }

    /// Index that the next record must have; any, if there never was one.
    pub fn next(&self) -> Option<u64> {
        self.segments.last().map(Segment::next)
    }

    /// Adds a record, which is not written before [`Journal::flush`] or [`Journal::sync`].
    ///
    /// # Errors
    /// If it is not the next one, too large for a file, or a write failed before.
    pub fn append(
        &mut self,
        index: u64,
        term: u64,
        kind: Kind,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.check()?;
        if self.next().is_some_and(|next| next != index) || index == 0 {
            let next = self.next().unwrap_or(1);
            return Err(bad(format!("record {index} of a journal comes where {next} must")));
        }
        let size = segment::size_of(bytes.len());
        let room = self.settings.segment_bytes - HEADER_BYTES as u64;
        if size > room {
            return Err(bad(format!("a record of {size} bytes fits no file of {room} bytes")));
        }
        let fits =
            self.segments.last().is_some_and(|last| last.end + size <= self.settings.segment_bytes);
        if !fits {
            self.roll(index)?;
        }
        let durable = self.durable;
        segment::write(&mut self.waiting, durable, index, term, kind, bytes);
        if let Some(last) = self.segments.last_mut() {
            last.starts.push(last.end);
            last.end += size;
        }
        self.prepare();
        Ok(())
    }

    /// Writes what was added, without waiting for the disk: it survives a crash of the process, not
    /// one of the machine.
    ///
    /// # Errors
    /// If the disk is full or failing; nothing is accepted any more then.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.check()?;
        if self.waiting.is_empty() {
            return Ok(());
        }
        let (Some(file), Some(last)) = (&self.file, self.segments.last()) else { return Ok(()) };
        let at = last.end - self.waiting.len() as u64;
        if let Err(error) = file.write_all_at(&self.waiting, at) {
            return Err(self.fail("cannot be written", &error));
        }
        self.waiting.clear();
        Ok(())
    }

    /// Writes what was added and waits until the disk has it.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.flush()?;
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.sync_data() {
            return Err(self.fail("cannot be synced to its disk", &error));
        }
        self.durable = self.next().unwrap_or(1) - 1;
        Ok(())
    }

    /// Takes records away again, from an index on. The disk has it when this returns.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn truncate(&mut self, from: u64) -> Result<(), Failure> {
        self.flush()?;
        let mut is_cut = false;
        while self.segments.len() > 1
            && let Some(gone) = self.segments.pop_if(|last| last.first >= from)
        {
            is_cut = true;
            if let Err(error) = fs::remove_file(&gone.path) {
                return Err(self.fail("cannot be cut", &error));
            }
        }
        let Some(last) = self.segments.last_mut() else { return Ok(()) };
        let keep = usize::try_from(from.saturating_sub(last.first)).unwrap_or(usize::MAX);
        if let Some(start) = last.starts.get(keep) {
            last.end = *start;
            last.starts.truncate(keep);
            is_cut = true;
        }
        if is_cut {
            self.durable = self.durable.min(last.next() - 1);
            match cut(&last.path, last.end, self.settings.segment_bytes) {
                Ok(file) => self.file = Some(file),
                Err(error) => return Err(self.fail("cannot be cut", &error)),
            }
        }
        Ok(())
    }

    /// Removes files whose records all have at most this index; the last file stays.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn purge(&mut self, upto: u64) -> Result<(), Failure> {
        while self.segments.len() > 1 && self.segments[0].next() <= upto.saturating_add(1) {
            if let Err(error) = fs::remove_file(&self.segments[0].path) {
                return Err(self.fail("keeps a file that is to go", &error));
            }
            self.segments.remove(0);
        }
        Ok(())
    }

    /// Begins anew behind `upto`, without any of the records so far: a snapshot replaced them.
    ///
    /// # Errors
    /// If a file cannot be removed or made.
    pub fn restart(&mut self, upto: u64) -> Result<(), Failure> {
        self.check()?;
        self.waiting.clear();
        self.file = None;
        while let Some(gone) = self.segments.pop() {
            if let Err(error) = fs::remove_file(&gone.path) {
                return Err(self.fail("keeps a file that is to go", &error));
            }
        }
        self.durable = upto;
        self.roll(upto + 1)
    }

    fn check(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, what: &str, error: &io::Error) -> Failure {
        let failure = failure(&self.folder, what, error);
        self.failed = Some(failure.clone());
        failure
    }

    /// Ends the last file and begins the next, whose first record is `first`.
    fn roll(&mut self, first: u64) -> Result<(), Failure> {
        if !self.segments.is_empty() {
            // A later file says that the disk has all of the earlier ones.
            self.sync()?;
        }
        let path = self.folder.join(format!("{first:020}.journal"));
        match self.take_spare(&path, first) {
            Ok(file) => self.file = Some(file),
            Err(error) => return Err(self.fail("cannot grow", &error)),
        }
        self.segments.push(Segment { path, first, starts: vec![], end: HEADER_BYTES as u64 });
        Ok(())
    }

    /// Lets the next file be made, as soon as half of the last one is used.
    fn prepare(&mut self) {
        let used = self.segments.last().map(|last| last.end);
        let is_early = used.is_some_and(|used| used < self.settings.segment_bytes / 2);
        if is_early || self.spare.is_some() {
            return;
        }
        let (path, bytes) = (self.folder.join(SPARE), self.settings.segment_bytes);
        // While records are written, the disk must not be busy with zeros for long at a time.
        let pause = if used.is_some() { PAUSE } else { Duration::ZERO };
        // Without a thread it is made when it is needed.
        self.spare = std::thread::Builder::new()
            .name("journal-spare".to_string())
            .spawn(move || zeros(&path, bytes, pause).map(|()| path))
            .ok();
    }

    fn take_spare(&mut self, to: &Path, first: u64) -> io::Result<File> {
        let ready = self.spare.take().and_then(|making| making.join().ok());
        let spare = match ready {
            Some(made) => made?,
            None => {
                let path = self.folder.join(SPARE);
                zeros(&path, self.settings.segment_bytes, Duration::ZERO)?;
                path
            }
        };
        let file = OpenOptions::new().read(true).write(true).open(&spare)?;
        file.write_all_at(&segment::header(first), 0)?;
        file.sync_data()?;
        fs::rename(&spare, to)?;
        sync_folder(&self.folder)?;
        Ok(file)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(making) = self.spare.take() {
            let _ = making.join();
            let _ = fs::remove_file(self.folder.join(SPARE));
        }
    }
}

/// Pause after each mebibyte of zeros.
const PAUSE: Duration = Duration::from_millis(2);

/// A file of zeros, on the disk.
fn zeros(path: &Path, bytes: u64, pause: Duration) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut at = 0;
    while !pause.is_zero() && at < bytes {
        let end = bytes.min(at + (1 << 20));
        fill(&file, at, end)?;
        file.sync_data()?;
        std::thread::sleep(pause);
        at = end;
    }
    fill(&file, at, bytes)?;
    file.sync_all()
}

fn fill(file: &File, mut at: u64, end: u64) -> io::Result<()> {
    let chunk = vec![0; 1 << 20];
    while at < end {
        let count = (end - at).min(chunk.len() as u64);
        file.write_all_at(&chunk[..count as usize], at)?;
        at += count;
    }
    Ok(())
}

/// Replaces everything from `end` on by zeros. The file is made shorter first, which a crash leaves
/// done or not done, so that nothing of the old end can come back.
fn cut(path: &Path, end: u64, size: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.set_len(end)?;
    file.sync_all()?;
    fill(&file, end, size)?;
    file.sync_all()?;
    Ok(file)
}

/// Makes the names in a folder durable.
///
/// # Errors
/// What the system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failure(folder: &Path, what: &str, error: &io::Error) -> Failure {
    let message = format!("the journal in {} {what}: {error}", folder.display());
    hinted(Failure::new(FailureKind::System, message), error)
}

/// The failure, with what to do if the disk is full.
pub fn hinted(failure: Failure, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure.hint("make room on that disk and start the node again")
        }
        _ => failure,
    }
}

fn bad(message: String) -> Failure {
    Failure::new(FailureKind::System, message)
}

fn record(place: &Place, bytes: &[u8]) -> Record {
    let Place { start, length, index, term, kind, .. } = *place;
    let content = &bytes[start + RECORD_BYTES..start + RECORD_BYTES + length];
    Record { index, term, kind, bytes: content.to_vec() }
}

/// Reads a journal from its beginning, without changing anything.
#[derive(Debug)]
pub struct Reader {
    paths: Vec<(u64, PathBuf)>,
    at: usize,
    /// Index that the next record must have.
    next: Option<u64>,
    /// The file at hand: records that are still to be handed out, last first, and its bytes.
    places: Vec<Place>,
    bytes: Vec<u8>,
    /// Bytes of a half-written end, known when the end is reached.
    pub torn_bytes: u64,
}

/// A file that was read and found whole, or torn at its end.
struct Scanned {
    path: PathBuf,
    first: u64,
    places: Vec<Place>,
    end: u64,
    torn_bytes: u64,
    bytes: Vec<u8>,
}

impl Reader {
    /// A reader of the journal in a folder. A journal may be read while it is written; the end is
    /// then wherever it is.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open(folder: &Path) -> Result<Reader, Failure> {
        let unreadable = |error: io::Error| failure(folder, "cannot be read", &error);
        let mut paths = vec![];
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let first = path
                .extension()
                .filter(|extension| *extension == "journal")
                .and_then(|_| path.file_stem()?.to_str()?.parse().ok());
            paths.extend(first.map(|first| (first, path)));
        }
        paths.sort();
        let (places, bytes) = (vec![], vec![]);
        Ok(Reader { paths, at: 0, next: None, places, bytes, torn_bytes: 0 })
    }

    /// The next record; none at the end.
    ///
    /// # Errors
    /// If a record before the end is damaged, or a file cannot be read.
    pub fn next_record(&mut self) -> Result<Option<Record>, Failure> {
        loop {
            if let Some(place) = self.places.pop() {
                return Ok(Some(record(&place, &self.bytes)));
            }
            let Some(scanned) = self.next_segment()? else { return Ok(None) };
            self.torn_bytes = scanned.torn_bytes;
            (self.places, self.bytes) = (scanned.places, scanned.bytes);
            self.places.reverse();
        }
    }

    fn next_segment(&mut self) -> Result<Option<Scanned>, Failure> {
        let Some((first, path)) = self.paths.get(self.at).cloned() else { return Ok(None) };
        self.at += 1;
        let is_last = self.at == self.paths.len();
        let bytes = fs::read(&path).map_err(|error| failure(&path, "cannot be read", &error))?;
        let damaged = |index: u64, why: &str| {
            let message = format!(
                "the journal file {} is damaged: record {index} {why}, and it was promised to be \
                 kept",
                path.display()
            );
            let hint = "restore the file, or remove the replica's folder: a replica without one is \
                        filled by the others";
            Err(bad(message).hint(hint))
        };
        if self.next.is_some_and(|next| next != first) {
            return damaged(self.next.unwrap_or(0), "is missing");
        }
        let scan = segment::scan(&bytes, first);
        let next = first + scan.places.len() as u64;
        if !scan.has_header || scan.promised >= next {
            return damaged(next, "cannot be read");
        }
        if !is_last && scan.torn_bytes > 0 {
            return damaged(next, "cannot be read, although a later file was begun");
        }
        self.next = Some(next);
        let (places, end) = (scan.places, scan.end as u64);
        let torn_bytes = scan.torn_bytes;
        Ok(Some(Scanned { path, first, places, end, torn_bytes, bytes }))
    }
}

/// Kind of a record that stands for batches which the one who records did not see.
pub const MISSED: Kind = 3;

/// Kind of a record that only keeps the numbers in a row.
const GAP: Kind = 1;

/// Writes batches down for an audit as they are carried out, in a journal that promises nothing:
/// the disk is not waited for.
#[derive(Debug)]
pub struct Recorder(Journal);

impl Recorder {
    /// Goes on with what a folder holds.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(folder: &Path, settings: Settings) -> Result<Recorder, Failure> {
        Journal::open(folder, settings, u64::MAX).map(|(journal, _)| Recorder(journal))
    }

    /// Notes a batch, unless it was noted before. Numbers between the last and this one had no
    /// batch.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn batch(&mut self, index: u64, term: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.fill(index.saturating_sub(1), term, GAP)?;
        if index < self.next() {
            return Ok(());
        }
        self.0.append(index, term, BATCH, bytes)
    }

    /// Notes that the batches up to `upto` came as a snapshot.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn missed(&mut self, upto: u64) -> Result<(), Failure> {
        self.fill(upto, 0, MISSED)
    }

    /// Hands what was noted to the system.
    ///
    /// # Errors
    /// As [`Journal::flush`].
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush()
    }

    /// Number after the last one that is noted or known to be none.
    pub fn next(&self) -> u64 {
        self.0.next().unwrap_or(1)
    }

    fn fill(&mut self, upto: u64, term: u64, kind: Kind) -> Result<(), Failure> {
        while self.next() <= upto {
            self.0.append(self.next(), term, kind, &[])?;
        }
        Ok(())
    }
}
