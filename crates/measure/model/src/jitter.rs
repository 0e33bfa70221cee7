//! The jitter probe: how long threads that spin are interrupted, and by what.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::{self, SpecError};
use crate::percentile::PercentileValue;

/// Interruptions of threads that do nothing but read the clock, one on each CPU, all at the same
/// time. A gap is the time between two readings where it is at least the threshold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JitterSpec {
    /// Measuring time, s.
    pub seconds: f64,
    /// Shortest time between two readings that counts as a gap, ns; chosen from the smallest step
    /// of the clock if absent.
    pub threshold_ns: Option<u64>,
    /// CPUs to measure; all that the process may use if empty.
    pub cpus: Vec<u32>,
    /// Whether to trace the kernel, where it allows that, to name what takes the time. It lengthens
    /// each interruption a little and each round by about a second, so plans do not unless they say
    /// so; without it names are estimated from counters.
    pub trace: bool,
}

impl Default for JitterSpec {
    fn default() -> JitterSpec {
        JitterSpec { seconds: 5.0, threshold_ns: None, cpus: vec![], trace: false }
    }
}

impl JitterSpec {
    /// Checks the ranges.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let seconds = limits::JITTER_SECONDS_MIN..=limits::JITTER_SECONDS_MAX;
        limits::check("seconds", self.seconds, seconds)?;
        if let Some(threshold_ns) = self.threshold_ns {
            let of_round = (self.seconds * 1e9) as u64 / limits::JITTER_THRESHOLDS_MIN;
            let max = of_round.min(limits::JITTER_THRESHOLD_NS_MAX);
            limits::check("threshold_ns", threshold_ns, 1..=max)?;
        }
        limits::check_count("cpus", self.cpus.len(), limits::CPUS_MAX)
    }
}

/// What interrupted the threads of one round; the lengths of the gaps are the round's latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JitterRound {
    /// Shortest gap that was counted, ns.
    pub threshold_ns: u64,
    /// Measuring time, s.
    pub window_s: f64,
    /// Length of a slice of [`CpuJitter::slices`], ms.
    pub slice_ms: f64,
    /// Whether a hypervisor is below this system; absent if unknown.
    pub is_guest: Option<bool>,
    /// How the culprits were found; absent in results of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naming: Option<Naming>,
    /// The gaps of all CPUs, each counted as many times as it has ns: the distribution of lost
    /// time, as an HdrHistogram V2 with deflate, base64; values are ns.
    pub lost_histogram: Option<String>,
    /// Each CPU that was measured.
    pub cpus: Vec<CpuJitter>,
}

impl JitterRound {
    /// Largest share of its time that a CPU's thread lost, 0 to 1.
    pub fn time_lost(&self) -> Option<f64> {
        let shares = self.cpus.iter().filter_map(CpuJitter::share_lost);
        shares.max_by(f64::total_cmp)
    }

    /// What to call lost time that is not explained: by what is known to exist below the system.
    pub fn below_system_name(&self, cpu: &CpuJitter) -> &'static str {
        match (self.is_guest, cpu.counted.firmware_interrupts) {
            (_, Some(1..)) => "below the OS (firmware interrupts were counted)",
            (Some(true), _) => "below the OS (hypervisor)",
            (Some(false), _) => "below the OS (hardware or firmware)",
            (None, _) => "below the OS",
        }
    }
}

/// What the thread on one CPU lost, and to what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuJitter {
    /// Which CPU.
    pub cpu: u32,
    /// Time that the thread watched, ns.
    pub elapsed_ns: u64,
    /// Number of gaps.
    pub gaps: u64,
    /// Sum of the gaps, ns.
    pub lost_ns: u64,
    /// Longest gap, ns.
    pub longest_ns: u64,
    /// Gaps in which the kernel ran another thread; absent where that cannot be seen.
    pub preempted_gaps: Option<u64>,
    /// Sum of these gaps, ns.
    pub preempted_ns: Option<u64>,
    /// What explains the lost time.
    pub balance: Balance,
    /// What the kernel counted meanwhile.
    pub counted: Counted,
    /// What took the time, the largest part first, as far as it has a name. Their times together
    /// are at most the lost time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub culprits: Vec<Culprit>,
    /// Percentiles of the lengths of gaps, as far as there are gaps enough.
    pub percentiles: Vec<PercentileValue>,
    /// Delay of a message that arrives at a random time: percentiles of all time, not of gaps. One
    /// beyond which there are fewer than ten gaps is absent.
    pub delays: Vec<PercentileValue>,
    /// Lengths of its gaps as an HdrHistogram V2 with deflate, base64; values are ns. Absent where
    /// many CPUs were measured.
    pub histogram: Option<String>,
    /// Gaps that were counted when the memory for single gaps was full: they are in the sums,
    /// slices and histograms, which then give the percentiles, to three digits.
    pub gaps_not_kept: u64,
    /// Time that recording gaps took, in which none is seen, ns.
    pub recording_ns: u64,
    /// The measuring time in equal slices.
    pub slices: Vec<JitterSlice>,
}

