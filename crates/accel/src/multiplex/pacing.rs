//! When a wait for an epoll set polls the kernel, although memory has events.

/// Most calls that return events of memory only before the kernel is polled.
const INTERVAL_MAX: u32 = 8;

/// Decides for each call of a set. The kernel is polled in the next call after it had events, and
/// ever more seldom while it has none, so that neither source that is always ready hides the other.
#[derive(Debug)]
pub struct Pacing {
    interval: u32,
    calls: u32,
    was_first: bool,
    has_changed: bool,
}

impl Default for Pacing {
    fn default() -> Pacing {
        Pacing { interval: 1, calls: 0, was_first: false, has_changed: true }
    }
}

impl Pacing {
    /// Begins a call; returns whether the kernel must be polled, and whether before memory.
    pub fn begin_call(&mut self) -> (bool, bool) {
        self.calls += 1;
        let is_due = self.has_changed || self.calls >= self.interval;
        // In turn: with a small array, the source that is asked first may fill it.
        let is_first = is_due && !self.was_first;
        self.was_first = is_first;
        (is_due, is_first)
    }

    /// A registration has changed: the kernel knows what is ready.
    pub fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// The kernel was polled, and has reported events or none.
    pub fn polled(&mut self, had_events: bool) {
        self.has_changed = false;
        self.calls = 0;
        self.interval = if had_events { 1 } else { (self.interval * 2).min(INTERVAL_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_events_is_polled_every_eighth_call() {
        let mut pacing = Pacing::default();
        let mut polls = Vec::new();
        for call in 0..64 {
            if pacing.begin_call().0 {
                polls.push(call);
                pacing.polled(false);
            }
        }
        assert_eq!(polls[..4], [0, 2, 6, 14]);
        assert!(polls.windows(2).all(|pair| pair[1] - pair[0] <= INTERVAL_MAX as i32));
        pacing.note_change();
        assert!(pacing.begin_call().0);
    }

    #[test]
    fn busy_kernel_is_asked_in_each_call_and_first_in_every_second() {
        let mut pacing = Pacing::default();
        let mut firsts = 0;
        for _ in 0..10 {
            let (is_due, is_first) = pacing.begin_call();
            assert!(is_due);
            firsts += u32::from(is_first);
            pacing.polled(true);
        }
        assert_eq!(firsts, 5);
    }
}
