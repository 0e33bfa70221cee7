//! Atomics, plain bytes and a word to sleep on: those of the machine, or loom's when the protocol
//! is checked (`--cfg loom`).

#[cfg(loom)]
pub use checked::{AtomicU32, AtomicU64, Bytes, Word, fence};
#[cfg(not(loom))]
pub use real::{AtomicU32, AtomicU64, Bytes, Word, fence};

#[cfg(not(loom))]
mod real {
    use std::cell::UnsafeCell;
    use std::sync::atomic::Ordering;
    pub use std::sync::atomic::{AtomicU32, AtomicU64, fence};
    use std::time::Duration;

    use nm_sys::futex;

    /// Bytes that are only copied in and out, never accessed in place.
    #[repr(transparent)]
    pub struct Bytes<const N: usize>(UnsafeCell<[u8; N]>);

    // SAFETY: the bytes are accessed by the two copies below only, and every value of a byte is
    // valid. The ring's own counters keep the two ends apart. A hostile end that writes while the
    // other copies corrupts the copy, which is its own message, and nothing else: no reference to
    // the bytes exists and no decision depends on them in place.
    unsafe impl<const N: usize> Sync for Bytes<N> {}

    impl<const N: usize> Bytes<N> {
        /// Copies `bytes` to offset `at`. Panics if they do not fit.
        #[inline(always)]
        pub fn write(&self, at: usize, bytes: &[u8]) {
            assert!(at <= N && bytes.len() <= N - at, "a write outside the ring");
            // SAFETY: the range lies within the array, as just checked; concurrent access is
            // harmless, see `Sync` above.
            unsafe {
                let to = self.0.get().cast::<u8>().add(at);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }

        /// Where the bytes from offset `at` on are, for a call of the kernel. Panics if that is
        /// outside.
        pub fn address(&self, at: usize) -> *mut u8 {
            assert!(at <= N, "an address outside the ring");
            self.0.get().cast::<u8>().wrapping_add(at)
        }

        /// Fills `buffer` from offset `at` on. Panics if the range is outside.
        #[inline(always)]
        pub fn read(&self, at: usize, buffer: &mut [u8]) {
            assert!(at <= N && buffer.len() <= N - at, "a read outside the ring");
            // SAFETY: the range lies within the array, as just checked; concurrent access is
            // harmless, see `Sync` above.
            unsafe {
                let from = self.0.get().cast::<u8>().add(at).cast_const();
                std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len());
            }
        }
    }

    /// A word that threads of any process can sleep on.
    #[repr(transparent)]
    pub struct Word(AtomicU32);

    impl Word {
        #[inline(always)]
        pub fn load(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        #[inline(always)]
        pub fn store(&self, value: u32) {
            self.0.store(value, Ordering::Relaxed);
        }

        pub fn wait(&self, expected: u32, limit: Duration) {
            futex::wait(&self.0, expected, limit);
        }

        pub fn wake(&self) {
            futex::wake(&self.0);
        }
    }
}

#[cfg(loom)]
mod checked {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU8, Ordering};
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
    use loom::sync::{Condvar, Mutex};

    /// Bytes whose accesses loom may reorder as far as the memory model allows.
    pub struct Bytes<const N: usize>([AtomicU8; N]);

    impl<const N: usize> Bytes<N> {
        pub fn new() -> Bytes<N> {
            Bytes(std::array::from_fn(|_| AtomicU8::new(0)))
        }

        pub fn write(&self, at: usize, bytes: &[u8]) {
            for (idx, byte) in bytes.iter().enumerate() {
                self.0[at + idx].store(*byte, Ordering::Relaxed);
            }
        }

        pub fn read(&self, at: usize, buffer: &mut [u8]) {
            for (idx, byte) in buffer.iter_mut().enumerate() {
                *byte = self.0[at + idx].load(Ordering::Relaxed);
            }
        }
    }

    /// The futex by its contract: the comparison and the sleep are one atomic step to those who
    /// wake. Time does not pass here, so a lost wake-up shows as a deadlock.
    pub struct Word {
        value: AtomicU32,
        queue: Mutex<()>,
        sleeper: Condvar,
    }

    impl Word {
        pub fn new() -> Word {
            Word { value: AtomicU32::new(0), queue: Mutex::new(()), sleeper: Condvar::new() }
        }

        pub fn load(&self) -> u32 {
            self.value.load(Ordering::Relaxed)
        }

        pub fn store(&self, value: u32) {
            self.value.store(value, Ordering::Relaxed);
        }

        pub fn wait(&self, expected: u32, _limit: Duration) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Relaxed) == expected {
                drop(self.sleeper.wait(queue).unwrap());
            }
        }

        pub fn wake(&self) {
            let _queue = self.queue.lock().unwrap();
            self.sleeper.notify_one();
        }
    }
}
