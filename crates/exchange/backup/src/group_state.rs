//! The state of a group, cell or control, as its records make it.

use nm_book::book::Book;
use nm_codec::fnv1a;
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, MoveStep};
use nm_exchange::control::{self, Command, InstrumentMap, State};
use nm_exchange::moves::MoveId;
use nm_exchange::network::{CONTROL, Network, group_name};
use nm_replica::journal::{Record, RecordKind};

use crate::error::BackupError;

/// What a record does to the ownership of an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The cell owns it from now on.
    Adopted(MoveId),
    /// The cell does not own it any more.
    Released(MoveId),
    /// The move has ended: its state, or the knowledge that it is pending, is dropped.
    Ended(MoveId),
}

/// What a record was.
#[derive(Debug, Default)]
pub struct Applied {
    /// The time of its batch, ns since 1970; none if it has none.
    pub time_ns: Option<u64>,
    /// What it did to ownerships.
    pub steps: Vec<Step>,
}

/// The state of a group.
#[derive(Debug)]
pub enum GroupState {
    /// Of a cell.
    Cell(Box<Cell<Book>>),
    /// Of the control group.
    Control(Box<State>),
}

impl GroupState {
    /// The state of a group at its beginning.
    pub fn new(network: &Network, group: u16) -> GroupState {
        match group {
            CONTROL => GroupState::Control(Box::new(State::new(InstrumentMap::of(network)))),
            _ => GroupState::Cell(Box::new(Cell::new(group, network.active_cells()))),
        }
    }

    /// The state in a snapshot.
    ///
    /// # Errors
    /// If it is none.
    pub fn load(group: u16, saved: &[u8]) -> Result<GroupState, BackupError> {
        let wrong = |why: String| BackupError::Content {
            group: group_name(group),
            what: "the snapshot".to_string(),
            why,
        };
        Ok(match group {
            CONTROL => GroupState::Control(Box::new(
                State::load(saved).map_err(|error| wrong(error.to_string()))?,
            )),
            _ => GroupState::Cell(Box::new(
                Cell::load(saved).map_err(|error| wrong(error.to_string()))?,
            )),
        })
    }

    /// What it knows of moves that have ended, and of instruments that are on their way.
    pub fn steps(&self) -> Vec<Step> {
        let GroupState::Cell(cell) = self else { return vec![] };
        let departed: Vec<MoveId> = cell
            .departed()
            .map(|(instrument, state)| MoveId { instrument, epoch: state.epoch })
            .collect();
        let steps = cell.ownerships().flat_map(|(instrument, known)| {
            let id = MoveId { instrument, epoch: known.epoch };
            match known.is_owner {
                true => vec![Step::Adopted(id)],
                false if departed.contains(&id) => vec![Step::Released(id)],
                false => vec![Step::Released(id), Step::Ended(id)],
            }
        });
        steps.collect()
    }

    /// The time of its last batch, ns since 1970; 0 if that is not known.
    pub fn time_ns(&self) -> u64 {
        match self {
            GroupState::Cell(cell) => cell.now_ns(),
            GroupState::Control(_) => 0,
        }
    }

    /// Applies a record.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn apply(&mut self, group: u16, record: &Record) -> Result<Applied, BackupError> {
        if record.kind != RecordKind::Batch {
            return Ok(Applied::default());
        }
        let applied = match self {
            GroupState::Cell(cell) => apply_to_cell(cell, record),
            GroupState::Control(state) => apply_to_control(state, record),
        };
        applied.map_err(|why| BackupError::Content {
            group: group_name(group),
            what: format!("record {}", record.index),
            why,
        })
    }

    /// A group begins again from this state.
    pub fn begin_again(&mut self) {
        if let GroupState::Cell(cell) = self {
            cell.begin_again();
        }
    }

    /// All of it.
    pub fn save(&self) -> Vec<u8> {
        match self {
            GroupState::Cell(cell) => cell.save(),
            GroupState::Control(state) => state.save(),
        }
    }

    /// Hash of all of it, 16 hexadecimal digits.
    pub fn hash(&self) -> String {
        format!("{:016x}", fnv1a(&self.save()))
    }
}

fn apply_to_cell(cell: &mut Cell<Book>, record: &Record) -> Result<Applied, String> {
    let (time_ns, frames) = batch::decode(&record.bytes).map_err(|error| error.to_string())?;
    cell.begin(record.index, time_ns);
    let mut steps = vec![];
    for frame in frames {
        let frame = frame.map_err(|error| error.to_string())?;
        // What a cell cannot use has no effect, as in the network.
        match cell.admit(frame) {
            Ok(Admitted::Request(request)) => {
                cell.handle(&request, |_| {});
            }
            Ok(Admitted::Move(MoveStep::Released(id))) => steps.push(Step::Released(id)),
            Ok(Admitted::Move(MoveStep::Adopted(id))) => steps.push(Step::Adopted(id)),
            Ok(Admitted::Move(MoveStep::Forgotten(instrument))) => {
                let epoch = cell.ownership(instrument).map_or(0, |known| known.epoch);
                steps.push(Step::Ended(MoveId { instrument, epoch }));
            }
            _ => {}
        }
    }
    Ok(Applied { time_ns: Some(time_ns), steps })
}

fn apply_to_control(state: &mut State, record: &Record) -> Result<Applied, String> {
    let (now_ms, commands) =
        control::decode_batch(&record.bytes).map_err(|error| error.to_string())?;
    state.begin(record.index);
    let mut steps = vec![];
    for command in &commands {
        let ended = state.apply(command, now_ms);
        if let Command::MoveEnded { id, refusal: None } = command
            && ended.is_some()
        {
            steps.push(Step::Ended(*id));
        }
    }
    Ok(Applied { time_ns: Some(now_ms * 1_000_000), steps })
}
