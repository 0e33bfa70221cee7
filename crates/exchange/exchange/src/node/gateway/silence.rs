//! Whether the router that has a gateway's requests lets them wait. Nothing else tells a router
//! that stands still from one that has nothing to say.
//!
//! A gateway hears nothing of a router while all goes well; the answers come from processors. So a
//! router is suspected if requests wait and nothing was answered for a while. The cause may lie
//! elsewhere: then the other router changes nothing, and each wait is longer than the one before.

use std::collections::BTreeSet;

use super::pending::TIMEOUT_NS_MAX;

/// Time without any answer after which a router is suspected at first, ns: requests were sent
/// again by then.
const PATIENCE_NS: u64 = 400_000_000;

/// What a gateway knows of the silence behind its router.
#[derive(Debug)]
pub struct Silence {
    /// Since when requests wait without any answer, ns.
    since_ns: Option<u64>,
    patience_ns: u64,
    suspected: BTreeSet<u16>,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { since_ns: None, patience_ns: PATIENCE_NS, suspected: BTreeSet::new() }
    }
}

impl Silence {
    /// A request was answered, in whatever way.
    pub fn end(&mut self) {
        (self.since_ns, self.patience_ns) = (None, PATIENCE_NS);
    }

    /// A router has sent something, or its link has ended.
    pub fn contacted_by(&mut self, router: u16) {
        self.suspected.remove(&router);
    }

    /// Whether a router is suspected.
    pub fn suspects(&self, router: u16) -> bool {
        self.suspected.contains(&router)
    }

    /// Requests wait, or none does; for how long nothing was answered, if that is too long now, ns.
    /// `least_ns`: that is not yet.
    pub fn check(&mut self, waits: bool, now_ns: u64, least_ns: u64) -> Option<u64> {
        if !waits {
            self.since_ns = None;
            return None;
        }
        let silent_ns = now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns));
        (silent_ns > self.patience_ns.max(least_ns)).then_some(silent_ns)
    }

    /// Suspects a router, and waits longer until the next suspicion. If all the others are
    /// suspected already, they are as good again.
    pub fn suspect(&mut self, router: u16, others: &[u16], now_ns: u64) {
        self.suspected.insert(router);
        if others.iter().all(|other| self.suspects(*other)) {
            self.suspected.retain(|suspected| *suspected == router);
        }
        self.since_ns = Some(now_ns);
        self.patience_ns = (self.patience_ns * 2).min(TIMEOUT_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_is_suspected_if_nothing_is_answered_and_each_time_later() {
        let mut silence = Silence::default();
        assert_eq!(silence.check(true, 0, 0), None);
        assert_eq!(silence.check(true, PATIENCE_NS, 0), None);
        assert_eq!(silence.check(true, PATIENCE_NS + 1, 0), Some(PATIENCE_NS + 1));
        assert_eq!(silence.check(true, PATIENCE_NS + 1, PATIENCE_NS * 2), None, "a slow network");
        silence.suspect(0, &[1], PATIENCE_NS);
        assert!(silence.suspects(0) && !silence.suspects(1));
        assert_eq!(silence.check(true, 3 * PATIENCE_NS, 0), None);
        assert_eq!(silence.check(true, 3 * PATIENCE_NS + 1, 0), Some(2 * PATIENCE_NS + 1));
        silence.suspect(1, &[0], 0);
        assert!(silence.suspects(1) && !silence.suspects(0), "one is used in any case");
        silence.end();
        assert_eq!(silence.check(true, 10, 0), None);
        assert_eq!(silence.check(false, PATIENCE_NS, 0), None, "nothing waits");
        assert_eq!(silence.check(true, PATIENCE_NS + 11, 0), None);
        silence.contacted_by(1);
        assert!(!silence.suspects(1));
    }
}
