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
    let dead = u32::MAX; // no process has this number
    for step in 0..4 {
        let pipe = pipe();
        assert_eq!(pipe.push(b"before"), 6);
        pipe.sender.lock.owner.store(dead, Relaxed);
        // The steps of `publish_inline` for "dying", up to `step`.
        if step >= 1 {
            pipe.control.word.store(pack(6, 0), Release);
        }
        if step >= 2 {
            pipe.control.inline[0].store(word_of_8_bytes(b"dying\0\0\0"), Relaxed);
        }
        if step >= 3 {
            pipe.control.word.store(pack(11, 5), Release);
        }
        assert!(pipe.lock_send(std::process::id()));
        assert_eq!(pipe.push(b"after"), 5);
        pipe.unlock_send();
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
