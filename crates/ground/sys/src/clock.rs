//! The clock that takes timestamps: the CPU's timestamp counter where it can be trusted, else the
//! kernel's clock.
//!
//! On x86-64 the counter is the TSC, read as `lfence; rdtsc`. The fence makes every earlier
//! instruction complete first, so that a timestamp after a receive cannot be taken before it. It
//! costs the same as `rdtscp` where we measured it (26 ticks each) and uses one register less.
//! There is no fence after the read. What follows a start timestamp is a system call, which the
//! processor cannot execute early. Or it is a store to shared memory, which is not visible to
//! others before the read has retired. On AArch64 the counter is `cntvct_el0`, read after an `isb`.
//!
//! The TSC is used when three things agree:
//!
//! - The processor reports it as invariant (CPUID 8000_0007h, EDX bit 8).
//! - The kernel keeps time with it: by `tsc`, the paravirtual `kvm-clock` or Hyper-V's TSC page.
//!   The last two are the TSC with a scale from the hypervisor.
//! - Two calibrations against `CLOCK_MONOTONIC_RAW` differ by less than [`PPM_MAX`].
//!
//! Reading a counter that the hypervisor traps takes longer than reading the kernel's clock; such a
//! counter is not used either.

use std::sync::OnceLock;
use std::time::Duration;

/// Difference between two calibrations above which the counter is not used, ppm.
pub const PPM_MAX: f64 = 1_000.0;

/// Difference that is good enough to stop calibrating, ppm.
const PPM_GOOD: f64 = 5.0;

/// Calibrations tried before the best one is taken.
const ATTEMPTS_MAX: u32 = 3;

/// Length of each of the two windows of a calibration.
const WINDOW: Duration = Duration::from_millis(20);

/// Paired reads of both clocks, of which the pair with the smallest error is taken.
const PAIRED_READS: u32 = 64;

/// Back-to-back timestamp pairs of which the median is the cost of a pair.
const COST_SAMPLES: usize = 4_001;

/// Fraction bits of a [`Scale`].
const SCALE_BITS: u32 = 48;

/// A source of timestamps with its scale. Small and `Copy`, so that each hot thread has its own.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    source: TickSource,
    scale: Scale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TickSource {
    /// The CPU's timestamp counter.
    Counter,
    /// `CLOCK_MONOTONIC_RAW`; one tick is one nanosecond.
    Kernel,
}

/// How [`Clock::system`] was chosen, and what was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClockInfo {
    /// Name of the source: `tsc`, `cntvct_el0` or `CLOCK_MONOTONIC_RAW`.
    pub source: &'static str,
    /// Ticks a second, if the source is the counter.
    pub counter_hz: Option<f64>,
    /// Difference between the two calibrations, ppm, if the source is the counter.
    pub calibration_error_ppm: Option<f64>,
    /// Median cost of a pair of timestamps, ns.
    pub pair_cost_ns: f64,
    /// The clock source that the kernel itself uses.
    pub kernel_source: Option<String>,
    /// Why the counter is not the source.
    pub counter_error: Option<CounterError>,
}

/// Why the CPU's timestamp counter cannot be used as a clock.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CounterError {
    /// The processor does not guarantee a constant rate.
    #[error("the processor does not report an invariant timestamp counter")]
    NotInvariant,
    /// The kernel uses another clock source, usually because it found the counter unstable.
    #[error("the kernel keeps time with `{0}`, not with the TSC")]
    OtherKernelSource(String),
    /// `/sys` does not show the kernel's clock source.
    #[error("the kernel's clock source cannot be read")]
    UnknownKernelSource,
    /// The rate of the counter is not stable.
    #[error("two calibrations of the counter differ by {0:.0} ppm")]
    Unstable(f64),
    /// The kernel's call does more than read the counter, so a slower counter is a trapped one.
    #[error(
        "a pair of counter reads costs {pair_cost_ns:.0} ns, more than the kernel's clock \
         ({kernel_cost_ns:.0} ns): the hypervisor seems to trap it"
    )]
    Trapped {
        /// Median cost of a pair of counter reads, ns.
        pair_cost_ns: f64,
        /// Median cost of a pair of reads of the kernel's clock, ns.
        kernel_cost_ns: f64,
    },
}

