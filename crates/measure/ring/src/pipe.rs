//! One direction of a connection: a pipe of bytes in shared memory.
//!
//! A message of at most [`INLINE_BYTES_MAX`] bytes lies in the same cache line as the position that
//! publishes it. So it costs the transfer of one line. This inline copy is valid until the next
//! push overwrites it. For a receiver that comes later the sender writes the same bytes to the area
//! as well, but *after* it has published them. So that is not on the path that the receiver waits
//! on. This gives the invariant of the whole protocol. A thread that sees the control word
//! (written, inline) finds all bytes before `written − inline` in the area. It finds the inline
//! bytes there too as soon as the control word has changed again.
//!
//! The inline words are a seqlock whose version is the control word itself. The sender first
//! publishes "nothing inline", which is true because the area has all bytes by then. Then come a
//! fence, the words, and the new position with release ordering. The receiver reads position,
//! words, fence, position: if the position has not changed, the words belong to it. The position
//! cannot return to an old value, because each position is published with inline bytes only once.
//!
//! Each end keeps its own position in its own cache lines. The sender reads the receiver's position
//! only when the remembered one leaves too little space. All state is in shared memory, so that a
//! fork shares it. Each end allows one thread at a time: its user locks it.
//!
//! Whoever takes the bytes advances the consumed position, by compare-and-swap. That is the
//! receiver as a rule. It may be the sender, which takes bytes back ([`Pipe::take_back`]) that
//! nobody has received, to send them another way. A pull that loses against it returns nothing.
//!
//! [`KernelUse`] is for a user whose bytes can also go another way, through the kernel. The
//! receiving end counts there who relies on that way, and what came that way.
//!
//! Nothing that the other end can write is trusted. Distances between positions are clamped to the
//! pipe's length, and positions in the area are masked. So a hostile peer can corrupt its own bytes
//! only.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

#[cfg(not(loom))]
use crate::layout::LINE_BYTES;
use crate::sync::{AtomicU32, AtomicU64, Bytes, fence};
use crate::words;

/// Bytes that may be in flight in one direction of a socket.
pub const PIPE_BYTES: usize = if cfg!(loom) { 16 } else { 256 * 1024 };

/// Longest message that is stored beside its position, bytes.
pub const INLINE_BYTES_MAX: usize = 8 * INLINE_WORDS;

/// Words for the inline bytes: the control word takes the rest of the cache line.
const INLINE_WORDS: usize = if cfg!(loom) { 1 } else { 7 };

/// [`Pipe::QUARTER_BYTES`] of a socket's pipe.
pub const QUARTER_BYTES: usize = PIPE_BYTES / 4;

/// Bytes of the area after a small message whose lines the sender asks for: eight lines, by trial.
#[cfg(not(loom))]
const PREFETCHED_BYTES: usize = 512;

/// Longest message after which it does; the lines of a longer one are asked for by its copy, all at
/// the same time.
#[cfg(not(loom))]
const PREFETCHING_BYTES_MAX: usize = 1024;

/// Bits of the control word that hold the count of inline bytes. The rest is the position modulo
/// 2^58; its distance to the receiver's position is unambiguous, so that it may wrap.
const INLINE_BITS: u32 = 6;

/// Bits of a position in the control word.
const POSITION_BITS: u32 = 64 - INLINE_BITS;

const _: () = {
    assert!(INLINE_BYTES_MAX < 1 << INLINE_BITS);
};

/// The position and the inline bytes, written by the sender: one cache line.
#[repr(C, align(128))]
struct ControlLine {
    /// Bytes written modulo 2^58 (the high 58 bits), then the count of inline bytes before it.
    word: AtomicU64,
    /// The last bytes written, little-endian.
    inline: [AtomicU64; INLINE_WORDS],
}

/// Bytes consumed, written by the receiver.
#[repr(C, align(128))]
struct ConsumedLine {
    position: AtomicU64,
}

/// Which threads sleep. Written by the sleeper, and by the thread that wakes it.
#[repr(C, align(128))]
struct WaitFlags {
    reader: AtomicU32,
    writer: AtomicU32,
}

