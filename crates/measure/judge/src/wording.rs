//! Figures and lists as text in reasons.

use nm_model::metric::{Metric, Quantity};
use nm_model::result::{SeriesKey, Statistic};
use nm_model::verdict::Interval;

/// A number with three significant digits, without needless zeros.
fn short(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        return format!("{value:.2e}");
    }
    let decimals = match size {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        s if s >= 0.1 => 3,
        s if s >= 0.01 => 4,
        _ => 6,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    }
}

/// The unit in which `value` reads best, with what one of it is in the metric's own unit.
fn unit(quantity: Quantity, value: f64) -> (&'static str, f64) {
    match quantity {
        Quantity::Latency => match value.abs() {
            ns if ns >= 1e9 => ("s", 1e9),
            ns if ns >= 1e6 => ("ms", 1e6),
            ns if ns >= 1e3 => ("us", 1e3),
            _ => ("ns", 1.0),
        },
        Quantity::Throughput if value.abs() >= 0.1 || value == 0.0 => ("Gb/s", 1.0),
        Quantity::Throughput => ("Mb/s", 1e-3),
        Quantity::Ratio => ("%", 0.01),
        Quantity::Rate => ("/s", 1.0),
    }
}

/// A figure with its unit: `4.05 us`, `9.3 Gb/s`, `0.1 %`.
pub(crate) fn figure(metric: Metric, value: f64) -> String {
    let (unit, one) = unit(metric.quantity(), value);
    format!("{} {unit}", short(value / one))
}

/// An interval: `3.9 to 4.2 us`, and `91 us to 6 ms` where each end reads best in its own unit.
pub(crate) fn interval(metric: Metric, interval: Interval) -> String {
    let (of_low, _) = unit(metric.quantity(), interval.low);
    let (of_high, one) = unit(metric.quantity(), interval.high);
    match of_low == of_high || interval.low == 0.0 {
        true => {
            format!("{} to {} {of_high}", short(interval.low / one), short(interval.high / one))
        }
        false => {
            format!("{} to {}", figure(metric, interval.low), figure(metric, interval.high))
        }
    }
}

/// A ratio: `x1.04`.
pub(crate) fn ratio(ratio: f64) -> String {
    format!("x{}", short(ratio))
}

/// Name of the metric of a series: `median half round trip`, `throughput`.
pub(crate) fn subject(metric: Metric, statistic: Statistic) -> String {
    match metric {
        Metric::Throughput => "throughput".to_string(),
        Metric::Loss => "loss".to_string(),
        Metric::Rate => "rate".to_string(),
        Metric::TimeLost => "share of time lost".to_string(),
        _ => {
            let name = match statistic {
                Statistic::RoundTrip => "round trip",
                other => other.label(),
            };
            format!("{metric} {name}")
        }
    }
}

/// The case of a series as part of a sentence: `at 64 B`.
pub(crate) fn at_case(key: &SeriesKey) -> String {
    match key.statistic {
        Statistic::Throughput => format!("for {}", key.case),
        _ => format!("at {}", key.case),
    }
}

/// A count with its noun: `1 series`, `3 rounds`.
pub(crate) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// At most `limit` words with commas, and how many more there are.
pub(crate) fn list<S: AsRef<str>>(words: &[S], limit: usize) -> String {
    let shown: Vec<&str> = words.iter().take(limit).map(AsRef::as_ref).collect();
    match words.len().checked_sub(limit) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(figure(Metric::Median, 4050.0), "4.05 us");
        assert_eq!(figure(Metric::Median, 2000.0), "2 us");
        assert_eq!(figure(Metric::Max, 812.4), "812 ns");
        assert_eq!(figure(Metric::Es10, 1_440_000.0), "1.44 ms");
        assert_eq!(figure(Metric::Loss, 0.001), "0.1 %");
        assert_eq!(figure(Metric::Throughput, 18.5), "18.5 Gb/s");
        assert_eq!(figure(Metric::Rate, 19_500.0), "19500 /s");
        let ends = Interval { low: 950.0, high: 4200.0, level: 0.95 };
        assert_eq!(interval(Metric::Median, ends), "950 ns to 4.2 us");
        let interval = |low, high| interval(Metric::Median, Interval { low, high, level: 0.95 });
        assert_eq!(interval(3900.0, 4200.0), "3.9 to 4.2 us");
        assert_eq!(interval(91_000.0, 6e6), "91 us to 6 ms");
        assert_eq!(interval(0.0, 6e6), "0 to 6 ms");
        assert_eq!(ratio(1.0421), "x1.04");
    }

    proptest! {
        #[test]
        fn any_number_has_a_text(value in proptest::num::f64::ANY) {
            for metric in [Metric::Median, Metric::Loss, Metric::Rate, Metric::Throughput] {
                prop_assert!(!figure(metric, value).is_empty());
            }
        }
    }
}
