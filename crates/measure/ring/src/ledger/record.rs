//! Layout of the ledger's memory: the header, and one record per socket.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::process_lock::ProcessLock;

use super::reason::{KernelReason, SocketPhase, SocketRole};

/// First word: a magic number that contains the version of the layout.
pub const MARK: u64 = 0x6e6d_6c65_6467_0003;

/// Count of records. Those that were never claimed take no memory.
pub const RECORDS: usize = 65_536;

/// Bytes of a ledger.
pub const LEDGER_BYTES: usize = size_of::<LedgerLayout>();

/// Longest program name that is stored, bytes.
pub const PROGRAM_BYTES: usize = 256;

/// Longest text of settings that is stored, bytes.
pub const SETTINGS_BYTES: usize = 1024;

/// Detail of a reason that is the other end's.
pub const REASON_OF_PEER: u32 = u32::MAX;

/// Detail of no reason: both ends have met.
pub const HAS_JOINED: u32 = u32::MAX - 1;

/// Detail of no reason: a program of another user was at the other end of the handshake.
pub const OTHER_USER_SEEN: u32 = u32::MAX - 2;

/// Bit of [`EndState::inheritors`]: a program that carries the library may have inherited the
/// socket.
pub const INHERITED: u32 = 4;

/// A text stored in words; it ends at the first zero byte.
#[repr(transparent)]
pub(super) struct Text<const WORDS: usize>(pub(super) [AtomicU64; WORDS]);

