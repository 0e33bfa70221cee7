//! The wall clocks of a group's members, as its leader knows them: each answer to an append says
//! what its sender's clock shows. They are kept as differences to the own monotonic clock, so that
//! a jump of the own wall clock changes none of them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Stands for a clock that is not known.
const UNKNOWN: i64 = i64::MIN;

/// What this machine's wall clock shows, ns since 1970.
pub fn wall_clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The clocks of the other members.
#[derive(Debug)]
pub struct Clocks {
    /// Wall clock of each member less the own monotonic clock, ns.
    offsets_ns: Vec<AtomicI64>,
}

impl Clocks {
    /// Of a group of so many members; none is known.
    pub fn new(members: usize) -> Clocks {
        Clocks { offsets_ns: (0..members).map(|_| AtomicI64::new(UNKNOWN)).collect() }
    }

    /// The clock of the member at this position shows `wall_ns` when the own monotonic clock shows
    /// `monotonic_ns`.
    pub fn record(&self, position: usize, wall_ns: u64, monotonic_ns: u64) {
        self.set(position, difference_ns(wall_ns, monotonic_ns));
    }

    /// The clock of a member is not known any more.
    pub fn forget(&self, position: usize) {
        self.set(position, UNKNOWN);
    }

    fn set(&self, position: usize, offset_ns: i64) {
        if let Some(of) = self.offsets_ns.get(position) {
            of.store(offset_ns, Ordering::Relaxed);
        }
    }

    /// The clocks that are known: positions in the group, and what the clocks show when the own
    /// monotonic clock shows `monotonic_ns`.
    pub fn known(&self, monotonic_ns: u64) -> Vec<(usize, u64)> {
        let offsets = self.offsets_ns.iter().map(|offset| offset.load(Ordering::Relaxed));
        let known = offsets.enumerate().filter(|(_, offset)| *offset != UNKNOWN);
        known
            .map(|(position, offset)| (position, monotonic_ns.saturating_add_signed(offset)))
            .collect()
    }
}

/// `a` less `b`, as far as it can be expressed.
pub fn difference_ns(a: u64, b: u64) -> i64 {
    let least = UNKNOWN + 1;
    i64::try_from(i128::from(a) - i128::from(b))
        .map_or(if a > b { i64::MAX } else { least }, |difference| difference.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_with_the_own_monotonic_clock_until_it_is_forgotten() {
        let clocks = Clocks::new(3);
        assert_eq!(clocks.known(5), []);
        clocks.set(1, 1_000);
        clocks.set(2, -3);
        clocks.set(7, 1);
        assert_eq!(clocks.known(5), [(1, 1_005), (2, 2)]);
        assert_eq!(clocks.known(9), [(1, 1_009), (2, 6)]);
        clocks.forget(1);
        assert_eq!(clocks.known(9), [(2, 6)]);
        clocks.record(0, 1 << 60, 9);
        assert_eq!(clocks.known(12)[0], (0, (1 << 60) + 3));
    }

    #[test]
    fn differences_end_where_they_cannot_be_expressed() {
        assert_eq!((difference_ns(7, 4), difference_ns(4, 7)), (3, -3));
        assert_eq!(difference_ns(u64::MAX, 0), i64::MAX);
        assert_eq!(difference_ns(0, u64::MAX), i64::MIN + 1);
    }
}
