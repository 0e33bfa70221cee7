//! Numbers as people read them: four significant digits, the unit named, `n/a` where there
//! is none.

use nm_model::metric::{Metric, Quantity};

/// Text for a figure that does not exist.
pub const NOT_AVAILABLE: &str = "n/a";

/// Unit of a column of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

impl LatencyUnit {
    /// The unit in which `ns` has one to three digits before the point.
    pub fn of(ns: f64) -> LatencyUnit {
        match ns.abs() {
            v if v < 1e3 => LatencyUnit::Nanoseconds,
            v if v < 1e6 => LatencyUnit::Microseconds,
            v if v < 1e9 => LatencyUnit::Milliseconds,
            _ => LatencyUnit::Seconds,
        }
    }

    /// One unit for a table, by its medians: that of their geometric middle.
    pub fn fitting(values_ns: impl IntoIterator<Item = f64>) -> LatencyUnit {
        let (mut sum, mut n_values) = (0.0, 0.0);
        for value in values_ns.into_iter().filter(|v| v.is_finite() && *v > 0.0) {
            sum += value.log10();
            n_values += 1.0;
        }
        if n_values == 0.0 {
            return LatencyUnit::Microseconds;
        }
        LatencyUnit::of(10f64.powf(sum / n_values))
    }

    /// Symbol of the unit.
    pub fn name(self) -> &'static str {
        match self {
            LatencyUnit::Nanoseconds => "ns",
            LatencyUnit::Microseconds => "µs",
            LatencyUnit::Milliseconds => "ms",
            LatencyUnit::Seconds => "s",
        }
    }

    /// Nanoseconds in one unit.
    pub fn ns(self) -> f64 {
        match self {
            LatencyUnit::Nanoseconds => 1.0,
            LatencyUnit::Microseconds => 1e3,
            LatencyUnit::Milliseconds => 1e6,
            LatencyUnit::Seconds => 1e9,
        }
    }

    /// A cell of a column whose heading names the unit.
    pub fn cell(self, ns: Option<f64>) -> String {
        or_not_available(ns, |ns| significant(ns / self.ns(), 4))
    }
}

/// `format(value)`, or `n/a` where the value is absent or not a finite number.
pub fn or_not_available(value: Option<f64>, format: impl FnOnce(f64) -> String) -> String {
    value.filter(|v| v.is_finite()).map_or_else(|| NOT_AVAILABLE.to_string(), format)
}

/// `value` with at least `digits` significant digits: all digits before the point stay, zeros at
/// the end of a fraction too, so that equal precision looks equal. Never in scientific notation.
pub fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_string() } else { NOT_AVAILABLE.to_string() };
    }
    let with = |magnitude: i32| {
        let decimals = (digits as i32 - 1 - magnitude).clamp(0, 9) as usize;
        format!("{value:.decimals$}")
    };
    let magnitude = value.abs().log10().floor() as i32;
    let text = with(magnitude);
    // Rounding may add a digit before the point: 9.9996 would become 10.000.
    let rounded: f64 = text.parse().unwrap_or(value);
    if rounded != 0.0 && rounded.abs().log10().floor() as i32 > magnitude {
        with(magnitude + 1)
    } else {
        text
    }
}

/// A latency with its own unit: `812 ns`, `1.421 µs`, `39.78 ms`.
pub fn latency(ns: f64) -> String {
    if !ns.is_finite() {
        return NOT_AVAILABLE.to_string();
    }
    let unit = LatencyUnit::of(ns);
    let digits = if unit == LatencyUnit::Nanoseconds && ns.fract() == 0.0 { 1 } else { 4 };
    format!("{} {}", significant(ns / unit.ns(), digits), unit.name())
}

/// A round latency on an axis, without zeros at the end: `2 µs`, `500 ns`.
pub fn latency_tick(ns: f64) -> String {
    let unit = LatencyUnit::of(ns);
    format!("{} {}", plain(ns / unit.ns()), unit.name())
}

/// The shortest text of a number, at most six decimals.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// A figure of `metric` with its unit.
pub fn figure(metric: Metric, value: Option<f64>) -> String {
    or_not_available(value, |value| match metric.quantity() {
        Quantity::Latency => latency(value),
        Quantity::Ratio => percent(value),
        Quantity::Throughput => throughput(value),
        Quantity::Rate => format!("{}/s", significant(value, 4)),
    })
}

/// `9.412 Gb/s`.
pub fn throughput(gbps: f64) -> String {
    format!("{} Gb/s", significant(gbps, 4))
}

/// A share of one as `0.1250 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 3))
}

/// An integer with commas: `1,000,000`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size: `64 B`, `64 KiB`, `1500 B`.
pub fn bytes(value: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    UNITS
        .iter()
        .find(|(unit, _)| value >= *unit && value.is_multiple_of(*unit))
        .map_or_else(|| format!("{value} B"), |(unit, name)| format!("{} {name}", value / unit))
}

/// A duration: `0.8 s`, `52 s`, `1 min 52 s`, `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return NOT_AVAILABLE.to_string();
    }
    if seconds < 10.0 {
        return format!("{} s", plain((seconds * 10.0).round() / 10.0));
    }
    let rounded = seconds.round() as u64;
    match (rounded / 3600, rounded / 60 % 60, rounded % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// `one` or `many` behind a number: `1 target`, `3 targets`.
pub fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn latencies_read_well() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (812.0, "812 ns"),
            (41.25, "41.25 ns"),
            (1421.0, "1.421 µs"),
            (12_345.6, "12.35 µs"),
            (999_999.0, "1000 µs"),
            (39_777_000.0, "39.78 ms"),
            (2e9, "2.000 s"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(latency(ns), text);
        }
        assert_eq!(latency_tick(2000.0), "2 µs");
        assert_eq!(significant(9.9996, 4), "10.00");
    }

    #[test]
    fn a_table_has_one_unit_and_keeps_its_digits() {
        let unit = LatencyUnit::fitting([1400.0, 58_500.0]);
        assert_eq!(unit, LatencyUnit::Microseconds);
        assert_eq!(unit.cell(Some(1421.0)), "1.421");
        assert_eq!(unit.cell(Some(39_777_123.0)), "39777");
        assert_eq!(unit.cell(None), "n/a");
        assert_eq!(LatencyUnit::fitting([]), LatencyUnit::Microseconds);
    }

    #[test]
    fn other_quantities_name_their_unit() {
        assert_eq!(figure(Metric::Throughput, Some(9.4123)), "9.412 Gb/s");
        assert_eq!(figure(Metric::Loss, Some(0.00125)), "0.125 %");
        assert_eq!(figure(Metric::Rate, Some(1000.0)), "1000/s");
        assert_eq!(figure(Metric::Median, None), "n/a");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(count(999), "999");
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(1500), "1500 B");
        assert_eq!(duration(112.4), "1 min 52 s");
        assert_eq!(duration(0.83), "0.8 s");
        assert_eq!(duration(7500.0), "2 h 5 min");
    }

    proptest! {
        #[test]
        fn significant_digits_keep_the_value(value in 1e-3f64..1e12) {
            let back: f64 = significant(value, 4).parse().unwrap();
            prop_assert!((back / value - 1.0).abs() <= 5e-4, "{value} became {back}");
        }

        #[test]
        fn no_number_panics(value in any::<f64>()) {
            latency(value);
            duration(value);
            percent(value);
            LatencyUnit::fitting([value]).cell(Some(value));
        }
    }
}
