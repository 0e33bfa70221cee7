//! What is checked whenever an entry is committed, by replicas of all cells and of control that
//! apply each entry at once.

use std::collections::BTreeMap;

use nm_book::book::Book;
use nm_book::order::{InstrumentId, UserId};
use nm_wire::Kind;

use crate::batch;
use crate::cell::{Admitted, Cell, DESK, Handled, MoveStep, Outcome};
use crate::control::{self, InstrumentMap, State};
use crate::limits::CellLimits;
use crate::moves::{MoveId, MoveParts, Part};
use crate::network::{Durability, Network, Role};

use super::group::Entry;
use super::oracle::AllDirected;

/// A step of the protocol, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Control orders the move.
    Ordered,
    /// The first part is in the destination's log.
    FirstStaged,
    /// The whole copy is.
    CopyStaged,
    /// The source's leader proposes the release.
    ReleaseProposed,
    /// It is committed.
    Released,
    /// The end is on its way to the destination.
    EndSent,
    /// The end is committed.
    Adopted,
    /// The destination's leader announces it.
    Announced,
    /// Control has logged the new map.
    MapLogged,
    /// The source has forgotten the instrument.
    Forgotten,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 10] = [
        Step::Ordered,
        Step::FirstStaged,
        Step::CopyStaged,
        Step::ReleaseProposed,
        Step::Released,
        Step::EndSent,
        Step::Adopted,
        Step::Announced,
        Step::MapLogged,
        Step::Forgotten,
    ];
}

/// Replicas that apply what is committed, when it is.
#[derive(Debug)]
pub struct Audit {
    /// By number.
    pub cells: Vec<Cell<Book>>,
    /// Control's state.
    pub control: State,
    /// Hash of the state of an instrument when it was released.
    released: BTreeMap<MoveId, Option<u64>>,
    adopted: BTreeMap<MoveId, u16>,
    /// What operators had done.
    pub directed: AllDirected,
    /// Outcomes by instrument and session.
    outcomes: BTreeMap<(InstrumentId, UserId), BTreeMap<u64, Outcome>>,
    /// Whether it sees what cells commit: without durability they have no log that it could read.
    sees_cells: bool,
    /// Last number of an outcome of an instrument.
    last: BTreeMap<InstrumentId, u64>,
    /// Instruments of the network.
    instruments: InstrumentId,
}

impl Audit {
    /// Nothing is committed yet.
    pub fn new(
        network: &Network,
        (accepts_unknown, limits): (bool, CellLimits),
        instruments: InstrumentId,
    ) -> Audit {
        let cell = |number: usize| {
            let mut cell = Cell::new(number as u16, network.active_cells());
            cell.accepts_unknown_sessions = accepts_unknown;
            cell.limits = limits;
            cell
        };
        Audit {
            cells: (0..network.classes[Role::Mediator].nodes.len()).map(cell).collect(),
            control: State::new(InstrumentMap::of(network)),
            released: BTreeMap::new(),
            adopted: BTreeMap::new(),
            directed: AllDirected::new(),
            outcomes: BTreeMap::new(),
            sees_cells: network.durability != Durability::None,
            last: BTreeMap::new(),
            instruments,
        }
    }

    /// A cell was added to the network.
    pub fn add_cell(&mut self, network: &Network) {
        let number = self.cells.len() as u16;
        let first = &self.cells[0];
        let (accepts_unknown, limits) = (first.accepts_unknown_sessions, first.limits);
        let mut cell = Cell::new(number, network.active_cells());
        (cell.accepts_unknown_sessions, cell.limits) = (accepts_unknown, limits);
        self.cells.push(cell);
    }

    /// How many requests were executed.
    pub fn executed(&self) -> usize {
        let of_clients = self.outcomes.iter().filter(|((_, session), _)| *session != DESK);
        of_clients.map(|(_, outcomes)| outcomes.len()).sum()
    }

    /// How many moves ended in another cell.
    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    /// An entry of control's log is committed; the moves that ended in another cell.
    pub fn commit_control(&mut self, entry: &Entry) -> Vec<InstrumentId> {
        self.control.begin(entry.index);
        let (now_ms, commands) = control::decode_batch(&entry.batch).expect("a batch of control");
        let mut moved = vec![];
        for command in &commands {
            if let Some(ended) = self.control.apply(command, now_ms) {
                let epoch = self.control.routes().map.epoch_of(ended.instrument);
                if ended.refusal.is_none() {
                    let id = MoveId { instrument: ended.instrument, epoch };
                    let is_adopted = self.adopted.get(&id) == Some(&ended.cell);
                    assert!(is_adopted || !self.sees_cells, "{id:?} in the map");
                    moved.push(ended.instrument);
                }
            }
        }
        moved
    }

