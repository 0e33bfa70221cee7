//! What comes of a request, what is missing for a direction, and what comes of loading a saved
//! cell.

use nm_book::order::{Command, InstrumentId, SnapshotError, UserId};
use nm_codec::DecodeError;
use thiserror::Error;

use nm_wire::{BookPosition, RefusalReason};

use super::session::Outcome;

/// What a cell did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It was executed.
    Executed(Outcome),
    /// It was executed before. Without an outcome if that is no longer kept.
    Duplicate(Option<Outcome>),
    /// Its predecessor has not come.
    SequenceGap,
    /// It is not executed, and never will be: it would exceed a limit of the cell, which now knows
    /// as little of it as before.
    Refused(RefusalReason),
}

/// Why a saved cell was not loaded.
#[derive(Debug, Error)]
pub enum CellLoadError {
    /// The bytes are not a saved cell of this version.
    #[error("a saved cell is damaged, or of another version: {0}")]
    Decode(#[from] DecodeError),
    /// A book in it is not one.
    #[error("the book of instrument {instrument} in a saved cell is damaged: {source}")]
    Book {
        /// Which.
        instrument: InstrumentId,
        /// Why.
        source: SnapshotError,
    },
}

/// A session that the present entry has removed from an instrument.
#[derive(Debug, Clone, Copy)]
pub struct Retirement {
    /// Which.
    pub user: UserId,
    /// History of the instrument before it.
    pub previous_history: u64,
    /// Where the instrument stands after it.
    pub position: BookPosition,
}

/// What is missing for a direction on an instrument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// Nothing.
    Nothing,
    /// The phase of trading does not allow it.
    Unfit,
    /// These commands, one right after the other.
    Commands(Vec<Command>),
}
