//! Reasons to distrust a number. A doubt travels with the number everywhere: agent, result file,
//! report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One reason to distrust a number, with the figures that show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Doubt {
    /// Which reason.
    pub kind: DoubtKind,
    /// The figures, as a clause: `12 involuntary switches of the client's thread`.
    pub detail: String,
}

impl Doubt {
    /// A doubt with its figures.
    pub fn new(kind: DoubtKind, detail: impl Into<String>) -> Doubt {
        Doubt { kind, detail: detail.into() }
    }
}

macro_rules! doubts {
    ($(
        $(#[$meta:meta])*
        $variant:ident, $name:literal, $title:literal, $cause:literal, $remedy:literal;
    )+) => {
        /// The reasons that nearmetal knows.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum DoubtKind { $($(#[$meta])* $variant),+ }

        impl DoubtKind {
            /// Every kind.
            pub const ALL: &'static [DoubtKind] = &[$(DoubtKind::$variant),+];
            /// Name in result files.
            pub fn name(self) -> &'static str { match self { $(DoubtKind::$variant => $name),+ } }
            /// Short heading for people.
            pub fn title(self) -> &'static str { match self { $(DoubtKind::$variant => $title),+ } }
            /// What causes it and how it affects the number.
            pub fn cause(self) -> &'static str { match self { $(DoubtKind::$variant => $cause),+ } }
            /// How to remove it.
            pub fn remedy(self) -> &'static str {
                match self { $(DoubtKind::$variant => $remedy),+ }
            }
        }
    };
}