/// Use of the other way, through the kernel; written by the receiving end. The sending end reads it
/// and must not trust it.
#[repr(C, align(128))]
pub struct KernelUse {
    /// Threads and registrations of the receiving end that rely on the kernel: the sender must send
    /// through the kernel while it is not zero.
    pub users: AtomicU32,
    /// Not zero while a thread sleeps on this word until the pipe has bytes.
    pub sleeper: AtomicU32,
    /// Bytes that the receiving end has received from the kernel, plus one; zero means unknown.
    pub received: AtomicU64,
}

/// Written by the sending end, for the receiving end.
#[repr(C, align(128))]
pub struct KernelSent {
    /// Bytes that the sending end has sent through the kernel, plus one; zero means unknown.
    pub sent: AtomicU64,
    /// Times that bytes were taken back.
    pub take_backs_begun: AtomicU32,
    /// Times that bytes which were taken back have been sent through the kernel: until then they
    /// are in neither place.
    pub take_backs_ended: AtomicU32,
}

/// What only the sending end uses.
#[repr(C, align(128))]
struct SenderState {
    /// Bytes written, in full.
    sent: AtomicU64,
    /// Bytes consumed when the sender last read the receiver's position.
    known_consumed: AtomicU64,
}

/// What only the receiving end uses.
#[repr(C, align(128))]
struct ReceiverState {
    /// Bytes consumed at the last check whether the writer sleeps.
    wake_checked_at: AtomicU64,
}

/// One direction with space for `BYTES` bytes, a power of two. All zero is a valid initial state.
#[repr(C, align(128))]
pub struct Pipe<const BYTES: usize = PIPE_BYTES> {
    control: ControlLine,
    consumed: ConsumedLine,
    wait_flags: WaitFlags,
    /// Use of the way through the kernel.
    pub kernel_use: KernelUse,
    /// Bytes sent through the kernel.
    pub kernel_sent: KernelSent,
    sender: SenderState,
    receiver: ReceiverState,
    area: Bytes<BYTES>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(Pipe, consumed) == 128 && offset_of!(Pipe, wait_flags) == 256);
    assert!(offset_of!(Pipe, area) == 7 * 128);
    assert!(size_of::<Pipe>() == 7 * 128 + PIPE_BYTES);
};

#[inline(always)]
fn pack(position: u64, inline: usize) -> u64 {
    position << INLINE_BITS | inline as u64
}

/// Count of inline bytes in the control word, clamped.
#[inline(always)]
fn inline_count(control: u64) -> usize {
    ((control & ((1 << INLINE_BITS) - 1)) as usize).min(INLINE_BYTES_MAX)
}

impl<const BYTES: usize> Pipe<BYTES> {
    /// Free bytes at which a sleeping writer is woken at the latest.
    pub const QUARTER_BYTES: usize = BYTES / 4;

    /// Bytes between the receiver's position and the control word's, at most `BYTES`; none if the
    /// control word is behind.
    #[inline(always)]
    fn distance(control: u64, consumed: u64) -> usize {
        const { assert!(BYTES.is_power_of_two() && INLINE_BYTES_MAX <= BYTES) };
        let ahead = (control >> INLINE_BITS).wrapping_sub(consumed) & (u64::MAX >> INLINE_BITS);
        if ahead >> (POSITION_BITS - 1) != 0 { 0 } else { ahead.min(BYTES as u64) as usize }
    }

    /// Bytes that the receiver could read now. May be called without a lock.
    #[inline(always)]
    pub fn readable(&self) -> usize {
        // In this order, so that the control word is not older than the position.
        let consumed = self.consumed.position.load(Acquire);
        Self::distance(self.control.word.load(Acquire), consumed)
    }

    /// Bytes that the sender could push now, at least: above half of the pipe it does not check for
    /// newly consumed bytes. May be called without a lock.
    #[inline(always)]
    pub fn writable(&self) -> usize {
        self.space_for(self.sender.sent.load(Relaxed), BYTES / 2)
    }

    /// Bytes written since the beginning, as the receiving end sees it.
    pub fn written(&self) -> u64 {
        let consumed = self.consumed();
        consumed.wrapping_add(Self::distance(self.control.word.load(Acquire), consumed) as u64)
    }

