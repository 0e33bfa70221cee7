//! The journal: records in order on disk, in files of one size that are filled with zeros before
//! they are used, or were used before, so that a sync writes data and no metadata.
//!
//! Records are appended to a buffer; [`Journal::sync`] writes all of them at once and waits for the
//! disk once. What a crash left half written at the end is cut off when the journal is opened;
//! damage before the end is refused, because what was promised would be missing (see [`segment`]
//! for how the two are told apart). After a failed write or sync, nothing is accepted any more:
//! what the disk holds is then unknown.

mod recorder;
pub mod segment;

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nm_model::agent::{Failure, FailureKind};

pub use recorder::Recorder;
use segment::{HEADER_BYTES, Place, RECORD_BYTES};

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A batch.
    Batch,
    /// Nothing: a leader's first entry, or a number without a batch.
    Blank,
    /// The group's members.
    Members,
    /// Nothing: it stands for a batch that whoever recorded did not see.
    Missed,
}

nm_codec::codes!(RecordKind { Batch = 0, Blank = 1, Members = 2, Missed = 3 });

/// How a journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Size of each file, bytes. A record must fit one.
    pub file_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { file_bytes: 64 << 20 }
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
    pub kind: RecordKind,
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
    /// What its checksums begin with.
    salt: u32,
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
    /// The next file.
    spare: Option<Spare>,
    /// Records that are not written yet, for the end of the last segment.
    waiting: Vec<u8>,
    /// Index up to which the disk has everything.
    durable: u64,
    /// Why nothing is accepted any more.
    failed: Option<Failure>,
}

/// Name of the next file.
const SPARE: &str = "spare.tmp";

