//! The readers' side of the ledger: copies of memory that another process may write at any time.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};

use nm_sys::shared_memory::{MapMode, Mapping};

use super::reason::{KernelReason, SocketPhase, SocketRole};
use super::record::{
    Counter, DirectionCounters, LEDGER_BYTES, LedgerLayout, MARK, RECORDS, Record, Text, address,
};

/// Attempts to copy a record before it is skipped because it changes all the time.
const ATTEMPTS: u32 = 4;

/// Counts of one direction; see [`DirectionCounters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// Bytes through shared memory.
    pub memory_bytes: u64,
    /// Calls that moved bytes through shared memory.
    pub memory_calls: u64,
    /// Bytes through the kernel.
    pub kernel_bytes: u64,
    /// Calls that moved bytes through the kernel.
    pub kernel_calls: u64,
    /// Times that a thread went to sleep.
    pub sleeps: u64,
    /// Wake-ups of a peer that slept until memory had bytes (outgoing), or by it (incoming).
    pub wakeups: u64,
    /// Spins that ended without success.
    pub failed_spins: u64,
    /// Times that both directions had to use the kernel for the time being.
    pub fallbacks: u64,
}

impl DirectionCounts {
    fn snapshot(flow: &DirectionCounters) -> DirectionCounts {
        DirectionCounts {
            memory_bytes: flow.memory_bytes.get(),
            memory_calls: flow.memory_calls.get(),
            kernel_bytes: flow.kernel_bytes.get(),
            kernel_calls: flow.kernel_calls.get(),
            sleeps: flow.sleeps.get(),
            wakeups: flow.wakeups.get(),
            failed_spins: flow.failed_spins.get(),
            fallbacks: flow.fallbacks.get(),
        }
    }
}

/// Sums over connections whose records were reclaimed: they were short, and all of their bytes went
/// through the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// How many connections.
    pub connections: u64,
    /// What they sent.
    pub outgoing: DirectionCounts,
    /// What they received.
    pub incoming: DirectionCounts,
}

/// A copy of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView {
    /// Index in the ledger.
    pub index: usize,
    /// Times that memory could be used again after the kernel had to be.
    pub rejoins: u32,
    /// How often the record was claimed.
    pub generation: u32,
    /// The phase; never [`SocketPhase::Free`].
    pub phase: SocketPhase,
    /// Why it uses the kernel.
    pub reason: KernelReason,
    /// Number of the option (level × 65536 + name) if the reason is an option.
    pub detail: u32,
    /// Its side of the connection.
    pub role: SocketRole,
    /// Own address, if it is known.
    pub local: Option<SocketAddr>,
    /// The peer's address, if it is known.
    pub peer: Option<SocketAddr>,
    /// When it was opened, ns since boot.
    pub opened_at_ns: u64,
    /// Processes that hold it.
    pub holders: u32,
    /// Whether `O_NONBLOCK` is set.
    pub is_nonblocking: bool,
    /// Process that used it last.
    pub pid: u32,
    /// The direction that the socket sends.
    pub outgoing: DirectionCounts,
    /// The direction that the socket receives.
    pub incoming: DirectionCounts,
}

impl RecordView {
    /// Whether it was left to the kernel, as one of too many, before it had transferred anything.
    pub fn was_left_out_unused(&self) -> bool {
        let is_unused = |counts: &DirectionCounts| counts.kernel_calls + counts.memory_calls == 0;
        self.phase == SocketPhase::Closed
            && self.reason == KernelReason::Crowded
            && is_unused(&self.outgoing)
            && is_unused(&self.incoming)
    }

    /// A consistent copy of `record`; none if it is free or invalid, or is reused all the time.
    fn snapshot(index: usize, record: &Record) -> Option<RecordView> {
        (0..ATTEMPTS).find_map(|_| {
            let generation = record.generation.load(Acquire);
            let view = RecordView::copy(index, generation, record);
            fence(Acquire);
            (record.generation.load(Relaxed) == generation).then_some(view)
        })?
    }

