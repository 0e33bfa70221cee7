//! The compute probe: how fast the processor does a piece of work, alone and beside others.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::named_enum::{named_enum, text_serde};
use crate::words::UnknownWord;

named_enum!(
    /// What a thread of the compute probe does.
    Workload, "workload", {
        /// Digits of π by the program itself.
        Pi = "pi",
        /// Digits of π by the installed `bc`, as the published study did.
        Bc = "bc",
        /// Dependent loads from memory that the caches do not hold.
        Memory = "memory",
        /// Dependent arithmetic in registers.
        Alu = "alu",
    }
);

/// How many threads work at the same time, and where: `2x4` is two threads on each of four cores,
/// `2xN` two on each core there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    /// Threads on each core, or `N` for as many as there are cores.
    pub threads_per_core: Count,
    /// Cores.
    pub cores: Count,
}

/// A number, or the number of cores of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Count {
    /// This many.
    Exactly(u32),
    /// As many as there are cores: `N`.
    AllCores,
}

impl Count {
    /// The number on a machine with `cores` cores.
    pub fn on(self, cores: u32) -> u32 {
        match self {
            Count::Exactly(count) => count,
            Count::AllCores => cores,
        }
    }

    /// Whether a text is `N` or a number of any size.
    fn is(text: &str) -> bool {
        let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        text == "N" || is_number
    }

    fn parse(text: &str) -> Option<Count> {
        if text == "N" {
            return Some(Count::AllCores);
        }
        let count: u32 = text.parse().ok().filter(|_| Count::is(text))?;
        (1..=limits::COMPUTE_THREADS_MAX).contains(&count).then_some(Count::Exactly(count))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::Exactly(count) => count.fmt(f),
            Count::AllCores => f.write_str("N"),
        }
    }
}

impl Layout {
    /// One thread alone.
    pub const SOLO: Layout =
        Layout { threads_per_core: Count::Exactly(1), cores: Count::Exactly(1) };
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.threads_per_core, self.cores))
    }
}

/// Why a text is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It has another form.
    #[error(transparent)]
    Form(#[from] UnknownWord),
    /// A number is zero or too large.
    #[error(
        "layout {text}: threads on a core and cores are 1 to {max}, or N",
        max = limits::COMPUTE_THREADS_MAX
    )]
    OutOfRange {
        /// The text.
        text: String,
    },
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Layout, LayoutError> {
        let parts = text.split_once('x');
        let counts = parts.and_then(|(threads, cores)| {
            Some(Layout { threads_per_core: Count::parse(threads)?, cores: Count::parse(cores)? })
        });
        counts.ok_or_else(|| match parts.is_some_and(|(a, b)| Count::is(a) && Count::is(b)) {
            true => LayoutError::OutOfRange { text: text.to_string() },
            false => UnknownWord::new("layout", text, &["1x1", "1xN", "Nx1", "2xN", "4xN"]).into(),
        })
    }
}

text_serde!(Layout);

/// Work of the processor alone: each workload in each layout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSpec {
    /// What the threads do, each a case of its own.
    pub workloads: Vec<Workload>,
    /// How many threads and where, each a case of its own.
    pub layouts: Vec<Layout>,
    /// Jobs that each thread does in a round.
    pub repeats: u32,
    /// CPUs to use; all that the process may use if empty.
    pub cpus: Vec<u32>,
}

impl Default for ComputeSpec {
    fn default() -> ComputeSpec {
        let layouts = ["1x1", "1xN", "Nx1", "2xN"];
        ComputeSpec {
            workloads: vec![Workload::Pi],
            layouts: layouts.iter().filter_map(|text| text.parse().ok()).collect(),
            repeats: 10,
            cpus: vec![],
        }
    }
}

/// The work of one round; the CPU times of its jobs are the round's latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ComputeRound {
    /// What did the work: `built-in pi, 50000 digits`, `bc 1.07.1`.
    pub implementation: String,
    /// Time in which the jobs were done, s: the sum over the repeats, each from its common start to
    /// the end of its last job.
    pub window_s: f64,
    /// Each thread.
    pub threads: Vec<ThreadWork>,
}

/// The jobs of one thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ThreadWork {
    /// CPU that the thread was pinned to.
    pub cpu: u32,
    /// Jobs done.
    pub jobs: u32,
    /// CPU time of all its jobs in user mode, ns.
    pub user_ns: u64,
    /// From the common start of each repeat to the end of its own job, the sum of all, ns.
    pub real_ns: u64,
    /// Time that it was ready but did not run, ns.
    pub run_delay_ns: Option<u64>,
    /// Time that the hypervisor took from its CPU, ms, in the kernel's 10 ms steps.
    pub steal_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_read_back_and_others_are_refused() {
        for text in ["1x1", "1xN", "Nx1", "2xN", "4xN", "4x8", "256x1"] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
        for text in ["", "x", "0x1", "1x0", "1", "1x", "+1x1", "nx1", "257x1", "1x1x1"] {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
        let refused = "257x1".parse::<Layout>().unwrap_err().to_string();
        assert_eq!(refused, "layout 257x1: threads on a core and cores are 1 to 256, or N");
        assert!(matches!("1x".parse::<Layout>(), Err(LayoutError::Form(_))));
    }
}
