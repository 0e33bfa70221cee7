//! Whether a thread that shares its CPU with others should sleep at once instead of spinning.
//!
//! A thread that spins uses up its share of the CPU. If another one computes there, each yield
//! lasts until the scheduler takes the CPU from that one, often a millisecond. Messages wait
//! meanwhile, while a thread that sleeps runs as soon as a message comes. But if the others are
//! threads that ask or answer, a yield passes the CPU on for less than a sleep and a wake-up cost.
//! A single yield does not show which of the two it is. So once a thread has lost much time in
//! yields, the process tries both in turn, and counts the bytes that it receives and sends. It
//! keeps to sleeping if that carries about as many. Threads that have a CPU for themselves spin all
//! the same.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Yields from this length on are lost time, ns: shorter ones pass the CPU on to a thread that
/// soon waits itself.
const LOST_YIELD_NS: u64 = 100_000;

/// A thread that has lost [`LOST_NS`] within so much time is contended, ns.
const WINDOW_NS: u64 = 20_000_000;

/// A fifth of the window, ns.
const LOST_NS: u64 = 4_000_000;

/// First and last part of a trial, in which contended threads spin, ns. The part between, in which
/// they sleep, is twice as long: so a rate that rises or falls steadily favours neither.
const TRIAL_SPIN_NS: u64 = 20_000_000;

/// How long a thread must have been contended before the first trial, ns: a trial may cost much of
/// a program's time if that is short.
const PATIENCE_NS: u64 = 100_000_000;

/// After so much time without contention the next one is another, ns.
const FORGET_NS: u64 = 1_000_000_000;

/// How long the result of a trial holds, ns: at first, and at most after several with the same.
const HOLD_NS: [u64; 2] = [2_000_000_000, 16_000_000_000];

/// While contended threads sleep, time between two looks at whether they still are contended, ns.
const RECHECK_NS: u64 = 2_000_000_000;

/// Sleeping pays if it carries at least so many percent of the bytes that spinning does.
const PAYING_PERCENT: u128 = 90;

/// Bytes received and sent, and in what time.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    bytes: u64,
    ns: u64,
}

impl Carried {
    fn add(&mut self, other: Carried) {
        self.bytes += other.bytes;
        self.ns += other.ns;
    }

    /// Whether this rate is about as high as `other`, or higher.
    fn is_about(self, other: Carried) -> bool {
        let rate = |one: Carried, by: Carried| u128::from(one.bytes) * u128::from(by.ns);
        rate(self, other) * 100 >= rate(other, self) * PAYING_PERCENT
    }
}

/// What contended threads do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They spin.
    Spin,
    /// A trial: they spin, sleep, and spin again.
    TrialSpin,
    TrialSleep,
    TrialSpinAgain,
    /// They sleep.
    Sleep,
    /// They spin, for a short time at most, to find out whether they still are contended.
    Recheck,
}

/// The decisions of the process.
#[derive(Debug)]
struct Policy {
    phase: Phase,
    phase_began_ns: u64,
    phase_ends_ns: u64,
    trial_began_ns: u64,
    /// When a thread last was contended.
    contended_ns: u64,
    /// Before this there is no other trial.
    next_trial_ns: u64,
    hold_ns: u64,
    spinning: Carried,
    sleeping: Carried,
}

impl Policy {
    const fn new() -> Policy {
        Policy {
            phase: Phase::Spin,
            phase_began_ns: 0,
            phase_ends_ns: u64::MAX,
            trial_began_ns: 0,
            contended_ns: 0,
            next_trial_ns: 0,
            hold_ns: HOLD_NS[0],
            spinning: Carried { bytes: 0, ns: 0 },
            sleeping: Carried { bytes: 0, ns: 0 },
        }
    }

    fn begin(&mut self, phase: Phase, now_ns: u64, length_ns: u64) {
        (self.phase, self.phase_began_ns) = (phase, now_ns);
        self.phase_ends_ns = now_ns.saturating_add(length_ns);
    }

    fn begin_trial(&mut self, now_ns: u64) {
        self.trial_began_ns = now_ns;
        (self.spinning, self.sleeping) = (Carried::default(), Carried::default());
        self.begin(Phase::TrialSpin, now_ns, TRIAL_SPIN_NS);
    }

