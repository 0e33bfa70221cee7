//! The time that the leader of a cell gives its batches, ns since 1970. The leaders of a cell may
//! be on several hosts, which have only their wall clocks in common, and clients name such times.
//! A cell's time never goes back, so a clock that is ahead does lasting harm: orders expire.
//!
//! - At the start of a term, the time is that of the machine's wall clock. If that is more than
//!   [`CLOCK_SKEW_MAX_NS`] from the median of the replicas' clocks, it is the median. With two
//!   clocks, the time of the cell itself is the third. If that is not known, the clock that is
//!   behind counts as the median. A single clock is believed.
//! - From then on, it goes on with the monotonic clock: a wall clock that jumps changes nothing.
//!   Only the median of at least three clocks can replace it, if it is as far off.
//! - A clock of a replica that is more than that off the cell's time is reported, and again when it
//!   has moved as much.

use nm_replica::difference_ns;

use crate::time::Time;

/// Largest difference between a leader's time and the median of the replicas' clocks.
pub const CLOCK_SKEW_MAX_NS: u64 = 1_000_000_000;

/// Time between two comparisons of the clocks.
const COMPARE_INTERVAL_NS: u64 = 100_000_000;

/// The time of a leader.
#[derive(Debug)]
pub struct LeaderClock {
    /// The replicas' names, and which of them is this one.
    names: Vec<String>,
    own: usize,
    /// A time, and what the monotonic clock showed then.
    now: Option<(u64, u64)>,
    /// When the clocks were last compared, by the monotonic clock.
    compared_ns: u64,
    /// The latest time of a batch that was applied, in the same way.
    applied: Option<(u64, u64)>,
    /// How far each replica's clock was off when that was last reported, ns.
    reported_ns: Vec<i64>,
    /// What is to be reported, for people.
    pub warnings: Vec<String>,
}

/// What the clocks show.
#[derive(Debug)]
struct Readings {
    monotonic_ns: u64,
    /// This machine's wall clock, and those of other replicas with their positions.
    wall_ns: u64,
    others: Vec<(usize, u64)>,
}

/// A time that went on with the monotonic clock.
fn advanced((time_ns, at_ns): (u64, u64), monotonic_ns: u64) -> u64 {
    time_ns.saturating_add(monotonic_ns.saturating_sub(at_ns))
}

/// The time, or the median if that is too far from it.
fn bounded(time_ns: u64, median_ns: u64) -> u64 {
    if time_ns.abs_diff(median_ns) > CLOCK_SKEW_MAX_NS { median_ns } else { time_ns }
}

impl LeaderClock {
    /// The clock of the replica at position `own` of these.
    pub fn new(names: Vec<String>, own: usize) -> LeaderClock {
        let reported_ns = vec![0; names.len()];
        let (now, applied, warnings) = (None, None, vec![]);
        LeaderClock { names, own, now, compared_ns: 0, applied, reported_ns, warnings }
    }

    /// A term begins: the next time is decided by the clocks.
    pub fn begin_term(&mut self) {
        self.now = None;
    }

    /// A batch of this time was applied.
    pub fn record_applied(&mut self, time_ns: u64, monotonic_ns: u64) {
        if self.applied.is_none_or(|applied| advanced(applied, monotonic_ns) < time_ns) {
            self.applied = Some((time_ns, monotonic_ns));
        }
    }

    /// The time of a batch that begins now. `others` gives what the clocks of other replicas show,
    /// with their positions, when the monotonic clock shows its argument.
    pub fn now_ns(
        &mut self,
        Time { monotonic_ns, wall_ns }: Time,
        others: impl FnOnce(u64) -> Vec<(usize, u64)>,
    ) -> u64 {
        let age_ns = monotonic_ns.saturating_sub(self.compared_ns);
        match self.now {
            Some(now) if age_ns < COMPARE_INTERVAL_NS => advanced(now, monotonic_ns),
            _ => {
                let others = others(monotonic_ns);
                self.compare(&Readings { monotonic_ns, wall_ns, others })
            }
        }
    }

