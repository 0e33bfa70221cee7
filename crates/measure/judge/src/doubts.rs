//! Whether doubts invalidate a pass.
//!
//! A doubt counts only where it could change the outcome:
//!
//! - A node of the exchange ended by itself: what was measured includes a fault that nobody
//!   planned. Affects every figure of the series.
//! - Both ends on one CPU or one core: a transfer that no two machines make. Affects a latency.
//! - Lost messages: the missing samples are the slowest. Affects mean, maximum, deviation and ES,
//!   and a percentile if the loss reaches a tenth of what lies beyond it.
//! - Schedule missed: the delay is not in the service time. Affects the service time of `rr`.
//! - Groups, high variance, drift, outliers: another round could have another outcome. Affects any
//!   figure of which a round lies on the wrong side.
//!
//! Stolen time, preemption, a busy machine, a slow clock and the like make a latency worse and a
//! throughput smaller, never better. They cannot invalidate a pass; a failure lists them.

use nm_model::doubt::DoubtKind;
use nm_model::metric::{Metric, Quantity};
use nm_model::probe::ProbeKind;
use nm_model::result::{Series, Statistic};
use nm_model::target::Target;

use crate::wording::{count, figure};

/// Doubts that can only have made the figure worse than the machine is.
const WORSENING: &[DoubtKind] = &[
    DoubtKind::Steal,
    DoubtKind::Preempted,
    DoubtKind::Migrated,
    DoubtKind::BusyHost,
    DoubtKind::Throttled,
    DoubtKind::BelowSystem,
    DoubtKind::ClockCost,
    DoubtKind::ClockFallback,
    DoubtKind::MemoryNotLocked,
];

fn has(series: &Series, kind: DoubtKind) -> bool {
    let of_rounds = series.rounds.iter().flat_map(|round| &round.doubts);
    series.doubts.iter().chain(of_rounds).any(|doubt| doubt.kind == kind)
}

/// Why a series that meets `target` supports no pass, as a clause; nothing if it does.
pub(crate) fn reason_against_pass(target: &Target, series: &Series) -> Option<String> {
    if has(series, DoubtKind::NodeEnded) {
        return Some(format!("in a round, {}", DoubtKind::NodeEnded.title()));
    }
    let latency = target.metric.quantity() == Quantity::Latency;
    if latency {
        for kind in [DoubtKind::SharedCpu, DoubtKind::SmtSiblings] {
            if has(series, kind) {
                return Some(format!("{}: {}", kind.title(), kind.cause()));
            }
        }
        if let Some(loss) = significant_loss(target.metric, series) {
            return Some(format!(
                "{} of the messages never came back and are not in the figure",
                figure(Metric::Loss, loss)
            ));
        }
        let is_service_time =
            series.key.probe == ProbeKind::Rr && series.key.statistic == Statistic::RoundTrip;
        if is_service_time && has(series, DoubtKind::Behind) {
            return Some("requests left late, which the service time does not show".to_string());
        }
    }
    let unsteady = [DoubtKind::Bimodal, DoubtKind::Unstable, DoubtKind::Drift, DoubtKind::Outliers]
        .into_iter()
        .find(|kind| has(series, *kind))?;
    let values: Vec<f64> =
        series.rounds.iter().filter_map(|round| round.value(target.metric)).collect();
    let wrong = values.iter().filter(|value| !target.op.holds(**value, target.limit)).count();
    (wrong > 0).then(|| {
        let lie = if wrong == 1 { "lies" } else { "lie" };
        format!(
            "{}, and {} of {} {lie} on the wrong side of the limit",
            unsteady.title(),
            wrong,
            count(values.len(), "round", "rounds")
        )
    })
}

/// The worst loss of a round, 0 to 1, if it is large enough to have changed the figure.
fn significant_loss(metric: Metric, series: &Series) -> Option<f64> {
    let worst =
        series.rounds.iter().filter_map(|round| round.value(Metric::Loss)).fold(0.0, f64::max);
    let beyond = match metric {
        Metric::Median => 0.5,
        Metric::Percentile(p) => 1.0 - p / 100.0,
        Metric::Min => return None,
        _ => 0.0,
    };
    (worst > 0.0 && worst * 10.0 >= beyond).then_some(worst)
}

/// Doubts that may have made a failing figure worse, as a clause.
pub(crate) fn worsening_doubts(series: &Series) -> Option<String> {
    let titles: Vec<&str> =
        WORSENING.iter().filter(|kind| has(series, **kind)).map(|kind| kind.title()).collect();
    (!titles.is_empty()).then(|| format!("doubts: {}", titles.join(", ")))
}
