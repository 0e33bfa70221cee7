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
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nm_sys::shared_memory::{MapMode, Mapping};

mod reason;
mod record;
mod view;

use record::{LedgerLayout, MARK};

pub use reason::{KernelReason, SocketPhase, SocketRole};
pub use record::{
    Counter, DirectionCounters, LEDGER_BYTES, PROGRAM_BYTES, RECORDS, Record, SETTINGS_BYTES,
};
pub use view::{DirectionCounts, LedgerView, RecordView};

/// Name of the memory: what `/proc/PID/fd` shows as `memfd:nearmetal-accel`.
pub const NAME: &str = "nearmetal-accel";

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

    /// A ledger to read, of a family that need not be trusted. The descriptor is closed.
    ///
    /// # Errors
    /// `EINVAL` if it is not sealed, of another size or another version.
    pub fn open(file: OwnedFd) -> io::Result<LedgerView> {
        LedgerView::open(file)
    }

    #[inline(always)]
    fn layout(&self) -> &LedgerLayout {
        // SAFETY: the mapping is live as long as `self`, at the border of a page and exactly as
        // long as a book; it cannot shrink. A book consists of atomics.
        unsafe { self.0.start().cast::<LedgerLayout>().as_ref() }
    }

    /// A record for a fresh socket that process `pid` alone holds: one never used before, or else
    /// the one that was closed longest ago, roughly. None if all are in use. Its phase is
    /// [`SocketPhase::Free`] until the caller sets another. It belongs to a caller that then dies.
    pub fn claim(&self, pid: u32, opened_at_ns: u64) -> Option<&Record> {
        let record = self.claim_unused().or_else(|| self.claim_closed())?;
        record.reset(pid, opened_at_ns);
        Some(record)
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

    /// Where `record` is, if it is one of this ledger.
    pub fn index_of(&self, record: &Record) -> Option<usize> {
        let begin = std::ptr::from_ref(&self.layout().records).addr();
        let distance = std::ptr::from_ref(record).addr().checked_sub(begin)?;
        let index = distance / size_of::<Record>();
        (index < RECORDS).then_some(index)
    }
}

#[cfg(test)]
mod tests;
