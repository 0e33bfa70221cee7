//! Random numbers: the system's, or in a simulation those of its seed.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A random number.
pub fn number() -> u64 {
    #[cfg(test)]
    if let Some(number) = testing::number() {
        return number;
    }
    // The standard library's hasher is seeded by the system's randomness.
    RandomState::new().build_hasher().finish()
}

/// Random numbers that depend on a seed only.
#[cfg(test)]
pub mod testing {
    use std::cell::Cell;

    /// A generator of random numbers (SplitMix64).
    #[derive(Debug, Clone)]
    pub struct Random(u64);

    impl Random {
        pub fn new(seed: u64) -> Random {
            Random(seed)
        }

        pub fn number(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        /// A number below a bound.
        pub fn below(&mut self, bound: u64) -> u64 {
            self.number() % bound
        }

        /// True in so many of a thousand cases.
        pub fn chance(&mut self, per_mille: u64) -> bool {
            self.below(1000) < per_mille
        }
    }

    thread_local! {
        static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on the numbers of this thread depend on the seed only; `None` ends that.
    pub fn seed(seed: Option<u64>) {
        SEEDED.set(seed);
    }

    pub fn number() -> Option<u64> {
        let mut random = Random(SEEDED.get()?);
        let number = random.number();
        SEEDED.set(Some(random.0));
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_unless_they_are_seeded_alike() {
        assert_ne!(number(), number());
        testing::seed(Some(5));
        let first = [number(), number()];
        testing::seed(Some(5));
        assert_eq!(first, [number(), number()]);
        assert_ne!(first[0], first[1]);
        testing::seed(None);
        assert_ne!(number(), number());
    }
}
