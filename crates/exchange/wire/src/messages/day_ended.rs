//! The day of instruments has ended.

use nm_book::order::InstrumentId;

crate::message! {
    /// An operator has ended the day of these instruments: their day orders are cancelled. It goes
    /// to all clients when a direction is carried out, and is not sent again. A client that misses
    /// it learns of the cancelled orders by their events.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DayEnded;
    head {
        /// The cell that they are in.
        cell: u16,
    }
    tail {
        /// The instruments; those of a large cell come in several messages.
        instruments: Vec<InstrumentId>,
    }
}
