//! The ledger of a family of processes: one record for each TCP socket, in memory that a fork
//! inherits and that other processes may read.
//!
//! The writers are the processes of the family; [`Ledger`] is their side. [`LedgerView`] is the
//! side of who only reads, who need not trust them: it copies each record out, and whatever the
//! memory holds is some record or none.
//!
//! What each call writes lies on lines that one direction alone uses. A record that was closed
//! stays as it is as long as there are fresh ones.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use nm_sys::shared_memory::{Manner, Mapping};

mod reason;
mod view;

pub use reason::{Phase, Reason, Role};
pub use view::{FlowView, LedgerView, RecordView};

/// Name of the memory: what `/proc/PID/fd` shows as `memfd:nearmetal-accel`.
pub const NAME: &str = "nearmetal-accel";

/// First word: a mark, and the version of the layout.
pub const MARK: u64 = 0x6e6d_6c65_6467_0001;

/// Records. Those that were never claimed take no memory.
pub const RECORDS: usize = 65_536;

/// Bytes of a ledger.
pub const LEDGER_BYTES: usize = size_of::<Book>();

/// Bytes of the program's name that are kept.
pub const PROGRAM_BYTES: usize = 256;

/// Bytes of the settings' text that are kept.
pub const SETTINGS_BYTES: usize = 1024;

