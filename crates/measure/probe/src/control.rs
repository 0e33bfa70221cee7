//! What a running task and its owner exchange, without either waiting for the other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use nm_model::result::Statistic;

/// Shared between the thread that runs a task and the one that serves the controller.
#[derive(Debug)]
pub struct Control {
    cancel: AtomicBool,
    /// Position of the statistic in [`Statistic::ALL`].
    statistic: AtomicUsize,
    /// Bits of an f64; NaN while there is no estimate.
    estimate: AtomicU64,
    samples: Mutex<Vec<(Statistic, Vec<u32>)>>,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            cancel: AtomicBool::new(false),
            statistic: AtomicUsize::new(0),
            estimate: AtomicU64::new(f64::NAN.to_bits()),
            samples: Mutex::default(),
        }
    }
}

impl Control {
    /// The control of a task that has not started.
    pub fn new() -> Control {
        Control::default()
    }

    /// Ends the task as soon as possible, within about 100 ms.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Whether the task was cancelled.
    #[inline(always)]
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The current estimate: ns, or Gb/s for throughput. None before the first one.
    pub fn progress(&self) -> Option<(Statistic, f64)> {
        let value = f64::from_bits(self.estimate.load(Ordering::Acquire));
        let statistic = *Statistic::ALL.get(self.statistic.load(Ordering::Relaxed))?;
        (!value.is_nan()).then_some((statistic, value))
    }

    /// Raw samples in ns (saturated), if the task requested them; each can be taken once.
    pub fn take_samples(&self) -> Vec<(Statistic, Vec<u32>)> {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes an estimate for [`Control::progress`].
    #[inline]
    pub fn set_progress(&self, statistic: Statistic, estimate: f64) {
        let position = Statistic::ALL.iter().position(|&s| s == statistic).unwrap_or(0);
        self.statistic.store(position, Ordering::Relaxed);
        self.estimate.store(estimate.to_bits(), Ordering::Release);
    }

    /// Stores raw samples for [`Control::take_samples`].
    pub fn store_samples(&self, statistic: Statistic, samples: Vec<u32>) {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).push((statistic, samples));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_cancel_and_samples_reach_the_other_side() {
        let control = Control::new();
        assert_eq!((control.progress(), control.cancelled()), (None, false));
        control.set_progress(Statistic::Throughput, 9.4);
        control.cancel();
        assert_eq!(control.progress(), Some((Statistic::Throughput, 9.4)));
        assert!(control.cancelled());
        control.store_samples(Statistic::RoundTrip, vec![1, 2]);
        assert_eq!(control.take_samples(), [(Statistic::RoundTrip, vec![1, 2])]);
        assert!(control.take_samples().is_empty());
    }
}
