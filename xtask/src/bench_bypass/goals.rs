//! What bypass has to reach, as ratios of two figures of one round.

use Bound::{AtLeast, AtMost};

use crate::bench_bypass::figures::{Case, Figures};

/// What a figure is divided by.
pub enum Over {
    Case(&'static str, u32),
    Limit,
    /// The own p99 over the own median.
    Median,
}

pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

pub struct Goal {
    pub what: &'static str,
    pub bound: Bound,
    /// Name and message size of the case.
    pub case: (&'static str, u32),
    pub over: Over,
}

const fn goal(what: &'static str, bound: Bound, case: (&'static str, u32), over: Over) -> Goal {
    Goal { what, bound, case, over }
}

pub const ACCEL: &str = "sockperf blocking under accel";
const SPIN: &str = "sockperf spinning";
pub const BLOCKING: &str = "sockperf blocking";

pub const GOALS: &[Goal] = &[
    goal("`shm` spinning, 1 B ÷ limit", AtMost(1.6), ("nearmetal shm-spin", 1), Over::Limit),
    goal("`shm` blocking, 1 B ÷ limit", AtMost(1.6), ("nearmetal shm", 1), Over::Limit),
    goal("`accel`, blocking recv, 14 B ÷ limit", AtMost(1.6), (ACCEL, 14), Over::Limit),
    goal(
        "`accel` ÷ kernel TCP spinning, 64 B",
        AtMost(1.0 / 12.0),
        (ACCEL, 64),
        Over::Case(SPIN, 64),
    ),
    goal(
        "`accel` ÷ kernel TCP spinning, 1 KiB",
        AtMost(1.0 / 5.0),
        (ACCEL, 1024),
        Over::Case(SPIN, 1024),
    ),
    goal(
        "`accel` ÷ kernel TCP blocking, 64 B",
        AtMost(1.0 / 40.0),
        (ACCEL, 64),
        Over::Case(BLOCKING, 64),
    ),
    goal(
        "epoll program under `accel` ÷ kernel",
        AtMost(1.0 / 20.0),
        ("sockperf epoll of 4 sockets under accel", 64),
        Over::Case("sockperf epoll of 4 sockets", 64),
    ),
    goal(
        "poll program under `accel` ÷ kernel",
        AtMost(1.0 / 20.0),
        ("sockperf poll of 4 sockets under accel", 64),
        Over::Case("sockperf poll of 4 sockets", 64),
    ),
    goal(
        "select program under `accel` ÷ kernel",
        AtMost(1.0 / 20.0),
        ("sockperf select of 4 sockets under accel", 64),
        Over::Case("sockperf select of 4 sockets", 64),
    ),
    goal("`accel` p99 ÷ median, 14 B", AtMost(2.0), (ACCEL, 14), Over::Median),
    goal(
        "both ends on one CPU under `accel` ÷ kernel",
        AtMost(1.1),
        ("sockperf blocking, both ends on one CPU under accel", 64),
        Over::Case("sockperf blocking, both ends on one CPU", 64),
    ),
    goal(
        "sleeping mode ÷ kernel blocking, 64 B",
        AtMost(0.5),
        ("sockperf blocking under accel --spin-us 0", 64),
        Over::Case(BLOCKING, 64),
    ),
    goal(
        "small messages a second under `accel` ÷ kernel",
        AtLeast(5.0),
        ("sockperf throughput, messages/s under accel", 64),
        Over::Case("sockperf throughput, messages/s", 64),
    ),
    goal(
        "iperf3 under `accel` ÷ kernel",
        AtLeast(1.5),
        ("iperf3, Gb/s under accel", 128 << 10),
        Over::Case("iperf3, Gb/s", 128 << 10),
    ),
    goal(
        "nuttcp under `accel` ÷ kernel",
        AtLeast(1.5),
        ("nuttcp, Gb/s under accel", 64 << 10),
        Over::Case("nuttcp, Gb/s", 64 << 10),
    ),
    goal(
        "connect + accept under `accel` ÷ kernel",
        AtMost(1.02),
        ("connect + accept, ns under accel", 0),
        Over::Case("connect + accept, ns", 0),
    ),
    goal(
        "TCP not accelerated, under the preload ÷ kernel",
        AtMost(1.02),
        ("sockperf spinning TCP, plain server, client preloaded", 64),
        Over::Case("sockperf spinning TCP, plain server", 64),
    ),
    goal(
        "UDP not accelerated, under the preload ÷ kernel",
        AtMost(1.02),
        ("sockperf spinning UDP, plain server, client preloaded", 64),
        Over::Case("sockperf spinning UDP, plain server", 64),
    ),
    goal(
        "`xdp` UDP ÷ kernel UDP spinning, veth, 64 B",
        AtMost(0.6),
        ("nearmetal xdp-spin, veth", 64),
        Over::Case("nearmetal udp-spin, veth", 64),
    ),
    goal(
        "`xdp` TCP, both ends ÷ kernel TCP spinning, veth, 64 B",
        AtMost(0.5),
        ("nearmetal xdp-tcp-spin, veth", 64),
        Over::Case("nearmetal tcp-spin, veth", 64),
    ),
    goal(
        "`xdp` TCP, one end ÷ kernel TCP spinning, veth, 64 B",
        AtMost(0.8),
        ("nearmetal xdp-tcp-spin:tcp-spin, veth", 64),
        Over::Case("nearmetal tcp-spin, veth", 64),
    ),
    goal(
        "stream over `xdp` TCP ÷ kernel TCP spinning, veth",
        AtLeast(1.0),
        ("nearmetal stream, xdp-tcp-spin, veth, Gb/s", 128 << 10),
        Over::Case("nearmetal stream, tcp-spin, veth, Gb/s", 128 << 10),
    ),
];

impl Goal {
    /// The ratio in each round that has both of its figures.
    pub fn ratios(&self, figures: &Figures) -> Vec<f64> {
        let own = figures.of(&self.own_case()).iter();
        match self.over {
            Over::Limit => {
                own.filter_map(|f| f.and_then(|f| Some(f.value / f.limit_ns?))).collect()
            }
            Over::Median => own.filter_map(|f| f.and_then(|f| Some(f.p99? / f.value))).collect(),
            Over::Case(name, size_bytes) => {
                let base = figures.of(&Case::new(name, size_bytes));
                own.zip(base)
                    .filter_map(|(own, base)| Some((*own)?.value / (*base)?.value))
                    .collect()
            }
        }
    }

    /// Why there is no ratio.
    pub fn missing_reason<'a>(&self, figures: &'a Figures) -> &'a str {
        let cases = [Some(self.own_case()), self.base_case()];
        let reason = cases.iter().flatten().find_map(|case| figures.failures.get(case));
        reason.map_or("not measured in this run", String::as_str)
    }

    pub fn own_case(&self) -> Case {
        Case::new(self.case.0, self.case.1)
    }

    /// The case that it is compared with.
    pub fn base_case(&self) -> Option<Case> {
        match self.over {
            Over::Case(name, size_bytes) => Some(Case::new(name, size_bytes)),
            Over::Limit | Over::Median => None,
        }
    }
}
