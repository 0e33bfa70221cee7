//! The source of a move has caught up.

use crate::moving::MoveId;

crate::message! {
    /// Entry of the log of the cell that has the instrument: it does not execute requests on it any
    /// more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Release;
    head {
        /// The cell whose log it is.
        cell: u16,
        /// The cell that gets the instrument.
        to: u16,
    }
    tail {
        /// The move.
        id: MoveId,
    }
}
