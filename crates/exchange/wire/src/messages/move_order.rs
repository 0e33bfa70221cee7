//! Control asks a cell to move an instrument.

use crate::moving::MoveId;

crate::message! {
    /// Control asks the leader of a cell to move an instrument to another one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MoveOrder;
    head {
        /// The cell that has the instrument.
        from: u16,
        /// The cell that gets it.
        to: u16,
    }
    tail {
        /// The move.
        id: MoveId,
    }
}
