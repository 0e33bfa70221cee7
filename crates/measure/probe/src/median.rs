//! An estimate of the median for the progress display.

/// A running estimate that costs one comparison per sample: it moves towards each sample by a 256th
/// of itself (the "frugal" method of Ma, Muthukrishnan and Sandler, 2013).
#[derive(Debug, Default)]
pub(crate) struct RunningMedian(u64);

impl RunningMedian {
    /// Takes a sample.
    #[inline(always)]
    pub fn add(&mut self, sample: u64) {
        let step = self.0 / 256 + 1;
        if self.0 == 0 {
            self.0 = sample;
        } else if sample > self.0 {
            self.0 += step;
        } else {
            self.0 -= step.min(self.0);
        }
    }

    /// The current estimate, 0 before the first sample.
    #[inline(always)]
    pub fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_approaches_the_median() {
        let mut median = RunningMedian::default();
        for round in 0..20_000u64 {
            median.add(if round % 10 == 0 { 1_000_000 } else { 9_000 + round % 7 * 300 });
        }
        assert!((8_500..11_500).contains(&median.value()), "{}", median.value());
    }
}
