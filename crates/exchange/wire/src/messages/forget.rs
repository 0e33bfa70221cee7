//! The last state of an instrument that has moved is dropped.

use crate::moving::MoveId;

crate::message! {
    /// Entry of the log of the cell that had the instrument: the new cell has it, its last state is
    /// dropped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Forget;
    head {
        /// The cell whose log it is.
        cell: u16,
    }
    tail {
        /// The move.
        id: MoveId,
    }
}
