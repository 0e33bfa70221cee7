//! The pipe compared with a queue, between threads and processes, with a hostile peer, and its
//! locks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nm_ring::EndpointRole::{Creator, Opener};
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::ledger::Ledger;
use nm_ring::pipe::{INLINE_BYTES_MAX, PIPE_BYTES, Pipe, QUARTER_BYTES};
use nm_ring::process_lock::{LockOutcome, ProcessLock};
use nm_sys::shared_memory::SharedMemory;
use proptest::prelude::*;

use crate::processes::{FORK_LOCK, wait_for};

/// Two mappings of one conduit.
fn mapped() -> (ConduitMapping, ConduitMapping) {
    let (first, file) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
    (first, ConduitMapping::<PIPE_BYTES>::open(file).unwrap())
}

/// Bytes that differ from their neighbours, and do not repeat soon.
fn bytes(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(|idx| (idx % 251) as u8 ^ (idx / 251) as u8).collect()
}

/// Bytes from a position on that the sender has in memory.
fn sent_bytes(pipe: &Pipe, position: u64, count: usize) -> Vec<u8> {
    let pieces = pipe.sent_pieces(position, count);
    // SAFETY: the pipe is mapped, and nobody writes to it now.
    let read = |(start, bytes)| unsafe { std::slice::from_raw_parts(start, bytes) };
    pieces.into_iter().filter(|piece| piece.1 > 0).flat_map(read).copied().collect()
}

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Parts(Vec<usize>),
    Pull(usize),
    Peek(usize, usize),
    Discard(usize),
}

/// Lengths around each threshold of the implementation, and any others.
fn length() -> impl Strategy<Value = usize> {
    let borders = vec![
        0,
        1,
        7,
        8,
        9,
        INLINE_BYTES_MAX,
        INLINE_BYTES_MAX + 1,
        QUARTER_BYTES,
        PIPE_BYTES,
        PIPE_BYTES + 1,
    ];
    prop_oneof![4 => prop::sample::select(borders), 4 => 0usize..70, 1 => 0usize..2 * PIPE_BYTES]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        length().prop_map(Step::Push),
        prop::collection::vec(length(), 0..5).prop_map(Step::Parts),
        length().prop_map(Step::Pull),
        (length(), length()).prop_map(|(offset, count)| Step::Peek(offset, count)),
        length().prop_map(Step::Discard),
    ]
}

proptest! {
    // Each case maps memory and moves megabytes.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_pipe_is_a_queue_of_bytes(steps in prop::collection::vec(step(), 0..80)) {
        let (a, b) = mapped();
        let (out, back) = (a.outgoing(Creator), b.incoming(Opener));
        let mut queue = VecDeque::new();
        let mut buffer = vec![0; 2 * PIPE_BYTES];
        let (mut sent, mut taken) = (0u64, 0u64);
        for step in steps {
            let free = PIPE_BYTES - queue.len();
            match step {
                Step::Push(length) => {
                    let sending = bytes(sent, length);
                    prop_assert_eq!(out.push(&sending), length.min(free));
                    queue.extend(&sending[..length.min(free)]);
                    sent += length.min(free) as u64;
                }
                Step::Parts(lengths) => {
                    let total: usize = lengths.iter().sum();
                    let sending = bytes(sent, total);
                    let mut rest = &sending[..];
                    let parts = lengths.iter().map(|length| {
                        let (part, later) = rest.split_at(*length);
                        rest = later;
                        part
                    });
                    prop_assert_eq!(out.push_parts(parts), total.min(free));
                    queue.extend(&sending[..total.min(free)]);
                    sent += total.min(free) as u64;
                }
                Step::Pull(length) => {
                    let count = length.min(queue.len());
                    prop_assert_eq!(back.pull(&mut buffer[..length]), count);
                    let expected: Vec<u8> = queue.drain(..count).collect();
                    prop_assert!(buffer[..count] == expected[..]);
                    taken += count as u64;
                }
                Step::Peek(offset, length) => {
                    let count = length.min(queue.len().saturating_sub(offset));
                    prop_assert_eq!(back.peek(offset, &mut buffer[..length]), count);
                    let mut both = queue.iter().skip(offset).zip(&buffer[..count]);
                    prop_assert!(both.all(|(a, b)| a == b));
                }
                Step::Discard(length) => {
                    let count = length.min(queue.len());
                    prop_assert_eq!(back.discard(length), count);
                    queue.drain(..count);
                    taken += count as u64;
                }
            }
            let seen = (back.readable(), back.written(), out.consumed());
            prop_assert_eq!(seen, (queue.len(), sent, taken));
            let writable = out.writable();
            prop_assert!(writable <= PIPE_BYTES - queue.len());
            prop_assert!(writable == PIPE_BYTES - queue.len() || writable >= PIPE_BYTES / 2);
            prop_assert!(queue == sent_bytes(out, taken, queue.len()));
            let too_many = out.sent_pieces(taken, queue.len() + 1);
            prop_assert_eq!((too_many[0].1, too_many[1].1), (0, 0));
        }
    }
}