    /// An entry of a cell's log is committed; the steps of moves in it.
    pub fn commit_cell(&mut self, number: u16, entry: &Entry) -> Vec<(Step, MoveId)> {
        let (time_ns, frames) = batch::decode(&entry.batch).expect("a batch");
        let mut steps = vec![];
        self.cells[usize::from(number)].begin(entry.index, time_ns);
        for frame in frames {
            let frame = frame.expect("a frame");
            let cell = &mut self.cells[usize::from(number)];
            match cell.admit(frame).expect("a frame of a batch") {
                Admitted::Request(request) => {
                    let handled = cell.handle(&request, |_| {});
                    if let Handled::Executed(outcome) = handled {
                        if request.session == DESK {
                            let Outcome { output_seq, events_hash, .. } = outcome;
                            let known = self.directed.entry(request.instrument).or_default();
                            known.push((request.command, output_seq, events_hash));
                        }
                        self.on_executed(request.instrument, request.session, outcome);
                    }
                }
                Admitted::NotOwned
                | Admitted::Retired(_)
                | Admitted::Watched
                | Admitted::Firms(_)
                | Admitted::Stopped(_) => {}
                Admitted::Undecodable => panic!("a request that cannot be read"),
                Admitted::Move(step) => {
                    let is_parts = frame.kind() == Kind::MoveParts;
                    let parts = is_parts.then(|| frame.read().expect("parts"));
                    steps.extend(self.on_step(number, step, parts));
                }
            }
        }
        self.check_owners();
        steps
    }

    /// A request was executed.
    pub fn on_executed(&mut self, instrument: InstrumentId, session: UserId, outcome: Outcome) {
        let last = self.last.entry(instrument).or_default();
        assert_eq!(outcome.output_seq, *last + 1, "number of the outcome on {instrument}");
        *last += 1;
        if outcome.client_seq == 0 {
            // The exchange has cancelled the orders of a session that is away.
            return;
        }
        let known = self.outcomes.entry((instrument, session)).or_default();
        let before = known.last_key_value().map_or(0, |(seq, _)| *seq);
        assert!(
            outcome.client_seq > before,
            "request {} of session {session} on {instrument} after {before}",
            outcome.client_seq
        );
        known.insert(outcome.client_seq, outcome);
    }

    fn on_step(
        &mut self,
        number: u16,
        step: MoveStep,
        parts: Option<MoveParts<'_>>,
    ) -> Vec<(Step, MoveId)> {
        let cell = &self.cells[usize::from(number)];
        match step {
            MoveStep::Released(id) => {
                let hash = cell.instrument_hash(id.instrument);
                let before = self.released.insert(id, hash);
                assert_eq!(before, None, "{id:?} was released twice");
                vec![(Step::Released, id)]
            }
            MoveStep::Adopted(id) => {
                let Some(before) = self.adopted.insert(id, number) else {
                    let hash = cell.instrument_hash(id.instrument);
                    assert_eq!(self.released.get(&id), Some(&hash), "state of {id:?}");
                    return vec![(Step::Adopted, id)];
                };
                assert_eq!(before, number, "{id:?} was adopted by two cells");
                vec![]
            }
            MoveStep::Staged(id, _, next) => {
                let Some(MoveParts { mut parts, .. }) = parts else { return vec![] };
                let is_end = |part: Result<Part<'_>, _>| matches!(part, Ok(Part::BookEnd));
                let mut steps = vec![];
                if next == 1 {
                    steps.push((Step::FirstStaged, id));
                }
                if parts.any(is_end) {
                    steps.push((Step::CopyStaged, id));
                }
                steps
            }
            MoveStep::Forgotten(instrument) => {
                let epoch = cell.ownership(instrument).map_or(0, |known| known.epoch);
                let id = MoveId { instrument, epoch };
                assert!(self.adopted.contains_key(&id), "{id:?} was forgotten too early");
                vec![(Step::Forgotten, id)]
            }
            _ => vec![],
        }
    }

    /// At most one cell owns each instrument.
    fn check_owners(&self) {
        for instrument in 0..self.instruments {
            let owners = self.cells.iter().filter(|cell| cell.owns(instrument));
            let owners: Vec<u16> = owners.map(Cell::number).collect();
            assert!(owners.len() <= 1, "cells {owners:?} own instrument {instrument}");
        }
    }

    /// What is not as it should be when nothing is under way.
    pub fn unsettled(&self) -> Option<String> {
        let map = &self.control.routes().map;
        let seen = self.cells.iter().filter(|_| self.sees_cells);
        for cell in seen.filter(|cell| map.has_cell(cell.number())) {
            let number = cell.number();
            if let Some((instrument, _)) = cell.departed().next() {
                return Some(format!("cell {number} keeps released instrument {instrument}"));
            }
            if let Some(instrument) = cell.arriving().next() {
                return Some(format!("cell {number} keeps parts of instrument {instrument}"));
            }
            for instrument in 0..self.instruments {
                let is_mapped = map.cell_of(instrument) == number;
                if cell.owns(instrument) != is_mapped {
                    return Some(format!("the map is wrong about {instrument} and cell {number}"));
                }
            }
        }
        let pending = self.control.pending_moves();
        (!pending.is_empty()).then(|| format!("moves are under way: {pending:?}"))
    }
}
