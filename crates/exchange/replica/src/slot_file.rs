//! A small content that is replaced as a whole, in two files. A crash leaves the old content or the
//! new one, and what one write to the disk does wrong loses neither.
//!
//! ```text
//! NAME-1, NAME-2   the two copies, each of two slots of 4096 bytes. Write n fills slot n % 2 of
//!                  the first copy, waits for the disk, and then does the same with the second.
//! slot             0 mark   8 identity of the two files u64   16 number of the write u64
//!                  24 length u32   28 crc32c of mark, identity, number and content u32
//!                  32 content
//! ```
//!
//! A write that the disk confirmed and lost or tore concerns one copy, and so does a slot that is
//! read as it was before. The other copy has the last number, and the highest number counts. A
//! write that went elsewhere may have replaced the other copy's slot, and is the last one then. So
//! a slot counts wherever it begins at a sector, if it has the identity that most of them have. A
//! crash leaves one slot torn at most. If a slot is damaged in both copies, the last content may
//! have been there, and nothing is believed.
//!
//! Earlier versions had one file NAME, with slots of another header; it is replaced when it is
//! opened.

use std::io;
use std::path::{Path, PathBuf};

use nm_codec::{DecodeError, Field, Put, Reader, crc32c, crc32c_append};

use crate::env::Env;
use crate::storage::File;

/// What a slot begins with: what the file contains, and its version.
pub type Mark = [u8; 8];

/// The marks of a content: of this version, and of those with one file.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// Of this version.
    pub now: Mark,
    /// Of the versions before.
    pub before: &'static [Mark],
}

/// The header of a slot; the content follows.
mod header {
    use super::{Field, Mark};

    pub const IDENTITY: Field<u64> = Field::at("identity", size_of::<Mark>());
    pub const NUMBER: Field<u64> = Field::after("number", &IDENTITY);
    pub const LENGTH: Field<u32> = Field::after("length", &NUMBER);
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &LENGTH);

    pub const BYTES: usize = CHECKSUM.end();
}

const SLOT_BYTES: usize = 4096;

/// Where a write to a wrong place may begin.
const SECTOR_BYTES: usize = 512;

/// Slots of a copy.
const SLOTS: u64 = 2;

/// What is known of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    identity: u64,
    /// Number of the last write.
    number: u64,
    /// What it wrote.
    pub content: Vec<u8>,
}

/// The two copies, open for writing.
#[derive(Debug)]
pub struct SlotFile {
    copies: [Box<dyn File>; 2],
    mark: Mark,
    identity: u64,
    /// Number of the last write.
    number: u64,
}

fn copy_paths(path: &Path) -> [PathBuf; 2] {
    [1, 2].map(|copy| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{copy}"));
        name.into()
    })
}

fn read_if_there(env: &Env, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match env.read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last content at a path; `None` if there is none.
///
/// # Errors
/// The system's error; `InvalidData` if it cannot be known.
pub fn read(env: &Env, path: &Path, marks: &Marks) -> io::Result<Option<Found>> {
    let [first, second] = copy_paths(path).map(|path| read_if_there(env, &path));
    match (first?, second?) {
        (None, None) => read_before(env, path, marks.before),
        copies => newest(&copies.into(), marks.now).map(Some),
    }
}

/// The last content of the copies.
fn newest(copies: &[Option<Vec<u8>>; 2], mark: Mark) -> io::Result<Found> {
    let starts = copies.iter().flatten().flat_map(|copy| {
        (0..copy.len()).step_by(SECTOR_BYTES).map(|at| &copy[at..copy.len().min(at + SLOT_BYTES)])
    });
    let mut found: Vec<Found> = starts.filter_map(|slot| read_slot(slot, mark).ok()).collect();
    let count = |identity: u64| found.iter().filter(|it| it.identity == identity).count();
    let identity = found.iter().map(|it| it.identity).max_by_key(|identity| count(*identity));
    found.retain(|it| Some(it.identity) == identity);
    let is_there = |slot: u64| found.iter().any(|it| it.number % SLOTS == slot);
    if !(0..SLOTS).all(is_there) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    found.into_iter().max_by_key(|it| it.number).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl SlotFile {
    /// The files and the content of the last write, as [`read`]. The content is written again, to
    /// all slots: the process before may have failed to sync it, and one copy may be damaged.
    ///
    /// # Errors
    /// As [`read`].
    pub fn open(env: &Env, path: &Path, marks: &Marks) -> io::Result<Option<(SlotFile, Vec<u8>)>> {
        let Some(found) = read(env, path, marks)? else { return Ok(None) };
        let folder = path.parent().unwrap_or(Path::new("/"));
        let paths = copy_paths(path);
        let files = paths.each_ref().map(|path| env.open(path));
        let [Ok(first), Ok(second)] = files else {
            // A file of an earlier version, or one of the copies is missing.
            let file = SlotFile::replace(env, path, marks.now, &found)?;
            if read_if_there(env, path)?.is_some() {
                env.remove(path)?;
                env.sync_folder(folder)?;
            }
            return Ok(Some((file, found.content)));
        };
        let Found { identity, number, content } = found;
        let mut file = SlotFile { copies: [first, second], mark: marks.now, identity, number };
        (0..SLOTS).try_for_each(|_| file.write(&content))?;
        // So are the names.
        env.sync_folder(folder)?;
        Ok(Some((file, content)))
    }

    /// Files with this content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(env: &Env, path: &Path, mark: Mark, content: &[u8]) -> io::Result<SlotFile> {
        let found = Found { identity: env.random(), number: 0, content: content.to_vec() };
        SlotFile::replace(env, path, mark, &found)
    }

    /// Replaces both files, one after the other.
    fn replace(env: &Env, path: &Path, mark: Mark, found: &Found) -> io::Result<SlotFile> {
        let Found { identity, number, content } = found;
        // The first slot has an even number.
        let number = number.next_multiple_of(SLOTS) + 1;
        let create = |path: PathBuf| {
            let temporary = path.with_extension("tmp");
            let file = env.create(&temporary)?;
            let slot = |number| write_slot(mark, (*identity, number), content);
            file.write_all_at(&[slot(number - 1), slot(number)].concat(), 0)?;
            file.sync_all()?;
            env.rename_durably(&temporary, &path)?;
            Ok::<_, io::Error>(file)
        };
        let [first, second] = copy_paths(path);
        let copies = [create(first)?, create(second)?];
        Ok(SlotFile { copies, mark, identity: *identity, number })
    }

    /// Replaces the content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let number = self.number + 1;
        let (at, name) = (number % SLOTS * SLOT_BYTES as u64, (self.identity, number));
        let slot = write_slot(self.mark, name, content);
        for file in &self.copies {
            file.write_all_at(&slot, at)?;
            // Before the other copy: a crash must leave one of them whole.
            file.sync_data()?;
        }
        self.number = number;
        Ok(())
    }
}

