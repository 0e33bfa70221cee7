//! One direction: a queue of records from one [`Producer`] to one [`Consumer`].
//!
//! The producer fills a slot and then publishes its header. The consumer sees the header, copies
//! the record out, and then publishes that it has consumed it. The headers of the other direction
//! carry the same count, which costs the producer nothing. It reads the consumer's own counter only
//! when it has no space. While nothing is in flight, long records start at the beginning of the
//! area again. So request and response stay in a few hot cache lines.
//!
//! Nothing that the other end writes is trusted. A header with an unexpected sequence number is no
//! record, a length is clamped, a position is masked. A count of consumed records that exceeds the
//! sent ones is ignored.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::layout::{
    AREA_BYTES, INLINE_BYTES_MAX, LINE_BYTES, RECORD_BYTES_MAX, RecordQueue, SLOTS,
};

/// The fields of a slot's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the record, counted from 1, modulo 2^16.
    pub sequence: u16,
    /// Records that the sender of this header has consumed in the other direction, modulo 2^16.
    pub consumed: u16,
    /// Bytes of the record.
    pub length: u16,
    /// Cache line of the area where it begins; unused for a short record.
    pub area_line: u16,
}

impl Header {
    /// Encodes the header as the word in the slot.
    #[inline(always)]
    pub fn pack(self) -> u64 {
        u64::from(self.sequence)
            | u64::from(self.consumed) << 16
            | u64::from(self.length) << 32
            | u64::from(self.area_line) << 48
    }

    /// Decodes the word in the slot; every word is a header.
    #[inline(always)]
    pub fn unpack(word: u64) -> Header {
        Header {
            sequence: word as u16,
            consumed: (word >> 16) as u16,
            length: (word >> 32) as u16,
            area_line: (word >> 48) as u16,
        }
    }
}

/// The sending end of a queue.
#[derive(Debug)]
pub struct Producer {
    /// Records sent, modulo 2^16.
    sent: u16,
    /// Records known to be consumed, modulo 2^16.
    consumed: u16,
    /// Where the next long record would begin, bytes.
    head: usize,
    /// Bytes of the area in use, including those skipped at its end.
    used_bytes: usize,
    /// Part of `used_bytes` that belongs to the record of each slot.
    slot_bytes: [u32; SLOTS],
}

impl Default for Producer {
    fn default() -> Producer {
        Producer { sent: 0, consumed: 0, head: 0, used_bytes: 0, slot_bytes: [0; SLOTS] }
    }
}

impl Producer {
    /// Sends `record` of at most [`RECORD_BYTES_MAX`] bytes; false if there is no space. `consumed`
    /// is the count of records that this end has consumed in the other direction.
    #[inline(always)]
    pub fn push(&mut self, queue: &RecordQueue, record: &[u8], consumed: u16) -> bool {
        debug_assert!(record.len() <= RECORD_BYTES_MAX);
        let Some(offset) = self.reserve(queue, record.len()) else { return false };
        let slot = &queue.slots[usize::from(self.sent) % SLOTS];
        let area_line = if record.len() <= INLINE_BYTES_MAX {
            slot.bytes.write(0, record);
            0
        } else {
            queue.area.write(offset, record);
            offset / LINE_BYTES
        };
        self.sent = self.sent.wrapping_add(1);
        debug_assert!(self.in_flight() <= SLOTS && self.used_bytes <= AREA_BYTES);
        let header = Header {
            sequence: self.sent,
            consumed,
            length: record.len() as u16,
            area_line: area_line as u16,
        };
        slot.header.store(header.pack(), Release);
        true
    }

    /// Whether a record of this length could be sent now.
    pub fn has_space(&mut self, queue: &RecordQueue, length: usize) -> bool {
        self.in_flight() < SLOTS && self.find_space(length).is_some() || {
            self.update_consumed(queue.consumed.0.load(Acquire) as u16);
            self.in_flight() < SLOTS && self.find_space(length).is_some()
        }
    }

