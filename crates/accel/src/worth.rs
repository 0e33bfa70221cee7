//! Whether shared memory is worth what it costs: a connection whose bytes go through the kernel
//! nonetheless, because its receivers sleep, has paid for it and gains nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nm_ring::ledger::Record;

/// Sends through the kernel after which a connection is judged.
const SENDS: u64 = 2048;

/// Time after which it is judged at the earliest, ns: a receiver may be busy for some time.
const JUDGED_NS: u64 = 3_000_000_000;

/// It stays if memory had one message for so many of those.
const KERNEL_SHARE: u64 = 8;

/// Connections in a row that were not worth it before the process tries no more.
const STREAK_MAX: u32 = 8;

/// Share of a process's time that the search for other ends may take: one of so many parts.
const TIME_SHARE: u64 = 64;

/// What it may take beyond that at first, ns: several hundred connections.
const BURST_NS: u64 = 20_000_000;

/// Connections in a row that were not worth it.
static STREAK: AtomicU32 = AtomicU32::new(0);

/// When the first search began, ns.
static BEGUN_NS: AtomicU64 = AtomicU64::new(0);

/// Time that searches took, ns.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// Messages of a connection when it was judged last.
#[derive(Debug, Default)]
pub struct Judged {
    kernel: AtomicU64,
    memory: AtomicU64,
    at_ns: AtomicU64,
}

impl Judged {
    /// None.
    pub const fn new() -> Judged {
        Judged { kernel: AtomicU64::new(0), memory: AtomicU64::new(0), at_ns: AtomicU64::new(0) }
    }

    /// The connection begins to use memory, or was just judged.
    pub fn begin(&self, record: &Record, now_ns: u64) {
        self.kernel.store(record.outgoing.kernel_calls.get(), Ordering::Relaxed);
        self.memory.store(memory_messages(record), Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Whether the connection is not worth its memory. Called after some of the sends through the
    /// kernel.
    pub fn is_worthless(&self, record: &Record, now_ns: u64) -> bool {
        let before = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let by_kernel = record.outgoing.kernel_calls.get().saturating_sub(before(&self.kernel));
        if by_kernel < SENDS || now_ns.saturating_sub(before(&self.at_ns)) < JUDGED_NS {
            return false;
        }
        let by_memory = memory_messages(record).saturating_sub(before(&self.memory));
        self.begin(record, now_ns);
        let is_worthless = by_memory < by_kernel / KERNEL_SHARE;
        if is_worthless {
            STREAK.fetch_add(1, Ordering::Relaxed);
        } else {
            STREAK.store(0, Ordering::Relaxed);
        }
        is_worthless
    }
}

fn memory_messages(record: &Record) -> u64 {
    record.outgoing.memory_calls.get() + record.incoming.memory_calls.get()
}

/// Whether the connections of this process were not worth it, all of the last ones.
pub fn process_has_stopped() -> bool {
    STREAK.load(Ordering::Relaxed) >= STREAK_MAX
}

/// Whether a search for the other end of a connection may begin now: not if searches have taken
/// their share of the process's time.
pub fn may_search(now_ns: u64) -> bool {
    let order = (Ordering::Relaxed, Ordering::Relaxed);
    let begun_ns =
        BEGUN_NS.compare_exchange(0, now_ns, order.0, order.1).map_or_else(|it| it, |_| now_ns);
    let spent_ns = SPENT_NS.load(Ordering::Relaxed);
    is_within_share(now_ns.saturating_sub(begun_ns), spent_ns)
}

/// A search has taken so long.
pub fn note_search(took_ns: u64) {
    // What others took this thread's CPU for is no cost of the search.
    SPENT_NS.fetch_add(took_ns.min(BURST_NS / 20), Ordering::Relaxed);
}

fn is_within_share(passed_ns: u64, spent_ns: u64) -> bool {
    spent_ns < BURST_NS + passed_ns / TIME_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_ring::ledger::Ledger;

    #[test]
    fn connection_is_judged_by_what_memory_carried_meanwhile() {
        let (ledger, _file) = Ledger::create(1, "test", "", 0).unwrap();
        let record = ledger.claim(1, 0).unwrap();
        let (judged, mut now_ns) = (Judged::new(), 7);
        record.outgoing.kernel_calls.add(SENDS - 1);
        judged.begin(record, now_ns);
        record.outgoing.kernel_calls.add(SENDS);
        assert!(!judged.is_worthless(record, now_ns + JUDGED_NS - 1), "too early");
        let mut later = |sends, messages| {
            now_ns += JUDGED_NS;
            record.outgoing.kernel_calls.add(sends);
            record.incoming.memory_calls.add(messages);
            judged.is_worthless(record, now_ns)
        };
        assert!(!later(0, SENDS / KERNEL_SHARE), "memory had its share");
        assert!(!later(SENDS - 1, 0), "too few");
        assert!(!later(SENDS, SENDS), "memory had its share");
        for streak in 1..=STREAK_MAX {
            assert!(!process_has_stopped());
            assert!(later(SENDS, SENDS / KERNEL_SHARE - 1), "{streak}");
        }
        assert!(process_has_stopped());
        assert!(!later(SENDS, SENDS) && !process_has_stopped());
    }

    #[test]
    fn searches_take_a_share_of_the_time() {
        assert!(is_within_share(0, BURST_NS - 1) && !is_within_share(0, BURST_NS));
        let second_ns = 1_000_000_000;
        assert!(is_within_share(second_ns, BURST_NS + second_ns / TIME_SHARE - 1));
        assert!(!is_within_share(second_ns, BURST_NS + second_ns / TIME_SHARE));
    }
}
