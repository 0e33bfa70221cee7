//! Figures of one series of the exchange that several tables show.

use nm_model::exchange::ExchangeRound;
use nm_model::result::Series;

use crate::units::or_not_available;
use crate::view;

/// How networks are named: by their layout and options, with the environment where a result has
/// several.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    has_environment: bool,
}

impl Names {
    pub fn of(own: &[&Series]) -> Names {
        let environment = |series: &&Series| series.key.environment.clone();
        let first = own.first().map(environment);
        Names { has_environment: own.iter().any(|s| Some(environment(s)) != first) }
    }

    pub fn of_series(self, series: &Series) -> String {
        let key = &series.key;
        view::marked(series, if self.has_environment { key.path() } else { key.stack.clone() })
    }
}

pub fn rate(series: &Series) -> Option<f64> {
    series.key.case.rate_per_s()
}

pub fn rounds(series: &Series) -> Vec<&ExchangeRound> {
    view::latency_rounds(series).filter_map(|data| data.exchange.as_deref()).collect()
}

pub fn median(values: Vec<f64>) -> Option<f64> {
    nm_stats::describe::median(&values)
}

pub fn per_s(rate: Option<f64>) -> String {
    or_not_available(rate, |rate| format!("{rate:.0}"))
}

/// The classes of nodes.
pub const CLASSES: [&str; 4] = ["gateway", "router", "mediator", "processor"];

/// CPU time of a class for one transaction, µs, the median of rounds.
pub fn class_us(series: &Series, class: &str) -> Option<f64> {
    let rounds = rounds(series);
    let all = rounds.iter().flat_map(|round| &round.cpu);
    median(all.filter(|cpu| cpu.class == class).map(|cpu| cpu.cpu_us_per_txn).collect())
}

/// CPU time of all classes together, µs; `None` if one is not known.
pub fn cpu_us(series: &Series) -> Option<f64> {
    CLASSES.iter().try_fold(0.0, |sum, class| Some(sum + class_us(series, class)?))
}
