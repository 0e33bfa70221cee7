//! Whether shared memory is worth what it costs. A connection whose bytes go through the kernel
//! nonetheless, because its receivers sleep, has paid for it and gains nothing.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

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
const TIME_SHARE: u64 = 128;

/// What it may take beyond that at first, ns: some dozens of connections.
const BURST_NS: u64 = 4_000_000;

/// Most that one search counts for, ns: what others took this thread's CPU for is no cost of it.
const SEARCH_NS_MAX: u64 = 200_000;

/// What a message through memory allows for further searches, ns: less than it has saved.
const EARNED_NS: u64 = 1_000;

/// Connections that show what memory has saved: those that have joined last.
const SHOWN: usize = 16;

/// A process with more connections has a crowd. Of more than some hundred, at most 64 of a set are
/// polled in memory, and the pages that each one needs in memory push the others out of the caches.
const CROWD: usize = 512;

/// With more connections all that share no memory are left to the kernel, and not even counted: the
/// counters of so many do not fit into the CPU's nearest caches. So are new ones until there are
/// less than [`CROWD`] again.
const CROWD_MAX: usize = 1024;

/// Whether the process has left its connections to the kernel because it had so many.
static HAS_LEFT_CROWD: AtomicBool = AtomicBool::new(false);

/// Connections in a row that were not worth it.
static STREAK: AtomicU32 = AtomicU32::new(0);

/// When the first search began, ns.
static BEGUN_NS: AtomicU64 = AtomicU64::new(0);

/// Time that searches took, ns.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// What messages through memory allow for searches, ns.
static EARNED: AtomicU64 = AtomicU64::new(0);

/// The connections that have joined last, and how many have.
static LAST_JOINED: [Shown; SHOWN] = [const { Shown::new() }; SHOWN];
static JOINED: AtomicU32 = AtomicU32::new(0);

/// A connection in memory, and its messages that have been counted as earned.
struct Shown {
    record: AtomicPtr<Record>,
    counted: AtomicU64,
}

impl Shown {
    const fn new() -> Shown {
        Shown { record: AtomicPtr::new(ptr::null_mut()), counted: AtomicU64::new(0) }
    }

    fn set(&self, record: &'static Record) {
        // Whoever counts in between finds fewer messages than before, and counts none.
        self.counted.store(u64::MAX, Ordering::Relaxed);
        self.record.store(ptr::from_ref(record).cast_mut(), Ordering::Release);
        self.counted.store(memory_messages(record), Ordering::Release);
    }

    /// Messages since this was asked last.
    fn new_messages(&self) -> u64 {
        let record = self.record.load(Ordering::Acquire);
        if record.is_null() {
            return 0;
        }
        // SAFETY: records are never freed. One that is used again counts from zero.
        let now = memory_messages(unsafe { &*record });
        let before = self.counted.swap(now, Ordering::AcqRel);
        now.saturating_sub(before)
    }
}

/// Messages of a connection when it was judged last.
#[derive(Debug, Default)]
pub struct Judged {
    kernel: AtomicU64,
    /// Sends since then to a peer that had not received earlier ones: it may be busy, and says
    /// nothing about how it waits.
    to_peer_behind: AtomicU64,
    memory: AtomicU64,
    at_ns: AtomicU64,
}

impl Judged {
    /// None.
    pub const fn new() -> Judged {
        Judged {
            kernel: AtomicU64::new(0),
            to_peer_behind: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            at_ns: AtomicU64::new(0),
        }
    }

