//! Grows and shrinks a running network by one cell: which instruments go where, and the moves.
//!
//! A cell without instruments is spare. Growing gives a spare cell its share of the load, shrinking
//! takes all instruments from a cell and gives them to the others. Trading does not stop meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_exchange::control::Work;
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use thiserror::Error;

use crate::admin::{self, CellStatus, MoveOutcome, NetworkStatus};

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long all moves may take.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// How long requests are counted, to know the load of each instrument.
const COUNTED: Duration = Duration::from_millis(1_000);

/// Why a network cannot grow or shrink.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ResizeError {
    /// All cells have instruments.
    #[error("no cell is spare: all {0} have instruments; `nearmetal exchange add` adds a mediator")]
    NoSpare(usize),
    /// The cell does not exist.
    #[error("there is no cell {cell}: the network has {cells}")]
    NoSuchCell {
        /// Which.
        cell: u16,
        /// How many there are.
        cells: usize,
    },
    /// The cell has instruments already.
    #[error("cell {0} has instruments already")]
    NotSpare(u16),
    /// The cell has none.
    #[error("cell {0} has no instruments")]
    Spare(u16),
    /// It is the only one.
    #[error("cell {0} is the only one with instruments, and one must have them")]
    Last(u16),
    /// The cell, or its new owners, have no leader.
    #[error("cell {0} has no leader: wait until its mediator is up")]
    NotUp(u16),
}

impl From<ResizeError> for Failure {
    fn from(error: ResizeError) -> Failure {
        Failure::new(FailureKind::BadRequest, error.to_string())
    }
}

/// The instruments of one cell, with the requests that each had while they were counted.
type Loads = BTreeMap<InstrumentId, u64>;

/// What was done.
#[derive(Debug, Clone, PartialEq)]
pub struct Resized {
    /// The cell that was filled or emptied.
    pub cell: u16,
    /// What became of each move.
    pub moves: Vec<MoveOutcome>,
}

/// Gives a spare cell its share of the load: the given one, or the first.
///
/// # Errors
/// If there is none, or instruments cannot be moved.
pub fn grow(network: &Network, cell: Option<u16>) -> Result<Resized, Failure> {
    let (status, loads) = observe(network)?;
    let cell = match cell {
        Some(cell) => check(cell, &status, &loads, false)?,
        None => {
            let is_spare =
                |it: &&CellStatus| !loads.contains_key(&it.cell) && status.takes_instruments(it);
            let spare = status.cells.iter().find(is_spare).map(|it| it.cell);
            check(spare.ok_or(ResizeError::NoSpare(status.cells.len()))?, &status, &loads, false)?
        }
    };
    let moves = plan_growth(&loads, cell);
    Ok(Resized { cell, moves: admin::move_all(network, &moves, MOVE_LIMIT)? })
}

/// Takes all instruments from a cell: from the given one, or from the last that has any.
///
/// # Errors
/// If it has none or is the only one, or instruments cannot be moved.
pub fn shrink(network: &Network, cell: Option<u16>) -> Result<Resized, Failure> {
    let (status, loads) = observe(network)?;
    let last = loads.keys().next_back().copied().unwrap_or_default();
    let cell = check(cell.unwrap_or(last), &status, &loads, true)?;
    take_all(network, cell, &status, &loads)
}

/// Takes all instruments from a cell, if it has any; where no other cell has some, spare ones get
/// them.
///
/// # Errors
/// If no other cell can take them, or they cannot be moved.
pub fn empty(network: &Network, cell: u16) -> Result<Resized, Failure> {
    let (status, mut loads) = observe(network)?;
    match check(cell, &status, &loads, true) {
        Err(ResizeError::Spare(cell)) => return Ok(Resized { cell, moves: vec![] }),
        checked => checked?,
    };
    if loads.len() == 1 {
        loads.extend(
            status.cells.iter().filter(|it| it.cell != cell).map(|it| (it.cell, Loads::new())),
        );
    }
    take_all(network, cell, &status, &loads)
}

