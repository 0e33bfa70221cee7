//! The protocol under loom: every order of memory accesses that the memory model allows.

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use crate::layout::{self, Region, SLOTS, WRITE_SHUT};
use crate::pipe::{self, PIPE_BYTES, Pipe};
use crate::record_queue::{Consumer, Producer};
use crate::sync::Word;
use crate::wake::{sleep, wake_if_asleep};

const LIMIT: Duration = Duration::from_secs(1);

/// Loom's default explores orders without bound, which does not terminate for these loops.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Sends `records` one after the other, sleeping for space.
fn produce(region: &Region, records: &[&[u8]]) {
    let (own, peer, queue) = (&region.endpoints[0], &region.endpoints[1], &region.queues[0]);
    let mut producer = Producer::default();
    for record in records {
        while !producer.push(queue, record, 0) {
            sleep(own, LIMIT, || producer.has_space(queue, record.len()));
        }
        wake_if_asleep(peer);
    }
}

/// Receives `count` bytes, sleeping for them.
fn consume(region: &Region, count: usize) -> Vec<u8> {
    let (own, peer, queue) = (&region.endpoints[1], &region.endpoints[0], &region.queues[0]);
    let mut consumer = Consumer::default();
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while filled < count {
        let before = consumer.quarter();
        match consumer.read(queue, &mut bytes[filled..]) {
            Some((consumed, _)) => filled += consumed,
            None => sleep(own, LIMIT, || consumer.is_ready(queue)),
        }
        if consumer.quarter() != before {
            wake_if_asleep(peer);
        }
    }
    bytes
}

#[test]
fn loom_short_records_arrive_complete_in_order_without_lost_wake_up() {
    check(|| {
        let region = Arc::new(Region::new());
        let other = region.clone();
        let producing = thread::spawn(move || produce(&other, &[b"a", b"b", b"c"]));
        assert_eq!(consume(&region, SLOTS + 1), b"abc");
        producing.join().unwrap();
    });
}

#[test]
fn loom_long_records_arrive_complete() {
    const { assert!(layout::INLINE_BYTES_MAX < 3) };
    check(|| {
        let region = Arc::new(Region::new());
        let other = region.clone();
        let producing = thread::spawn(move || produce(&other, &[b"abc", b"defg"]));
        assert_eq!(consume(&region, 7), b"abcdefg");
        producing.join().unwrap();
    });
}

#[test]
fn loom_an_answer_frees_the_area_of_its_request() {
    check(|| {
        let region = Arc::new(Region::new());
        let other = region.clone();
        let answering = thread::spawn(move || {
            let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
            let mut byte = [0; 2];
            for _ in 0..2 {
                while consumer.read(&other.queues[0], &mut byte).is_none() {
                    sleep(&other.endpoints[1], LIMIT, || consumer.is_ready(&other.queues[0]));
                }
                assert!(producer.push(&other.queues[1], &byte, consumer.consumed()));
                wake_if_asleep(&other.endpoints[0]);
            }
        });
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        // Both records begin at the start of the area, because the answer frees it.
        for request in [*b"ab", *b"cd"] {
            assert!(producer.push(&region.queues[0], &request, consumer.consumed()));
            wake_if_asleep(&region.endpoints[1]);
            let mut answer = [0; 2];
            let consumed = loop {
                match consumer.read(&region.queues[1], &mut answer) {
                    Some((_, consumed)) => break consumed,
                    None => {
                        sleep(&region.endpoints[0], LIMIT, || consumer.is_ready(&region.queues[1]))
                    }
                }
            };
            producer.update_consumed(consumed);
            assert_eq!(answer, request);
        }
        answering.join().unwrap();
    });
}

#[test]
fn loom_shutdown_wakes_a_sleeper_and_loses_no_byte() {
    check(|| {
        let region = Arc::new(Region::new());
        let other = region.clone();
        let ending = thread::spawn(move || {
            produce(&other, &[b"a"]);
            other.endpoints[0].state.fetch_or(WRITE_SHUT, Ordering::Release);
            wake_if_asleep(&other.endpoints[1]);
        });
        let (queue, peer) = (&region.queues[0], &region.endpoints[0]);
        let mut consumer = Consumer::default();
        let mut bytes = [0; 1];
        let mut received = 0;
        loop {
            if let Some((count, _)) = consumer.read(queue, &mut bytes) {
                received += count;
                continue;
            }
            if peer.state.load(Ordering::Acquire) & WRITE_SHUT != 0 {
                if consumer.is_ready(queue) {
                    continue;
                }
                break;
            }
            sleep(&region.endpoints[1], LIMIT, || {
                consumer.is_ready(queue) || peer.state.load(Ordering::Acquire) != 0
            });
        }
        assert_eq!((received, bytes), (1, *b"a"));
        ending.join().unwrap();
    });
}

