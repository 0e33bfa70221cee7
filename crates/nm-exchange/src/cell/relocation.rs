//! What a cell knows of instruments that have moved: which it owns, which it released, and which
//! are arriving.

use nm_book::order::{InstrumentId, Matching};
use nm_codec::Reader;

use crate::moves::{Attempt, MoveId, MoveRefusal, Part};

use super::handled::Handled;
use super::instrument::{Buffers, Circumstances, InstrumentState};
use super::request::Request;
use super::session::read_session;

/// Whether a cell owns an instrument for which the rule does not say so any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The change that made it so.
    pub epoch: u32,
    /// Whether the cell owns the instrument.
    pub is_owner: bool,
    /// Sessions that the instrument had when the cell released it. They still count for the limit
    /// of the cell: what was refused once because of it must not be executed later.
    pub(super) sessions: u32,
}

/// An instrument that was released, until its new cell has it.
#[derive(Debug)]
pub struct Departed<M> {
    /// The change of the owner.
    pub epoch: u32,
    /// The new cell.
    pub to: u16,
    pub(super) state: InstrumentState<M>,
}

/// An instrument that comes from another cell, as far as it has come.
#[derive(Debug)]
pub struct Staged<M> {
    pub(super) epoch: u32,
    pub(super) attempt: Attempt,
    /// Number of the next part.
    pub(super) next_part: u64,
    /// The saved book, until all of it is there.
    pub(super) book: Vec<u8>,
    pub(super) state: InstrumentState<M>,
}

/// What a frame of a move did to a cell: what its leader has to tell others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// It came too late, or out of order, and had no effect.
    Ignored,
    /// The instrument is not executed here any more; its last state can be sent.
    Released(MoveId),
    /// The state of a released instrument was dropped.
    Forgotten(InstrumentId),
    /// Books were lost, and the cell owns the instrument again, without requests.
    Claimed(InstrumentId),
    /// A part was taken; the number is that of the next one.
    Staged(MoveId, Attempt, u64),
    /// The cell cannot take the instrument.
    Refused(MoveId, Attempt, MoveRefusal),
    /// The cell owns the instrument, by this part or by an earlier one.
    Adopted(MoveId),
}

/// What has come of an instrument is not what its source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedCopy;

impl<M: Matching> Staged<M> {
    /// Takes the parts of a frame; when the instrument is complete, the time of its last request,
    /// ns. An error shows that the copy is not what the source has.
    pub(super) fn take(
        &mut self,
        instrument: InstrumentId,
        body: &[u8],
        at: Circumstances,
        buffers: &mut Buffers,
    ) -> Result<Option<u64>, DamagedCopy> {
        for part in Part::all(body) {
            match part.map_err(|_| DamagedCopy)? {
                Part::Start(_) => {}
                Part::Sessions(bytes) => {
                    let mut reader = Reader::new(bytes);
                    while !reader.is_empty() {
                        let (session, known) =
                            read_session(&mut reader).map_err(|_| DamagedCopy)?;
                        self.state.sessions.insert(session, known);
                    }
                }
                Part::Book(bytes) => self.book.extend_from_slice(bytes),
                Part::BookEnd => {
                    let book = std::mem::take(&mut self.book);
                    self.state.load_book(instrument, &book).map_err(|_| DamagedCopy)?;
                }
                Part::Request { now_ns, header, body } => {
                    let request = Request::decode(&header, body).map_err(|_| DamagedCopy)?;
                    let at = Circumstances { now_ns, ..at };
                    let handled = self.state.handle(&request, at, buffers, None, |_| {});
                    debug_assert!(!matches!(handled, Handled::Refused(_)));
                }
                Part::End { now_ns, output_seq, public_seq, history } => {
                    let state = &self.state;
                    let own = (state.output_seq, state.public_seq, state.history);
                    if own != (output_seq, public_seq, history) {
                        return Err(DamagedCopy);
                    }
                    return Ok(Some(now_ns));
                }
            }
        }
        Ok(None)
    }
}
