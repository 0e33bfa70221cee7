//! Distributes the instruments of a few cells anew, where no single move helps.
//!
//! The largest instrument first, each into the cell with the least load so far: the rule of longest
//! processing time (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969), whose largest
//! load is at most a third above the best possible. Instruments that may not move now stay, and
//! count from the beginning.

use crate::limits::CELL_INSTRUMENTS_MAX;
use crate::placement::Placement;
use crate::view::NetworkView;

/// Instruments of a group that are considered at most. Where there are more, they are small, and
/// single moves help.
const GROUP_INSTRUMENTS_MAX: usize = 256;

/// By how much, as a share of the mean load of all cells, the largest load must fall.
const GAIN_MIN: f64 = 0.02;

/// Loads that differ by less than this share of the mean are equal.
const EQUAL: f64 = 1e-9;

/// Cells whose instruments are distributed anew.
pub(crate) struct Group {
    /// Their indexes; the hot one is the first.
    cells: Vec<usize>,
    /// Instruments that may move, by index, the largest first.
    free: Vec<usize>,
}

/// A better distribution.
pub(crate) struct Repacked {
    /// Instruments and their new cells, by index.
    pub(crate) moves: Vec<(usize, usize)>,
    /// How many cells take part.
    pub(crate) cells: usize,
    /// The largest load of these cells afterwards.
    pub(crate) max_per_s: f64,
}

impl Group {
    /// The group of some cells, of which the first is the hottest. None if they have too many
    /// instruments.
    pub(crate) fn new(view: &NetworkView<'_>, cells: Vec<usize>) -> Option<Group> {
        let count: usize = cells.iter().map(|cell| view.cells[*cell].instruments.len()).sum();
        if count > GROUP_INSTRUMENTS_MAX {
            return None;
        }
        let is_free = |index: &usize| {
            let instrument = &view.instruments[*index];
            instrument.is_free() && instrument.load_per_s > 0.0
        };
        let all = cells.iter().flat_map(|cell| view.cells[*cell].instruments.iter().copied());
        let mut free: Vec<usize> = all.filter(is_free).collect();
        free.sort_by(|a, b| {
            let (a, b) = (&view.instruments[*a], &view.instruments[*b]);
            b.load_per_s.total_cmp(&a.load_per_s).then(a.id.cmp(&b.id))
        });
        Some(Group { cells, free })
    }

    /// A distribution with a clearly lower largest load, in at most `budget` moves.
    pub(crate) fn repack(
        &self,
        view: &NetworkView<'_>,
        mean_per_s: f64,
        budget: usize,
        placement: &Placement<'_>,
    ) -> Option<Repacked> {
        let mut loads_per_s: Vec<f64> =
            self.cells.iter().map(|cell| view.cells[*cell].load_per_s).collect();
        let mut counts: Vec<usize> =
            self.cells.iter().map(|cell| view.cells[*cell].instruments.len()).collect();
        for index in &self.free {
            let own = self.position_of(view, *index)?;
            loads_per_s[own] -= view.instruments[*index].load_per_s;
            counts[own] -= 1;
        }
        let before_per_s = view.cells[self.cells[0]].load_per_s;
        let mut moves = vec![];
        for index in &self.free {
            let own = self.position_of(view, *index)?;
            let to = self.choose(view, *index, own, (&loads_per_s, &counts), mean_per_s, placement);
            loads_per_s[to] += view.instruments[*index].load_per_s;
            counts[to] += 1;
            if to != own {
                moves.push((*index, self.cells[to]));
            }
        }
        let max_per_s = loads_per_s.iter().copied().fold(0.0, f64::max);
        let is_better = before_per_s - max_per_s >= GAIN_MIN * mean_per_s && max_per_s > 0.0;
        (is_better && moves.len() <= budget).then_some(Repacked {
            moves,
            cells: self.cells.len(),
            max_per_s,
        })
    }

    /// Position in the group of the cell that an instrument is in.
    fn position_of(&self, view: &NetworkView<'_>, instrument: usize) -> Option<usize> {
        let cell = view.instruments[instrument].cell;
        self.cells.iter().position(|own| *own == cell)
    }

    /// Position of the cell that an instrument gets into: the one with the least load that it may
    /// be in, and its own one among equals.
    fn choose(
        &self,
        view: &NetworkView<'_>,
        instrument: usize,
        own: usize,
        (loads_per_s, counts): (&[f64], &[usize]),
        mean_per_s: f64,
        placement: &Placement<'_>,
    ) -> usize {
        let site = |position: usize| view.cells[self.cells[position]].site;
        let may_be_in = |position: usize| {
            position == own
                || (counts[position] < CELL_INSTRUMENTS_MAX
                    && !placement.would_return(view, instrument, site(own), site(position)))
        };
        let mut best = own;
        for position in (0..self.cells.len()).filter(|position| may_be_in(*position)) {
            if loads_per_s[position] < loads_per_s[best] - EQUAL * mean_per_s {
                best = position;
            }
        }
        best
    }
}
