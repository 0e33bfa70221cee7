//! Ping-pong: half round trips of messages, one in flight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SIZE_BYTES_MAX, SpecError};
use crate::metric::PERCENTILES;
use crate::probe::case::Case;
use crate::probe::definition::{OneCase, Probe};
use crate::stack::Protocol;

/// Ping-pong: one message in flight, client and server echo it in turn.
///
/// Method of sfnt-pingpong: for each size a warm-up, then samples until `max_iterations` or
/// `max_ms`, but at least `min_iterations`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PingpongSpec {
    /// Message sizes in bytes.
    pub sizes: Vec<u32>,
    /// Most samples for each size.
    pub max_iterations: u64,
    /// Fewest samples for each size.
    pub min_iterations: u64,
    /// Longest measuring time for each size, ms.
    pub max_ms: u64,
    /// Warm-up time before each size, ms.
    pub warmup_ms: u64,
    /// A message that has not come back after this long is lost (UDP) or an error (TCP), ms.
    pub timeout_ms: u64,
    /// Pause of the client between an answer and the next message, µs: it sleeps, or spins where
    /// its stack spins. It is not part of the samples.
    pub think_time_us: u64,
    /// Percentiles beside the fixed ones, 0 to 100.
    pub percentiles: Vec<f64>,
}

/// sfnt-pingpong's stream sizes: powers of two, 1 to 65536.
pub const PINGPONG_SIZES: [u32; 17] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

impl Default for PingpongSpec {
    fn default() -> PingpongSpec {
        PingpongSpec {
            sizes: PINGPONG_SIZES.to_vec(),
            max_iterations: 1_000_000,
            min_iterations: 1_000,
            max_ms: 3_000,
            warmup_ms: 100,
            timeout_ms: 1_000,
            think_time_us: 0,
            percentiles: vec![],
        }
    }
}

/// A ping-pong of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PingpongWork {
    /// Message size in bytes.
    pub size_bytes: u32,
    /// Most samples.
    pub max_iterations: u64,
    /// Fewest samples.
    pub min_iterations: u64,
    /// Longest measuring time, ms.
    pub max_ms: u64,
    /// Warm-up time, ms.
    pub warmup_ms: u64,
    /// A message that has not come back after this long is lost (UDP) or an error (TCP), ms.
    pub timeout_ms: u64,
    /// Pause of the client between an answer and the next message, µs.
    pub think_time_us: u64,
    /// Percentiles beside the fixed ones, 0 to 100.
    pub percentiles: Vec<f64>,
}

impl PingpongSpec {
    /// The work of one size.
    pub fn of_size(&self, size_bytes: u32) -> PingpongWork {
        PingpongWork {
            size_bytes,
            max_iterations: self.max_iterations,
            min_iterations: self.min_iterations,
            max_ms: self.max_ms,
            warmup_ms: self.warmup_ms,
            timeout_ms: self.timeout_ms,
            think_time_us: self.think_time_us,
            percentiles: self.percentiles.clone(),
        }
    }
}

impl Probe for PingpongSpec {
    type Work = PingpongWork;

    fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        limits::check_not_empty("sizes", &self.sizes)?;
        for &size_bytes in &self.sizes {
            self.of_size(size_bytes).check(protocol)?;
        }
        limits::check_each_once("sizes", &self.sizes)
    }

    fn cases(&self) -> Vec<Case> {
        self.sizes.iter().map(|&size_bytes| self.of_size(size_bytes).case()).collect()
    }

    fn work(&self, case: Case) -> Option<PingpongWork> {
        match case {
            Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => {
                Some(self.of_size(size_bytes))
            }
            _ => None,
        }
    }

    /// It may take longer: the fewest samples are taken whatever their round trip is.
    fn duration_s(&self) -> f64 {
        let pauses_ms = self.min_iterations.saturating_mul(self.think_time_us).div_ceil(1_000);
        let each_ms = self.max_ms.max(pauses_ms) + self.warmup_ms;
        each_ms as f64 / 1e3 * self.sizes.len() as f64
    }

    fn percentiles(&self) -> Vec<f64> {
        let others = self.percentiles.iter().filter(|one| !PERCENTILES.contains(one));
        PERCENTILES.iter().chain(others).copied().collect()
    }
}

impl OneCase for PingpongWork {
    fn case(&self) -> Case {
        let PingpongWork { size_bytes, think_time_us, .. } = *self;
        match think_time_us {
            0 => Case::Message { size_bytes },
            _ => Case::Paced { size_bytes, think_time_us },
        }
    }

    /// Only a datagram may be empty.
    fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        let sizes = protocol.message_bytes_min()..=SIZE_BYTES_MAX;
        limits::check("sizes", self.size_bytes, sizes)?;
        limits::check("max_iterations", self.max_iterations, 1..=limits::ITERATIONS_MAX)?;
        limits::check("min_iterations", self.min_iterations, 0..=limits::ITERATIONS_MAX)?;
        limits::check_count("percentiles", self.percentiles.len(), limits::PERCENTILES_MAX)?;
        for &percentile in &self.percentiles {
            limits::check("percentiles", percentile, 0.0..=100.0)?;
        }
        limits::check("think_time_us", self.think_time_us, 0..=limits::THINK_TIME_US_MAX)?;
        let pauses_s = self.min_iterations as f64 * self.think_time_us as f64 / 1e6;
        if pauses_s > limits::SECONDS_MAX {
            let limit = format!("such that min_iterations take at most {} s", limits::SECONDS_MAX);
            return Err(SpecError::out_of_range("think_time_us", self.think_time_us, limit));
        }
        limits::check_pause_ms("warmup_ms", self.warmup_ms)?;
        limits::check_ms("max_ms", self.max_ms)?;
        limits::check_ms("timeout_ms", self.timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_makes_another_case() {
        let spec = PingpongSpec { sizes: vec![64], ..PingpongSpec::default() };
        assert_eq!(spec.cases(), [Case::Message { size_bytes: 64 }]);
        let paced = PingpongSpec { think_time_us: 5, ..spec };
        assert_eq!(paced.cases(), [Case::Paced { size_bytes: 64, think_time_us: 5 }]);
    }

    #[test]
    fn numbers_beyond_the_limits_are_refused_with_their_field() {
        let pingpong = |spec: PingpongSpec| spec.check(Protocol::Tcp).unwrap_err().to_string();
        assert_eq!(PingpongSpec::default().check(Protocol::Tcp), Ok(()));
        let twice = PingpongSpec { sizes: vec![1, 1], ..PingpongSpec::default() };
        assert!(pingpong(twice).starts_with("sizes"));
        let warmup = PingpongSpec { warmup_ms: u64::MAX, ..PingpongSpec::default() };
        assert!(pingpong(warmup).starts_with("warmup_ms is 18446744073709551615, must be 0 to"));
        let percentiles = PingpongSpec { percentiles: vec![1.0; 101], ..PingpongSpec::default() };
        assert_eq!(pingpong(percentiles), "percentiles has 101 values, must have at most 100");
        let think = |min_iterations, think_time_us| PingpongSpec {
            min_iterations,
            think_time_us,
            ..PingpongSpec::default()
        };
        assert!(pingpong(think(1, 1_000_001)).ends_with("1000001, must be 0 to 1000000"));
        assert!(pingpong(think(100_000, 1_000_000)).contains("min_iterations take at most 86400"));
        assert_eq!(think(100, 1_000_000).duration_s(), 17.0 * 100.1);
    }
}