    /// Bytes written since the beginning, as the sending end sees it. Exact for the thread that
    /// sends.
    #[inline(always)]
    pub fn sent(&self) -> u64 {
        self.sender.sent.load(Relaxed)
    }

    /// Bytes consumed since the beginning.
    #[inline(always)]
    pub fn consumed(&self) -> u64 {
        self.consumed.position.load(Acquire)
    }

    /// Space at the position `sent`, exact if it is below `wanted`.
    #[inline(always)]
    fn space_for(&self, sent: u64, wanted: usize) -> usize {
        let space = |consumed: u64| BYTES - sent.wrapping_sub(consumed).min(BYTES as u64) as usize;
        let known = space(self.sender.known_consumed.load(Relaxed));
        if known >= wanted {
            return known;
        }
        let consumed = self.consumed.position.load(Acquire);
        self.sender.known_consumed.store(consumed, Relaxed);
        space(consumed)
    }

    /// Sends as much of `bytes` as there is space for, and returns how much. One thread at a time.
    /// A sleeping reader must be woken: see [`Pipe::take_reader_waiting`] and [`KernelUse`].
    #[inline]
    pub fn push(&self, bytes: &[u8]) -> usize {
        let sent = self.sender.sent.load(Relaxed);
        let count = self.space_for(sent, bytes.len()).min(bytes.len());
        if count == 0 {
            return 0;
        }
        let bytes = &bytes[..count];
        if count <= INLINE_BYTES_MAX {
            self.publish_inline(sent, bytes);
        } else {
            self.write_area(sent, bytes);
            self.publish(sent, count);
        }
        count
    }

    /// Sends as much of the parts as there is space for, published at once, and returns the count
    /// of bytes. One thread at a time.
    pub fn push_parts<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> usize {
        let sent = self.sender.sent.load(Relaxed);
        let mut staged = [0; INLINE_BYTES_MAX];
        let (mut count, mut in_area) = (0usize, false);
        for part in parts {
            let wanted = count.saturating_add(part.len());
            let fitting = part.len().min(self.space_for(sent, wanted).saturating_sub(count));
            let now = &part[..fitting];
            if !in_area && count + fitting <= INLINE_BYTES_MAX {
                staged[count..count + fitting].copy_from_slice(now);
            } else {
                if !in_area {
                    self.write_area(sent, &staged[..count]);
                    in_area = true;
                }
                self.write_area(sent.wrapping_add(count as u64), now);
            }
            count += fitting;
            if fitting < part.len() {
                break;
            }
        }
        match count {
            0 => {}
            _ if in_area => self.publish(sent, count),
            _ => self.publish_inline(sent, &staged[..count]),
        }
        count
    }

    /// Publishes that the area holds `count` bytes from the position `sent` on.
    #[inline(always)]
    fn publish(&self, sent: u64, count: usize) {
        let position = sent.wrapping_add(count as u64);
        self.control.word.store(pack(position, 0), Release);
        self.sender.sent.store(position, Relaxed);
        #[cfg(not(loom))]
        self.prefetch_ahead(sent, count);
    }

    /// Sends at most [`INLINE_BYTES_MAX`] bytes, for which there is space, beside the position.
    #[inline(always)]
    fn publish_inline(&self, sent: u64, bytes: &[u8]) {
        let position = sent.wrapping_add(bytes.len() as u64);
        // With release ordering, so that a thread that sees it finds the previous inline bytes in
        // the area.
        self.control.word.store(pack(sent, 0), Release);
        // A thread that sees one of the words below also sees the control word above.
        fence(Release);
        words::store_bytes(bytes, |idx, word| self.control.inline[idx].store(word, Relaxed));
        self.control.word.store(pack(position, bytes.len()), Release);
        // A waiting receiver can read the inline bytes already; the area is for one that reads
        // after the next push.
        self.write_area(sent, bytes);
        self.sender.sent.store(position, Relaxed);
        #[cfg(not(loom))]
        self.prefetch_ahead(sent, bytes.len());
    }

