//! Tests of private state: positions that wrap, and a sender that dies during a push.

use super::*;

fn pipe() -> Box<Pipe> {
    // SAFETY: all zero is a valid pipe.
    unsafe { Box::<Pipe>::new_zeroed().assume_init() }
}

#[test]
fn positions_wrap_at_58_and_at_64_bits() {
    for begin in [0u64.wrapping_sub(300), (1 << POSITION_BITS) - 300, (1 << 63) - 300] {
        let pipe = pipe();
        pipe.consumed.position.store(begin, Relaxed);
        pipe.sender.sent.store(begin, Relaxed);
        pipe.sender.known_consumed.store(begin, Relaxed);
        pipe.control.word.store(pack(begin, 0), Relaxed);
        let mut buffer = [0; 80];
        for round in 0..50u8 {
            let length = usize::from(round) % 70 + 1;
            assert_eq!(pipe.push(&[round; 70][..length]), length);
            assert_eq!(pipe.readable(), length);
            assert!(pipe.writable() <= PIPE_BYTES && pipe.writable() >= PIPE_BYTES / 2);
            assert_eq!(pipe.pull(&mut buffer), length);
            assert!(buffer[..length].iter().all(|byte| *byte == round));
        }
        assert_eq!(pipe.written(), pipe.consumed());
        assert_eq!(pipe.push(&vec![7; PIPE_BYTES + 1]), PIPE_BYTES);
    }
}

#[test]
fn control_word_behind_the_reader_reads_as_empty() {
    let pipe = pipe();
    pipe.consumed.position.store(10, Relaxed);
    pipe.control.word.store(pack(9, 5), Relaxed);
    assert_eq!((pipe.readable(), pipe.pull(&mut [0; 9])), (0, 0));
    pipe.control.word.store(u64::MAX, Relaxed);
    assert_eq!(pipe.readable(), 0);
}

#[test]
fn pipe_recovers_from_a_sender_killed_after_each_step() {
    for step in 0..4 {
        let pipe = pipe();
        assert_eq!(pipe.push(b"before"), 6);
        // The steps of `publish_inline` for "dying", up to `step`.
        if step >= 1 {
            pipe.control.word.store(pack(6, 0), Release);
        }
        if step >= 2 {
            pipe.control.inline[0].store(u64::from_le_bytes(*b"dying\0\0\0"), Relaxed);
        }
        if step >= 3 {
            pipe.control.word.store(pack(11, 5), Release);
        }
        pipe.recover_sender();
        assert_eq!(pipe.push(b"after"), 5);
        let mut buffer = [0; 32];
        let count = pipe.pull(&mut buffer);
        let expected: &[u8] = if step < 3 { b"beforeafter" } else { b"beforedyingafter" };
        assert_eq!(&buffer[..count], expected, "{step}");
    }
}

#[test]
fn overwritten_inline_copy_is_rejected() {
    let pipe = pipe();
    assert_eq!(pipe.push(b"first"), 5);
    let seen = pipe.control.word.load(Acquire);
    let mut buffer = [0; 5];
    assert!(pipe.copy_inline(seen, 0, &mut buffer));
    assert_eq!(pipe.push(b"other"), 5);
    assert!(!pipe.copy_inline(seen, 0, &mut buffer));
    let mut both = [0; 10];
    assert_eq!(pipe.pull(&mut both), 10);
    assert_eq!(&both, b"firstother");
}

#[test]
fn sender_takes_back_what_nobody_has_received() {
    let pipe = pipe();
    let mut buffer = [0; 16];
    assert_eq!(pipe.push(b"older"), 5);
    let from = pipe.sent();
    assert_eq!(pipe.push(b"newer"), 5);
    assert_eq!(pipe.take_back(from), 0, "older bytes are unread");
    assert_eq!(pipe.pull(&mut buffer[..7]), 7);
    assert_eq!(pipe.take_back(from), 3, "two of five were received");
    assert_eq!((pipe.readable(), pipe.take_back(from)), (0, 0));
    assert_eq!(pipe.copy_sent(pipe.sent() - 3, &mut buffer[..3]), 3);
    assert_eq!(&buffer[..3], b"wer");
    assert_eq!(pipe.push(b"again"), 5);
    assert_eq!((pipe.pull(&mut buffer), &buffer[..5]), (5, &b"again"[..]));
}

#[test]
fn pull_that_lost_against_take_back_returns_nothing() {
    let pipe = pipe();
    assert_eq!(pipe.push(b"bytes"), 5);
    let consumed = pipe.consumed();
    assert_eq!(pipe.take_back(0), 5);
    assert!(!pipe.advance(consumed, 5));
    assert_eq!(pipe.pull(&mut [0; 5]), 0);
}
