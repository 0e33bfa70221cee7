//! Sequence numbers in datagrams: the first bytes of a message, least significant byte first.
//!
//! A request-response message has as many bytes of the number as it has room for, up to eight: its
//! tag. A late or duplicated response is then never taken for that of another request. A datagram
//! of a flow has all eight bytes, or none.
//!
//! ```text
//!  0                 tag_bytes (0 to 8)
//!  | sequence number | content ... |
//! ```

use std::ops::Range;

/// Bytes of a complete sequence number.
pub const BYTES: usize = 8;

const NUMBER: Range<usize> = 0..BYTES;

/// Bytes of the tag in messages of these sizes.
pub fn tag_bytes(request_bytes: usize, response_bytes: usize) -> usize {
    request_bytes.min(response_bytes).min(BYTES)
}

/// Requests that may be in flight at once so that their tags still differ.
pub fn window(tag_bytes: usize) -> u64 {
    assert!(tag_bytes <= BYTES, "a tag has at most {BYTES} bytes, not {tag_bytes}");
    1u64.checked_shl(8 * tag_bytes as u32).unwrap_or(u64::MAX)
}

/// Writes a complete sequence number.
#[inline(always)]
pub fn write(message: &mut [u8], sequence: u64) {
    message[NUMBER].copy_from_slice(&sequence.to_le_bytes());
}

/// Reads a complete sequence number; none if the message is too short.
#[inline(always)]
pub fn read(message: &[u8]) -> Option<u64> {
    message.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Writes the tag of `sequence` into the first `tag_bytes` of `message`.
#[inline(always)]
pub fn write_tag(message: &mut [u8], tag_bytes: usize, sequence: u64) {
    if tag_bytes == BYTES {
        write(message, sequence);
    } else {
        message[..tag_bytes].copy_from_slice(&sequence.to_le_bytes()[..tag_bytes]);
    }
}

/// The highest sequence number below `next` that has the tag of `message`, if any.
#[inline(always)]
pub fn read_tag(message: &[u8], tag_bytes: usize, next: u64) -> Option<u64> {
    let newest = next.checked_sub(1)?;
    let mut low = [0; BYTES];
    low[..tag_bytes].copy_from_slice(&message[..tag_bytes]);
    let mask = if tag_bytes == BYTES { u64::MAX } else { (1 << (8 * tag_bytes)) - 1 };
    let distance = newest.wrapping_sub(u64::from_le_bytes(low)) & mask;
    // With all eight bytes, a number from `next` on gives a distance that is larger than `newest`.
    newest.checked_sub(distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn window_is_as_wide_as_its_tag() {
        assert_eq!((window(0), window(1), window(2)), (1, 256, 65_536));
        assert_eq!(window(8), u64::MAX);
        assert_eq!((tag_bytes(0, 9), tag_bytes(3, 9), tag_bytes(64, 64)), (0, 3, 8));
    }

    proptest! {
        #[test]
        fn tag_identifies_its_request_within_the_window(
            tag_bytes in 0usize..=8, next in 1u64..u64::MAX, distance in any::<u64>(),
        ) {
            let reach = window(tag_bytes).min(next);
            let sequence = next - 1 - distance % reach;
            let mut message = [0; BYTES];
            write_tag(&mut message, tag_bytes, sequence);
            prop_assert_eq!(read_tag(&message, tag_bytes, next), Some(sequence));
        }

        #[test]
        fn foreign_tag_never_identifies_a_request_that_was_not_sent(
            message in any::<[u8; 8]>(), tag_bytes in 0usize..=8, next in any::<u64>(),
        ) {
            if let Some(sequence) = read_tag(&message, tag_bytes, next) {
                prop_assert!(sequence < next);
            }
        }

        #[test]
        fn complete_number_round_trips(
            sequence in any::<u64>(), mut message in proptest::collection::vec(any::<u8>(), 8..20),
        ) {
            write(&mut message, sequence);
            prop_assert_eq!(read(&message), Some(sequence));
            prop_assert_eq!(read(&message[..7]), None);
        }
    }
}
