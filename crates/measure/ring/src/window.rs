//! Regions in memory that two kernels share, such as the memory of an ivshmem device, which two
//! virtual machines of one host have in common. No descriptor can be passed between the two, so the
//! memory itself says which part of it is whose. All zero is its initial state.
//!
//! ```text
//! directory  4 KiB  one word for each window: its phase, and the token of its listener
//! zeros      4 KiB  never written: loads from it show how the memory is cached
//! windows           a region each, beginning at a page
//! ```
//!
//! A window is claimed by the end that listens. The other end finds it by its number and token.
//! Whoever releases it last frees it. An end that dies without releasing its window keeps it until
//! the memory is made anew, and nothing in the memory shows its death. The other end learns it from
//! whoever started the two, or gives up by its time limits.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

use nm_sys::clock::Clock;
use nm_sys::shared_memory::SharedMemory;

use crate::memory::{REGION_BYTES, RegionMapping};
use crate::role::EndpointRole;

const PAGE_BYTES: usize = 4096;

/// Bytes of one window: a region, and what is left of its last page.
const WINDOW_BYTES: usize = REGION_BYTES.next_multiple_of(PAGE_BYTES);

/// Where the first window begins.
const WINDOWS_START: usize = 2 * PAGE_BYTES;

/// Words of each of the first two pages.
const WORDS: usize = PAGE_BYTES / size_of::<AtomicU64>();

/// Most windows that are used.
const WINDOWS_MAX: usize = 64;

/// Good length of a device's memory, bytes: a power of two, with space for some fifty windows.
pub const MEMORY_BYTES: u64 = 32 << 20;

const _: () = assert!(WINDOWS_MAX <= WORDS);

/// What a window is used for, in the lower half of its word; the upper half is the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Phase {
    Free = 0,
    /// A listener prepares it.
    Claimed = 1,
    /// Held by a listener.
    Listening = 2,
    /// Held by a listener and by the end that has connected.
    Offered = 3,
    /// Held by both ends.
    Joined = 4,
    /// Held by one of them; the other has left.
    Half = 5,
}

fn word(phase: Phase, token: u32) -> u64 {
    u64::from(phase as u32) | u64::from(token) << 32
}

/// How the processor treats loads from a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// As ordinary memory.
    WriteBack,
    /// Each load goes to the memory.
    Uncached,
}

/// The memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The first two pages.
    head: SharedMemory,
    windows: usize,
}

/// Directory and zeros.
#[repr(C, align(4096))]
struct Head {
    directory: [AtomicU64; WORDS],
    zeros: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<Head>() == WINDOWS_START);

impl DeviceMemory {
    /// Maps the memory behind a file such as `/sys/bus/pci/devices/0000:00:02.0/resource2`.
    ///
    /// # Errors
    /// Those of the system calls, and [`io::ErrorKind::InvalidInput`] if it is too short for one
    /// window.
    pub fn open(path: &Path) -> io::Result<Arc<DeviceMemory>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let windows = (bytes.saturating_sub(WINDOWS_START) / WINDOW_BYTES).min(WINDOWS_MAX);
        if windows == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let head = SharedMemory::of_device(file.into(), 0, WINDOWS_START)?;
        Ok(Arc::new(DeviceMemory { head, windows }))
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.windows
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is live as long as `self`, page-aligned and as long as a head; the
        // memory of a device cannot shrink. A head consists of atomics, which are valid in any
        // state and may change under a shared reference.
        unsafe { self.head.start().cast::<Head>().as_ref() }
    }

    /// The word of a window. The number comes from the other end.
    fn word(&self, window: u32) -> Option<&AtomicU64> {
        self.head().directory[..self.windows].get(window as usize)
    }

    /// The region of a window.
    fn region(&self, window: u32) -> io::Result<RegionMapping> {
        let offset = WINDOWS_START + window as usize * WINDOW_BYTES;
        let file = self.head.descriptor().try_clone_to_owned()?;
        RegionMapping::of_device(file, offset as u64)
    }

    /// Claims a free window and listens for one end that knows `token`; none if all are in use.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn listen(self: &Arc<Self>, token: u32) -> io::Result<Option<WindowListener>> {
        let (free, claimed) = (word(Phase::Free, 0), word(Phase::Claimed, token));
        for (window, state) in (0u32..).zip(&self.head().directory[..self.windows]) {
            if state.compare_exchange(free, claimed, AcqRel, Relaxed).is_ok() {
                let lease = WindowLease { memory: self.clone(), window };
                // Of an end that used it before.
                self.region(window)?.clear();
                state.store(word(Phase::Listening, token), Release);
                let lease = Mutex::new(Some(lease));
                return Ok(Some(WindowListener { window, token, lease }));
            }
        }
        Ok(None)
    }

    /// Connects to the listener of a window; none if nobody listens there with this token.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn connect(self: &Arc<Self>, window: u32, token: u32) -> io::Result<Option<JoinedWindow>> {
        let Some(state) = self.word(window) else { return Ok(None) };
        let (listening, offered) = (word(Phase::Listening, token), word(Phase::Offered, token));
        if state.compare_exchange(listening, offered, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        let lease = WindowLease { memory: self.clone(), window };
        let memory = self.region(window)?;
        Ok(Some(JoinedWindow { memory, lease, role: EndpointRole::Creator }))
    }

    /// Measures how loads from this memory are treated: each load needs the result of the one
    /// before it, so that uncached ones take some hundred times as long as those from the nearest
    /// cache.
    pub fn caching(&self) -> Caching {
        /// Above what noise can do, and far below what leaving the caches costs.
        const RATIO: u64 = 8;
        let own: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        match load_ticks(&self.head().zeros) > RATIO * load_ticks(&own).max(1) {
            true => Caching::Uncached,
            false => Caching::WriteBack,
        }
    }
}

