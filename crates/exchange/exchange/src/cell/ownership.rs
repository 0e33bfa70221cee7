//! Moves of instruments between cells, as the logs of both cells carry them out. The protocol is
//! described in [`crate::moves`].
//!
//! Which instruments a cell owns follows from its log alone. They are those that the network's rule
//! gives it, without those that it released, and with those that it adopted. Every change of the
//! owner has an *epoch*, a number that control draws and that rises for each instrument. So each
//! step can be repeated without harm, and one that comes too late has no effect.

use std::collections::BTreeMap;
use std::task::Poll;

use nm_book::order::{InstrumentId, Matching};
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{Frame, Holdings, LimitCheck, Owner, Series, StopOrder, Value};

use crate::background::{self, Background};
use crate::limits::REFUSED_MOVES_MAX;
use crate::moves::{Attempt, CopyStart, MoveId, MoveParts, MoveRefusal, Part, Release};

use super::Cell;
use super::copy::CopyPiece;
use super::exposure::net_of;
use super::handled::CellLoadError;
use super::holdings::Places;
use super::instrument::{Circumstances, InstrumentState};
use super::relocation::{Arrival, Departed, MoveStep, Ownership, Staged};
use super::snapshot::Section;

/// The decisions on owners that the last frame of a transfer has.
fn stops_in(body: &[u8]) -> impl Iterator<Item = StopOrder> {
    let parts: Series<'_, Part<'_>> = Series::of(body);
    parts.filter_map(|part| match part {
        Ok(Part::Stop { stop }) => Some(stop),
        _ => None,
    })
}

/// The positions of firms that it has.
fn positions_in(body: &[u8]) -> impl Iterator<Item = (u32, i128)> {
    let parts: Series<'_, Part<'_>> = Series::of(body);
    parts.filter_map(|part| match part {
        Ok(Part::Position { firm, low, high }) => Some((firm, net_of(low, high))),
        _ => None,
    })
}

impl<M: Matching> Cell<M> {
    /// Whether requests on an instrument are executed here.
    pub fn owns(&self, instrument: InstrumentId) -> bool {
        match self.ownership.get(&instrument) {
            Some(known) => known.is_owner,
            None => self.is_by_rule(instrument),
        }
    }

    fn is_by_rule(&self, instrument: InstrumentId) -> bool {
        instrument % u32::from(self.active) == u32::from(self.number)
    }

    /// The last change of the owner of an instrument that this cell knows of.
    pub fn ownership(&self, instrument: InstrumentId) -> Option<Ownership> {
        self.ownership.get(&instrument).copied()
    }

    /// The last change of the owner of each instrument for which there was one.
    pub fn ownerships(&self) -> impl Iterator<Item = (InstrumentId, Ownership)> {
        self.ownership.iter().map(|(instrument, known)| (*instrument, *known))
    }

    /// Instruments that were released and whose state is kept, with the change.
    pub fn departed(&self) -> impl Iterator<Item = (InstrumentId, &Departed<M>)> {
        self.departed.iter().map(|(instrument, departed)| (*instrument, departed))
    }

    /// The state of an instrument that is here, or was until it was released.
    fn present_or_departed(&self, instrument: InstrumentId) -> Option<&InstrumentState<M>> {
        let departed = || self.departed.get(&instrument).map(|departed| &departed.state);
        self.instruments.get(&instrument).or_else(departed)
    }

    /// Sequence number of the last request that was executed on an instrument, and the hash of its
    /// history; zeros for none.
    pub fn history(&self, instrument: InstrumentId) -> (u64, u64) {
        let known = self.present_or_departed(instrument);
        known.map_or((0, 0), |state| (state.output_seq, state.history))
    }

