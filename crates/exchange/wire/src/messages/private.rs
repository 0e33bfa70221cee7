//! Events of a session that another session's request caused.

use nm_book::order::{Event, InstrumentId, UserId};

use crate::series::Series;

crate::message! {
    /// Events of a session that another session's request caused, or events of its own request that
    /// found no room in the reply.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Private<'a>;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the request that caused them among all that were executed on the
        /// instrument.
        output_seq: u64,
        /// Sequence number of the session's event before the first of these.
        previous_event: u64,
        /// Gateway of the session's last request on the instrument.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
        /// Whether the session is not at that gateway: they are sent to all others.
        is_astray: bool,
    }
    tail {
        /// The events, in order.
        events: Series<'a, Event>,
    }
}