/// Ticks of a number of dependent loads; the least of several attempts.
fn load_ticks(words: &[AtomicU64]) -> u64 {
    const LOADS: u32 = 2_000;
    const ATTEMPTS: u32 = 9;
    let clock = Clock::system();
    let attempt = |_| {
        let begin = clock.now();
        let mut at = 0;
        for _ in 0..LOADS {
            at = black_box(words[at % WORDS].load(Relaxed) as usize);
        }
        clock.now().saturating_sub(begin)
    };
    (0..ATTEMPTS).map(attempt).min().unwrap_or(0)
}

/// A claimed window that waits for the other end.
#[derive(Debug)]
pub struct WindowListener {
    window: u32,
    token: u32,
    /// Until an endpoint takes it over.
    lease: Mutex<Option<WindowLease>>,
}

impl WindowListener {
    /// Number of the window, and the token, by which the other end connects.
    pub fn address(&self) -> (u32, u32) {
        (self.window, self.token)
    }

    /// Takes the end that has connected; none if none has.
    ///
    /// # Errors
    /// If the window cannot be mapped.
    pub fn accept(&self) -> io::Result<Option<JoinedWindow>> {
        let mut held = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lease) = held.as_ref() else { return Ok(None) };
        let (offered, joined) = (word(Phase::Offered, self.token), word(Phase::Joined, self.token));
        let Some(state) = lease.memory.word(self.window) else { return Ok(None) };
        if state.compare_exchange(offered, joined, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        let memory = lease.memory.region(self.window)?;
        let joined = |lease| JoinedWindow { memory, lease, role: EndpointRole::Opener };
        Ok(held.take().map(joined))
    }
}

/// A window that two ends have joined.
#[derive(Debug)]
pub struct JoinedWindow {
    /// Its region.
    pub memory: RegionMapping,
    /// What this end holds.
    pub lease: WindowLease,
    /// Which end this is.
    pub role: EndpointRole,
}

/// What an end holds of a window; dropping it releases the window.
#[derive(Debug)]
pub struct WindowLease {
    memory: Arc<DeviceMemory>,
    window: u32,
}

