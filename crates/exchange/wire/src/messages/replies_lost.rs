//! Replies may be lost.

crate::message! {
    /// Replies and events of a cell may be lost on their way to a gateway. It sends requests
    /// without a reply again, and passes on to its clients that events may be lost.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RepliesLost;
    head {
        /// The cell.
        cell: u16,
        /// The gateway.
        gateway: u16,
    }
    tail {}
}
