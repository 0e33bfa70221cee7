//! Applies the batches of a journal with the reference book and the fast one, side by side.

use std::collections::{BTreeMap, HashMap, HashSet};

use nm_book::book;
use nm_book::codec;
use nm_book::order::{InstrumentId, UserId};
use nm_book::reference::ReferenceBook;
use nm_codec::{DecodeError, FNV1A, Put, Reader, fnv1a_on};
use nm_exchange::batch;
use nm_exchange::cell::{
    Admitted, Cell, CellLoadError, Handled, MoveStep, Request, event_recipients,
};
use nm_exchange::moves::{MoveId, MoveParts, Release as ReleaseEntry};
use nm_exchange::network::{Durability, Network};
use nm_load::log::{RequestId, command_hash};
use nm_wire::{Claim, Forget, Frame, Kind, request};
use thiserror::Error;

use crate::cuts::{Batch, Entry, Incarnation};
use crate::findings::{Findings, Violation};
use crate::judge::Executed;
use crate::ownership::{Begin, InstrumentState, Origin, Owners, Place, Release};
use crate::rules::Rules;

/// A batch that cannot be decoded.
#[derive(Debug, Error)]
#[error("batch {index} of cell {cell} cannot be decoded: {source}")]
pub struct BatchError {
    /// Number of the cell.
    pub cell: u16,
    /// Index of the batch.
    pub index: u64,
    /// The field.
    pub source: DecodeError,
}

/// Number of events of each session on each instrument, and their hash.
pub type Delivered = HashMap<(InstrumentId, UserId), (u64, u64)>;

/// Events of instruments after a move: which move, and the recipient, length and code of each.
/// Their hash continues that of events in another cell, so it is computed when all are replayed.
pub type MovedEvents = BTreeMap<MoveId, Vec<u8>>;

/// Adds the events of all cells after moves to those before.
pub fn fold(moved: &[MovedEvents], delivered: &mut Delivered) {
    let mut all: Vec<(&MoveId, &Vec<u8>)> = moved.iter().flatten().collect();
    all.sort_by_key(|(id, _)| **id);
    for (id, events) in all {
        let mut events = Reader::new(events);
        let mut next = || -> Result<(UserId, &[u8]), DecodeError> {
            let (user, length) = (events.u32("user")?, events.u16("length")?);
            Ok((user, events.bytes("code", usize::from(length))?))
        };
        while let Ok((user, code)) = next() {
            add(delivered, id.instrument, user, code);
        }
    }
}

fn add(delivered: &mut Delivered, instrument: InstrumentId, user: UserId, code: &[u8]) {
    let (events, hash) = delivered.entry((instrument, user)).or_insert((0, FNV1A));
    (*events, *hash) = (*events + 1, fnv1a_on(*hash, code));
}

/// The replay of a cell.
#[derive(Debug)]
pub struct Replay {
    cell: u16,
    /// Over how many cells the rule of the network spreads instruments.
    active_cells: u16,
    /// Whether the state survives a change of leader; otherwise every term starts with empty books.
    is_kept: bool,
    reference: Cell<ReferenceBook>,
    fast: Cell<book::Book>,
    term: Option<u64>,
    /// Incarnations so far, the current one last; with their batches only if these are kept.
    incarnations: Vec<Incarnation>,
    keeps_batches: bool,
    /// Executed requests, in order.
    pub executed: Vec<Executed>,
    /// Requests that were repeated when the cell no longer knew their outcome.
    pub expired: HashSet<RequestId>,
    /// Events of instruments that are here by the rule.
    pub delivered: Delivered,
    /// Events of those that came from another cell.
    pub moved_events: MovedEvents,
    code: Vec<u8>,
    /// The rules of the instrument master.
    pub rules: Rules,
}

impl Replay {
    /// A cell with empty books. `keeps_batches`: keep the batches, to replay from snapshots later.
    pub fn new(cell: u16, network: &Network, keeps_batches: bool) -> Replay {
        let (durability, active_cells) = (network.durability, network.active_cells());
        let mut replay = Replay {
            cell,
            active_cells,
            is_kept: durability != Durability::None,
            reference: Cell::new(cell, active_cells),
            fast: Cell::new(cell, active_cells),
            term: None,
            incarnations: vec![],
            keeps_batches,
            executed: vec![],
            expired: HashSet::new(),
            delivered: HashMap::new(),
            moved_events: BTreeMap::new(),
            code: vec![],
            rules: Rules::of(network.master.clone()),
        };
        replay.begin_incarnation(durability != Durability::DiskQuorum);
        replay
    }

