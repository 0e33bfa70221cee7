//! Writing, reading, reuse of records, and readers of corrupt memory.

use proptest::prelude::*;

use super::*;

fn ledger() -> (Ledger, OwnedFd) {
    Ledger::create(7, "redis-server", "spin 20 us", 99).unwrap()
}

#[test]
fn reader_sees_what_the_writer_stored() {
    let (ledger, file) = ledger();
    let record = ledger.claim(8, 123).unwrap();
    let view = LedgerView::open(file).unwrap();
    assert_eq!((view.pid(), view.started_at_ns()), (7, 99));
    assert_eq!((view.program(), view.settings()), ("redis-server".into(), "spin 20 us".into()));
    assert_eq!(view.records().count(), 0, "free until it has a phase");
    let (local, peer) = ("[::1]:80".parse().unwrap(), "[fe80::1:2]:65535".parse().unwrap());
    record.set_addresses(local, peer);
    record.set_role(SocketRole::Client);
    record.outgoing.memory_bytes.add(5);
    record.outgoing.memory_bytes.add_exclusive(6);
    record.incoming.fallbacks.add(1);
    record.set_phase(SocketPhase::SharedMemory);
    let seen = view.records().next().unwrap();
    assert_eq!((seen.local, seen.peer), (Some(local), Some(peer)));
    assert_eq!(
        (seen.phase, seen.role, seen.reason),
        (SocketPhase::SharedMemory, SocketRole::Client, KernelReason::None)
    );
    assert_eq!(
        (seen.outgoing.memory_bytes, seen.incoming.fallbacks, seen.incoming.memory_bytes),
        (11, 1, 0)
    );
    assert_eq!((seen.pid, seen.opened_at_ns, seen.holders), (8, 123, 1));
    record.set_addresses("127.0.0.1:1".parse().unwrap(), "10.0.0.9:2".parse().unwrap());
    assert!(record.set_reason(KernelReason::SocketOption, 6 << 16 | 19));
    assert!(!record.set_reason(KernelReason::PeerDied, 0), "the first stays");
    record.hold();
    assert_eq!(record.release(), 1);
    assert_eq!(record.release(), 0);
    assert_eq!(record.release(), 0, "once too often");
    let seen = view.records().next().unwrap();
    assert_eq!((seen.phase, seen.reason), (SocketPhase::Closed, KernelReason::SocketOption));
    assert_eq!((seen.detail, seen.peer), (6 << 16 | 19, "10.0.0.9:2".parse().ok()));
}

#[test]
fn closed_records_are_reused_only_when_no_unused_one_is_left() {
    let (ledger, file) = ledger();
    let view = LedgerView::open(file).unwrap();
    for index in 0..RECORDS {
        let record = ledger.claim(1, index as u64).unwrap();
        assert_eq!(ledger.index_of(record), Some(index));
        record.set_phase(if index % 1000 == 1 { SocketPhase::Closed } else { SocketPhase::Kernel });
    }
    let closed = RECORDS.div_ceil(1000);
    assert_eq!(view.records().filter(|seen| seen.phase == SocketPhase::Closed).count(), closed);
    for index in 0..closed {
        let record = ledger.claim(1, 0).unwrap();
        assert_eq!(ledger.index_of(record), Some(index * 1000 + 1));
        assert_eq!((record.generation(), record.phase()), (2, SocketPhase::Free));
        record.set_phase(SocketPhase::Candidate);
    }
    assert!(ledger.claim(1, 0).is_none(), "all in use");
    let record = ledger.record(5).unwrap();
    record.release();
    assert!(std::ptr::eq(ledger.claim(1, 0).unwrap(), record));
    assert_eq!(view.records().count(), RECORDS - 1);
}

