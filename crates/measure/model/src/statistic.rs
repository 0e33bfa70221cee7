//! What one value of a series is.

use crate::named_enum::named_enum;

named_enum!(
    /// What one value of a series is.
    Statistic, "statistic", {
        /// Half of the time from before the send to after the matching receive, ns.
        HalfRoundTrip = "half-round-trip",
        /// Time from before the send to after the matching receive, ns.
        RoundTrip = "round-trip",
        /// Time from the intended send to after the matching receive, ns.
        RoundTripFromIntended = "round-trip-from-intended-send",
        /// Sum of flows, Gb/s.
        Throughput = "throughput",
        /// Length of a gap in which a spinning thread did not run, ns.
        Interruption = "interruption",
        /// CPU time of one job in user mode, ns.
        JobTime = "job-time",
    }
);

impl Statistic {
    /// Name on the axis of a chart.
    pub fn label(self) -> &'static str {
        match self {
            Statistic::HalfRoundTrip => "half round trip",
            Statistic::RoundTrip => "round trip (service time)",
            Statistic::RoundTripFromIntended => "round trip from intended send",
            Statistic::Throughput => "throughput",
            Statistic::Interruption => "length of an interruption",
            Statistic::JobTime => "CPU time of a job",
        }
    }
}
