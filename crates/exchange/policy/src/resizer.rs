//! How many cells are active.
//!
//! More requests than `upper_per_s` for each active cell: as many as ceil(total / upper) are
//! needed. Fewer than `lower_per_s` for each: floor(total / lower) are enough, if the upper bound
//! allows it. A predicted ES10 above its limit asks for more cells, one that would come near its
//! limit keeps cells active (see [`crate::latency`]).
//!
//! Every change waits until it has been needed for a time, there is a pause after each, and changes
//! of direction are rare. A cell that is to be retired is emptied first ([`crate::emptying`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::decision::{Action, Decision, DecisionReason};
use crate::emptying::{Emptying, choose_cells};
use crate::latency::{LatencyModel, LatencyPrediction};
use crate::reports::CellId;
use crate::settings::{ResizerSettings, ms};
use crate::view::{CellView, NetworkView};

/// For so long a spare that could not be activated is the last one to be tried again.
const FAILED_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// What the resizer remembers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Resizer {
    emptying: Emptying,
    /// Cells whose activation was ordered, and how long ago.
    activating: BTreeMap<CellId, Duration>,
    /// Cells whose activation failed, and how long ago.
    failed: BTreeMap<CellId, Duration>,
    /// For how long more cells have been needed.
    up_for: Duration,
    /// For how long fewer cells have been enough, and how many at most.
    down: Option<(Duration, usize)>,
    /// The latest change, and how long ago it was.
    change: Option<(Direction, Duration)>,
    /// How long ago the direction changed.
    reversal: Option<Duration>,
    latency: LatencyModel,
}

/// How many cells are needed, and why not as many as there are.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Need {
    cells: usize,
    reason: DecisionReason,
}

impl Resizer {
    /// Decides, and marks cells in the view that are being emptied.
    pub(crate) fn step(
        &mut self,
        view: &mut NetworkView<'_>,
        settings: &ResizerSettings,
        dt: Duration,
    ) -> Vec<Decision> {
        self.pass_time(view, settings, dt);
        self.emptying.mark(view);
        let is_counted = |cell: &&CellView| cell.is_active && cell.is_up;
        let total_per_s: f64 =
            view.cells.iter().filter(is_counted).map(|cell| cell.reported_per_s).sum();
        let in_service = view.cells.iter().filter(|cell| cell.is_in_service()).count();
        let active = in_service + self.activating.len();
        let prediction = self.latency.update(view, total_per_s, settings, dt);
        let need = need(total_per_s, active, prediction, settings);
        self.note_need(need.cells, active, dt);
        let mut decisions = vec![];
        if need.cells > active && self.up_for >= ms(settings.up_delay_ms) {
            if self.may_change(Direction::Up, settings) {
                decisions = self.grow(view, need.cells - active, need.reason);
                self.note_change(Direction::Up, !decisions.is_empty());
            }
        } else if let Some((since, most)) = self.down
            && since >= ms(settings.down_delay_ms)
            && self.activating.is_empty()
            && self.may_change(Direction::Down, settings)
        {
            let cells = choose_cells(view, active - most, settings.upper_per_s);
            self.note_change(Direction::Down, !cells.is_empty());
            decisions = self.emptying.begin(view, &cells, with_needed(need.reason, most));
        }
        decisions.extend(self.emptying.step(view, settings));
        decisions
    }

    /// Lets time pass, and compares orders with the reports.
    fn pass_time(&mut self, view: &NetworkView<'_>, settings: &ResizerSettings, dt: Duration) {
        let is_spare = |id: CellId| {
            let cell = view.cell_index(id).map(|index| &view.cells[index]);
            cell.is_some_and(|cell| !cell.is_active)
        };
        for age in self.activating.values_mut().chain(self.failed.values_mut()) {
            *age = age.saturating_add(dt);
        }
        if let Some((_, age)) = &mut self.change {
            *age = age.saturating_add(dt);
        }
        if let Some(age) = &mut self.reversal {
            *age = age.saturating_add(dt);
        }
        self.activating.retain(|id, _| is_spare(*id));
        let timeout = ms(settings.order_timeout_ms);
        for (id, _) in self.activating.extract_if(.., |_, age| *age >= timeout) {
            self.failed.insert(id, Duration::ZERO);
        }
        self.failed.retain(|_, age| *age < FAILED_FOR);
        self.emptying.pass_time(view, settings, dt);
    }

    /// Takes note of how many cells are needed: reports cover the time since those before.
    fn note_need(&mut self, needed: usize, active: usize, dt: Duration) {
        self.up_for = match needed > active {
            true => self.up_for.saturating_add(dt),
            false => Duration::ZERO,
        };
        self.down = (needed < active).then(|| match self.down {
            Some((since, most)) => (since.saturating_add(dt), most.max(needed).min(active - 1)),
            None => (dt, needed),
        });
    }

