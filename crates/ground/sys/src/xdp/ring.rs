//! The rings that an AF_XDP socket shares with the kernel. A producer adds entries, a consumer
//! removes them, and each publishes its position as a counter that wraps around at 2^32.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Mapped memory; unmapped on drop.
#[derive(Debug)]
pub struct MappedMemory {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread in particular.
unsafe impl Send for MappedMemory {}

impl MappedMemory {
    /// Private memory, all pages allocated.
    pub fn anonymous(length: usize) -> io::Result<MappedMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        MappedMemory::map(length, flags, -1, 0)
    }

    /// The ring of an AF_XDP socket at `page`, shared with the kernel.
    pub fn ring(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        page: libc::off_t,
        entries_bytes: usize,
    ) -> io::Result<MappedMemory> {
        let length = offsets.desc as usize + entries_bytes;
        MappedMemory::map(length, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), page)
    }

    fn map(length: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<MappedMemory> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory in use.
        let pointer =
            unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, fd, offset) };
        match NonNull::new(pointer.cast::<u8>()) {
            Some(pointer) if pointer.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(MappedMemory { pointer, length })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Start of the mapping; page-aligned.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// A part of it; empty if out of range, which the kernel never requests.
    #[inline(always)]
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        if !self.contains(at, length) {
            return &[];
        }
        // SAFETY: within the mapping, which lives as long as `self`; the kernel does not write to a
        // frame that belongs to this process.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(at), length) }
    }

    /// A part of it, writable; empty as for [`MappedMemory::bytes`].
    #[inline(always)]
    pub fn bytes_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        if !self.contains(at, length) {
            return &mut [];
        }
        // SAFETY: as for `bytes`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(at), length) }
    }

    #[inline(always)]
    fn contains(&self, at: usize, length: usize) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: the range of the mapping, to which no reference remains.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.length) };
    }
}

/// A ring as one side uses it.
#[derive(Debug)]
struct Ring<T> {
    /// Owns the memory that the pointers refer to.
    _memory: MappedMemory,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Position of this side.
    own: u32,
    /// Position of the other side when it was last read.
    other: u32,
    _entries: PhantomData<T>,
}

