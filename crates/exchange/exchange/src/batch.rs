//! Batches: what a mediator puts in order at once, an entry of the log and of the journal: the time
//! at which the leader put them in order (u64, ns since 1970, by its [`crate::leader_clock`]), then
//! the frames of requests and of moves as they arrived: header, body, padding, timestamps.

use nm_codec::{DecodeError, Put, Reader};

use crate::wire::{self, Frame, FrameKind};

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = size_of::<u64>();

/// Begins a batch at a time, in an empty buffer; append the frames to it.
pub fn begin(time_ns: u64, out: &mut Vec<u8>) {
    out.clear();
    out.put_u64(time_ns);
}

/// The time of a batch and its frames.
///
/// # Errors
/// If it has no time.
pub fn decode(bytes: &[u8]) -> Result<(u64, Frames<'_>), DecodeError> {
    let mut reader = Reader::new(bytes);
    Ok((reader.u64("time_ns")?, Frames(reader.rest())))
}

/// The frames of a batch in order; an error is the last item.
#[derive(Debug, Clone)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Result<Frame<'a>, DecodeError>> {
        if self.0.is_empty() {
            return None;
        }
        let next = next_frame(self.0);
        self.0 = next.as_ref().map_or(&[], |frame| &self.0[frame.bytes.len()..]);
        Some(next)
    }
}

fn next_frame(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    let frame = wire::read(bytes)?.ok_or(DecodeError::truncated("frame"))?;
    use FrameKind::{Claim, Forget, MoveParts, Release, Request};
    match frame.header.kind {
        Request | Release | Forget | Claim | MoveParts => Ok(frame),
        _ => Err(DecodeError::invalid("kind", "is neither a request nor a step of a move")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use proptest::prelude::*;

    #[test]
    fn a_batch_is_read_back_and_a_truncated_one_is_refused() {
        let mut bytes = vec![1, 2, 3];
        begin(77, &mut bytes);
        for seq in 0..3 {
            let header = Header { client_seq: seq, ..Header::new(FrameKind::Request) };
            wire::write(&header, &[seq as u8; 5], 100, &mut bytes);
        }
        let (time_ns, frames) = decode(&bytes).unwrap();
        let seqs: Vec<u64> = frames.map(|frame| frame.unwrap().header.client_seq).collect();
        assert_eq!((time_ns, seqs), (77, vec![0, 1, 2]));
        let (_, mut cut) = decode(&bytes[..250]).unwrap();
        assert!(cut.nth(2).unwrap().is_err() && cut.next().is_none());
        assert!(decode(&bytes[..7]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_batch_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((_, frames)) = decode(&bytes) {
                prop_assert!(frames.count() <= bytes.len());
            }
        }
    }
}
