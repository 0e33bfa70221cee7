//! A mediator leads a cell.

crate::message! {
    /// A mediator leads a cell; requests that were sent before may be lost.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Leader;
    head {
        /// The cell.
        cell: u16,
        /// In which term; 0 where cells are not replicated.
        term: u32,
    }
    tail {}
}
