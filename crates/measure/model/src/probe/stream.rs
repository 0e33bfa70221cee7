//! Stream: the throughput of parallel flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SIZE_BYTES_MAX, SpecError};
use crate::metric::Metric;
use crate::named_enum::named_enum;
use crate::probe::case::{Case, Pattern};
use crate::probe::definition::{OneCase, Probe};
use crate::stack::Protocol;

named_enum!(
    /// The defaults of another tool, so that figures of both compare like for like.
    Preset, "preset", {
        /// netperf: 16 KiB writes.
        Netperf = "netperf",
        /// nuttcp: 64 KiB writes.
        Nuttcp = "nuttcp",
        /// iperf3: 128 KiB writes.
        Iperf3 = "iperf3",
    }
);

impl Preset {
    /// Bytes of one write by that tool's defaults.
    pub fn write_bytes(self) -> u32 {
        match self {
            Preset::Netperf => 16 * 1024,
            Preset::Nuttcp => 64 * 1024,
            Preset::Iperf3 => 128 * 1024,
        }
    }
}

/// Bulk throughput of parallel flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSpec {
    /// Flow patterns, each a case of its own.
    pub patterns: Vec<Pattern>,
    /// Measuring time, s; counted at the receivers after `omit_ms`.
    pub seconds: f64,
    /// Time from the common start that is not counted, ms.
    pub omit_ms: u64,
    /// Bytes of one write.
    pub write_bytes: u32,
    /// Congestion control by name; the host's default if absent.
    pub congestion: Option<String>,
    /// `SO_SNDBUF` and `SO_RCVBUF`, bytes; the kernel's own tuning if absent.
    pub buffer_bytes: Option<u32>,
    /// The other tool whose defaults were taken, if any.
    pub preset: Option<Preset>,
    /// Coefficient of variation over rounds above which the result is called unstable, %.
    pub max_cv_percent: f64,
}

impl Default for StreamSpec {
    fn default() -> StreamSpec {
        StreamSpec {
            patterns: vec![Pattern { flows: 1, bidirectional: false }],
            seconds: 10.0,
            omit_ms: 200,
            write_bytes: 128 * 1024,
            congestion: None,
            buffer_bytes: None,
            preset: None,
            max_cv_percent: 1.0,
        }
    }
}

/// A stream of one pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamWork {
    /// Number and direction of the flows.
    pub pattern: Pattern,
    /// Measuring time, s; counted at the receivers after `omit_ms`.
    pub seconds: f64,
    /// Time from the common start that is not counted, ms.
    pub omit_ms: u64,
    /// Bytes of one write.
    pub write_bytes: u32,
    /// Congestion control by name; the host's default if absent.
    pub congestion: Option<String>,
    /// `SO_SNDBUF` and `SO_RCVBUF`, bytes; the kernel's own tuning if absent.
    pub buffer_bytes: Option<u32>,
    /// The other tool whose defaults were taken, if any.
    pub preset: Option<Preset>,
    /// Coefficient of variation over rounds above which the result is called unstable, %.
    pub max_cv_percent: f64,
}

impl StreamSpec {
    /// The work of one pattern.
    pub fn of_pattern(&self, pattern: Pattern) -> StreamWork {
        StreamWork {
            pattern,
            seconds: self.seconds,
            omit_ms: self.omit_ms,
            write_bytes: self.write_bytes,
            congestion: self.congestion.clone(),
            buffer_bytes: self.buffer_bytes,
            preset: self.preset,
            max_cv_percent: self.max_cv_percent,
        }
    }
}

impl Probe for StreamSpec {
    type Work = StreamWork;

    /// A preset is another tool's write size, unless it is given itself.
    fn completed(self, given: &[String]) -> StreamSpec {
        match self.preset {
            Some(preset) if !given.iter().any(|name| name == "write_bytes") => {
                StreamSpec { write_bytes: preset.write_bytes(), ..self }
            }
            _ => self,
        }
    }

    fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
        limits::check_not_empty("patterns", &self.patterns)?;
        limits::check_each_once("patterns", &self.patterns)?;
        self.patterns.iter().try_for_each(|&one| self.of_pattern(one).check(protocol))
    }

    fn cases(&self) -> Vec<Case> {
        self.patterns.iter().map(|&pattern| self.of_pattern(pattern).case()).collect()
    }

    fn work(&self, case: Case) -> Option<StreamWork> {
        match case {
            Case::Flows { pattern, .. } => Some(self.of_pattern(pattern)),
            _ => None,
        }
    }

    fn duration_s(&self) -> f64 {
        (self.seconds + self.omit_ms as f64 / 1e3) * self.patterns.len() as f64
    }

    fn records(&self, metric: Metric) -> bool {
        metric == Metric::Throughput
    }

    /// It does not measure latency.
    fn percentiles(&self) -> Vec<f64> {
        vec![]
    }
}

impl OneCase for StreamWork {
    fn case(&self) -> Case {
        Case::Flows { pattern: self.pattern, write_bytes: self.write_bytes }
    }

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        limits::check("write_bytes", self.write_bytes, 1..=SIZE_BYTES_MAX)?;
        limits::check("patterns", self.pattern.flows, 1..=Pattern::MAX_FLOWS)?;
        let write_bytes_max = limits::STREAM_BYTES_MAX / u64::from(self.pattern.flows);
        if u64::from(self.write_bytes) > write_bytes_max {
            let limit = format!("at most {write_bytes_max} in {}", self.pattern);
            return Err(SpecError::out_of_range("write_bytes", self.write_bytes, limit));
        }
        if let Some(name) = &self.congestion
            && name.len() > limits::CONGESTION_BYTES_MAX
        {
            let shown: String = name.chars().take(40).collect();
            let limit = format!("a name of at most {} bytes", limits::CONGESTION_BYTES_MAX);
            return Err(SpecError::out_of_range("congestion", shown, limit));
        }
        if let Some(bytes) = self.buffer_bytes {
            limits::check("buffer_bytes", bytes, 0..=limits::BUFFER_BYTES_MAX)?;
        }
        limits::check("max_cv_percent", self.max_cv_percent, 0.0..=limits::CV_PERCENT_MAX)?;
        limits::check_pause_ms("omit_ms", self.omit_ms)?;
        limits::check_positive("seconds", self.seconds, limits::SECONDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_beyond_the_limits_are_refused_with_their_field() {
        let stream = |spec: StreamSpec| spec.check(Protocol::Tcp).unwrap_err().to_string();
        let default = StreamSpec::default();
        assert_eq!(default.check(Protocol::Tcp), Ok(()));
        let pattern = Pattern { flows: 256, bidirectional: false };
        let large =
            StreamSpec { patterns: vec![pattern], write_bytes: 16 << 20, ..default.clone() };
        assert_eq!(
            stream(large),
            "write_bytes is 16777216, must be at most 4194304 in 256-uni-256"
        );
        let nothing = StreamSpec { write_bytes: 0, ..default.clone() };
        assert_eq!(stream(nothing), "write_bytes is 0, must be 1 to 16777216");
        let name = StreamSpec { congestion: Some("x".repeat(16)), ..default.clone() };
        assert!(stream(name).starts_with("congestion is xxxxxxxxxxxxxxxx, must be a name of"));
        let buffer = StreamSpec { buffer_bytes: Some(u32::MAX), ..default.clone() };
        assert_eq!(stream(buffer), "buffer_bytes is 4294967295, must be 0 to 1073741824");
        let omit = StreamSpec { omit_ms: 86_400_001, ..default };
        assert_eq!(stream(omit), "omit_ms is 86400001, must be 0 to 86400000");
    }
}
