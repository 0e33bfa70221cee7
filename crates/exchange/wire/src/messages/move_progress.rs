//! How much of an instrument has arrived.

use crate::moving::{Attempt, MoveId, MoveRefusal};

crate::message! {
    /// The cell that gets an instrument tells the one that sends it how far it is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MoveProgress;
    head {
        /// The cell that sends the instrument.
        from: u16,
        /// The transfer.
        attempt: Attempt,
        /// Number of the next message with parts that it expects.
        next: u64,
    }
    tail {
        /// The move.
        id: MoveId,
        /// Why it takes no more.
        refusal: Option<MoveRefusal>,
    }
}
