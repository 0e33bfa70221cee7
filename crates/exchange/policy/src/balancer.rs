//! Moves instruments from cells with more load than their share to others.
//!
//! A cell is hot while its load is above the high watermark, a multiple of the mean of all cells in
//! service. The ideal load to move to a cold cell is half of the difference, or what that cell has
//! room for below the watermark. Accepted is the instrument closest to it that is at most half of
//! the hot cell's load and nine tenths of the difference. In an emergency it is else the smallest
//! instrument, if that is smaller than three quarters of the hot cell's load and than the
//! difference. If no single move helps, several together may ([`crate::repack`]).
//!
//! It is an emergency if the coldest cell has less than two thirds of the hot one's load, as one
//! that was just activated. The balancer does not wait then until the cell has been hot for a time.
//!
//! Every move lowers the sum of the squares of all loads, so with constant loads there is a last
//! one. Nothing moves to another site if the placement would move it back.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::decision::{Action, Decision, DecisionReason};
use crate::placement::Placement;
use crate::repack::{Group, Repacked};
use crate::reports::CellId;
use crate::settings::{BalancerSettings, ms};
use crate::view::NetworkView;

/// Largest instrument that is moved, as a share of the hot cell's load.
const HOT_SHARE_MAX: f64 = 0.5;

/// Largest instrument that is moved, as a share of the difference between hot and cold cell.
const DIFFERENCE_SHARE_MAX: f64 = 0.9;

/// In an emergency the smallest instrument is moved if it is below this share of the hot cell's
/// load.
const EMERGENCY_SHARE_MAX: f64 = 0.75;

/// It is an emergency if the coldest cell has less than this share of the hot cell's load.
const EMERGENCY_COLD_SHARE: f64 = 2.0 / 3.0;

/// What the balancer remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Balancer {
    /// For how long each hot cell has been hot.
    hot_for: BTreeMap<CellId, Duration>,
}

/// The cells to be balanced, by index, and when they are hot.
struct Pool {
    cells: Vec<usize>,
    mean_per_s: f64,
    high_per_s: f64,
}

/// A move of an instrument between two cells, all by index.
struct SingleMove {
    instrument: usize,
    to: usize,
}

impl Balancer {
    /// Decides.
    pub(crate) fn step(
        &mut self,
        view: &mut NetworkView<'_>,
        settings: &BalancerSettings,
        placement: &Placement<'_>,
        dt: Duration,
    ) -> Vec<Decision> {
        let Some(pool) = Pool::new(view, settings) else {
            self.hot_for.clear();
            return vec![];
        };
        let mut hot_for = BTreeMap::new();
        let mut hot: Vec<usize> = vec![];
        for index in pool.cells.iter().filter(|index| pool.is_hot(view, **index)) {
            let id = view.cells[*index].id;
            let before = self.hot_for.get(&id).copied().unwrap_or_default();
            hot_for.insert(id, before.saturating_add(dt));
            hot.push(*index);
        }
        self.hot_for = hot_for;
        hot.sort_by(|a, b| view.cells[*b].load_per_s.total_cmp(&view.cells[*a].load_per_s));
        let mut decisions = vec![];
        for index in hot {
            let waited = self.hot_for.get(&view.cells[index].id).copied().unwrap_or_default();
            let has_waited = waited >= ms(settings.delay_ms);
            let moves_max = settings.moves_per_cell_max;
            decisions.extend(cool(view, &pool, (index, has_waited), moves_max, placement));
        }
        decisions
    }
}

impl Pool {
    fn new(view: &NetworkView<'_>, settings: &BalancerSettings) -> Option<Pool> {
        let cells: Vec<usize> =
            (0..view.cells.len()).filter(|index| view.cells[*index].is_in_service()).collect();
        if cells.len() < 2 {
            return None;
        }
        let total_per_s: f64 = cells.iter().map(|index| view.cells[*index].load_per_s).sum();
        let mean_per_s = total_per_s / cells.len() as f64;
        let by_ratio_per_s = mean_per_s * settings.high_ratio;
        let high_per_s = by_ratio_per_s.max(mean_per_s + settings.excess_min_per_s);
        Some(Pool { cells, mean_per_s, high_per_s })
    }

    fn is_hot(&self, view: &NetworkView<'_>, cell: usize) -> bool {
        view.cells[cell].load_per_s > self.high_per_s
    }

    /// The cells with less load than a hot one, the coldest first.
    fn colder(&self, view: &NetworkView<'_>, hot: usize) -> Vec<usize> {
        let load = |cell: usize| view.cells[cell].load_per_s;
        let mut cells = self.cells.clone();
        cells.retain(|cell| *cell != hot && load(*cell) < load(hot));
        cells.sort_by(|a, b| load(*a).total_cmp(&load(*b)));
        cells
    }
}