impl CpuJitter {
    /// Share of its time that the thread lost, 0 to 1.
    pub fn share_lost(&self) -> Option<f64> {
        (self.elapsed_ns > 0).then(|| self.lost_ns as f64 / self.elapsed_ns as f64)
    }

    /// `ns` as a share of the time that the thread watched.
    pub fn share(&self, ns: u64) -> f64 {
        ns as f64 / self.elapsed_ns.max(1) as f64
    }

    /// Gaps a second.
    pub fn gaps_per_s(&self) -> f64 {
        self.gaps as f64 / (self.elapsed_ns.max(1) as f64 / 1e9)
    }
}

/// How culprits were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Naming {
    /// From the kernel's events: what ran in each gap, and how long.
    Traced,
    /// From counters before and after: an estimate.
    Counted,
}

/// What a culprit is.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CulpritKind {
    /// A thread of a process or of the kernel.
    #[default]
    Thread,
    /// A piece of work that the kernel does in its own threads.
    Work,
    /// An interrupt of a device or of the processor.
    Interrupt,
    /// A timer, and the interrupt that it causes.
    Timer,
    /// A softirq.
    Softirq,
    /// A function that another CPU asked for by an interrupt (IPI).
    Call,
}

impl CulpritKind {
    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            CulpritKind::Thread => "thread",
            CulpritKind::Work => "kernel work",
            CulpritKind::Interrupt => "interrupt",
            CulpritKind::Timer => "timer",
            CulpritKind::Softirq => "softirq",
            CulpritKind::Call => "call by a CPU",
        }
    }
}

/// Something that ran on the CPU instead of the thread that watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Culprit {
    /// What it is.
    pub kind: CulpritKind,
    /// Its name: of a thread its own, of a function of the kernel that function's or a plain word.
    pub name: String,
    /// Gaps of which it took the largest part.
    pub gaps: u64,
    /// Its time in gaps, ns.
    pub lost_ns: u64,
    /// The longest gap of which it took the largest part, ns; absent where gaps have no names each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_ns: Option<u64>,
    /// Page faults of a thread meanwhile, where they are known and not zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
}

/// What explains the time that a thread lost. The parts and [`Balance::unexplained_ns`] add up to
/// the lost time, exactly; none is more than what those before it leave. What the kernel counted is
/// in [`Counted`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Balance {
    /// Time that the thread was ready but others ran, ns; absent if the kernel does not tell.
    pub run_delay_ns: Option<u64>,
    /// Time in interrupts, ns; absent if the kernel does not account for it.
    pub interrupts_ns: Option<u64>,
    /// Stolen time, ns, in steps of [`Balance::steal_step_ns`]; absent if the kernel does not tell.
    pub steal_ns: Option<u64>,
    /// Resolution of the stolen time, ns.
    pub steal_step_ns: u64,
    /// What is left of the lost time, ns. Below zero only in results of earlier versions.
    pub unexplained_ns: i64,
    /// The part of the gaps in which the thread was not preempted that no interrupt can explain,
    /// because there were more gaps than interrupts: the sum of the shortest ones in excess, ns.
    pub below_system_min_ns: u64,
}

impl Balance {
    /// The balance of `lost_ns` with its known parts. The kernel also counts delays that are
    /// shorter than the threshold, and steal in steps of 10 ms, which other threads may have lost:
    /// a part is at most what is left.
    #[must_use]
    pub fn of(self, lost_ns: u64) -> Balance {
        let mut left = lost_ns;
        let mut take = |part: Option<u64>| {
            let part = part.map(|ns| ns.min(left));
            left -= part.unwrap_or(0);
            part
        };
        let run_delay_ns = take(self.run_delay_ns);
        let interrupts_ns = take(self.interrupts_ns);
        let steal_ns = take(self.steal_ns);
        let unexplained_ns = i64::try_from(left).unwrap_or(i64::MAX);
        Balance { run_delay_ns, interrupts_ns, steal_ns, unexplained_ns, ..self }
    }

    /// The known parts together, ns.
    pub fn explained_ns(&self) -> u64 {
        [self.run_delay_ns, self.interrupts_ns, self.steal_ns]
            .into_iter()
            .flatten()
            .fold(0, u64::saturating_add)
    }

    /// What is left, if that is time at all, ns.
    pub fn unexplained_time_ns(&self) -> u64 {
        u64::try_from(self.unexplained_ns).unwrap_or(0)
    }

    /// Time that was certainly lost below the operating system, ns: all that is left where
    /// interrupts are accounted for, else the part that they cannot explain.
    pub fn below_system_ns(&self) -> u64 {
        match self.interrupts_ns {
            Some(_) => self.unexplained_time_ns(),
            None => self.below_system_min_ns.min(self.unexplained_time_ns()),
        }
    }
}

/// What the kernel counted of a thread and its CPU while it watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counted {
    /// Time that the thread was ready but did not run, as the scheduler counts it, ns; absent if
    /// the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_delay_ns: Option<u64>,
    /// Stolen time of the CPU, whichever thread lost it, ns; absent if the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_ns: Option<u64>,
    /// Context switches because the kernel ran another thread.
    pub involuntary_switches: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Interrupts of the CPU by row of `/proc/interrupts`; absent if they cannot be read.
    pub interrupts: Option<BTreeMap<String, u64>>,
    /// Softirqs of the CPU by kind; absent if they cannot be read.
    pub softirqs: Option<BTreeMap<String, u64>>,
    /// System management interrupts of the firmware; absent if they cannot be read.
    pub firmware_interrupts: Option<u64>,
}

