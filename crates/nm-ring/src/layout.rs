//! What lies where in the shared memory. All zero is a valid beginning: nothing sent, both awake.
//!
//! ```text
//! Region  sides[2]   one for each end: whether it sleeps, its CPU, how far it has got
//!         lanes[2]   one for each direction:
//!                      consumed   records taken, written by the receiver
//!                      slots[64]  header, then the record if it is short
//!                      area       256 KiB for records that are longer, each in contiguous lines
//! ```
//!
//! A header is one word: sequence number, what its sender has taken of the other direction, length
//! and place in the area. It shares its cache line with the first 56 bytes of the record, so that a
//! small message costs the transfer of one line. A slot begins at a pair of lines, which the
//! processor likes to fetch together.

use crate::sync::{AtomicU32, AtomicU64, Bytes, Word};

/// Bytes of a cache line of x86-64 and of most AArch64.
pub const LINE_BYTES: usize = 64;

/// Records that may be on their way in one direction.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };

/// Longest record that lies in its slot.
pub const INLINE_BYTES_MAX: usize = if cfg!(loom) { 1 } else { 6 * LINE_BYTES - 8 };

/// Bytes of the area of one direction.
pub const AREA_BYTES: usize = if cfg!(loom) { 8 * LINE_BYTES } else { 256 * 1024 };

/// Longest record. An eighth of the area, so that several are on their way.
pub const RECORD_BYTES_MAX: usize = AREA_BYTES / 8;

/// One end's own words; the other end only reads them, but for waking.
#[repr(C, align(128))]
pub struct Side {
    /// Not zero while this end sleeps or is about to.
    pub asleep: Word,
    /// Whether this end ever sleeps: see [`Manner`](crate::wake::Manner).
    pub manner: AtomicU32,
    /// CPU on which this end waited last, plus one; zero while it is not known.
    pub cpu: AtomicU32,
    /// Bits of [`FINISHED`] and [`GONE`].
    pub state: AtomicU32,
}

/// State of a side that sends no more.
pub const FINISHED: u32 = 1;

/// State of a side that has left: it sends no more and takes no more.
pub const GONE: u32 = 2;

/// A counter alone on its pair of lines.
#[repr(C, align(128))]
pub struct Consumed(pub AtomicU32);

/// Place of one record: its header, and the record itself if it is short.
#[repr(C, align(128))]
pub struct Slot {
    /// See [`Header`](crate::lane::Header).
    pub header: AtomicU64,
    /// The record.
    pub bytes: Bytes<INLINE_BYTES_MAX>,
}

/// One direction.
#[repr(C, align(128))]
pub struct Lane {
    /// Records taken, modulo 2^16.
    pub consumed: Consumed,
    /// The records' headers, round and round.
    pub slots: [Slot; SLOTS],
    /// The longer records.
    pub area: Bytes<AREA_BYTES>,
}

/// All of it.
#[repr(C, align(128))]
pub struct Region {
    /// The two ends.
    pub sides: [Side; 2],
    /// `lanes[0]` leads from `sides[0]` to `sides[1]`, `lanes[1]` back.
    pub lanes: [Lane; 2],
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Side>() == 128 && offset_of!(Side, asleep) == 0);
    assert!(size_of::<Slot>() == 6 * LINE_BYTES && align_of::<Slot>() == 2 * LINE_BYTES);
    assert!(offset_of!(Slot, header) == 0 && offset_of!(Slot, bytes) == 8);
    assert!(offset_of!(Lane, slots) == 128);
    assert!(offset_of!(Lane, area) == 128 + SLOTS * 6 * LINE_BYTES);
    assert!(size_of::<Lane>() == offset_of!(Lane, area) + AREA_BYTES);
    assert!(offset_of!(Region, lanes) == 256);
    assert!(size_of::<Region>() == 256 + 2 * size_of::<Lane>());
};

// What the fields of a header hold, and what masks rely on.
const _: () = {
    assert!(SLOTS.is_power_of_two() && SLOTS < 1 << 15);
    assert!(AREA_BYTES.is_power_of_two() && AREA_BYTES / LINE_BYTES <= 1 << 16);
    assert!(RECORD_BYTES_MAX < 1 << 16 && RECORD_BYTES_MAX.is_multiple_of(LINE_BYTES));
    assert!(INLINE_BYTES_MAX < RECORD_BYTES_MAX);
};

#[cfg(loom)]
impl Region {
    /// A region for loom, whose atomics cannot be conjured from zeros.
    pub fn new() -> Region {
        let side = || Side {
            asleep: Word::new(),
            manner: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            state: AtomicU32::new(0),
        };
        let slot = |_| Slot { header: AtomicU64::new(0), bytes: Bytes::new() };
        let lane = || Lane {
            consumed: Consumed(AtomicU32::new(0)),
            slots: std::array::from_fn(slot),
            area: Bytes::new(),
        };
        Region { sides: [side(), side()], lanes: [lane(), lane()] }
    }
}
