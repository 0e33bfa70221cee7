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

    /// The cells of a column whose heading names the unit, all with the same number of decimals:
    /// four digits of the smallest value, but none below 0.1 ns.
    pub fn column(self, ns: &[Option<f64>]) -> Vec<String> {
        let scaled: Vec<Option<f64>> = ns.iter().map(|ns| ns.map(|ns| ns / self.ns())).collect();
        let precision = Precision::of(scaled.iter().copied().flatten(), 4, self.decimals_max());
        scaled.into_iter().map(|value| precision.cell(value)).collect()
    }

    fn decimals_max(self) -> usize {
        match self {
            LatencyUnit::Nanoseconds => 1,
            LatencyUnit::Microseconds => 3,
            LatencyUnit::Milliseconds | LatencyUnit::Seconds => 4,
        }
    }
}

/// The number of decimals that all values of a column have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Digits behind the point.
    pub decimals: usize,
}

impl Precision {
    /// As many decimals as show `digits` digits of the value nearest to zero, at most
    /// `decimals_max`. Zeros and values that are not finite have no say.
    pub fn of(
        values: impl IntoIterator<Item = f64>,
        digits: usize,
        decimals_max: usize,
    ) -> Precision {
        let sizes = values.into_iter().map(f64::abs).filter(|v| *v > 0.0 && v.is_finite());
        let decimals = sizes.reduce(f64::min).map_or(0, |smallest| {
            let magnitude = smallest.log10().floor() as i64;
            (digits as i64 - 1 - magnitude).clamp(0, decimals_max as i64) as usize
        });
        Precision { decimals }
    }

    /// `value` with this number of decimals.
    pub fn text(self, value: f64) -> String {
        // Adding zero turns -0 into 0.
        format!("{:.*}", self.decimals, value + 0.0)
    }

    /// A cell: the text of the value, or `n/a`.
    pub fn cell(self, value: Option<f64>) -> String {
        or_not_available(value, |value| self.text(value))
    }
}

/// Cells of a column of figures with equal precision: `digits` digits of the smallest, at most
/// `decimals_max` decimals.
pub fn column(values: &[Option<f64>], digits: usize, decimals_max: usize) -> Vec<String> {
    let precision = Precision::of(values.iter().copied().flatten(), digits, decimals_max);
    values.iter().map(|value| precision.cell(*value)).collect()
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

/// Figures of `metric` with their unit, all with the same unit and precision.
pub fn figure_column(metric: Metric, values: &[Option<f64>]) -> Vec<String> {
    let (cells, unit) = match metric.quantity() {
        Quantity::Latency => {
            let unit = LatencyUnit::fitting(values.iter().copied().flatten());
            (unit.column(values), format!(" {}", unit.name()))
        }
        Quantity::Ratio => {
            let percents: Vec<_> = values.iter().map(|v| v.map(|v| v * 100.0)).collect();
            (column(&percents, 3, 4), " %".to_string())
        }
        Quantity::Throughput => (column(values, 4, 3), " Gb/s".to_string()),
        Quantity::Rate => (column(values, 4, 1), "/s".to_string()),
    };
    let with_unit = |cell: String| match cell == NOT_AVAILABLE {
        true => cell,
        false => cell + &unit,
    };
    cells.into_iter().map(with_unit).collect()
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
        let cells = unit.column(&[Some(1421.0), Some(39_777_123.4), None, Some(0.0)]);
        assert_eq!(cells, ["1.421", "39777.123", "n/a", "0.000"]);
        assert_eq!(unit.column(&[Some(85.0), Some(581_000.0)]), ["0.085", "581.000"]);
        assert_eq!(unit.column(&[Some(76_270.0), Some(3_874_200.0)]), ["76.27", "3874.20"]);
        assert_eq!(LatencyUnit::Nanoseconds.column(&[Some(41.26), None]), ["41.3", "n/a"]);
        assert_eq!(LatencyUnit::fitting([]), LatencyUnit::Microseconds);
    }

    #[test]
    fn a_column_of_figures_has_one_unit() {
        let cells = figure_column(Metric::Median, &[Some(812.0), Some(20_421.0), None]);
        assert_eq!(cells, ["0.812 µs", "20.421 µs", "n/a"]);
        assert_eq!(figure_column(Metric::Loss, &[Some(0.0), Some(0.5)]), ["0.0 %", "50.0 %"]);
        assert_eq!(figure_column(Metric::Rate, &[Some(999.0)]), ["999.0/s"]);
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
            LatencyUnit::fitting([value]).column(&[Some(value)]);
        }

        #[test]
        fn a_column_has_one_precision(
            values in prop::collection::vec(prop::option::of(1e-3f64..1e9), 1..9),
            digits in 1usize..6,
            decimals_max in 0usize..6,
        ) {
            let decimals = |cell: &String| cell.split_once('.').map_or(0, |(_, d)| d.len());
            let cells = column(&values, digits, decimals_max);
            let known: Vec<&String> = cells.iter().filter(|c| *c != NOT_AVAILABLE).collect();
            prop_assert_eq!(known.len(), values.iter().flatten().count());
            prop_assert!(known.iter().all(|c| decimals(c) == decimals(known[0])), "{:?}", cells);
            prop_assert!(known.iter().all(|c| decimals(c) <= decimals_max));
        }
    }
}
