//! The answer to a resend request.

use nm_book::order::{Event, InstrumentId, UserId};

use crate::series::Series;

crate::message! {
    /// Answer to a `ResendRequest`: all events of the session on the instrument behind those that
    /// it has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Resent<'a>;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the session's event before the first of these.
        previous_event: u64,
        /// Sequence number of the session's last request that was executed on the instrument; 0 for
        /// none. A session without stored state begins behind it.
        executed_seq: u64,
        /// Live orders that the session has on the instrument.
        live_orders: u32,
        /// Gateway that the session is connected to.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
        /// Whether events between those that the session has and these are no longer kept. They
        /// are lost to it.
        has_gap: bool,
    }
    tail {
        /// The events, in order.
        events: Series<'a, Event>,
    }
}