impl Counted {
    /// All interrupts together.
    pub fn interrupt_count(&self) -> Option<u64> {
        Some(self.interrupts.as_ref()?.values().fold(0, |sum, count| sum.saturating_add(*count)))
    }
}

/// What a thread lost in one slice of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JitterSlice {
    /// Gaps that began in it.
    pub gaps: u64,
    /// Time lost in it, ns.
    pub lost_ns: u64,
    /// Longest gap that began in it, ns.
    pub longest_ns: u64,
    /// Those of the gaps in which the kernel ran another thread.
    pub preempted_gaps: u64,
    /// The part of the lost time in which it did, ns.
    pub preempted_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_beyond_the_limits_are_refused_with_their_field() {
        let field = |spec: JitterSpec| spec.check().unwrap_err().field();
        assert_eq!(JitterSpec::default().check(), Ok(()));
        assert_eq!(field(JitterSpec { seconds: 1e9, ..Default::default() }), "seconds");
        assert_eq!(field(JitterSpec { seconds: f64::NAN, ..Default::default() }), "seconds");
        assert_eq!(field(JitterSpec { seconds: 0.049, ..Default::default() }), "seconds");
        assert_eq!(
            field(JitterSpec { threshold_ns: Some(0), ..Default::default() }),
            "threshold_ns"
        );
        assert_eq!(field(JitterSpec { cpus: vec![0; 1_025], ..Default::default() }), "cpus");
    }

    /// With a threshold of the length of a round, no gap is seen and every target is met.
    #[test]
    fn a_threshold_is_a_small_part_of_the_round() {
        let checked = |seconds, ns| {
            let threshold_ns = Some(ns);
            JitterSpec { seconds, threshold_ns, ..Default::default() }.check()
        };
        assert_eq!(checked(1.0, 10_000_000), Ok(()));
        let refused = checked(1.0, 10_000_001).unwrap_err().to_string();
        assert_eq!(refused, "threshold_ns is 10000001, must be 1 to 10000000");
        assert_eq!(checked(3_600.0, 1_000_000_000), Ok(()));
        assert!(checked(3_600.0, 1_000_000_001).is_err());
    }

    #[test]
    fn the_worst_cpu_is_the_time_lost() {
        let cpu = |lost_ns| CpuJitter { lost_ns, elapsed_ns: 2_000_000_000, ..Default::default() };
        let cpus = vec![cpu(1_000_000_000), cpu(500_000_000), CpuJitter::default()];
        let round = JitterRound { cpus, ..Default::default() };
        assert_eq!(round.time_lost(), Some(0.5));
        assert_eq!(JitterRound::default().time_lost(), None);
    }

    #[test]
    fn what_is_certain_below_the_system_depends_on_what_is_known() {
        let known = Balance { interrupts_ns: Some(10), ..Balance::default() }.of(100);
        assert_eq!((known.unexplained_ns, known.below_system_ns()), (90, 90));
        let unknown = Balance { below_system_min_ns: 30, ..Balance::default() }.of(100);
        assert_eq!((unknown.unexplained_ns, unknown.below_system_ns()), (100, 30));
        let more = Balance { run_delay_ns: Some(120), ..Balance::default() }.of(100);
        assert_eq!((more.unexplained_ns, more.below_system_ns()), (0, 0));
    }

    #[test]
    fn firmware_is_named_only_if_its_counter_moved() {
        let round = JitterRound { is_guest: Some(false), ..Default::default() };
        let name = |firmware_interrupts| {
            let counted = Counted { firmware_interrupts, ..Counted::default() };
            round.below_system_name(&CpuJitter { counted, ..CpuJitter::default() })
        };
        assert!(name(Some(2)).contains("were counted"));
        assert_eq!((name(Some(0)), name(None)), (name(None), name(None)));
        assert!(!name(None).contains("were counted"));
    }

    proptest! {
        #[test]
        fn parts_and_rest_add_up_to_the_nanosecond(
            lost_ns in 0u64..(1 << 60), run_delay in part(), interrupts in part(), steal in part(),
        ) {
            let parts = Balance {
                run_delay_ns: run_delay,
                interrupts_ns: interrupts,
                steal_ns: steal,
                ..Balance::default()
            };
            let balance = parts.of(lost_ns);
            let sum = i128::from(balance.explained_ns()) + i128::from(balance.unexplained_ns);
            prop_assert_eq!(sum, i128::from(lost_ns));
            prop_assert!(balance.explained_ns() <= lost_ns && balance.unexplained_ns >= 0);
            prop_assert!(balance.below_system_ns() <= lost_ns);
        }
    }

    fn part() -> impl Strategy<Value = Option<u64>> {
        prop::option::of(0u64..(1 << 60))
    }
}
