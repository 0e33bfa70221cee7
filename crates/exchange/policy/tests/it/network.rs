//! A simulated network that executes decisions, and checks each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nm_policy::{
    Action, CellId, CellReport, CellRole, Decision, DecisionReason, InstrumentId, InstrumentReport,
    OriginRate, Policies, Reports, Settings, SiteId, SiteLatency,
};

/// Random numbers (SplitMix64), the same for the same seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn has(&mut self, probability: f64) -> bool {
        self.share() < probability
    }
}

#[derive(Debug, Clone)]
pub struct Cell {
    pub site: SiteId,
    pub is_active: bool,
    pub is_up: bool,
    /// Time until an ordered activation is done.
    pub activation: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
pub struct Instrument {
    pub cell: CellId,
    pub requests_per_s: f64,
    pub cpu_us_per_s: Option<f64>,
    pub origins: Vec<OriginRate>,
    pub transit: Option<Transit>,
}

/// A move that was ordered.
#[derive(Debug, Clone)]
pub struct Transit {
    pub to: CellId,
    /// Time until it begins, which reports do not show.
    pub waiting: Duration,
    /// Time that it takes then.
    pub moving: Duration,
}

/// How decisions are carried out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Probability that an ordered move does not happen.
    pub lost_move: f64,
    /// Probability that a cell cannot be activated or retired.
    pub lost_resize: f64,
    /// Longest time until a move begins.
    pub move_delay_ms: usize,
    /// Longest time that a move takes.
    pub move_ms: usize,
    /// Longest time that an activation takes.
    pub activation_ms: usize,
}

/// Cells as queues, of which utilisation and ES10 are reported.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pub capacity_per_s: f64,
    /// ES10 without load.
    pub idle_es10_us: f64,
}

pub struct Network {
    pub cells: Vec<Cell>,
    pub instruments: BTreeMap<InstrumentId, Instrument>,
    pub latencies: Vec<SiteLatency>,
    pub faults: Faults,
    pub queue: Option<Queue>,
    pub rng: Rng,
    pub now: Duration,
    /// When each instrument was last ordered to move, and from which cell.
    pub moved: BTreeMap<InstrumentId, (Duration, CellId)>,
    /// Times at which the resizer changed its direction, and its latest one: whether up.
    pub reversals: Vec<Duration>,
    pub direction: Option<bool>,
    pub moves: usize,
    pub resizes: usize,
    retiring: BTreeSet<CellId>,
}

impl Network {
    /// Cells of one site, the first ones active, and no instruments.
    pub fn new(active: usize, spare: usize) -> Network {
        let cell =
            |index| Cell { site: 0, is_active: index < active, is_up: true, activation: None };
        Network {
            cells: (0..active + spare).map(cell).collect(),
            instruments: BTreeMap::new(),
            latencies: vec![],
            faults: Faults::default(),
            queue: None,
            rng: Rng(1),
            now: Duration::ZERO,
            moved: BTreeMap::new(),
            reversals: vec![],
            direction: None,
            moves: 0,
            resizes: 0,
            retiring: BTreeSet::new(),
        }
    }

    /// Adds an instrument of the next number.
    pub fn add(&mut self, cell: CellId, requests_per_s: f64) -> InstrumentId {
        let id = self.instruments.len() as InstrumentId;
        self.instruments.insert(id, Instrument { cell, requests_per_s, ..Instrument::default() });
        id
    }

    pub fn active(&self) -> usize {
        self.cells.iter().filter(|cell| cell.is_active).count()
    }

    pub fn requests_per_s(&self, cell: CellId) -> f64 {
        let own = self.instruments.values().filter(|instrument| instrument.cell == cell);
        own.map(|instrument| instrument.requests_per_s).sum()
    }

    /// The largest load of an active cell, divided by the mean.
    pub fn imbalance(&self) -> f64 {
        let active = |cell: &CellId| self.cells[usize::from(*cell)].is_active;
        let cells = (0..self.cells.len() as CellId).filter(active);
        let loads: Vec<f64> = cells.map(|cell| self.requests_per_s(cell)).collect();
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        loads.iter().copied().fold(0.0, f64::max) / mean
    }

