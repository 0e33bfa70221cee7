//! The answer to a request that is not executed and never will be: it exceeds a limit, or names a
//! predecessor that never was.
//!
//! It has no number and no events, because nothing knows of the request any more. A session that
//! gets one sends its next request with the predecessor of the refused one. What it has sent behind
//! the refused one is refused as well.

use std::fmt;

use nm_book::order::{InstrumentId, UserId};

use super::request::{self, Request};
use crate::{codes, message};

codes! {
    /// Why a request is refused. `docs/limits.md` has the limits.
    pub enum RefusalReason {
        /// The instrument is new to its cell, which has as many as it may have.
        TooManyCellInstruments = 0,
        /// The session is new to the instrument, and its cell has as many pairs of both as it may
        /// have.
        TooManyCellSessions = 1,
        /// The session is new to its link, which has as many as it may have.
        TooManyLinkSessions = 2,
        /// The instrument is new to the session, which uses as many as it may on its link.
        TooManySessionInstruments = 3,
        /// As many requests of the session on the instrument have no reply as may have none.
        TooManyPendingRequests = 4,
        /// The gateway holds as many bytes for the link as it may.
        TooManyPendingBytes = 5,
        /// The request that it names as its predecessor was not sent before it, or was refused.
        UnknownPredecessor = 6,
        /// The instrument is new to its cell, where the session's owner has made as many as its
        /// quota allows.
        TooManyOwnerInstruments = 7,
        /// The session is new to the instrument, and its owner has as many pairs of both in the
        /// cell as its quota allows.
        TooManyOwnerSessions = 8,
        /// The gateway holds as many bytes for the session's owner as its quota allows.
        TooManyOwnerBytes = 9,
        /// An operator has removed the session, or its owner, a moment ago.
        Retired = 10,
        /// The network has an instrument master, which does not list the instrument.
        NotListed = 11,
    }
}

impl RefusalReason {
    /// What it means to whoever is refused: a sentence without its end.
    pub fn words(self) -> &'static str {
        match self {
            RefusalReason::TooManyCellInstruments => {
                "the cell has as many instruments as it may have"
            }
            RefusalReason::TooManyCellSessions => "the cell has as many sessions as it may have",
            RefusalReason::TooManyLinkSessions => "this link has as many sessions as it may have",
            RefusalReason::TooManySessionInstruments => {
                "the session uses as many instruments as it may on its link"
            }
            RefusalReason::TooManyPendingRequests => {
                "the session has as many requests without a reply as it may have"
            }
            RefusalReason::TooManyPendingBytes => "the gateway holds no more bytes for this link",
            RefusalReason::UnknownPredecessor => "the request before it was refused, or never sent",
            RefusalReason::TooManyOwnerInstruments => {
                "your quota of instruments in the cell is full"
            }
            RefusalReason::TooManyOwnerSessions => "your quota of sessions in the cell is full",
            RefusalReason::TooManyOwnerBytes => "your quota of bytes of this gateway is full",
            RefusalReason::Retired => {
                "an operator has removed the session: begin it anew in a minute"
            }
            RefusalReason::NotListed => {
                "the instrument is not listed: `nearmetal exchange instruments list` shows those \
                 that are"
            }
        }
    }
}

/// What it means, and the name that docs/limits.md has.
impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self:?})", self.words())
    }
}

message! {
    /// A request is not executed, and never will be. The session's next request on the instrument
    /// names the predecessor of the refused one; what it has sent behind the refused one is refused
    /// as well.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Refused;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the request within its session.
        client_seq: u64,
        /// As in the request.
        intended_ns: u64,
        /// What would be right: the request that the session's next one on the instrument names as
        /// its predecessor, with a number above it.
        expected_previous: u64,
        /// Gateway of the session.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
    }
    tail {
        /// Why.
        reason: RefusalReason,
    }
}

impl Refused {
    /// The answer to a request. The next one names the same predecessor.
    pub fn of(request: &Request, reason: RefusalReason) -> Refused {
        let Request { instrument, session, client_seq, intended_ns, gateway, cell, .. } = *request;
        let expected_previous = request.previous_seq;
        Refused {
            instrument,
            session,
            client_seq,
            intended_ns,
            expected_previous,
            gateway,
            cell,
            reason,
        }
    }

    /// The answer to a request in a frame.
    pub fn of_frame(request: &request::View<'_>, reason: RefusalReason) -> Refused {
        Refused {
            instrument: request.instrument(),
            session: request.session(),
            client_seq: request.client_seq(),
            intended_ns: request.intended_ns(),
            expected_previous: request.previous_seq(),
            gateway: request.gateway(),
            cell: request.cell(),
            reason,
        }
    }
}