impl Clock {
    /// The clock of this process. The first call calibrates for about 40 ms.
    pub fn system() -> Clock {
        system().0
    }

    /// How [`Clock::system`] was chosen and how good it is.
    pub fn info() -> &'static ClockInfo {
        &system().1
    }

    /// Ticks now. Only differences have a meaning.
    #[inline(always)]
    pub fn now(self) -> u64 {
        match self.source {
            TickSource::Counter => counter(),
            TickSource::Kernel => monotonic_raw_ns(),
        }
    }

    /// Nanoseconds in `ticks`.
    #[inline]
    pub fn ns(self, ticks: u64) -> u64 {
        self.scale.ns(ticks)
    }

    /// Ticks in `ns` nanoseconds.
    #[inline]
    pub fn ticks(self, ns: u64) -> u64 {
        self.scale.ticks(ns)
    }
}

/// Nanoseconds per tick as a fixed-point number with 48 fraction bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale(u64);

impl Scale {
    /// One tick is one nanosecond.
    const UNIT: Scale = Scale(1 << SCALE_BITS);

    /// The scale of a counter with `hz` ticks a second; `hz` from 1 MHz to 100 GHz.
    pub fn from_hz(hz: f64) -> Scale {
        assert!(!hz.is_nan(), "a clock needs a rate");
        let hz = hz.clamp(1e6, 1e11);
        Scale((1e9 / hz * (1u64 << SCALE_BITS) as f64).round() as u64)
    }

    /// Nanoseconds in `ticks`, rounded down. The product has 128 bits and cannot overflow; the
    /// result saturates after 584 years.
    #[inline]
    pub fn ns(self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks) * u128::from(self.0)) >> SCALE_BITS;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Ticks in `ns`, rounded down, saturating.
    #[inline]
    pub fn ticks(self, ns: u64) -> u64 {
        let ticks = (u128::from(ns) << SCALE_BITS) / u128::from(self.0);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

/// A point in time by `CLOCK_MONOTONIC`, for time-outs and elapsed times that are not results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        Moment(kernel_ns(libc::CLOCK_MONOTONIC))
    }

    /// Time since `self`; zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A point in time after which an operation has timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Moment);

impl Deadline {
    /// `limit` from now.
    pub fn after(limit: Duration) -> Deadline {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Deadline(Moment(Moment::now().0.saturating_add(ns)))
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        Moment::now() >= self.0
    }

    /// Time left; zero if it has passed.
    pub fn remaining(self) -> Duration {
        Duration::from_nanos(self.0.0.saturating_sub(Moment::now().0))
    }
}

/// `CLOCK_MONOTONIC`, ns: the same for all processes of a machine.
#[inline]
pub fn monotonic_ns() -> u64 {
    kernel_ns(libc::CLOCK_MONOTONIC)
}

fn system() -> &'static (Clock, ClockInfo) {
    static SYSTEM: OnceLock<(Clock, ClockInfo)> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let kernel_source = kernel_source();
        let kernel = Clock { source: TickSource::Kernel, scale: Scale::UNIT };
        let kernel_cost_ns = pair_cost_ns(kernel);
        match calibrated_counter(kernel_source.as_deref(), kernel_cost_ns) {
            Ok((clock, calibration, pair_cost_ns)) => {
                let info = ClockInfo {
                    source: COUNTER_NAME,
                    counter_hz: Some(calibration.hz),
                    calibration_error_ppm: Some(calibration.error_ppm),
                    pair_cost_ns,
                    kernel_source,
                    counter_error: None,
                };
                (clock, info)
            }
            Err(error) => {
                let info = ClockInfo {
                    source: "CLOCK_MONOTONIC_RAW",
                    counter_hz: None,
                    calibration_error_ppm: None,
                    pair_cost_ns: kernel_cost_ns,
                    kernel_source,
                    counter_error: Some(error),
                };
                (kernel, info)
            }
        }
    })
}

