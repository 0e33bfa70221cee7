//! A copy of an instrument as it was at one request, made piece by piece while later requests are
//! executed. What a request is about to change is copied before.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::task::Poll;

use nm_book::order::UserId;

use crate::background::{self, Background};
use crate::moves::CopyStart;

use super::session::{Session, write_session};

/// Most bytes of sessions in one piece, without the last session: to write them takes some 20 us,
/// to read them some 30.
const SESSIONS_BYTES: usize = 8 << 10;

/// The sessions of an instrument.
type Sessions = BTreeMap<UserId, Session>;

/// The next piece of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyPiece {
    /// Sessions, one after the other.
    Sessions(Vec<u8>),
    /// The next bytes of the saved book.
    Book(Vec<u8>),
}

/// A copy that is being made.
#[derive(Debug)]
pub struct InstrumentCopy {
    start: CopyStart,
    /// The saved book, and how much of it was given away.
    book: Background<Vec<u8>>,
    book_done: usize,
    /// Up to which session all are copied.
    copied_to: Option<UserId>,
    are_sessions_done: bool,
    /// Sessions beyond that which changed since the start, as they were then; nothing for those
    /// that did not exist.
    changed: BTreeMap<UserId, Vec<u8>>,
}

impl InstrumentCopy {
    /// Begins a copy of an instrument with this saved book.
    pub fn new(start: CopyStart, book: Background<Vec<u8>>) -> InstrumentCopy {
        InstrumentCopy {
            start,
            book,
            book_done: 0,
            copied_to: None,
            are_sessions_done: false,
            changed: BTreeMap::new(),
        }
    }

    /// What the instrument was at the start.
    pub fn start(&self) -> CopyStart {
        self.start
    }

    /// A session is about to change, or to begin.
    pub fn before_change(&mut self, session: UserId, known: Option<&Session>) {
        let is_copied = self.are_sessions_done || self.copied_to >= Some(session);
        if is_copied || self.changed.contains_key(&session) {
            return;
        }
        let mut bytes = vec![];
        if let Some(known) = known {
            write_session(session, known, &mut bytes);
        }
        self.changed.insert(session, bytes);
    }

    /// The next piece, of about so many bytes; none when the copy is complete. Pending while the
    /// book is being saved.
    pub fn next(&mut self, sessions: &Sessions, bytes_max: usize) -> Poll<Option<CopyPiece>> {
        if !self.are_sessions_done {
            let piece =
                CopyPiece::Sessions(self.next_sessions(sessions, bytes_max.min(SESSIONS_BYTES)));
            return Poll::Ready(Some(piece));
        }
        self.book.is_ready();
        let Background::Ready(book) = &self.book else { return Poll::Pending };
        if self.book_done == book.len() {
            return Poll::Ready(None);
        }
        let end = book.len().min(self.book_done + bytes_max);
        let piece = book[self.book_done..end].to_vec();
        self.book_done = end;
        Poll::Ready(Some(CopyPiece::Book(piece)))
    }

    /// Ends it; a large one is dropped in another thread.
    pub fn end(self) {
        if let Background::Ready(book) = self.book {
            background::drop_bytes(book);
        }
    }

    fn next_sessions(&mut self, sessions: &Sessions, bytes_max: usize) -> Vec<u8> {
        let mut bytes = vec![];
        let from = self.copied_to.map_or(Bound::Unbounded, Bound::Excluded);
        for (session, known) in sessions.range((from, Bound::Unbounded)) {
            if bytes.len() >= bytes_max {
                return bytes;
            }
            match self.changed.remove(session) {
                Some(before) => bytes.extend_from_slice(&before),
                None => write_session(*session, known, &mut bytes),
            }
            self.copied_to = Some(*session);
        }
        self.are_sessions_done = true;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::instrument::{Buffers, Circumstances, InstrumentState};
    use super::super::testing::order;
    use super::*;
    use nm_book::reference::ReferenceBook;
    use proptest::prelude::*;

    proptest! {
        /// However requests and pieces alternate, the copy is what the instrument was.
        #[test]
        fn a_copy_is_the_instrument_as_it_was_at_its_start(
            before in prop::collection::vec(0..12u32, 0..60),
            after in prop::collection::vec((0..20u32, any::<bool>()), 0..80),
            bytes_max in 1usize..3000,
        ) {
            let mut state = InstrumentState::<ReferenceBook>::new(5, 0);
            let mut buffers = Buffers::default();
            let mut last = BTreeMap::<UserId, u64>::new();
            let check = nm_wire::LimitCheck::NONE;
            let at = Circumstances { now_ns: 9, accepts_unknown_sessions: false, check };
            let mut next = |session: UserId| {
                let seq = last.entry(session).or_default();
                *seq += 1;
                order(session, 7, *seq, *seq - 1)
            };
            for session in before {
                state.handle(&next(session), at, &mut buffers, None, |_| {});
            }
            let (saved, sessions) = (state.save(), state.sessions.len());
            let mut copy = state.begin_copy();
            prop_assert_eq!(copy.start().sessions as usize, sessions);
            let (mut of_sessions, mut of_book) = (vec![], vec![]);
            let mut take = |copy: &mut InstrumentCopy, state: &InstrumentState<ReferenceBook>| {
                match copy.next(&state.sessions, bytes_max) {
                    Poll::Ready(Some(CopyPiece::Sessions(bytes))) => of_sessions.extend(bytes),
                    Poll::Ready(Some(CopyPiece::Book(bytes))) => of_book.extend(bytes),
                    Poll::Ready(None) => return false,
                    Poll::Pending => {}
                }
                true
            };
            for (session, takes) in after {
                if takes {
                    take(&mut copy, &state);
                }
                state.handle(&next(session), at, &mut buffers, Some(&mut copy), |_| {});
            }
            while take(&mut copy, &state) {}
            let header = 5 * size_of::<u64>() + size_of::<u32>();
            prop_assert_eq!(&saved[header..], [of_sessions, of_book].concat());
        }
    }
}
