//! The loop of the jitter probe. A thread only reads the clock, and each time that it could not do
//! so for a while is a *gap*.
//!
//! Method of sysjitter and hiccups: time stamp, difference to the last one, and if that reaches the
//! threshold, it is recorded. The clock is read again after recording, so that recording is not
//! counted. In addition each gap tells whether the kernel ran another thread in it
//! ([`PreemptionFlag`]). The loop allocates nothing and makes no system call.

use nm_stats::histogram::{self, Histogram};
use nm_sys::clock::Clock;
use nm_sys::memory::LockedBuffer;
use nm_sys::rseq::PreemptionFlag;

/// The threshold that is chosen, in smallest steps of the loop; hiccups has the same.
pub const THRESHOLD_STEPS: u64 = 8;

/// Steps of which the smallest is taken.
const STEPS_TRIED: u32 = 10_000;

/// Most slices of time of one CPU.
pub const SLICES_MAX: usize = 600;

/// Gaps a second for which there is memory.
const GAPS_PER_S: f64 = 20_000.0;

/// Most gaps of one CPU that are kept one by one: 24 MB.
pub const GAPS_KEPT_MAX: usize = 1_000_000;

/// Most gaps of all CPUs that are kept one by one: 384 MB.
const GAPS_KEPT_TOTAL_MAX: usize = 16_000_000;

/// A stretch of time in which the thread did not read the clock, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gap {
    /// Since the begin of the window.
    pub start: u64,
    /// From the last time stamp before it to the first one after it.
    pub length: u64,
    /// Whether the kernel ran something else in it; false if that is not known.
    pub preempted: bool,
}

/// What was lost in one slice of time, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostSlice {
    /// Gaps that began in it.
    pub gaps: u64,
    /// Length of the parts of gaps that lie in it.
    pub lost: u64,
    /// The longest gap that began in it, its whole length.
    pub longest: u64,
    /// Those of `gaps` in which the thread was preempted.
    pub preempted_gaps: u64,
    /// The part of `lost` in which the thread was preempted.
    pub preempted: u64,
}

/// When to watch, in ticks of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First time stamp.
    pub begin: u64,
    /// The loop ends with the first time stamp that is not before.
    pub end: u64,
    /// A step at least as long is a gap.
    pub threshold: u64,
    /// Length of a slice.
    pub slice: u64,
}

impl Window {
    /// The same window with another begin.
    #[must_use]
    pub fn moved_to(self, begin: u64) -> Window {
        Window { begin, end: begin + (self.end - self.begin), ..self }
    }
}

/// Whether the thread was preempted since it was asked for the last time.
pub trait Preemption {
    /// Begins to watch.
    fn arm(&mut self);
    /// Whether it was since.
    fn happened(&self) -> bool;
}

/// None where the kernel cannot tell.
impl Preemption for Option<PreemptionFlag> {
    #[inline(always)]
    fn arm(&mut self) {
        if let Some(flag) = self {
            flag.arm();
        }
    }

    #[inline(always)]
    fn happened(&self) -> bool {
        self.as_ref().is_some_and(PreemptionFlag::is_cleared)
    }
}

/// Memory for what one CPU loses, allocated, touched and locked before the loop.
#[derive(Debug)]
pub struct GapRecord {
    clock: Clock,
    gaps: LockedBuffer<Gap>,
    slices: LockedBuffer<LostSlice>,
    /// Gaps for which `gaps` had no room, ns.
    overflow: Histogram,
    /// Length of the recorded gaps, ticks.
    lost: u64,
    preempted: u64,
    /// Time that recording took, in which no gap is seen, ticks.
    recording: u64,
}

impl GapRecord {
    /// Memory for `slices` of time and for `gaps_kept` gaps.
    pub fn new(clock: Clock, slices: usize, gaps_kept: usize) -> GapRecord {
        let mut strip = LockedBuffer::new(slices.clamp(1, SLICES_MAX));
        while strip.push(LostSlice::default()) {}
        let mut overflow = histogram::empty();
        overflow.reset(); // writes, and so touches, all of its memory
        GapRecord {
            clock,
            gaps: LockedBuffer::new(gaps_kept),
            slices: strip,
            overflow,
            lost: 0,
            preempted: 0,
            recording: 0,
        }
    }

    /// How many gaps of each of `cpus` CPUs to keep when `seconds` are watched.
    pub fn gaps_kept(seconds: f64, cpus: usize) -> usize {
        let by_time = (seconds * GAPS_PER_S).ceil() as usize;
        by_time.min(GAPS_KEPT_MAX).min(GAPS_KEPT_TOTAL_MAX / cpus.max(1))
    }

