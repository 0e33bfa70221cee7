//! Prediction of round trips from the load of the cells.
//!
//! A cell is taken as a queue with one server. In such a queue with random arrivals the mean time
//! in the system grows as 1/(1 − ρ), where ρ is its utilisation. If service times are exponential
//! (M/M/1), the time itself is exponentially distributed. So every percentile, and the mean of the
//! slowest tenth, is a fixed multiple of the mean. The source is Leonard Kleinrock, Queueing
//! Systems, volume 1, sections 3.2 and 5.7: M/M/1, and the Pollaczek-Khinchine formula for other
//! service times. The waiting time has the same factor there. Hence ES10 = c / (1 − ρ), and c is
//! known from any report of both: c = ES10 · (1 − ρ). It is what ES10 would be without load.
//!
//! Reports of a nearly full cell do not fit c, because its queue grows with time rather than with
//! load. Until another report has, c is taken as half of the limit.
//!
//! The model knows nothing of what does not come from load. An ES10 that is high while cells are
//! idle gives a c above the limit, and then no number of cells is predicted to help.

use std::time::Duration;

use crate::settings::{ResizerSettings, ms};
use crate::view::{CellView, NetworkView};

/// Time constant with which c follows the reports, in s.
const SMOOTHING_S: f64 = 5.0;

/// Reports of cells that are fuller than this do not fit the model.
const FITTED_UTILISATION_MAX: f64 = 0.9;

/// Predictions are for at most this utilisation, as a fuller server has no stable queue.
const UTILISATION_MAX: f64 = 0.98;

/// Cells need not be emptier than this: what requests wait for other ones at most doubles ES10
/// then, and a higher one comes from elsewhere, such as other programs on the hosts.
const UTILISATION_MIN: f64 = 0.5;

/// Largest factor by which the load is extrapolated: a step of the load is no trend.
const GROWTH_MAX: f64 = 1.25;

/// What is fitted to the reports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct LatencyModel {
    idle_es10_us: Option<f64>,
    total_per_s: Option<f64>,
}

/// The load of the network as the model has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatencyPrediction {
    /// c, in µs.
    pub(crate) idle_es10_us: f64,
    /// Utilisation of all cells together at the end of the horizon: 1 is one full core.
    total_utilisation: f64,
}

impl LatencyModel {
    /// Takes note of reports. None if no active cell reports both utilisation and ES10.
    pub(crate) fn update(
        &mut self,
        view: &NetworkView<'_>,
        total_per_s: f64,
        settings: &ResizerSettings,
        dt: Duration,
    ) -> Option<LatencyPrediction> {
        let before_per_s = self.total_per_s.replace(total_per_s).filter(|rate| *rate > 0.0);
        let active = || view.cells.iter().filter(|cell| cell.is_active && cell.is_up);
        if !active().any(|cell| cell.cpu_fraction.is_some() && cell.es10_us.is_some()) {
            return None;
        }
        self.fit(active(), dt);
        let growth = before_per_s.map_or(1.0, |before| {
            let periods = ms(settings.es10_horizon_ms).as_secs_f64() / dt.as_secs_f64().max(1e-3);
            (1.0 + (total_per_s / before - 1.0) * periods).clamp(1.0, GROWTH_MAX)
        });
        let known: Vec<f64> = active().filter_map(|cell| cell.cpu_fraction).collect();
        // A cell of which nothing is known is taken to be as full as the others.
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        Some(LatencyPrediction {
            idle_es10_us: self.idle_es10_us.unwrap_or(settings.es10_limit_us / 2.0),
            total_utilisation: mean * active().count() as f64 * growth,
        })
    }

    /// Lets c follow what cells with requests report, each weighted by its requests.
    fn fit<'a>(&mut self, active: impl Iterator<Item = &'a CellView>, dt: Duration) {
        let (mut requests_per_s, mut weighted_us) = (0.0, 0.0);
        for cell in active {
            let (Some(cpu_fraction), Some(es10_us)) = (cell.cpu_fraction, cell.es10_us) else {
                continue;
            };
            if es10_us > 0.0 && cpu_fraction <= FITTED_UTILISATION_MAX {
                requests_per_s += cell.reported_per_s;
                weighted_us += cell.reported_per_s * es10_us * (1.0 - cpu_fraction);
            }
        }
        if requests_per_s > 0.0 {
            let reported_us = weighted_us / requests_per_s;
            let known_us = self.idle_es10_us.unwrap_or(reported_us);
            let share = 1.0 - (-dt.as_secs_f64() / SMOOTHING_S).exp();
            self.idle_es10_us = Some(known_us + share * (reported_us - known_us));
        }
    }
}

impl LatencyPrediction {
    /// Utilisation of each of so many cells that share the load evenly; it may be above 1.
    pub(crate) fn utilisation(&self, cells: usize) -> f64 {
        self.total_utilisation / cells.max(1) as f64
    }

    /// ES10 of each of so many cells that share the load evenly, in µs.
    pub(crate) fn es10_us(&self, cells: usize) -> f64 {
        self.idle_es10_us / (1.0 - self.utilisation(cells).min(UTILISATION_MAX))
    }

    /// Fewest cells with which ES10 is within a limit, as far as more cells lower it.
    pub(crate) fn cells_within(&self, limit_us: f64) -> usize {
        let fullest = 1.0 - self.idle_es10_us / limit_us;
        let utilisation_max = fullest.clamp(UTILISATION_MIN, UTILISATION_MAX);
        ((self.total_utilisation / utilisation_max).ceil() as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn es10_grows_as_the_queue_does() {
        let prediction = LatencyPrediction { idle_es10_us: 1_000.0, total_utilisation: 1.5 };
        assert_eq!(prediction.es10_us(3), 2_000.0);
        assert_eq!(prediction.es10_us(2), 4_000.0);
        // A full server has a long queue, not an endless one.
        assert!((prediction.es10_us(1) - 50_000.0).abs() < 1.0);
    }

    #[test]
    fn the_fewest_cells_within_a_limit_are_found() {
        let prediction = LatencyPrediction { idle_es10_us: 1_000.0, total_utilisation: 1.8 };
        // A limit of 2 ms allows a utilisation of 0.5: 1.8 needs four cells.
        assert_eq!(prediction.cells_within(2_000.0), 4);
        assert_eq!(prediction.cells_within(10_000.0), 2);
        // Limits that no number of cells can meet.
        assert_eq!((prediction.cells_within(1_500.0), prediction.cells_within(900.0)), (4, 4));
    }
}