fn checksum(mark: Mark, (identity, number): (u64, u64), content: &[u8]) -> u32 {
    let name = crc32c_append(crc32c(&mark), &identity.to_le_bytes());
    crc32c_append(crc32c_append(name, &number.to_le_bytes()), content)
}

fn write_slot(mark: Mark, name: (u64, u64), content: &[u8]) -> Vec<u8> {
    assert!(header::BYTES + content.len() <= SLOT_BYTES, "the content fits a slot");
    let mut slot = mark.to_vec();
    slot.resize(header::BYTES, 0);
    header::IDENTITY.set(&mut slot, name.0);
    header::NUMBER.set(&mut slot, name.1);
    header::LENGTH.set(&mut slot, content.len() as u32);
    header::CHECKSUM.set(&mut slot, checksum(mark, name, content));
    slot.put(content);
    slot.resize(SLOT_BYTES, 0);
    slot
}

/// What is in a slot.
fn read_slot(slot: &[u8], mark: Mark) -> Result<Found, DecodeError> {
    let mut reader = Reader::new(slot);
    if reader.array::<8>("mark")? != mark {
        return Err(DecodeError::invalid("mark", "is not that of this version"));
    }
    let identity = reader.u64(header::IDENTITY.name)?;
    let number = reader.u64(header::NUMBER.name)?;
    let length = reader.u32(header::LENGTH.name)?;
    let expected = reader.u32(header::CHECKSUM.name)?;
    let content = reader.bytes("content", length as usize)?;
    if expected != checksum(mark, (identity, number), content) {
        return Err(DecodeError::checksum(header::CHECKSUM.name));
    }
    Ok(Found { identity, number, content: content.to_vec() })
}

/// The last content of a file of an earlier version: slots of mark, number, length, crc32c of
/// number and content, and content.
fn read_before(env: &Env, path: &Path, marks: &[Mark]) -> io::Result<Option<Found>> {
    let Some(bytes) = read_if_there(env, path)? else { return Ok(None) };
    let slots = bytes.chunks(SLOT_BYTES).filter_map(|slot| read_slot_before(slot, marks).ok());
    let last = slots.max_by_key(|found| found.number);
    let last = last.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(Found { identity: env.random(), ..last }))
}