    /// Sequence number of the last broadcast event of an instrument that is here or was released,
    /// and the time of the cell: the end of a transfer.
    pub fn end_of_transfer(&self, instrument: InstrumentId) -> Part<'static> {
        let public_seq = self.present_or_departed(instrument).map_or(0, |state| state.public_seq);
        let (output_seq, history) = self.history(instrument);
        Part::End { now_ns: self.now_ns, output_seq, public_seq, history }
    }

    /// Appends the last parts of a transfer: what was decided on owners here, the positions of
    /// firms, and its end.
    pub fn put_end(&self, instrument: InstrumentId, parts: &mut Vec<u8>) {
        self.stops.all().for_each(|stop| Part::Stop { stop }.put(parts));
        let state = self.present_or_departed(instrument);
        state.iter().flat_map(|it| it.exposure.parts()).for_each(|part| part.put(parts));
        self.end_of_transfer(instrument).put(parts);
    }

    /// Hash of an instrument's complete state, if it is here or was released; equal in both cells
    /// of a move.
    pub fn instrument_hash(&self, instrument: InstrumentId) -> Option<u64> {
        let hash = |state: &InstrumentState<M>| nm_codec::fnv1a(&state.save());
        let unused = || self.owns(instrument).then(|| hash(&self.unused()));
        self.present_or_departed(instrument).map(hash).or_else(unused)
    }

    /// Begins to copy an instrument that is here, or was released. Not replicated: only the leader
    /// of a source does it.
    pub fn begin_copy(&mut self, instrument: InstrumentId) -> CopyStart {
        let copy = match self.present_or_departed(instrument) {
            Some(state) => state.begin_copy(),
            None => self.unused().begin_copy(),
        };
        let start = copy.start();
        self.copies.insert(instrument, copy);
        start
    }

    /// The next piece of a copy, of about so many bytes; none if it is complete, and then it has
    /// ended.
    pub fn next_piece(
        &mut self,
        instrument: InstrumentId,
        bytes_max: usize,
    ) -> Poll<Option<CopyPiece>> {
        let Some(copy) = self.copies.get_mut(&instrument) else { return Poll::Ready(None) };
        let departed = || self.departed.get(&instrument).map(|departed| &departed.state);
        let state = self.instruments.get(&instrument).or_else(departed);
        let none = Default::default();
        let piece = copy.next(state.map_or(&none, |state| &state.sessions), bytes_max);
        if piece == Poll::Ready(None) {
            self.end_copy(instrument);
        }
        piece
    }

    /// Ends a copy before it is complete.
    pub fn end_copy(&mut self, instrument: InstrumentId) {
        if let Some(copy) = self.copies.remove(&instrument) {
            copy.end();
        }
    }

    /// Releases an instrument to another cell, if it is here and the change is newer than the last
    /// one.
    pub(super) fn release(&mut self, release: Release) -> MoveStep {
        let Release { id: MoveId { instrument, epoch }, to, .. } = release;
        let last_epoch = self.ownership.get(&instrument).map_or(0, |known| known.epoch);
        if !self.owns(instrument) || epoch <= last_epoch {
            return MoveStep::Ignored;
        }
        self.copy_before_change(instrument);
        let state = self.instruments.remove(&instrument);
        let mut state = state.unwrap_or_else(|| self.unused());
        self.exposures.leave(&mut state.exposure);
        let sessions = state.sessions.len() as u32;
        self.count_released(instrument, &state);
        self.released_count += usize::from(sessions > 0);
        self.ownership.insert(instrument, Ownership { epoch, is_owner: false, sessions });
        self.departed.insert(instrument, Departed { epoch, to, state });
        MoveStep::Released(release.id)
    }

    /// Drops the state of an instrument that has arrived in its new cell.
    pub(super) fn forget(&mut self, id: MoveId) -> MoveStep {
        let is_it = self.departed.get(&id.instrument).is_some_and(|known| known.epoch == id.epoch);
        if !is_it {
            return MoveStep::Ignored;
        }
        if let Some(departed) = self.departed.remove(&id.instrument) {
            departed.state.drop_elsewhere();
        }
        self.end_copy(id.instrument);
        MoveStep::Forgotten(id.instrument)
    }

    /// Owns an instrument whose books were lost with those of the whole cell.
    pub(super) fn claim(&mut self, id: MoveId) -> MoveStep {
        let MoveId { instrument, epoch } = id;
        if !self.accepts_unknown_sessions || self.ownership.contains_key(&instrument) {
            return MoveStep::Ignored;
        }
        let ownership = Ownership { epoch, is_owner: true, sessions: 0 };
        self.ownership.insert(instrument, ownership);
        MoveStep::Claimed(instrument)
    }

    /// Takes a frame with parts of an instrument that comes from another cell.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub(super) fn stage(
        &mut self,
        id: MoveId,
        attempt: Attempt,
        number: u64,
        body: &[u8],
    ) -> Result<MoveStep, DecodeError> {
        if let Some(known) = self.ownership.get(&id.instrument)
            && id.epoch <= known.epoch
        {
            let is_here = known.is_owner && id.epoch == known.epoch;
            return Ok(if is_here { MoveStep::Adopted(id) } else { MoveStep::Ignored });
        }
        let staged_epoch = self.staged.get(&id.instrument).map(|staged| staged.epoch);
        if staged_epoch > Some(id.epoch) {
            return Ok(MoveStep::Ignored);
        }
        if number == 0 {
            let first = Series::of(body).next().transpose()?;
            let Some(Part::Start { start }) = first else { return Ok(MoveStep::Ignored) };
            if staged_epoch != Some(id.epoch)
                && let Some(refusal) = self.decide(id, start.sessions)
            {
                return Ok(MoveStep::Refused(id, attempt, refusal));
            }
            self.unstage(id.instrument);
            self.session_count += start.sessions as usize;
            let staged = Staged::new((id.epoch, attempt, 0), start.sessions, vec![]);
            self.staged.insert(id.instrument, staged);
        }
        let at = self.circumstances_of_parts();
        let staged = self.staged.get_mut(&id.instrument);
        let Some(staged) = staged.filter(|staged| staged.expects(id, attempt, number)) else {
            return Ok(MoveStep::Ignored);
        };
        staged.next_part += 1;
        let ended = staged.add(body);
        staged.build(at, &mut self.buffers);
        match ended {
            Ok(None) => return Ok(MoveStep::Staged(id, attempt, number + 1)),
            Ok(Some(end_ns)) => {
                // Before any request is executed here.
                stops_in(body).for_each(|stop| self.stops.take(stop));
                if let Some(mut state) = self.finish_staged(id.instrument) {
                    self.enter(&mut state, positions_in(body));
                    return Ok(self.adopt(id, state, end_ns));
                }
            }
            Err(_) => self.unstage(id.instrument),
        }
        // It is accepted all the same: another attempt has its place.
        let staged = Staged::new((id.epoch, attempt, u64::MAX), 0, vec![]);
        self.staged.insert(id.instrument, staged);
        Ok(MoveStep::Refused(id, attempt, MoveRefusal::Damaged))
    }

    /// The time of each request is in its part, and what was said to it.
    fn circumstances_of_parts(&self) -> Circumstances {
        let accepts_unknown_sessions = self.accepts_unknown();
        Circumstances { now_ns: 0, accepts_unknown_sessions, check: LimitCheck::NONE }
    }

    /// Builds an arriving instrument as far as it can without waiting; how far it is then.
    pub fn build(&mut self, instrument: InstrumentId) -> Arrival {
        let at = self.circumstances_of_parts();
        let Some(staged) = self.staged.get_mut(&instrument) else { return Arrival::Unusable };
        staged.build(at, &mut self.buffers)
    }

    /// Whether to admit this frame now would wait for a book that another thread loads: it ends the
    /// transfer of the instrument.
    pub fn awaits_book(&mut self, frame: Frame<'_>) -> bool {
        let Ok(MoveParts { id, attempt, number, mut parts, .. }) = frame.read() else {
            return false;
        };
        let staged = self.staged.get(&id.instrument);
        let is_next = staged.is_some_and(|staged| staged.expects(id, attempt, number));
        let is_end = |part: Result<Part<'_>, DecodeError>| matches!(part, Ok(Part::End { .. }));
        is_next && parts.any(is_end) && self.build(id.instrument) == Arrival::Loading
    }

    /// Whether a part of any instrument has come, and not all.
    pub fn has_arriving(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Takes an instrument of which all has come from those that arrive; none if it is not what the
    /// source has.
    fn finish_staged(&mut self, instrument: InstrumentId) -> Option<InstrumentState<M>> {
        let staged = self.staged.remove(&instrument)?;
        self.session_count -= staged.sessions as usize;
        let state = staged.finish(self.circumstances_of_parts(), &mut self.buffers).ok()?;
        self.session_count += state.sessions.len();
        Some(state)
    }

    /// Decides whether the cell takes an instrument of which the first part has come, with so many
    /// sessions: once for each move, so that the answer to all attempts is the same.
    fn decide(&mut self, id: MoveId, sessions: u32) -> Option<MoveRefusal> {
        if let Some(refusal) = self.refused.get(&id.epoch) {
            return Some(*refusal);
        }
        if id.epoch <= self.refused_before {
            return Some(MoveRefusal::TooManyCellInstruments);
        }
        let refusal = self.refusal(id.instrument, sessions)?;
        self.refused.insert(id.epoch, refusal);
        if self.refused.len() > REFUSED_MOVES_MAX
            && let Some((epoch, _)) = self.refused.pop_first()
        {
            self.refused_before = epoch;
        }
        Some(refusal)
    }

    /// Why the cell has no room for an instrument with so many sessions.
    fn refusal(&self, instrument: InstrumentId, sessions: u32) -> Option<MoveRefusal> {
        let staged = self.staged.get(&instrument);
        let staged_sessions = staged.map_or(0, |staged| staged.sessions);
        let known = self.ownership.get(&instrument).map_or(0, |known| known.sessions);
        let counted = staged_sessions as usize + known as usize;
        let instruments = self.instrument_count() - usize::from(staged.is_some() || known > 0);
        if instruments >= self.limits.instruments {
            Some(MoveRefusal::TooManyCellInstruments)
        } else if self.session_count - counted + sessions as usize > self.limits.sessions {
            Some(MoveRefusal::TooManyCellSessions)
        } else {
            None
        }
    }

    /// An instrument of the cell on which nothing was requested, or not since it was removed.
    fn unused(&self) -> InstrumentState<M> {
        InstrumentState::new(0, self.first_output_seq)
    }

    /// Counts what owners have of an instrument that is here from now on.
    pub(super) fn count_holdings(&mut self, state: &InstrumentState<M>) {
        for (owner, holdings) in state.holdings() {
            self.ledger.add(owner, holdings);
        }
    }

    /// The orders of an instrument that is released do not count any more; its sessions do.
    fn count_released(&mut self, instrument: InstrumentId, state: &InstrumentState<M>) {
        let mut counted = BTreeMap::new();
        for (owner, Holdings { instruments, sessions, orders }) in state.holdings() {
            self.ledger.remove(owner, Holdings { orders, ..Holdings::default() });
            let places = Places { instruments: instruments as u32, sessions: sessions as u32 };
            if owner.is_somebody() {
                counted.insert(owner, places);
            }
        }
        if !counted.is_empty() {
            self.released.insert(instrument, counted);
        }
    }

    /// Instruments that count for the limit of the cell.
    pub(super) fn instrument_count(&self) -> usize {
        self.instruments.len() + self.released_count + self.staged.len()
    }

    /// Drops what has come of an instrument.
    fn unstage(&mut self, instrument: InstrumentId) {
        if let Some(staged) = self.staged.remove(&instrument) {
            self.session_count -= staged.sessions as usize;
            background::drop_bytes(staged.parts);
        }
    }

    /// Owns an instrument from now on, all of which has come. The time of the cell is not before
    /// that of the instrument's last request.
    fn adopt(&mut self, id: MoveId, state: InstrumentState<M>, end_ns: u64) -> MoveStep {
        let MoveId { instrument, epoch } = id;
        let before =
            self.ownership.insert(instrument, Ownership { epoch, is_owner: true, sessions: 0 });
        let counted = before.map_or(0, |known| known.sessions);
        self.session_count -= counted as usize;
        self.released_count -= usize::from(counted > 0);
        for (owner, places) in self.released.remove(&instrument).unwrap_or_default() {
            self.ledger.remove(owner, places.holdings());
        }
        self.departed.remove(&instrument);
        self.end_copy(instrument);
        self.now_ns = self.now_ns.max(end_ns);
        if state.output_seq > 0 {
            self.count_holdings(&state);
            self.instruments.insert(instrument, state);
        }
        MoveStep::Adopted(id)
    }

    /// Appends what the state has of moves: who owns what, and what is on its way.
    pub(super) fn save_moves(&self, sections: &mut Vec<Section>) {
        let mut bytes = vec![];
        bytes.put_u64s(&[self.ownership.len() as u64]);
        for (instrument, known) in &self.ownership {
            bytes.put_u32(*instrument);
            bytes.put_u32(known.epoch);
            bytes.put_bool(known.is_owner);
            bytes.put_u32(known.sessions);
        }
        bytes.put_u64(self.released.len() as u64);
        for (instrument, counted) in &self.released {
            bytes.put_u32(*instrument);
            bytes.put_u64(counted.len() as u64);
            for (owner, places) in counted {
                owner.put(&mut bytes);
                places.put(&mut bytes);
            }
        }
        bytes.put_u64s(&[self.departed.len() as u64]);
        for (instrument, departed) in &self.departed {
            bytes.put_u32(*instrument);
            bytes.put_u32(departed.epoch);
            bytes.put_u16(departed.to);
            sections.push(Section::Plain(std::mem::take(&mut bytes)));
            sections.push(Section::Counted(departed.state.begin_save()));
        }
        bytes.put_u64s(&[self.staged.len() as u64]);
        for (instrument, staged) in &self.staged {
            bytes.put_u32(*instrument);
            bytes.put_u32(staged.epoch);
            bytes.put_u32(staged.sessions);
            bytes.put_u64s(&[staged.attempt.0, staged.next_part]);
            sections.push(Section::Plain(std::mem::take(&mut bytes)));
            sections.push(Section::Counted(Background::Ready(staged.parts.clone())));
        }
        bytes.put_u32(self.refused_before);
        bytes.put_u64s(&[self.refused.len() as u64]);
        for (epoch, refusal) in &self.refused {
            bytes.put_u32(*epoch);
            bytes.put_u8(refusal.code());
        }
        sections.push(Section::Plain(bytes));
    }

    /// Reads what [`Cell::save_moves`] appended.
    pub(super) fn load_moves(&mut self, reader: &mut Reader<'_>) -> Result<(), CellLoadError> {
        for _ in 0..reader.u64("ownerships")? {
            let instrument = reader.u32("instrument")?;
            let (epoch, is_owner) = (reader.u32("epoch")?, reader.bool("is_owner")?);
            let sessions = reader.u32("sessions")?;
            self.session_count += sessions as usize;
            self.released_count += usize::from(sessions > 0);
            self.ownership.insert(instrument, Ownership { epoch, is_owner, sessions });
        }
        for _ in 0..reader.u64("released")? {
            let (instrument, mut counted) = (reader.u32("instrument")?, BTreeMap::new());
            for _ in 0..reader.u64("owners")? {
                let owner = Owner::take("owner", reader)?;
                let places = Places::take(reader)?;
                self.ledger.add(owner, places.holdings());
                counted.insert(owner, places);
            }
            self.released.insert(instrument, counted);
        }
        for _ in 0..reader.u64("departed")? {
            let instrument = reader.u32("instrument")?;
            let (epoch, to) = (reader.u32("epoch")?, reader.u16("to")?);
            let state = read_state(instrument, reader)?;
            self.departed.insert(instrument, Departed { epoch, to, state });
        }
        for _ in 0..reader.u64("staged")? {
            let (instrument, epoch) = (reader.u32("instrument")?, reader.u32("epoch")?);
            let sessions = reader.u32("sessions")?;
            let attempt = Attempt(reader.u64("attempt")?);
            let next_part = reader.u64("next_part")?;
            let length = usize::try_from(reader.u64("part_bytes")?).unwrap_or(usize::MAX);
            let parts = reader.bytes("parts", length)?.to_vec();
            self.session_count += sessions as usize;
            let staged = Staged::new((epoch, attempt, next_part), sessions, parts);
            self.staged.insert(instrument, staged);
        }
        self.refused_before = reader.u32("refused_before")?;
        for _ in 0..reader.u64("refused")? {
            let epoch = reader.u32("epoch")?;
            let refusal = MoveRefusal::from_code("refusal", reader.u8("refusal")?)?;
            self.refused.insert(epoch, refusal);
        }
        Ok(())
    }
}

