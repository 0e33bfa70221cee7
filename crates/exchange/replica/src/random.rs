//! A generator of random numbers that depend on its seed only.

/// The generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Environment, Machine};

    impl Random {
        /// A number below a bound.
        pub fn below(&mut self, bound: u64) -> u64 {
            self.number() % bound
        }

        /// True in so many of a thousand cases.
        pub fn chance(&mut self, per_mille: u64) -> bool {
            self.below(1000) < per_mille
        }
    }

    #[test]
    fn numbers_differ_unless_they_are_seeded_alike() {
        assert_ne!(Machine.random(), Machine.random());
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [random.number(), random.number()]
        };
        assert_eq!(numbers(5), numbers(5));
        assert_ne!(numbers(5)[0], numbers(5)[1]);
        assert_ne!(numbers(5), numbers(6));
    }
}
