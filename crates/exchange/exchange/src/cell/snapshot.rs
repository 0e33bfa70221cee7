//! A snapshot of a cell that is made while the cell goes on.

use std::collections::{BTreeMap, BTreeSet};

use nm_book::order::{InstrumentId, Matching};
use nm_codec::Put;

use crate::background::{Background, LARGE_BYTES_MIN};

use super::instrument::InstrumentState;

/// The instruments of a cell.
type Instruments<M> = BTreeMap<InstrumentId, InstrumentState<M>>;

/// A part of a saved cell.
#[derive(Debug)]
pub enum Section {
    /// Bytes as they are.
    Plain(Vec<u8>),
    /// Bytes with their number before them.
    Counted(Background<Vec<u8>>),
}

impl Section {
    /// About how many bytes it has; not less than a thread is worth if that is not known yet.
    fn size(&self) -> usize {
        match self {
            Section::Plain(bytes) | Section::Counted(Background::Ready(bytes)) => bytes.len(),
            Section::Counted(Background::Running(_)) => LARGE_BYTES_MIN,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a thread of its own writes")]
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Section::Plain(bytes) => out.put(&bytes),
            Section::Counted(bytes) => {
                let bytes = bytes.wait();
                out.put_u64s(&[bytes.len() as u64]);
                out.put(&bytes);
            }
        }
    }
}

/// Bytes with their checksum (CRC-32C) behind them.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = nm_codec::crc32c(&bytes);
    bytes.put_u32(checksum);
    bytes
}

/// Puts the sections of a cell together, and seals them; in another thread if they are large.
pub fn join(sections: Vec<Section>) -> Background<Vec<u8>> {
    let size = sections.iter().map(Section::size).sum::<usize>();
    let join = move || {
        let mut bytes = Vec::with_capacity(size);
        sections.into_iter().for_each(|section| section.write(&mut bytes));
        sealed(bytes)
    };
    if size >= LARGE_BYTES_MIN { Background::start(join) } else { Background::Ready(join()) }
}

/// The sections of an instrument.
pub fn instrument_sections(instrument: InstrumentId, saved: Background<Vec<u8>>) -> [Section; 2] {
    [Section::Plain(instrument.to_le_bytes().to_vec()), Section::Counted(saved)]
}

/// The state of a cell at one index, as far as it was copied.
#[derive(Debug)]
pub struct Snapshot {
    header: Vec<Section>,
    count: usize,
    remaining: BTreeSet<InstrumentId>,
    copied: BTreeMap<InstrumentId, Background<Vec<u8>>>,
    /// The instrument that was copied last without need, because there was time.
    last: Option<InstrumentId>,
    /// All of it, once nothing remains.
    joined: Option<Background<Vec<u8>>>,
}

impl Snapshot {
    /// A snapshot of these instruments, of which none was copied yet.
    pub fn new<M>(header: Vec<Section>, instruments: &Instruments<M>) -> Snapshot {
        Snapshot {
            header,
            count: instruments.len(),
            remaining: instruments.keys().copied().collect(),
            copied: BTreeMap::new(),
            last: None,
            joined: None,
        }
    }

    /// Whether [`Snapshot::copy_next`] has something to do; else it waits for other threads.
    pub fn can_copy(&self) -> bool {
        let is_saving =
            self.last.and_then(|last| self.copied.get(&last)).is_some_and(|saved| match saved {
                Background::Ready(_) => false,
                Background::Running(_) => true,
            });
        !self.remaining.is_empty() && !is_saving
    }

    /// Copies an instrument, if it is not there yet.
    pub fn copy<M: Matching>(&mut self, instrument: InstrumentId, instruments: &Instruments<M>) {
        if !self.remaining.remove(&instrument) {
            return;
        }
        let Some(state) = instruments.get(&instrument) else {
            unreachable!("an instrument is copied before it is removed");
        };
        let before = self.copied.insert(instrument, state.begin_save());
        debug_assert!(before.is_none(), "instrument {instrument} is copied twice");
    }

    /// Copies one more instrument, unless another thread still saves the one before: one copy in
    /// memory at a time is enough. The bytes of the snapshot when they are complete.
    pub fn copy_next<M: Matching>(&mut self, instruments: &Instruments<M>) -> Option<Vec<u8>> {
        if let Some(saved) = self.last.and_then(|last| self.copied.get_mut(&last))
            && !saved.is_ready()
        {
            return None;
        }
        if let Some(instrument) = self.remaining.first().copied() {
            self.copy(instrument, instruments);
            self.last = Some(instrument);
        }
        if !self.remaining.is_empty() {
            return None;
        }
        if self.joined.is_none() {
            assert_eq!(self.copied.len(), self.count, "a snapshot misses instruments");
            self.joined = Some(self.join());
        }
        Background::take_ready(&mut self.joined)
    }

    /// Puts the header and all instruments together.
    fn join(&mut self) -> Background<Vec<u8>> {
        let mut sections = std::mem::take(&mut self.header);
        for (instrument, saved) in std::mem::take(&mut self.copied) {
            sections.extend(instrument_sections(instrument, saved));
        }
        join(sections)
    }
}