    /// After a small message of `count` bytes at the position `sent`: asks for the lines that the
    /// next ones go to. Between CPUs that are far from each other, a sender of 64 B waited for each
    /// line otherwise and was four times slower; it seems that the receiver's CPU takes the lines,
    /// as it reads ahead.
    #[cfg(not(loom))]
    #[inline(always)]
    fn prefetch_ahead(&self, sent: u64, count: usize) {
        if count <= PREFETCHING_BYTES_MAX {
            let next = sent as usize % BYTES + count;
            for line in (next..next + PREFETCHED_BYTES).step_by(LINE_BYTES) {
                nm_sys::cpu::prefetch_for_write(self.area.address(line % BYTES));
            }
        }
    }

    /// Reads bytes into `buffer` and returns how many. It may be fewer than [`Pipe::readable`]
    /// returned if the sender writes meanwhile, and none if the sender has taken them back: then
    /// the content of `buffer` is undefined. One thread at a time; a sleeping writer must be woken:
    /// see [`Pipe::take_writer_waiting`].
    #[inline]
    pub fn pull(&self, buffer: &mut [u8]) -> usize {
        // Who finds that the sender has taken bytes back also sees what it announced before.
        let consumed = self.consumed.position.load(Acquire);
        let count = self.copy(consumed, 0, buffer);
        if count > 0 && !self.advance(consumed, count) {
            return 0;
        }
        count
    }

    /// Returns the memory of the area to the system, if nothing unread is in it; the next push
    /// takes new memory. Called by the sending thread.
    #[cfg(not(loom))]
    pub fn release_area(&self) {
        if self.readable() > 0 {
            return;
        }
        // SAFETY: the area lies in a mapping that is live as long as `self`; nothing in it is
        // needed, and the peer may read any bytes there.
        unsafe { nm_sys::shared_memory::release_pages(self.area.address(0), BYTES) };
    }

    /// Takes `count` bytes from `consumed` on; false if somebody else has taken them.
    #[inline(always)]
    fn advance(&self, consumed: u64, count: usize) -> bool {
        let next = consumed.wrapping_add(count as u64);
        self.consumed.position.compare_exchange(consumed, next, AcqRel, Acquire).is_ok()
    }

    /// Copies bytes from `offset` bytes after the next one on without consuming them, and returns
    /// how many. One thread at a time.
    #[inline]
    pub fn peek(&self, offset: usize, buffer: &mut [u8]) -> usize {
        self.copy(self.consumed.position.load(Relaxed), offset, buffer)
    }

    /// Discards the next `bytes` bytes, or as many as there are, and returns how many; none if the
    /// sender has taken them back. One thread at a time.
    pub fn discard(&self, bytes: usize) -> usize {
        let consumed = self.consumed.position.load(Relaxed);
        let count = Self::distance(self.control.word.load(Acquire), consumed).min(bytes);
        if self.advance(consumed, count) { count } else { 0 }
    }

    /// Takes all bytes back that the receiver has not consumed, if they were sent after the
    /// position `from` ([`Pipe::sent`] at that time); returns how many. They are the last ones
    /// sent, and stay in the area until the next push ([`Pipe::sent_pieces`]). Called by the
    /// sending thread.
    pub fn take_back(&self, from: u64) -> usize {
        let sent = self.sender.sent.load(Relaxed);
        loop {
            let consumed = self.consumed.position.load(Acquire);
            let unread = sent.wrapping_sub(consumed);
            if unread == 0 || unread > sent.wrapping_sub(from).min(BYTES as u64) {
                return 0;
            }
            if self.advance(consumed, unread as usize) {
                return unread as usize;
            }
        }
    }

    /// Takes the last `count` bytes back, if they are all that the receiver has not consumed; else
    /// none. As [`Pipe::take_back`].
    pub fn take_back_unread(&self, count: usize) -> usize {
        let from = self.sender.sent.load(Relaxed).wrapping_sub(count as u64);
        if count > 0 && self.advance(from, count) { count } else { 0 }
    }

