//! Receive coalescing: a receiver of a stream of small messages pauses before it looks for more.
//!
//! A receiver that looks after each message takes the cache line away that the sender is about to
//! write. Each message then costs both ends the transfer of lines. While the receiver leaves the
//! line alone, the sender writes message after message in its own cache, and the next receives find
//! them there.
//!
//! A pause delays messages. So it is made only where many of them came in a short time, this end
//! has answered none, and the pauses make a difference.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Receives in a row after which the messages may be a stream.
const STREAM_RECEIVES: u32 = 64;

/// The receives from this one on are timed: the answers of a ping-pong begin a row each, and need
/// not read the clock.
const TIMED_FROM: u32 = 8;

/// Longest time of these receives of a stream, ns: less than 2 µs each.
const STREAM_NS: u64 = 100_000;

/// Largest messages that are paused for, bytes; larger ones were not measured.
const MESSAGE_BYTES_MAX: u32 = 1024;

/// A pause pays if it finds so many times the bytes of a receive without one.
const PAYING_FACTOR: u32 = 4;

/// The time of a pause, ns: twice as much raised the rate of messages of 64 B by 1 %.
pub const PAUSE_NS: u64 = 1_000;

/// What the last receives of a socket were like. Threads that receive on one socket at the same
/// time may spoil the counts, which costs a pause or misses one.
#[derive(Debug, Default)]
pub struct Coalescing {
    /// Bytes that this end had sent at its last receive.
    sent: AtomicU64,
    /// Receives in a row, at most [`STREAM_RECEIVES`].
    receives: AtomicU32,
    /// Time of the first one that is timed.
    began_ns: AtomicU64,
    /// Bytes of these receives.
    bytes: AtomicU32,
}

impl Coalescing {
    /// No receives yet.
    pub const fn new() -> Coalescing {
        Coalescing {
            sent: AtomicU64::new(0),
            receives: AtomicU32::new(0),
            began_ns: AtomicU64::new(0),
            bytes: AtomicU32::new(0),
        }
    }

    /// Whether a receive of an end that has sent `sent` bytes should pause first; `readable` counts
    /// the bytes that are there now.
    #[inline(always)]
    pub fn is_pause_due(&self, sent: u64, readable: impl FnOnce() -> usize) -> bool {
        if self.sent.load(Ordering::Relaxed) != sent {
            self.sent.store(sent, Ordering::Relaxed);
            self.end_stream();
            return false;
        }
        self.receives.load(Ordering::Relaxed) == STREAM_RECEIVES && readable() < self.paying_bytes()
    }

    /// After a pause that has found so many bytes.
    pub fn note_pause(&self, readable: usize) {
        if readable < self.paying_bytes() {
            self.end_stream();
        }
    }

    /// A receive took so many bytes from memory.
    #[inline(always)]
    pub fn note_receive(&self, bytes: usize, now_ns: impl FnOnce() -> u64) {
        let receives = self.receives.load(Ordering::Relaxed) + 1;
        if receives > STREAM_RECEIVES {
            return;
        }
        if receives == TIMED_FROM {
            self.began_ns.store(now_ns(), Ordering::Relaxed);
        } else if receives == STREAM_RECEIVES {
            let began_ns = self.began_ns.load(Ordering::Relaxed);
            if now_ns().saturating_sub(began_ns) > STREAM_NS {
                self.end_stream();
                return;
            }
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let sum = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if sum > STREAM_RECEIVES * MESSAGE_BYTES_MAX {
            self.end_stream();
            return;
        }
        self.bytes.store(sum, Ordering::Relaxed);
        self.receives.store(receives, Ordering::Relaxed);
    }

    /// The next messages are no stream yet.
    #[inline(always)]
    pub fn end_stream(&self) {
        self.receives.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes that a pause must find to pay.
    fn paying_bytes(&self) -> usize {
        let sum = self.bytes.load(Ordering::Relaxed);
        (sum / STREAM_RECEIVES).saturating_mul(PAYING_FACTOR) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: usize = 64;

    /// A socket that has received small messages without sending, one every so many ns.
    fn after_receives(count: u32, interval_ns: u64) -> Coalescing {
        let coalescing = Coalescing::new();
        for number in 0..count {
            assert!(!coalescing.is_pause_due(0, || 0), "not a stream yet");
            coalescing.note_receive(MESSAGE, || u64::from(number) * interval_ns);
        }
        coalescing
    }

    #[test]
    fn a_stream_pauses_while_pauses_pay_and_little_is_there() {
        let coalescing = after_receives(STREAM_RECEIVES, 200);
        for _ in 0..100 {
            assert!(coalescing.is_pause_due(0, || MESSAGE));
            coalescing.note_pause(8 * MESSAGE);
            assert!(!coalescing.is_pause_due(0, || 8 * MESSAGE), "enough is there already");
            coalescing.note_receive(8 * MESSAGE, || 0);
        }
        coalescing.note_pause(MESSAGE);
        assert!(!coalescing.is_pause_due(0, || 0), "the last pause found no more than a receive");
    }

    #[test]
    fn messages_that_take_their_time_never_pause() {
        after_receives(10 * STREAM_RECEIVES, 2_000);
    }

    #[test]
    fn an_answer_ends_the_stream() {
        let coalescing = after_receives(STREAM_RECEIVES, 200);
        assert!(!coalescing.is_pause_due(1, || 0), "this end has sent a byte");
        assert!(!coalescing.is_pause_due(1, || 0));
    }

    #[test]
    fn a_ping_pong_never_pauses_nor_reads_the_clock() {
        let coalescing = Coalescing::new();
        for sent in 0..10 * u64::from(STREAM_RECEIVES) {
            assert!(!coalescing.is_pause_due(sent, || 0));
            coalescing.note_receive(MESSAGE, || panic!("the clock was read"));
        }
    }

    #[test]
    fn large_messages_never_pause() {
        let coalescing = Coalescing::new();
        for _ in 0..10 * STREAM_RECEIVES {
            assert!(!coalescing.is_pause_due(0, || 0));
            coalescing.note_receive(MESSAGE_BYTES_MAX as usize + 1, || 0);
        }
        coalescing.note_receive(usize::MAX, || 0);
        assert!(!coalescing.is_pause_due(0, || 0));
    }
}
