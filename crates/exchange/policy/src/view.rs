//! The network as it will be when all moves that are under way have arrived.

use std::collections::BTreeMap;

use crate::limits::CELL_INSTRUMENTS_MAX;
use crate::load::RequestCost;
use crate::orders::Orders;
use crate::reports::{
    CellId, CellRole, InstrumentId, InstrumentReport, OriginRate, Reports, SiteId,
};
use crate::settings::Settings;

/// A cell.
#[derive(Debug, Clone)]
pub(crate) struct CellView {
    pub(crate) id: CellId,
    pub(crate) site: SiteId,
    pub(crate) is_active: bool,
    pub(crate) is_up: bool,
    /// Whether the resizer empties it.
    pub(crate) is_retiring: bool,
    /// Requests that arrived, as reported.
    pub(crate) reported_per_s: f64,
    pub(crate) cpu_fraction: Option<f64>,
    pub(crate) es10_us: Option<f64>,
    /// Requests for the instruments that it has or will have.
    pub(crate) requests_per_s: f64,
    /// Load of these instruments.
    pub(crate) load_per_s: f64,
    /// Indexes of these instruments.
    pub(crate) instruments: Vec<usize>,
    /// Instruments that it owns at the moment.
    pub(crate) owned: usize,
}

impl CellView {
    /// Whether it has its full part in the network: not a spare, not down, not being emptied.
    pub(crate) fn is_in_service(&self) -> bool {
        self.is_active && self.is_up && !self.is_retiring
    }

    /// Whether an instrument may be moved to it.
    pub(crate) fn can_receive(&self) -> bool {
        self.is_in_service() && self.instruments.len() < CELL_INSTRUMENTS_MAX
    }
}

/// An instrument.
#[derive(Debug, Clone)]
pub(crate) struct InstrumentView<'a> {
    pub(crate) id: InstrumentId,
    /// Index of the cell that it is or will be in.
    pub(crate) cell: usize,
    /// Whether it is on its way, or was ordered to move.
    pub(crate) is_moving: bool,
    /// Whether it moved a short time ago.
    pub(crate) is_cooling: bool,
    pub(crate) requests_per_s: f64,
    pub(crate) load_per_s: f64,
    pub(crate) origins: &'a [OriginRate],
}

impl InstrumentView<'_> {
    /// Whether it may be moved, other than from a cell that is emptied.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_moving && !self.is_cooling
    }
}

/// Cells and instruments by rising number.
#[derive(Debug, Clone)]
pub(crate) struct NetworkView<'a> {
    pub(crate) cells: Vec<CellView>,
    pub(crate) instruments: Vec<InstrumentView<'a>>,
    latencies_us: BTreeMap<(SiteId, SiteId), f64>,
    moves_left: usize,
}

impl<'a> NetworkView<'a> {
    /// The view of checked reports.
    pub(crate) fn new(reports: &'a Reports, orders: &Orders, settings: &Settings) -> Self {
        let cells = cells_of(reports);
        let latencies_us = reports.latencies.iter().map(|l| ((l.from, l.to), l.latency_us));
        let mut view = NetworkView {
            cells,
            instruments: Vec::with_capacity(reports.instruments.len()),
            latencies_us: latencies_us.collect(),
            moves_left: settings.moves.in_transit_max,
        };
        let cost = RequestCost::of(&reports.instruments, settings.balancer.cpu_weight);
        let mut sorted: Vec<&InstrumentReport> = reports.instruments.iter().collect();
        sorted.sort_unstable_by_key(|report| report.instrument);
        for report in sorted {
            view.add_instrument(report, cost.load_per_s(report), orders, settings);
        }
        view
    }

    fn add_instrument(
        &mut self,
        report: &'a InstrumentReport,
        load_per_s: f64,
        orders: &Orders,
        settings: &Settings,
    ) {
        let Some(owner) = self.cell_index(report.cell) else { return };
        self.cells[owner].owned += 1;
        let to = orders.destination(report, &settings.moves).and_then(|to| self.cell_index(to));
        let cell = to.unwrap_or(owner);
        let index = self.instruments.len();
        self.instruments.push(InstrumentView {
            id: report.instrument,
            cell,
            is_moving: to.is_some(),
            is_cooling: orders.is_cooling(report.instrument, &settings.moves),
            requests_per_s: report.requests_per_s,
            load_per_s,
            origins: &report.origins,
        });
        if to.is_some() {
            self.moves_left = self.moves_left.saturating_sub(1);
        }
        let cell = &mut self.cells[cell];
        cell.instruments.push(index);
        cell.requests_per_s += report.requests_per_s;
        cell.load_per_s += load_per_s;
    }

    /// Index of a cell.
    pub(crate) fn cell_index(&self, id: CellId) -> Option<usize> {
        self.cells.binary_search_by_key(&id, |cell| cell.id).ok()
    }

    /// How many more instruments may be moved.
    pub(crate) fn moves_left(&self) -> usize {
        self.moves_left
    }

    /// Orders a move, by indexes of instrument and cell.
    pub(crate) fn order_move(&mut self, instrument: usize, to: usize) {
        let moved = &mut self.instruments[instrument];
        let from = std::mem::replace(&mut moved.cell, to);
        moved.is_moving = true;
        let (requests_per_s, load_per_s) = (moved.requests_per_s, moved.load_per_s);
        self.moves_left = self.moves_left.saturating_sub(1);
        let source = &mut self.cells[from];
        source.instruments.retain(|index| *index != instrument);
        source.requests_per_s -= requests_per_s;
        source.load_per_s -= load_per_s;
        let target = &mut self.cells[to];
        target.instruments.push(instrument);
        target.requests_per_s += requests_per_s;
        target.load_per_s += load_per_s;
    }

    /// The latency from one site to another in µs, if it is known.
    pub(crate) fn latency_us(&self, from: SiteId, to: SiteId) -> Option<f64> {
        let reported = self.latencies_us.get(&(from, to));
        let either = reported.or_else(|| self.latencies_us.get(&(to, from))).copied();
        either.or((from == to).then_some(0.0))
    }

    /// The cell with the fewest requests among those that can receive an instrument, are accepted,
    /// and then have at most `upper_per_s` requests.
    pub(crate) fn coldest(
        &self,
        instrument: usize,
        upper_per_s: f64,
        accept: impl Fn(&CellView) -> bool,
    ) -> Option<usize> {
        let added_per_s = self.instruments[instrument].requests_per_s;
        let has_room = |cell: &CellView| {
            cell.can_receive() && cell.requests_per_s + added_per_s <= upper_per_s && accept(cell)
        };
        let cells = (0..self.cells.len()).filter(|index| has_room(&self.cells[*index]));
        cells.min_by(|a, b| self.cells[*a].requests_per_s.total_cmp(&self.cells[*b].requests_per_s))
    }
}

/// The reported cells, without their instruments.
fn cells_of(reports: &Reports) -> Vec<CellView> {
    let mut cells: Vec<CellView> = reports
        .cells
        .iter()
        .map(|report| CellView {
            id: report.cell,
            site: report.site,
            is_active: report.role == CellRole::Active,
            is_up: report.is_up,
            is_retiring: false,
            reported_per_s: report.requests_per_s,
            cpu_fraction: report.cpu_fraction,
            es10_us: report.es10_us,
            requests_per_s: 0.0,
            load_per_s: 0.0,
            instruments: vec![],
            owned: 0,
        })
        .collect();
    cells.sort_unstable_by_key(|cell| cell.id);
    cells
}