/// A pipe with the doorbells of its two ends.
struct PipeWithDoorbells {
    pipe: Pipe,
    reader: Word,
    writer: Word,
}

impl PipeWithDoorbells {
    fn new() -> Arc<PipeWithDoorbells> {
        Arc::new(PipeWithDoorbells { pipe: Pipe::new(), reader: Word::new(), writer: Word::new() })
    }

    /// Sends all of `bytes`, `piece` at a time, sleeping for space.
    fn send(&self, bytes: &[u8], piece: usize) {
        for part in bytes.chunks(piece) {
            let mut sent = 0;
            while sent < part.len() {
                let count = self.pipe.push(&part[sent..]);
                sent += count;
                if count > 0 {
                    if self.pipe.take_reader_waiting() {
                        ring_doorbell(&self.reader);
                    }
                    continue;
                }
                self.writer.store(0);
                self.pipe.arm_writer();
                if self.pipe.writable() == 0 {
                    self.writer.wait(0, LIMIT);
                }
                self.pipe.disarm_writer();
            }
        }
    }

    /// Receives until `count` bytes have arrived, at most `piece` at a time, sleeping for them.
    fn receive(&self, count: usize, piece: usize) -> Vec<u8> {
        let mut bytes = vec![];
        while bytes.len() < count {
            let mut buffer = vec![0; piece];
            let pulled = self.pipe.pull(&mut buffer);
            bytes.extend_from_slice(&buffer[..pulled]);
            if pulled > 0 {
                if self.pipe.take_writer_waiting() {
                    ring_doorbell(&self.writer);
                }
                continue;
            }
            self.reader.store(0);
            self.pipe.arm_reader();
            if self.pipe.readable() == 0 {
                self.reader.wait(0, LIMIT);
            }
            self.pipe.disarm_reader();
        }
        bytes
    }
}

/// As an eventfd: a thread that starts to sleep after this returns at once.
fn ring_doorbell(doorbell: &Word) {
    doorbell.store(1);
    doorbell.wake();
}

/// Sends `bytes` in pieces of one length and receives them in pieces of another.
fn transfer(bytes: &'static [u8], sent: usize, received: usize) {
    check(move || {
        let shared = PipeWithDoorbells::new();
        let other = shared.clone();
        let sending = thread::spawn(move || other.send(bytes, sent));
        assert_eq!(shared.receive(bytes.len(), received), bytes);
        sending.join().unwrap();
    });
}

#[test]
fn loom_overwritten_inline_bytes_still_arrive() {
    transfer(b"ab", 1, 1);
    transfer(b"abcd", 2, 3);
}

#[test]
fn loom_long_and_short_pushes_mix_without_lost_wake_up() {
    transfer(b"0123456789ab", pipe::INLINE_BYTES_MAX + 3, pipe::INLINE_BYTES_MAX);
}

#[test]
fn loom_a_full_pipe_wakes_its_writer() {
    const { assert!(PIPE_BYTES == 16) };
    transfer(b"0123456789abcdef!", 16, 16);
}

/// A receiver that is about to rely on the kernel and a sender that has published: either the
/// receiver sees the bytes, or the sender sees that it must send another way and takes them back.
#[test]
fn loom_a_receiver_that_sleeps_in_the_kernel_never_leaves_bytes_in_the_pipe() {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    check(|| {
        let shared = PipeWithDoorbells::new();
        let other = shared.clone();
        let sending = thread::spawn(move || {
            let pipe = &other.pipe;
            let from = pipe.sent();
            assert_eq!(pipe.push(b"abc"), 3);
            crate::sync::fence(SeqCst);
            if pipe.kernel_use.users.load(Relaxed) == 0 { 0 } else { pipe.take_back(from) }
        });
        let pipe = &shared.pipe;
        pipe.kernel_use.users.fetch_add(1, SeqCst);
        crate::sync::fence(SeqCst);
        let mut buffer = [0; 4];
        let relies_on_kernel = pipe.readable() == 0;
        let received = if relies_on_kernel { 0 } else { pipe.pull(&mut buffer) };
        let taken_back = sending.join().unwrap();
        assert_eq!(received + taken_back, 3, "each byte has one owner");
        assert!(!relies_on_kernel || taken_back == 3, "no byte stays behind for a sleeper");
        assert!(received == 0 || &buffer[..received] == b"abc");
        assert_eq!(pipe.readable(), 0);
    });
}