    /// Adds a gap.
    #[cold]
    #[inline(never)]
    fn add(&mut self, gap: Gap, slice: u64) {
        let last = self.slices.len() - 1;
        let of = |ticks: u64| ((ticks / slice) as usize).min(last);
        let slices = self.slices.as_mut_slice();
        let (first_slice, last_slice) = (of(gap.start), of(gap.start + gap.length));
        for (number, one) in slices.iter_mut().enumerate().take(last_slice + 1).skip(first_slice) {
            let begin = gap.start.max(number as u64 * slice);
            let end = match number == last_slice {
                true => gap.start + gap.length,
                false => (number as u64 + 1) * slice,
            };
            one.lost += end - begin;
            one.preempted += if gap.preempted { end - begin } else { 0 };
        }
        let one = &mut slices[first_slice];
        one.gaps += 1;
        one.longest = one.longest.max(gap.length);
        one.preempted_gaps += u64::from(gap.preempted);
        self.lost += gap.length;
        self.preempted += if gap.preempted { gap.length } else { 0 };
        if !self.gaps.push(gap) {
            self.overflow.saturating_record(self.clock.ns(gap.length));
        }
    }

    /// The gaps in order of time, as far as there was room.
    pub fn gaps(&self) -> &[Gap] {
        self.gaps.as_slice()
    }

    /// The slices in order of time.
    pub fn slices(&self) -> &[LostSlice] {
        self.slices.as_slice()
    }

    /// Gaps for which there was no room, ns: they are counted, but their times are not known.
    pub fn overflow(&self) -> &Histogram {
        &self.overflow
    }

    /// Length of all gaps, ticks.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Length of the gaps in which the thread was preempted, ticks.
    pub fn preempted(&self) -> u64 {
        self.preempted
    }

    /// Time that recording took, in which no gap is seen, ticks.
    pub fn recording(&self) -> u64 {
        self.recording
    }

    /// Whether the memory is locked.
    pub fn is_locked(&self) -> bool {
        self.gaps.is_locked() && self.slices.is_locked()
    }
}

/// The first and the last time stamp of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first one that is not before the window.
    pub first: u64,
    /// The last one; before the window's end if the loop was stopped.
    pub last: u64,
}

/// Watches from `window.begin` on; waits for it first. `now` reads the clock. Ends early if
/// `stopped` becomes true.
#[inline]
pub fn watch(
    window: &Window,
    record: &mut GapRecord,
    mut now: impl FnMut() -> u64,
    preemption: &mut impl Preemption,
    stopped: impl Fn() -> bool,
) -> Span {
    let mut previous = now();
    while previous < window.begin {
        previous = now();
    }
    let first = previous;
    preemption.arm();
    while previous < window.end && !stopped() {
        let stamp = now();
        let step = stamp.saturating_sub(previous);
        previous = stamp;
        if step >= window.threshold {
            let preempted = preemption.happened();
            preemption.arm();
            let start = stamp - step - window.begin;
            record.add(Gap { start, length: step, preempted }, window.slice);
            previous = now();
            record.recording += previous.saturating_sub(stamp);
        }
    }
    Span { first, last: previous }
}

/// Adds the time from the last stamp to `stamp` as one more gap, if it is that long.
pub fn add_last(
    window: &Window,
    record: &mut GapRecord,
    span: &mut Span,
    stamp: u64,
    preemption: &impl Preemption,
) {
    let length = stamp.saturating_sub(span.last);
    if length < window.threshold {
        return;
    }
    let start = span.last - window.begin;
    record.add(Gap { start, length, preempted: preemption.happened() }, window.slice);
    span.last = stamp;
}