    /// A thread is contended.
    fn note_contended(&mut self, now_ns: u64) {
        let last_ns = std::mem::replace(&mut self.contended_ns, now_ns);
        if last_ns == 0 || now_ns.saturating_sub(last_ns) > FORGET_NS {
            self.next_trial_ns = self.next_trial_ns.max(now_ns + PATIENCE_NS);
        }
        match self.phase {
            Phase::Spin if now_ns >= self.next_trial_ns => self.begin_trial(now_ns),
            Phase::Recheck if now_ns >= self.next_trial_ns => self.begin_trial(now_ns),
            Phase::Recheck => self.begin(Phase::Sleep, now_ns, RECHECK_NS),
            _ => {}
        }
    }

    /// The phase has ended; `bytes` were received and sent in it.
    fn end_phase(&mut self, now_ns: u64, bytes: u64) {
        let length_ns = self.phase_ends_ns - self.phase_began_ns;
        let carried = Carried { bytes, ns: now_ns - self.phase_began_ns };
        // Nobody waited for messages meanwhile: the program does something else.
        let is_late = carried.ns > 2 * length_ns;
        match self.phase {
            Phase::TrialSpin if !is_late => {
                self.spinning = carried;
                self.begin(Phase::TrialSleep, now_ns, 2 * TRIAL_SPIN_NS);
            }
            Phase::TrialSleep if !is_late => {
                self.sleeping = carried;
                self.begin(Phase::TrialSpinAgain, now_ns, TRIAL_SPIN_NS);
            }
            Phase::TrialSpinAgain if !is_late => {
                self.spinning.add(carried);
                self.decide(now_ns);
            }
            Phase::Sleep => self.begin(Phase::Recheck, now_ns, WINDOW_NS),
            _ => self.begin(Phase::Spin, now_ns, u64::MAX),
        }
    }

    fn decide(&mut self, now_ns: u64) {
        let is_contended = self.contended_ns > self.trial_began_ns;
        let pays = is_contended && self.sleeping.is_about(self.spinning);
        self.next_trial_ns = now_ns + self.hold_ns;
        self.hold_ns = (self.hold_ns * 2).min(HOLD_NS[1]);
        match pays {
            true => self.begin(Phase::Sleep, now_ns, RECHECK_NS),
            false => self.begin(Phase::Spin, now_ns, u64::MAX),
        }
    }

    fn sleeps(&self) -> bool {
        matches!(self.phase, Phase::TrialSleep | Phase::Sleep)
    }

    fn is_trial(&self) -> bool {
        matches!(self.phase, Phase::TrialSpin | Phase::TrialSleep | Phase::TrialSpinAgain)
    }
}

/// Changed by whoever gets it at once: a thread that does not leaves the change to another.
static POLICY: Mutex<Policy> = Mutex::new(Policy::new());

/// What [`POLICY`] has decided, for those who only read it.
static SLEEPS: AtomicBool = AtomicBool::new(false);
static IS_TRIAL: AtomicBool = AtomicBool::new(false);
static PHASE_ENDS_NS: AtomicU64 = AtomicU64::new(u64::MAX);
/// Threads that were contended since then are meant.
static SINCE_NS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Bytes received and sent in this part of a trial.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// What a thread has lost in yields.
#[derive(Debug, Clone, Copy)]
struct Lost {
    since_ns: u64,
    ns: u64,
    /// When it last was contended.
    contended_ns: u64,
}

impl Lost {
    const NOTHING: Lost = Lost { since_ns: 0, ns: 0, contended_ns: 0 };

    /// Adds a yield; returns whether the thread has lost much time again.
    fn add(&mut self, before_ns: u64, after_ns: u64) -> bool {
        if after_ns.saturating_sub(self.since_ns) > WINDOW_NS {
            (self.since_ns, self.ns) = (before_ns, 0);
        }
        self.ns += after_ns - before_ns;
        let has_lost_much = self.ns >= LOST_NS;
        if has_lost_much {
            *self = Lost { since_ns: after_ns, ns: 0, contended_ns: after_ns };
        }
        has_lost_much
    }
}

std::thread_local! {
    static LOST: Cell<Lost> = const { Cell::new(Lost::NOTHING) };
}

