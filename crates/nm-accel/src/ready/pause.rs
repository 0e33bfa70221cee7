//! How long a wait for many descriptors looks before it sleeps, and how often it asks the kernel.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::socket::Socket;
use crate::{signals, wait};

/// Between two looks at the kernel's descriptors while spinning, ns.
const KERNEL_LOOK_NS: u64 = 4_000;

/// Between two looks at what the kernel says of joined sockets, ns: their ends and resets.
const SOCKET_LOOK_NS: u64 = 30_000;

/// Shortest spin, ns: a wake-up costs more.
const SHORTEST_NS: u64 = 2_000;

/// Looks at memory for one look at the clock.
const LOOKS: u32 = 4;

/// Of so many spins one is as long as the settings allow, however short the others have become.
/// Two ends that both sleep take longer to answer than either spins, and would never find out that
/// spinning pays.
const PROBE_EVERY: u32 = 16;

static SPINS: AtomicU32 = AtomicU32::new(0);

/// What to do after a fruitless look at memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Look again.
    Again,
    /// Ask the kernel, then look again.
    Kernel,
    /// Sleep.
    Sleep,
    /// A handler ran: the call ends.
    Interrupted,
}

/// A spin over many sockets.
#[derive(Debug)]
pub struct Pause {
    begun_ns: u64,
    asked_ns: u64,
    budget_ns: u64,
    between_ns: u64,
    looks: u32,
    probe: bool,
    signals: u32,
}

impl Pause {
    /// A spin as long as it pays for `socket`, with the kernel asked often if it knows of
    /// descriptors that memory does not show. `signals` is what [`signals::count_all`] said when
    /// the call began.
    ///
    /// `word` is what earlier spins of the same kind have taught: the longest that pays, ns.
    pub fn begin(socket: &Socket, word: &AtomicU64, often: bool, signals: u32) -> Pause {
        let mut budget_ns = match wait::budget(socket, false) {
            0 => 0,
            _ => word.load(Ordering::Relaxed).min(wait::longest_spin()),
        };
        let probe =
            budget_ns > 0 && SPINS.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
        if probe {
            budget_ns = wait::longest_spin();
        }
        let begun_ns = if budget_ns == 0 { 0 } else { wait::now_ns() };
        let between_ns = if often { KERNEL_LOOK_NS } else { SOCKET_LOOK_NS };
        Pause { begun_ns, asked_ns: begun_ns, budget_ns, between_ns, looks: 0, probe, signals }
    }

    /// After a fruitless look at memory.
    #[inline]
    pub fn turn(&mut self) -> Turn {
        if self.budget_ns == 0 {
            return Turn::Sleep;
        }
        std::hint::spin_loop();
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS) {
            return Turn::Again;
        }
        let now_ns = wait::now_ns();
        if signals::count_all() != self.signals {
            Turn::Interrupted
        } else if now_ns.saturating_sub(self.begun_ns) >= self.budget_ns {
            Turn::Sleep
        } else if now_ns.saturating_sub(self.asked_ns) >= self.between_ns {
            self.asked_ns = now_ns;
            Turn::Kernel
        } else {
            Turn::Again
        }
    }

    /// Remembers in `word` whether the spin paid: in vain, it halves the next; with success, it
    /// doubles it.
    pub fn learn(&self, word: &AtomicU64, success: bool) {
        let (old, longest) = (word.load(Ordering::Relaxed), wait::longest_spin());
        let new = match (success, self.probe) {
            // A shorter one would have failed as before: the next may last as long as this one.
            (true, true) => u64::MAX,
            (true, false) => old.saturating_mul(2),
            (false, true) => old,
            (false, false) => (old.min(longest) / 2).max(SHORTEST_NS),
        };
        if self.budget_ns > 0 && new != old {
            word.store(new, Ordering::Relaxed);
        }
    }
}
