//! The exchange as a probe: its parameters, and the figures of a round other than latencies.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SpecError};
use crate::named_enum::{named_enum, text_serde};
use crate::stack::{Protocol, Stack};

/// Mean size of a message, bytes; sizes run from 200 B to 80 kB as in the published study.
pub const MESSAGE_BYTES: u32 = 800;

/// Round trips longer than this violate the service level, unless the user sets another limit, ms.
pub const SLA_MS: f64 = 10.0;

named_enum!(
    /// When a request counts as done.
    #[derive(Default)]
    Durability, "durability", {
        /// When one mediator has it in memory.
        #[default]
        None = "none",
        /// When most replicas of its cell have it in memory.
        MemoryQuorum = "memory-quorum",
        /// When most replicas of its cell have it on disk.
        DiskQuorum = "disk-quorum",
    }
);

named_enum!(
    /// What orders the load is made of.
    OrderMix, "mix", {
        /// 60 % new orders, 30 % replacements and cancellations, 10 % that trade at once.
        Default = "default",
        /// That of a peer's benchmark: 9 % new, 3 % immediate, 6 % cancelled, 82 % moved.
        ExchangeCore = "exchange-core",
        /// As the published study describes its own: single orders that match others.
        Monterey = "monterey",
    }
);

/// Nodes of each class, gateways first: `2-2-2-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeCounts {
    /// Gateways, routers, mediators, transaction processors.
    pub of_class: [u16; 4],
}

impl NodeCounts {
    /// Most nodes of one class.
    pub const MAX: u16 = 64;

    /// The same number of nodes in each class.
    pub fn each(nodes: u16) -> NodeCounts {
        NodeCounts { of_class: [nodes; 4] }
    }

    /// Nodes in all.
    pub fn total(self) -> u32 {
        self.of_class.iter().map(|nodes| u32::from(*nodes)).sum()
    }

    /// Mediators: capacity grows with their number.
    pub fn mediators(self) -> u16 {
        self.of_class[2]
    }
}

impl fmt::Display for NodeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [gateways, routers, mediators, processors] = self.of_class;
        f.pad(&format!("{gateways}-{routers}-{mediators}-{processors}"))
    }
}

/// A text that is no [`NodeCounts`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size of a network; write gateways-routers-mediators-processors, each from 1 \
     to {max}, such as 2-2-2-2",
    max = NodeCounts::MAX
)]
pub struct NodeCountsError(String);

impl FromStr for NodeCounts {
    type Err = NodeCountsError;

    fn from_str(text: &str) -> Result<NodeCounts, NodeCountsError> {
        let refused = || NodeCountsError(text.to_string());
        let counts: Vec<u16> = text
            .split('-')
            .map(|part| part.parse().ok().filter(|n| (1..=NodeCounts::MAX).contains(n)))
            .collect::<Option<_>>()
            .ok_or_else(refused)?;
        Ok(NodeCounts { of_class: counts.try_into().map_err(|_| refused())? })
    }
}

text_serde!(NodeCounts);

/// A distributed stock exchange under load at a fixed rate: an open loop on an absolute schedule,
/// latency from the intended send to the reply through all four classes of nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExchangeSpec {
    /// Gateways, routers, mediators and transaction processors.
    pub nodes: NodeCounts,
    /// Requests a second.
    pub rate_per_s: f64,
    /// Measuring time, s.
    pub seconds: f64,
    /// Load before the measurement, ms.
    pub warmup_ms: u64,
    /// When a request counts as done.
    pub durability: Durability,
    /// What orders the load is made of.
    pub mix: OrderMix,
    /// Moves of instruments to other cells while they are traded, a minute; zero for none.
    pub moves_per_minute: f64,
}

impl Default for ExchangeSpec {
    fn default() -> ExchangeSpec {
        ExchangeSpec {
            nodes: NodeCounts::each(2),
            rate_per_s: 10_000.0,
            seconds: 5.0,
            warmup_ms: 500,
            durability: Durability::None,
            mix: OrderMix::Default,
            moves_per_minute: 0.0,
        }
    }
}

impl ExchangeSpec {
    /// The layout, followed by each option that is not the default (TCP, no durability, default
    /// mix, no moves): `2-2-2-2`, `2-2-2-2 unix disk-quorum`, `2-2-2-2 accel`,
    /// `2-2-2-2 1000 moves`.
    pub fn name(&self, stack: Stack) -> String {
        let mut words = vec![self.nodes.to_string()];
        words.extend(stack.launcher.map(|launcher| launcher.to_string()));
        if stack.protocol != Protocol::Tcp {
            words.push(stack.protocol.to_string());
        }
        if self.durability != Durability::None {
            words.push(self.durability.to_string());
        }
        if self.mix != OrderMix::Default {
            words.push(self.mix.to_string());
        }
        if self.moves_per_minute > 0.0 {
            words.push(format!("{} moves", self.moves_per_minute));
        }
        words.join(" ")
    }

    /// Checks what types cannot.
    ///
    /// # Errors
    /// The field that is out of range.
    pub fn check(&self) -> Result<(), SpecError> {
        limits::check("rate_per_s", self.rate_per_s, 1.0..=limits::RATE_PER_S_MAX)?;
        limits::check_positive("seconds", self.seconds, limits::EXCHANGE_SECONDS_MAX)?;
        limits::check("warmup_ms", self.warmup_ms, 0..=limits::EXCHANGE_WARMUP_MS_MAX)?;
        let (moves, most) = (self.moves_per_minute, limits::EXCHANGE_MOVES_PER_MINUTE_MAX);
        limits::check("moves_per_minute", moves, 0.0..=most)?;
        if moves > 0.0 && self.nodes.mediators() < 2 {
            let limit = "0 with one mediator: a move needs another cell, so take two or more";
            return Err(SpecError::out_of_range("moves_per_minute", moves, limit.to_string()));
        }
        Ok(())
    }
}

