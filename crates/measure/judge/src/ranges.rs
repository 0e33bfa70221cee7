//! Ranges of two series that have too few rounds for a test: whether they overlap at all.
//!
//! With two rounds a side or more, a range spans the values of the rounds. A single round has one
//! value only, so its samples take their place. The range is the 5th to the 95th percentile of the
//! histograms for median and mean. It begins at the minimum where there is no histogram or the
//! figure lies further out. Ranges that do not overlap are no claim about two machines, because
//! rounds differ more than the samples of one.

use nm_model::comparison::{RangeOf, Ranges, ValueRange};
use nm_model::metric::Metric;
use nm_model::result::{RoundData, Series};
use nm_stats::histogram;

/// Lower and upper end for median and mean where there are histograms.
const INNER: [f64; 2] = [5.0, 95.0];

/// The ranges of `metric` on both sides; nothing if they are not known.
pub(crate) fn ranges(a: &Series, b: &Series, metric: Metric) -> Option<Ranges> {
    if let (Some(a), Some(b)) = (of_rounds(a, metric), of_rounds(b, metric)) {
        return Some(Ranges { span: RangeOf::Rounds, a, b });
    }
    let p99 = Metric::Percentile(99.0);
    let inner = match metric {
        Metric::Median | Metric::Mean => inner(a).zip(inner(b)),
        _ => None,
    };
    if let Some((a, b)) = inner {
        let [from, to] = INNER.map(Metric::Percentile);
        return Some(Ranges { span: RangeOf::Samples { from, to }, a, b });
    }
    let to = match metric {
        Metric::Median | Metric::Mean => p99,
        Metric::Percentile(_) => metric,
        _ => return None,
    };
    let (a, b) = (samples(a, Metric::Min, to)?, samples(b, Metric::Min, to)?);
    Some(Ranges { span: RangeOf::Samples { from: Metric::Min, to }, a, b })
}

/// The lowest and the highest of some values; nothing without values.
fn span(values: impl Iterator<Item = f64>) -> Option<ValueRange> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| {
        let ValueRange { low, high } = range.unwrap_or(ValueRange { low: value, high: value });
        Some(ValueRange { low: low.min(value), high: high.max(value) })
    })
}

/// The values of the rounds, if there are two or more.
fn of_rounds(series: &Series, metric: Metric) -> Option<ValueRange> {
    let values = || series.rounds.iter().filter_map(|round| round.value(metric));
    if values().count() < 2 { None } else { span(values()) }
}

/// From the lowest `from` to the highest `to` of the rounds.
fn samples(series: &Series, from: Metric, to: Metric) -> Option<ValueRange> {
    let of = |metric| span(series.rounds.iter().filter_map(move |round| round.value(metric)));
    let (low, high) = (of(from)?.low, of(to)?.high);
    (low <= high).then_some(ValueRange { low, high })
}

/// The inner samples by the histograms of the rounds; nothing if a round has none.
fn inner(series: &Series) -> Option<ValueRange> {
    let mut ends = vec![];
    for round in &series.rounds {
        let RoundData::Latency(data) = &round.data else { return None };
        let histogram = histogram::decode(data.histogram.as_ref()?).ok()?;
        if histogram.is_empty() {
            return None;
        }
        ends.extend(INNER.map(|p| histogram.value_at_quantile(p / 100.0) as f64));
    }
    span(ends.into_iter())
}