    /// Compares the clocks; the time now.
    fn compare(&mut self, readings: &Readings) -> u64 {
        let Readings { monotonic_ns, wall_ns, others } = readings;
        self.compared_ns = *monotonic_ns;
        let time_ns = match self.now {
            None => bounded(*wall_ns, self.median_ns(readings)),
            Some(now) if others.len() > 1 => {
                bounded(advanced(now, *monotonic_ns), self.median_ns(readings))
            }
            Some(now) => advanced(now, *monotonic_ns),
        };
        self.now = Some((time_ns, *monotonic_ns));
        for (position, shown_ns) in [(self.own, *wall_ns)].iter().chain(others) {
            self.report(*position, difference_ns(*shown_ns, time_ns));
        }
        time_ns
    }

    fn median_ns(&self, readings: &Readings) -> u64 {
        let others = readings.others.iter().map(|(_, shown_ns)| *shown_ns);
        let mut all: Vec<u64> = others.chain([readings.wall_ns]).collect();
        if let (2, Some(applied)) = (all.len(), self.applied) {
            all.push(advanced(applied, readings.monotonic_ns));
        }
        all.sort_unstable();
        all[(all.len() - 1) / 2]
    }

    /// A replica's clock is so far ahead of the time.
    fn report(&mut self, position: usize, ahead_ns: i64) {
        let (Some(name), Some(reported_ns)) =
            (self.names.get(position), self.reported_ns.get_mut(position))
        else {
            return;
        };
        if ahead_ns.unsigned_abs() <= CLOCK_SKEW_MAX_NS {
            *reported_ns = 0;
        } else if ahead_ns.abs_diff(*reported_ns) > CLOCK_SKEW_MAX_NS {
            *reported_ns = ahead_ns;
            let seconds = ahead_ns.unsigned_abs() as f64 / 1e9;
            let direction = if ahead_ns > 0 { "ahead of" } else { "behind" };
            self.warnings.push(format!(
                "the clock of {name} is {seconds:.1} s {direction} the cell's time, which does not \
                 follow it; set that clock"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_800_000_000 * SECOND;
    const TEN_YEARS: u64 = 3_652 * 86_400 * SECOND;

    /// The leader of a cell with three replicas, at position 0.
    struct Leader {
        clock: LeaderClock,
        monotonic_ns: u64,
    }

    impl Leader {
        fn new() -> Leader {
            let names = ["mediator 0", "mediator 1", "processor 1"].map(str::to_string).to_vec();
            Leader { clock: LeaderClock::new(names, 0), monotonic_ns: 5 * SECOND }
        }

        /// What the time is if the clocks are so far from the right time, after a while.
        fn after(&mut self, seconds: u64, own_ns: i64, others: &[(usize, i64)]) -> i64 {
            self.monotonic_ns += seconds * SECOND;
            let right_ns = NOW + self.monotonic_ns;
            let shows = |(position, off_ns): &(usize, i64)| {
                (*position, right_ns.saturating_add_signed(*off_ns))
            };
            let readings = Readings {
                monotonic_ns: self.monotonic_ns,
                wall_ns: right_ns.saturating_add_signed(own_ns),
                others: others.iter().map(shows).collect(),
            };
            difference_ns(self.clock.compare(&readings), right_ns)
        }

        fn warnings(&mut self) -> Vec<String> {
            std::mem::take(&mut self.clock.warnings)
        }
    }

    #[test]
    fn a_leader_ten_years_ahead_cannot_move_the_time_more_than_the_skew() {
        let skew = CLOCK_SKEW_MAX_NS as i64;
        for ahead in [TEN_YEARS as i64, -(TEN_YEARS as i64)] {
            for others in [&[(1, 0), (2, 0)][..], &[(1, 20_000_000), (2, -20_000_000)]] {
                let mut leader = Leader::new();
                let off_ns = leader.after(0, ahead, others);
                assert!(off_ns.abs() <= skew + 20_000_000, "{off_ns}");
                let warnings = leader.warnings();
                assert_eq!(warnings.len(), 1, "{warnings:?}");
                let is_named = warnings[0].contains("mediator 0") && warnings[0].contains(" s ");
                assert!(is_named && warnings[0].contains("31553"), "{warnings:?}");
                // It stays so, and is not reported again.
                let later_ns = leader.after(1_000, ahead, others);
                assert!(later_ns.abs() <= skew + 20_000_000, "{later_ns}");
                assert!(leader.warnings().is_empty());
            }
        }
        // With one other replica, and a cell that had batches.
        for other in [(1, 0), (2, 0)] {
            let mut leader = Leader::new();
            leader.clock.record_applied(NOW, leader.monotonic_ns);
            assert!(leader.after(0, TEN_YEARS as i64, &[other]) <= skew);
            leader.clock.begin_term();
            assert!(leader.after(9, TEN_YEARS as i64, &[other]) <= skew);
        }
        // With one other replica, and a new cell.
        assert!(Leader::new().after(0, TEN_YEARS as i64, &[(1, 0)]) <= skew);
    }

    #[test]
    fn another_replica_with_a_wrong_clock_is_reported_and_changes_nothing() {
        for wrong in [TEN_YEARS as i64, -(TEN_YEARS as i64), 5 * SECOND as i64] {
            let mut leader = Leader::new();
            leader.clock.record_applied(NOW + leader.monotonic_ns, leader.monotonic_ns);
            assert_eq!(leader.after(0, 0, &[(1, wrong), (2, 0)]), 0);
            let warnings = leader.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains("mediator 1"), "{warnings:?}");
            leader.clock.begin_term();
            assert_eq!(leader.after(3, 0, &[(2, wrong)]), 0, "{wrong}");
            assert_eq!(leader.after(3, 0, &[(2, wrong)]), 0);
            let warnings = leader.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains("processor 1"), "{warnings:?}");
        }
    }

    #[test]
    fn a_jump_during_a_term_changes_nothing_and_is_reported_with_its_size() {
        let mut leader = Leader::new();
        let right = [(1, 0), (2, 0)];
        assert_eq!(
            leader.after(0, 300_000_000, &right),
            300_000_000,
            "small differences are normal"
        );
        assert_eq!(leader.after(10, 300_000_000, &right), 300_000_000);
        assert!(leader.warnings().is_empty());
        for others in [&right[..], &right[..1], &[]] {
            assert_eq!(leader.after(10, -3_600 * SECOND as i64, others), 300_000_000);
        }
        let warnings = leader.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("3600.3 s behind"), "{warnings:?}");
        // It is set right, and jumps again.
        assert_eq!(leader.after(10, 0, &right), 300_000_000);
        assert!(leader.warnings().is_empty());
        leader.after(10, 40 * SECOND as i64, &right);
        assert!(leader.warnings()[0].contains("39.7 s ahead"));
    }

    #[test]
    fn a_single_clock_is_believed_and_its_jumps_are_not() {
        let mut leader = Leader::new();
        leader.clock.record_applied(NOW - 9 * SECOND, 0);
        assert_eq!(leader.after(0, 0, &[]), 0);
        assert_eq!(leader.after(5, TEN_YEARS as i64, &[]), 0);
        assert_eq!(leader.warnings().len(), 1);
    }

    /// A term that began with too few clocks is set right when there are three.
    #[test]
    fn three_clocks_correct_what_fewer_got_wrong() {
        let mut leader = Leader::new();
        leader.after(0, 0, &[(1, -(TEN_YEARS as i64))]);
        assert!(leader.after(1, 0, &[(1, -(TEN_YEARS as i64)), (2, 0)]).abs() <= SECOND as i64);
    }
}
