//! The cases of probes: what one series measures. A case names a point of a sweep; what an agent
//! needs to measure it is a work.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compute::{Layout, Workload};
use crate::limits::SIZE_BYTES_MAX;
use crate::named_enum::{named_enum, text_serde};
use crate::words::UnknownWord;

named_enum!(
    /// One of the two endpoints of an environment.
    Side, "side", {
        /// The end that sends first; `A` in flow directions.
        Client = "client",
        /// The end that answers; `B` in flow directions.
        Server = "server",
    }
);

impl Side {
    /// The opposite end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// How the flows of a stream run: `N-uni-N` is N flows from client to server; `N-bi-N` is N flows,
/// half in each direction (so N is even).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// Number of flows in all, 1 to 256.
    pub flows: u32,
    /// Whether half of them run from server to client.
    pub bidirectional: bool,
}

impl Pattern {
    /// The largest number of flows.
    pub const MAX_FLOWS: u32 = 256;

    /// The end that sends on flow `index` (counted from 0): even flows run from the client, and in
    /// a bidirectional pattern odd flows from the server.
    pub fn sender(self, index: u32) -> Side {
        if self.bidirectional && index % 2 == 1 { Side::Server } else { Side::Client }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.bidirectional { "bi" } else { "uni" };
        f.pad(&format!("{}-{direction}-{}", self.flows, self.flows))
    }
}

/// A text that is no [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown pattern `{0}`: write N-uni-N or N-bi-N, such as 2-bi-2, with N from 1 to {max}, even \
     for bi",
    max = Pattern::MAX_FLOWS
)]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let unknown = || PatternError(text.to_string());
        let parts: Vec<&str> = text.split('-').collect();
        let [left, direction, right] = parts[..] else { return Err(unknown()) };
        let flows: u32 = left.parse().map_err(|_| unknown())?;
        let bidirectional = match direction {
            "uni" => false,
            "bi" => true,
            _ => return Err(unknown()),
        };
        let fits = left == right
            && (1..=Pattern::MAX_FLOWS).contains(&flows)
            && !(bidirectional && flows % 2 == 1);
        if fits { Ok(Pattern { flows, bidirectional }) } else { Err(unknown()) }
    }
}

text_serde!(Pattern);

/// Sizes of one request and its response: `64` or `64,1000` in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RrSize {
    /// Bytes of the request, 1 to [`SIZE_BYTES_MAX`].
    pub request_bytes: u32,
    /// Bytes of the response, 1 to [`SIZE_BYTES_MAX`].
    pub response_bytes: u32,
}

impl fmt::Display for RrSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.request_bytes == self.response_bytes {
            f.pad(&self.request_bytes.to_string())
        } else {
            f.pad(&format!("{},{}", self.request_bytes, self.response_bytes))
        }
    }
}

/// A text that is no [`RrSize`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("size `{0}` must be a number of bytes from 1 to {SIZE_BYTES_MAX}, or two, such as 64,1000")]
pub struct RrSizeError(String);

impl FromStr for RrSize {
    type Err = RrSizeError;

    fn from_str(text: &str) -> Result<RrSize, RrSizeError> {
        let size = |part: &str| {
            part.trim()
                .parse::<u32>()
                .ok()
                .filter(|n| (1..=SIZE_BYTES_MAX).contains(n))
                .ok_or_else(|| RrSizeError(text.to_string()))
        };
        let (request, response) = text.split_once(',').unwrap_or((text, text));
        Ok(RrSize { request_bytes: size(request)?, response_bytes: size(response)? })
    }
}

text_serde!(RrSize);

/// One point of a probe's sweep: what a single agent task measures.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "case", rename_all = "lowercase")]
pub enum Case {
    /// A ping-pong message.
    Message {
        /// Bytes of the message.
        size_bytes: u32,
    },
    /// A ping-pong message after a pause.
    Paced {
        /// Bytes of the message.
        size_bytes: u32,
        /// The pause before it, µs.
        think_time_us: u64,
    },
    /// Flows of a stream.
    Flows {
        /// Number and direction.
        pattern: Pattern,
        /// Bytes of one write.
        write_bytes: u32,
    },
    /// A request and its response.
    Request {
        /// Bytes of both.
        size: RrSize,
        /// Requests a second; closed loop if absent.
        rate_per_s: Option<f64>,
    },
    /// Work of the processor in a layout of threads.
    Layout {
        /// What the threads do.
        workload: Workload,
        /// How many, and where.
        layout: Layout,
    },
    /// A run without a sweep, such as the total of a published throughput table.
    #[serde(rename = "whole")]
    Total,
}

