//! The figures of a series: names, units, and whether more is better.

use std::fmt;
use std::str::FromStr;

use crate::named_enum::text_serde;
use crate::words::UnknownWord;

/// One figure of a series.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub enum Metric {
    /// Arithmetic mean, ns.
    Mean,
    /// Smallest sample, ns.
    Min,
    /// 50th percentile, ns.
    Median,
    /// Largest sample, ns.
    Max,
    /// Sample standard deviation, ns.
    Stddev,
    /// A percentile between 0 and 100 other than the 50th, ns.
    Percentile(f64),
    /// Expected shortfall: mean of the slowest 10 %, ns.
    Es10,
    /// Share of samples that never came back, 0 to 1.
    Loss,
    /// Sum of all flows as counted by the receivers, Gb/s (1e9 bits).
    Throughput,
    /// Completed transactions a second.
    Rate,
    /// Share of its time that the thread of the worst CPU was interrupted, 0 to 1.
    TimeLost,
}

/// Percentiles that every latency probe records, 0 to 100.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// What kind of number a metric is, and hence its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Nanoseconds.
    Latency,
    /// 0 to 1.
    Ratio,
    /// Gb/s.
    Throughput,
    /// Per second.
    Rate,
}

impl Metric {
    /// Names that [`FromStr`] accepts, percentiles aside (`p99`, `p99.9`, …).
    pub const NAMES: &'static [&'static str] = &[
        "mean",
        "min",
        "median",
        "max",
        "stddev",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "es10",
        "loss",
        "throughput",
        "rate",
        "time-lost",
    ];

    /// The kind of number.
    pub fn quantity(self) -> Quantity {
        match self {
            Metric::Loss | Metric::TimeLost => Quantity::Ratio,
            Metric::Throughput => Quantity::Throughput,
            Metric::Rate => Quantity::Rate,
            _ => Quantity::Latency,
        }
    }

    /// Whether a larger value is the better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Metric::Throughput | Metric::Rate)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Metric::Mean => "mean",
            Metric::Min => "min",
            Metric::Median => "median",
            Metric::Max => "max",
            Metric::Stddev => "stddev",
            Metric::Percentile(p) => return f.pad(&format!("p{p}")),
            Metric::Es10 => "es10",
            Metric::Loss => "loss",
            Metric::Throughput => "throughput",
            Metric::Rate => "rate",
            Metric::TimeLost => "time-lost",
        };
        f.pad(text)
    }
}

impl FromStr for Metric {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Metric, UnknownWord> {
        let unknown = || UnknownWord::new("metric", text, Metric::NAMES);
        Ok(match text {
            "mean" => Metric::Mean,
            "min" => Metric::Min,
            "median" | "p50" => Metric::Median,
            "max" => Metric::Max,
            "stddev" => Metric::Stddev,
            "es10" => Metric::Es10,
            "loss" => Metric::Loss,
            "throughput" => Metric::Throughput,
            "rate" => Metric::Rate,
            "time-lost" => Metric::TimeLost,
            _ => {
                let percentile: f64 = text
                    .strip_prefix('p')
                    .and_then(|digits| digits.parse().ok())
                    .filter(|p: &f64| (0.0..=100.0).contains(p))
                    .ok_or_else(unknown)?;
                Metric::Percentile(percentile)
            }
        })
    }
}

text_serde!(Metric);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in Metric::NAMES.iter().filter(|n| **n != "p50") {
            assert_eq!(name.parse::<Metric>().unwrap().to_string(), *name);
        }
        assert_eq!("p50".parse::<Metric>(), Ok(Metric::Median));
        assert_eq!("p99.999".parse::<Metric>(), Ok(Metric::Percentile(99.999)));
    }

    #[test]
    fn bad_names_get_a_suggestion() {
        assert_eq!(
            "medain".parse::<Metric>().unwrap_err().to_string(),
            "unknown metric `medain`, did you mean `median`?"
        );
        assert!("p101".parse::<Metric>().is_err());
        assert!("pnan".parse::<Metric>().is_err());
    }
}