    /// The connection begins to use memory, or was just judged.
    pub fn begin(&self, record: &Record, now_ns: u64) {
        self.kernel.store(record.outgoing.kernel_calls.get(), Ordering::Relaxed);
        self.to_peer_behind.store(0, Ordering::Relaxed);
        self.memory.store(memory_messages(record), Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// A send goes to a peer that has not received earlier ones.
    pub fn note_peer_behind(&self) {
        self.to_peer_behind.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the connection is not worth its memory. Called after some of the sends through the
    /// kernel.
    pub fn is_worthless(&self, record: &Record, now_ns: u64) -> bool {
        let before = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let not_counted = before(&self.kernel).saturating_add(before(&self.to_peer_behind));
        let by_kernel = record.outgoing.kernel_calls.get().saturating_sub(not_counted);
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

/// A connection has joined: its messages show whether the next one is worth a search.
pub fn note_join(record: &'static Record) {
    let place = JOINED.fetch_add(1, Ordering::Relaxed) as usize % SHOWN;
    LAST_JOINED[place].set(record);
}

/// Whether a connection that may not search leaves for good: it is one of a crowd of busy ones.
pub fn is_one_of_a_crowd(connections: usize) -> bool {
    connections > CROWD
}

/// Whether a new connection is left to the kernel, as one of so many.
pub fn is_beyond_a_crowd(connections: usize) -> bool {
    connections >= if has_left_crowd() { CROWD } else { CROWD_MAX }
}

/// Whether the connections of a crowd were left to the kernel, and it has lasted since.
pub fn has_left_crowd() -> bool {
    HAS_LEFT_CROWD.load(Ordering::Relaxed)
}

/// The connections of a crowd were left to the kernel, or there is none any more.
pub fn set_left_crowd(has_left: bool) {
    if has_left_crowd() != has_left {
        HAS_LEFT_CROWD.store(has_left, Ordering::Relaxed);
    }
}

/// Whether a search for the other end of a connection may begin now: not if searches have taken
/// their share of the process's time, and memory has not saved as much.
pub fn may_search(now_ns: u64) -> bool {
    let order = (Ordering::Relaxed, Ordering::Relaxed);
    let begun_ns =
        BEGUN_NS.compare_exchange(0, now_ns, order.0, order.1).map_or_else(|it| it, |_| now_ns);
    let passed_ns = now_ns.saturating_sub(begun_ns);
    let spent_ns = SPENT_NS.load(Ordering::Relaxed);
    is_within_share(passed_ns, spent_ns, EARNED.load(Ordering::Relaxed))
        || is_within_share(passed_ns, spent_ns, earn())
}

/// Counts what memory has saved since it was counted last; returns all that was earned.
fn earn() -> u64 {
    let messages: u64 = LAST_JOINED.iter().map(Shown::new_messages).sum();
    let earned = messages.saturating_mul(EARNED_NS);
    EARNED.fetch_add(earned, Ordering::Relaxed).saturating_add(earned)
}

/// A search has taken so long.
pub fn note_search(took_ns: u64) {
    SPENT_NS.fetch_add(took_ns.min(SEARCH_NS_MAX), Ordering::Relaxed);
}

fn is_within_share(passed_ns: u64, spent_ns: u64, earned_ns: u64) -> bool {
    spent_ns < BURST_NS + passed_ns / TIME_SHARE + earned_ns
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
        judged.note_peer_behind();
        assert!(!later(1, 0), "too few to a peer that was not behind");
        assert!(!later(SENDS, SENDS), "memory had its share");
        for streak in 1..=STREAK_MAX {
            assert!(!process_has_stopped());
            assert!(later(SENDS, SENDS / KERNEL_SHARE - 1), "{streak}");
        }
        assert!(process_has_stopped());
        assert!(!later(SENDS, SENDS) && !process_has_stopped());
    }

    #[test]
    fn searches_take_a_share_of_the_time_or_what_memory_saved() {
        let is_within = |passed_ns, spent_ns| is_within_share(passed_ns, spent_ns, 0);
        assert!(is_within(0, BURST_NS - 1) && !is_within(0, BURST_NS));
        let second_ns = 1_000_000_000;
        assert!(is_within(second_ns, BURST_NS + second_ns / TIME_SHARE - 1));
        assert!(!is_within(second_ns, BURST_NS + second_ns / TIME_SHARE));
        assert!(is_within_share(0, BURST_NS + 6, 7) && !is_within_share(0, BURST_NS + 7, 7));
    }

    #[test]
    fn messages_through_memory_count_once_and_only_since_the_join() {
        let (ledger, _file) = Ledger::create(1, "test", "", 0).unwrap();
        let ledger: &'static Ledger = Box::leak(Box::new(ledger));
        let record = ledger.claim(1, 0).unwrap();
        let shown = Shown::new();
        assert_eq!(shown.new_messages(), 0, "no connection");
        record.incoming.memory_calls.add(3);
        shown.set(record);
        record.incoming.memory_calls.add(2);
        record.outgoing.memory_calls.add(1);
        assert_eq!((shown.new_messages(), shown.new_messages()), (3, 0));
        let (record, generation) = (record, record.generation());
        record.release();
        ledger.reclaim(record, generation, 1, 0).expect("closed");
        record.incoming.memory_calls.add(4);
        assert_eq!(shown.new_messages(), 0, "another connection, with fewer messages");
    }
}
