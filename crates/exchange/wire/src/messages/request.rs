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
        /// Sequence number of the request within its session, from 1 on. 0 stands in logs alone:
        /// the exchange cancels the orders of a session that is away.
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
        /// Whether the session's request before it on this instrument was answered.
        is_previous_answered: bool,
        /// Which rule of the instrument master it breaks, as the gateway that takes it from its
        /// client finds. 0 for none, 1 for an instrument that is not listed, 2 for a limit outside
        /// the listed prices, 3 for a quantity above the listed one. 0 from a client.
        breach: u8,
    }
    tail {
        /// The command to the book.
        command: Command,
    }
    check check;
}

/// Which rule of the instrument master a request breaks.
///
/// The gateway decides it, and the request carries it into the log of the cell. So every replica
/// and every replay comes to the same result, and what was executed stays executed when the master
/// changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// The instrument is not listed.
    NotListed,
    /// The limit lies outside the prices that the instrument is listed with.
    OutsideCollar,
    /// The quantity is above the largest one that the instrument is listed with.
    TooLarge,
}

nm_codec::codes!(Breach { NotListed = 1, OutsideCollar = 2, TooLarge = 3 });

impl Request {
    /// The rule of the instrument master that it breaks, if it does.
    #[inline]
    pub fn breach(&self) -> Option<Breach> {
        // A message with another code is refused when it is read.
        if self.breach == 0 { None } else { Breach::from_code("breach", self.breach).ok() }
    }
}

fn check(request: &Request) -> Result<(), DecodeError> {
    if request.client_seq == 0 && !matches!(request.command, Command::MassCancel { .. }) {
        return Err(DecodeError::invalid("client_seq", "is zero"));
    }
    match request.breach {
        0 => Ok(()),
        code => Breach::from_code("breach", code).map(|_| ()),
    }
}
