//! What a cell knows of instruments that have moved: which it owns, which it released, and which
//! are arriving.

use nm_book::order::{InstrumentId, Matching, SnapshotError};
use nm_codec::{DecodeError, Reader};
use nm_wire::Series;

use crate::background::{self, Background};
use crate::moves::{Attempt, MoveId, MoveRefusal, Part};

use super::handled::Handled;
use super::instrument::{Buffers, Circumstances, InstrumentState, LoadedBook};
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
///
/// The state of a cell has the parts as they came. What they make is built beside it: a large book
/// by another thread, so that replicas may differ in how much they have built, but not in their
/// state. What is wrong with a copy shows at its end, for the same reason.
#[derive(Debug)]
pub struct Staged<M> {
    pub(super) epoch: u32,
    pub(super) attempt: Attempt,
    /// Number of the next part.
    pub(super) next_part: u64,
    /// How many sessions it counts as, for the limit of the cell: those of its start.
    pub(super) sessions: u32,
    /// All parts that have come.
    pub(super) parts: Vec<u8>,
    building: Building<M>,
}

/// How much of what has come of an instrument is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// All of it.
    Built,
    /// What came before its book, which is being loaded.
    Loading,
    /// It is damaged, or is not arriving.
    Unusable,
}

/// What the parts of an instrument make, as far as they were taken.
#[derive(Debug)]
struct Building<M> {
    state: InstrumentState<M>,
    /// The saved book, until all of it is there.
    book: Vec<u8>,
    loading: Option<Loading<M>>,
    /// How many bytes of the parts were taken.
    taken: usize,
    is_damaged: bool,
}

/// A book that is being loaded.
type Loading<M> = Background<Result<LoadedBook<M>, SnapshotError>>;

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
    /// One that has this number of sessions, and of which parts have come.
    pub(super) fn new(
        (epoch, attempt, next_part): (u32, Attempt, u64),
        sessions: u32,
        parts: Vec<u8>,
    ) -> Staged<M> {
        let building = Building {
            state: InstrumentState::new(0, 0),
            book: vec![],
            loading: None,
            taken: 0,
            is_damaged: false,
        };
        Staged { epoch, attempt, next_part, sessions, parts, building }
    }

    /// Whether this frame of a transfer is the next one.
    pub(super) fn expects(&self, id: MoveId, attempt: Attempt, number: u64) -> bool {
        (self.epoch, self.attempt, self.next_part) == (id.epoch, attempt, number)
    }

    /// Takes the parts of a frame; the time of its last request, ns, if they are the last ones.
    ///
    /// # Errors
    /// If they cannot be decoded.
    pub(super) fn add(&mut self, body: &[u8]) -> Result<Option<u64>, DecodeError> {
        let mut end_ns = None;
        for part in Series::of(body) {
            if let Part::End { now_ns, .. } = part? {
                end_ns = Some(now_ns);
            }
        }
        self.parts.extend_from_slice(body);
        Ok(end_ns)
    }

    /// Builds on, as far as it can without waiting for a book that is being loaded.
    pub(super) fn build(&mut self, at: Circumstances, buffers: &mut Buffers) -> Arrival {
        let Staged { parts, building, .. } = self;
        loop {
            if building.is_damaged {
                return Arrival::Unusable;
            }
            if building.loading.as_mut().is_some_and(|loading| !loading.is_ready()) {
                return Arrival::Loading;
            }
            if building.taken == parts.len() {
                return Arrival::Built;
            }
            let took = building.take(&parts[building.taken..], at, buffers);
            building.is_damaged = took.is_err();
        }
    }

    /// The instrument, of which the last part has come.
    ///
    /// # Errors
    /// If it is not what the source has.
    pub(super) fn finish(
        mut self,
        at: Circumstances,
        buffers: &mut Buffers,
    ) -> Result<InstrumentState<M>, DamagedCopy> {
        let Staged { parts, building, .. } = &mut self;
        while !building.is_damaged && building.taken < parts.len() {
            building.take(&parts[building.taken..], at, buffers)?;
        }
        if building.is_damaged {
            return Err(DamagedCopy);
        }
        background::drop_bytes(self.parts);
        Ok(self.building.state)
    }
}

impl<M: Matching> Building<M> {
    /// Takes the first of the parts that were not taken yet. Waits for a book that is being loaded.
    #[expect(
        clippy::disallowed_methods,
        reason = "the event loop holds a batch back until the book is there"
    )]
    fn take(
        &mut self,
        parts: &[u8],
        at: Circumstances,
        buffers: &mut Buffers,
    ) -> Result<(), DamagedCopy> {
        if let Some(loading) = self.loading.take() {
            self.state.set_book(loading.wait().map_err(|_| DamagedCopy)?);
        }
        let mut all: Series<'_, Part<'_>> = Series::of(parts);
        let Some(Ok(part)) = all.next() else { return Err(DamagedCopy) };
        self.taken += parts.len() - all.bytes.len();
        let state = &mut self.state;
        match part {
            Part::Start { start } => {
                state.output_seq = start.output_seq;
                state.public_seq = start.public_seq;
                state.history = start.history;
                state.maker = start.maker;
            }
            Part::Sessions { saved } => {
                let mut reader = Reader::new(saved.0);
                while !reader.is_empty() {
                    let (session, known) = read_session(&mut reader).map_err(|_| DamagedCopy)?;
                    state.sessions.insert(session, known);
                }
            }
            Part::Book { saved } => self.book.extend_from_slice(saved.0),
            Part::BookEnd => {
                self.loading = Some(LoadedBook::begin_load(std::mem::take(&mut self.book)));
            }
            Part::Request { now_ns, request, check } => {
                let at = Circumstances { now_ns, check, ..at };
                let handled = state.handle(&request, at, buffers, None, |_| {});
                debug_assert!(!matches!(handled, Handled::Refused(_)));
            }
            // The cell takes them, as soon as the instrument is complete.
            Part::Stop { .. } | Part::Position { .. } => {}
            Part::End { output_seq, public_seq, history, .. } => {
                let own = (state.output_seq, state.public_seq, state.history);
                if own != (output_seq, public_seq, history) {
                    return Err(DamagedCopy);
                }
            }
        }
        Ok(())
    }
}
