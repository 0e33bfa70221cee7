//! Whether the program's connections are short. The search for the other end of a connection costs
//! about as much as a request, so a program whose connections carry one request each begins it
//! later, when a connection has lasted longer than those before.

use std::sync::atomic::{AtomicU32, Ordering};

/// A connection that ends before it has made so many data calls is short.
const SHORT_CALLS: u32 = 16;

/// Short connections in a row after which the next one is expected to be short.
const STREAK_MIN: u32 = 8;

/// Short connections in a row.
static STREAK: AtomicU32 = AtomicU32::new(0);

/// A connection has ended after so many data calls; `has_joined`: its ends had met.
pub fn connection_ended(calls: u32, has_joined: bool) {
    if has_joined || calls >= SHORT_CALLS {
        STREAK.store(0, Ordering::Relaxed);
    } else if STREAK.load(Ordering::Relaxed) < STREAK_MIN {
        STREAK.fetch_add(1, Ordering::Relaxed);
    }
}

/// Data calls of a new connection before which it does not look for its other end.
pub fn first_attempt() -> u32 {
    if STREAK.load(Ordering::Relaxed) < STREAK_MIN { 0 } else { SHORT_CALLS }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test of this binary that ends connections: the count is one of the process.
    #[test]
    fn connections_look_for_their_other_ends_later_while_the_ones_before_were_short() {
        (0..STREAK_MIN - 1).for_each(|_| connection_ended(3, false));
        assert_eq!(first_attempt(), 0);
        connection_ended(0, false);
        assert_eq!(first_attempt(), SHORT_CALLS);
        connection_ended(SHORT_CALLS, false);
        assert_eq!(first_attempt(), 0);
        (0..STREAK_MIN).for_each(|_| connection_ended(15, false));
        assert_eq!(first_attempt(), SHORT_CALLS);
        connection_ended(9, true);
        assert_eq!(first_attempt(), 0);
    }
}