/// A receiver that copies bytes while the sender takes them back and overwrites them: each byte has
/// one owner, and what the receiver keeps is whole.
#[test]
fn loom_bytes_that_are_taken_back_and_overwritten_are_not_received() {
    const NEXT: &[u8] = b"0123456789abcdef";
    check(|| {
        let shared = PipeWithDoorbells::new();
        let other = shared.clone();
        let sending = thread::spawn(move || {
            let pipe = &other.pipe;
            assert_eq!(pipe.push(b"xyz"), 3);
            let taken_back = pipe.take_back(pipe.consumed());
            let mut copied = [0; 3];
            let from = pipe.sent() - taken_back as u64;
            assert_eq!(pipe.copy_sent(from, &mut copied[..taken_back]), taken_back);
            assert_eq!(copied[..taken_back], b"xyz"[3 - taken_back..]);
            // As long as the area, so that it overwrites what was taken back.
            (taken_back, pipe.push(NEXT))
        });
        let mut received = vec![];
        for _ in 0..2 {
            let mut buffer = [0; 2];
            let count = shared.pipe.pull(&mut buffer);
            received.extend_from_slice(&buffer[..count]);
        }
        let (taken_back, pushed) = sending.join().unwrap();
        let mut rest = [0; 19];
        loop {
            let count = shared.pipe.pull(&mut rest);
            if count == 0 {
                break;
            }
            received.extend_from_slice(&rest[..count]);
        }
        let wanted = [&b"xyz"[..3 - taken_back], &NEXT[..pushed]].concat();
        assert_eq!(received, wanted);
    });
}

/// Bytes that were in the pipe and are there no more are announced: they are being taken back, or
/// the kernel has them.
#[test]
fn loom_bytes_on_their_way_to_the_kernel_are_announced() {
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    check(|| {
        let shared = PipeWithDoorbells::new();
        assert_eq!(shared.pipe.push(b"abc"), 3);
        let other = shared.clone();
        let sending = thread::spawn(move || {
            let (pipe, kernel_sent) = (&other.pipe, &other.pipe.kernel_sent);
            kernel_sent.take_backs_begun.fetch_add(1, SeqCst);
            let taken_back = pipe.take_back(pipe.consumed());
            kernel_sent.sent.store(taken_back as u64, Relaxed);
            kernel_sent.take_backs_ended.fetch_add(1, SeqCst);
        });
        let pipe = &shared.pipe;
        if pipe.readable() == 0 || pipe.pull(&mut [0; 3]) == 0 {
            let kernel_sent = &pipe.kernel_sent;
            // In this order: what has ended has begun.
            let ended = kernel_sent.take_backs_ended.load(SeqCst);
            let is_moving = kernel_sent.take_backs_begun.load(SeqCst) != ended;
            assert!(is_moving || kernel_sent.sent.load(Relaxed) == 3);
        }
        sending.join().unwrap();
    });
}

/// A receiver that sleeps on the futex word, for bytes in the pipe: the sender wakes it. A lost
/// wake-up is a deadlock here.
#[test]
fn loom_a_receiver_that_sleeps_for_the_pipe_is_woken() {
    use loom::sync::{Condvar, Mutex};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};
    check(|| {
        // The kernel's futex: the comparison and the sleep are one step to those who wake.
        let shared = Arc::new((Pipe::<PIPE_BYTES>::new(), Mutex::new(()), Condvar::new()));
        let other = shared.clone();
        let sending = thread::spawn(move || {
            let (pipe, queue, woken) = &*other;
            for byte in [b"a", b"b"] {
                assert_eq!(pipe.push(byte), 1);
                crate::sync::fence(SeqCst);
                let sleeper = &pipe.kernel_use.sleeper;
                if sleeper.load(Relaxed) != 0 && sleeper.swap(0, SeqCst) != 0 {
                    let _queue = queue.lock().unwrap();
                    woken.notify_one();
                }
            }
        });
        let (pipe, queue, woken) = &*shared;
        let mut received = 0;
        while received < 2 {
            let count = pipe.pull(&mut [0; 2]);
            received += count;
            if count > 0 {
                continue;
            }
            pipe.kernel_use.sleeper.store(1, SeqCst);
            crate::sync::fence(SeqCst);
            if pipe.readable() == 0 {
                let queue = queue.lock().unwrap();
                if pipe.kernel_use.sleeper.load(SeqCst) == 1 {
                    drop(woken.wait(queue).unwrap());
                }
            }
        }
        sending.join().unwrap();
    });
}
