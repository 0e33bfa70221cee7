//! Broadcast events.

use nm_book::order::{Event, InstrumentId};

use crate::series::Series;

crate::message! {
    /// Broadcast events: what concerns the market, such as halts and auctions. They name no
    /// session. They are numbered, and not sent again: a gap is detected and not filled.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Public<'a>;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// Sequence number of the request that caused them among all that were executed on the
        /// instrument.
        output_seq: u64,
        /// Sequence number of the broadcast of the instrument before the first of these.
        previous_event: u64,
        /// Gateway that passes them to its clients; that of the request on the way to it.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
    }
    tail {
        /// The events, in order.
        events: Series<'a, Event>,
    }
}