/// The smallest of many steps of the loop on this CPU, ticks.
pub fn smallest_step(clock: Clock) -> u64 {
    let mut previous = clock.now();
    let mut smallest = u64::MAX;
    for _ in 0..STEPS_TRIED {
        let stamp = clock.now();
        smallest = smallest.min(stamp.saturating_sub(previous));
        previous = stamp;
    }
    smallest.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Preemption in every second gap.
    struct EverySecond(std::cell::Cell<u32>);

    impl Preemption for EverySecond {
        fn arm(&mut self) {}

        fn happened(&self) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get().is_multiple_of(2)
        }
    }

    /// The loop over recorded time stamps, which end with the window.
    fn replay(stamps: &[u64], threshold: u64, slice: u64, gaps_kept: usize) -> (GapRecord, u64) {
        let end = stamps[stamps.len() - 1];
        let window = Window { begin: stamps[0], end, threshold, slice };
        let slices = ((end - stamps[0]) / slice + 1) as usize;
        let mut record = GapRecord::new(Clock::system(), slices, gaps_kept);
        let mut stamps = stamps.iter().copied();
        // After the last one a step of zero, which is no gap.
        let mut last = end;
        let now = || {
            last = stamps.next().unwrap_or(last);
            last
        };
        let span = watch(&window, &mut record, now, &mut EverySecond(0.into()), || false);
        assert_eq!(span.first, window.begin);
        (record, span.last)
    }

    /// The method of sysjitter: each step that reaches the threshold is an interruption.
    fn sysjitter(stamps: &[u64], threshold: u64) -> Vec<u64> {
        let steps = stamps.windows(2).map(|pair| pair[1] - pair[0]);
        steps.filter(|step| *step >= threshold).collect()
    }

    #[test]
    fn gaps_are_found_and_recording_is_not_counted() {
        // 500 is a gap; the stamp after it is the one read after recording, however late it is.
        let stamps = [1_000, 1_010, 1_510, 1_900, 1_910, 2_610, 2_620, 2_630];
        let (record, last) = replay(&stamps, 100, 1_000, 10);
        let gap = |start, length, preempted| Gap { start, length, preempted };
        assert_eq!(record.gaps(), [gap(10, 500, false), gap(910, 700, true)]);
        assert_eq!((record.lost(), record.preempted(), last), (1_200, 700, 2_630));
        assert_eq!(record.recording(), 390 + 10);
        // The second gap begins in the first slice and ends in the second.
        let slice = |gaps, lost, longest, preempted_gaps, preempted| LostSlice {
            gaps,
            lost,
            longest,
            preempted_gaps,
            preempted,
        };
        let expected = [slice(2, 590, 700, 1, 90), slice(0, 610, 0, 0, 610)];
        assert_eq!(record.slices(), expected);
    }

    #[test]
    fn a_full_record_goes_on_to_count() {
        let stamps: Vec<u64> = (0..=50).flat_map(|n| [n * 10_000, n * 10_000 + 10]).collect();
        let (record, _) = replay(&stamps, 100, 1_000_000, 3);
        assert_eq!(record.gaps().len(), 3);
        assert_eq!(record.overflow().len(), 47);
        assert_eq!(record.slices()[0].gaps, 50);
        assert_eq!(record.slices()[0].lost, record.lost());
    }

    #[test]
    fn memory_has_a_limit() {
        assert_eq!(GapRecord::gaps_kept(0.01, 1), 200);
        assert_eq!(GapRecord::gaps_kept(86_400.0, 1), GAPS_KEPT_MAX);
        assert_eq!(GapRecord::gaps_kept(86_400.0, 1_024), 15_625);
        let record = GapRecord::new(Clock::system(), usize::MAX, 1);
        assert_eq!(record.slices().len(), SLICES_MAX);
    }

    #[test]
    fn a_stopped_loop_ends() {
        let window = Window { begin: 0, end: u64::MAX, threshold: 100, slice: 100 };
        let mut record = GapRecord::new(Clock::system(), 1, 1);
        let mut stamp = 0;
        let now = || {
            stamp += 1;
            stamp
        };
        let span = watch(&window, &mut record, now, &mut None::<PreemptionFlag>, || true);
        assert_eq!(span, Span { first: 1, last: 1 });
    }

    proptest! {
        /// Where recording takes less than the threshold, both methods find the same.
        #[test]
        fn it_finds_what_the_method_of_sysjitter_finds(
            steps in prop::collection::vec((1u64..500, 1u64..100), 1..400), slice in 1u64..5_000,
        ) {
            let mut stamps = vec![7];
            for step in steps.iter().flat_map(|(any, short)| [any, short]) {
                stamps.push(stamps[stamps.len() - 1] + step);
            }
            let (record, _) = replay(&stamps, 100, slice, 1_000);
            let lengths: Vec<u64> = record.gaps().iter().map(|gap| gap.length).collect();
            prop_assert_eq!(&lengths, &sysjitter(&stamps, 100));
            // All ways of counting agree.
            let sum = |of: fn(&LostSlice) -> u64| record.slices().iter().map(of).sum::<u64>();
            prop_assert_eq!(sum(|slice| slice.lost), record.lost());
            prop_assert_eq!(sum(|slice| slice.preempted), record.preempted());
            prop_assert_eq!(sum(|slice| slice.gaps), lengths.len() as u64);
            prop_assert_eq!(lengths.iter().sum::<u64>(), record.lost());
        }
    }
}