doubts! {
    /// Too few samples for a percentile.
    TooFewSamples, "too-few-samples", "too few samples",
        "a percentile needs at least ten samples beyond it; without them it repeats the maximum",
        "measure longer or ask for a lower percentile";
    /// Fewer than five rounds.
    TooFewRounds, "too-few-rounds", "too few rounds",
        "runs differ more than the samples of one run, so fewer than five rounds support no claim",
        "run at least five rounds a side, ten to find a 5 % difference";
    /// Rounds fall into separate groups.
    Bimodal, "bimodal", "rounds fall into groups",
        "placement by the host or the scheduler puts whole rounds into one of several modes",
        "run more rounds; pin CPUs on the host; compare within a group";
    /// The rounds differ much.
    Unstable, "unstable", "high variance between rounds",
        "the rounds differ by more than the allowed coefficient of variation",
        "re-run on a quiet machine, longer or with more rounds";
    /// Values rise or fall during the run.
    Drift, "drift", "drift over time",
        "values rise or fall through the run: warm-up, frequency, heat or a neighbour",
        "warm up longer, fix the frequency, look at the drift chart";
    /// Single rounds far from the others.
    Outliers, "outliers", "outlying rounds",
        "single rounds lie far from the others",
        "look at their doubts first; repeat on a quiet machine";
    /// CPU time taken by the hypervisor.
    Steal, "steal", "stolen time",
        "the hypervisor ran something else on this CPU; the tail contains its time slices",
        "ask for dedicated CPUs, or measure when neighbours are quiet";
    /// Involuntary switches of a hot thread.
    Preempted, "preempted", "preempted",
        "the kernel ran another thread on the hot thread's CPU",
        "isolate the CPU or stop the other work";
    /// A hot thread ran on more than one CPU.
    Migrated, "migrated", "migrated",
        "the hot thread moved between CPUs, so caches and clocks changed under it",
        "pin it: --affinity CLIENT;SERVER";
    /// Both ends on one CPU.
    SharedCpu, "shared-cpu", "both ends on one CPU",
        "the ends took turns on one CPU: no transfer between CPUs was measured",
        "give the process two CPUs, or set --affinity CLIENT;SERVER";
    /// Both ends on one core.
    SmtSiblings, "smt-siblings", "both ends on one core",
        "the ends share one core's caches and units, which no two machines do",
        "pin them to different cores";
    /// Not pinned.
    NotPinned, "not-pinned", "not pinned",
        "the hot thread was free to move",
        "pin it: --affinity CLIENT;SERVER";
    /// The CPUs were busy with other work.
    BusyHost, "busy-host", "busy machine",
        "other work ran on this machine during the measurement; medians move little, tails much",
        "measure on an idle machine";
    /// Time stamps not by TSC.
    ClockFallback, "clock-fallback", "slow clock",
        "the TSC cannot be trusted here, so each timestamp is a call into the kernel",
        "use a machine with an invariant TSC and clocksource tsc";
    /// Timestamps are expensive.
    ClockCost, "clock-cost", "timestamps are expensive",
        "a pair of timestamps costs more than 5 % of the median",
        "read the figure as an upper bound";
    /// Calibrations disagree.
    ClockDrift, "clock-drift", "clock calibrations disagree",
        "two calibrations of the TSC differ by more than 10 ppm",
        "repeat; look at the kernel log for clock warnings";
    /// Memory could not be locked.
    MemoryNotLocked, "memory-not-locked", "memory not locked",
        "sample memory could not be locked, so a page fault may fall into the measurement",
        "raise the locked-memory limit (ulimit -l) or run as root";
    /// Messages were lost.
    Loss, "loss", "lost messages",
        "messages did not come back before the time-out and are not in the latency figures",
        "raise the socket buffers or lower the rate; latency figures leave lost messages out";
    /// A node of the exchange, or its host, ended by itself.
    NodeEnded, "node-ended", "a node ended by itself",
        "a node or its host ended although nobody asked; the figures include its restart",
        "look at the node's log, and measure again without the fault";
    /// The AF_XDP socket dropped frames.
    FramesDropped, "frames-dropped", "frames dropped",
        "frames that arrived at the AF_XDP socket found no free buffer and were dropped, so they \
         are missing or were sent again",
        "give the receiving end a CPU of its own; lower the rate or the write size";
    /// The sender fell behind its schedule.
    Behind, "behind", "schedule missed",
        "requests left later than intended; the delay is in the latency, not in the service time",
        "lower the rate, or give the client a CPU of its own";
    /// A closed loop hides stalls.
    ClosedLoop, "closed-loop", "closed loop",
        "the next request waits for the last answer, so a stall counts once, not for each request",
        "use an open loop: rr --rate";
    /// Another nearmetal measured on the machine.
    ConcurrentRun, "concurrent-run", "another measurement at the same time",
        "a second nearmetal measured on this machine during this run, and each took CPU time and \
         caches from the other",
        "repeat when no other measurement runs";
    /// CPU bandwidth limit.
    Throttled, "throttled", "CPU quota",
        "a control group limits the CPU time, so a busy thread is stopped in each period",
        "remove cpu.max for latency work";
    /// A hypervisor is present and steal is not reported.
    BelowSystem, "below-system", "time lost below the system",
        "the hot thread lost time that neither the scheduler nor steal explains",
        "compare with a bare-metal run";
    /// The hypervisor took time and did not report it.
    StealNotAccounted, "steal-not-accounted", "steal not accounted by this hypervisor",
        "a virtual CPU lost time below the system while its stolen time stayed zero, so a check of \
         stolen time would pass this machine",
        "do not rely on stolen time here; ask for dedicated CPUs and repeat";
    /// Part of the evidence for what interrupted a thread is missing.
    UnknownCause, "unknown-cause", "evidence is missing",
        "the machine does not tell all that is needed to say what interrupted a thread",
        "read the rest as a mixture of causes; use a kernel that tells it";
    /// More samples than memory for them.
    NotAllKept, "not-all-kept", "not all samples kept",
        "more samples came than there was memory for; they are in the counts and histograms, so \
         percentiles have three digits, and charts over time lack them",
        "measure for a shorter time, or with a higher threshold";
    /// Part of the bytes did not use the path that the stack names.
    NotAccelerated, "not-accelerated", "partly on the kernel",
        "some of the messages went through the kernel's TCP instead of shared memory",
        "look at the reason in `nearmetal accel status` while it runs";
    /// Nothing shows that a factor was in force.
    FactorNotShown, "factor-not-shown", "factor not shown to be in force",
        "what was read during the trials does not show that the factor was on, so its ratio may be \
         that of two equal trials",
        "look at the evidence beside the factor; repeat where it can be switched on";
    /// The guests' code was translated or interpreted.
    Emulated, "emulated", "emulated guests",
        "the guests' code was translated or interpreted instead of executed by the processor, so \
         the figure says nothing about virtualization on this machine",
        "use it to test a setup only; measure on a host with KVM (`nearmetal lab plan`)";
    /// The host has fewer cores than the guests would keep busy.
    CoreBudget, "core-budget", "too few cores for the guests",
        "the host has fewer free cores than threads that would spin, so the ends waited by \
         sleeping, or took turns on a core",
        "use a host with a core for each spinning virtual CPU, each thread of vhost, and one more";
    /// Data came from another tool.
    Imported, "imported", "made by another tool",
        "the figures were read from another tool's output; samples and rounds are not known",
        "repeat with nearmetal where a verdict matters";
    /// A field was inferred, not recorded.
    Inferred, "inferred", "inferred facts",
        "some facts of this run are not stated by its source but follow from it",
        "treat comparisons that rest on them with care";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialised_names_match_name() {
        for &kind in DoubtKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
