//! Request-response: round trips at a rate, or one after the other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SIZE_BYTES_MAX, SpecError};
use crate::probe::case::{Case, RrSize};
use crate::probe::definition::{OneCase, Probe};
use crate::stack::Protocol;

/// Request-response. Open loop where `rate_per_s` is given: requests leave on an absolute
/// schedule, and latency counts from the intended send time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RrSpec {
    /// Requests a second; closed loop (the next when the answer is in) if null, or 0 in TOML, which
    /// has no null.
    #[serde(deserialize_with = "rate_or_closed_loop")]
    pub rate_per_s: Option<f64>,
    /// Measuring time, s.
    pub seconds: f64,
    /// Request and response sizes in bytes, each pair a case of its own.
    pub sizes: Vec<RrSize>,
    /// An answer later than this counts as lost, ms.
    pub deadline_ms: u64,
    /// Warm-up time, ms.
    pub warmup_ms: u64,
}

impl Default for RrSpec {
    fn default() -> RrSpec {
        RrSpec {
            rate_per_s: Some(1_000.0),
            seconds: 5.0,
            sizes: vec![RrSize { request_bytes: 64, response_bytes: 64 }],
            deadline_ms: 1_000,
            warmup_ms: 100,
        }
    }
}

fn rate_or_closed_loop<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.filter(|rate| *rate != 0.0))
}

/// Request-response of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RrWork {
    /// Sizes of request and response.
    pub size: RrSize,
    /// Requests a second; closed loop if absent.
    pub rate_per_s: Option<f64>,
    /// Measuring time, s.
    pub seconds: f64,
    /// Warm-up time, ms.
    pub warmup_ms: u64,
    /// An answer later than this counts as lost, ms.
    pub deadline_ms: u64,
}

impl RrSpec {
    /// The work of one size.
    pub fn of_size(&self, size: RrSize) -> RrWork {
        let RrSpec { rate_per_s, seconds, deadline_ms, warmup_ms, .. } = *self;
        RrWork { size, rate_per_s, seconds, warmup_ms, deadline_ms }
    }
}

impl Probe for RrSpec {
    type Work = RrWork;

    fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        limits::check_not_empty("sizes", &self.sizes)?;
        self.sizes.iter().try_for_each(|&size| self.of_size(size).check(protocol))?;
        limits::check_each_once("sizes", &self.sizes)
    }

    fn cases(&self) -> Vec<Case> {
        self.sizes.iter().map(|&size| self.of_size(size).case()).collect()
    }

    fn work(&self, case: Case) -> Option<RrWork> {
        match case {
            Case::Request { size, rate_per_s } => Some(RrWork { rate_per_s, ..self.of_size(size) }),
            _ => None,
        }
    }

    fn duration_s(&self) -> f64 {
        (self.seconds + self.warmup_ms as f64 / 1e3) * self.sizes.len() as f64
    }
}

impl OneCase for RrWork {
    fn case(&self) -> Case {
        Case::Request { size: self.size, rate_per_s: self.rate_per_s }
    }

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        limits::check("sizes", self.size.request_bytes, 1..=SIZE_BYTES_MAX)?;
        limits::check("sizes", self.size.response_bytes, 1..=SIZE_BYTES_MAX)?;
        limits::check_pause_ms("warmup_ms", self.warmup_ms)?;
        limits::check_ms("deadline_ms", self.deadline_ms)?;
        limits::check_positive("seconds", self.seconds, limits::SECONDS_MAX)?;
        let Some(rate_per_s) = self.rate_per_s else { return Ok(()) };
        limits::check_positive("rate_per_s", rate_per_s, limits::RATE_PER_S_MAX)?;
        limits::check_requests(self.seconds, self.warmup_ms, rate_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_zero_is_a_closed_loop_and_no_rate_is_the_default() {
        let rate = |text: &str| serde_json::from_str::<RrSpec>(text).unwrap().rate_per_s;
        assert_eq!(rate(r#"{"rate_per_s": 0}"#), None);
        assert_eq!(rate(r#"{"rate_per_s": null}"#), None);
        assert_eq!(rate(r#"{"rate_per_s": 50}"#), Some(50.0));
        assert_eq!(rate("{}"), Some(1000.0));
    }
}
