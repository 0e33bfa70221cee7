//! A resend request that came to the wrong cell.

use nm_book::order::{InstrumentId, UserId};

crate::message! {
    /// A `ResendRequest` goes back to its gateway, because the instrument is in another cell. The
    /// gateway sends it to that one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Misdirected;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// As in the resend request.
        acknowledged: u64,
        /// Gateway that the session is connected to.
        gateway: u16,
        /// The cell to which it came.
        cell: u16,
    }
    tail {}
}
