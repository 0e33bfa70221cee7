//! Events may be lost.

crate::message! {
    /// Events of a cell may be lost on their way to the sessions at a gateway. Each session asks
    /// for its events on the cell's instruments again (`ResendRequest`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct EventsLost;
    head {
        /// The cell.
        cell: u16,
        /// The gateway.
        gateway: u16,
    }
    tail {}
}
