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
use nm_book::order::TradingPhase::{Auction, Continuous, Halted};
use nm_book::order::{Event, Price, Quantity};
use nm_sys::poll::Waker;
use nm_wire::Message as Frame;

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
        let phase = Continuous;
        View { bids: vec![], offers: vec![], last: None, volume: 0, phase }
    }
}

/// All views that are known, by instrument.
pub type Views = BTreeMap<u32, Arc<View>>;

/// What the exchange has announced of an instrument since the door has a link to it.
#[derive(Debug, Clone, Copy, Default)]
struct Announced {
    /// Its phase, and that before a halt; the first one is none as long as nothing was announced.
    phase: Option<TradingPhase>,
    before_halt: Option<TradingPhase>,
    /// Whether its day has ended, and nothing has begun since.
    is_day_over: bool,
    /// Whether it traded before its present auction.
    has_traded: bool,
}

/// What an instrument does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstrumentStatus {
    /// Phase of trading.
    pub phase: TradingPhase,
    /// Whether its day has ended, and nothing has begun since.
    pub is_day_over: bool,
}

/// What all instruments do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VenueStatus {
    /// At least one trades.
    Open,
    /// The same, although the day of all has ended.
    OpenAfterDay,
    /// All are halted.
    Halted,
    /// All are halted, and their day has ended.
    Closed,
    /// All are in an auction, after a halt or the end of a day.
    PreOpen,
    /// All are in an auction, and one of them has traded before it.
    PreClose,
}

/// What a door knows of the market: what books show, and what was announced to all.
///
/// A book says more than announcements, and nothing of it is lost. So its phase counts where it is
/// known, and announcements count for a door that does not see books.
#[derive(Debug)]
pub struct Market {
    /// What books show, as far as a session wants to know it.
    pub views: Views,
    announced: BTreeMap<u32, Announced>,
    /// What all instruments do together, as of the last [`Market::look`].
    pub venue: VenueStatus,
    is_changed: bool,
}

impl Default for Market {
    fn default() -> Market {
        let (views, announced) = (Views::new(), BTreeMap::new());
        Market { views, announced, venue: VenueStatus::Open, is_changed: false }
    }
}

impl Market {
    /// Handles what is announced to all.
    pub fn hear(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Public(public) => {
                let known = self.announced.entry(public.instrument).or_default();
                for event in public.events.take_while(Result::is_ok).flatten() {
                    known.hear(&event);
                }
            }
            Frame::DayEnded(ended) => {
                for instrument in &ended.instruments {
                    self.announced.entry(*instrument).or_default().is_day_over = true;
                }
            }
            _ => return,
        }
        self.is_changed = true;
    }

    /// The link to the exchange has ended: what is announced meanwhile is lost.
    pub fn forget_phases(&mut self) {
        self.announced.values_mut().for_each(|known| known.phase = None);
    }

    /// Books show something else than before.
    pub fn show(&mut self, changed: Views) {
        for (instrument, view) in &changed {
            let was_halted = self.status(*instrument).is_some_and(|it| it.phase == Halted);
            if let Some(known) = self.announced.get_mut(instrument) {
                known.is_day_over &= !was_halted || view.phase == Halted;
            }
        }
        self.views.extend(changed);
        self.is_changed = true;
    }

    /// What an instrument does, if anything says that.
    pub fn status(&self, instrument: u32) -> Option<InstrumentStatus> {
        let announced = self.announced.get(&instrument);
        let shown = self.views.get(&instrument).map(|view| view.phase);
        let phase = shown.or(announced.and_then(|it| it.phase))?;
        let is_day_over = announced.is_some_and(|it| it.is_day_over);
        Some(InstrumentStatus { phase, is_day_over })
    }

    /// Finds out what all of these instruments do together, if that may have changed. One of which
    /// nothing was announced trades.
    pub fn look(&mut self, instruments: impl Iterator<Item = u32>) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let (mut phases, mut is_over, mut has_traded) = (None, true, false);
        for instrument in instruments {
            let known = self.announced.get(&instrument).copied().unwrap_or_default();
            let status = self.status(instrument);
            let phase = status.map_or(Continuous, |it| it.phase);
            is_over &= known.is_day_over;
            has_traded |= known.has_traded;
            phases = match phases {
                None => Some(phase),
                Some(other) if other == phase => Some(phase),
                Some(_) => Some(Continuous),
            };
        }
        self.venue = match phases {
            Some(Halted) if is_over => VenueStatus::Closed,
            Some(Halted) => VenueStatus::Halted,
            Some(Auction) if has_traded => VenueStatus::PreClose,
            Some(Auction) => VenueStatus::PreOpen,
            Some(Continuous) if is_over => VenueStatus::OpenAfterDay,
            Some(Continuous) | None => VenueStatus::Open,
        };
    }
}