/// Sends `total` bytes through `pipe` in pieces of odd lengths, spinning for space.
fn send_all(pipe: &Pipe, total: usize) {
    let all = bytes(0, total);
    let (mut sent, mut piece) = (0, 1);
    while sent < total {
        let end = total.min(sent + piece);
        let count = pipe.push(&all[sent..end]);
        sent += count;
        if count == 0 {
            thread::yield_now();
        }
        // Mostly short, so that inline bytes are overwritten while they are read.
        piece = if sent % 17 == 0 { sent % 5_003 + 1 } else { sent % INLINE_BYTES_MAX + 1 };
    }
}

/// Receives until `total` bytes have arrived, and compares them.
fn receive_all(pipe: &Pipe, total: usize) {
    let expected = bytes(0, total);
    let mut buffer = vec![0; 4_096];
    let (mut received, mut size) = (0, 1);
    while received < total {
        let peeked = pipe.peek(0, &mut buffer[..size]);
        assert!(buffer[..peeked] == expected[received..received + peeked], "peek at {received}");
        let count = pipe.pull(&mut buffer[..size]);
        assert!(count >= peeked.min(1), "bytes that were there have gone at {received}");
        assert!(buffer[..count] == expected[received..received + count], "pull at {received}");
        received += count;
        size = if received % 13 == 0 { received % 4_096 + 1 } else { received % 61 + 1 };
        if count == 0 {
            thread::yield_now();
        }
    }
    assert_eq!(pipe.readable(), 0);
}

#[test]
fn threads_lose_no_bytes() {
    let (a, b) = mapped();
    thread::scope(|scope| {
        scope.spawn(|| send_all(a.outgoing(Creator), 3_000_000));
        receive_all(b.incoming(Opener), 3_000_000);
    });
}

/// Runs `child` in a process of its own that shares the memory; returns its process id.
fn fork(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child uses only memory that it has and plain system calls, or aborts; it ends
    // without running anything of the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        child();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    pid
}

#[test]
fn processes_lose_no_bytes() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (a, b) = mapped();
    let all = bytes(0, 1 << 20);
    let pid = fork(|| {
        let mut buffer = [0; 777];
        let mut left = 1 << 20;
        while left > 0 {
            let count = b.incoming(Opener).pull(&mut buffer);
            let mut back = 0;
            while back < count {
                back += b.outgoing(Opener).push(&buffer[back..count]);
            }
            left -= count;
        }
    });
    let (mut sent, mut received) = (0, 0);
    let mut buffer = [0; 1000];
    while received < all.len() {
        let end = all.len().min(sent + 1 + sent % 99);
        sent += a.outgoing(Creator).push(&all[sent..end]);
        let count = a.incoming(Creator).pull(&mut buffer);
        assert!(buffer[..count] == all[received..received + count]);
        received += count;
    }
    assert_eq!(wait_for(pid), 0);
}