    /// The rates of each active cell's instruments.
    pub fn rates(&self) -> BTreeSet<Vec<u64>> {
        let mut rates: BTreeMap<CellId, Vec<u64>> = BTreeMap::new();
        for instrument in self.instruments.values() {
            rates.entry(instrument.cell).or_default().push(instrument.requests_per_s as u64);
        }
        for own in rates.values_mut() {
            own.sort_unstable();
        }
        rates.into_values().collect()
    }

    pub fn reports(&self) -> Reports {
        let mut requests_per_s = vec![0.0; self.cells.len()];
        let mut instruments = Vec::with_capacity(self.instruments.len());
        for (id, instrument) in &self.instruments {
            requests_per_s[usize::from(instrument.cell)] += instrument.requests_per_s;
            let is_seen = |transit: &&Transit| transit.waiting.is_zero();
            instruments.push(InstrumentReport {
                instrument: *id,
                cell: instrument.cell,
                moving_to: instrument.transit.as_ref().filter(is_seen).map(|transit| transit.to),
                requests_per_s: instrument.requests_per_s,
                cpu_us_per_s: instrument.cpu_us_per_s,
                origins: instrument.origins.clone(),
            });
        }
        let cell_report = |(index, cell): (usize, &Cell)| {
            let requests_per_s = if cell.is_up { requests_per_s[index] } else { 0.0 };
            let utilisation =
                self.queue.map(|queue| (requests_per_s / queue.capacity_per_s).min(1.0));
            let es10_us = |queue: Queue| {
                let share = requests_per_s / queue.capacity_per_s;
                (share > 0.0).then(|| queue.idle_es10_us / (1.0 - share.min(0.999)))
            };
            CellReport {
                cell: index as CellId,
                site: cell.site,
                role: if cell.is_active { CellRole::Active } else { CellRole::Spare },
                is_up: cell.is_up,
                requests_per_s,
                cpu_fraction: utilisation,
                es10_us: self.queue.and_then(es10_us),
            }
        };
        let cells = self.cells.iter().enumerate().map(cell_report).collect();
        Reports { cells, instruments, latencies: self.latencies.clone() }
    }

    /// Lets time pass, asks the policies, checks their decisions and carries them out.
    pub fn step(&mut self, policies: &mut Policies, dt: Duration) -> Vec<Decision> {
        self.pass(dt);
        let reports = self.reports();
        let decisions = policies.step(&reports, dt).unwrap();
        self.check_resizes(&decisions, policies.settings());
        let mut moved = BTreeSet::new();
        for decision in &decisions {
            if let Action::Move { instrument, to } = decision.action {
                assert!(moved.insert(instrument), "two moves of one instrument: {decisions:?}");
                self.order_move(instrument, to, decision, policies.settings());
            } else {
                self.order_resize(decision);
            }
        }
        let moving = self.instruments.values().filter(|i| i.transit.is_some()).count();
        assert!(moving <= policies.settings().moves.in_transit_max, "{moving} are on their way");
        for (id, instrument) in &self.instruments {
            let owner = &self.cells[usize::from(instrument.cell)];
            assert!(owner.is_active, "{id} has no owner");
        }
        decisions
    }

    /// Steps of one second until nothing was decided for a minute.
    pub fn settle(&mut self, policies: &mut Policies, steps_max: usize) -> Vec<Decision> {
        let mut decisions = vec![];
        let mut quiet = 0;
        for _ in 0..steps_max {
            let latest = self.step(policies, Duration::from_secs(1));
            quiet = if latest.is_empty() { quiet + 1 } else { 0 };
            decisions.extend(latest);
            if quiet > 60 {
                return decisions;
            }
        }
        panic!("not settled after {steps_max} steps: {:?}", decisions.last());
    }

    fn pass(&mut self, dt: Duration) {
        self.now += dt;
        for cell in &mut self.cells {
            cell.activation = cell.activation.map(|left| left.saturating_sub(dt));
            if cell.is_up && cell.activation.is_some_and(|left| left.is_zero()) {
                cell.is_active = true;
                cell.activation = None;
            }
        }
        for instrument in self.instruments.values_mut() {
            let Some(transit) = &mut instrument.transit else { continue };
            let rest = dt.saturating_sub(transit.waiting);
            transit.waiting = transit.waiting.saturating_sub(dt);
            transit.moving = transit.moving.saturating_sub(rest);
            if !transit.moving.is_zero() || !transit.waiting.is_zero() {
                continue;
            }
            // Control lets a move end only where the instrument may be.
            let target = &self.cells[usize::from(transit.to)];
            if target.is_up && target.is_active {
                instrument.cell = transit.to;
            }
            instrument.transit = None;
        }
    }

