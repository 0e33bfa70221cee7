//! The best prices of an instrument have changed.

use nm_book::order::{InstrumentId, Price};

crate::message! {
    /// The best bid or offer of an instrument is another one, or there is none any more. A request
    /// has changed it, and this goes to all clients, once for each request. It is numbered with the
    /// broadcast events, and like them not sent again.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BestPrices;
    head {
        /// Instrument.
        instrument: InstrumentId,
        /// Sequence number of the request that has changed it among all that were executed on the
        /// instrument.
        output_seq: u64,
        /// Sequence number of the broadcast of the instrument before this one.
        previous_event: u64,
        /// Gateway that passes it to its clients; that of the request on the way to it.
        gateway: u16,
        /// Cell of the instrument.
        cell: u16,
    }
    tail {
        /// Highest price that a resting order buys at, ticks.
        bid: Option<Price>,
        /// Lowest price that a resting order sells at, ticks.
        offer: Option<Price>,
    }
}
