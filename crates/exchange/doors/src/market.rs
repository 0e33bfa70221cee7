//! Market data behind a door: what the books of some instruments show.
//!
//! A follower in a thread of its own makes [`View`]s of the books that a door wants, and posts them
//! on a [`Board`]. A view replaces the one before, so a door that takes them seldom has fewer of
//! them, and nothing grows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use nm_book::book::Level;
pub use nm_book::order::TradingPhase;
use nm_book::order::{Price, Quantity};
use nm_sys::poll::Waker;

/// The latest trade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trade {
    /// Its price, ticks.
    pub price: Price,
    /// Its quantity, lots.
    pub quantity: Quantity,
}

/// What a book shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Buyers' prices, the best first, at most [`DEPTH_MAX`](crate::limits::DEPTH_MAX).
    pub bids: Vec<Level>,
    /// Sellers' prices, likewise.
    pub offers: Vec<Level>,
    /// The latest trade since the book is followed.
    pub last: Option<Trade>,
    /// Lots that traded since the book is followed.
    pub volume: Quantity,
    /// Phase of trading.
    pub phase: TradingPhase,
}

impl View {
    /// That of a book which nobody has used.
    pub fn empty() -> View {
        let phase = TradingPhase::Continuous;
        View { bids: vec![], offers: vec![], last: None, volume: 0, phase }
    }
}

/// All views that are known, by instrument.
pub type Views = BTreeMap<u32, Arc<View>>;

/// What a door and its follower share.
#[derive(Debug)]
pub struct Board {
    state: Mutex<State>,
    /// Tells the follower that other instruments are wanted.
    changed: Condvar,
    /// Tells the door that there are views.
    waker: Waker,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeSet<u32>,
    posted: Views,
}

impl Board {
    /// A board of which nobody wants anything.
    ///
    /// # Errors
    /// If there is no descriptor for its waker.
    pub fn new() -> io::Result<Board> {
        Ok(Board { state: Mutex::default(), changed: Condvar::new(), waker: Waker::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes readable when views were posted.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The door wants the views of these instruments, and of no others.
    pub fn want(&self, wanted: &BTreeSet<u32>) {
        let mut state = self.lock();
        if state.wanted != *wanted {
            state.wanted.clone_from(wanted);
            state.posted.retain(|instrument, _| wanted.contains(instrument));
            self.changed.notify_all();
        }
    }

    /// The views that were posted since the last call.
    pub fn take(&self) -> Views {
        self.waker.drain();
        std::mem::take(&mut self.lock().posted)
    }

    /// The instruments that are wanted, once they are others than `known`, or after a time. For a
    /// follower's thread: it waits.
    #[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
    pub fn wait_for_wanted(&self, known: &BTreeSet<u32>, limit: Duration) -> BTreeSet<u32> {
        let state = self.lock();
        if state.wanted != *known {
            return state.wanted.clone();
        }
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0.wanted.clone()
    }

    /// The instruments that are wanted now.
    pub fn wanted(&self) -> BTreeSet<u32> {
        self.lock().wanted.clone()
    }

    /// Posts views, as far as they are wanted.
    pub fn post(&self, views: impl Iterator<Item = (u32, View)>) {
        let mut state = self.lock();
        let State { wanted, posted } = &mut *state;
        let views = views.filter(|(instrument, _)| wanted.contains(instrument));
        posted.extend(views.map(|(instrument, view)| (instrument, Arc::new(view))));
        if !posted.is_empty() {
            self.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_has_the_latest_view_of_what_is_wanted_alone() {
        let board = Board::new().unwrap();
        let view = |volume| View { volume, ..View::empty() };
        board.post([(1, view(1))].into_iter());
        assert!(board.take().is_empty(), "nobody wants it");
        board.want(&[1, 2].into());
        board.post([(1, view(2)), (3, view(3))].into_iter());
        board.post([(1, view(4))].into_iter());
        let taken: Vec<(u32, u64)> = board.take().iter().map(|(at, it)| (*at, it.volume)).collect();
        assert_eq!(taken, [(1, 4)]);
        board.post([(1, view(5)), (2, view(6))].into_iter());
        board.want(&[2].into());
        assert_eq!(board.take().into_keys().collect::<Vec<u32>>(), [2]);
    }
}
