//! Sequence numbers in datagrams: as many low bytes as the message has room for, up to eight, least
//! first. A late or doubled answer is then never taken for that of another request.

/// Bytes of the tag in an exchange of messages of these sizes.
pub fn bytes(request_bytes: usize, response_bytes: usize) -> usize {
    request_bytes.min(response_bytes).min(8)
}

/// Requests that may be on their way at once so that their tags still differ.
pub fn window(tag_bytes: usize) -> u64 {
    1u64.checked_shl(8 * tag_bytes as u32).unwrap_or(u64::MAX)
}

/// Writes the tag of `sequence` into the first `tag_bytes` of `message`.
#[inline(always)]
pub fn write(message: &mut [u8], tag_bytes: usize, sequence: u64) {
    if tag_bytes == 8 {
        message[..8].copy_from_slice(&sequence.to_le_bytes());
    } else {
        message[..tag_bytes].copy_from_slice(&sequence.to_le_bytes()[..tag_bytes]);
    }
}

/// The highest sequence number below `next` whose tag `message` has, if any.
#[inline(always)]
pub fn read(message: &[u8], tag_bytes: usize, next: u64) -> Option<u64> {
    let newest = next.checked_sub(1)?;
    let mut low = [0; 8];
    low[..tag_bytes].copy_from_slice(&message[..tag_bytes]);
    let mask = if tag_bytes == 8 { u64::MAX } else { window(tag_bytes) - 1 };
    let back = newest.wrapping_sub(u64::from_le_bytes(low)) & mask;
    // With all eight bytes, a number ahead of `next` would wrap round to a huge way back.
    newest.checked_sub(back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_window_is_as_wide_as_its_tag() {
        assert_eq!((window(0), window(1), window(2)), (1, 256, 65_536));
        assert_eq!(window(8), u64::MAX);
        assert_eq!((bytes(0, 9), bytes(3, 9), bytes(64, 64)), (0, 3, 8));
    }

    proptest! {
        #[test]
        fn a_tag_names_its_request_within_the_window(
            tag_bytes in 0usize..=8, next in 1u64..u64::MAX, back in any::<u64>(),
        ) {
            let reach = window(tag_bytes).min(next);
            let sequence = next - 1 - back % reach;
            let mut message = [0; 8];
            write(&mut message, tag_bytes, sequence);
            prop_assert_eq!(read(&message, tag_bytes, next), Some(sequence));
        }

        #[test]
        fn a_foreign_tag_never_names_a_request_that_was_not_sent(
            message in any::<[u8; 8]>(), tag_bytes in 0usize..=8, next in any::<u64>(),
        ) {
            if let Some(sequence) = read(&message, tag_bytes, next) {
                prop_assert!(sequence < next);
            }
        }
    }
}