// SAFETY: the pointers refer to memory that the value owns, and each side has a single owner.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// # Safety
    /// The memory must be a ring with these offsets and room for `size` entries of type `T`, any
    /// bytes must be a valid `T`, and this process must have no other view of this side.
    unsafe fn new(memory: MappedMemory, at: &libc::xdp_ring_offset, size: u32) -> Ring<T> {
        assert!(size.is_power_of_two());
        assert!(at.desc as usize + size as usize * size_of::<T>() <= memory.length());
        let start = memory.pointer();
        // SAFETY: the offsets lie within the mapping by the caller's contract.
        unsafe {
            Ring {
                producer: start.add(at.producer as usize).cast(),
                consumer: start.add(at.consumer as usize).cast(),
                flags: start.add(at.flags as usize).cast(),
                entries: start.add(at.desc as usize).cast(),
                _memory: memory,
                size,
                own: 0,
                other: 0,
                _entries: PhantomData,
            }
        }
    }

    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and shared by atomic access only.
        unsafe { self.producer.as_ref() }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline(always)]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as for `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the number of entries.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

/// The side of a ring that adds entries.
#[derive(Debug)]
pub struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    /// # Safety
    /// The memory must be a ring with these offsets and room for `size` entries of type `T`, and
    /// this process must have no other producer of it. `size` is a power of two.
    pub unsafe fn new(memory: MappedMemory, at: &libc::xdp_ring_offset, size: u32) -> Producer<T> {
        // SAFETY: the caller's contract is the same.
        let mut ring = unsafe { Ring::new(memory, at, size) };
        ring.own = ring.producer().load(Ordering::Relaxed);
        ring.other = ring.consumer().load(Ordering::Acquire);
        Producer(ring)
    }

    /// Adds an entry and publishes it to the other side; false if the ring is full.
    #[inline(always)]
    pub fn push(&mut self, entry: T) -> bool {
        let ring = &mut self.0;
        if ring.own.wrapping_sub(ring.other) == ring.size {
            // Pairs with the consumer's release: it has read the entry before we overwrite it.
            ring.other = ring.consumer().load(Ordering::Acquire);
            if ring.own.wrapping_sub(ring.other) == ring.size {
                return false;
            }
        }
        // SAFETY: the consumer has released this entry, and does not read it before `producer` is
        // beyond it.
        unsafe { ring.entry(ring.own).write(entry) };
        ring.own = ring.own.wrapping_add(1);
        // The release publishes the entry and the content of its frame together with the counter.
        ring.producer().store(ring.own, Ordering::Release);
        true
    }

    /// Entries that the other side has not consumed.
    pub fn outstanding(&mut self) -> u32 {
        self.0.other = self.0.consumer().load(Ordering::Acquire);
        self.0.own.wrapping_sub(self.0.other)
    }

    /// Whether the kernel needs a system call before it reads the ring (`XDP_RING_NEED_WAKEUP`).
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// The side of a ring that takes entries.
#[derive(Debug)]
pub struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    /// # Safety
    /// As for [`Producer::new`], with no other consumer.
    pub unsafe fn new(memory: MappedMemory, at: &libc::xdp_ring_offset, size: u32) -> Consumer<T> {
        // SAFETY: the caller's contract is the same.
        let mut ring = unsafe { Ring::new(memory, at, size) };
        ring.own = ring.consumer().load(Ordering::Relaxed);
        ring.other = ring.own;
        Consumer(ring)
    }

    /// The next entry, which stays until [`Consumer::advance`].
    #[inline(always)]
    pub fn peek(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.own == ring.other {
            // Pairs with the producer's release: the entry is written before the counter includes
            // it.
            ring.other = ring.producer().load(Ordering::Acquire);
            if ring.own == ring.other {
                return None;
            }
        }
        // SAFETY: the producer has written this entry and leaves it until `consumer` is beyond it.
        Some(unsafe { ring.entry(ring.own).read() })
    }

    /// Releases the entry that [`Consumer::peek`] returned; does nothing if it returned none.
    #[inline(always)]
    pub fn advance(&mut self) {
        let ring = &mut self.0;
        if ring.own != ring.other {
            ring.own = ring.own.wrapping_add(1);
            // The entry has been read before the producer may overwrite it.
            ring.consumer().store(ring.own, Ordering::Release);
        }
    }
}

/// A ring in ordinary memory, for tests.
#[cfg(test)]
pub mod testing {
    use super::*;
    use std::os::fd::AsFd;

    pub const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 128, desc: 192 };

    /// Entries of the ring.
    pub const ENTRIES: u32 = 8;

    /// Both sides of a ring whose counters start at `start`, and its memory.
    pub fn ring(start: u32) -> (Producer<u64>, Consumer<u64>, MappedMemory) {
        let name = c"nm-ring";
        let memfd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(memfd);
        file.set_len(4096).unwrap();
        let entries_bytes = ENTRIES as usize * size_of::<u64>();
        let view = || MappedMemory::ring(file.as_fd(), &OFFSETS, 0, entries_bytes).unwrap();
        let mut memory = view();
        for at in [OFFSETS.producer, OFFSETS.consumer] {
            memory.bytes_mut(at as usize, 4).copy_from_slice(&start.to_ne_bytes());
        }
        // SAFETY: the mapping has room for the entries, and each side is made once.
        unsafe {
            (
                Producer::new(view(), &OFFSETS, ENTRIES),
                Consumer::new(view(), &OFFSETS, ENTRIES),
                memory,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{OFFSETS, ring};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a queue of the standard library, with counters that wrap on the way.
        #[test]
        fn entries_are_consumed_once_and_in_order(
            start in prop_oneof![any::<u32>(), u32::MAX - 20..=u32::MAX],
            steps in proptest::collection::vec(any::<bool>(), 0..100),
        ) {
            let (mut producer, mut consumer, _memory) = ring(start);
            let mut model = std::collections::VecDeque::new();
            for (number, push) in steps.into_iter().enumerate() {
                if push {
                    let fits = model.len() < 8;
                    prop_assert_eq!(producer.push(number as u64), fits);
                    if fits {
                        model.push_back(number as u64);
                    }
                } else {
                    prop_assert_eq!(consumer.peek(), model.front().copied());
                    prop_assert_eq!(consumer.peek(), model.pop_front(), "peeking removes nothing");
                    consumer.advance();
                }
                prop_assert_eq!(producer.outstanding() as usize, model.len());
            }
        }
    }

    #[test]
    fn every_entry_is_passed_across_the_wrap_around() {
        const COUNT: u64 = 100_000;
        let (mut producer, mut consumer, _memory) = ring(u32::MAX - 50_000);
        let sending = std::thread::spawn(move || {
            for number in 0..COUNT {
                while !producer.push(number) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..COUNT {
            while consumer.peek().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(consumer.peek(), Some(number));
            consumer.advance();
        }
        sending.join().unwrap();
        consumer.advance();
        assert_eq!(consumer.peek(), None, "advancing an empty ring does nothing");
    }

    #[test]
    fn out_of_range_part_is_empty() {
        let mut memory = MappedMemory::anonymous(4096).unwrap();
        assert_eq!(memory.bytes(4000, 96).len(), 96);
        assert!(memory.bytes(4000, 97).is_empty());
        assert!(memory.bytes_mut(usize::MAX, 2).is_empty());
    }

    #[test]
    fn need_wakeup_flag_is_read() {
        let (producer, _consumer, mut memory) = ring(0);
        assert!(!producer.needs_wakeup());
        memory.bytes_mut(OFFSETS.flags as usize, 4).copy_from_slice(&1u32.to_ne_bytes());
        assert!(producer.needs_wakeup());
    }
}