/// Text in words; it ends at the first zero byte.
#[repr(transparent)]
struct Text<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Text<WORDS> {
    fn set(&self, text: &str) {
        for (word, chunk) in self.0.iter().zip(text.as_bytes().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }
}

/// What stands before the records.
#[repr(C, align(4096))]
struct Head {
    mark: AtomicU64,
    started_at_ns: AtomicU64,
    pid: AtomicU32,
    /// Records claimed for the first time, which may run past [`RECORDS`].
    fresh: AtomicU32,
    /// Where the search for a closed record goes on.
    cursor: AtomicU32,
    program: Text<{ PROGRAM_BYTES / 8 }>,
    settings: Text<{ SETTINGS_BYTES / 8 }>,
}

#[repr(C)]
struct Book {
    head: Head,
    records: [Record; RECORDS],
}

/// A number that only grows.
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`, whoever else does so at the same time.
    #[inline(always)]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Adds `count` where a lock keeps all others away; cheaper than [`Counter::add`].
    #[inline(always)]
    pub fn add_alone(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// The number now.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts of one direction.
#[repr(C, align(128))]
pub struct Flow {
    /// Bytes through memory.
    pub memory_bytes: Counter,
    /// Calls that moved bytes through memory.
    pub memory_calls: Counter,
    /// Bytes through the kernel.
    pub kernel_bytes: Counter,
    /// Calls that moved bytes through the kernel.
    pub kernel_calls: Counter,
    /// Times that a thread went to sleep for this direction.
    pub sleeps: Counter,
    /// Bells rung (sending) or heard (receiving).
    pub bells: Counter,
    /// Spins that ended without success.
    pub failed_spins: Counter,
    /// Times that the direction went back to the kernel.
    pub fallbacks: Counter,
}

/// One socket (open file description) of the family.
#[repr(C, align(128))]
pub struct Record {
    generation: AtomicU32,
    phase: AtomicU32,
    reason: AtomicU32,
    detail: AtomicU32,
    role: AtomicU32,
    family: AtomicU32,
    /// Local port, then the peer's.
    ports: AtomicU32,
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    opened_at_ns: AtomicU64,
    /// Processes that hold it.
    pub holders: AtomicU32,
    /// Not zero while `O_NONBLOCK` is set.
    pub nonblocking: AtomicU32,
    /// Process that used it last.
    pub pid: AtomicU32,
    /// Sending.
    pub out: Flow,
    /// Receiving.
    pub back: Flow,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Record, out) == 128 && offset_of!(Record, back) == 256);
    assert!(size_of::<Record>() == 384);
    assert!(offset_of!(Book, records) == 4096);
    assert!(LEDGER_BYTES.is_multiple_of(4096));
};

impl Record {
    /// How often this place has been claimed: tells a record from a later one in its place.
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// How far it is; [`Phase::Free`] for a number that means nothing.
    pub fn phase(&self) -> Phase {
        Phase::from_number(self.phase.load(Acquire)).unwrap_or(Phase::Free)
    }

    /// Says how far it is.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Release);
    }

    /// Why it is with the kernel.
    pub fn reason(&self) -> Reason {
        Reason::from_number(self.reason.load(Relaxed)).unwrap_or(Reason::None)
    }

    /// Says why it is with the kernel; `detail` is the number of the option, if it is for one
    /// (level × 65536 + name), else zero. The first reason stays: what follows follows from it.
    /// False if there was one.
    pub fn set_reason(&self, reason: Reason, detail: u32) -> bool {
        let first = self
            .reason
            .compare_exchange(Reason::None as u32, reason as u32, Relaxed, Relaxed)
            .is_ok();
        if first {
            self.detail.store(detail, Relaxed);
        }
        first
    }

    /// Says on which side of the connection it is.
    pub fn set_role(&self, role: Role) {
        self.role.store(role as u32, Relaxed);
    }

    /// On which side of the connection it is.
    pub fn role(&self) -> Role {
        Role::from_number(self.role.load(Relaxed)).unwrap_or(Role::Unknown)
    }

    /// Notes the connection's addresses.
    pub fn set_addresses(&self, local: SocketAddr, peer: SocketAddr) {
        for (words, address) in [(&self.local, local), (&self.peer, peer)] {
            for (word, value) in words.iter().zip(address_words(address.ip())) {
                word.store(value, Relaxed);
            }
        }
        let ports = u32::from(local.port()) << 16 | u32::from(peer.port());
        self.ports.store(ports, Relaxed);
        self.family.store(if local.is_ipv4() { 4 } else { 6 }, Relaxed);
    }

    /// One process more holds it.
    pub fn hold(&self) {
        self.holders.fetch_add(1, Relaxed);
    }

    /// One process less holds it; the last one closes the record. How many still do.
    pub fn release(&self) -> u32 {
        let less = |holders: u32| Some(holders.saturating_sub(1));
        let before = self.holders.fetch_update(Release, Acquire, less).unwrap_or(0);
        if before <= 1 {
            self.set_phase(Phase::Closed);
        }
        before.saturating_sub(1)
    }

    /// Makes a claimed record one of a fresh socket.
    fn begin(&self, pid: u32, opened_at_ns: u64) {
        // Before anything is overwritten: who reads meanwhile sees that it has changed.
        self.generation.fetch_add(1, Relaxed);
        crate::sync::fence(Release);
        let zeros = [&self.reason, &self.detail, &self.role, &self.family, &self.ports];
        for word in zeros.into_iter().chain([&self.nonblocking]) {
            word.store(0, Relaxed);
        }
        for word in self.local.iter().chain(&self.peer) {
            word.store(0, Relaxed);
        }
        for counter in self.out.counters().into_iter().chain(self.back.counters()) {
            counter.0.store(0, Relaxed);
        }
        self.opened_at_ns.store(opened_at_ns, Relaxed);
        self.pid.store(pid, Relaxed);
        self.holders.store(1, Relaxed);
    }
}

impl Flow {
    fn counters(&self) -> [&Counter; 8] {
        [
            &self.memory_bytes,
            &self.memory_calls,
            &self.kernel_bytes,
            &self.kernel_calls,
            &self.sleeps,
            &self.bells,
            &self.failed_spins,
            &self.fallbacks,
        ]
    }
}

fn address_words(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(ip) => [u64::from(ip.to_bits()), 0],
        IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
    }
}

fn address(family: u32, words: [u64; 2], port: u16) -> Option<SocketAddr> {
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from_bits(words[0] as u32)),
        6 => IpAddr::V6(Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// A ledger to write to.
#[derive(Debug)]
pub struct Ledger(Mapping);

impl Ledger {
    /// A fresh ledger of process `pid` and its descriptor, which the caller keeps open for those
    /// who want to read it. `started_at_ns` is of the clock that counts from boot.
    ///
    /// # Errors
    /// What the system says, such as `ENOMEM` or `EMFILE`.
    pub fn create(
        pid: u32,
        program: &str,
        settings: &str,
        started_at_ns: u64,
    ) -> io::Result<(Ledger, OwnedFd)> {
        let (mapping, file) = Mapping::new(NAME, LEDGER_BYTES, Manner::Sparse)?;
        let ledger = Ledger(mapping);
        let head = &ledger.book().head;
        head.pid.store(pid, Relaxed);
        head.started_at_ns.store(started_at_ns, Relaxed);
        head.program.set(program);
        head.settings.set(settings);
        head.mark.store(MARK, Release);
        Ok((ledger, file))
    }

    /// A ledger to read, of a family that need not be trusted. The descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: OwnedFd) -> io::Result<LedgerView> {
        LedgerView::open(file)
    }

    #[inline(always)]
    fn book(&self) -> &Book {
        // SAFETY: the mapping is live as long as `self`, at the border of a page and exactly as
        // long as a book; it cannot shrink. A book consists of atomics.
        unsafe { self.0.start().cast::<Book>().as_ref() }
    }

    /// A record for a fresh socket that process `pid` alone holds: one never used before, or else
    /// the one that was closed longest ago, roughly. None if all are in use. Its phase is
    /// [`Phase::Free`] until the caller sets another. It belongs to a caller that then dies.
    pub fn claim(&self, pid: u32, opened_at_ns: u64) -> Option<&Record> {
        let record = self.fresh().or_else(|| self.closed())?;
        record.begin(pid, opened_at_ns);
        Some(record)
    }

    fn fresh(&self) -> Option<&Record> {
        let book = self.book();
        let more = |fresh: u32| ((fresh as usize) < RECORDS).then(|| fresh + 1);
        let index = book.head.fresh.fetch_update(Relaxed, Relaxed, more).ok()?;
        book.records.get(index as usize)
    }

    fn closed(&self) -> Option<&Record> {
        let book = self.book();
        let from = book.head.cursor.load(Relaxed) as usize;
        let (closed, free) = (Phase::Closed as u32, Phase::Free as u32);
        for step in 0..RECORDS {
            let index = (from.wrapping_add(step)) % RECORDS;
            let record = &book.records[index];
            if record.phase.load(Relaxed) == closed
                && record.phase.compare_exchange(closed, free, Acquire, Relaxed).is_ok()
            {
                book.head.cursor.store((index + 1) as u32, Relaxed);
                return Some(record);
            }
        }
        None
    }

    /// The record at `index`.
    pub fn record(&self, index: usize) -> Option<&Record> {
        self.book().records.get(index)
    }

    /// Where `record` is, if it is one of this ledger.
    pub fn index_of(&self, record: &Record) -> Option<usize> {
        let begin = std::ptr::from_ref(&self.book().records).addr();
        let distance = std::ptr::from_ref(record).addr().checked_sub(begin)?;
        let index = distance / size_of::<Record>();
        (index < RECORDS).then_some(index)
    }
}

#[cfg(test)]
mod tests;
