//! The endpoints behave as a queue of bytes or of records, for any lengths of pieces.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use nm_ring::TransferError;
use nm_ring::layout::{AREA_BYTES, INLINE_BYTES_MAX, RECORD_BYTES_MAX, SLOTS};
use proptest::prelude::*;

use crate::ends;

#[derive(Debug, Clone, Copy)]
enum Step {
    Send(usize),
    Receive(usize),
}

/// Lengths around each threshold of the implementation, and any others.
fn length() -> impl Strategy<Value = usize> {
    let borders = [1, 8, 55, 56, 57, INLINE_BYTES_MAX, RECORD_BYTES_MAX, AREA_BYTES];
    let near = (prop::sample::select(borders.to_vec()), 0usize..3).prop_map(|(at, by)| at + by - 1);
    prop_oneof![near, 1usize..2_000, 1usize..2 * AREA_BYTES].prop_map(|length| length.max(1))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![length().prop_map(Step::Send), length().prop_map(Step::Receive)];
    prop::collection::vec(step, 0..40)
}

/// Bytes that differ from their neighbours, and do not repeat soon.
fn bytes(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|idx| (idx % 251) as u8 ^ (idx / 251 % 256) as u8).collect()
}

proptest! {
    // Each case maps memory and moves megabytes.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_is_a_queue_of_bytes(steps in steps(), both_ways in any::<bool>()) {
        let (mut a, mut b) = ends::<true, false>();
        let mut queue = VecDeque::new();
        let mut sent_so_far = 0;
        for step in steps {
            match step {
                Step::Send(length) => {
                    let sending = bytes(sent_so_far, length);
                    let sent = a.try_send(&sending);
                    prop_assert!(sent <= length);
                    prop_assert!(sent > 0 || !queue.is_empty(), "an empty ring has room");
                    queue.extend(&sending[..sent]);
                    sent_so_far += sent;
                }
                Step::Receive(length) => {
                    let mut buffer = vec![0; length];
                    let received = b.try_receive(&mut buffer).unwrap();
                    let expected: Vec<u8> = queue.drain(..queue.len().min(length)).collect();
                    prop_assert_eq!(received.unwrap_or(0), expected.len());
                    prop_assert_eq!(&buffer[..expected.len()], &expected[..]);
                    // The count of consumed records returns with the answer, or by the counter
                    // alone.
                    if both_ways {
                        prop_assert_eq!(b.try_send(&[1]), 1);
                        prop_assert_eq!(a.try_receive(&mut [0; 2]), Ok(Some(1)));
                    }
                }
            }
        }
        drop(a);
        let mut rest = vec![];
        let mut buffer = vec![0; 1 << 16];
        while let Ok(received) = b.receive(&mut buffer, Duration::from_secs(1_000)) {
            rest.extend_from_slice(&buffer[..received]);
        }
        prop_assert_eq!(rest, Vec::from(queue));
        prop_assert_eq!(b.try_receive(&mut buffer), Err(TransferError::Closed));
    }

    #[test]
    fn records_keep_their_boundaries(steps in steps()) {
        let (mut a, mut b) = ends::<false, false>();
        let mut queue = VecDeque::new();
        for step in steps {
            match step {
                Step::Send(length) => {
                    let record = bytes(length, length - 1);
                    let sent = a.try_send_record(&record);
                    prop_assert!(!sent || record.len() <= RECORD_BYTES_MAX);
                    if sent {
                        queue.push_back(record);
                        prop_assert!(queue.len() <= SLOTS);
                    }
                }
                Step::Receive(length) => {
                    let mut buffer = vec![0; length];
                    let received = b.try_receive_record(&mut buffer).unwrap();
                    let expected = queue.pop_front();
                    let cut = expected.as_ref().map(|record| record.len().min(length));
                    prop_assert_eq!(received, cut);
                    if let (Some(expected), Some(cut)) = (expected, cut) {
                        prop_assert_eq!(&buffer[..cut], &expected[..cut]);
                    }
                }
            }
        }
    }
}

/// Sends `total` bytes from one thread to another, the receiver pausing now and then.
fn transfer<const A: bool, const B: bool>(total: usize) {
    let (mut a, mut b) = ends::<A, B>();
    let limit = Duration::from_secs(1_000);
    thread::scope(|scope| {
        scope.spawn(move || {
            let all = bytes(0, total);
            let mut sent = 0;
            let mut piece = 1;
            while sent < total {
                let end = total.min(sent + piece);
                sent += a.send(&all[sent..end], limit).unwrap();
                piece = piece * 7 % 100_003 + 1;
            }
            a.shut_write();
            assert_eq!(
                a.receive(&mut [0], limit),
                Err(TransferError::Closed),
                "the other has left"
            );
        });
        let mut received = vec![];
        let mut buffer = vec![0; 50_021];
        let mut size = 1;
        loop {
            match b.receive(&mut buffer[..size], limit) {
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(stop) => {
                    assert_eq!(stop, TransferError::Closed);
                    break;
                }
            }
            size = size * 11 % 50_021 + 1;
            if received.len() % 13 == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        drop(b);
        assert!(received == bytes(0, total), "{} of {total} bytes", received.len());
    });
}

#[test]
fn no_bytes_lost_for_any_mix_of_wait_strategies() {
    transfer::<true, true>(3_000_000);
    transfer::<false, true>(3_000_000);
    transfer::<true, false>(3_000_000);
    transfer::<false, false>(3_000_000);
}

#[test]
fn empty_and_full_rings_time_out() {
    let (mut a, mut b) = ends::<true, true>();
    let brief = Duration::from_millis(1);
    assert_eq!(b.receive(&mut [0], brief), Err(TransferError::TimedOut));
    assert_eq!(b.try_receive(&mut [0]), Ok(None));
    assert!(!b.wait_readable(brief));
    while a.try_send(&[7; 1000]) > 0 {}
    assert_eq!(a.send(&[7; 1000], brief), Err(TransferError::TimedOut));
    assert!(b.wait_readable(brief));
    drop(b);
    assert_eq!(a.send(&[7; 1000], brief), Err(TransferError::Closed));
}

#[test]
fn both_ends_progress_on_one_cpu() {
    thread::spawn(|| {
        let cpu = nm_sys::cpu::allowed()[0];
        nm_sys::cpu::pin_current_thread(cpu).unwrap();
        // Threads started from here stay on that CPU.
        ping_pong::<true>();
        ping_pong::<false>();
    })
    .join()
    .unwrap();
}

fn ping_pong<const SLEEPS: bool>() {
    let (mut a, mut b) = ends::<SLEEPS, SLEEPS>();
    let limit = Duration::from_secs(1_000);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while b.receive(&mut byte, limit).is_ok() {
                b.send(&byte, limit).unwrap();
            }
        });
        for round in 0..2_000u32 {
            let mut byte = [0];
            a.send(&[round as u8], limit).unwrap();
            a.receive(&mut byte, limit).unwrap();
            assert_eq!(byte, [round as u8]);
        }
        assert_eq!(a.peer_cpu(), Some(nm_sys::cpu::current()));
        drop(a);
    });
}