/// Moves all instruments of a cell to others that have some.
fn take_all(
    network: &Network,
    cell: u16,
    status: &NetworkStatus,
    loads: &BTreeMap<u16, Loads>,
) -> Result<Resized, Failure> {
    let is_up = |cell: &u16| status.cell(*cell).is_some_and(|it| status.takes_instruments(it));
    let others: BTreeMap<u16, Loads> = loads
        .iter()
        .filter(|(it, _)| **it != cell && is_up(it))
        .map(|(c, l)| (*c, l.clone()))
        .collect();
    if others.is_empty() {
        return Err(ResizeError::Last(cell).into());
    }
    let moves = plan_emptying(&loads[&cell], &others);
    Ok(Resized { cell, moves: admin::move_all(network, &moves, MOVE_LIMIT)? })
}

/// Whether a cell can be filled or emptied.
fn check(
    cell: u16,
    status: &NetworkStatus,
    loads: &BTreeMap<u16, Loads>,
    is_to_have_instruments: bool,
) -> Result<u16, ResizeError> {
    let cells = status.cells.len();
    let Some(known) = status.cell(cell) else {
        return Err(ResizeError::NoSuchCell { cell, cells });
    };
    match (loads.contains_key(&cell), is_to_have_instruments) {
        (true, false) => Err(ResizeError::NotSpare(cell)),
        (false, true) => Err(ResizeError::Spare(cell)),
        _ if known.leader.is_none() => Err(ResizeError::NotUp(cell)),
        _ => Ok(cell),
    }
}

/// The state of a network, and the instruments of each cell that has any with their requests while
/// they were counted.
fn observe(network: &Network) -> Result<(NetworkStatus, BTreeMap<u16, Loads>), Failure> {
    let before = counts(&admin::work(network, ANSWER_LIMIT)?);
    std::thread::sleep(COUNTED);
    let (status, after) =
        (admin::status(network, ANSWER_LIMIT)?, counts(&admin::work(network, ANSWER_LIMIT)?));
    let mut loads = BTreeMap::<u16, Loads>::new();
    for (instrument, (cell, executed)) in after {
        let counted_from = before.get(&instrument).map_or(0, |(_, executed)| *executed);
        let requests = executed.saturating_sub(counted_from);
        loads.entry(cell).or_default().insert(instrument, requests);
    }
    // Those that have moved and were never traded.
    for moved in &status.exceptions {
        let is_known = loads.values().any(|of_cell| of_cell.contains_key(&moved.instrument));
        if !is_known {
            loads.entry(moved.cell).or_default().insert(moved.instrument, 0);
        }
    }
    Ok((status, loads))
}

fn counts(work: &[(u16, Work)]) -> BTreeMap<InstrumentId, (u16, u64)> {
    let mut counts = BTreeMap::new();
    for one in work.iter().flat_map(|(_, work)| &work.instruments) {
        let known = counts.entry(one.instrument).or_insert((one.cell, one.executed));
        if one.executed > known.1 {
            *known = (one.cell, one.executed);
        }
    }
    counts
}

fn total(loads: &Loads) -> u64 {
    loads.values().sum()
}

/// Moves that give a new cell its share: from the most loaded cell the largest instrument that
/// still fits, again and again.
fn plan_growth(loads: &BTreeMap<u16, Loads>, cell: u16) -> Vec<(InstrumentId, u16)> {
    let mut left: BTreeMap<u16, Loads> = loads.clone();
    let all: u64 = left.values().map(total).sum();
    let share = all / (left.len() as u64 + 1);
    let (mut moves, mut given) = (vec![], 0);
    while given < share {
        let Some((_, hottest)) = left.iter_mut().max_by_key(|(_, of_cell)| total(of_cell)) else {
            break;
        };
        let fits = |(_, load): &(&InstrumentId, &u64)| **load > 0 && given + **load <= share;
        let Some((instrument, load)) = hottest.iter().filter(fits).max_by_key(|(_, load)| **load)
        else {
            break;
        };
        let (instrument, load) = (*instrument, *load);
        hottest.remove(&instrument);
        given += load;
        moves.push((instrument, cell));
    }
    // Without load, or with one instrument that has all of it, the number of instruments counts.
    if moves.is_empty() {
        let largest = left.values().max_by_key(|of_cell| of_cell.len());
        let instruments = largest.into_iter().flat_map(|of_cell| of_cell.keys());
        let half = largest.map_or(0, |of_cell| of_cell.len() / 2);
        moves.extend(instruments.take(half).map(|instrument| (*instrument, cell)));
    }
    moves
}

