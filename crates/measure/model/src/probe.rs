//! What is measured: the probes with their parameters, and the cases that one probe is split into.
//!
//! A probe is a file of this folder and a line of the table below. It has its specification, its
//! cases, and what an agent is asked to do for each.

pub mod case;
mod compute;
mod definition;
mod exchange;
mod jitter;
pub mod pingpong;
pub mod rr;
pub mod stream;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compute::ComputeSpec;
use crate::exchange::ExchangeSpec;
use crate::jitter::JitterSpec;
pub use crate::limits::SIZE_BYTES_MAX;
use crate::limits::SpecError;
use crate::metric::Metric;
use crate::named_enum::named_enum;
use crate::stack::{Protocol, StackPair};
use crate::value_type;
pub use case::{Case, Pattern, PatternError, RrSize, RrSizeError, Side};
pub use compute::ComputeWork;
use definition::{OneCase, Probe};
pub use pingpong::{PINGPONG_SIZES, PingpongSpec, PingpongWork};
pub use rr::{RrSpec, RrWork};
pub use stream::{Preset, StreamSpec, StreamWork};

/// Defines the kinds of probe, their specifications, and the work of an agent.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident = $text:literal: $spec:ident $(=> $work:ident)?;)+) => {
        named_enum!(
            /// The kinds of probe.
            ProbeKind, "probe", { $($(#[$doc])* $name = $text),+ }
        );

        impl ProbeKind {
            /// The parameters of a probe with their defaults.
            pub(crate) fn default_fields(self) -> serde_json::Result<Value> {
                match self { $(ProbeKind::$name => serde_json::to_value($spec::default())),+ }
            }

            /// Whether both ends exchange bytes over a stack. The other probes measure the
            /// client's machine alone.
            pub fn uses_network(self) -> bool {
                match self { $(ProbeKind::$name => <$spec as Probe>::USES_NETWORK),+ }
            }
        }

        /// A probe with its parameters, as a plan's `[[trials]]` block or a command's flags give
        /// them.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "probe", rename_all = "lowercase")]
        pub enum ProbeSpec {
            $(
                #[doc = concat!("See [`", stringify!($spec), "`].")]
                $name($spec)
            ),+
        }

        impl ProbeSpec {
            /// Reads the parameters of a probe; without one it has its default.
            pub(crate) fn decode(
                kind: ProbeKind,
                fields: Map<String, Value>,
            ) -> Result<ProbeSpec, String> {
                let given: Vec<String> = fields.keys().cloned().collect();
                match kind {
                    $(ProbeKind::$name => value_type::decode::<$spec>(fields)
                        .map(|spec| ProbeSpec::$name(spec.completed(&given)))),+
                }
            }

            /// The kind of this probe.
            pub fn kind(&self) -> ProbeKind {
                match self { $(ProbeSpec::$name(_) => ProbeKind::$name),+ }
            }

            /// The stack in the keys of this probe's series over `stacks`: the name of the stacks,
            /// or the layout of the exchange with its options.
            pub fn stack_name(&self, stacks: &StackPair) -> String {
                match self { $(ProbeSpec::$name(spec) => spec.stack_name(stacks)),+ }
            }

            /// Whether the rounds of this probe have the figure, samples permitting.
            pub fn records(&self, metric: Metric) -> bool {
                match self { $(ProbeSpec::$name(spec) => spec.records(metric)),+ }
            }

            /// The percentiles that its rounds have, samples permitting, 0 to 100; none if it does
            /// not measure latency.
            pub fn percentiles(&self) -> Vec<f64> {
                match self { $(ProbeSpec::$name(spec) => spec.percentiles()),+ }
            }

            /// Checks what types cannot: ranges and combinations with `protocol`.
            ///
            /// # Errors
            /// The field that is out of range.
            pub fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
                match self { $(ProbeSpec::$name(spec) => Probe::check(spec, protocol)),+ }
            }

            /// The single cases of this probe, in order.
            pub fn cases(&self) -> Vec<Case> {
                match self { $(ProbeSpec::$name(spec) => spec.cases()),+ }
            }

            /// How long one round of all cases measures, s, without set-up. It may take longer: the
            /// fewest samples are taken whatever their round trip is, and jobs of the processor are
            /// finished.
            pub fn duration_s(&self) -> f64 {
                match self { $(ProbeSpec::$name(spec) => spec.duration_s()),+ }
            }

            /// What an agent is asked to do for a case; none if the case is another probe's, or no
            /// agent measures it.
            pub fn work(&self, case: Case) -> Option<Work> {
                match self {
                    $($(ProbeSpec::$name(spec) => {
                        spec.work(case).map(Work::$name as fn($work) -> Work)
                    })?)+
                    _ => None,
                }
            }
        }

        /// What an agent is asked to do: one case, with parameters of its own.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "work", rename_all = "lowercase")]
        pub enum Work {
            $($(
                #[doc = concat!("See [`", stringify!($work), "`].")]
                $name($work),
            )?)+
        }

        impl Work {
            /// The case that it measures.
            pub fn case(&self) -> Case {
                match self { $($(Work::$name(work) => <$work as OneCase>::case(work),)?)+ }
            }

            /// Checks all numbers against the limits of a plan.
            ///
            /// # Errors
            /// The field that is out of range.
            pub fn check(&self, protocol: Protocol) -> Result<(), SpecError> {
                match self {
                    $($(Work::$name(work) => <$work as OneCase>::check(work, protocol),)?)+
                }
            }
        }
    };
}

probes! {
    /// Closed-loop ping-pong: half round trip.
    Pingpong = "pingpong": PingpongSpec => PingpongWork;
    /// Bulk flows in one or both directions: throughput.
    Stream = "stream": StreamSpec => StreamWork;
    /// Request-response, open loop at a rate or closed loop: full round trip.
    Rr = "rr": RrSpec => RrWork;
    /// Work of the processor alone.
    Compute = "compute": ComputeSpec => ComputeWork;
    /// Interruptions of a spinning thread.
    Jitter = "jitter": JitterSpec => JitterSpec;
    /// The distributed stock exchange.
    Exchange = "exchange": ExchangeSpec;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_each_case_measures_it_and_holds_no_sweep() {
        for text in [
            r#"{"probe": "pingpong", "sizes": [1, 64]}"#,
            r#"{"probe": "pingpong", "sizes": [64], "think_time_us": 5}"#,
            r#"{"probe": "stream", "patterns": ["1-uni-1", "2-bi-2"]}"#,
            r#"{"probe": "rr", "sizes": ["64", "1,1000"]}"#,
            r#"{"probe": "compute"}"#,
            r#"{"probe": "jitter"}"#,
        ] {
            let probe: ProbeSpec = serde_json::from_str(text).unwrap();
            assert!(!probe.cases().is_empty());
            for case in probe.cases() {
                let work = probe.work(case).unwrap();
                assert_eq!(work.case(), case, "{text}");
                assert_eq!(work.check(Protocol::Tcp), Ok(()), "{text}");
                let line = serde_json::to_string(&work).unwrap();
                assert_eq!(serde_json::from_str::<Work>(&line).unwrap(), work);
                for sweep in ["sizes", "patterns", "layouts", "workloads"] {
                    assert!(!line.contains(sweep), "{line}");
                }
            }
            let other = Case::Message { size_bytes: 7 };
            let other = if probe.kind() == ProbeKind::Pingpong { Case::Total } else { other };
            assert_eq!(probe.work(other), None, "{text}");
        }
        let exchange = ProbeSpec::Exchange(ExchangeSpec::default());
        assert_eq!(exchange.work(exchange.cases()[0]), None, "no agent measures it");
    }
}
