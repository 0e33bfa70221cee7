//! How long a node that died waits until it is started again.

use std::time::Duration;

/// First pause.
pub(crate) const FIRST: Duration = Duration::from_millis(100);

/// Longest pause.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// A node that was ready for this time has shown that it works: its earlier deaths are forgotten.
const STEADY: Duration = Duration::from_secs(5);

/// What one node's deaths ask for. Times are on the monotonic clock, ns.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    ready_at_ns: Option<u64>,
    /// The pause after the next death. The first death is followed by none.
    pause: Duration,
}

impl Backoff {
    /// The node can do its work.
    pub(crate) fn ready(&mut self, now_ns: u64) {
        self.ready_at_ns = Some(now_ns);
    }

    /// The node has died: the pause until it is started again.
    pub(crate) fn died(&mut self, now_ns: u64) -> Duration {
        let was_ready_ns = self.ready_at_ns.take().map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        if u128::from(was_ready_ns) >= STEADY.as_nanos() {
            self.pause = Duration::ZERO;
        }
        let pause = self.pause;
        self.pause = (pause * 2).clamp(FIRST, LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn pauses(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.died(SECOND_NS).as_millis()).collect()
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        let mut backoff = Backoff::default();
        assert_eq!(
            pauses(&mut backoff, 9),
            [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000],
            "ms after each death"
        );
    }

    /// Ready is not enough: a node whose disk fills may come up and die each time.
    #[test]
    fn a_node_that_is_ready_and_dies_again_and_again_is_not_started_without_pause() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..5)
            .map(|at| {
                backoff.ready(at * SECOND_NS);
                backoff.died(at * SECOND_NS + STEADY.as_nanos() as u64 - 1).as_millis()
            })
            .collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800]);
    }

    #[test]
    fn a_node_that_worked_is_started_at_once() {
        let mut backoff = Backoff::default();
        pauses(&mut backoff, 9);
        backoff.ready(SECOND_NS);
        assert_eq!(backoff.died(SECOND_NS + STEADY.as_nanos() as u64), Duration::ZERO);
        assert_eq!(backoff.died(SECOND_NS), FIRST);
    }
}
