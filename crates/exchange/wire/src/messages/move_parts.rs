//! Parts of an instrument for its new cell.

use crate::moving::{Attempt, MoveId, Part};
use crate::series::Series;

crate::message! {
    /// Parts of an instrument, from the cell that has it to the one that gets it. They are an entry
    /// of that one's log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MoveParts<'a>;
    head {
        /// The cell that sends them.
        from: u16,
        /// The cell that gets them.
        to: u16,
        /// The transfer that they belong to.
        attempt: Attempt,
        /// Number of the message in it, from 0 on.
        number: u64,
    }
    tail {
        /// The move.
        id: MoveId,
        /// The parts, in order.
        parts: Series<'a, Part<'a>>,
    }
}
