//! A session's request.

use nm_book::order::{Command, InstrumentId, UserId};
use nm_codec::DecodeError;

use crate::owner::Owner;

crate::message! {
    /// A session's request on an instrument.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Request;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the request within its session, from 1 on.
        client_seq: u64,
        /// Sequence number of the session's request before it on this instrument; 0 for the first.
        previous_seq: u64,
        /// Sequence number of the last of the session's events on this instrument that it has.
        acknowledged: u64,
        /// When it was meant to be sent, ns on the client's clock; carried along.
        intended_ns: u64,
        /// Who the session belongs to, as its gateway knows; 0 from a client. See `Retired`.
        owner: Owner,
        /// Version of the instrument map by which the gateway chose the cell; 0 from a client.
        map_version: u32,
        /// Gateway that the session is connected to; 0 from a client.
        gateway: u16,
        /// Cell of the instrument; 0 from a client.
        cell: u16,
        /// Tells apart how often the gateway has sent it; 0 from a client.
        attempt: u8,
        /// Whether its events are broadcast.
        is_public: bool,
        /// Whether the session's request before it on this instrument was answered.
        is_previous_answered: bool,
    }
    tail {
        /// The command to the book.
        command: Command,
    }
    check check;
}

fn check(request: &Request) -> Result<(), DecodeError> {
    match request.client_seq {
        0 => Err(DecodeError::invalid("client_seq", "is zero")),
        _ => Ok(()),
    }
}