    /// Frees the slots of the records that the other end reports as consumed.
    #[inline(always)]
    pub fn update_consumed(&mut self, consumed: u16) {
        let newly_consumed = consumed.wrapping_sub(self.consumed);
        if newly_consumed > self.sent.wrapping_sub(self.consumed) {
            return; // an outdated count, or a wrong one of a hostile peer
        }
        for _ in 0..newly_consumed {
            self.used_bytes -= self.slot_bytes[usize::from(self.consumed) % SLOTS] as usize;
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    fn in_flight(&self) -> usize {
        usize::from(self.sent.wrapping_sub(self.consumed))
    }

    /// Reserves space for a record; returns its offset in the area.
    #[inline(always)]
    fn reserve(&mut self, queue: &RecordQueue, length: usize) -> Option<usize> {
        if self.in_flight() >= SLOTS && !self.has_space(queue, length) {
            return None;
        }
        let slot_bytes = &mut self.slot_bytes[usize::from(self.sent) % SLOTS];
        if length <= INLINE_BYTES_MAX {
            *slot_bytes = 0;
            return Some(0);
        }
        if self.find_space(length).is_none() && !self.has_space(queue, length) {
            return None;
        }
        let (offset, bytes) = self.find_space(length)?;
        self.slot_bytes[usize::from(self.sent) % SLOTS] = bytes as u32;
        self.used_bytes += bytes;
        self.head = (offset + line_aligned(length)) % AREA_BYTES;
        Some(offset)
    }

    /// Offset of a record of this length in the area, and the bytes that it would use.
    fn find_space(&self, length: usize) -> Option<(usize, usize)> {
        if length <= INLINE_BYTES_MAX {
            return Some((0, 0));
        }
        let needed = line_aligned(length);
        let (offset, bytes) = match self.head {
            _ if self.used_bytes == 0 => (0, needed),
            head if needed <= AREA_BYTES - head => (head, needed),
            head => (0, AREA_BYTES - head + needed),
        };
        (self.used_bytes + bytes <= AREA_BYTES).then_some((offset, bytes))
    }
}

/// `length` rounded up to full cache lines, in bytes.
fn line_aligned(length: usize) -> usize {
    length.next_multiple_of(LINE_BYTES)
}

/// The receiving end of a queue.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Records consumed, modulo 2^16.
    consumed: u16,
    /// The first record and the count of its bytes that were read, if it was read in part.
    partial: Option<(Header, usize)>,
    /// Bytes consumed from the area, for [`Consumer::quarter`].
    area_bytes_consumed: usize,
}

impl Consumer {
    /// Records consumed so far, modulo 2^16.
    #[inline(always)]
    pub fn consumed(&self) -> u16 {
        self.consumed
    }

    /// Whether a record, or the rest of one, can be read.
    #[inline(always)]
    pub fn is_ready(&self, queue: &RecordQueue) -> bool {
        self.partial.is_some() || self.next_header(queue).is_some()
    }

    /// The header of the next record, if that has arrived.
    #[inline(always)]
    fn next_header(&self, queue: &RecordQueue) -> Option<Header> {
        let slot = &queue.slots[usize::from(self.consumed) % SLOTS];
        let header = Header::unpack(slot.header.load(Acquire));
        (header.sequence == self.consumed.wrapping_add(1)).then_some(header)
    }

    /// Reads bytes of the next record into `buffer`, as many as it holds; the rest stays for the
    /// next call. None if there is no record; else the count of bytes, and the count of consumed
    /// records of the other direction that the header carried.
    #[inline(always)]
    pub fn read(&mut self, queue: &RecordQueue, buffer: &mut [u8]) -> Option<(usize, u16)> {
        let (header, begin) = match self.partial {
            Some(partial) => partial,
            None => (self.next_header(queue)?, 0),
        };
        let (in_area, offset, length) = payload_location(header);
        let count = length.saturating_sub(begin).min(buffer.len());
        if in_area {
            queue.area.read(offset + begin, &mut buffer[..count]);
        } else {
            let slot = &queue.slots[usize::from(self.consumed) % SLOTS];
            slot.bytes.read(begin, &mut buffer[..count]);
        }
        if begin + count < length {
            self.partial = Some((header, begin + count));
        } else {
            self.release(queue, if in_area { length } else { 0 });
        }
        Some((count, header.consumed))
    }

    /// Reads one record, truncated to `buffer`, and releases it.
    pub fn read_record(&mut self, queue: &RecordQueue, buffer: &mut [u8]) -> Option<(usize, u16)> {
        let read = self.read(queue, buffer)?;
        if let Some((header, _)) = self.partial {
            let (in_area, _, length) = payload_location(header);
            self.release(queue, if in_area { length } else { 0 });
        }
        Some(read)
    }

    #[inline(always)]
    fn release(&mut self, queue: &RecordQueue, area_bytes: usize) {
        self.partial = None;
        self.area_bytes_consumed = self.area_bytes_consumed.wrapping_add(area_bytes);
        self.consumed = self.consumed.wrapping_add(1);
        queue.consumed.0.store(u32::from(self.consumed), Release);
    }

    /// A value that changes each time a quarter of the slots or of the area has been consumed: then
    /// a producer that waits for space is woken. Waking it more often would not help, and checking
    /// whether it sleeps is expensive.
    #[inline(always)]
    pub fn quarter(&self) -> (usize, usize) {
        let slots = const { if SLOTS >= 4 { SLOTS / 4 } else { 1 } };
        (usize::from(self.consumed) / slots, self.area_bytes_consumed / (AREA_BYTES / 4))
    }
}

/// Whether a record is stored in the area, its offset there, and its length, clamped to valid
/// values.
#[inline(always)]
fn payload_location(header: Header) -> (bool, usize, usize) {
    let length = usize::from(header.length).min(RECORD_BYTES_MAX);
    if length <= INLINE_BYTES_MAX {
        return (false, 0, length);
    }
    let offset = usize::from(header.area_line) * LINE_BYTES % AREA_BYTES;
    (true, offset, length.min(AREA_BYTES - offset))
}
