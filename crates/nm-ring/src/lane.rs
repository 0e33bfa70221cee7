//! One direction: records from a [`Producer`] to a [`Consumer`].
//!
//! The producer fills a slot and then publishes its header; the consumer sees the header, copies
//! the record out, and then says that it has taken it. A producer learns what was taken from the
//! headers that come the other way, which cost it nothing, and reads the consumer's own counter
//! only when it has no room. While nothing is on its way, long records begin at the start of the
//! area again, so that request and response keep to a few hot lines.
//!
//! Whatever the other end writes is taken as a claim: a sequence number that does not fit is no
//! record, a length is clamped, a place is masked, a count of taken records that exceeds the sent
//! ones is ignored.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::layout::{AREA_BYTES, INLINE_BYTES_MAX, LINE_BYTES, Lane, RECORD_BYTES_MAX, SLOTS};

/// A header as its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the record, counted from 1, modulo 2^16.
    pub sequence: u16,
    /// Records that the sender of this header has taken of the other direction, modulo 2^16.
    pub taken: u16,
    /// Bytes of the record.
    pub length: u16,
    /// Where it begins in the area, lines; without meaning for a short one.
    pub place: u16,
}

impl Header {
    /// As the word in the slot.
    #[inline(always)]
    pub fn pack(self) -> u64 {
        u64::from(self.sequence)
            | u64::from(self.taken) << 16
            | u64::from(self.length) << 32
            | u64::from(self.place) << 48
    }

    /// From the word in the slot; each word is some header.
    #[inline(always)]
    pub fn unpack(word: u64) -> Header {
        Header {
            sequence: word as u16,
            taken: (word >> 16) as u16,
            length: (word >> 32) as u16,
            place: (word >> 48) as u16,
        }
    }
}

/// The sending end of a lane.
#[derive(Debug)]
pub struct Producer {
    /// Records sent, modulo 2^16.
    sent: u16,
    /// Records known to be taken, modulo 2^16.
    taken: u16,
    /// Where the next long record would begin, bytes.
    head: usize,
    /// Bytes of the area in use, those skipped at its end included.
    used: usize,
    /// Which part of `used` each record has.
    spans: [u32; SLOTS],
}

impl Default for Producer {
    fn default() -> Producer {
        Producer { sent: 0, taken: 0, head: 0, used: 0, spans: [0; SLOTS] }
    }
}

impl Producer {
    /// Sends `record` of at most [`RECORD_BYTES_MAX`] bytes; false if there is no room. `taken` is
    /// what this end has taken of the other direction.
    #[inline(always)]
    pub fn push(&mut self, lane: &Lane, record: &[u8], taken: u16) -> bool {
        debug_assert!(record.len() <= RECORD_BYTES_MAX);
        let Some(place) = self.room(lane, record.len()) else { return false };
        let slot = &lane.slots[usize::from(self.sent) % SLOTS];
        let place = if record.len() <= INLINE_BYTES_MAX {
            slot.bytes.write(0, record);
            0
        } else {
            lane.area.write(place, record);
            place / LINE_BYTES
        };
        self.sent = self.sent.wrapping_add(1);
        let header =
            Header { sequence: self.sent, taken, length: record.len() as u16, place: place as u16 };
        slot.header.store(header.pack(), Release);
        true
    }

    /// Whether a record of this length could be sent now.
    pub fn has_room(&mut self, lane: &Lane, length: usize) -> bool {
        self.on_its_way() < SLOTS && self.fit(length).is_some() || {
            self.learn(lane.consumed.0.load(Acquire) as u16);
            self.on_its_way() < SLOTS && self.fit(length).is_some()
        }
    }

    /// Takes in how many records the other end says that it has taken.
    #[inline(always)]
    pub fn learn(&mut self, taken: u16) {
        let fresh = taken.wrapping_sub(self.taken);
        if fresh > self.sent.wrapping_sub(self.taken) {
            return; // an old word, or a lie
        }
        for _ in 0..fresh {
            self.used -= self.spans[usize::from(self.taken) % SLOTS] as usize;
            self.taken = self.taken.wrapping_add(1);
        }
    }

    fn on_its_way(&self) -> usize {
        usize::from(self.sent.wrapping_sub(self.taken))
    }