    /// Begins with empty books.
    fn begin_incarnation(&mut self, accepts_unknown_sessions: bool) {
        let (number, active_cells) = (self.cell, self.active_cells);
        self.reference = Cell::new(number, active_cells);
        self.fast = Cell::new(number, active_cells);
        (self.reference.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        self.incarnations.push(Incarnation {
            number,
            active_cells,
            start: None,
            accepts_unknown_sessions,
            batches: vec![],
        });
    }

    /// Starts from a snapshot instead. `sessions`: of each instrument, those whose requests clients
    /// have logged.
    ///
    /// # Errors
    /// If it is no snapshot of a cell.
    pub fn restore(
        &mut self,
        saved: Vec<u8>,
        sessions: &HashMap<InstrumentId, Vec<UserId>>,
        owners: &mut Owners,
    ) -> Result<(), CellLoadError> {
        let accepts_unknown_sessions = self.reference.accepts_unknown_sessions;
        self.reference = Cell::load(&saved)?;
        self.fast = Cell::load(&saved)?;
        (self.reference.accepts_unknown_sessions, self.fast.accepts_unknown_sessions) =
            (accepts_unknown_sessions, accepts_unknown_sessions);
        if let [first] = &mut self.incarnations[..] {
            first.start = Some(saved);
        }
        let ownerships = self.fast.ownerships();
        let epochs = ownerships.map(|(instrument, known)| (instrument, known.epoch)).collect();
        owners.restored(self.cell, epochs);
        let present: Vec<InstrumentId> = self.fast.executed().map(|(it, _)| it).collect();
        for instrument in present {
            let id = MoveId { instrument, epoch: self.epoch_of(instrument) };
            owners.begun(id, self.begin(instrument, Origin::Snapshot, Some(sessions)));
        }
        Ok(())
    }

    /// The last move of an instrument that the cell knows of; zero for none.
    fn epoch_of(&self, instrument: InstrumentId) -> u32 {
        self.fast.ownership(instrument).map_or(0, |known| known.epoch)
    }

    fn place(&self) -> Place {
        Place { cell: self.cell, incarnation: self.incarnations.len() as u64 }
    }

    fn state_of(&self, instrument: InstrumentId) -> InstrumentState {
        let (output_seq, _) = self.fast.history(instrument);
        InstrumentState { output_seq, hash: self.fast.instrument_hash(instrument) }
    }

    /// The cell owns an instrument from now on.
    fn begin(
        &self,
        instrument: InstrumentId,
        origin: Origin,
        sessions: Option<&HashMap<InstrumentId, Vec<UserId>>>,
    ) -> Begin {
        let sessions = sessions.and_then(|all| all.get(&instrument)).into_iter().flatten();
        let last_request = |session| self.fast.last_request_seq(instrument, session);
        Begin {
            place: self.place(),
            index: self.fast.index(),
            origin,
            state: self.state_of(instrument),
            last_requests: sessions.map(|it| (*it, last_request(*it))).collect(),
        }
    }

    /// Number of the cell.
    pub fn cell(&self) -> u16 {
        self.cell
    }

    /// Index of the last applied batch.
    pub fn index(&self) -> u64 {
        self.fast.index()
    }

    /// Whether books were lost during the run.
    pub fn lost_state(&self) -> bool {
        self.incarnations.len() > 1
    }

    /// The incarnations of the cell, with their batches if these were kept.
    pub fn into_incarnations(self) -> Vec<Incarnation> {
        self.incarnations
    }

    /// Applies a batch. `sessions`: of each instrument, those whose last requests are of interest
    /// when it comes from another cell.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub fn batch(
        &mut self,
        (index, term): (u64, u64),
        bytes: &[u8],
        sessions: Option<&HashMap<InstrumentId, Vec<UserId>>>,
        owners: &mut Owners,
        findings: &mut Findings,
    ) -> Result<(), BatchError> {
        let cell = self.cell;
        let undecodable = |source| BatchError { cell, index, source };
        if !self.is_kept && self.term.is_some_and(|last| last != term) {
            self.begin_incarnation(true);
        }
        self.term = Some(term);
        let (time_ns, frames) = batch::decode(bytes).map_err(undecodable)?;
        self.reference.begin(index, time_ns);
        self.fast.begin(index, time_ns);
        findings.batches += 1;
        let mut entries = vec![];
        for frame in frames {
            let frame = frame.map_err(undecodable)?;
            let last_epoch = instrument_of(frame).map_or(0, |instrument| self.epoch_of(instrument));
            // Frames that are neither, or for another cell, are skipped by the network as well.
            let (reference, fast) = (self.reference.admit(frame), self.fast.admit(frame));
            if reference != fast {
                findings.add(Violation::HashDiffers, || {
                    format!(
                        "a frame of batch {index} of cell {cell}: reference book {reference:?}, \
                         fast book {fast:?}"
                    )
                });
            }
            match fast {
                Ok(Admitted::Request(request)) => {
                    self.request(&request, last_epoch, findings);
                    if self.keeps_batches {
                        entries.push(Entry::Request(request));
                    }
                }
                Ok(Admitted::Move(step)) => {
                    self.step(step, frame, last_epoch, sessions, owners);
                    if self.keeps_batches {
                        entries.push(Entry::Frame(frame.bytes.into()));
                    }
                }
                Ok(Admitted::Stopped(order)) => {
                    self.rules.decided(order);
                    if self.keeps_batches {
                        entries.push(Entry::Frame(frame.bytes.into()));
                    }
                }
                Ok(Admitted::Retired(_) | Admitted::Watched) => {
                    if self.keeps_batches {
                        entries.push(Entry::Frame(frame.bytes.into()));
                    }
                }
                Ok(Admitted::NotOwned | Admitted::Undecodable) | Err(_) => {}
            }
        }
        if let Some(incarnation) = self.incarnations.last_mut().filter(|_| self.keeps_batches) {
            incarnation.batches.push(Batch { index, time_ns, entries });
        }
        Ok(())
    }