    #[inline(always)]
    fn copy(&self, consumed: u64, offset: usize, buffer: &mut [u8]) -> usize {
        // A copy that fails means that the inline bytes are in the area by now, so the second
        // attempt succeeds; only a sender that violates the protocol makes all attempts fail.
        for _ in 0..4 {
            let control = self.control.word.load(Acquire);
            let readable = Self::distance(control, consumed);
            if offset >= readable {
                return 0;
            }
            let end = readable.min(offset.saturating_add(buffer.len()));
            let inline = inline_count(control);
            // Distance of the first inline byte, and inline bytes that were consumed before.
            let (begin, skipped) =
                (readable.saturating_sub(inline), inline.saturating_sub(readable));
            let buffer = &mut buffer[..end - offset];
            let in_area = begin.saturating_sub(offset).min(buffer.len());
            let from = skipped + offset.saturating_sub(begin);
            let all =
                in_area == buffer.len() || self.copy_inline(control, from, &mut buffer[in_area..]);
            if all || in_area > 0 {
                self.read_area(consumed.wrapping_add(offset as u64), &mut buffer[..in_area]);
                return if all { buffer.len() } else { in_area };
            }
        }
        0
    }

    /// Copies inline bytes from index `from` on; false if they were overwritten since `control` was
    /// read.
    #[inline(always)]
    fn copy_inline(&self, control: u64, from: usize, buffer: &mut [u8]) -> bool {
        if from == 0 {
            words::load_bytes(buffer, |idx| self.control.inline[idx].load(Relaxed));
        } else {
            for (idx, byte) in (from..INLINE_BYTES_MAX).zip(buffer.iter_mut()) {
                *byte = (self.control.inline[idx / 8].load(Relaxed) >> (idx % 8 * 8)) as u8;
            }
        }
        // The words must be read before the control word is read again.
        fence(Acquire);
        self.control.word.load(Relaxed) == control
    }

    /// Where `count` bytes from `position` on lie that are still in the area: one or two pieces, in
    /// order, or none if they are not all there. For a call of the kernel that sends them again
    /// another way. They stay there until the next push. Called by the sending thread.
    #[cfg(not(loom))]
    pub fn sent_pieces(&self, position: u64, count: usize) -> [(*const u8, usize); 2] {
        let behind = self.sender.sent.load(Relaxed).wrapping_sub(position);
        let is_there = behind <= BYTES as u64 && count as u64 <= behind;
        self.pieces(position, if is_there { count } else { 0 })
            .map(|(start, bytes)| (start.cast_const(), bytes))
    }

    /// Where the next bytes go for which there is space, at most `wanted`: one or two pieces, in
    /// order. For a call of the kernel that fills them, before [`Pipe::push_filled`]. Called by the
    /// sending thread.
    #[cfg(not(loom))]
    pub fn free_pieces(&self, wanted: usize) -> [(*mut u8, usize); 2] {
        let sent = self.sender.sent.load(Relaxed);
        self.pieces(sent, self.space_for(sent, wanted).min(wanted))
    }

    /// Sends the first `count` bytes of [`Pipe::free_pieces`], which have been filled.
    #[cfg(not(loom))]
    pub fn push_filled(&self, count: usize) {
        self.publish(self.sender.sent.load(Relaxed), count);
    }

    /// Where `count` bytes from `position` on are, at most all of the area.
    #[cfg(not(loom))]
    fn pieces(&self, position: u64, count: usize) -> [(*mut u8, usize); 2] {
        let at = position as usize % BYTES;
        let first = count.min(BYTES - at);
        [(self.area.address(at), first), (self.area.address(0), count - first)]
    }

    /// Copies bytes from `position` on that are still in the area; returns how many. Called by the
    /// sending thread.
    #[cfg(any(test, loom))]
    pub fn copy_sent(&self, position: u64, buffer: &mut [u8]) -> usize {
        let behind = self.sender.sent.load(Relaxed).wrapping_sub(position);
        if behind > BYTES as u64 {
            return 0;
        }
        let count = (behind as usize).min(buffer.len());
        self.read_area(position, &mut buffer[..count]);
        count
    }

    #[inline(always)]
    fn write_area(&self, position: u64, bytes: &[u8]) {
        let at = position as usize % BYTES;
        let (head, tail) = bytes.split_at(bytes.len().min(BYTES - at));
        self.area.write(at, head);
        if !tail.is_empty() {
            self.area.write(0, tail);
        }
    }

    #[inline(always)]
    fn read_area(&self, position: u64, buffer: &mut [u8]) {
        let at = position as usize % BYTES;
        let (head, tail) = buffer.split_at_mut(buffer.len().min(BYTES - at));
        self.area.read(at, head);
        if !tail.is_empty() {
            self.area.read(0, tail);
        }
    }