/// The figures of a round of the exchange other than its latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExchangeRound {
    /// Requests a second that the schedule asked for.
    pub offered_per_s: f64,
    /// How late the load generator itself was at the 99th percentile, ns.
    pub lateness_p99_ns: Option<f64>,
    /// How late it was in the mean of the latest 10 % of its requests, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_es10_ns: Option<f64>,
    /// Hash of the stream of orders, hexadecimal: the same seed gives the same.
    pub stream_hash: Option<String>,
    /// Requests that were sent again.
    pub resent: u64,
    /// CPU time by class of node.
    pub cpu: Vec<ClassCpu>,
    /// Latency of each hop; empty unless all nodes share a clock.
    pub hops: Vec<Hop>,
    /// Nodes that were killed, and the effect on clients.
    pub faults: Vec<Fault>,
    /// Moves of instruments to other cells; absent if none were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves: Option<Moves>,
}

/// Moves of instruments between cells while they were traded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Moves {
    /// Moves that the schedule had.
    pub due: u64,
    /// Moves that control was asked for.
    pub asked: u64,
    /// Moves that ended in the new cell.
    pub done: u64,
    /// Moves that were refused: by control, or by the new cell.
    pub refused: u64,
    /// From the request of a move until the answer that it has ended; requests that wait for
    /// others are included.
    pub took: Durations,
    /// Pauses of an instrument: from its release until the announcement of the new cell, as the
    /// old cell's leader measures them. Those of nodes that were killed are missing.
    pub pauses: Durations,
}

/// Durations of the same kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Durations {
    /// How many.
    pub count: u64,
    /// Median, ns; absent without any.
    pub median_ns: Option<f64>,
    /// 99th percentile, ns.
    pub p99_ns: Option<f64>,
    /// Longest, ns.
    pub max_ns: Option<f64>,
}

/// Name of the load generator among the classes.
pub const LOAD: &str = "load";

/// CPU time of the nodes of a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassCpu {
    /// `gateway`, `router`, `mediator` or `processor`; `load` is the generator.
    pub class: String,
    /// How many there are.
    pub nodes: u32,
    /// CPU time of all of them for one transaction, µs; their start and warm-up included.
    pub cpu_us_per_txn: f64,
}

/// One hop of the ring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hop {
    /// Such as `gateway to router`.
    pub name: String,
    /// Arithmetic mean, ns.
    pub mean_ns: f64,
    /// Median, ns.
    pub median_ns: f64,
    /// 99th percentile, ns.
    pub p99_ns: f64,
}

/// A node that was killed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// Such as `mediator 1`.
    pub node: String,
    /// When, s after the start of the measurement.
    pub at_s: f64,
    /// Time from the kill until newly sent requests met the limit again, ms.
    pub back_ms: Option<f64>,
    /// Longest round trip of a request in flight during the fault, ms.
    pub worst_ms: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_node_counts_round_trip_and_invalid_ones_are_refused() {
        for text in ["1-1-1-1", "2-2-2-2", "64-1-2-3"] {
            assert_eq!(text.parse::<NodeCounts>().unwrap().to_string(), text);
        }
        for text in ["", "2", "2-2-2", "0-1-1-1", "65-1-1-1", "2-2-2-2-2", "a-b-c-d", "-1-1-1-1"] {
            let error = text.parse::<NodeCounts>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a size")), "{error}");
            assert!(error.contains("each from 1 to 64, such as 2-2-2-2"), "{error}");
        }
        assert_eq!(NodeCounts::each(16).total(), 64);
    }

    #[test]
    fn names_have_the_layout_and_each_option_that_is_not_default() {
        let plain = ExchangeSpec::default();
        let stack = |text: &str| text.parse::<Stack>().unwrap();
        assert_eq!(plain.name(stack("tcp-epoll")), "2-2-2-2");
        assert_eq!(plain.name(stack("accel+tcp-epoll")), "2-2-2-2 accel");
        let durable = ExchangeSpec { durability: Durability::DiskQuorum, ..plain };
        assert_eq!(durable.name(stack("unix-epoll")), "2-2-2-2 unix disk-quorum");
        let moving = ExchangeSpec { moves_per_minute: 1000.0, ..durable };
        assert_eq!(moving.name(stack("tcp-epoll")), "2-2-2-2 disk-quorum 1000 moves");
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_field() {
        let good = ExchangeSpec::default();
        assert_eq!(good.check(), Ok(()));
        let field = |spec: ExchangeSpec| spec.check().unwrap_err().field();
        assert_eq!(field(ExchangeSpec { rate_per_s: 0.0, ..good.clone() }), "rate_per_s");
        assert_eq!(field(ExchangeSpec { rate_per_s: f64::NAN, ..good.clone() }), "rate_per_s");
        assert_eq!(field(ExchangeSpec { seconds: -1.0, ..good.clone() }), "seconds");
        assert_eq!(field(ExchangeSpec { warmup_ms: 99_999, ..good.clone() }), "warmup_ms");
        let moving = ExchangeSpec { moves_per_minute: 60_000.0, ..good };
        assert_eq!(moving.check(), Ok(()));
        let nodes = "2-2-1-1".parse().unwrap();
        for wrong in [60_001.0, -1.0, f64::NAN] {
            let spec = ExchangeSpec { moves_per_minute: wrong, ..moving.clone() };
            assert_eq!(field(spec), "moves_per_minute");
        }
        assert_eq!(field(ExchangeSpec { nodes, ..moving }), "moves_per_minute");
    }
}