impl Announced {
    fn hear(&mut self, event: &Event) {
        let phase = match event {
            Event::Halted => {
                self.before_halt = self.phase;
                Halted
            }
            Event::Resumed => self.before_halt.unwrap_or(Continuous),
            Event::AuctionBegun => {
                self.has_traded = !self.is_day_over && self.phase.is_none_or(|it| it == Continuous);
                Auction
            }
            Event::Uncrossed { .. } => Continuous,
            _ => return,
        };
        self.is_day_over &= !begins_day(event);
        self.phase = Some(phase);
    }
}

/// Whether an event says that trading begins again after a day.
pub fn begins_day(event: &Event) -> bool {
    matches!(event, Event::Resumed | Event::AuctionBegun)
}

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

    fn announce(market: &mut Market, instrument: u32, event: Event) {
        let mut bytes = vec![];
        nm_book::codec::write_event(&event, &mut bytes);
        let (output_seq, previous_event, gateway, cell) = (1, 0, 0, 0);
        let events = nm_wire::Series::of(&bytes);
        market.hear(&Frame::Public(nm_wire::Public {
            instrument,
            output_seq,
            previous_event,
            gateway,
            cell,
            events,
        }));
    }

    /// The day of a venue with two symbols, as a schedule has it.
    #[test]
    fn what_all_instruments_do_follows_from_what_is_announced() {
        let mut market = Market::default();
        let mut after = |what: &dyn Fn(&mut Market, u32)| {
            [1, 2].map(|instrument| {
                what(&mut market, instrument);
                market.look([1, 2].into_iter());
                market.venue
            })
        };
        use VenueStatus::{Closed, Open, PreClose, PreOpen};
        let volume = 5;
        let uncross = |it: &mut Market, at| {
            announce(it, at, Event::Uncrossed { price: Some(7), volume });
        };
        let end = |it: &mut Market, at| {
            let instruments = vec![at];
            it.hear(&Frame::DayEnded(nm_wire::DayEnded { cell: 0, instruments }));
        };
        let auction = |it: &mut Market, at| announce(it, at, Event::AuctionBegun);
        assert_eq!(after(&auction), [Open, PreClose]);
        assert_eq!(after(&uncross), [Open, Open]);
        assert_eq!(after(&end), [Open, VenueStatus::OpenAfterDay]);
        assert_eq!(
            after(&|it, at| announce(it, at, Event::Halted)),
            [VenueStatus::OpenAfterDay, Closed]
        );
        assert_eq!(after(&auction), [Open, PreOpen]);
        assert_eq!(after(&uncross), [Open, Open]);
        assert_eq!(after(&|it, at| announce(it, at, Event::Halted)), [Open, VenueStatus::Halted]);
        assert_eq!(after(&|it, at| announce(it, at, Event::Resumed)), [Open, Open]);
    }

    /// What was announced is the phase until a book is seen, and no longer.
    #[test]
    fn the_phase_of_a_book_counts_more_than_what_was_announced() {
        let mut market = Market::default();
        let phase = |market: &Market| market.status(1).map(|it| it.phase);
        assert_eq!(phase(&market), None);
        announce(&mut market, 1, Event::AuctionBegun);
        announce(&mut market, 1, Event::Halted);
        assert_eq!(phase(&market), Some(Halted));
        announce(&mut market, 1, Event::Resumed);
        assert_eq!(phase(&market), Some(Auction));
        market.show([(1, Arc::new(View::empty()))].into());
        assert_eq!(phase(&market), Some(Continuous));
        market.views.clear();
        market.forget_phases();
        assert_eq!(phase(&market), None, "the link has ended");
    }

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