#[test]
fn lock_of_a_dead_process_is_taken_over_and_its_pipe_recovered() {
    let _fork_lock = FORK_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (a, b) = mapped();
    let (out, back) = (a.outgoing(Creator), b.incoming(Opener));
    let lock = shared_lock();
    // The child is not reaped at first: a zombie must count as dead.
    let pid = fork(|| {
        assert_eq!(lock.lock(std::process::id()), LockOutcome::Acquired);
        out.push(b"last words");
    });
    while lock.owner() == 0 || out.readable() == 0 {
        thread::yield_now();
    }
    assert_eq!(lock.lock(1 + std::process::id()), LockOutcome::TakenFromDeadProcess);
    out.recover_sender();
    assert_eq!(out.push(b", and more"), 10);
    let mut buffer = [0; 30];
    let count = back.pull(&mut buffer);
    assert_eq!(&buffer[..count], b"last words, and more");
    lock.unlock();
    assert_eq!(lock.owner(), 0);
    wait_for(pid);
}

/// A lock in memory that a fork shares.
fn shared_lock() -> &'static ProcessLock {
    let (ledger, _) = Ledger::create(std::process::id(), "test", "", 0).unwrap();
    let ledger: &'static Ledger = Box::leak(Box::new(ledger));
    &ledger.claim(std::process::id(), 0).unwrap().end.send_lock
}

#[test]
fn waiting_for_a_lock_that_is_never_released_times_out() {
    let (lock, own) = (ProcessLock::new(), std::process::id());
    assert_eq!(lock.lock(own), LockOutcome::Acquired);
    assert!(!lock.try_lock(own));
    assert_eq!(lock.lock(own), LockOutcome::TimedOut, "its owner lives");
    lock.unlock();
    assert!(lock.try_lock(own));
}

#[test]
fn lock_of_a_thread_without_competitors_is_seen_by_later_ones() {
    let (lock, own) = (ProcessLock::new(), std::process::id());
    assert_eq!(lock.lock_alone(own), LockOutcome::Acquired);
    assert!(!lock.try_lock(own));
    lock.unlock();
    // Held by a process that has died: no process has this id.
    let dead = 0x7fff_fff0;
    assert!(lock.try_lock(dead));
    assert_eq!(lock.lock_alone(own), LockOutcome::TakenFromDeadProcess);
    assert_eq!(lock.lock_alone(own), LockOutcome::TimedOut, "it is held already");
    lock.unlock();
    assert_eq!((lock.owner(), lock.lock(own)), (0, LockOutcome::Acquired));
}

#[test]
fn lock_excludes_other_threads() {
    let (a, b) = mapped();
    let (lock, own) = (ProcessLock::new(), std::process::id());
    let send = || {
        for _ in 0..20_000 {
            while lock.lock(own) != LockOutcome::Acquired {}
            // Two pushes whose bytes must stay adjacent, which only the lock guarantees.
            while a.outgoing(Creator).writable() < 2 {
                thread::yield_now();
            }
            assert_eq!(a.outgoing(Creator).push(b"x") + a.outgoing(Creator).push(b"y"), 2);
            lock.unlock();
        }
    };
    thread::scope(|scope| {
        scope.spawn(send);
        scope.spawn(send);
        let mut received = vec![];
        let mut buffer = [0; 512];
        while received.len() < 80_000 {
            let count = b.incoming(Opener).pull(&mut buffer);
            received.extend_from_slice(&buffer[..count]);
        }
        assert!(received.chunks(2).all(|pair| pair == b"xy"));
    });
}

#[test]
fn sleeping_writer_is_woken_once_and_not_per_byte() {
    let (a, b) = mapped();
    let (out, back) = (a.outgoing(Creator), b.incoming(Opener));
    assert_eq!(out.push(&vec![1; PIPE_BYTES + 5]), PIPE_BYTES);
    out.arm_writer();
    assert_eq!(out.writable(), 0);
    let mut woken_at = vec![];
    while back.discard(1024) > 0 {
        if back.take_writer_waiting() {
            woken_at.push(back.consumed() as usize);
        }
    }
    assert_eq!(woken_at, [QUARTER_BYTES]);
    out.arm_writer();
    assert!(!back.take_writer_waiting(), "nothing was taken");
    assert!(back.take_writer_waiting_now());
    back.arm_reader();
    assert!(out.take_reader_waiting() && !out.take_reader_waiting());
}