    /// The reader is about to sleep: after this call it checks once more whether there is something
    /// to read.
    pub fn arm_reader(&self) {
        // Exchanged, so that it is ordered after whatever the other end has done, and the doorbell
        // that answers it is rung after it was drained for this sleep.
        self.wait_flags.reader.swap(1, AcqRel);
        fence(SeqCst);
    }

    /// The reader sleeps no more. If other threads may sleep on the same end, leave the flag set: a
    /// superfluous wake-up is harmless, a missing one is not.
    pub fn disarm_reader(&self) {
        self.wait_flags.reader.swap(0, AcqRel);
    }

    /// After a push, or after any other change that a reader may wait for: whether the caller must
    /// ring the reader's doorbell.
    #[inline(always)]
    pub fn take_reader_waiting(&self) -> bool {
        fence(SeqCst);
        take_flag(&self.wait_flags.reader)
    }

    /// The writer is about to sleep, because less than [`Pipe::QUARTER_BYTES`] are free: after this
    /// call it checks once more whether there is enough space.
    pub fn arm_writer(&self) {
        self.wait_flags.writer.swap(1, AcqRel);
        fence(SeqCst);
    }

    /// The writer sleeps no more; see [`Pipe::disarm_reader`].
    pub fn disarm_writer(&self) {
        self.wait_flags.writer.swap(0, AcqRel);
    }

    /// After a pull or a discard: whether the caller must ring the writer's doorbell.
    ///
    /// It checks only when the position has crossed a quarter of the pipe since the last check,
    /// which saves most pulls the fence. A writer sleeps only with less than a quarter free, so at
    /// least three crossings follow: at one of them either the reader sees that the writer sleeps,
    /// or the writer sees the consumed bytes. The writer is woken when two quarters are free at the
    /// latest.
    #[inline(always)]
    pub fn take_writer_waiting(&self) -> bool {
        let quarter = |position: u64| position / Self::QUARTER_BYTES as u64;
        let consumed = self.consumed.position.load(Relaxed);
        if quarter(consumed) == quarter(self.receiver.wake_checked_at.load(Relaxed)) {
            return false;
        }
        self.receiver.wake_checked_at.store(consumed, Relaxed);
        self.take_writer_waiting_now()
    }

    /// As [`Pipe::take_writer_waiting`], at any position: after the direction was shut or switched.
    pub fn take_writer_waiting_now(&self) -> bool {
        fence(SeqCst);
        take_flag(&self.wait_flags.writer)
    }

    /// Restores a consistent state after a sender has died during a push: published bytes are kept,
    /// others are dropped. Called by the thread that sends next.
    #[cfg(not(loom))]
    pub fn recover_sender(&self) {
        let control = self.control.word.load(Acquire);
        let sent = self.written();
        let inline = inline_count(control);
        let mut bytes = [0; INLINE_BYTES_MAX];
        if inline > 0 && self.copy_inline(control, 0, &mut bytes[..inline]) {
            self.write_area(sent.wrapping_sub(inline as u64), &bytes[..inline]);
        }
        self.sender.sent.store(sent, Relaxed);
    }
}

#[inline(always)]
fn take_flag(flag: &AtomicU32) -> bool {
    flag.load(Relaxed) != 0 && flag.swap(0, Acquire) != 0
}

#[cfg(loom)]
impl Pipe {
    /// A pipe for loom, whose atomics cannot be made by zeroing memory.
    pub fn new() -> Pipe {
        let (word, long) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Pipe {
            control: ControlLine { word: long(), inline: std::array::from_fn(|_| long()) },
            consumed: ConsumedLine { position: long() },
            wait_flags: WaitFlags { reader: word(), writer: word() },
            kernel_use: KernelUse { users: word(), sleeper: word(), received: long() },
            kernel_sent: KernelSent {
                sent: long(),
                take_backs_begun: word(),
                take_backs_ended: word(),
            },
            sender: SenderState { sent: long(), known_consumed: long() },
            receiver: ReceiverState { wake_checked_at: long() },
            area: Bytes::new(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
