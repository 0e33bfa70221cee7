//! The ledger of an accelerated program and its child processes. It has one record for each TCP
//! socket, in memory that a fork inherits and that other processes may read.
//!
//! [`Ledger`] is the writers' side, the processes of the program. [`LedgerView`] is the readers'
//! side, which does not trust the writers. It copies each record out, and any content of the memory
//! reads as some valid record or as none.
//!
//! The counters that a call writes are in cache lines that only one direction uses. A closed record
//! stays unchanged until no unused ones are left, or until a process reclaims one of its own: then
//! the ledger keeps sums.

use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nm_sys::shared_memory::{MapMode, Mapping};

mod reason;
mod record;
mod view;

use record::{LedgerLayout, MARK};

pub use reason::{KernelReason, SocketPhase, SocketRole, option_name};
pub use record::{
    Counter, DirectionCounters, EndState, HAS_JOINED, INHERITED, LEDGER_BYTES, OTHER_USER_SEEN,
    PROGRAM_BYTES, REASON_OF_PEER, RECORDS, Record, SETTINGS_BYTES,
};
pub use view::{DirectionCounts, LedgerView, Reclaimed, RecordView};

/// Part of a ledger's settings: the program's rings of io_uring serve files only.
pub const SETTING_RINGS_FOR_FILES: &str = "io_uring for files only";

/// Beginning of the part of a ledger's settings that names the program's group.
pub const SETTING_GROUP: &str = "group ";

/// Name of the memory, shown in `/proc/PID/fd` as `memfd:nearmetal-accel`.
pub const NAME: &str = "nearmetal-accel";

/// The writers' side of a ledger.
#[derive(Debug)]
pub struct Ledger(Mapping);

impl Ledger {
    /// Creates the ledger of process `pid`, and returns its descriptor, which the caller keeps open
    /// for readers. `started_at_ns` is the time since boot (`CLOCK_BOOTTIME`).
    ///
    /// # Errors
    /// The system's error, such as `ENOMEM` or `EMFILE`.
    pub fn create(
        pid: u32,
        program: &str,
        settings: &str,
        started_at_ns: u64,
    ) -> io::Result<(Ledger, OwnedFd)> {
        let (mapping, file) = Mapping::new(NAME, LEDGER_BYTES, MapMode::Sparse)?;
        let ledger = Ledger(mapping);
        let header = &ledger.layout().header;
        header.pid.store(pid, Relaxed);
        header.started_at_ns.store(started_at_ns, Relaxed);
        header.program.set(program);
        header.settings.set(settings);
        header.mark.store(MARK, Release);
        Ok((ledger, file))
    }

    /// Opens a ledger for reading; its writers need not be trusted. The descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: OwnedFd) -> io::Result<LedgerView> {
        LedgerView::open(file)
    }

    /// Opens the ledger of another program of this user for writing, as a process of that program.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open_shared(file: &OwnedFd) -> io::Result<Ledger> {
        let ledger = Ledger(Mapping::open(file, LEDGER_BYTES, MapMode::Sparse)?);
        if ledger.layout().header.mark.load(Acquire) != MARK {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(ledger)
    }

    #[inline(always)]
    fn layout(&self) -> &LedgerLayout {
        // SAFETY: the mapping is live as long as `self`, page-aligned and exactly as long as the
        // layout; it is sealed and cannot shrink. The layout consists of atomics.
        unsafe { self.0.start().cast::<LedgerLayout>().as_ref() }
    }

    /// Claims a record for a new socket that only process `pid` holds: one never used before, or
    /// else roughly the one that was closed longest ago. None if all are in use. Its phase is
    /// [`SocketPhase::Free`] until the caller sets another. If the caller dies before that, the
    /// record is not reused.
    pub fn claim(&self, pid: u32, opened_at_ns: u64) -> Option<&Record> {
        if let Some(record) = self.claim_unused() {
            record.begin(pid, opened_at_ns);
            return Some(record);
        }
        let record = self.claim_closed()?;
        record.reset(pid, opened_at_ns);
        Some(record)
    }

    /// Claims a certain record for a new socket of process `pid`: one whose connection never used
    /// shared memory, and was closed in this generation of the record. What it has counted is added
    /// to the sums. None if it was claimed by somebody else meanwhile, or if a thread is still in a
    /// call that began before it was closed.
    ///
    /// A new record takes new memory; one that was closed a short time ago may still be in a cache.
    pub fn reclaim<'a>(
        &self,
        record: &'a Record,
        generation: u32,
        pid: u32,
        opened_at_ns: u64,
    ) -> Option<&'a Record> {
        let (closed, free) = (SocketPhase::Closed as u32, SocketPhase::Free as u32);
        record.phase.compare_exchange(closed, free, Acquire, Relaxed).ok()?;
        let end = &record.end;
        let is_in_use =
            end.kernel_senders.load(Relaxed) != 0 || end.kernel_receivers.load(Relaxed) != 0;
        if is_in_use || record.generation() != generation {
            record.set_phase(SocketPhase::Closed);
            return None;
        }
        self.layout().header.reclaimed.add(record);
        record.reset(pid, opened_at_ns);
        Some(record)
    }

    /// Counts a connection that gets no record.
    pub fn leave_out(&self) {
        self.layout().header.left_out.add(1);
    }

    fn claim_unused(&self) -> Option<&Record> {
        let layout = self.layout();
        let increment = |claimed: u32| ((claimed as usize) < RECORDS).then(|| claimed + 1);
        let index = layout.header.claimed.fetch_update(Relaxed, Relaxed, increment).ok()?;
        layout.records.get(index as usize)
    }

    fn claim_closed(&self) -> Option<&Record> {
        let layout = self.layout();
        let from = layout.header.cursor.load(Relaxed) as usize;
        let (closed, free) = (SocketPhase::Closed as u32, SocketPhase::Free as u32);
        for step in 0..RECORDS {
            let index = (from.wrapping_add(step)) % RECORDS;
            let record = &layout.records[index];
            if record.phase.load(Relaxed) == closed
                && record.phase.compare_exchange(closed, free, Acquire, Relaxed).is_ok()
            {
                layout.header.cursor.store((index + 1) as u32, Relaxed);
                return Some(record);
            }
        }
        None
    }

    /// The record at `index`.
    pub fn record(&self, index: usize) -> Option<&Record> {
        self.layout().records.get(index)
    }

    /// Index of `record`, if it is one of this ledger.
    pub fn index_of(&self, record: &Record) -> Option<usize> {
        let begin = std::ptr::from_ref(&self.layout().records).addr();
        let distance = std::ptr::from_ref(record).addr().checked_sub(begin)?;
        let index = distance / size_of::<Record>();
        (index < RECORDS).then_some(index)
    }
}

#[cfg(test)]
mod tests;
