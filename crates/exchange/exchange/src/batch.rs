//! Batches: what a mediator puts in order at once, an entry of the log and of the journal. First
//! comes the time at which the leader put them in order (u64, ns since 1970, by its
//! [`crate::leader_clock`]). Then come the frames of requests and of moves as they arrived, with
//! padding and timestamps.

use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Frame, Kind};

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
    let frame = nm_wire::read(bytes)?.ok_or(DecodeError::truncated("frame"))?;
    use Kind::{AwayTime, Claim, Firms, Forget, MoveParts, Release, Request, Retire, Stop};
    match frame.kind() {
        Request | Release | Forget | Claim | MoveParts => Ok(frame),
        Retire | AwayTime | Stop | Firms => Ok(frame),
        _ => Err(DecodeError::invalid("kind", "is no entry of the log of a cell")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::order::Command;
    use nm_wire::{Request, Shape};
    use proptest::prelude::*;

    use crate::testing::request;

    #[test]
    fn a_batch_is_read_back_and_a_truncated_one_is_refused() {
        let mut bytes = vec![1, 2, 3];
        begin(77, &mut bytes);
        for seq in 1..4 {
            let shape = Shape { size_bytes: 100, ..Shape::default() };
            let one = Request { client_seq: seq, ..request(1, 1, Command::Tick) };
            nm_wire::write_shaped(&one, shape, &mut bytes);
        }
        let (time_ns, frames) = decode(&bytes).unwrap();
        let seq = |frame: Frame<'_>| frame.read::<Request>().unwrap().client_seq;
        let seqs: Vec<u64> = frames.map(|frame| seq(frame.unwrap())).collect();
        assert_eq!((time_ns, seqs), (77, vec![1, 2, 3]));
        let (_, mut cut) = decode(&bytes[..250]).unwrap();
        assert!(cut.nth(2).unwrap().is_err() && cut.next().is_none());
        assert!(decode(&bytes[..7]).is_err());
    }

    /// As in a data folder of an older version.
    #[test]
    fn a_batch_of_another_version_is_refused_in_a_sentence_that_names_both() {
        let mut bytes = vec![];
        begin(77, &mut bytes);
        nm_wire::write(&request(1, 1, Command::Tick), &mut bytes);
        bytes[HEADER_BYTES + 4] = 5;
        let error = decode(&bytes).unwrap().1.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("it is 5, and this version of nearmetal reads only 10"), "{error}");
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
