//! Whether it pays to poll the members of a set in memory.
//!
//! What memory saves is set against what its use costs, in ns as measured on current hardware; only
//! the proportions matter. While the balance is negative, all members rely on the kernel and a wait
//! is the kernel's own, without a spin. Now and then a trial finds out whether that has changed. It
//! makes the members that were used lately active again, and lasts until its costs exceed its
//! allowance. It takes several sleeps, because both ends must be awake before memory is used.

/// What a message through memory saves both ends: two calls of the kernel, and what lies between.
const MESSAGE_NS: i64 = 3_000;

/// What a sleep costs beyond the kernel's own: a spin in vain.
const SLEEP_NS: i64 = 2_000;

/// What it costs to make a member rely on the kernel and active again.
const MEMBER_NS: i64 = 150;

/// What it costs to look into the memory of a member.
const CHECK_NS: i64 = 10;

/// Most that is saved up, and what a new set begins with.
const BALANCE_NS_MAX: i64 = 1_000_000;

/// With more than this a trial has succeeded.
const SUCCESS_NS: i64 = 50_000;

/// Allowance of a trial.
const TRIAL_NS: i64 = 4 * SLEEP_NS;

/// Waits between two trials: at first, and at most.
const PAUSE_WAITS: [u32; 2] = [16, 256];

/// The balance of one set.
#[derive(Debug, PartialEq, Eq)]
pub struct Payoff {
    balance_ns: i64,
    /// Waits until the next trial.
    waits_left: u32,
    /// Waits between the last trial and the next one.
    pause_waits: u32,
}

impl Default for Payoff {
    fn default() -> Payoff {
        Payoff { balance_ns: BALANCE_NS_MAX, waits_left: 0, pause_waits: PAUSE_WAITS[0] }
    }
}

impl Payoff {
    /// Whether members may be polled in memory.
    #[inline]
    pub fn is_positive(&self) -> bool {
        self.balance_ns > 0
    }

    /// Memory had messages of so many members.
    #[inline]
    pub fn found(&mut self, messages: usize) {
        self.add(messages as i64 * MESSAGE_NS);
    }

    /// So many members were looked at, when a thread that had nothing to wait for might have gone
    /// on.
    #[inline]
    pub fn checked(&mut self, members: usize) {
        self.add(-(members as i64) * CHECK_NS);
    }

    /// A thread has slept, and `members` became active or relied on the kernel for it.
    pub fn slept(&mut self, members: usize) {
        self.add(-SLEEP_NS - members as i64 * MEMBER_NS);
    }

    /// `members` became active because the kernel has reported them.
    pub fn activated(&mut self, members: usize) {
        self.add(-(members as i64) * MEMBER_NS);
    }

    #[inline]
    fn add(&mut self, ns: i64) {
        let was_positive = self.is_positive();
        self.balance_ns = (self.balance_ns + ns).min(BALANCE_NS_MAX);
        if was_positive && !self.is_positive() {
            self.balance_ns = 0;
            self.waits_left = self.pause_waits;
        } else if self.balance_ns > SUCCESS_NS {
            self.pause_waits = PAUSE_WAITS[0];
        }
    }

    /// Before a wait while the balance is not positive: begins a trial if one is due.
    pub fn begin_trial(&mut self) -> bool {
        debug_assert!(!self.is_positive());
        self.waits_left = self.waits_left.saturating_sub(1);
        if self.waits_left > 0 {
            return false;
        }
        self.balance_ns = TRIAL_NS;
        self.pause_waits = (self.pause_waits * 2).min(PAUSE_WAITS[1]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the balance is positive, at most.
    fn waits_until_trial(payoff: &mut Payoff) -> u32 {
        (1..).find(|_| payoff.begin_trial()).unwrap()
    }

    fn sleep_until_negative(payoff: &mut Payoff) -> u32 {
        let mut sleeps = 0;
        while payoff.is_positive() {
            payoff.slept(1);
            sleeps += 1;
        }
        sleeps
    }

    #[test]
    fn set_that_always_sleeps_uses_the_kernel_and_tries_memory_ever_more_seldom() {
        let mut payoff = Payoff::default();
        assert!(payoff.is_positive());
        assert!((300..600).contains(&sleep_until_negative(&mut payoff)));
        let mut pauses = vec![];
        for _ in 0..6 {
            pauses.push(waits_until_trial(&mut payoff));
            assert!((2..=4).contains(&sleep_until_negative(&mut payoff)));
        }
        assert_eq!(pauses, [16, 32, 64, 128, 256, 256]);
    }

    #[test]
    fn trial_that_finds_messages_in_memory_lasts() {
        let mut payoff = Payoff::default();
        sleep_until_negative(&mut payoff);
        waits_until_trial(&mut payoff);
        payoff.slept(4);
        (0..1000).for_each(|_| payoff.found(1));
        assert!(payoff.is_positive());
        assert!(sleep_until_negative(&mut payoff) > 30);
        assert_eq!(waits_until_trial(&mut payoff), PAUSE_WAITS[0]);
    }

    #[test]
    fn few_messages_among_many_members_do_not_pay() {
        let mut payoff = Payoff::default();
        let mut pass = |activated| {
            payoff.checked(64);
            payoff.found(1);
            payoff.activated(activated);
            payoff.is_positive()
        };
        assert!((0..10_000).all(|_| pass(5)));
        assert!(!(0..10_000).all(|_| pass(20)));
        let payoff = payoff;
        assert!(!payoff.is_positive());
    }
}
