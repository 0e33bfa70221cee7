//! A move of an instrument has ended.

use crate::moving::{MoveId, MoveRefusal};

crate::message! {
    /// A cell has adopted an instrument, or a move was refused: for gateways and control.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MoveEnded;
    head {
        /// The cell that has the instrument now; where the move was refused, the one that should
        /// have got it.
        cell: u16,
    }
    tail {
        /// The move.
        id: MoveId,
        /// Why it was refused, if it was.
        refusal: Option<MoveRefusal>,
    }
}
