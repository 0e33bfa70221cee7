//! A session asks for its events on an instrument again.

use nm_book::order::{InstrumentId, UserId};

crate::message! {
    /// A session asks for its events on an instrument again.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ResendRequest;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the last event that it has.
        acknowledged: u64,
        /// Gateway that the session is connected to; 0 from a client.
        gateway: u16,
        /// Cell of the instrument; 0 from a client.
        cell: u16,
    }
    tail {}
}