    fn copy(index: usize, generation: u32, record: &Record) -> Option<RecordView> {
        let phase = record.phase();
        if phase == SocketPhase::Free {
            return None;
        }
        let family = record.family.load(Relaxed);
        let ports = record.ports.load(Relaxed);
        let words = |words: &[_; 2]| words.each_ref().map(|word: &AtomicU64| word.load(Relaxed));
        Some(RecordView {
            index,
            rejoins: record.end.rejoins.load(Relaxed),
            generation,
            phase,
            reason: record.reason(),
            detail: record.detail.load(Relaxed),
            role: record.role(),
            // A connected socket has no port 0: its own address was not asked for.
            local: address(family, words(&record.local), (ports >> 16) as u16)
                .filter(|local| local.port() != 0),
            peer: address(family, words(&record.peer), ports as u16),
            opened_at_ns: record.opened_at_ns.load(Relaxed),
            holders: record.holders.load(Relaxed),
            is_nonblocking: record.nonblocking.load(Relaxed) != 0,
            pid: record.pid.load(Relaxed),
            outgoing: DirectionCounts::snapshot(&record.outgoing),
            incoming: DirectionCounts::snapshot(&record.incoming),
        })
    }
}

/// The readers' side of a ledger.
#[derive(Debug)]
pub struct LedgerView(Mapping);

impl LedgerView {
    /// See [`Ledger::open`](super::Ledger::open).
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: OwnedFd) -> io::Result<LedgerView> {
        let view = LedgerView(Mapping::open(&file, LEDGER_BYTES, MapMode::ReadOnly)?);
        if view.layout().header.mark.load(Acquire) != MARK {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(view)
    }

    fn layout(&self) -> &LedgerLayout {
        // SAFETY: the mapping is live as long as `self`, page-aligned and exactly as long as the
        // layout; it is sealed and cannot shrink. The layout consists of atomics, which are only
        // read here.
        unsafe { self.0.start().cast::<LedgerLayout>().as_ref() }
    }

    /// Process that created the ledger.
    pub fn pid(&self) -> u32 {
        self.layout().header.pid.load(Relaxed)
    }

    /// When it was created, ns since boot.
    pub fn started_at_ns(&self) -> u64 {
        self.layout().header.started_at_ns.load(Relaxed)
    }

    /// Name of the program.
    pub fn program(&self) -> String {
        text(&self.layout().header.program)
    }

    /// Settings as text.
    pub fn settings(&self) -> String {
        text(&self.layout().header.settings)
    }

    /// Sums over connections that have no record any more.
    pub fn reclaimed(&self) -> Reclaimed {
        let counts = &self.layout().header.reclaimed;
        let direction = |bytes: &Counter, calls: &Counter| DirectionCounts {
            kernel_bytes: bytes.get(),
            kernel_calls: calls.get(),
            ..DirectionCounts::default()
        };
        Reclaimed {
            connections: counts.connections.get(),
            outgoing: direction(&counts.outgoing_bytes, &counts.outgoing_calls),
            incoming: direction(&counts.incoming_bytes, &counts.incoming_calls),
        }
    }

    /// Connections that were never recorded, or left before they had transferred anything, because
    /// the process had too many.
    pub fn left_out(&self) -> u64 {
        self.layout().header.left_out.get()
    }

    /// Copies of all records that are or were in use.
    pub fn records(&self) -> impl Iterator<Item = RecordView> + '_ {
        let layout = self.layout();
        let used = (layout.header.claimed.load(Acquire) as usize).min(RECORDS);
        let records = layout.records[..used].iter().enumerate();
        records.filter_map(|(index, record)| RecordView::snapshot(index, record))
    }
}

/// Text up to the first zero byte. A control character becomes a question mark.
fn text<const WORDS: usize>(text: &Text<WORDS>) -> String {
    let bytes: Vec<u8> = text.0.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let plain = |char: char| if char.is_control() { '?' } else { char };
    String::from_utf8_lossy(&bytes[..length]).chars().map(plain).collect()
}
