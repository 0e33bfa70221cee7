//! Work of the memory alone: a walk along a random cycle of cache lines. Each line names the next
//! one, so that no two reads overlap and none can be predicted.
//!
//! The cycle is larger than the last-level cache and shared by all threads, which only read it and
//! start at different places. The line that a walk must end at follows from the permutation that
//! the cycle was made of.

use std::hint::black_box;

/// Steps of one job.
pub const STEPS: u64 = 4_000_000;

/// Bytes of one line: that of a cache line on all supported processors.
const LINE_BYTES: u64 = 64;

/// How many times the last-level cache the cycle takes, if the limits allow it.
const CACHE_FACTOR: u64 = 4;

/// Smallest factor at which most reads still miss the cache.
const CACHE_FACTOR_MIN: u64 = 2;

/// Size for a processor whose cache is not known.
const UNKNOWN_CACHE_BYTES: u64 = 32 << 20;

/// Smallest cycle, whatever the cache.
const CYCLE_BYTES_MIN: u64 = 16 << 20;

/// Largest cycle.
pub const CYCLE_BYTES_MAX: u64 = 2 << 30;

/// Largest share of the available memory, as its divisor. A quarter for the permutation is
/// contained in it.
const AVAILABLE_DIVISOR: u64 = 4;

/// Why there is no cycle that is larger than the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a walk that misses the cache needs at least {} MiB, and {} MiB may be used: {reason}",
    .needed_bytes >> 20, .usable_bytes >> 20
)]
pub struct TooSmall {
    /// Bytes of the smallest useful cycle.
    pub needed_bytes: u64,
    /// Bytes that may be used.
    pub usable_bytes: u64,
    /// What limits them.
    pub reason: &'static str,
}

/// Bytes of the cycle for a last-level cache and available memory of this size.
///
/// # Errors
/// [`TooSmall`] if most reads would hit the cache.
pub fn cycle_bytes(cache_bytes: Option<u64>, available_bytes: u64) -> Result<u64, TooSmall> {
    let cache_bytes = cache_bytes.unwrap_or(UNKNOWN_CACHE_BYTES);
    let wanted = cache_bytes.saturating_mul(CACHE_FACTOR).max(CYCLE_BYTES_MIN);
    let of_available = available_bytes / AVAILABLE_DIVISOR;
    let bytes = wanted.min(CYCLE_BYTES_MAX).min(of_available);
    let needed_bytes = cache_bytes.saturating_mul(CACHE_FACTOR_MIN).max(CYCLE_BYTES_MIN);
    if bytes >= needed_bytes {
        return Ok(bytes);
    }
    let reason = match of_available < CYCLE_BYTES_MAX {
        true => "a quarter of the available memory",
        false => "the limit of this workload",
    };
    Err(TooSmall { needed_bytes, usable_bytes: of_available.min(CYCLE_BYTES_MAX), reason })
}

/// A cache line with the number of the next one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    next: u32,
}

/// A random cycle through all of its lines.
pub struct Cycle {
    lines: Vec<Line>,
    /// The lines in the order of the cycle.
    order: Vec<u32>,
}

impl std::fmt::Debug for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cycle({} lines)", self.lines.len())
    }
}

impl Cycle {
    /// A cycle of about `bytes` bytes. Equal seeds give equal cycles.
    pub fn new(bytes: u64, seed: u64) -> Cycle {
        let count = (bytes.min(CYCLE_BYTES_MAX) / LINE_BYTES).max(1) as u32;
        let mut random = nm_stats::random::Random::new(seed);
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        let mut lines = vec![Line { next: 0 }; order.len()];
        for (at, line) in order.iter().enumerate() {
            lines[*line as usize].next = order[(at + 1) % order.len()];
        }
        Cycle { lines, order }
    }

    /// Bytes of its lines.
    pub fn bytes(&self) -> u64 {
        self.lines.len() as u64 * LINE_BYTES
    }

    /// The place at which thread `index` of `count` starts: they are spread evenly.
    pub fn place(&self, index: usize, count: usize) -> usize {
        let share = index as u128 * self.order.len() as u128 / count.max(1) as u128;
        share as usize % self.order.len()
    }

    /// Walks `steps` lines from a place: the line where the walk ends. None if `cancelled` became
    /// true, which is asked every few milliseconds.
    pub fn walk(&self, place: usize, steps: u64, cancelled: &dyn Fn() -> bool) -> Option<u32> {
        const BLOCK: u64 = 20_000;
        let mut line = black_box(self.order[place % self.order.len()]);
        let mut left = steps;
        while left > 0 {
            if cancelled() {
                return None;
            }
            let block = left.min(BLOCK);
            for _ in 0..block {
                line = self.lines[line as usize].next;
            }
            left -= block;
        }
        Some(black_box(line))
    }

    /// Whether a walk of `steps` lines from `place` ends at `line`.
    pub fn is_correct(&self, place: usize, steps: u64, line: u32) -> bool {
        let count = self.order.len() as u64;
        let end = (place as u64 % count + steps % count) % count;
        self.order[end as usize] == line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_cycle_is_larger_than_the_cache_and_leaves_most_of_the_memory() {
        assert_eq!(cycle_bytes(Some(32 * MIB), 8 << 30), Ok(128 * MIB));
        assert_eq!(cycle_bytes(None, 8 << 30), Ok(128 * MIB));
        assert_eq!(cycle_bytes(Some(MIB), 8 << 30), Ok(16 * MIB));
        assert_eq!(cycle_bytes(Some(32 * MIB), 300 * MIB), Ok(75 * MIB));
        assert_eq!(cycle_bytes(Some(768 * MIB), 1 << 40), Ok(CYCLE_BYTES_MAX));
        let error = cycle_bytes(Some(32 * MIB), 200 * MIB).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a walk that misses the cache needs at least 64 MiB, and 50 MiB may be used: a \
             quarter of the available memory"
        );
        let error = cycle_bytes(Some(2 << 30), 1 << 40).unwrap_err();
        assert_eq!(error.reason, "the limit of this workload");
    }

    #[test]
    fn a_cycle_has_the_size_that_was_asked_for() {
        let cycle = Cycle::new(100_000, 1);
        assert_eq!(cycle.bytes(), 100_000 / 64 * 64);
        assert_eq!(std::mem::size_of::<Line>() as u64, LINE_BYTES);
        assert_eq!(cycle.walk(0, 10, &|| true), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_walk_visits_every_line_once(lines in 1_u64..500, seed: u64) {
            let cycle = Cycle::new(lines * LINE_BYTES, seed);
            let visited: std::collections::BTreeSet<u32> =
                (0..lines).map(|steps| cycle.walk(0, steps, &|| false).unwrap()).collect();
            prop_assert_eq!(visited.len() as u64, lines);
            prop_assert_eq!(cycle.walk(0, lines, &|| false), cycle.walk(0, 0, &|| false));
        }

        #[test]
        fn only_the_right_line_is_correct(
            lines in 2_u64..500, seed: u64, steps in 0_u64..100_000, thread in 0_usize..8,
            wrong in 1_u32..500,
        ) {
            let cycle = Cycle::new(lines * LINE_BYTES, seed);
            let place = cycle.place(thread, 8);
            let end = cycle.walk(place, steps, &|| false).unwrap();
            prop_assert!(cycle.is_correct(place, steps, end));
            let other = (end + wrong) % lines as u32;
            prop_assert!(other == end || !cycle.is_correct(place, steps, other));
        }
    }
}
