//! Replay from the middle: from a snapshot at any place, carried on by either book, a cell must
//! come to the state of the whole replay.
//!
//! Each snapshot is taken as a replica takes it: begun at its place, copied one instrument at a
//! time while the next batches change the cell. Then it is loaded, and everything after it is
//! carried out again. So `count` cuts cost about half of `count` replays.

use nm_book::book;
use nm_book::order::Matching;
use nm_book::reference::ReferenceBook;
use nm_exchange::cell::{Cell, Request};
use nm_stats::random::Random;

use super::judge::{Findings, Violation};

/// How many places, and from which seed they are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cuts {
    /// Places in each cell's journal; zero for none.
    pub count: u32,
    /// Seed of the places and of the pace at which snapshots are copied.
    pub seed: u64,
}

/// A batch without its bytes.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its index.
    pub index: u64,
    /// The time at which its requests were put in order, ns.
    pub time_ns: u64,
    /// The requests in order.
    pub requests: Vec<Request>,
}

/// What one cell carried out from its first state on.
#[derive(Debug, Clone, Default)]
pub struct Incarnation {
    /// The first state, a saved cell; none for empty books.
    pub start: Option<Vec<u8>>,
    /// Whether sessions may begin anywhere.
    pub accepts_unknown_sessions: bool,
    /// The batches.
    pub batches: Vec<Batch>,
}

impl Incarnation {
    /// The cell at its beginning.
    fn cell<M: Matching>(&self, saved: Option<&[u8]>) -> Result<Cell<M>, String> {
        let mut cell = saved.map_or_else(
            || Ok(Cell::default()),
            |saved| Cell::load(saved).map_err(|error| error.to_string()),
        )?;
        cell.accepts_unknown_sessions = self.accepts_unknown_sessions;
        Ok(cell)
    }

    /// The hash after the batches from a place on, carried out from a saved cell.
    fn replayed_hash<M: Matching>(&self, saved: &[u8], from: usize) -> Result<u64, String> {
        let mut cell = self.cell::<M>(Some(saved))?;
        self.batches[from..].iter().for_each(|batch| apply(&mut cell, batch));
        Ok(cell.hash())
    }
}

fn apply<M: Matching>(cell: &mut Cell<M>, batch: &Batch) {
    cell.begin(batch.index, batch.time_ns);
    for request in &batch.requests {
        cell.handle(request, |_| {});
    }
}

/// Cuts a cell's life at random places; what differs is a finding.
///
/// # Errors
/// A sentence, if the first state cannot be loaded.
pub fn check(
    number: u16,
    life: &Incarnation,
    count: u32,
    random: &mut Random,
    findings: &mut Findings,
) -> Result<(), String> {
    let Some(last) = life.batches.last() else { return Ok(()) };
    let mut whole = life.cell::<book::Book>(life.start.as_deref())?;
    life.batches.iter().for_each(|batch| apply(&mut whole, batch));
    let expected = whole.hash();
    // A place is the number of batches before the cut.
    let mut places: Vec<usize> = (0..count).map(|_| random.below(life.batches.len())).collect();
    places.sort_unstable();
    let mut cell = life.cell::<book::Book>(life.start.as_deref())?;
    let mut done = 0;
    for (number_of_cut, place) in places.iter().copied().enumerate() {
        life.batches[done..place].iter().for_each(|batch| apply(&mut cell, batch));
        // What goes on meanwhile is what lies before the next cut.
        let next = places.get(number_of_cut + 1).copied().unwrap_or(life.batches.len());
        let (saved, meanwhile) = snapshot(&mut cell, &life.batches[place..next], random);
        done = place + meanwhile;
        findings.cuts += 1;
        let (by, hash) = match number_of_cut % 2 {
            0 => ("fast", life.replayed_hash::<book::Book>(&saved, place)),
            _ => ("plain", life.replayed_hash::<ReferenceBook>(&saved, place)),
        };
        let hash = hash.map(|hash| format!("{hash:016x}")).unwrap_or_else(|why| why);
        if hash != format!("{expected:016x}") {
            findings.add(Violation::HashDiffers, || {
                format!(
                    "cell {number}: from a snapshot before batch {}, carried on by the {by} book, \
                     the state after batch {} is {hash}, and {expected:016x} from the beginning",
                    life.batches[place].index, last.index
                )
            });
        }
    }
    Ok(())
}

/// A snapshot of a cell, copied while the next batches are carried out at a random pace, and how
/// many of them were.
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
