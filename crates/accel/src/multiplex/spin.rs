//! How long a wait for many descriptors spins before it sleeps, and how often it polls the kernel.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::socket::Socket;
use crate::wait::{WaitMode, YieldTimer};
use crate::{signals, wait};

/// Shortest interval between two polls of the kernel while spinning, ns: it has bytes, by the
/// peer's account, but they may have been reported already.
const ANNOUNCED_CHECK_NS: u64 = 1_000;

/// Interval between two polls of the kernel's descriptors while spinning, ns.
const KERNEL_CHECK_NS: u64 = 4_000;

/// Interval between two polls of the kernel sockets of joined sockets, for ends and resets, ns.
const SOCKET_CHECK_NS: u64 = 30_000;

/// Checks of memory between two reads of the clock, unless the peer is on the same CPU.
const SPINS_PER_CLOCK_READ: u32 = 4;

/// One of so many spins is as long as the settings allow, however short the budget is. Two ends
/// that both sleep take longer to answer than either spins, and would never find out that spinning
/// pays.
const PROBE_EVERY: u32 = 16;

static SPIN_COUNT: AtomicU32 = AtomicU32::new(0);

/// What to do after an unsuccessful check of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetSpinStep {
    /// Check again.
    Retry,
    /// Poll the kernel, then check again.
    CheckKernel,
    /// Sleep.
    Sleep,
    /// A handler ran: the call returns.
    Interrupted,
}

/// A spin over many sockets.
#[derive(Debug)]
pub struct SetSpin {
    begun_ns: u64,
    kernel_checked_at_ns: u64,
    budget_ns: u64,
    kernel_interval_ns: u64,
    yield_timer: YieldTimer,
    spins: u32,
    is_probe: bool,
    signals: u32,
}

impl SetSpin {
    /// Begins a spin within the budget of `socket`, with frequent polls of the kernel if that has
    /// descriptors which memory does not show. `signals` is [`signals::delivery_count`] at the
    /// beginning of the call.
    ///
    /// `word` is the budget that earlier spins of the same kind have left, ns; a trial does not
    /// depend on it.
    pub fn begin(
        socket: &Socket,
        word: &AtomicU64,
        check_kernel_often: bool,
        is_trial: bool,
        signals: u32,
    ) -> SetSpin {
        let mode = WaitMode::of(socket);
        let mut budget_ns = wait::budget(word, mode);
        let is_due = || SPIN_COUNT.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
        let is_probe = budget_ns > 0 && (is_trial || is_due());
        if is_probe {
            budget_ns = wait::spin_ns_max();
        }
        let begun_ns = if budget_ns == 0 { 0 } else { wait::now_ns() };
        let kernel_interval_ns = if check_kernel_often { KERNEL_CHECK_NS } else { SOCKET_CHECK_NS };
        SetSpin {
            begun_ns,
            kernel_checked_at_ns: begun_ns,
            budget_ns,
            kernel_interval_ns,
            yield_timer: YieldTimer::new(mode, begun_ns),
            spins: 0,
            is_probe,
            signals,
        }
    }

    /// Decides how to go on after an unsuccessful check of memory. `kernel_has_bytes`: so the peer
    /// of a socket says.
    #[inline]
    pub fn step(&mut self, kernel_has_bytes: bool) -> SetSpinStep {
        if self.budget_ns == 0 {
            return SetSpinStep::Sleep;
        }
        std::hint::spin_loop();
        self.spins += 1;
        let is_clock_due =
            self.yield_timer.is_for_peer() || self.spins.is_multiple_of(SPINS_PER_CLOCK_READ);
        if !is_clock_due {
            return SetSpinStep::Retry;
        }
        let now_ns = wait::now_ns();
        let interval_ns =
            if kernel_has_bytes { ANNOUNCED_CHECK_NS } else { self.kernel_interval_ns };
        // The first step of a short spin yields all the same.
        let is_over = self.spins > 1 && now_ns.saturating_sub(self.begun_ns) >= self.budget_ns;
        if signals::delivery_count() != self.signals {
            SetSpinStep::Interrupted
        } else if is_over || self.yield_timer.is_pointless() {
            self.yield_timer.note_no_answer(now_ns);
            SetSpinStep::Sleep
        } else if now_ns.saturating_sub(self.kernel_checked_at_ns) >= interval_ns {
            self.kernel_checked_at_ns = now_ns;
            SetSpinStep::CheckKernel
        } else {
            self.yield_timer.yield_if_due(now_ns);
            SetSpinStep::Retry
        }
    }

    /// Adjusts the budget in `word`: an unsuccessful spin halves it, a successful one doubles it.
    pub fn adjust_budget(&self, word: &AtomicU64, success: bool) {
        if success {
            self.yield_timer.note_answer();
        }
        let (old, longest) = (word.load(Ordering::Relaxed), wait::spin_ns_max());
        let new = match (success, self.is_probe) {
            // A shorter one would have failed as before: the next may last as long as this one.
            (true, true) => u64::MAX,
            (true, false) => old.saturating_mul(2),
            (false, true) => old,
            (false, false) => (old.min(longest) / 2).max(wait::SPIN_NS_MIN),
        };
        if self.budget_ns > 0 && new != old {
            word.store(new, Ordering::Relaxed);
        }
    }
}
