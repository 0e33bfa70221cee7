//! A cell that begins again from a copy of an earlier state. What was executed after the copy is
//! lost, and sessions and followers have seen it.
//!
//! - **No number is given twice.** The numbers of requests, broadcasts and events leave a gap that
//!   is larger than what can be lost. So a session sees the gap, asks, and learns that events are
//!   unknown.
//! - **A session goes on at its present number.** It names a predecessor that the copy lacks. As
//!   where books were lost, it may, if that one was answered.
//! - **Nothing is executed twice.** Requests that the copy has executed are known as such. What
//!   came of them is not known any more: their events have other numbers now.

use nm_book::order::Matching;
use nm_codec::fnv1a_on;

use super::Cell;
use super::instrument::InstrumentState;
use super::session::LOST_BOOKS_GAP;

/// Gap in the numbers of the requests on an instrument: what no instrument executes in a year.
pub const RESTORED_GAP: u64 = 1 << 40;

impl<M: Matching> Cell<M> {
    /// Begins again from this state, which is a copy of an earlier one.
    pub fn begin_again(&mut self) {
        self.staged.values().for_each(|staged| self.session_count -= staged.sessions as usize);
        // Their sources send them again.
        self.staged.clear();
        let present = self.instruments.values_mut();
        let departed = self.departed.values_mut().map(|departed| &mut departed.state);
        let mut last = self.first_output_seq;
        for state in present.chain(departed) {
            last = last.max(state.output_seq);
            state.begin_again();
        }
        self.first_output_seq = last.saturating_add(RESTORED_GAP);
    }

    /// Whether a session that is not known on an instrument may begin at any number, because the
    /// state that knew it may be lost.
    pub(super) fn accepts_unknown(&self) -> bool {
        self.accepts_unknown_sessions || self.first_output_seq >= RESTORED_GAP
    }
}

impl<M: Matching> InstrumentState<M> {
    fn begin_again(&mut self) {
        self.output_seq = self.output_seq.saturating_add(RESTORED_GAP);
        self.public_seq = self.public_seq.saturating_add(LOST_BOOKS_GAP);
        self.history = fnv1a_on(self.history, b"restored");
        self.sessions.values_mut().for_each(|session| session.begin_again());
    }
}

#[cfg(test)]
mod tests {
    use nm_book::book::Book;
    use nm_book::order::Command;

    use super::*;
    use crate::cell::testing::order;
    use crate::cell::{Handled, Request};

    fn restored() -> Cell<Book> {
        let mut cell = Cell::<Book>::default();
        cell.begin(1, 10);
        for seq in 1..=3 {
            assert!(matches!(
                cell.handle(&order(2, 7, seq, seq - 1), |_| {}),
                Handled::Executed(_)
            ));
        }
        cell.begin_again();
        // A replica begins with what was saved.
        let saved = cell.save();
        let loaded = Cell::<Book>::load(&saved).unwrap();
        assert_eq!(loaded.hash(), cell.hash());
        loaded
    }

    fn answered(request: Request) -> Request {
        Request { is_previous_answered: true, ..request }
    }

    #[test]
    fn a_session_goes_on_where_it_was_and_no_number_is_given_twice() {
        let mut cell = restored();
        assert_eq!(cell.last_request_seq(7, 2), 3);
        // It was executed before the copy, so never again.
        assert_eq!(cell.handle(&order(2, 7, 3, 2), |_| panic!()), Handled::Duplicate(None));
        // Its request 8, whose predecessor was not answered, waits for that one.
        assert_eq!(cell.handle(&order(2, 7, 8, 7), |_| panic!()), Handled::SequenceGap);
        let Handled::Executed(next) = cell.handle(&answered(order(2, 7, 9, 8)), |_| {}) else {
            panic!("the session goes on");
        };
        assert_eq!(next.output_seq, RESTORED_GAP + 4);
        let first = cell.events_after(7, 2, 0).map(|(start, _)| start);
        assert!(first.is_some_and(|start| start >= LOST_BOOKS_GAP), "{first:?}");
        // From now on it is like any other.
        assert_eq!(cell.handle(&answered(order(2, 7, 12, 11)), |_| panic!()), Handled::SequenceGap);
        assert!(matches!(cell.handle(&order(2, 7, 10, 9), |_| {}), Handled::Executed(_)));
    }

    #[test]
    fn a_session_or_instrument_that_the_copy_lacks_begins_at_its_present_number() {
        let mut cell = restored();
        assert_eq!(cell.handle(&order(3, 7, 5, 4), |_| panic!()), Handled::SequenceGap);
        for (session, instrument) in [(3, 7), (2, 8)] {
            let request = answered(order(session, instrument, 5, 4));
            let Handled::Executed(outcome) = cell.handle(&request, |_| {}) else {
                panic!("{session} on {instrument}");
            };
            assert!(outcome.output_seq > RESTORED_GAP);
        }
        let tick = answered(Request { command: Command::Tick, ..order(2, 7, 9, 8) });
        assert!(matches!(cell.handle(&tick, |_| {}), Handled::Executed(_)));
    }
}