    fn order_move(&mut self, id: InstrumentId, to: CellId, why: &Decision, settings: &Settings) {
        let target = &self.cells[usize::from(to)];
        assert!(target.is_active && target.is_up, "a move to a cell that cannot have it: {why:?}");
        assert!(!self.retiring.contains(&to), "a move to a cell that retires: {why:?}");
        let instrument = self.instruments.get_mut(&id).unwrap();
        assert!(instrument.transit.is_none(), "a move of what is on its way: {why:?}");
        let from = instrument.cell;
        assert_ne!(from, to, "a move to its own cell: {why:?}");
        assert!(self.cells[usize::from(from)].is_up, "a move from a cell that is down: {why:?}");
        let is_emptied = matches!(why.reason, DecisionReason::CellEmptied { .. });
        if let DecisionReason::CellEmptied { to_per_s, upper_per_s, .. } = why.reason {
            assert!(to_per_s <= upper_per_s, "more than the new cell may have: {why:?}");
        }
        if let Some((when, _)) = self.moved.insert(id, (self.now, from)) {
            let cooldown = Duration::from_millis(settings.moves.cooldown_ms);
            assert!(is_emptied || self.now - when >= cooldown, "a second move: {why:?}");
        }
        self.moves += 1;
        if !self.rng.has(self.faults.lost_move) {
            let mut up_to = |ms: usize| Duration::from_millis(self.rng.below(ms + 1) as u64);
            let (waiting, moving) = (up_to(self.faults.move_delay_ms), up_to(self.faults.move_ms));
            let transit = Transit { to, waiting, moving };
            self.instruments.get_mut(&id).unwrap().transit = Some(transit);
        }
    }

    fn order_resize(&mut self, decision: &Decision) {
        self.resizes += 1;
        let is_lost = self.rng.has(self.faults.lost_resize);
        let activation_ms = self.rng.below(self.faults.activation_ms + 1) as u64;
        match decision.action {
            Action::Activate { cell } => {
                let target = &mut self.cells[usize::from(cell)];
                assert!(!target.is_active && target.is_up, "activated: {decision:?}");
                if !is_lost {
                    target.activation = Some(Duration::from_millis(activation_ms));
                }
            }
            Action::Retire { cell } => {
                let is_used = |i: &Instrument| {
                    i.cell == cell || i.transit.as_ref().is_some_and(|transit| transit.to == cell)
                };
                assert!(!self.instruments.values().any(is_used), "retired: {decision:?}");
                assert!(self.cells[usize::from(cell)].is_active, "retired: {decision:?}");
                self.cells[usize::from(cell)].is_active = is_lost;
                if !is_lost {
                    self.retiring.remove(&cell);
                }
            }
            Action::Keep { cell } => assert!(self.retiring.remove(&cell), "kept: {decision:?}"),
            Action::Empty { .. } | Action::Move { .. } => {}
        }
    }

    /// Takes note of the direction of the resizer, and checks that it seldom changes.
    fn check_resizes(&mut self, decisions: &[Decision], settings: &Settings) {
        let mut direction = None;
        for decision in decisions {
            match decision.action {
                Action::Activate { .. } | Action::Keep { .. } => direction = Some(true),
                Action::Empty { cell } => {
                    assert!(self.retiring.insert(cell), "emptied twice: {decision:?}");
                    direction = Some(false);
                }
                Action::Retire { cell } => {
                    assert!(self.retiring.contains(&cell), "retired at once: {decision:?}");
                }
                Action::Move { .. } => {}
            }
        }
        let Some(is_up) = direction else { return };
        if self.direction.is_some_and(|before| before != is_up) {
            let interval = Duration::from_millis(settings.resizer.reversal_interval_ms);
            if let Some(latest) = self.reversals.last() {
                assert!(self.now - *latest >= interval, "two reversals: {decisions:?}");
            }
            self.reversals.push(self.now);
        }
        self.direction = Some(is_up);
    }
}
