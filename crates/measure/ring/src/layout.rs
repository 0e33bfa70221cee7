//! Layout of the shared region of two record queues. All zero is its valid initial state: nothing
//! sent, both endpoints awake.
//!
//! ```text
//! Region  endpoints[2]  one for each end: whether it sleeps, its CPU, which directions are shut
//!         queues[2]     one for each direction:
//!                         consumed   records consumed, written by the consumer
//!                         slots[64]  header, then the record if it is short
//!                         area       256 KiB for longer records, each contiguous
//! ```
//!
//! A header is one word: sequence number, count of records that its sender has consumed in the
//! other direction, length, and position in the area. It shares its cache line with the first 56
//! bytes of the record, so that a small message costs the transfer of one line. A slot starts at a
//! pair of lines, because the processor prefetches lines in pairs.

use crate::sync::{AtomicU32, AtomicU64, Bytes, Word};

/// Bytes of a cache line of x86-64 and of most AArch64.
pub const LINE_BYTES: usize = 64;

/// Records that may be in flight in one direction.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };

/// Longest record that is stored in its slot.
pub const INLINE_BYTES_MAX: usize = if cfg!(loom) { 1 } else { 6 * LINE_BYTES - 8 };

/// Bytes of the area of one direction.
pub const AREA_BYTES: usize = if cfg!(loom) { 8 * LINE_BYTES } else { 256 * 1024 };

/// Longest record: an eighth of the area, so that several can be in flight.
pub const RECORD_BYTES_MAX: usize = AREA_BYTES / 8;

/// State that one end publishes. The other end only reads it, except that it clears `asleep` to
/// wake the sleeper.
#[repr(C, align(128))]
pub struct EndpointState {
    /// Not zero while this end sleeps or is about to.
    pub asleep: Word,
    /// Whether this end ever sleeps: see [`WaitStrategy`](crate::wake::WaitStrategy).
    pub wait_strategy: AtomicU32,
    /// CPU on which this end waited last, plus one; zero while it is not known.
    pub cpu: AtomicU32,
    /// Bits of [`WRITE_SHUT`] and [`CLOSED`].
    pub state: AtomicU32,
}

/// State bit of an end that sends no more.
pub const WRITE_SHUT: u32 = 1;

/// State bit of an end that was dropped: it neither sends nor receives.
pub const CLOSED: u32 = 2;

/// A counter alone on its pair of lines.
#[repr(C, align(128))]
pub struct Consumed(pub AtomicU32);

/// One record: its header, and its bytes if it is short.
#[repr(C, align(128))]
pub struct Slot {
    /// See [`Header`](crate::record_queue::Header).
    pub header: AtomicU64,
    /// The bytes of a short record.
    pub bytes: Bytes<INLINE_BYTES_MAX>,
}

/// The queue of one direction.
#[repr(C, align(128))]
pub struct RecordQueue {
    /// Records consumed, modulo 2^16.
    pub consumed: Consumed,
    /// The records' headers, used in a circle.
    pub slots: [Slot; SLOTS],
    /// The bytes of longer records.
    pub area: Bytes<AREA_BYTES>,
}

/// The shared region.
#[repr(C, align(128))]
pub struct Region {
    /// The two ends.
    pub endpoints: [EndpointState; 2],
    /// `queues[0]` leads from `endpoints[0]` to `endpoints[1]`, `queues[1]` back.
    pub queues: [RecordQueue; 2],
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<EndpointState>() == 128 && offset_of!(EndpointState, asleep) == 0);
    assert!(size_of::<Slot>() == 6 * LINE_BYTES && align_of::<Slot>() == 2 * LINE_BYTES);
    assert!(offset_of!(Slot, header) == 0 && offset_of!(Slot, bytes) == 8);
    assert!(offset_of!(RecordQueue, slots) == 128);
    assert!(offset_of!(RecordQueue, area) == 128 + SLOTS * 6 * LINE_BYTES);
    assert!(size_of::<RecordQueue>() == offset_of!(RecordQueue, area) + AREA_BYTES);
    assert!(offset_of!(Region, queues) == 256);
    assert!(size_of::<Region>() == 256 + 2 * size_of::<RecordQueue>());
};

// The header's fields hold these values, and masks need powers of two.
const _: () = {
    assert!(SLOTS.is_power_of_two() && SLOTS < 1 << 15);
    assert!(AREA_BYTES.is_power_of_two() && AREA_BYTES / LINE_BYTES <= 1 << 16);
    assert!(RECORD_BYTES_MAX < 1 << 16 && RECORD_BYTES_MAX.is_multiple_of(LINE_BYTES));
    assert!(INLINE_BYTES_MAX < RECORD_BYTES_MAX);
};

#[cfg(loom)]
impl Region {
    /// A region for loom, whose atomics cannot be made by zeroing memory.
    pub fn new() -> Region {
        let endpoint = || EndpointState {
            asleep: Word::new(),
            wait_strategy: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            state: AtomicU32::new(0),
        };
        let slot = |_| Slot { header: AtomicU64::new(0), bytes: Bytes::new() };
        let queue = || RecordQueue {
            consumed: Consumed(AtomicU32::new(0)),
            slots: std::array::from_fn(slot),
            area: Bytes::new(),
        };
        Region { endpoints: [endpoint(), endpoint()], queues: [queue(), queue()] }
    }
}
