//! A cell owns an instrument of which it knows nothing.

use crate::moving::MoveId;

crate::message! {
    /// Entry of a cell's log: the map gives it an instrument of which it knows nothing, because its
    /// replicas lost their memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Claim;
    head {
        /// The cell whose log it is.
        cell: u16,
    }
    tail {
        /// The last move of the instrument.
        id: MoveId,
    }
}
