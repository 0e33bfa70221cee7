//! Checks of what arrives from other replicas with arbitrary bytes, for property tests and fuzzers;
//! not part of the log itself.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{Entry, EntryPayload, LogId, Membership, SnapshotMeta, StoredMembership, Vote};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::Connection;
use crate::encode::Encode;
use crate::group::Shared;
use crate::hard_state::HardState;
use crate::message::{
    AnyRequest, AppendAnswer, CampaignRequest, CheckMembershipRequest, CommitNotice, FrameKind,
    InstallSnapshot, JoinRequest, ReplicaStatus, Request,
};
use crate::types::{NodeId, Types};

/// A stream from which these bytes arrive, some at a time, and that keeps what it is sent.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    at: usize,
    bytes_at_once: usize,
    sent: Arc<Mutex<Vec<u8>>>,
}

/// A connection from which these bytes arrive, some at a time.
fn from(bytes: &[u8], bytes_at_once: usize) -> Connection {
    let stream = Stream { bytes: bytes.to_vec(), bytes_at_once, ..Stream::default() };
    Connection::new(Box::new(stream))
}

/// The bytes of a frame.
fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let stream = Stream::default();
    let sent = Arc::clone(&stream.sent);
    let mut connection = Connection::new(Box::new(stream));
    let result = ready(connection.send((kind, 1, 2), |out| out.extend_from_slice(body), &[]));
    result.expect("the stream takes everything");
    sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.bytes.len() - self.at;
        let count = left.min(self.bytes_at_once).min(buffer.remaining());
        buffer.put_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The result of a future that never has to wait.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the stream is always ready"),
    }
}

/// Reads the bytes as the stream of a connection: each frame is decoded or refused, and the stream
/// ends where its bytes do. The first byte says how many arrive at once.
///
/// # Panics
/// If a decoded value does not survive a round trip.
pub fn connection(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let bytes_at_once = usize::from(*first).pow(2) + 1;
    let mut connection = from(bytes, bytes_at_once);
    let mut left = bytes.len();
    while let Ok(frame) = ready(connection.receive()) {
        assert!(frame.body.len() < left, "a frame is part of what arrived");
        left -= frame.body.len();
        if let Ok(AnyRequest::InstallSnapshot(request)) = AnyRequest::decode(frame.kind, frame.body)
        {
            assert!(request.attachment().len() <= frame.body.len());
        }
        let _ = AppendEntriesResponse::<NodeId>::from_bytes(frame.body, "answer");
        let _ = VoteResponse::<NodeId>::from_bytes(frame.body, "answer");
        round_trip::<ReplicaStatus>(frame.body);
        round_trip::<HardState>(frame.body);
        round_trip::<Vote<NodeId>>(frame.body);
    }
}

/// What was decoded has the same bytes again.
fn round_trip<T: Encode + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes, "value") {
        assert_eq!(T::from_bytes(&value.to_bytes(), "value"), Ok(value));
    }
}

/// Valid bytes for [`connection`].
pub fn connection_samples() -> Vec<Vec<u8>> {
    let vote = Vote::new_committed(3, 1);
    let last = Some(LogId::new(openraft::CommittedLeaderId::new(3, 1), 7));
    let membership = Membership::new(vec![[1, 2, 3].into()], ());
    let stored = StoredMembership::new(last, membership.clone());
    let status = ReplicaStatus::Active {
        bootstrap_ids: vec![1, 2, 3],
        vote: Some(vote),
        last,
        membership: stored.clone(),
    };
    let entry = |index, payload| {
        let log_id = LogId::new(openraft::CommittedLeaderId::new(3, 1), index);
        Entry::<Types> { log_id, payload }
    };
    let entries = vec![
        entry(8, EntryPayload::Blank),
        entry(9, EntryPayload::Normal(Shared(b"a batch".to_vec().into()))),
        entry(10, EntryPayload::Membership(membership)),
    ];
    let append = AppendEntriesRequest { vote, prev_log_id: last, entries, leader_commit: last };
    let meta = SnapshotMeta { last_log_id: last, last_membership: stored, ..Default::default() };
    let state = Shared(b"a state".to_vec().into());
    let mut snapshot = InstallSnapshot { vote, meta, state }.to_bytes();
    snapshot.extend_from_slice(b"a state");
    let answer = AppendAnswer { response: AppendEntriesResponse::Success, wall_ns: 5 };
    let bodies = [
        (FrameKind::Vote, VoteRequest::new(vote, last).to_bytes()),
        (FrameKind::Campaign, CampaignRequest.to_bytes()),
        (FrameKind::Join, JoinRequest.to_bytes()),
        (FrameKind::CheckMembership, CheckMembershipRequest.to_bytes()),
        (FrameKind::Append, append.to_bytes()),
        (FrameKind::Commit, CommitNotice(append).to_bytes()),
        (FrameKind::InstallSnapshot, snapshot),
        (FrameKind::Answer, answer.to_bytes()),
        (FrameKind::Answer, status.to_bytes()),
        (FrameKind::Answer, ReplicaStatus::Empty(9).to_bytes()),
        (FrameKind::Unavailable, vec![]),
    ];
    let mut all = vec![vec![255]];
    for (kind, body) in bodies {
        let frame = frame(kind, &body);
        all.push([&[15], &frame[..]].concat());
        all[0].extend_from_slice(&frame);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::VERSION;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_stream_is_decoded_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            connection(&bytes);
        }

        #[test]
        fn a_damaged_stream_is_decoded_or_refused(
            sample in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
            value in any::<u8>(),
        ) {
            let samples = connection_samples();
            let mut bytes = samples[sample.index(samples.len())].clone();
            let at = at.index(bytes.len());
            bytes[at] = value;
            connection(&bytes);
        }
    }

    #[test]
    fn a_change_of_frames_is_a_change_of_their_version() {
        let digest = nm_codec::crc32c(&connection_samples()[0]);
        assert_eq!(
            (VERSION, digest),
            (129, 2_908_280_768),
            "raise the version, and note both here"
        );
    }

    #[test]
    fn frames_of_another_version_are_refused_with_the_reason() {
        let mut bytes = connection_samples()[1].split_off(1);
        // Where the first versions had the kind of a frame.
        bytes[8] = FrameKind::Vote.code();
        let error = ready(from(&bytes, 3).receive()).unwrap_err().to_string();
        assert!(error.contains("it is 2, and this version of nearmetal reads only 129"), "{error}");
    }

    #[test]
    fn a_frame_with_a_changed_byte_or_of_another_connection_is_refused() {
        let frame = frame(FrameKind::Vote, b"a body");
        assert!(ready(from(&frame, 3).receive()).is_ok());
        // A longer length waits for more bytes, which do not come.
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            assert!(ready(from(&changed, 3).receive()).is_err(), "byte {at}");
        }
        let mut other = from(&frame, 3);
        other.seed = 1;
        let refused = ready(other.receive()).unwrap_err().to_string();
        assert!(refused.contains("its checksum is wrong"), "{refused}");
    }

    #[test]
    fn samples_have_frames() {
        for sample in connection_samples() {
            assert!(ready(from(&sample[1..], 3).receive()).is_ok(), "{sample:?}");
        }
    }
}