impl Drop for WindowLease {
    fn drop(&mut self) {
        let Some(state) = self.memory.word(self.window) else { return };
        let released = |current: u64| {
            let is = |phase: Phase| current as u32 == phase as u32;
            let token = (current >> 32) as u32;
            if is(Phase::Offered) || is(Phase::Joined) {
                Some(word(Phase::Half, token))
            } else {
                Some(word(Phase::Free, 0))
            }
        };
        // The closure always gives a value, so this cannot fail.
        let _ = state.fetch_update(AcqRel, Acquire, released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Endpoint, EndpointParts, TransferError};
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(100);

    /// A file of this length, which takes the place of a device; it is removed at the end.
    struct Device(std::path::PathBuf);

    impl Device {
        fn new(name: &str, bytes: usize) -> Device {
            let name = format!("nm-ring-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(bytes as u64).unwrap();
            Device(path)
        }

        /// Maps it once more, as the other machine does.
        fn open(&self) -> Arc<DeviceMemory> {
            DeviceMemory::open(&self.0).unwrap()
        }
    }

    impl Drop for Device {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn endpoint(joined: JoinedWindow) -> Endpoint<false> {
        Endpoint::new(EndpointParts::from(joined))
    }

    #[test]
    fn two_ends_exchange_bytes_and_the_window_is_free_again() {
        let device = Device::new("exchange", WINDOWS_START + WINDOW_BYTES);
        let (one, other) = (device.open(), device.open());
        assert_eq!(one.windows(), 1);
        for token in [7, 8] {
            let listener = one.listen(token).unwrap().unwrap();
            assert!(one.listen(9).unwrap().is_none(), "all windows are in use");
            assert!(listener.accept().unwrap().is_none(), "nobody has connected");
            let (window, token) = listener.address();
            let mut client = endpoint(other.connect(window, token).unwrap().unwrap());
            let mut server = endpoint(listener.accept().unwrap().unwrap());
            drop(listener);
            let echo = std::thread::spawn(move || {
                let mut buffer = [0; 100_000];
                let mut received = 0;
                while received < buffer.len() {
                    received += server.receive(&mut buffer[received..], LIMIT).unwrap();
                }
                let mut sent = 0;
                while sent < buffer.len() {
                    sent += server.send(&buffer[sent..], LIMIT).unwrap();
                }
                server
            });
            let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
            let mut sent = 0;
            while sent < bytes.len() {
                sent += client.send(&bytes[sent..], LIMIT).unwrap();
            }
            let mut answer = vec![0; bytes.len()];
            let mut received = 0;
            while received < answer.len() {
                received += client.receive(&mut answer[received..], LIMIT).unwrap();
            }
            assert_eq!(answer, bytes);
            assert_eq!(client.peer_cpu(), None, "its CPU is one of another machine");
            drop(echo.join().unwrap());
            let end = client.receive(&mut answer, LIMIT);
            assert_eq!(end, Err(TransferError::Closed), "the other end has left");
        }
    }

    #[test]
    fn only_who_knows_window_and_token_connects_and_only_once() {
        let device = Device::new("token", WINDOWS_START + 3 * WINDOW_BYTES);
        let memory = device.open();
        let listener = memory.listen(5).unwrap().unwrap();
        for (window, token) in [(0, 6), (1, 5), (3, 5), (u32::MAX, 5)] {
            assert!(memory.connect(window, token).unwrap().is_none(), "{window}/{token}");
        }
        let joined = memory.connect(0, 5).unwrap().unwrap();
        assert!(memory.connect(0, 5).unwrap().is_none());
        drop(listener);
        assert_eq!(memory.listen(1).unwrap().unwrap().address().0, 1, "0 is still held");
        drop(joined);
        assert_eq!(memory.listen(1).unwrap().unwrap().address().0, 0);
    }

    #[test]
    fn window_is_clean_when_it_is_used_again() {
        let device = Device::new("clean", WINDOWS_START + WINDOW_BYTES);
        let memory = device.open();
        let listener = memory.listen(1).unwrap().unwrap();
        let mut client = endpoint(memory.connect(0, 1).unwrap().unwrap());
        client.send(b"for nobody", LIMIT).unwrap();
        drop((client, listener));
        let listener = memory.listen(2).unwrap().unwrap();
        let mut client = endpoint(memory.connect(0, 2).unwrap().unwrap());
        let mut server = endpoint(listener.accept().unwrap().unwrap());
        let mut buffer = [0; 16];
        assert_eq!(server.try_receive(&mut buffer), Ok(None));
        client.send(b"new", LIMIT).unwrap();
        assert_eq!(server.receive(&mut buffer, LIMIT), Ok(3));
    }

    #[test]
    fn silent_peer_costs_no_more_than_the_time_limit() {
        let device = Device::new("silent", WINDOWS_START + WINDOW_BYTES);
        let memory = device.open();
        let listener = memory.listen(1).unwrap().unwrap();
        let joined = memory.connect(0, 1).unwrap().unwrap();
        // It neither sends nor leaves, like a machine that was killed.
        let _silent = listener.accept().unwrap().unwrap();
        let mut client = endpoint(joined);
        let result = client.receive(&mut [0; 8], Duration::from_millis(20));
        assert_eq!(result, Err(TransferError::TimedOut));
    }

    #[test]
    fn memory_that_is_too_short_is_refused_and_ordinary_memory_is_cached() {
        let short = Device::new("short", WINDOWS_START + WINDOW_BYTES - 1);
        let error = DeviceMemory::open(&short.0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let device = Device::new("cached", MEMORY_BYTES as usize);
        let memory = device.open();
        assert!(memory.windows() >= 50, "{}", memory.windows());
        assert_eq!(memory.caching(), Caching::WriteBack);
    }

    #[test]
    fn damaged_directory_does_no_harm() {
        let device = Device::new("damaged", WINDOWS_START + WINDOW_BYTES);
        let memory = device.open();
        for value in [u64::MAX, 77, word(Phase::Half, 3)] {
            memory.head().directory[0].store(value, Relaxed);
            assert!(memory.listen(1).unwrap().is_none());
            assert!(memory.connect(0, 1).unwrap().is_none());
        }
        memory.head().directory[0].store(0, Relaxed);
        let listener = memory.listen(1).unwrap().unwrap();
        memory.head().directory[0].store(u64::MAX, Relaxed);
        assert!(listener.accept().unwrap().is_none());
    }
}