/// Moves of all instruments of a cell to others, the largest first, each to the least loaded one.
fn plan_emptying(own: &Loads, others: &BTreeMap<u16, Loads>) -> Vec<(InstrumentId, u16)> {
    let mut totals: BTreeMap<u16, (u64, usize)> =
        others.iter().map(|(cell, loads)| (*cell, (total(loads), loads.len()))).collect();
    let mut instruments: Vec<(InstrumentId, u64)> =
        own.iter().map(|(i, load)| (*i, *load)).collect();
    instruments.sort_by_key(|(instrument, load)| (std::cmp::Reverse(*load), *instrument));
    let mut moves = vec![];
    for (instrument, load) in instruments {
        let Some((cell, known)) = totals.iter_mut().min_by_key(|(_, known)| **known) else { break };
        *known = (known.0 + load, known.1 + 1);
        moves.push((instrument, *cell));
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(cells: &[(u16, &[(InstrumentId, u64)])]) -> BTreeMap<u16, Loads> {
        cells.iter().map(|(cell, of)| (*cell, of.iter().copied().collect())).collect()
    }

    #[test]
    fn a_new_cell_gets_its_share_from_the_most_loaded_ones() {
        let before = loads(&[(0, &[(1, 50), (2, 30), (3, 20)]), (1, &[(4, 60), (5, 20)])]);
        let moves = plan_growth(&before, 2);
        assert_eq!(moves, [(1, 2)], "50 of 180 is the largest that fits a share of 60");
        let even = loads(&[(0, &[(1, 10), (2, 10), (3, 10), (4, 10)])]);
        assert_eq!(plan_growth(&even, 1).len(), 2);
        let idle = loads(&[(0, &[(1, 0), (2, 0), (3, 0)])]);
        assert_eq!(plan_growth(&idle, 1), [(1, 1)]);
    }

    proptest! {
        #[test]
        fn growth_and_emptying_move_each_instrument_once(
            own in prop::collection::btree_map(0..100u32, 0..1000u64, 0..40),
            other in prop::collection::btree_map(100..200u32, 0..1000u64, 0..40),
            third in prop::collection::btree_map(200..300u32, 0..1000u64, 0..40),
        ) {
            let others = BTreeMap::from([(1, other), (2, third)]);
            let moves = plan_emptying(&own, &others);
            prop_assert_eq!(moves.len(), own.len());
            let largest = own.values().chain(others.values().flat_map(|o| o.values())).max();
            let mut totals = others.iter().map(|(c, l)| (*c, total(l))).collect::<BTreeMap<_, _>>();
            for (instrument, cell) in &moves {
                *totals.get_mut(cell).unwrap() += own[instrument];
            }
            let before = others.values().map(total).max().unwrap();
            let fair = (totals.values().sum::<u64>() / 2).max(before);
            prop_assert!(totals.values().all(|sum| *sum <= fair + largest.copied().unwrap_or(0)));
            let mut all = others.clone();
            all.insert(0, own);
            let grown = plan_growth(&all, 3);
            let mut unique: Vec<_> = grown.iter().map(|(instrument, _)| *instrument).collect();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), grown.len());
            prop_assert!(grown.iter().all(|(_, cell)| *cell == 3));
        }
    }
}
