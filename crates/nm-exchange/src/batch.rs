//! Batches: what a mediator puts in order at once, an entry of the log and of the journal.
//!
//! ```text
//! 0 time_ns u64     when the leader put them in order, ns since 1970
//! 8 the frames of requests, and of instruments to be given away, as they came: header, body,
//!   padding, stamps
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use nm_codec::{Fields, Meaningless};

use crate::wire::{self, Frame, FrameKind};

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = 8;

/// The time of a batch that begins now, ns since 1970: leaders of one cell may be on several hosts,
/// whose clocks have nothing else in common, and clients name such times. A cell's time does not go
/// back when a clock is set back.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Begins a batch at a time, in an empty buffer; append the frames to it.
pub fn begin(time_ns: u64, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&time_ns.to_le_bytes());
}

/// The time of a batch and its frames.
///
/// # Errors
/// If there is not even a time.
pub fn decode(bytes: &[u8]) -> Result<(u64, Frames<'_>), Meaningless> {
    let mut fields = Fields(bytes);
    Ok((fields.u64()?, Frames(fields.0)))
}

/// The frames of a batch in order; an error is the last.
#[derive(Debug, Clone)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Meaningless>;

    fn next(&mut self) -> Option<Result<Frame<'a>, Meaningless>> {
        if self.0.is_empty() {
            return None;
        }
        match wire::read(self.0) {
            Ok(Some(frame))
                if matches!(frame.header.kind, FrameKind::Request | FrameKind::Release) =>
            {
                self.0 = &self.0[frame.bytes.len()..];
                Some(Ok(frame))
            }
            _ => {
                self.0 = &[];
                Some(Err(Meaningless))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use proptest::prelude::*;

    #[test]
    fn a_batch_comes_back_and_a_cut_one_is_refused() {
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