    fn may_change(&self, direction: Direction, settings: &ResizerSettings) -> bool {
        let Some((latest, age)) = self.change else { return true };
        let interval = ms(settings.reversal_interval_ms);
        let may_reverse = latest == direction || self.reversal.is_none_or(|age| age >= interval);
        age >= ms(settings.cooldown_ms) && may_reverse
    }

    fn note_change(&mut self, direction: Direction, has_changed: bool) {
        if !has_changed {
            return;
        }
        if self.change.is_some_and(|(latest, _)| latest != direction) {
            self.reversal = Some(Duration::ZERO);
        }
        self.change = Some((direction, Duration::ZERO));
        self.up_for = Duration::ZERO;
        self.down = None;
    }

    /// Keeps cells that are being emptied, then activates spares.
    fn grow(
        &mut self,
        view: &mut NetworkView<'_>,
        count: usize,
        reason: DecisionReason,
    ) -> Vec<Decision> {
        let kept = self.emptying.cancel(view, count);
        let keep = |cell: &CellId| Decision { action: Action::Keep { cell: *cell }, reason };
        let mut decisions: Vec<Decision> = kept.iter().map(keep).collect();
        while decisions.len() < count {
            let Some(cell) = self.next_spare(view) else { break };
            self.activating.insert(cell, Duration::ZERO);
            decisions.push(Decision { action: Action::Activate { cell }, reason });
        }
        decisions
    }

    /// The spare to activate next: one that did not fail lately, if there is one, and at the site
    /// with the most requests per cell.
    fn next_spare(&self, view: &NetworkView<'_>) -> Option<CellId> {
        let site_per_s = |site| {
            let mut requests_per_s = 0.0;
            let mut cells = 1;
            for cell in view.cells.iter().filter(|cell| cell.site == site) {
                if cell.is_in_service() {
                    requests_per_s += cell.requests_per_s;
                    cells += 1;
                } else if self.activating.contains_key(&cell.id) {
                    cells += 1;
                }
            }
            requests_per_s / f64::from(cells)
        };
        let spares = view.cells.iter().filter(|cell| {
            !cell.is_active && cell.is_up && !self.activating.contains_key(&cell.id)
        });
        // None is first, and then the failure that is longest ago.
        let failure = |id: &CellId| self.failed.get(id).map(|age| Reverse(*age));
        let best = spares.min_by(|a, b| {
            let by_failure = failure(&a.id).cmp(&failure(&b.id));
            by_failure.then_with(|| site_per_s(b.site).total_cmp(&site_per_s(a.site)))
        });
        best.map(|cell| cell.id)
    }
}

/// The same reason to shrink, to the most cells that were needed while the resizer waited.
fn with_needed(reason: DecisionReason, most: usize) -> DecisionReason {
    match reason {
        DecisionReason::RateBelowLower { total_per_s, active, lower_per_s, .. } => {
            DecisionReason::RateBelowLower { total_per_s, active, lower_per_s, needed: most }
        }
        other => other,
    }
}

/// How many cells are needed for so many requests, if so many are active.
fn need(
    total_per_s: f64,
    active: usize,
    prediction: Option<LatencyPrediction>,
    settings: &ResizerSettings,
) -> Need {
    let (lower_per_s, upper_per_s) = (settings.lower_per_s, settings.upper_per_s);
    let (min, max) = (settings.active_min, settings.active_max);
    let most_loaded = ((total_per_s / upper_per_s).ceil() as usize).max(1);
    let count = active as f64;
    if active < min {
        let cells = most_loaded.clamp(min, max);
        return Need { cells, reason: DecisionReason::TooFewActive { active, min } };
    }
    if active > max {
        return Need { cells: max, reason: DecisionReason::TooManyActive { active, max } };
    }
    if total_per_s > count * upper_per_s {
        let needed = most_loaded.min(max);
        let reason = DecisionReason::RateAboveUpper { total_per_s, active, upper_per_s, needed };
        return Need { cells: needed, reason };
    }
    if let Some(prediction) = prediction {
        let limit_us = settings.es10_limit_us;
        let predicted_us = prediction.es10_us(active);
        let needed = prediction.cells_within(limit_us).min(max);
        if predicted_us > limit_us && needed > active {
            let utilisation = prediction.utilisation(active);
            return Need {
                cells: needed,
                reason: DecisionReason::Es10AboveLimit {
                    predicted_us,
                    limit_us,
                    utilisation,
                    active,
                    needed,
                },
            };
        }
    }
    let enough = match total_per_s < count * lower_per_s {
        true => ((total_per_s / lower_per_s).floor() as usize).max(most_loaded),
        false => active,
    };
    // ES10 stays well within its limit.
    let limit_us = settings.es10_limit_us * settings.es10_return_fraction;
    let by_es10 = prediction.map_or(1, |prediction| prediction.cells_within(limit_us));
    let needed = enough.max(by_es10).clamp(min, active);
    let reason = DecisionReason::RateBelowLower { total_per_s, active, lower_per_s, needed };
    Need { cells: needed, reason }
}
