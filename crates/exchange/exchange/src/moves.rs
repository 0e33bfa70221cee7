//! Live moves of instruments: how the state of an instrument goes to another cell while it is
//! traded, by the messages named here.
//!
//! ```text
//! control ─order→ source                      a move is logged: instrument, new cell, epoch
//!                 source ─parts→ destination  a copy of the instrument, then the requests that
//!                                             were executed since; both in the destination's log
//! source's log: release                       the source has caught up; it executes none any more
//!                 source ─last part→          what was executed until then, and the end
//! destination's log: end                      history equal: the destination owns the instrument
//!                 destination ─ended→ a router → gateways, which send it what waits
//!                                     → control, which logs the new map
//! source's log: forget                        by the new map; the last state is dropped
//! ```
//!
//! **Nothing is lost, doubled or reordered.** The logs of the cells alone decide which cell
//! executes requests on an instrument ([`crate::cell`]). The source executes none behind the
//! release, the destination none before the end. The end has the sequence numbers and outcomes of
//! every session. A gateway keeps each request until it is answered, so one that reaches a cell at
//! the wrong time is dropped there and sent again. Maps and announcements only decide how soon.
//!
//! **Pause.** Requests wait from the release until the gateways have the announcement: a commit in
//! the new cell and a few hops. The copy and all but the last requests are sent before.
//!
//! **Pacing.** Each step takes CPU time that requests on other instruments wait for. So a copy is
//! sent in small frames with pauses. The release and the last entry of control's log come a
//! millisecond after what precedes them.
//!
//! **Refusals.** A destination decides once for each move, by its log, whether it has room. The
//! source releases only what was accepted and has arrived, so a refused instrument is never without
//! owner.
//!
//! **Crashes.** Control orders the move again every 200 ms until it has ended. An attempt without
//! progress is given up for another one, after a time that doubles. A new leader of the source
//! begins another [`Attempt`], from the released state if there is one. The first part of an
//! attempt discards what came of another. Who has adopted the instrument says so again. Each step
//! names the epoch of the move, which rises with each move of an instrument. The step has no effect
//! if a later one was seen.

pub use nm_wire::{
    Attempt, Claim, CopyStart, Forget, MoveEnded, MoveId, MoveOrder, MoveParts, MoveProgress,
    MoveRefusal, Part, Release,
};
