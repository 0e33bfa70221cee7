//! Cuts the bytes of a connection into messages.

use thiserror::Error;

use super::message::{Garbled, Message, SOH};
use crate::limits::MESSAGE_BYTES_MAX;

/// What cannot become a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameFault {
    /// Bytes that are ignored.
    #[error(transparent)]
    Garbled(#[from] Garbled),
    /// The connection cannot go on: where this message ends is unknown, or too far.
    #[error("a message has more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
}

/// Received bytes that are no message yet.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    start: usize,
}

/// Longest text of field 8, and of a number of bytes.
const PREFIX_BYTES_MAX: usize = 32;

impl Framer {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, or what is ignored in its place; none if more bytes are needed.
    pub fn next_message(&mut self) -> Option<Result<Message, FrameFault>> {
        self.skip_to_begin();
        let bytes = &self.bytes[self.start..];
        if bytes.len() < "8=".len() {
            return None;
        }
        match extent(bytes) {
            Extent::Unknown if bytes.len() <= MESSAGE_BYTES_MAX => None,
            Extent::Unknown | Extent::TooLong => {
                // Nothing behind it is looked at.
                (self.bytes, self.start) = (vec![], 0);
                Some(Err(FrameFault::TooLong))
            }
            Extent::NoPrefix => {
                self.start += "8=".len();
                Some(Err(Garbled::Start.into()))
            }
            Extent::Bytes(count) => {
                let message = Message::parse(&bytes[..count]);
                self.start += count;
                Some(message.map_err(FrameFault::Garbled))
            }
        }
    }

    /// Skips what comes before the next `8=`.
    fn skip_to_begin(&mut self) {
        let bytes = &self.bytes[self.start..];
        let begin = find(bytes, b"8=").unwrap_or_else(|| {
            // The last byte may be the first of the two.
            bytes.len() - usize::from(bytes.last() == Some(&b'8'))
        });
        self.start += begin;
    }
}

/// How far the bytes that begin with `8=` reach.
enum Extent {
    /// More bytes are needed to know.
    Unknown,
    /// Farther than a message may.
    TooLong,
    /// Fields 8 and 9 do not follow each other.
    NoPrefix,
    /// So many bytes, up to the end of field 10.
    Bytes(usize),
}

fn extent(bytes: &[u8]) -> Extent {
    let Some(first) = field_end(bytes, 0) else {
        return if bytes.len() > PREFIX_BYTES_MAX { Extent::NoPrefix } else { Extent::Unknown };
    };
    let rest = &bytes[first + 1..];
    if !b"9=".starts_with(&rest[..rest.len().min(2)]) {
        return Extent::NoPrefix;
    }
    let Some(second) = field_end(bytes, first + 1) else {
        return if rest.len() > PREFIX_BYTES_MAX { Extent::NoPrefix } else { Extent::Unknown };
    };
    let digits = &bytes[first + 1 + "9=".len()..second];
    let length = std::str::from_utf8(digits).ok().filter(|it| !it.starts_with('+'));
    let Some(length) = length.and_then(|it| it.parse::<u64>().ok()) else {
        return Extent::NoPrefix;
    };
    let Some(length) = usize::try_from(length).ok().filter(|it| *it <= MESSAGE_BYTES_MAX) else {
        return Extent::TooLong;
    };
    // Field 10 is looked for from the place on to which the length leads. So a length that is too
    // large takes the next message with it, and one that is too small does not.
    let from = second + length;
    let Some(trailer) = bytes.get(from..).and_then(|rest| find(rest, b"\x0110=")) else {
        return Extent::Unknown;
    };
    match field_end(bytes, from + trailer + 1) {
        Some(end) if end < MESSAGE_BYTES_MAX => Extent::Bytes(end + 1),
        Some(_) => Extent::TooLong,
        None => Extent::Unknown,
    }
}

