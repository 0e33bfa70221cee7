//! The reply to a request that is not executed and never will be: it exceeds a limit, or names a
//! predecessor that never was.
//!
//! It is a reply with the flag [`wire::REFUSED`], whose body is the reason alone: no number and no
//! events, because nothing knows of the request any more. A session that gets one sends its next
//! request with the predecessor of the refused one; what it has sent behind the refused one is
//! refused as well.

use std::fmt;

use nm_codec::{DecodeError, Put, Reader, codes};

use crate::wire::{self, FrameKind, Header};

/// Why a request is refused. The limits are in [`crate::limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The instrument is new to its cell, which has as many as it may have.
    TooManyCellInstruments,
    /// The session is new to the instrument, and its cell has as many pairs of both as it may have.
    TooManyCellSessions,
    /// The session is new to its link, which has as many as it may have.
    TooManyLinkSessions,
    /// The instrument is new to the session, which uses as many as it may on its link.
    TooManySessionInstruments,
    /// As many requests of the session on the instrument have no reply as may have none.
    TooManyPendingRequests,
    /// The gateway holds as many bytes for the link as it may.
    TooManyPendingBytes,
    /// The request that it names as its predecessor was not sent before it, or was refused.
    UnknownPredecessor,
}

codes!(RefusalReason {
    TooManyCellInstruments = 0,
    TooManyCellSessions = 1,
    TooManyLinkSessions = 2,
    TooManySessionInstruments = 3,
    TooManyPendingRequests = 4,
    TooManyPendingBytes = 5,
    UnknownPredecessor = 6,
});

/// The name that docs/limits.md has.
impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl RefusalReason {
    /// The header of the reply to a request.
    pub fn header(request: &Header) -> Header {
        let flags = wire::REFUSED | request.flags & wire::STAMPED;
        Header { kind: FrameKind::Reply, flags, previous_seq: 0, output_seq: 0, ..*request }
    }

    /// Replaces a body by that of the reply.
    pub fn encode(self, body: &mut Vec<u8>) {
        body.clear();
        body.put_u8(self.code());
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is not that of such a reply.
    pub fn decode(body: &[u8]) -> Result<RefusalReason, DecodeError> {
        let mut reader = Reader::new(body);
        let reason = RefusalReason::from_code("reason", reader.u8("reason")?)?;
        reader.finish("reason")?;
        Ok(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_back() {
        for &reason in RefusalReason::ALL {
            let mut body = vec![1, 2];
            reason.encode(&mut body);
            assert_eq!(RefusalReason::decode(&body), Ok(reason));
            assert!(RefusalReason::decode(&[]).is_err());
            body.push(0);
            assert!(RefusalReason::decode(&body).is_err());
        }
        assert!(RefusalReason::decode(&[RefusalReason::ALL.len() as u8]).is_err());
        let flags = wire::STAMPED | wire::PUBLIC | wire::PREVIOUS_ANSWERED;
        let request = Header { flags, client_seq: 9, ..Header::new(FrameKind::Request) };
        let header = RefusalReason::header(&request);
        assert_eq!((header.kind, header.client_seq), (FrameKind::Reply, 9));
        assert_eq!(header.flags, wire::REFUSED | wire::STAMPED);
    }
}
