//! A small file whose content is replaced as a whole: a crash leaves the old content or the new
//! one, and one damaged place loses neither.
//!
//! ```text
//! slot file   four slots of 4096 bytes. A write fills slots 0 and 1, the next one 2 and 3, and so
//!             on in turn, so that a crash in the middle leaves what was there before; of the two
//!             copies one may be damaged. A slot:
//!             0 mark   8 number of the write u64   16 length u32
//!             20 crc32c of number and content u32   24 content
//! ```
//!
//! Files of version 2 have two slots, each with one copy; they are replaced when they are opened.

use std::io;
use std::path::Path;

use nm_codec::{DecodeError, Field, Put, Reader, crc32c, crc32c_append};

use crate::env::Env;
use crate::storage::File;

/// What a slot begins with: what the file contains, and its version.
pub type Mark = [u8; 8];

/// The header of a slot; the content follows.
mod header {
    use super::{Field, Mark};

    pub const NUMBER: Field<u64> = Field::at("number", size_of::<Mark>());
    pub const LENGTH: Field<u32> = Field::after("length", &NUMBER);
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &LENGTH);

    pub const BYTES: usize = CHECKSUM.end();
}

const SLOT_BYTES: usize = 4096;

/// Equal slots that a write fills, and writes that the file has room for.
const COPIES: usize = 2;
const WRITES: u64 = 2;

const FILE_BYTES: u64 = (SLOT_BYTES * COPIES) as u64 * WRITES;

/// A file of slots.
#[derive(Debug)]
pub struct SlotFile {
    file: Box<dyn File>,
    mark: Mark,
    /// Number of the last write.
    number: u64,
}

/// The number and the content of the last write in a file, by marks of this or an earlier version;
/// `None` if there is no file.
///
/// # Errors
/// The system's error; `InvalidData` if the file is damaged.
pub fn read(env: &Env, path: &Path, marks: &[Mark]) -> io::Result<Option<(u64, Vec<u8>)>> {
    let bytes = match env.read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let slots = bytes.chunks(SLOT_BYTES).filter_map(|slot| read_slot(slot, marks).ok());
    let last = slots.max_by_key(|(number, _)| *number);
    let (number, content) = last.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((number, content.to_vec())))
}

impl SlotFile {
    /// The file and the content of the last write, as [`read`]; the first mark is that of this
    /// version. The content is written again: the process before may have failed to sync it.
    ///
    /// # Errors
    /// The system's error; `InvalidData` if the file is damaged.
    pub fn open(env: &Env, path: &Path, marks: &[Mark]) -> io::Result<Option<(SlotFile, Vec<u8>)>> {
        let Some((number, content)) = read(env, path, marks)? else { return Ok(None) };
        if env.size(path)? != FILE_BYTES {
            return Ok(Some((SlotFile::create(env, path, marks[0], &content)?, content)));
        }
        let mut file = SlotFile { file: env.open(path)?, mark: marks[0], number };
        file.write(&content)?;
        // So is the name.
        env.sync_folder(path.parent().unwrap_or(Path::new("/")))?;
        Ok(Some((file, content)))
    }

    /// A file with this content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(env: &Env, path: &Path, mark: Mark, content: &[u8]) -> io::Result<SlotFile> {
        let temporary = path.with_extension("tmp");
        let file = env.create(&temporary)?;
        file.set_len(FILE_BYTES)?;
        let mut created = SlotFile { file, mark, number: 0 };
        created.write(content)?;
        created.file.sync_all()?;
        env.rename_durably(&temporary, path)?;
        Ok(created)
    }

    /// Replaces the content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let number = self.number + 1;
        let slots = write_slot(self.mark, number, content).repeat(COPIES);
        self.file.write_all_at(&slots, number % WRITES * slots.len() as u64)?;
        self.file.sync_data()?;
        self.number = number;
        Ok(())
    }
}

fn checksum(number: u64, content: &[u8]) -> u32 {
    crc32c_append(crc32c(&number.to_le_bytes()), content)
}

