//! A drained mediator that leads hands over, again and again. It may have been elected because no
//! other replica could lead, and each attempt is a pause for its clients.

/// First pause between two attempts, ns; it doubles each time.
const PAUSE_NS: u64 = 1_000_000_000;

/// Longest such pause, ns.
const PAUSE_NS_MAX: u64 = 300_000_000_000;

/// When a drained mediator hands over next.
#[derive(Debug, Default)]
pub struct HandOverTimer {
    /// None if it is not drained, or leads nothing.
    due_ns: Option<u64>,
    attempts: u32,
}

impl HandOverTimer {
    /// Whether it is time to hand over: at once when a drained mediator leads for the first time.
    pub fn is_due(&mut self, now_ns: u64, is_drained: bool, is_leading: bool) -> bool {
        if !is_drained {
            self.attempts = 0;
        }
        if !is_drained || !is_leading {
            self.due_ns = None;
            return false;
        }
        let pause_ns = (PAUSE_NS << self.attempts.min(16)).min(PAUSE_NS_MAX);
        let first_ns = if self.attempts == 0 { now_ns } else { now_ns + pause_ns };
        let is_due = *self.due_ns.get_or_insert(first_ns) <= now_ns;
        if is_due {
            self.due_ns = Some(now_ns + pause_ns);
            self.attempts += 1;
        }
        is_due
    }

    /// When [`HandOverTimer::is_due`] is to be asked again, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.due_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_double_until_it_works_again() {
        let mut timer = HandOverTimer::default();
        assert!(!timer.is_due(0, false, true) && !timer.is_due(0, true, false));
        let (mut due, mut now_ns) = (vec![], 5);
        while due.len() < 12 {
            if timer.is_due(now_ns, true, true) {
                due.push(now_ns);
            }
            now_ns = timer.deadline_ns().unwrap();
        }
        let pauses: Vec<u64> = due.windows(2).map(|two| (two[1] - two[0]) / PAUSE_NS).collect();
        assert_eq!(due[0], 5);
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        // Somebody else has led meanwhile: it does not hand over at once.
        assert!(!timer.is_due(now_ns, true, false) && !timer.is_due(now_ns, true, true));
        assert_eq!(timer.deadline_ns(), Some(now_ns + PAUSE_NS_MAX));
        assert!(!timer.is_due(now_ns, false, true) && timer.is_due(now_ns, true, true));
    }
}