/// The counter as a clock, its calibration, and the cost of a pair of timestamps in ns.
fn calibrated_counter(
    kernel_source: Option<&str>,
    kernel_cost_ns: f64,
) -> Result<(Clock, Calibration, f64), CounterError> {
    check_counter(counter_is_invariant(), kernel_source)?;
    let calibration = calibrate();
    if calibration.error_ppm > PPM_MAX {
        return Err(CounterError::Unstable(calibration.error_ppm));
    }
    let clock = Clock { source: TickSource::Counter, scale: Scale::from_hz(calibration.hz) };
    let pair_cost_ns = pair_cost_ns(clock);
    if pair_cost_ns > kernel_cost_ns.max(100.0) {
        return Err(CounterError::Trapped { pair_cost_ns, kernel_cost_ns });
    }
    Ok((clock, calibration, pair_cost_ns))
}

/// Checks that both the processor and the kernel treat the counter as reliable.
fn check_counter(invariant: bool, kernel_source: Option<&str>) -> Result<(), CounterError> {
    const COUNTER_SOURCES: [&str; 5] =
        ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "tsc-early"];
    if !invariant {
        return Err(CounterError::NotInvariant);
    }
    match kernel_source {
        Some(source) if COUNTER_SOURCES.contains(&source) => Ok(()),
        Some(source) => Err(CounterError::OtherKernelSource(source.to_string())),
        None => Err(CounterError::UnknownKernelSource),
    }
}

fn kernel_source() -> Option<String> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

struct Calibration {
    hz: f64,
    error_ppm: f64,
}

/// Counts ticks over two adjacent windows, and takes the best of a few attempts: an interrupt at
/// the wrong time spoils one calibration, and the next one is fine.
fn calibrate() -> Calibration {
    let mut best = calibrate_once();
    for _ in 1..ATTEMPTS_MAX {
        if best.error_ppm <= PPM_GOOD {
            break;
        }
        let calibration = calibrate_once();
        if calibration.error_ppm < best.error_ppm {
            best = calibration;
        }
    }
    best
}

fn calibrate_once() -> Calibration {
    let points = [0, 1, 2].map(|idx| {
        if idx > 0 {
            std::thread::sleep(WINDOW);
        }
        paired_read()
    });
    let hz = |from: (u64, u64), to: (u64, u64)| {
        to.0.wrapping_sub(from.0) as f64 / (to.1.saturating_sub(from.1).max(1)) as f64 * 1e9
    };
    let (first, second) = (hz(points[0], points[1]), hz(points[1], points[2]));
    Calibration {
        hz: hz(points[0], points[2]),
        error_ppm: if first > 0.0 { (second / first - 1.0).abs() * 1e6 } else { f64::INFINITY },
    }
}

/// Counter and kernel time of one instant: of several reads of the kernel's clock, the one with the
/// fewest ticks between a counter read before it and one after it.
fn paired_read() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..PAIRED_READS {
        let before = counter();
        let ns = monotonic_raw_ns();
        let after = counter();
        let width = after.saturating_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, ns);
        }
    }
    (best.1, best.2)
}

/// Median time between two timestamps taken back to back, ns.
fn pair_cost_ns(clock: Clock) -> f64 {
    let mut ticks: Vec<u64> = (0..COST_SAMPLES)
        .map(|_| {
            let start = clock.now();
            clock.now().saturating_sub(start)
        })
        .collect();
    ticks.sort_unstable();
    // Converted times 1000, to keep three digits after the decimal point.
    clock.ns(ticks[COST_SAMPLES / 2] * 1_000) as f64 / 1e3
}