fn read_state<M: Matching>(
    instrument: InstrumentId,
    reader: &mut Reader<'_>,
) -> Result<InstrumentState<M>, CellLoadError> {
    let length = usize::try_from(reader.u64("length")?).unwrap_or(usize::MAX);
    InstrumentState::load(instrument, reader.bytes("state", length)?)
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_book::reference::ReferenceBook;

    use super::super::testing::{INSTRUMENT, cell_with_large_book, copied_parts, order};

    use super::*;
    use crate::limits::CellLimits;

    impl<M: Matching> Cell<M> {
        /// Instruments of which a part has come from other cells, and not all.
        pub fn arriving(&self) -> impl Iterator<Item = InstrumentId> {
            self.staged.keys().copied()
        }

        /// Whether a copy is being made.
        pub fn has_copies(&self) -> bool {
            !self.copies.is_empty()
        }
    }

    /// The state that it keeps may be older than what the session has missed in the new cell.
    #[test]
    fn a_cell_that_has_released_an_instrument_answers_no_resend_request() {
        let mut cell = Cell::<ReferenceBook>::new(0, 1);
        cell.begin(1, 1);
        cell.handle(&order(2, 7, 1, 0), |_| {});
        let events =
            |cell: &Cell<ReferenceBook>| cell.events_after(7, 2, 0).map(|(_, it)| it.count());
        assert_eq!(events(&cell), Some(1));
        cell.release(Release { cell: 0, to: 1, id: MoveId { instrument: 7, epoch: 1 } });
        assert_eq!((events(&cell), cell.departed().count()), (None, 1));
    }

    /// Replicas that load the book sooner and later have the same state after each part.
    #[test]
    fn a_large_instrument_is_saved_and_loaded_by_other_threads() {
        let mut source = cell_with_large_book();
        let (id, attempt) = (MoveId { instrument: INSTRUMENT, epoch: 3 }, Attempt(1));
        let before = source.instrument_hash(INSTRUMENT);
        let mut end = vec![];
        source.end_of_transfer(INSTRUMENT).put(&mut end);
        let mut frames = copied_parts(&mut source);
        frames.push(end);
        let mut early = Cell::<Book>::new(0, 2);
        let mut late = Cell::<Book>::load(&early.save()).unwrap();
        let mut arrivals = vec![];
        for (number, frame) in frames.iter().enumerate() {
            let steps = [&mut early, &mut late]
                .map(|cell| cell.stage(id, attempt, number as u64, frame).unwrap());
            assert_eq!(steps[0], steps[1]);
            arrivals.push(early.build(INSTRUMENT));
            while early.build(INSTRUMENT) == Arrival::Loading {
                std::thread::yield_now();
            }
            assert_eq!(early.hash(), late.hash(), "after part {number}");
            if number % 3 == 2 {
                late = Cell::load(&late.save()).unwrap();
            }
        }
        let loading = arrivals.iter().filter(|arrival| **arrival == Arrival::Loading).count();
        assert!(loading <= 1 && arrivals.last() == Some(&Arrival::Unusable), "{arrivals:?}");
        assert!(early.owns(INSTRUMENT) && early.session_count == 2);
        assert_eq!(early.instrument_hash(INSTRUMENT), before);
    }

    /// A replica that is still loading the book need not stand still when the end comes.
    #[test]
    fn the_end_of_a_large_instrument_waits_for_its_book_alone() {
        let mut source = cell_with_large_book();
        let mut parts = vec![];
        source.end_of_transfer(INSTRUMENT).put(&mut parts);
        let frames = copied_parts(&mut source);
        let id = MoveId { instrument: INSTRUMENT, epoch: 3 };
        let message = |number: u64, parts: &[u8]| {
            let mut bytes = vec![];
            let (attempt, from, to) = (Attempt(1), 1, 0);
            let parts = Series::of(parts);
            nm_wire::write(&MoveParts { id, from, to, attempt, number, parts }, &mut bytes);
            bytes
        };
        let awaits_book = |cell: &mut Cell<Book>, number: u64, parts: &[u8]| {
            cell.awaits_book(nm_wire::read(&message(number, parts)).unwrap().unwrap())
        };
        let mut cell = Cell::<Book>::new(0, 2);
        for (number, frame) in (0..).zip(&frames) {
            assert!(!awaits_book(&mut cell, number, frame), "frame {number} is no end");
            cell.stage(id, Attempt(1), number, frame).unwrap();
        }
        let last = frames.len() as u64;
        loop {
            let before = cell.build(INSTRUMENT);
            let waits = awaits_book(&mut cell, last, &parts);
            match (before, cell.build(INSTRUMENT)) {
                (Arrival::Loading, Arrival::Loading) => assert!(waits),
                (Arrival::Built, _) => break assert!(!waits),
                _ => {}
            }
            assert!(!awaits_book(&mut cell, last + 1, &parts), "it has no effect");
            std::thread::yield_now();
        }
        assert_eq!(cell.stage(id, Attempt(1), last, &parts), Ok(MoveStep::Adopted(id)));
    }

    /// Whatever is damaged, and whenever that shows, all replicas refuse the copy at its end.
    #[test]
    fn a_damaged_copy_is_refused_at_its_end() {
        let mut source = cell_with_large_book();
        let mut end = vec![];
        source.end_of_transfer(INSTRUMENT).put(&mut end);
        let frames = copied_parts(&mut source);
        let id = MoveId { instrument: INSTRUMENT, epoch: 3 };
        for damaged in 1..frames.len() - 1 {
            let mut cell = Cell::<Book>::new(0, 2);
            for (number, frame) in frames.iter().chain([&end]).enumerate() {
                let mut frame = frame.clone();
                if number == damaged {
                    let at = frame.len() / 2;
                    frame[at..].fill(0xA5);
                }
                let step = cell.stage(id, Attempt(1), number as u64, &frame);
                let refused = MoveStep::Refused(id, Attempt(1), MoveRefusal::Damaged);
                let is_end = number == frames.len();
                assert_eq!(step.unwrap() == refused, is_end, "part {number} of {damaged}");
            }
            assert!(!cell.owns(INSTRUMENT) && cell.session_count == 0);
            assert_eq!(cell.instrument_count(), 1, "another attempt has its place");
        }
    }

    /// A snapshot of a large book is that of the state at its beginning.
    #[test]
    fn a_large_snapshot_is_made_by_other_threads() {
        let mut cell = cell_with_large_book();
        let (saved, mut waited) = (cell.save(), 0);
        cell.begin_snapshot();
        let snapshot = loop {
            if let Some(snapshot) = cell.copy_next() {
                break snapshot;
            }
            assert!(!cell.is_copying(), "the rest is done by other threads");
            waited += 1;
            let seq = 2_500 + waited;
            if seq < 2_600 {
                cell.handle(&order(2, INSTRUMENT, seq, seq - 1), |_| {});
            }
        };
        assert!(cell.copy_next().is_none(), "there is one");
        assert!(snapshot == saved, "{waited} requests meanwhile");
    }

    /// A full cell answers each of its last refusals as it did at first, also when it has room
    /// again; of older ones it only knows that they are too late.
    #[test]
    fn a_cell_lists_a_limited_number_of_refused_moves() {
        let mut cell = Cell::<ReferenceBook>::new(1, 2);
        let first_part = |cell: &mut Cell<ReferenceBook>, epoch: u32| {
            let id = MoveId { instrument: epoch, epoch };
            let start = CopyStart {
                output_seq: 1,
                public_seq: 1,
                history: 1,
                sessions: 1,
                maker: Owner::NOBODY,
            };
            let mut body = vec![];
            Part::Start { start }.put(&mut body);
            match cell.stage(id, Attempt(1), 0, &body) {
                Ok(MoveStep::Refused(_, _, refusal)) => Some(refusal),
                Ok(MoveStep::Staged(..)) => None,
                other => panic!("{other:?}"),
            }
        };
        cell.limits = CellLimits { instruments: 9, sessions: 0, ..CellLimits::STANDARD };
        for epoch in 1..=REFUSED_MOVES_MAX as u32 + 1 {
            assert_eq!(first_part(&mut cell, epoch), Some(MoveRefusal::TooManyCellSessions));
        }
        cell.limits = CellLimits::STANDARD;
        assert_eq!(
            first_part(&mut cell, 1),
            Some(MoveRefusal::TooManyCellInstruments),
            "not listed any more"
        );
        assert_eq!(first_part(&mut cell, 2), Some(MoveRefusal::TooManyCellSessions), "listed");
        assert_eq!(first_part(&mut cell, REFUSED_MOVES_MAX as u32 + 2), None, "a new one");
        assert_eq!(cell.refused.len(), REFUSED_MOVES_MAX);
    }
}