/// A thread that waits for messages has yielded its CPU.
#[inline(always)]
pub fn note_yield(before_ns: u64, after_ns: u64) {
    if after_ns.saturating_sub(before_ns) >= LOST_YIELD_NS {
        note_lost(before_ns, after_ns);
    }
    end_phase_if_due(after_ns);
}

#[cold]
fn note_lost(before_ns: u64, after_ns: u64) {
    let mut lost = LOST.get();
    let has_lost_much = lost.add(before_ns, after_ns);
    LOST.set(lost);
    if has_lost_much {
        change(|policy| policy.note_contended(after_ns));
    }
}

/// Whether this thread is to sleep without a spin.
#[inline(always)]
pub fn sleeps_at_once(now_ns: impl FnOnce() -> u64) -> bool {
    SLEEPS.load(Ordering::Relaxed)
        && LOST.get().contended_ns >= SINCE_NS.load(Ordering::Relaxed)
        && {
            end_phase_if_due(now_ns());
            SLEEPS.load(Ordering::Relaxed)
        }
}

/// The process has received or sent so many bytes.
#[inline(always)]
pub fn note_bytes(bytes: usize) {
    if IS_TRIAL.load(Ordering::Relaxed) {
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[inline(always)]
fn end_phase_if_due(now_ns: u64) {
    if now_ns >= PHASE_ENDS_NS.load(Ordering::Relaxed) {
        change(|policy| {
            // Another thread may have ended it.
            if now_ns >= policy.phase_ends_ns {
                policy.end_phase(now_ns, BYTES.load(Ordering::Relaxed));
            }
        });
    }
}

#[cold]
fn change(change: impl FnOnce(&mut Policy)) {
    let Ok(mut policy) = POLICY.try_lock() else { return };
    let before = policy.phase;
    change(&mut policy);
    if policy.phase != before {
        BYTES.store(0, Ordering::Relaxed);
    }
    publish(&policy);
}

fn publish(policy: &Policy) {
    SLEEPS.store(policy.sleeps(), Ordering::Relaxed);
    IS_TRIAL.store(policy.is_trial(), Ordering::Relaxed);
    PHASE_ENDS_NS.store(policy.phase_ends_ns, Ordering::Relaxed);
    let since_ns = policy.trial_began_ns.saturating_sub(WINDOW_NS).max(1);
    SINCE_NS.store(since_ns, Ordering::Relaxed);
}

/// In the child of a fork: what the parent measured says nothing about it. If a thread of the
/// parent was just changing the policy, the child spins for good.
pub fn forked_child() {
    let new = Policy::new();
    publish(&new);
    LOST.set(Lost::NOTHING);
    if let Ok(mut policy) = POLICY.try_lock() {
        *policy = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy at the end of a trial in which so many bytes were carried in each part, and the
    /// time.
    fn after_trial(policy: &mut Policy, from_ns: u64, bytes: [u64; 3]) -> u64 {
        policy.contended_ns = from_ns - 1;
        policy.note_contended(from_ns);
        assert_eq!(policy.phase, Phase::TrialSpin);
        let mut now_ns = from_ns;
        for (bytes, sleeps) in bytes.into_iter().zip([false, true, false]) {
            assert_eq!((policy.sleeps(), policy.is_trial()), (sleeps, true));
            now_ns = policy.phase_ends_ns;
            policy.contended_ns = now_ns;
            policy.end_phase(now_ns, bytes);
        }
        now_ns
    }

    #[test]
    fn contended_threads_sleep_if_that_carries_about_as_much() {
        let mut policy = Policy::new();
        let now_ns = after_trial(&mut policy, 1_000, [1_000, 1_900, 900]);
        assert_eq!(policy.phase, Phase::Sleep);
        assert_eq!(policy.phase_ends_ns, now_ns + RECHECK_NS);
    }

    #[test]
    fn contended_threads_spin_if_that_carries_more_and_try_again_ever_more_seldom() {
        let mut policy = Policy::new();
        let (mut now_ns, mut holds_ns) = (1_000, vec![]);
        for _ in 0..5 {
            now_ns = after_trial(&mut policy, now_ns, [1_000, 1_700, 1_000]);
            assert_eq!(policy.phase, Phase::Spin);
            holds_ns.push((policy.next_trial_ns - now_ns) / 1_000_000_000);
            policy.note_contended(policy.next_trial_ns - 1);
            assert_eq!(policy.phase, Phase::Spin, "too soon");
            now_ns = policy.next_trial_ns;
        }
        assert_eq!(holds_ns, [2, 4, 8, 16, 16]);
    }

    #[test]
    fn threads_that_are_contended_no_more_spin_again() {
        let mut policy = Policy::new();
        let now_ns = after_trial(&mut policy, 1_000, [0, 0, 0]);
        policy.next_trial_ns = now_ns + 3 * RECHECK_NS;
        policy.end_phase(policy.phase_ends_ns, 0);
        assert_eq!(policy.phase, Phase::Recheck);
        policy.note_contended(policy.phase_began_ns + 1);
        assert_eq!(policy.phase, Phase::Sleep, "still contended");
        policy.end_phase(policy.phase_ends_ns, 0);
        policy.end_phase(policy.phase_ends_ns, 0);
        assert_eq!((policy.phase, policy.phase_ends_ns), (Phase::Spin, u64::MAX));
    }

    #[test]
    fn a_trial_without_waits_or_without_contention_decides_nothing() {
        let mut policy = Policy::new();
        policy.begin_trial(1_000);
        policy.end_phase(policy.phase_ends_ns + 2 * TRIAL_SPIN_NS, 1_000);
        assert_eq!(policy.phase, Phase::Spin);
        policy.begin_trial(1_000);
        (0..3).for_each(|_| policy.end_phase(policy.phase_ends_ns, 0));
        assert_eq!(policy.phase, Phase::Spin);
    }

    #[test]
    fn the_first_trial_is_made_only_after_much_contention() {
        let mut policy = Policy::new();
        let mut contend_until = |end_ns: u64, from_ns: u64| {
            (from_ns..end_ns).step_by(20_000_000).for_each(|now_ns| policy.note_contended(now_ns));
            policy.phase
        };
        assert_eq!(contend_until(PATIENCE_NS, 1), Phase::Spin);
        let later_ns = PATIENCE_NS + 2 * FORGET_NS;
        assert_eq!(contend_until(later_ns + PATIENCE_NS, later_ns), Phase::Spin);
        let end_ns = later_ns + PATIENCE_NS;
        assert_eq!(contend_until(end_ns + 40_000_000, end_ns), Phase::TrialSpin);
    }

    #[test]
    fn a_thread_is_contended_if_a_fifth_of_its_time_is_lost() {
        let mut lost = Lost::NOTHING;
        for number in 0..100 {
            let before_ns = number * 11_000_000;
            assert!(!lost.add(before_ns, before_ns + 1_900_000));
        }
        assert_eq!(lost.contended_ns, 0);
        let mut add = |before_ns| lost.add(before_ns, before_ns + 1_000_000);
        let begin_ns = 10_000_000_000;
        let yields = (0..8).map(|number| add(begin_ns + number * 2_000_000)).collect::<Vec<_>>();
        assert_eq!(yields, [false, false, false, true, false, false, false, true]);
        assert_eq!(lost.contended_ns, begin_ns + 15_000_000);
    }

    /// In times far ahead, so that threads of other tests take no part.
    #[test]
    fn a_thread_that_lost_time_sleeps_and_others_do_not() {
        const MUCH: usize = 1 << 40;
        let mut now_ns = 1 << 60;
        let mut yield_until = |sleeps| {
            let yields = (0..1_000).take_while(|_| {
                note_yield(now_ns, now_ns + 1_000_000);
                now_ns += 1_200_000;
                sleeps_at_once(|| now_ns) != sleeps
            });
            yields.count() < 1_000
        };
        assert!(yield_until(true), "no trial");
        note_bytes(MUCH);
        assert!(yield_until(false), "the trial does not end");
        assert!(yield_until(true), "it paid");
        let other = || sleeps_at_once(|| panic!("the clock was read"));
        assert!(!std::thread::spawn(other).join().unwrap());
        forked_child();
        assert!(!sleeps_at_once(|| panic!("the clock was read")));
    }

    #[test]
    fn short_yields_change_nothing_in_this_process() {
        (0..1_000).for_each(|number| note_yield(number * 200_000, number * 200_000 + 99_999));
        assert_eq!(LOST.get().contended_ns, 0);
        assert!(!sleeps_at_once(|| panic!("the clock was read")));
    }
}
