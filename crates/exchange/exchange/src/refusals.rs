//! Whose connections ended without a handshake lately. An owner that causes that again and again is
//! not answered for a while. Its connections are closed as soon as they are accepted, which costs
//! the node a small part of what a refusal costs.

use std::collections::BTreeMap;

use nm_wire::Owner;

/// Connections without a handshake that an owner may have ended at once, after a pause of ten
/// seconds.
pub const REFUSALS_MAX: u64 = 1024;

/// After how long an owner may have one more, ns.
pub const REFUSAL_NS: u64 = 10_000_000;

/// Owners that are remembered. Further ones are answered, as if they came for the first time.
const OWNERS_MAX: usize = 1 << 16;

/// How often those are forgotten that may have all again, ns.
const CHECK_NS: u64 = 1_000_000_000;

/// Refusals of owners.
#[derive(Debug, Default)]
pub struct Refusals {
    /// When an owner may have all again, ns: each refusal puts that off.
    clear_at_ns: BTreeMap<Owner, u64>,
    next_check_ns: u64,
}

impl Refusals {
    /// An owner has connected. That counts as refused until [`Refusals::forgive`].
    pub fn count(&mut self, owner: Owner, now_ns: u64) {
        if now_ns >= self.next_check_ns {
            self.next_check_ns = now_ns + CHECK_NS;
            self.clear_at_ns.retain(|_, at_ns| *at_ns > now_ns);
        }
        let is_known = self.clear_at_ns.contains_key(&owner);
        if owner.is_somebody() && (is_known || self.clear_at_ns.len() < OWNERS_MAX) {
            let clear_at_ns = self.clear_at_ns.entry(owner).or_insert(now_ns);
            let later_ns = (*clear_at_ns).max(now_ns) + REFUSAL_NS;
            *clear_at_ns = later_ns.min(now_ns + REFUSALS_MAX * REFUSAL_NS);
        }
    }

    /// A connection of an owner has completed its handshake.
    pub fn forgive(&mut self, owner: Owner) {
        if let Some(clear_at_ns) = self.clear_at_ns.get_mut(&owner) {
            *clear_at_ns = clear_at_ns.saturating_sub(REFUSAL_NS);
        }
    }

    /// Whether an owner had too many, so that it is not answered now.
    pub fn is_too_often(&self, owner: Owner, now_ns: u64) -> bool {
        let clear_at_ns = self.clear_at_ns.get(&owner).copied().unwrap_or_default();
        let left_ns = clear_at_ns.saturating_sub(now_ns);
        // More would be left only if the clock went back.
        left_ns > (REFUSALS_MAX - 1) * REFUSAL_NS && left_ns <= REFUSALS_MAX * REFUSAL_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owner = Owner::of_user(1);
    const OTHER: Owner = Owner::of_user(2);

    #[test]
    fn an_owner_that_is_refused_too_often_is_not_answered_for_a_while_and_others_are() {
        let mut refusals = Refusals::default();
        let refused = (0..).find(|_| {
            refusals.count(ONE, 5);
            refusals.is_too_often(ONE, 5)
        });
        assert_eq!(refused, Some(REFUSALS_MAX - 1));
        assert!(!refusals.is_too_often(OTHER, 5));
        // Then one is answered each time.
        let mut answered = 0;
        for now_ns in (5..1_000_000_005).step_by(100_000) {
            if !refusals.is_too_often(ONE, now_ns) {
                answered += 1;
                refusals.count(ONE, now_ns);
            }
        }
        assert!((99..=101).contains(&answered), "{answered}");
        let later_ns = 20_000_000_000;
        refusals.count(OTHER, later_ns);
        assert!(!refusals.clear_at_ns.contains_key(&ONE), "nothing is kept of it");
    }

    #[test]
    fn a_clock_that_goes_back_silences_nobody() {
        let mut refusals = Refusals::default();
        let hour_ns = 3_600_000_000_000;
        (0..2 * REFUSALS_MAX).for_each(|_| refusals.count(ONE, hour_ns));
        assert!(refusals.is_too_often(ONE, hour_ns) && !refusals.is_too_often(ONE, 5));
        refusals.count(ONE, 5);
        assert!(!refusals.is_too_often(ONE, 5 + 2 * REFUSAL_NS));
    }

    #[test]
    fn connections_that_complete_their_handshake_have_no_effect() {
        let mut refusals = Refusals::default();
        for _ in 0..10 * REFUSALS_MAX {
            (0..100).for_each(|_| refusals.count(ONE, 5));
            assert!(!refusals.is_too_often(ONE, 5));
            (0..100).for_each(|_| refusals.forgive(ONE));
        }
    }

    #[test]
    fn refusals_that_are_rare_have_no_effect() {
        let mut refusals = Refusals::default();
        for number in 0..10 * REFUSALS_MAX {
            refusals.count(ONE, number * REFUSAL_NS);
            assert!(!refusals.is_too_often(ONE, number * REFUSAL_NS));
        }
    }
}
