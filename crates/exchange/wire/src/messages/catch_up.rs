//! How far a processor is to be, or is.

crate::message! {
    /// The leader of a cell asks its processor, which has come back, whether it is ready. The
    /// processor answers with the same message when it has executed the cell's log up to an entry
    /// and has links to gateways. Until then the leader sends the replies through another
    /// processor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CatchUp;
    head {
        /// The cell.
        cell: u16,
        /// Index of the entry.
        index: u64,
    }
    tail {}
}
