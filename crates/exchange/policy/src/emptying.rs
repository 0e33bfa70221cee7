//! Emptying cells that are to be retired.
//!
//! A cell is chosen only if all its instruments fit into the other cells without exceeding their
//! upper bound. Its instruments then move to the coldest of them, and when the last one has
//! arrived, the cell is retired.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::decision::{Action, Decision, DecisionReason};
use crate::limits::CELL_INSTRUMENTS_MAX;
use crate::reports::CellId;
use crate::settings::{ResizerSettings, ms};
use crate::view::NetworkView;

/// A cell that is being emptied.
#[derive(Debug, Clone, PartialEq)]
struct Retirement {
    /// Why it is to be retired.
    reason: DecisionReason,
    /// How long ago its retirement was ordered.
    ordered: Option<Duration>,
}

/// All cells that are being emptied.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Emptying {
    cells: BTreeMap<CellId, Retirement>,
}

impl Emptying {
    /// Lets time pass, and drops cells that are spares now, or no longer exist.
    pub(crate) fn pass_time(
        &mut self,
        view: &NetworkView<'_>,
        settings: &ResizerSettings,
        dt: Duration,
    ) {
        let timeout = ms(settings.order_timeout_ms);
        self.cells.retain(|id, _| view.cell_index(*id).is_some_and(|i| view.cells[i].is_active));
        for retirement in self.cells.values_mut() {
            let age = retirement.ordered.map(|age| age.saturating_add(dt));
            retirement.ordered = age.filter(|age| *age < timeout);
        }
    }

    /// Marks the cells in the view.
    pub(crate) fn mark(&self, view: &mut NetworkView<'_>) {
        for cell in &mut view.cells {
            cell.is_retiring = self.cells.contains_key(&cell.id);
        }
    }

    /// Begins to empty cells, given by their indexes.
    pub(crate) fn begin(
        &mut self,
        view: &mut NetworkView<'_>,
        cells: &[usize],
        reason: DecisionReason,
    ) -> Vec<Decision> {
        let mut decisions = vec![];
        for index in cells {
            let cell = &mut view.cells[*index];
            cell.is_retiring = true;
            self.cells.insert(cell.id, Retirement { reason, ordered: None });
            decisions.push(Decision { action: Action::Empty { cell: cell.id }, reason });
        }
        decisions
    }

    /// Keeps up to `count` of the cells active, those with most requests first. A cell whose
    /// retirement is ordered is a spare as good as any, once it is one.
    pub(crate) fn cancel(&mut self, view: &mut NetworkView<'_>, count: usize) -> Vec<CellId> {
        let mut kept: Vec<usize> = (0..view.cells.len())
            .filter(|index| {
                let cell = &view.cells[*index];
                let retirement = self.cells.get(&cell.id);
                cell.is_up && retirement.is_some_and(|retirement| retirement.ordered.is_none())
            })
            .collect();
        kept.sort_by(|a, b| {
            view.cells[*b].requests_per_s.total_cmp(&view.cells[*a].requests_per_s)
        });
        kept.truncate(count);
        let keep = |index: &usize| {
            view.cells[*index].is_retiring = false;
            view.cells[*index].id
        };
        let ids: Vec<CellId> = kept.iter().map(keep).collect();
        self.cells.retain(|id, _| !ids.contains(id));
        ids
    }

    /// Moves instruments away from these cells, and retires those that are empty.
    pub(crate) fn step(
        &mut self,
        view: &mut NetworkView<'_>,
        settings: &ResizerSettings,
    ) -> Vec<Decision> {
        let mut decisions = vec![];
        for (id, retirement) in &mut self.cells {
            let Some(index) = view.cell_index(*id) else { continue };
            if !view.cells[index].is_up || retirement.ordered.is_some() {
                continue;
            }
            if view.cells[index].instruments.is_empty() && view.cells[index].owned == 0 {
                retirement.ordered = Some(Duration::ZERO);
                let action = Action::Retire { cell: *id };
                decisions.push(Decision { action, reason: retirement.reason });
            } else {
                decisions.extend(empty(view, index, settings.upper_per_s));
            }
        }
        decisions
    }
}

/// Moves the instruments of a cell to the coldest others, the largest first: those of the same site
/// if they have room.
fn empty(view: &mut NetworkView<'_>, from: usize, upper_per_s: f64) -> Vec<Decision> {
    let mut movable = view.cells[from].instruments.clone();
    movable.retain(|index| !view.instruments[*index].is_moving);
    sort_by_requests(view, &mut movable);
    let (from_id, site) = (view.cells[from].id, view.cells[from].site);
    let mut decisions = vec![];
    for instrument in movable {
        if view.moves_left() == 0 {
            break;
        }
        let nearest = view.coldest(instrument, upper_per_s, |cell| cell.site == site);
        let Some(to) = nearest.or_else(|| view.coldest(instrument, upper_per_s, |_| true)) else {
            continue;
        };
        view.order_move(instrument, to);
        let target = &view.cells[to];
        let action = Action::Move { instrument: view.instruments[instrument].id, to: target.id };
        let reason = DecisionReason::CellEmptied {
            from: from_id,
            to: target.id,
            to_per_s: target.requests_per_s,
            upper_per_s,
        };
        decisions.push(Decision { action, reason });
    }
    decisions
}

/// Up to `count` cells to retire, by index: the coldest, as many as leave room for their
/// instruments in the others.
pub(crate) fn choose_cells(view: &NetworkView<'_>, count: usize, upper_per_s: f64) -> Vec<usize> {
    let mut candidates: Vec<usize> =
        (0..view.cells.len()).filter(|index| view.cells[*index].is_in_service()).collect();
    candidates.sort_by(|a, b| {
        let by_requests = view.cells[*a].requests_per_s.total_cmp(&view.cells[*b].requests_per_s);
        // Among equals those with high numbers go.
        by_requests.then(b.cmp(a))
    });
    for kept in candidates.len().saturating_sub(count).max(1)..candidates.len() {
        let (emptied, others) = candidates.split_at(candidates.len() - kept);
        if fit(view, emptied, others, upper_per_s) {
            return emptied.to_vec();
        }
    }
    vec![]
}

/// Whether the instruments of some cells fit into others: each into the coldest, the largest first.
fn fit(view: &NetworkView<'_>, emptied: &[usize], others: &[usize], upper_per_s: f64) -> bool {
    let mut moved: Vec<usize> =
        emptied.iter().flat_map(|index| view.cells[*index].instruments.clone()).collect();
    sort_by_requests(view, &mut moved);
    let room = |index: &usize| {
        let cell = &view.cells[*index];
        (cell.requests_per_s, cell.instruments.len())
    };
    let mut rooms: Vec<(f64, usize)> = others.iter().map(room).collect();
    moved.iter().all(|instrument| {
        let added_per_s = view.instruments[*instrument].requests_per_s;
        let has_place = |room: &&mut (f64, usize)| room.1 < CELL_INSTRUMENTS_MAX;
        let coldest = rooms.iter_mut().filter(has_place).min_by(|a, b| a.0.total_cmp(&b.0));
        coldest.is_some_and(|room| {
            *room = (room.0 + added_per_s, room.1 + 1);
            room.0 <= upper_per_s
        })
    })
}

/// The largest first; among equals the order of their numbers.
fn sort_by_requests(view: &NetworkView<'_>, instruments: &mut [usize]) {
    instruments.sort_by(|a, b| {
        let (a, b) = (&view.instruments[*a], &view.instruments[*b]);
        b.requests_per_s.total_cmp(&a.requests_per_s).then(a.id.cmp(&b.id))
    });
}
