//! The outcome of a request.

use nm_book::order::{Event, InstrumentId, UserId};

use crate::series::Series;

crate::message! {
    /// The outcome of a request, to its session.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Reply<'a>;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// The session.
        session: UserId,
        /// Sequence number of the request within its session.
        client_seq: u64,
        /// Sequence number of the request among all that were executed on the instrument; 0 if the
        /// outcome is no longer kept.
        output_seq: u64,
        /// Sequence number of the session's event before the first of these.
        previous_event: u64,
        /// Hash of all events of the request, also those of other sessions (FNV-1a of their bytes);
        /// 0 if the outcome is no longer kept.
        events_hash: u64,
        /// As in the request.
        intended_ns: u64,
        /// Version of the instrument map by which the gateway chose the cell.
        map_version: u32,
        /// Gateway of the session.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
        /// Whether the request had been executed before: this is the same outcome, without the
        /// events.
        is_repeated: bool,
        /// Whether the request had been executed before, and its outcome is no longer kept.
        is_expired: bool,
    }
    tail {
        /// The session's own events, in order.
        events: Series<'a, Event>,
    }
}