impl<const WORDS: usize> Text<WORDS> {
    pub(super) fn set(&self, text: &str) {
        for (word, chunk) in self.0.iter().zip(text.as_bytes().chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }
}

/// The part before the records.
#[repr(C, align(4096))]
pub(super) struct LedgerHeader {
    pub(super) mark: AtomicU64,
    pub(super) started_at_ns: AtomicU64,
    pub(super) pid: AtomicU32,
    /// Records claimed for the first time, which may run past [`RECORDS`].
    pub(super) claimed: AtomicU32,
    /// Where the search for a closed record continues.
    pub(super) cursor: AtomicU32,
    /// What records had that were reclaimed ([`Ledger::reclaim`](super::Ledger::reclaim)).
    pub(super) reclaimed: ReclaimedCounts,
    pub(super) program: Text<{ PROGRAM_BYTES / 8 }>,
    pub(super) settings: Text<{ SETTINGS_BYTES / 8 }>,
    /// Connections that were never recorded.
    pub(super) left_out: Counter,
}

#[repr(C)]
pub(super) struct LedgerLayout {
    pub(super) header: LedgerHeader,
    pub(super) records: [Record; RECORDS],
}

/// A number that only grows.
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`; other threads may do so at the same time.
    #[inline(always)]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Adds `count` under a lock that excludes all other writers; cheaper than [`Counter::add`].
    #[inline(always)]
    pub fn add_exclusive(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// The current number.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one direction.
#[repr(C, align(128))]
pub struct DirectionCounters {
    /// Bytes through shared memory.
    pub memory_bytes: Counter,
    /// Calls that moved bytes through shared memory.
    pub memory_calls: Counter,
    /// Bytes through the kernel.
    pub kernel_bytes: Counter,
    /// Calls that moved bytes through the kernel.
    pub kernel_calls: Counter,
    /// Times that a thread went to sleep for this direction.
    pub sleeps: Counter,
    /// Wake-ups of a peer that slept until memory had bytes (outgoing), or by it (incoming).
    pub wakeups: Counter,
    /// Spins that ended without success.
    pub failed_spins: Counter,
    /// Times that both directions had to use the kernel for the time being.
    pub fallbacks: Counter,
}

/// Sums over connections that have no record any more.
#[repr(C)]
pub(super) struct ReclaimedCounts {
    pub(super) connections: Counter,
    pub(super) outgoing_bytes: Counter,
    pub(super) outgoing_calls: Counter,
    pub(super) incoming_bytes: Counter,
    pub(super) incoming_calls: Counter,
}

impl ReclaimedCounts {
    /// Adds a connection whose bytes went through the kernel alone.
    pub(super) fn add(&self, record: &Record) {
        self.connections.add(1);
        self.outgoing_bytes.add(record.outgoing.kernel_bytes.get());
        self.outgoing_calls.add(record.outgoing.kernel_calls.get());
        self.incoming_bytes.add(record.incoming.kernel_bytes.get());
        self.incoming_calls.add(record.incoming.kernel_calls.get());
    }
}

/// How one end uses a joined connection: shared by the processes of the program, and out of the
/// peer's reach.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct EndState {
    /// Held by the thread that sends to memory.
    pub send_lock: ProcessLock,
    /// Held by the thread that receives from memory.
    pub receive_lock: ProcessLock,
    /// Threads that are in a sending call of the kernel.
    pub kernel_senders: AtomicU32,
    /// Threads that are in a receiving call of the kernel.
    pub kernel_receivers: AtomicU32,
    /// Bytes sent through the kernel, plus one; zero means unknown.
    pub kernel_sent: AtomicU64,
    /// Reasons for which both directions must use the kernel for the time being.
    pub holds: AtomicU32,
    /// Times that a hold ended, and memory could be used again.
    pub rejoins: AtomicU32,
    /// Whether it is held for programs that have inherited it, [`INHERITED`], and a count of their
    /// starts.
    pub inheritors: AtomicU32,
    /// Time of the last check whether such a program is left, µs.
    pub inheritors_checked_at_us: AtomicU32,
    /// Options of the socket that the library itself provides, as bits.
    pub options: AtomicU32,
}

/// One socket (open file description) of the program.
#[repr(C, align(128))]
pub struct Record {
    pub(super) generation: AtomicU32,
    pub(super) phase: AtomicU32,
    pub(super) reason: AtomicU32,
    pub(super) detail: AtomicU32,
    pub(super) role: AtomicU32,
    pub(super) family: AtomicU32,
    /// Local port, then the peer's.
    pub(super) ports: AtomicU32,
    pub(super) local: [AtomicU64; 2],
    pub(super) peer: [AtomicU64; 2],
    pub(super) opened_at_ns: AtomicU64,
    /// Processes that hold it.
    pub holders: AtomicU32,
    /// Not zero while `O_NONBLOCK` is set.
    pub nonblocking: AtomicU32,
    /// Process that used it last.
    pub pid: AtomicU32,
    /// The direction that this socket sends.
    pub outgoing: DirectionCounters,
    /// The direction that this socket receives.
    pub incoming: DirectionCounters,
    /// How this end uses the connection.
    pub end: EndState,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Record, outgoing) == 128 && offset_of!(Record, incoming) == 256);
    assert!(offset_of!(Record, end) == 384 && size_of::<Record>() == 512);
    assert!(offset_of!(LedgerLayout, records) == 4096);
    assert!(LEDGER_BYTES.is_multiple_of(4096));
};

impl Record {
    /// How often this record was claimed, to distinguish its uses.
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// The phase; [`SocketPhase::Free`] if the number is invalid.
    pub fn phase(&self) -> SocketPhase {
        SocketPhase::from_number(self.phase.load(Acquire)).unwrap_or(SocketPhase::Free)
    }

    /// Sets the phase.
    pub fn set_phase(&self, phase: SocketPhase) {
        self.phase.store(phase as u32, Release);
    }

    /// Why it uses the kernel.
    pub fn reason(&self) -> KernelReason {
        KernelReason::from_number(self.reason.load(Relaxed)).unwrap_or(KernelReason::None)
    }

    /// Sets why it uses the kernel; `detail` is the number of the option, if the reason is an
    /// option (level × 65536 + name), else zero. The first reason is kept, because later ones are
    /// its consequences. False if there was one.
    pub fn set_reason(&self, reason: KernelReason, detail: u32) -> bool {
        let first = self
            .reason
            .compare_exchange(KernelReason::None as u32, reason as u32, Relaxed, Relaxed)
            .is_ok();
        if first {
            self.detail.store(detail, Relaxed);
        }
        first
    }

    /// Both ends have met: if no byte went through memory, no reason is needed for that.
    pub fn note_join(&self) {
        if self.reason.load(Relaxed) == KernelReason::None as u32 {
            self.detail.store(HAS_JOINED, Relaxed);
        }
    }

    /// A program of another user was at the other end of the handshake. It may be a stranger, so
    /// this explains a handshake that is never completed, and does not end it.
    pub fn note_other_user(&self) {
        if self.reason.load(Relaxed) == KernelReason::None as u32 {
            self.detail.store(OTHER_USER_SEEN, Relaxed);
        }
    }

    /// Number of the option, [`REASON_OF_PEER`], [`HAS_JOINED`] or [`OTHER_USER_SEEN`].
    pub fn reason_detail(&self) -> u32 {
        self.detail.load(Relaxed)
    }

    /// Forgets `reason`, if it is the one that is stored: it has passed.
    pub fn clear_reason(&self, reason: KernelReason) {
        let none = KernelReason::None as u32;
        if self.reason.compare_exchange(reason as u32, none, Relaxed, Relaxed).is_ok() {
            self.detail.store(0, Relaxed);
        }
    }

    /// Sets its side of the connection.
    pub fn set_role(&self, role: SocketRole) {
        self.role.store(role as u32, Relaxed);
    }

    /// Its side of the connection.
    pub fn role(&self) -> SocketRole {
        SocketRole::from_number(self.role.load(Relaxed)).unwrap_or(SocketRole::Unknown)
    }

    /// Stores the connection's addresses.
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

    /// Stores the address of the other end, of a socket whose own one is not known yet.
    pub fn set_peer(&self, peer: SocketAddr) {
        for (word, value) in self.peer.iter().zip(address_words(peer.ip())) {
            word.store(value, Relaxed);
        }
        self.ports.store(u32::from(peer.port()), Relaxed);
        self.family.store(if peer.is_ipv4() { 4 } else { 6 }, Relaxed);
    }

    /// Whether this is the address of the other end that was stored.
    pub fn has_peer(&self, peer: SocketAddr) -> bool {
        let stored = self.peer.iter().map(|word| word.load(Relaxed));
        stored.eq(address_words(peer.ip()))
            && self.family.load(Relaxed) == if peer.is_ipv4() { 4 } else { 6 }
            && self.ports.load(Relaxed) & 0xffff == u32::from(peer.port())
    }

    /// Whether any call has moved bytes.
    pub fn is_used(&self) -> bool {
        let calls =
            |counts: &DirectionCounters| counts.kernel_calls.get() + counts.memory_calls.get();
        calls(&self.outgoing) + calls(&self.incoming) > 0
    }

    /// Counts one more process that holds it.
    pub fn hold(&self) {
        self.holders.fetch_add(1, Relaxed);
    }

    /// Counts one process less that holds it, and closes the record after the last one. Returns how
    /// many are left.
    pub fn release(&self) -> u32 {
        let less = |holders: u32| Some(holders.saturating_sub(1));
        let before = self.holders.fetch_update(Release, Acquire, less).unwrap_or(0);
        if before <= 1 {
            self.set_phase(SocketPhase::Closed);
        }
        before.saturating_sub(1)
    }

    /// Prepares a record that was never used before, so that all of it is zero, for a new socket.
    pub(super) fn begin(&self, pid: u32, opened_at_ns: u64) {
        self.generation.store(1, Relaxed);
        self.opened_at_ns.store(opened_at_ns, Relaxed);
        self.pid.store(pid, Relaxed);
        self.holders.store(1, Relaxed);
    }

    /// Resets a claimed record for a new socket.
    pub(super) fn reset(&self, pid: u32, opened_at_ns: u64) {
        // Before anything is overwritten, so that a concurrent reader sees the change.
        self.generation.fetch_add(1, Relaxed);
        crate::sync::fence(Release);
        self.reason.store(0, Relaxed);
        self.detail.store(0, Relaxed);
        self.role.store(0, Relaxed);
        self.family.store(0, Relaxed);
        self.ports.store(0, Relaxed);
        self.nonblocking.store(0, Relaxed);
        for word in &self.local {
            word.store(0, Relaxed);
        }
        for word in &self.peer {
            word.store(0, Relaxed);
        }
        self.end.reset();
        self.outgoing.reset();
        self.incoming.reset();
        self.opened_at_ns.store(opened_at_ns, Relaxed);
        self.pid.store(pid, Relaxed);
        self.holders.store(1, Relaxed);
    }
}

impl EndState {
    fn reset(&self) {
        self.send_lock.reset();
        self.receive_lock.reset();
        self.kernel_senders.store(0, Relaxed);
        self.kernel_receivers.store(0, Relaxed);
        self.kernel_sent.store(0, Relaxed);
        self.holds.store(0, Relaxed);
        self.rejoins.store(0, Relaxed);
        self.inheritors.store(0, Relaxed);
        self.inheritors_checked_at_us.store(0, Relaxed);
        self.options.store(0, Relaxed);
    }
}

impl DirectionCounters {
    fn reset(&self) {
        self.memory_bytes.0.store(0, Relaxed);
        self.memory_calls.0.store(0, Relaxed);
        self.kernel_bytes.0.store(0, Relaxed);
        self.kernel_calls.0.store(0, Relaxed);
        self.sleeps.0.store(0, Relaxed);
        self.wakeups.0.store(0, Relaxed);
        self.failed_spins.0.store(0, Relaxed);
        self.fallbacks.0.store(0, Relaxed);
    }
}

fn address_words(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(ip) => [u64::from(ip.to_bits()), 0],
        IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
    }
}

pub(super) fn address(family: u32, words: [u64; 2], port: u16) -> Option<SocketAddr> {
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from_bits(words[0] as u32)),
        6 => IpAddr::V6(Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1]))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
