//! How long an agent waits before it connects again.

use std::time::Duration;

/// Shortest wait.
const FIRST: Duration = Duration::from_millis(250);

/// Longest wait.
pub const LONGEST: Duration = Duration::from_secs(8);

/// Doubles the wait with each failure in a row.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait. `random` spreads agents that have lost one controller: the wait is between
    /// half and all of what the failures give.
    pub fn next(&mut self, random: u8) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        doubled / 2 + doubled / 2 * u32::from(random) / u32::from(u8::MAX)
    }

    /// The controller has welcomed the agent.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_begin_anew_after_a_welcome() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..8).map(|_| backoff.next(255).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
        assert_eq!(backoff.next(0), LONGEST / 2);
        backoff.succeeded();
        assert_eq!(backoff.next(255), FIRST);
        let mut forever = Backoff { failures: u32::MAX };
        assert_eq!(forever.next(255), LONGEST);
    }
}
