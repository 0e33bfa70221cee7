//! Negative acknowledgement.

use nm_book::order::{InstrumentId, UserId};

crate::message! {
    /// Negative acknowledgement: a request came whose predecessor did not. The gateway sends again
    /// what was not executed, or refuses what never can be.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Nak;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the request within its session.
        client_seq: u64,
        /// Sequence number of the session's last request that was executed on the instrument.
        executed_seq: u64,
        /// Gateway of the session.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
        /// As in the request.
        attempt: u8,
    }
    tail {}
}