/// The next file.
#[derive(Debug)]
enum Spare {
    /// It is filled with zeros, a piece for each message, and at once when there can be no more.
    Making(JoinHandle<io::Result<()>>, Sender<()>, u64),
    /// It was purged, and is as it was.
    Used,
}

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
        // Whether the last file can be gone on with as it is.
        let mut ends_well = false;
        let mut reader = Reader::open(folder)?;
        while let Some(scanned) = reader.next_segment()? {
            let Scanned { path, first, places, end, salt, torn_bytes, bytes } = scanned;
            found.torn_bytes += torn_bytes;
            ends_well = torn_bytes == 0 && bytes.len() as u64 == settings.file_bytes;
            let wanted = places.iter().filter(|place| place.index >= from);
            found.records.extend(wanted.map(|place| record(place, &bytes)));
            let starts = places.iter().map(|place| place.start as u64).collect();
            segments.push(Segment { path, first, salt, starts, end });
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
        if let Some(Segment { path, end, .. }) = journal.segments.last() {
            let file = match ends_well {
                true => go_on(path),
                false => cut(path, *end, settings.file_bytes),
            };
            journal.file = Some(file.map_err(|error| wrong("cannot be written", error))?);
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
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.check()?;
        if self.next().is_some_and(|next| next != index) || index == 0 {
            let next = self.next().unwrap_or(1);
            return Err(bad(format!("record {index} of a journal comes where {next} must")));
        }
        let size = segment::size_of(bytes.len());
        let room = self.settings.file_bytes - HEADER_BYTES as u64;
        if size > room {
            return Err(bad(format!("a record of {size} bytes fits no file of {room} bytes")));
        }
        let fits =
            self.segments.last().is_some_and(|last| last.end + size <= self.settings.file_bytes);
        if !fits {
            self.roll(index)?;
        }
        let (start, length, durable) = (0, 0, self.durable);
        let place = Place { start, length, index, term, durable, kind };
        if let Some(last) = self.segments.last_mut() {
            segment::write(&mut self.waiting, last.salt, &place, bytes);
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
        let next = self.next().unwrap_or(1);
        if self.durable + 1 == next {
            return Ok(());
        }
        if let Err(error) = file.sync_data() {
            return Err(self.fail("cannot be synced to its disk", &error));
        }
        self.durable = next - 1;
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
            match cut(&last.path, last.end, self.settings.file_bytes) {
                Ok(file) => self.file = Some(file),
                Err(error) => return Err(self.fail("cannot be cut", &error)),
            }
        }
        Ok(())
    }

    /// Removes files whose records all have at most this index, or keeps one to use it again; the
    /// last file stays.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn purge(&mut self, upto: u64) -> Result<(), Failure> {
        while self.segments.len() > 1 && self.segments[0].next() <= upto.saturating_add(1) {
            let gone = self.segments.remove(0);
            let removed = match self.spare {
                None => self.spare_it(&gone.path),
                Some(_) => fs::remove_file(&gone.path),
            };
            if let Err(error) = removed {
                return Err(self.fail("keeps a file that is to go", &error));
            }
        }
        Ok(())
    }

    /// Keeps a file as the next one, if it has the right size.
    fn spare_it(&mut self, path: &Path) -> io::Result<()> {
        if fs::metadata(path)?.len() != self.settings.file_bytes {
            return fs::remove_file(path);
        }
        fs::rename(path, self.folder.join(SPARE))?;
        // Its header must not change under its old name, whatever a crash leaves of the two.
        sync_folder(&self.folder)?;
        self.spare = Some(Spare::Used);
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
        let salt = match self.take_spare(&path, first) {
            Ok((file, salt)) => {
                self.file = Some(file);
                salt
            }
            Err(error) => return Err(self.fail("cannot grow", &error)),
        };
        self.segments.push(Segment { path, first, salt, starts: vec![], end: HEADER_BYTES as u64 });
        Ok(())
    }

    /// Lets the next file be made, as soon as half of the last one is used, as fast as the other
    /// half is used: the disk is there for the records.
    fn prepare(&mut self) {
        let half = self.settings.file_bytes / 2;
        let used = self.segments.last().map(|last| last.end);
        if used.is_some_and(|used| used < half) {
            return;
        }
        if self.spare.is_none() {
            let (path, bytes) = (self.folder.join(SPARE), self.settings.file_bytes);
            let (go_on, pace) = channel();
            // Nobody waits for the disk before the first record.
            let pace = used.map(|_| pace);
            // Without a thread it is made when it is needed.
            self.spare = std::thread::Builder::new()
                .name("journal-spare".to_string())
                .spawn(move || zeros(&path, bytes, pace))
                .ok()
                .map(|thread| Spare::Making(thread, go_on, 0));
        }
        if let (Some(used), Some(Spare::Making(_, go_on, pieces))) = (used, &mut self.spare) {
            let wanted = (used - half) * 2 / PIECE_BYTES + 1;
            while *pieces < wanted && go_on.send(()).is_ok() {
                *pieces += 1;
            }
        }
    }

    /// The next file under its name, and its salt.
    fn take_spare(&mut self, to: &Path, first: u64) -> io::Result<(File, u32)> {
        let path = self.folder.join(SPARE);
        let mut salt = 0;
        match self.spare.take() {
            Some(Spare::Used) => {
                // The standard library's hasher is seeded by the system's randomness.
                salt = RandomState::new().build_hasher().finish() as u32 | 1;
            }
            Some(Spare::Making(thread, go_on, _)) => {
                drop(go_on);
                thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread broke")))?;
            }
            None => zeros(&path, self.settings.file_bytes, None)?,
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        file.write_all_at(&segment::header(first, salt), 0)?;
        file.sync_data()?;
        fs::rename(&path, to)?;
        sync_folder(&self.folder)?;
        Ok((file, salt))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(Spare::Making(thread, go_on, _)) = self.spare.take() {
            drop(go_on);
            let _ = thread.join();
        }
        let _ = fs::remove_file(self.folder.join(SPARE));
    }
}

/// Bytes of zeros that are written and synced at a time while there are records to write.
const PIECE_BYTES: u64 = 256 << 10;

/// A file of zeros, on the disk: a piece for each message, the rest when there can be no more.
fn zeros(path: &Path, bytes: u64, pace: Option<Receiver<()>>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut at = 0;
    while at < bytes && pace.as_ref().is_some_and(|pace| pace.recv().is_ok()) {
        let end = bytes.min(at + PIECE_BYTES);
        fill(&file, at, end)?;
        file.sync_data()?;
        at = end;
    }
    fill(&file, at, bytes)?;
    file.sync_all()
}

fn fill(file: &File, mut at: u64, end: u64) -> io::Result<()> {
    let chunk = vec![0; PIECE_BYTES as usize];
    while at < end {
        let count = (end - at).min(chunk.len() as u64);
        file.write_all_at(&chunk[..count as usize], at)?;
        at += count;
    }
    Ok(())
}

/// Opens a file that ends well. What another process wrote there is made durable.
fn go_on(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.sync_data()?;
    Ok(file)
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
    salt: u32,
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
        let segment::Scan { places, salt, torn_bytes, .. } = scan;
        let end = scan.end as u64;
        Ok(Some(Scanned { path, first, places, end, salt, torn_bytes, bytes }))
    }
}
