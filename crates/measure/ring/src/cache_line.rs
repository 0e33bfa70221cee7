//! The lower limit that the hardware sets: the time that a cache line takes from one CPU to
//! another.
//!
//! Two pinned threads pass a number back and forth, each in a cache line of its own that the other
//! thread reads. Half of such a round trip is the least time that any message through shared memory
//! can take between these CPUs. It differs several-fold between pairs of CPUs, and on a virtual
//! machine from minute to minute. So a figure of shared memory needs it for comparison.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nm_sys::clock::Clock;
use nm_sys::cpu;

/// Round trips of one batch, timed together so that the cost of reading the clock is negligible.
const ROUND_TRIPS: u64 = 100;

/// Batches of each way of spinning; the result is their median.
const BATCHES: usize = 150;

/// Batches discarded at the beginning.
const WARM_UP: usize = 10;

/// Time limit of the measurement, ns: other work may keep the CPUs busy.
const NS_MAX: u64 = 1_000_000_000;

/// Tells the other thread to stop.
const END: u64 = u64::MAX;

/// A number alone on its pair of lines.
#[repr(align(128))]
#[derive(Default)]
struct PaddedCounter(AtomicU64);

/// Half of a round trip of one cache line between two CPUs, ns: the median over batches, the lower
/// of spinning with and without a pause instruction.
///
/// # Errors
/// `EINVAL` if both are one CPU or the process may not use one of them; `ETIMEDOUT` if they are too
/// busy.
pub fn half_round_trip_ns(cpus: (u32, u32)) -> io::Result<f64> {
    if cpus.0 == cpus.1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let with_pause = median_ns(cpus, true)?;
    let without = median_ns(cpus, false)?;
    Ok(with_pause.min(without) / ROUND_TRIPS as f64 / 2.0)
}

/// Median duration of the batches, ns.
fn median_ns((own, other): (u32, u32), pauses: bool) -> io::Result<f64> {
    let (there, back, peer_failed) =
        (PaddedCounter::default(), PaddedCounter::default(), AtomicBool::new(false));
    let clock = Clock::system();
    let (batches, pinned) = thread::scope(|scope| {
        let echo = thread::Builder::new().spawn_scoped(scope, || {
            let pinned = cpu::pin_current_thread(other);
            match pinned {
                Ok(()) => echo(&there.0, &back.0, pauses),
                Err(_) => peer_failed.store(true, Ordering::Release),
            }
            pinned
        })?;
        let ping = thread::Builder::new().spawn_scoped(scope, || {
            let batches = cpu::pin_current_thread(own)
                .map(|()| ping(&there.0, &back.0, &peer_failed, clock, pauses));
            there.0.store(END, Ordering::Release);
            batches
        });
        if ping.is_err() {
            there.0.store(END, Ordering::Release);
        }
        let failed = |_| io::Error::other("a measuring thread has failed");
        Ok::<_, io::Error>((ping?.join().map_err(failed)?, echo.join().map_err(failed)?))
    })?;
    pinned?;
    let mut batches = batches?;
    let middle = batches.len() / 2;
    if batches.len() < WARM_UP {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(clock.ns(*batches.select_nth_unstable(middle).1) as f64)
}

/// Durations of the batches, clock ticks.
fn ping(
    there: &AtomicU64,
    back: &AtomicU64,
    peer_failed: &AtomicBool,
    clock: Clock,
    pauses: bool,
) -> Vec<u64> {
    let mut batches = Vec::with_capacity(BATCHES);
    let (mut number, first) = (0, clock.now());
    for batch in 0..WARM_UP + BATCHES {
        let begin = clock.now();
        if clock.ns(begin.saturating_sub(first)) > NS_MAX {
            break;
        }
        for _ in 0..ROUND_TRIPS {
            number += 1;
            there.store(number, Ordering::Release);
            while back.load(Ordering::Acquire) != number {
                if peer_failed.load(Ordering::Relaxed) {
                    return batches;
                }
                if pauses {
                    std::hint::spin_loop();
                }
            }
        }
        if batch >= WARM_UP {
            batches.push(clock.now().saturating_sub(begin));
        }
    }
    batches
}

/// Sends each number back until it receives [`END`].
fn echo(there: &AtomicU64, back: &AtomicU64, pauses: bool) {
    let mut last = 0;
    while last != END {
        let number = there.load(Ordering::Acquire);
        if number != last {
            last = number;
            back.store(number, Ordering::Release);
        } else if pauses {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_round_trip_needs_two_different_cpus() {
        let allowed = cpu::allowed();
        assert!(half_round_trip_ns((allowed[0], allowed[0])).is_err());
        assert!(half_round_trip_ns((allowed[0], 1_000_000)).is_err());
        if let [first, .., last] = allowed[..] {
            match half_round_trip_ns((first, last)) {
                Ok(ns) => assert!(ns > 0.0 && ns.is_finite(), "{ns}"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
            }
        }
    }
}