/// Place of the byte that ends the field at `from`.
fn field_end(bytes: &[u8], from: usize) -> Option<usize> {
    bytes[from..].iter().position(|byte| *byte == SOH).map(|at| from + at)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::super::message::seal;
    use super::*;
    use proptest::prelude::*;

    fn message(seq: u64) -> Vec<u8> {
        seal("FIX.4.4", &format!("35=0\u{1}34={seq}\u{1}"))
    }

    fn read(framer: &mut Framer) -> Vec<Result<u64, FrameFault>> {
        std::iter::from_fn(|| framer.next_message().map(|it| it.map(|it| it.seq()))).collect()
    }

    fn all(bytes: &[u8]) -> Vec<Result<u64, FrameFault>> {
        let mut framer = Framer::default();
        framer.push(bytes);
        read(&mut framer)
    }

    #[test]
    fn a_length_that_is_too_large_takes_the_next_message_with_it() {
        let wrong = |length: &str| {
            String::from_utf8(message(2)).unwrap().replace("9=10", length).into_bytes()
        };
        let garbled = Err(FrameFault::Garbled(Garbled::Length));
        assert_eq!(all(&[wrong("9=4"), message(3)].concat()), [garbled, Ok(3)]);
        assert_eq!(all(&[wrong("9=20"), message(3), message(4)].concat()), [garbled, Ok(4)]);
    }

    #[test]
    fn what_is_no_message_is_skipped() {
        let start = Err(FrameFault::Garbled(Garbled::Start));
        let bytes = [b"noise 8".as_slice(), &message(2)].concat();
        assert_eq!(all(&bytes), [Ok(2)]);
        assert_eq!(all(&[b"\x01\x01", message(2).as_slice()].concat()), [Ok(2)]);
        let swapped = b"8=FIX.4.4\x0135=0\x019=5\x01";
        assert_eq!(all(&[swapped.as_slice(), &message(2)].concat()), [start, Ok(2)]);
        for prefix in ["8=FIX.4.4\u{1}9=x\u{1}", "8=FIX.4.4\u{1}9=+5\u{1}", "8=F\u{1}9=-1\u{1}"] {
            assert_eq!(all(&[prefix.as_bytes(), &message(2)].concat()), [start, Ok(2)]);
        }
    }

    #[test]
    fn a_message_has_a_number_of_bytes() {
        let of = |count: usize| seal("FIX.4.4", &format!("35=0\u{1}58={}\u{1}", "x".repeat(count)));
        let overhead = of(60_000).len() - 60_000;
        let largest = of(MESSAGE_BYTES_MAX - overhead);
        assert_eq!(largest.len(), MESSAGE_BYTES_MAX);
        assert_eq!(all(&largest), [Ok(0)]);
        assert_eq!(all(&of(MESSAGE_BYTES_MAX - overhead + 1))[0], Err(FrameFault::TooLong));
        assert_eq!(all(b"8=FIX.4.4\x019=65537\x01")[0], Err(FrameFault::TooLong));
        let endless = [b"8=FIX.4.4\x019=5\x01".as_slice(), &[b'x'; MESSAGE_BYTES_MAX]].concat();
        assert_eq!(all(&endless)[0], Err(FrameFault::TooLong));
        assert_eq!(all(&[b'x'; 1 << 20]), [], "noise takes no memory");
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_the_bytes_are_cut(
            cuts in proptest::collection::vec(1_usize..40, 1..20),
        ) {
            let bytes: Vec<u8> = (1..=20).flat_map(message).collect();
            let (mut framer, mut seen, mut at) = (Framer::default(), vec![], 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(bytes.len());
                framer.push(&bytes[at..end]);
                seen.extend(read(&mut framer));
                at = end;
                if at == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(seen, (1..=20).map(Ok).collect::<Vec<_>>());
        }

        #[test]
        fn a_message_behind_any_bytes_is_found(
            noise in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = [noise, message(1), message(2), message(3)].concat();
            // Bytes that look like a length may take what they say, or wait for it.
            if !bytes.windows(4).take(60).any(|it| it == b"\x019=9" || it[..3] == *b"\x019=") {
                prop_assert_eq!(all(&bytes).into_iter().next_back(), Some(Ok(3)));
            }
        }
    }
}