fn run_steps(raw: &SharedMemory, endpoint_under_attack: &ConduitMapping, random: &[(usize, u64)]) {
    let mut buffer = vec![0; PIPE_BYTES + 99];
    let (out, back) =
        (endpoint_under_attack.outgoing(Creator), endpoint_under_attack.incoming(Creator));
    for (idx, (at, word)) in random.iter().enumerate() {
        let at = at % (CONDUIT_BYTES / 8) * 8;
        // SAFETY: within the live mapping and aligned; others read the word as an atomic.
        unsafe {
            let place = raw.start().cast::<u8>().as_ptr().add(at).cast::<u64>();
            std::sync::atomic::AtomicU64::from_ptr(place).store(*word, Ordering::Relaxed);
        }
        let length = (*word >> 7) as usize % buffer.len();
        match idx % 7 {
            0 => assert!(out.push(&buffer[..length]) <= length),
            1 => assert!(out.push(&buffer[..length % 57]) <= length % 57),
            2 => assert!(back.pull(&mut buffer[..length]) <= length),
            3 => assert!(back.peek(*word as usize, &mut buffer[..length]) <= length),
            4 => assert!(back.discard(length) <= length),
            5 => {
                let parts = [&buffer[..length % 60], &buffer[..length]];
                assert!(out.push_parts(parts.into_iter()) <= 60 + length);
            }
            _ => assert!(sent_bytes(out, *word, length).len() <= length),
        }
        assert!(back.readable() <= PIPE_BYTES && out.writable() <= PIPE_BYTES);
        let _ = (out.written(), out.sent(), out.take_back(*word));
        let _ = (out.take_reader_waiting(), back.take_writer_waiting());
    }
}

/// Words of the first page of each pipe, which matter most, and any others.
fn random_writes() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let pipe = (CONDUIT_BYTES - 384) / 2 / 8;
    // A position and a count of inline bytes that a control word may have, or almost.
    let control = (0usize..2, 0u64..200, 0u64..64)
        .prop_map(move |(which, position, inline)| (48 + which * pipe, position << 6 | inline));
    let place = prop_oneof![
        8 => (0usize..2, 0usize..96).prop_map(move |(which, word)| 48 + which * pipe + word),
        1 => 0usize..CONDUIT_BYTES / 8,
    ];
    let word = prop_oneof![any::<u64>(), any::<u32>().prop_map(u64::from), (0u64..64)];
    prop::collection::vec(prop_oneof![1 => control, 3 => (place, word)], 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_writes_never_make_a_pipe_panic_read_outside_or_hang(random in random_writes()) {
        let (first, file) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
        let raw = SharedMemory::open(file, CONDUIT_BYTES).unwrap();
        run_steps(&raw, &first, &random);
    }
}

#[test]
fn peer_that_overwrites_memory_all_the_time_causes_no_fault() {
    let (first, file) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
    let raw = SharedMemory::open(file, CONDUIT_BYTES).unwrap();
    let done = AtomicBool::new(false);
    let words = (CONDUIT_BYTES - 384) / 2 / 8;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1u64;
            while !done.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                let word = 48 + (seed >> 20) as usize % 96 + (seed >> 50 & 1) as usize * words;
                // SAFETY: within the live mapping and aligned; others use it as an atomic.
                unsafe {
                    let place = raw.start().cast::<u64>().as_ptr().add(word);
                    std::sync::atomic::AtomicU64::from_ptr(place).store(seed, Ordering::Relaxed);
                }
            }
        });
        let mut buffer = [0; 100];
        for round in 0..200_000 {
            let length = round % 100;
            assert!(first.outgoing(Creator).push(&buffer[..length]) <= length);
            assert!(first.incoming(Creator).pull(&mut buffer[..length]) <= length);
        }
        done.store(true, Ordering::Relaxed);
    });
}
