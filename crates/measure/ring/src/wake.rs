//! Sleeping and waking without lost wake-ups.
//!
//! The sleeper announces that it sleeps and then checks its condition once more; the other end
//! changes the condition and then checks whether anybody sleeps. With a full fence between the two
//! steps on both sides, at least one of them sees the other's first step (as in Dekker's
//! algorithm).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::layout::EndpointState;
use crate::sync::fence;

/// Whether an end ever sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStrategy {
    /// Not known yet, so it may.
    Unknown = 0,
    /// It does, so the other end must check after each change.
    Sleeps = 1,
    /// It never does, which spares the other end the fence.
    Spins = 2,
}

/// Sleeps for at most `limit` unless `is_ready` holds. May return early.
pub fn sleep(own: &EndpointState, limit: Duration, is_ready: impl FnOnce() -> bool) {
    own.asleep.store(1);
    fence(std::sync::atomic::Ordering::SeqCst);
    if !is_ready() {
        own.asleep.wait(1, limit);
    }
    own.asleep.store(0);
}

/// Wakes the other end if it sleeps, after a change that it may wait for.
#[inline(always)]
pub fn wake_if_asleep(peer: &EndpointState) {
    if peer.wait_strategy.load(Relaxed) == WaitStrategy::Spins as u32 {
        return;
    }
    fence(std::sync::atomic::Ordering::SeqCst);
    if peer.asleep.load() != 0 {
        wake(peer);
    }
}

#[cold]
fn wake(peer: &EndpointState) {
    // A thread that is about to sleep finds the word changed; one that sleeps already is woken.
    peer.asleep.store(0);
    peer.asleep.wake();
}
