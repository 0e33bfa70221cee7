//! The hard state of a replica: what it must not forget besides its entries, and the file of it.
//!
//! ```text
//! hard-state   two slots of 4096 bytes, written in turn, so that a crash leaves one intact:
//!              0 "nmhard02"   8 number of the write u64   16 length u32
//!              20 crc32c of number and content u32   24 content
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nm_codec::{DecodeError, Field, Put, Reader, crc32c, crc32c_append};
use openraft::{LogId, Vote};

use crate::durable::rename_durably;
use crate::encode::Encode;
use crate::error::ReplicaError;
use crate::types::NodeId;

/// What a replica must not forget, besides the entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HardState {
    /// The starts that the group was bootstrapped with, in the order of its members (see
    /// [`crate::bootstrap`]).
    pub bootstrap_ids: Vec<u64>,
    /// The last vote.
    pub vote: Option<Vote<NodeId>>,
    /// The entry that the log must reach before this replica may lead, or vote for a candidate
    /// that lacks it.
    pub required_log_id: Option<LogId<NodeId>>,
    /// The last entry that was purged because a snapshot contains it.
    pub purged: Option<LogId<NodeId>>,
}

impl Encode for HardState {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bootstrap_ids.encode(out);
        self.vote.encode(out);
        self.required_log_id.encode(out);
        self.purged.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<HardState, DecodeError> {
        Ok(HardState {
            bootstrap_ids: Vec::decode(from, "bootstrap ids")?,
            vote: Option::decode(from, "vote")?,
            required_log_id: Option::decode(from, "required entry")?,
            purged: Option::decode(from, "purged entry")?,
        })
    }
}

/// Name of the file in a group's folder.
pub const HARD_STATE: &str = "hard-state";

const MARK: &[u8; 8] = b"nmhard02";

/// The header of a slot; the content follows.
mod header {
    use super::{Field, MARK};

    pub const NUMBER: Field<u64> = Field::at("number", MARK.len());
    pub const LENGTH: Field<u32> = Field::after("length", &NUMBER);
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &LENGTH);

    pub const BYTES: usize = CHECKSUM.end();
}

const SLOT_BYTES: usize = 4096;

/// The file of the [`HardState`].
#[derive(Debug)]
pub struct HardStateFile {
    file: File,
    /// Number of the last write.
    number: u64,
}

impl HardStateFile {
    /// The file and the content of the slot that was written last; `None` if there is no file.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Option<(HardStateFile, Vec<u8>)>, ReplicaError> {
        let unreadable = |error: io::Error| ReplicaError::file(path, "cannot be read", error);
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let bytes = fs::read(path).map_err(unreadable)?;
        let slots = bytes.chunks(SLOT_BYTES).filter_map(|slot| read_slot(slot).ok());
        let (number, content) = slots
            .max_by_key(|(number, _)| *number)
            .ok_or_else(|| ReplicaError::Checksum(path.into()))?;
        Ok(Some((HardStateFile { file, number }, content.to_vec())))
    }

    /// A file whose first slot has this content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path, content: &[u8]) -> io::Result<HardStateFile> {
        let temporary = path.with_extension("tmp");
        let file = File::create(&temporary)?;
        file.set_len(2 * SLOT_BYTES as u64)?;
        let mut created = HardStateFile { file, number: 0 };
        created.write(content)?;
        created.file.sync_all()?;
        rename_durably(&temporary, path)?;
        Ok(created)
    }

    /// Replaces the content; it is durable when this returns.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let number = self.number + 1;
        let slot = write_slot(number, content);
        self.file.write_all_at(&slot, number % 2 * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        self.number = number;
        Ok(())
    }
}

fn checksum(number: u64, content: &[u8]) -> u32 {
    crc32c_append(crc32c(&number.to_le_bytes()), content)
}

fn write_slot(number: u64, content: &[u8]) -> Vec<u8> {
    assert!(header::BYTES + content.len() <= SLOT_BYTES, "the hard state fits a slot");
    let mut slot = MARK.to_vec();
    slot.resize(header::BYTES, 0);
    header::NUMBER.set(&mut slot, number);
    header::LENGTH.set(&mut slot, content.len() as u32);
    header::CHECKSUM.set(&mut slot, checksum(number, content));
    slot.put(content);
    slot.resize(SLOT_BYTES, 0);
    slot
}

/// The number and the content of a slot.
fn read_slot(slot: &[u8]) -> Result<(u64, &[u8]), DecodeError> {
    let mut reader = Reader::new(slot);
    if reader.array("mark")? != *MARK {
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
    use crate::encode::strategies;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hard_states_round_trip(
            bootstrap_ids in prop::collection::vec(any::<u64>(), 0..16),
            vote in prop::option::of(strategies::vote()),
            required_log_id in prop::option::of(strategies::log_id()),
            purged in prop::option::of(strategies::log_id()),
            number in 1u64.., broken in 0usize..SLOT_BYTES,
        ) {
            let state = HardState { bootstrap_ids, vote, required_log_id, purged };
            let content = state.to_bytes();
            prop_assert_eq!(HardState::from_bytes(&content, "hard state"), Ok(state));
            let mut slot = write_slot(number, &content);
            prop_assert_eq!(read_slot(&slot), Ok((number, &content[..])));
            slot[broken] ^= 1;
            // Only the zeros behind the content say nothing.
            prop_assert_eq!(read_slot(&slot).is_err(), broken < header::BYTES + content.len());
        }
    }

    #[test]
    fn the_last_intact_slot_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HARD_STATE);
        assert!(HardStateFile::open(&path).unwrap().is_none());
        let mut file = HardStateFile::create(&path, b"first").unwrap();
        file.write(b"second").unwrap();
        assert_eq!(HardStateFile::open(&path).unwrap().unwrap().1, b"second");
        // A crash in the middle of the third write.
        file.file.write_all_at(b"torn", SLOT_BYTES as u64 + 24).unwrap();
        file.file.write_all_at(&3u64.to_le_bytes(), SLOT_BYTES as u64 + 8).unwrap();
        assert_eq!(HardStateFile::open(&path).unwrap().unwrap().1, b"second");
        file.file.write_all_at(b"torn", 24).unwrap();
        assert!(matches!(HardStateFile::open(&path), Err(ReplicaError::Checksum(_))));
    }
}