    /// Takes room for a record; answers where it begins in the area.
    #[inline(always)]
    fn room(&mut self, lane: &Lane, length: usize) -> Option<usize> {
        if self.on_its_way() >= SLOTS && !self.has_room(lane, length) {
            return None;
        }
        let span = &mut self.spans[usize::from(self.sent) % SLOTS];
        if length <= INLINE_BYTES_MAX {
            *span = 0;
            return Some(0);
        }
        if self.fit(length).is_none() && !self.has_room(lane, length) {
            return None;
        }
        let (place, span) = self.fit(length)?;
        self.spans[usize::from(self.sent) % SLOTS] = span as u32;
        self.used += span;
        self.head = (place + lines(length)) % AREA_BYTES;
        Some(place)
    }

    /// Where a record of this length would begin in the area, and how much of it it would use.
    fn fit(&self, length: usize) -> Option<(usize, usize)> {
        if length <= INLINE_BYTES_MAX {
            return Some((0, 0));
        }
        let needed = lines(length);
        let (place, span) = match self.head {
            _ if self.used == 0 => (0, needed),
            head if needed <= AREA_BYTES - head => (head, needed),
            head => (0, AREA_BYTES - head + needed),
        };
        (self.used + span <= AREA_BYTES).then_some((place, span))
    }
}

/// Whole lines that hold `length` bytes, in bytes.
fn lines(length: usize) -> usize {
    length.next_multiple_of(LINE_BYTES)
}

/// The receiving end of a lane.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Records taken, modulo 2^16.
    taken: u16,
    /// The first record, where a part of it was taken.
    open: Option<(Header, usize)>,
    /// Bytes taken out of the area, for [`Consumer::quarter`].
    drained: usize,
}

impl Consumer {
    /// Records taken so far, modulo 2^16.
    #[inline(always)]
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Whether a record, or the rest of one, is there.
    #[inline(always)]
    pub fn is_ready(&self, lane: &Lane) -> bool {
        self.open.is_some() || self.arrived(lane).is_some()
    }

    /// The header of the next record, if it is there.
    #[inline(always)]
    fn arrived(&self, lane: &Lane) -> Option<Header> {
        let slot = &lane.slots[usize::from(self.taken) % SLOTS];
        let header = Header::unpack(slot.header.load(Acquire));
        (header.sequence == self.taken.wrapping_add(1)).then_some(header)
    }

    /// Takes bytes of the next record into `buffer`, as many as it holds; the rest stays for the
    /// next call. None if no record is there; else the bytes, and the count of taken records of
    /// the other direction that came with it.
    #[inline(always)]
    pub fn take(&mut self, lane: &Lane, buffer: &mut [u8]) -> Option<(usize, u16)> {
        let (header, begin) = match self.open {
            Some(open) => open,
            None => (self.arrived(lane)?, 0),
        };
        let (area, from, length) = place(header);
        let count = length.saturating_sub(begin).min(buffer.len());
        if area {
            lane.area.read(from + begin, &mut buffer[..count]);
        } else {
            let slot = &lane.slots[usize::from(self.taken) % SLOTS];
            slot.bytes.read(begin, &mut buffer[..count]);
        }
        if begin + count < length {
            self.open = Some((header, begin + count));
        } else {
            self.release(lane, if area { length } else { 0 });
        }
        Some((count, header.taken))
    }

    /// Takes the next record whole, cut to `buffer`.
    pub fn take_record(&mut self, lane: &Lane, buffer: &mut [u8]) -> Option<(usize, u16)> {
        let taken = self.take(lane, buffer)?;
        if let Some((header, _)) = self.open {
            let (area, _, length) = place(header);
            self.release(lane, if area { length } else { 0 });
        }
        Some(taken)
    }

    #[inline(always)]
    fn release(&mut self, lane: &Lane, drained: usize) {
        self.open = None;
        self.drained = self.drained.wrapping_add(drained);
        self.taken = self.taken.wrapping_add(1);
        lane.consumed.0.store(u32::from(self.taken), Release);
    }

    /// A number that changes each time a quarter of the slots or of the area has been taken: when a
    /// producer that found no room is to be woken. More often would not help it, and a look at
    /// whether it sleeps is dear.
    #[inline(always)]
    pub fn quarter(&self) -> (usize, usize) {
        let slots = const { if SLOTS >= 4 { SLOTS / 4 } else { 1 } };
        (usize::from(self.taken) / slots, self.drained / (AREA_BYTES / 4))
    }
}

/// Whether a record lies in the area, from where, and how long it can be.
#[inline(always)]
fn place(header: Header) -> (bool, usize, usize) {
    let length = usize::from(header.length).min(RECORD_BYTES_MAX);
    if length <= INLINE_BYTES_MAX {
        return (false, 0, length);
    }
    let from = usize::from(header.place) * LINE_BYTES % AREA_BYTES;
    (true, from, length.min(AREA_BYTES - from))
}
