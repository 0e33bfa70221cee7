//! Numbers for examples: the same for each seed, on every machine.

/// A sequence of numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number, of any size: small ones are as likely as large ones.
    pub fn number(&mut self) -> u64 {
        let bits = self.next() % 64;
        self.next() >> bits
    }

    /// The next number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
