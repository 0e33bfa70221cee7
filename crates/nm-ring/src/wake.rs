//! Sleeping and waking, without a wake-up that is lost.
//!
//! The sleeper says that it sleeps and then looks once more; the other end changes something and
//! then looks whether anybody sleeps. With a full fence between the two steps on both sides at
//! least one of them sees the other's first step (Dekker's argument).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::layout::Side;
use crate::sync::fence;

/// Whether an end ever sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Not known yet, so it may.
    Unknown = 0,
    /// It does, so each change must be followed by a look at it.
    Sleeps = 1,
    /// It never does, which spares the other end the fence.
    Spins = 2,
}

/// Sleeps for at most `limit` unless `there` holds. May come back early.
pub fn sleep(own: &Side, limit: Duration, there: impl FnOnce() -> bool) {
    own.asleep.store(1);
    fence(std::sync::atomic::Ordering::SeqCst);
    if !there() {
        own.asleep.wait(1, limit);
    }
    own.asleep.store(0);
}

/// Wakes the other end if it sleeps, after something was changed that it may wait for.
#[inline(always)]
pub fn nudge(peer: &Side) {
    if peer.manner.load(Relaxed) == Manner::Spins as u32 {
        return;
    }
    fence(std::sync::atomic::Ordering::SeqCst);
    if peer.asleep.load() != 0 {
        wake(peer);
    }
}

#[cold]
fn wake(peer: &Side) {
    // Whoever comes to sleep on the word after this finds it changed; who sleeps already is woken.
    peer.asleep.store(0);
    peer.asleep.wake();
}
