//! Numbers as people read them: at most four digits, with a unit.

use nm_model::Metric;
use nm_model::metric::Quantity;

/// A value of `metric` with its unit.
pub(crate) fn with_unit(metric: Metric, value: f64) -> String {
    match metric.quantity() {
        Quantity::Latency => latency(value),
        Quantity::Throughput => format!("{} Gb/s", fixed(value, 3)),
        Quantity::Rate => format!("{} /s", fixed(value, 0)),
        Quantity::Ratio => four_digits(value),
    }
}

/// A number with four significant digits, without zeros at the end.
pub(crate) fn four_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    // Through the exponent form, which rounds to significant digits; its result reads back exactly.
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    rounded.to_string()
}

fn latency(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0} ns"),
        _ if ns < 1e6 => format!("{} us", fixed(ns / 1e3, 2)),
        _ if ns < 1e9 => format!("{} ms", fixed(ns / 1e6, 2)),
        _ => format!("{} s", fixed(ns / 1e9, 2)),
    }
}

/// `decimals` digits after the point, fewer where that would be more than four digits in all.
fn fixed(value: f64, decimals: usize) -> String {
    let integer_digits = (value.abs().max(1.0).log10().floor() as usize) + 1;
    let rounded = match integer_digits {
        0..=4 => value,
        _ => format!("{value:.3e}").parse().unwrap_or(value),
    };
    format!("{rounded:.*}", decimals.min(4usize.saturating_sub(integer_digits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_four_digits_and_a_unit() {
        let median = |ns| with_unit(Metric::Median, ns);
        assert_eq!(median(9638.75013), "9.64 us");
        assert_eq!(median(999.4), "999 ns");
        assert_eq!(median(45_128.0), "45.13 us");
        assert_eq!(median(451_280.0), "451.3 us");
        assert_eq!(median(3_600_000_000_000.0), "3600 s");
        assert_eq!(with_unit(Metric::Throughput, 9.81234), "9.812 Gb/s");
        assert_eq!(with_unit(Metric::Throughput, 98.1234), "98.12 Gb/s");
        assert_eq!(with_unit(Metric::Rate, 115_057.4), "115100 /s");
        assert_eq!(with_unit(Metric::Loss, 0.0123456), "0.01235");
        assert_eq!(four_digits(1.0), "1");
        assert_eq!(four_digits(0.0), "0");
    }
}