/// `CLOCK_MONOTONIC_RAW`: time since boot at the rate of the hardware, ns.
pub fn monotonic_raw_ns() -> u64 {
    kernel_ns(libc::CLOCK_MONOTONIC_RAW)
}

fn kernel_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that lives through the call; both clocks exist on every
    // kernel that this program supports, and a failed call would leave zero.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(target_arch = "x86_64")]
const COUNTER_NAME: &str = "tsc";

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: both instructions exist on every x86-64 processor and touch no memory.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

#[cfg(target_arch = "x86_64")]
fn counter_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & (1 << 8) != 0
}

#[cfg(target_arch = "aarch64")]
const COUNTER_NAME: &str = "cntvct_el0";

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: the virtual counter may be read in user mode on Linux; the read touches no memory.
    unsafe { std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack)) };
    ticks
}

#[cfg(target_arch = "aarch64")]
fn counter_is_invariant() -> bool {
    true // the architecture's generic timer runs at a fixed rate
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const COUNTER_NAME: &str = "none";

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    monotonic_raw_ns()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_is_invariant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clock_is_monotonic_and_agrees_with_the_kernel() {
        let clock = Clock::system();
        let (start, kernel_start) = (clock.now(), monotonic_raw_ns());
        let mut last = start;
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        std::thread::sleep(Duration::from_millis(20));
        let kernel_ns = (monotonic_raw_ns() - kernel_start) as f64;
        let ns = clock.ns(clock.now() - start) as f64;
        assert!(ns >= kernel_ns * 0.99, "{ns} ns by the clock, {kernel_ns} ns by the kernel");
    }

    #[test]
    fn info_has_either_a_counter_rate_or_a_reason() {
        let info = Clock::info();
        assert!(info.pair_cost_ns > 0.0);
        assert_eq!(info.counter_hz.is_none(), info.counter_error.is_some());
        assert_eq!(info.source == "CLOCK_MONOTONIC_RAW", info.counter_error.is_some());
    }

    #[test]
    fn counter_is_used_only_where_processor_and_kernel_agree() {
        assert!(check_counter(true, Some("tsc")).is_ok());
        assert!(check_counter(true, Some("kvm-clock")).is_ok());
        let error = |invariant, source| check_counter(invariant, source).unwrap_err().to_string();
        assert!(error(false, Some("tsc")).contains("invariant"));
        assert!(error(true, Some("hpet")).contains("`hpet`"));
        assert!(check_counter(true, None).is_err());
    }

    #[test]
    fn deadline_passes() {
        let deadline = Deadline::after(Duration::from_millis(2));
        assert!(!Deadline::after(Duration::MAX).passed());
        std::thread::sleep(Duration::from_millis(3));
        assert!(deadline.passed());
        assert_eq!(deadline.remaining(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_day_of_ticks_converts_without_overflow(
            hz in 1e6f64..1e10, share in 0.0f64..1.0,
        ) {
            let day_ticks = (hz * 86_400.0) as u64;
            let ticks = (day_ticks as f64 * share) as u64;
            let exact = ticks as f64 / hz * 1e9;
            let found = Scale::from_hz(hz).ns(ticks) as f64;
            // The scale's last bit over a day, and the rounding of the comparison itself.
            prop_assert!((found - exact).abs() <= exact * 1e-10 + 2.0, "{found} {exact}");
        }

        #[test]
        fn ticks_and_nanoseconds_are_inverse(hz in 1e6f64..1e10, ns in 0u64..86_400_000_000_000) {
            let scale = Scale::from_hz(hz);
            let back = scale.ns(scale.ticks(ns));
            let tick_ns = (1e9 / hz).ceil() as u64;
            prop_assert!(back <= ns && ns - back <= tick_ns + 1, "{back} {ns}");
        }

        #[test]
        fn no_tick_count_panics(hz in any::<f64>(), ticks in any::<u64>()) {
            let scale = Scale::from_hz(if hz.is_nan() { 1e9 } else { hz });
            let _ = (scale.ns(ticks), scale.ticks(ticks));
        }
    }
}