/// Moves instruments away from a hot cell, in at most `moves_max` moves, until it is no longer hot.
fn cool(
    view: &mut NetworkView<'_>,
    pool: &Pool,
    (hot, has_waited): (usize, bool),
    moves_max: usize,
    placement: &Placement<'_>,
) -> Vec<Decision> {
    let mut decisions = vec![];
    while pool.is_hot(view, hot) && decisions.len() < moves_max && view.moves_left() > 0 {
        let colder = pool.colder(view, hot);
        let Some(coldest) = colder.first() else { break };
        let hot_per_s = view.cells[hot].load_per_s;
        let is_emergency = view.cells[*coldest].load_per_s < EMERGENCY_COLD_SHARE * hot_per_s;
        if !has_waited && !is_emergency {
            break;
        }
        let single = colder.iter().find_map(|cold| {
            single_move(view, (hot, *cold), pool.high_per_s, is_emergency, placement)
        });
        if let Some(single) = single {
            decisions.push(order_single(view, hot, &single, pool.high_per_s, is_emergency));
            continue;
        }
        let budget = (moves_max - decisions.len()).min(view.moves_left());
        let Some(repacked) = exchange(view, pool, hot, &colder, budget, placement) else { break };
        decisions.extend(order_exchange(view, pool, hot, &repacked));
    }
    decisions
}

/// The best instrument to move from a hot cell to a cold one.
fn single_move(
    view: &NetworkView<'_>,
    (hot, cold): (usize, usize),
    high_per_s: f64,
    is_emergency: bool,
    placement: &Placement<'_>,
) -> Option<SingleMove> {
    let (source, target) = (&view.cells[hot], &view.cells[cold]);
    let room_per_s = high_per_s - target.load_per_s;
    if room_per_s <= 0.0 || !target.can_receive() {
        return None;
    }
    let difference_per_s = source.load_per_s - target.load_per_s;
    let ideal_per_s = (difference_per_s / 2.0).min(room_per_s);
    let max_per_s =
        (source.load_per_s * HOT_SHARE_MAX).min(difference_per_s * DIFFERENCE_SHARE_MAX);
    let load = |index: &usize| view.instruments[*index].load_per_s;
    let free = |index: &usize| {
        view.instruments[*index].is_free()
            && load(index) > 0.0
            && !placement.would_return(view, *index, source.site, target.site)
    };
    let by_number = |a: &usize, b: &usize| view.instruments[*a].id.cmp(&view.instruments[*b].id);
    let distance = |index: &usize| (load(index) - ideal_per_s).abs();
    let fitting = source.instruments.iter().filter(|index| load(index) <= max_per_s && free(index));
    let best =
        fitting.min_by(|a, b| distance(a).total_cmp(&distance(b)).then_with(|| by_number(a, b)));
    let smallest = || {
        let small = |index: &&usize| {
            load(index) < (source.load_per_s * EMERGENCY_SHARE_MAX).min(difference_per_s)
        };
        let free = source.instruments.iter().filter(|index| free(index));
        free.min_by(|a, b| load(a).total_cmp(&load(b)).then_with(|| by_number(a, b))).filter(small)
    };
    let chosen = best.or_else(|| is_emergency.then(smallest).flatten());
    chosen.map(|instrument| SingleMove { instrument: *instrument, to: cold })
}

fn order_single(
    view: &mut NetworkView<'_>,
    hot: usize,
    single: &SingleMove,
    high_per_s: f64,
    is_emergency: bool,
) -> Decision {
    let (source, target) = (&view.cells[hot], &view.cells[single.to]);
    let instrument = &view.instruments[single.instrument];
    let action = Action::Move { instrument: instrument.id, to: target.id };
    let reason = DecisionReason::CellHot {
        hot: source.id,
        hot_per_s: source.load_per_s,
        high_per_s,
        cold: target.id,
        cold_per_s: target.load_per_s,
        load_per_s: instrument.load_per_s,
        is_emergency,
    };
    view.order_move(single.instrument, single.to);
    Decision { action, reason }
}

/// The exchange of instruments between a hot cell and the fewest of the coldest ones after which no
/// cell of them is hot; if there is none, the one that leaves the lowest load.
fn exchange(
    view: &NetworkView<'_>,
    pool: &Pool,
    hot: usize,
    colder: &[usize],
    budget: usize,
    placement: &Placement<'_>,
) -> Option<Repacked> {
    let mut best: Option<Repacked> = None;
    for count in 1..=colder.len() {
        let mut cells = vec![hot];
        cells.extend(&colder[..count]);
        let Some(group) = Group::new(view, cells) else { break };
        let Some(repacked) = group.repack(view, pool.mean_per_s, budget, placement) else {
            continue;
        };
        if repacked.max_per_s <= pool.high_per_s {
            return Some(repacked);
        }
        if best.as_ref().is_none_or(|best| repacked.max_per_s < best.max_per_s) {
            best = Some(repacked);
        }
    }
    best
}

fn order_exchange(
    view: &mut NetworkView<'_>,
    pool: &Pool,
    hot: usize,
    repacked: &Repacked,
) -> Vec<Decision> {
    let reason = DecisionReason::Exchange {
        hot: view.cells[hot].id,
        hot_per_s: view.cells[hot].load_per_s,
        high_per_s: pool.high_per_s,
        cells: repacked.cells,
        moves: repacked.moves.len(),
        after_per_s: repacked.max_per_s,
    };
    let mut decisions = vec![];
    for (instrument, to) in &repacked.moves {
        view.order_move(*instrument, *to);
        let action =
            Action::Move { instrument: view.instruments[*instrument].id, to: view.cells[*to].id };
        decisions.push(Decision { action, reason });
    }
    decisions
}
