//! Receive coalescing: a receiver of a stream of small messages pauses before it looks for more.
//!
//! One that looks after each message takes the cache line away that the sender is about to write,
//! and each message costs both ends the transfer of lines. While the receiver leaves the line
//! alone, the sender writes message after message in its own cache, and the next receives find them
//! there.
//!
//! A pause delays messages, so it is made only where they follow each other without a pause of
//! their own: none was waited for longer than a few checks of memory, this end has answered none,
//! and the pauses make a difference.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Prompt receives in a row after which the messages are a stream.
const STREAM_RECEIVES: u32 = 64;

/// Largest messages that are worth a pause, bytes: with larger ones the copy costs more than the
/// transfer of the line.
const MESSAGE_BYTES_MAX: u32 = 1024;

/// A pause pays if it finds so many times the bytes of a receive without one.
const PAYING_FACTOR: u32 = 4;

/// The time of a pause, ns: with twice as much, the rate of messages of 64 B was no higher.
pub const PAUSE_NS: u64 = 1_000;

/// What the last receives of a socket were like. Threads that receive on one socket at the same
/// time may spoil the counts, which costs a pause or misses one.
#[derive(Debug, Default)]
pub struct Coalescing {
    /// Bytes that this end had sent at its last receive.
    sent: AtomicU64,
    /// Prompt receives in a row, at most [`STREAM_RECEIVES`].
    receives: AtomicU32,
    /// Bytes of these receives.
    bytes: AtomicU32,
}

impl Coalescing {
    /// No receives yet.
    pub const fn new() -> Coalescing {
        let (sent, receives) = (AtomicU64::new(0), AtomicU32::new(0));
        Coalescing { sent, receives, bytes: AtomicU32::new(0) }
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

    /// A receive has found bytes at once, or after a few checks, and took so many.
    #[inline(always)]
    pub fn note_prompt_receive(&self, bytes: usize) {
        let receives = self.receives.load(Ordering::Relaxed);
        if receives == STREAM_RECEIVES {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let sum = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if sum > STREAM_RECEIVES * MESSAGE_BYTES_MAX {
            self.end_stream();
            return;
        }
        self.bytes.store(sum, Ordering::Relaxed);
        self.receives.store(receives + 1, Ordering::Relaxed);
    }

    /// A receive waited longer, or this end has sent: the next messages are no stream yet.
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

    fn stream() -> Coalescing {
        let coalescing = Coalescing::new();
        for _ in 0..STREAM_RECEIVES {
            assert!(!coalescing.is_pause_due(0, || 0), "not a stream yet");
            coalescing.note_prompt_receive(MESSAGE);
        }
        coalescing
    }

    #[test]
    fn a_stream_pauses_while_pauses_pay_and_little_is_there() {
        let coalescing = stream();
        for _ in 0..100 {
            assert!(coalescing.is_pause_due(0, || MESSAGE));
            coalescing.note_pause(8 * MESSAGE);
            assert!(!coalescing.is_pause_due(0, || 8 * MESSAGE), "enough is there already");
            coalescing.note_prompt_receive(8 * MESSAGE);
        }
        coalescing.note_pause(MESSAGE);
        assert!(!coalescing.is_pause_due(0, || 0), "the last pause found no more than a receive");
    }

    #[test]
    fn an_answer_or_a_longer_wait_ends_the_stream() {
        let coalescing = stream();
        assert!(!coalescing.is_pause_due(1, || 0), "this end has sent a byte");
        assert!(!coalescing.is_pause_due(1, || 0));
        let coalescing = stream();
        coalescing.end_stream();
        assert!(!coalescing.is_pause_due(0, || 0));
    }

    #[test]
    fn a_ping_pong_never_pauses() {
        let coalescing = Coalescing::new();
        for sent in 0..10 * u64::from(STREAM_RECEIVES) {
            assert!(!coalescing.is_pause_due(sent, || 0));
            coalescing.note_prompt_receive(MESSAGE);
        }
    }

    #[test]
    fn large_messages_never_pause() {
        let coalescing = Coalescing::new();
        for _ in 0..10 * STREAM_RECEIVES {
            assert!(!coalescing.is_pause_due(0, || 0));
            coalescing.note_prompt_receive(MESSAGE_BYTES_MAX as usize + 1);
        }
        coalescing.note_prompt_receive(usize::MAX);
        assert!(!coalescing.is_pause_due(0, || 0));
    }
}
