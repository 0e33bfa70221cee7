//! The reply to a request that is not executed and never will be: it exceeds a limit, or names a
//! predecessor that never was.
//!
//! It is a reply with the flag [`wire::REFUSED`], without number and hash, and its only event is
//! [`Event::Rejected`]. The event has no number among those of the session, because nothing knows
//! of the request any more. A session that gets one sends its next request with the predecessor of
//! the refused one; what it has sent behind the refused one is refused as well.

use nm_book::codec;
use nm_book::order::Event;
use nm_codec::{DecodeError, Put, Reader};

use crate::wire::{self, FrameKind, Header};

/// The content of such a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The rejection.
    pub event: Event,
}

impl RefusedRequest {
    /// The header of the reply to a request.
    pub fn header(request: &Header) -> Header {
        let flags = wire::REFUSED | request.flags & wire::STAMPED;
        Header { kind: FrameKind::Reply, flags, previous_seq: 0, output_seq: 0, ..*request }
    }

    /// Replaces a body by that of the reply: as any reply, a hash and then events.
    pub fn encode(&self, body: &mut Vec<u8>) {
        body.clear();
        body.put_u64(0);
        codec::write_event(&self.event, body);
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is not that of such a reply.
    pub fn decode(body: &[u8]) -> Result<RefusedRequest, DecodeError> {
        let mut reader = Reader::new(body);
        reader.u64("events_hash")?;
        let event = codec::read_event(&mut reader)?;
        reader.finish("event")?;
        Ok(RefusedRequest { event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::order::RejectReason;

    #[test]
    fn a_refused_request_is_read_back() {
        let event = Event::Rejected { id: 7, user: 8, reason: RejectReason::TooManyCellSessions };
        let mut body = vec![1];
        RefusedRequest { event }.encode(&mut body);
        assert_eq!(RefusedRequest::decode(&body), Ok(RefusedRequest { event }));
        for cut in 0..body.len() {
            assert!(RefusedRequest::decode(&body[..cut]).is_err(), "cut at {cut}");
        }
        body.push(0);
        assert!(RefusedRequest::decode(&body).is_err());
        let flags = wire::STAMPED | wire::PUBLIC | wire::PREVIOUS_ANSWERED;
        let request = Header { flags, client_seq: 9, ..Header::new(FrameKind::Request) };
        let header = RefusedRequest::header(&request);
        assert_eq!((header.kind, header.client_seq), (FrameKind::Reply, 9));
        assert_eq!(header.flags, wire::REFUSED | wire::STAMPED);
    }
}
