//! Heartbeats of a client's link: when this end sends one, and when those of the other end are
//! missing.
//!
//! Time counts in steps in which the node runs: after a standstill it must not take links for dead
//! that it has not read.

use std::time::Duration;

use crate::limits::HEARTBEATS_MISSED_MAX;

use super::peer::PeerError;

/// The heartbeats of a link.
#[derive(Debug, Clone, Copy)]
pub struct Heartbeats {
    interval_ns: u64,
    /// Time since the peer's last one, and since the last one of this end, ns.
    silent_ns: u64,
    unsent_ns: u64,
    /// How many this end has sent.
    sent: u64,
}

impl Heartbeats {
    /// Those of a link with this interval, ms.
    pub fn new(interval_ms: u32) -> Heartbeats {
        let interval_ns = u64::from(interval_ms) * 1_000_000;
        Heartbeats { interval_ns, silent_ns: 0, unsent_ns: interval_ns, sent: 0 }
    }

    /// One has come.
    pub fn contacted(&mut self) {
        self.silent_ns = 0;
    }

    /// Time has passed; the number of the one that this end is to send now, if it is.
    pub fn advance(&mut self, step_ns: u64) -> Option<u64> {
        self.silent_ns += step_ns;
        self.unsent_ns += step_ns;
        if self.unsent_ns < self.interval_ns {
            return None;
        }
        self.unsent_ns = 0;
        self.sent += 1;
        Some(self.sent)
    }

    /// Why the link is to be closed, if it is.
    pub fn overdue(&self) -> Option<PeerError> {
        let most_ns = self.interval_ns * u64::from(HEARTBEATS_MISSED_MAX);
        let silent = || PeerError::Silent(ns(most_ns), ns(self.interval_ns));
        (self.silent_ns > most_ns).then(silent)
    }
}

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_sent_each_interval_and_three_that_are_missing_end_the_link() {
        let mut link = Heartbeats::new(500);
        let step_ns = 100_000_000;
        let sent: Vec<bool> = (0..11).map(|_| link.advance(step_ns).is_some()).collect();
        let due: Vec<bool> = (0..11).map(|at| at % 5 == 0).collect();
        assert_eq!(sent, due, "the first one at once");
        assert!(link.overdue().is_none());
        assert_eq!((0..4).filter_map(|_| link.advance(step_ns)).count(), 0);
        assert!(link.overdue().is_none(), "just in time");
        link.advance(step_ns);
        let words = link.overdue().unwrap().to_string();
        assert_eq!(words, "no heartbeat came for 1.5 s: one is due each 0.5 s");
        link.contacted();
        assert!(link.overdue().is_none());
    }
}