fn read_slot_before(slot: &[u8], marks: &[Mark]) -> Result<Found, DecodeError> {
    let mut reader = Reader::new(slot);
    if !marks.contains(&reader.array("mark")?) {
        return Err(DecodeError::invalid("mark", "is not that of an earlier version"));
    }
    let (number, length) = (reader.u64("number")?, reader.u32("length")?);
    let expected = reader.u32("checksum")?;
    let content = reader.bytes("content", length as usize)?;
    if expected != crc32c_append(crc32c(&number.to_le_bytes()), content) {
        return Err(DecodeError::checksum("checksum"));
    }
    Ok(Found { identity: 0, number, content: content.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Machine;
    use proptest::prelude::*;

    const MARKS: Marks = Marks { now: *b"nmtest04", before: &[*b"nmtest03", *b"nmtest02"] };

    proptest! {
        #[test]
        fn slots_round_trip(
            content in prop::collection::vec(any::<u8>(), 0..300),
            (identity, number) in any::<(u64, u64)>(), broken in 0usize..SLOT_BYTES,
        ) {
            let mut slot = write_slot(MARKS.now, (identity, number), &content);
            let found = Found { identity, number, content };
            prop_assert_eq!(read_slot(&slot, MARKS.now), Ok(found.clone()));
            slot[broken] ^= 1;
            // Only the zeros behind the content say nothing.
            let is_read = broken >= header::BYTES + found.content.len();
            prop_assert_eq!(read_slot(&slot, MARKS.now).is_ok(), is_read);
        }
    }

    /// Files whose last three contents are these.
    fn written() -> (tempfile::TempDir, PathBuf, SlotFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        assert!(SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().is_none());
        let mut file = SlotFile::create(&Machine::env(), &path, MARKS.now, b"first").unwrap();
        file.write(b"second").unwrap();
        file.write(b"third").unwrap();
        (folder, path, file)
    }

    fn content(path: &Path) -> io::Result<Vec<u8>> {
        read(&Machine::env(), path, &MARKS).map(|found| found.unwrap().content)
    }

    fn overwrite(path: &Path, copy: usize, at: usize, bytes: &[u8]) {
        let file = Machine::env().open(&copy_paths(path)[copy]).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
    }

    /// "third" is write 3, in slot 1 of both copies.
    #[test]
    fn one_copy_may_be_damaged_stale_or_missing() {
        let other = tempfile::tempdir().unwrap();
        let foreign = other.path().join("slots");
        let file = SlotFile::create(&Machine::env(), &foreign, MARKS.now, b"foreign").unwrap();
        let foreign = write_slot(MARKS.now, (file.identity, 1_001), b"foreign");
        for copy in [0, 1] {
            let (_folder, path, file) = written();
            let stale = write_slot(MARKS.now, (file.identity, 1), b"first");
            let second = write_slot(MARKS.now, (file.identity, 2), b"second");
            for fault in [&[0xff; 100][..], &[0; 100], &stale, &second, &foreign] {
                overwrite(&path, copy, SLOT_BYTES, fault);
                assert_eq!(content(&path).unwrap(), b"third", "{copy}: {:?}", &fault[..32]);
            }
            std::fs::remove_file(&copy_paths(&path)[copy]).unwrap();
            assert_eq!(content(&path).unwrap(), b"third");
            // All of it is repaired when the files are opened.
            let (mut file, _) = SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().unwrap();
            std::fs::remove_file(&copy_paths(&path)[1 - copy]).unwrap();
            assert_eq!(content(&path).unwrap(), b"third");
            file.write(b"fourth").unwrap();
            assert_eq!(content(&path).unwrap(), b"fourth");
        }
    }

    /// The last write of one copy replaced it in the other, and is missing in its own.
    #[test]
    fn a_write_to_the_other_copy_counts_where_it_is() {
        for (copy, at) in [0, 1].into_iter().flat_map(|copy| [(copy, 0), (copy, 512), (copy, 7)]) {
            let (_folder, path, file) = written();
            let third = write_slot(MARKS.now, (file.identity, 3), b"third");
            let first = write_slot(MARKS.now, (file.identity, 1), b"first");
            overwrite(&path, copy, SLOT_BYTES, &first);
            overwrite(&path, 1 - copy, SLOT_BYTES, &[0xff; 512]);
            let is_at_sector = at % SECTOR_BYTES == 0;
            overwrite(&path, 1 - copy, SLOT_BYTES + at, &third[..SLOT_BYTES - at]);
            let expected = if is_at_sector { &b"third"[..] } else { b"second" };
            assert_eq!(content(&path).unwrap(), expected, "{copy}, {at}");
        }
    }

    #[test]
    fn a_slot_that_is_damaged_in_both_copies_is_refused() {
        for slot in [0, SLOT_BYTES] {
            let (_folder, path, _) = written();
            overwrite(&path, 0, slot, &[0; SLOT_BYTES]);
            assert_eq!(content(&path).unwrap(), b"third");
            overwrite(&path, 1, slot, &[0; SLOT_BYTES]);
            assert_eq!(content(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
            let opened = SlotFile::open(&Machine::env(), &path, &MARKS);
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        let slot = |mark: Mark, number: u64, content: &[u8]| {
            let mut slot = mark.to_vec();
            slot.put_u64s(&[number]);
            slot.put(&(content.len() as u32).to_le_bytes());
            let checksum = crc32c_append(crc32c(&number.to_le_bytes()), content);
            slot.put(&checksum.to_le_bytes());
            slot.put(content);
            slot.resize(SLOT_BYTES, 0);
            slot
        };
        for mark in MARKS.before {
            let (older, newer) = (slot(*mark, 4, b"older"), slot(*mark, 5, b"newer"));
            std::fs::write(&path, [older, newer].concat()).unwrap();
            let (_, found) = SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().unwrap();
            assert_eq!(found, b"newer");
            assert!(!path.exists());
            assert_eq!(content(&path).unwrap(), b"newer");
            copy_paths(&path).iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}