fn write_slot(mark: Mark, number: u64, content: &[u8]) -> Vec<u8> {
    assert!(header::BYTES + content.len() <= SLOT_BYTES, "the content fits a slot");
    let mut slot = mark.to_vec();
    slot.resize(header::BYTES, 0);
    header::NUMBER.set(&mut slot, number);
    header::LENGTH.set(&mut slot, content.len() as u32);
    header::CHECKSUM.set(&mut slot, checksum(number, content));
    slot.put(content);
    slot.resize(SLOT_BYTES, 0);
    slot
}

/// The number and the content of a slot.
fn read_slot<'a>(slot: &'a [u8], marks: &[Mark]) -> Result<(u64, &'a [u8]), DecodeError> {
    let mut reader = Reader::new(slot);
    if !marks.contains(&reader.array("mark")?) {
        return Err(DecodeError::invalid("mark", "is not that of this version"));
    }
    let number = reader.u64(header::NUMBER.name)?;
    let length = reader.u32(header::LENGTH.name)?;
    let expected = reader.u32(header::CHECKSUM.name)?;
    let content = reader.bytes("content", length as usize)?;
    if expected != checksum(number, content) {
        return Err(DecodeError::checksum(header::CHECKSUM.name));
    }
    Ok((number, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Machine;
    use proptest::prelude::*;

    const MARKS: [Mark; 2] = [*b"nmtest03", *b"nmtest02"];

    proptest! {
        #[test]
        fn slots_round_trip(
            content in prop::collection::vec(any::<u8>(), 0..300),
            number in 1u64.., broken in 0usize..SLOT_BYTES,
        ) {
            let mut slot = write_slot(MARKS[0], number, &content);
            prop_assert_eq!(read_slot(&slot, &MARKS), Ok((number, &content[..])));
            slot[broken] ^= 1;
            // Only the zeros behind the content say nothing, and one mark is a bit from the other.
            let is_mark = broken == MARKS[0].len() - 1;
            let is_read = is_mark || broken >= header::BYTES + content.len();
            prop_assert_eq!(read_slot(&slot, &MARKS).is_ok(), is_read);
        }
    }

    fn overwrite(path: &Path, slot: usize, bytes: &[u8]) {
        let file = Machine::env().open(path).unwrap();
        file.write_all_at(bytes, (slot * SLOT_BYTES) as u64).unwrap();
    }

    fn content(path: &Path) -> Vec<u8> {
        read(&Machine::env(), path, &MARKS).unwrap().unwrap().1
    }

    #[test]
    fn a_torn_write_leaves_the_one_before_and_damage_of_one_copy_leaves_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        assert!(SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().is_none());
        let mut file = SlotFile::create(&Machine::env(), &path, MARKS[0], b"first").unwrap();
        file.write(b"second").unwrap();
        assert_eq!(content(&path), b"second");
        // The second write is in slots 0 and 1.
        for copy in [0, 1] {
            overwrite(&path, copy, &[0xff; 100]);
            assert_eq!(content(&path), if copy == 0 { &b"second"[..] } else { b"first" });
        }
        let (mut file, found) = SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().unwrap();
        assert_eq!(found, b"first");
        file.write(b"third").unwrap();
        assert_eq!(content(&path), b"third");
        (0..4).for_each(|slot| overwrite(&path, slot, &[0xff; 100]));
        let damaged = SlotFile::open(&Machine::env(), &path, &MARKS).unwrap_err();
        assert_eq!(damaged.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_of_the_version_before_is_read_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots");
        let (older, newer) = (write_slot(MARKS[1], 4, b"older"), write_slot(MARKS[1], 5, b"newer"));
        std::fs::write(&path, [older, newer].concat()).unwrap();
        let (_, found) = SlotFile::open(&Machine::env(), &path, &MARKS).unwrap().unwrap();
        assert_eq!(found, b"newer");
        assert_eq!(Machine::env().size(&path).unwrap(), FILE_BYTES);
        assert_eq!(read(&Machine::env(), &path, &MARKS[..1]).unwrap().unwrap().1, b"newer");
    }
}