    /// Executes a request.
    fn request(&mut self, request: &Request, epoch: u32, findings: &mut Findings) {
        let Request { instrument, session, client_seq, .. } = *request;
        let (delivered, code) = (&mut self.delivered, &mut self.code);
        let id = MoveId { instrument, epoch };
        let mut moved = (epoch > 0).then(|| self.moved_events.entry(id).or_default());
        let mut has_effect = false;
        let handled = self.reference.handle(request, |event| {
            has_effect |= Rules::is_effect(event);
            code.clear();
            codec::write_event(event, code);
            for user in event_recipients(event, session) {
                match &mut moved {
                    None => add(delivered, instrument, user, code),
                    Some(bytes) => {
                        bytes.put_u32(user);
                        bytes.put_u16(code.len() as u16);
                        bytes.put(code);
                    }
                }
            }
        });
        let fast = self.fast.handle(request, |_| {});
        let name = RequestId { instrument, session, client_seq };
        let index = self.fast.index();
        if handled != fast {
            findings.add(Violation::HashDiffers, || {
                format!("{name} in batch {index}: reference book {handled:?}, fast book {fast:?}")
            });
        }
        if handled == Handled::Duplicate(None) {
            self.expired.insert(name);
        }
        if let Handled::Executed(outcome) = handled {
            self.rules.executed(request, has_effect, index, findings);
            self.executed.push(Executed {
                name,
                output_seq: outcome.output_seq,
                events_hash: outcome.events_hash,
                command_hash: command_hash(&request.command),
                index,
                place: self.place(),
                epoch,
            });
        }
    }

    /// A step of a move was carried out, before which the last move of its instrument was another.
    fn step(
        &mut self,
        step: MoveStep,
        frame: Frame<'_>,
        last_epoch: u32,
        sessions: Option<&HashMap<InstrumentId, Vec<UserId>>>,
        owners: &mut Owners,
    ) {
        match step {
            MoveStep::Released(id) => {
                let to = frame.read::<ReleaseEntry>().map_or(0, |it| it.to);
                let (place, index) = (self.place(), self.fast.index());
                let state = self.state_of(id.instrument);
                owners.released(id, Release { place, index, to, state });
            }
            // One that is here already is announced again.
            MoveStep::Adopted(id) if last_epoch < id.epoch => {
                let from = frame.read::<MoveParts<'_>>().map_or(0, |it| it.from);
                let origin = Origin::Moved(from);
                owners.begun(id, self.begin(id.instrument, origin, sessions));
            }
            MoveStep::Claimed(instrument) => {
                let id = MoveId { instrument, epoch: self.epoch_of(instrument) };
                owners.begun(id, self.begin(instrument, Origin::Claimed, None));
            }
            MoveStep::Forgotten(instrument) => {
                let epoch = frame.read::<Forget>().map_or(0, |it| it.id.epoch);
                owners.forgotten(MoveId { instrument, epoch });
            }
            MoveStep::Adopted(_)
            | MoveStep::Ignored
            | MoveStep::Staged(..)
            | MoveStep::Refused(..) => {}
        }
    }

    /// Compares the states of both books with each other, and with the hashes that replicas
    /// recorded.
    pub fn compare(&self, recorded: &[(String, u64)], findings: &mut Findings) {
        let (reference, fast) = (self.reference.hash(), self.fast.hash());
        let (cell, index) = (self.cell, self.reference.index());
        findings.hashes += 1 + recorded.len() as u64;
        if reference != fast {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {cell} after batch {index}: reference {reference:016x}, fast {fast:016x}"
                )
            });
        }
        for (who, recorded) in recorded.iter().filter(|(_, recorded)| *recorded != fast) {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {cell} after batch {index}: {fast:016x}, and {who} had {recorded:016x}"
                )
            });
        }
    }
}

/// The instrument that a frame of a batch is about.
fn instrument_of(frame: Frame<'_>) -> Option<InstrumentId> {
    let id = match frame.kind() {
        Kind::Request => return Some(request::View::of(frame).ok()?.instrument()),
        Kind::Release => frame.read::<ReleaseEntry>().ok()?.id,
        Kind::Forget => frame.read::<Forget>().ok()?.id,
        Kind::Claim => frame.read::<Claim>().ok()?.id,
        _ => frame.read::<MoveParts<'_>>().ok()?.id,
    };
    Some(id.instrument)
}