impl Case {
    /// Message or request size in bytes, where the case has one.
    pub fn size_bytes(&self) -> Option<u32> {
        match self {
            Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => Some(*size_bytes),
            Case::Request { size, .. } => Some(size.request_bytes),
            Case::Flows { .. } | Case::Layout { .. } | Case::Total => None,
        }
    }

    /// Requests a second of an open loop.
    pub fn rate_per_s(&self) -> Option<f64> {
        match self {
            Case::Request { rate_per_s, .. } => *rate_per_s,
            _ => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Case::Message { size_bytes } => format!("{size_bytes} B"),
            Case::Paced { size_bytes, think_time_us } => {
                format!("{size_bytes} B, think time {think_time_us} us")
            }
            Case::Flows { pattern, write_bytes } => format!("{pattern}, {write_bytes} B writes"),
            Case::Request { size, rate_per_s: Some(rate) } => format!("{size} B at {rate}/s"),
            Case::Request { size, rate_per_s: None } => format!("{size} B closed loop"),
            Case::Layout { workload, layout } => format!("{workload} {layout}"),
            Case::Total => "whole".to_string(),
        };
        f.pad(&text)
    }
}

/// Reads what [`fmt::Display`] writes.
impl FromStr for Case {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Case, UnknownWord> {
        let known =
            ["64 B", "1-uni-1, 131072 B writes", "64 B at 1000/s", "64 B closed loop", "pi 2xN"];
        let case = || {
            if text == "whole" {
                return Some(Case::Total);
            }
            if let Some(rest) = text.strip_suffix(" B writes") {
                let (pattern, write_bytes) = rest.split_once(", ")?;
                let pattern = pattern.parse().ok()?;
                return Some(Case::Flows { pattern, write_bytes: write_bytes.parse().ok()? });
            }
            if let Some((size, pause)) = text.split_once(" B, think time ") {
                let think_time_us = pause.strip_suffix(" us")?.parse().ok()?;
                return Some(Case::Paced { size_bytes: size.parse().ok()?, think_time_us });
            }
            if let Some(size) = text.strip_suffix(" B closed loop") {
                return Some(Case::Request { size: size.parse().ok()?, rate_per_s: None });
            }
            if let Some((workload, layout)) = text.split_once(' ')
                && let (Ok(workload), Ok(layout)) = (workload.parse(), layout.parse())
            {
                return Some(Case::Layout { workload, layout });
            }
            if let Some((size, rate)) = text.split_once(" B at ") {
                let rate: f64 = rate.strip_suffix("/s")?.parse().ok()?;
                let rate = Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)?;
                return Some(Case::Request { size: size.parse().ok()?, rate_per_s: Some(rate) });
            }
            Some(Case::Message { size_bytes: text.strip_suffix(" B")?.parse().ok()? })
        };
        case().ok_or_else(|| UnknownWord::new("case", text, &known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_read_back_and_odd_bidirectional_ones_are_refused() {
        for text in ["1-uni-1", "2-uni-2", "2-bi-2", "8-bi-8"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in ["0-uni-0", "3-bi-3", "2-uni-3", "2-up-2", "999-uni-999", "x"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        let pattern: Pattern = "2-bi-2".parse().unwrap();
        assert_eq!((pattern.sender(0), pattern.sender(1)), (Side::Client, Side::Server));
    }

    #[test]
    fn request_sizes_read_back() {
        for text in ["64", "1,100000"] {
            assert_eq!(text.parse::<RrSize>().unwrap().to_string(), text);
        }
        assert!("0".parse::<RrSize>().is_err());
        assert!("99999999999".parse::<RrSize>().is_err());
    }

    #[test]
    fn cases_read_back() {
        let size = RrSize { request_bytes: 1, response_bytes: 100_000 };
        for case in [
            Case::Message { size_bytes: 64 },
            Case::Paced { size_bytes: 64, think_time_us: 1000 },
            Case::Flows { pattern: "2-bi-2".parse().unwrap(), write_bytes: 16_384 },
            Case::Request { size, rate_per_s: Some(1000.0) },
            Case::Request { size, rate_per_s: Some(0.25) },
            Case::Request { size, rate_per_s: None },
            Case::Layout { workload: Workload::Pi, layout: "2xN".parse().unwrap() },
            Case::Total,
        ] {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in ["", "64", "-1 B", "3-bi-3, 1 B writes", "64 B at x/s", "0 B closed loop"] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
    }
}
