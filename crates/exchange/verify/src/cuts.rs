//! Replay from snapshots: from a snapshot at any position, continued with either book, a cell must
//! reach the state of the complete replay.
//!
//! Each snapshot is taken as a replica takes it. It is begun at its position, then copied one
//! instrument at a time while the next batches change the cell. It is loaded, and all later batches
//! are applied. So `count` cuts cost about half of `count` replays.

use nm_book::book;
use nm_book::order::Matching;
use nm_book::reference::ReferenceBook;
use nm_exchange::cell::{Cell, CellLoadError, Request};
use nm_stats::random::Random;

use crate::findings::{Findings, Violation};

/// Number of cuts, and the seed from which their positions are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cuts {
    /// Cuts in each cell's journal; zero for none.
    pub count: u32,
    /// Seed of the positions and of the pace at which snapshots are copied.
    pub seed: u64,
}

/// A frame of a batch that a cell does not skip.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A request on an instrument that it owns.
    Request(Request),
    /// The bytes of a step of a move, or of the end of a session.
    Frame(Box<[u8]>),
}

/// A decoded batch.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its index.
    pub index: u64,
    /// Time of day at which its requests were ordered, ns.
    pub time_ns: u64,
    /// The frames in order.
    pub entries: Vec<Entry>,
}

/// One incarnation of a cell: from a first state until that state is lost or the journal ends.
#[derive(Debug, Clone)]
pub struct Incarnation {
    /// Number of the cell.
    pub number: u16,
    /// Over how many cells the rule of the network spreads instruments.
    pub active_cells: u16,
    /// Snapshot of the first state; none for empty books.
    pub start: Option<Vec<u8>>,
    /// Whether sessions may continue with any sequence number.
    pub accepts_unknown_sessions: bool,
    /// The batches applied to it.
    pub batches: Vec<Batch>,
}

impl Incarnation {
    /// The cell in its first state.
    fn cell<M: Matching>(&self, saved: Option<&[u8]>) -> Result<Cell<M>, CellLoadError> {
        let empty = || Ok(Cell::new(self.number, self.active_cells));
        let mut cell = saved.map_or_else(empty, Cell::load)?;
        cell.accepts_unknown_sessions = self.accepts_unknown_sessions;
        Ok(cell)
    }

    /// The state hash after applying the batches from a position on to a snapshot.
    fn replayed_hash<M: Matching>(&self, saved: &[u8], from: usize) -> Result<u64, CellLoadError> {
        let mut cell = self.cell::<M>(Some(saved))?;
        self.batches[from..].iter().for_each(|batch| apply(&mut cell, batch));
        Ok(cell.hash())
    }
}

fn apply<M: Matching>(cell: &mut Cell<M>, batch: &Batch) {
    cell.begin(batch.index, batch.time_ns);
    for entry in &batch.entries {
        match entry {
            Entry::Request(request) => {
                cell.handle(request, |_| {});
            }
            Entry::Frame(bytes) => {
                // A damaged frame had no effect on the cell that the log is of either.
                if let Ok(Some(frame)) = nm_wire::read(bytes) {
                    let _ = cell.admit(frame);
                }
            }
        }
    }
}

/// Replays an incarnation from snapshots at random positions; a different state is a violation.
///
/// # Errors
/// If the first state cannot be loaded.
pub fn check(
    number: u16,
    incarnation: &Incarnation,
    count: u32,
    random: &mut Random,
    findings: &mut Findings,
) -> Result<(), CellLoadError> {
    let Some(last) = incarnation.batches.last() else { return Ok(()) };
    let mut replayed = incarnation.cell::<book::Book>(incarnation.start.as_deref())?;
    incarnation.batches.iter().for_each(|batch| apply(&mut replayed, batch));
    let expected = replayed.hash();
    // A position is the number of batches before the cut.
    let mut positions: Vec<usize> =
        (0..count).map(|_| random.below(incarnation.batches.len())).collect();
    positions.sort_unstable();
    let mut cell = incarnation.cell::<book::Book>(incarnation.start.as_deref())?;
    let mut done = 0;
    for (number_of_cut, position) in positions.iter().copied().enumerate() {
        incarnation.batches[done..position].iter().for_each(|batch| apply(&mut cell, batch));
        // While the snapshot is copied, batches up to the next cut are applied.
        let next = positions.get(number_of_cut + 1).copied().unwrap_or(incarnation.batches.len());
        let (saved, meanwhile) = snapshot(&mut cell, &incarnation.batches[position..next], random);
        done = position + meanwhile;
        findings.cuts += 1;
        let (by, hash) = match number_of_cut % 2 {
            0 => ("fast", incarnation.replayed_hash::<book::Book>(&saved, position)),
            _ => ("reference", incarnation.replayed_hash::<ReferenceBook>(&saved, position)),
        };
        let hash =
            hash.map(|hash| format!("{hash:016x}")).unwrap_or_else(|error| error.to_string());
        if hash != format!("{expected:016x}") {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {number}: from a snapshot before batch {}, continued with the {by} book, \
                     the state after batch {} is {hash}, and {expected:016x} from the beginning",
                    incarnation.batches[position].index, last.index
                )
            });
        }
    }
    Ok(())
}

/// A snapshot of a cell, copied while the next batches are applied at a random pace, and the number
/// of batches applied.
fn snapshot(cell: &mut Cell<book::Book>, next: &[Batch], random: &mut Random) -> (Vec<u8>, usize) {
    cell.begin_snapshot();
    let (mut meanwhile, at_once) = (0, 1 + random.below(16));
    loop {
        if let Some(batch) = next.get(meanwhile) {
            apply(cell, batch);
            meanwhile += 1;
        }
        for _ in 0..at_once {
            if let Some(saved) = cell.copy_next() {
                return (saved, meanwhile);
            }
        }
    }
}