#[test]
fn reclaimed_record_leaves_its_counts_and_is_claimed_once() {
    let (ledger, file) = ledger();
    let view = LedgerView::open(file).unwrap();
    let record = ledger.claim(1, 1).unwrap();
    record.set_peer("127.0.0.1:7".parse().unwrap());
    record.outgoing.kernel_bytes.add(10);
    record.outgoing.kernel_calls.add(1);
    record.incoming.kernel_bytes.add(300);
    record.incoming.kernel_calls.add(2);
    record.set_phase(SocketPhase::Candidate);
    let seen = view.records().next().unwrap();
    assert_eq!((seen.local, seen.peer), (None, "127.0.0.1:7".parse().ok()));
    let generation = record.generation();
    assert!(ledger.reclaim(record, generation, 1, 2).is_none(), "it is open");
    assert_eq!(record.release(), 0);
    assert!(ledger.reclaim(record, generation + 1, 1, 2).is_none(), "another use of it");
    assert_eq!(record.phase(), SocketPhase::Closed);
    record.end.kernel_receivers.fetch_add(1, Relaxed);
    assert!(ledger.reclaim(record, generation, 1, 2).is_none(), "a thread is in a call");
    record.end.kernel_receivers.fetch_sub(1, Relaxed);
    assert_eq!(view.reclaimed(), Reclaimed::default());
    assert!(std::ptr::eq(ledger.reclaim(record, generation, 5, 2).unwrap(), record));
    assert!(ledger.reclaim(record, generation, 5, 2).is_none(), "only once");
    let sums = view.reclaimed();
    assert_eq!((sums.connections, sums.outgoing.kernel_bytes), (1, 10));
    assert_eq!((sums.outgoing.kernel_calls, sums.incoming.kernel_bytes), (1, 300));
    assert_eq!((sums.incoming.kernel_calls, sums.incoming.memory_bytes), (2, 0));
    record.set_phase(SocketPhase::Kernel);
    let seen = view.records().next().unwrap();
    assert_eq!((seen.generation, seen.pid, seen.opened_at_ns), (2, 5, 2));
    assert_eq!((seen.outgoing, seen.incoming), Default::default());
    assert_eq!((seen.peer, seen.holders), (None, 1));
}

#[test]
fn threads_never_claim_the_same_record() {
    let (ledger, _file) = ledger();
    let claim = || -> Vec<usize> {
        let claim = |_| ledger.index_of(ledger.claim(1, 0).unwrap()).unwrap();
        (0..RECORDS / 4).map(claim).collect()
    };
    let mut all: Vec<usize> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(claim));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..RECORDS));
}

#[test]
fn each_number_is_one_variant_with_a_text() {
    for (number, reason) in KernelReason::ALL.iter().enumerate() {
        assert_eq!(KernelReason::from_number(number as u32), Some(*reason));
        assert!(!reason.text().is_empty() && reason.text().chars().all(|c| !c.is_uppercase()));
    }
    assert_eq!(SocketPhase::from_number(u32::MAX), None);
}

#[test]
fn long_name_is_truncated_and_control_characters_replaced() {
    let (_ledger, file) = Ledger::create(1, &"ä".repeat(500), "a\u{1b}[2Jb", 0).unwrap();
    let view = LedgerView::open(file).unwrap();
    assert_eq!(view.program(), "ä".repeat(PROGRAM_BYTES / 2));
    assert_eq!(view.settings(), "a?[2Jb");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Random bytes after the magic number: each record reads as a valid one or as none.
    #[test]
    fn a_view_of_random_bytes_neither_panics_nor_reads_outside(
        bytes in prop::collection::vec(any::<u8>(), 384 * 40..384 * 41),
        small in any::<bool>(),
        at in 8usize..4096 * 2,
        fresh in prop_oneof![Just(u32::MAX), any::<u32>(), 0u32..100],
    ) {
        let (ledger, file) = ledger();
        let view = LedgerView::open(file).unwrap();
        // Small numbers are valid far more often than random ones.
        let bytes: Vec<u8> = bytes.into_iter().map(|b| if small { b % 5 } else { b }).collect();
        // SAFETY: the range lies within the live mapping, which nothing else touches now.
        unsafe {
            let to = ledger.0.start().cast::<u8>().as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        ledger.layout().header.claimed.store(fresh, Relaxed);
        prop_assert!(view.records().count() <= RECORDS.min(fresh as usize));
        for seen in view.records() {
            prop_assert!(seen.phase != SocketPhase::Free && seen.index < RECORDS);
        }
        let texts = view.program() + &view.settings();
        prop_assert!(!texts.chars().any(char::is_control));
        // The writer's side must not rely on the content either.
        ledger.layout().header.cursor.store(fresh, Relaxed);
        if let Some(record) = ledger.claim(1, 1) {
            record.set_phase(SocketPhase::Kernel);
            prop_assert!(ledger.index_of(record).is_some());
        }
    }
}

#[test]
fn memory_that_is_no_ledger_is_rejected() {
    let (_mapping, file) = Mapping::new("x", LEDGER_BYTES, MapMode::Sparse).unwrap();
    assert!(Ledger::open(file).is_err(), "no mark");
    let (_mapping, file) = Mapping::new("x", 4096, MapMode::Sparse).unwrap();
    assert!(Ledger::open(file).is_err(), "too short");
}
