//! Those who follow the books of a node's replicas: they are sent what each book executes, as the
//! log of its cell commits it. While nobody follows, nothing is done.

use nm_book::book::Book;
use nm_book::order::{Command, InstrumentId, Matching as _};
use nm_wire::{AdminResponse, BookImage, BookPosition, BookUpdate, Kind};

use crate::cell::{Cell, Handled, Request, Retirement};

use crate::node::runtime::links::{LinkId, Links};

/// Books in one answer.
const POSITIONS_MAX: usize = 4_096;

/// Bytes of a book in one answer.
const IMAGE_BYTES_MAX: usize = 256 << 10;

/// Who follows, and what is sent at the end of the iteration.
#[derive(Debug, Default)]
pub struct Followers {
    links: Vec<LinkId>,
    bytes: Vec<u8>,
}

impl Followers {
    /// Somebody follows from now on.
    pub fn begin<'a>(
        &mut self,
        links: &mut Links,
        to: LinkId,
        cells: impl Iterator<Item = &'a Cell<Book>>,
    ) {
        let mut all: Vec<BookPosition> = vec![];
        for cell in cells {
            all.extend(cell.executed().map(|(instrument, output_seq)| {
                let (_, history) = cell.history(instrument);
                BookPosition { instrument, output_seq, history }
            }));
        }
        let (mut rest, mut has_more) = (&all[..], true);
        while has_more {
            let (books, behind) = rest.split_at(rest.len().min(POSITIONS_MAX));
            has_more = !behind.is_empty();
            links.send(to, &AdminResponse::Following { books: books.to_vec(), has_more });
            rest = behind;
        }
        if !self.links.contains(&to) {
            self.links.push(to);
        }
    }

    /// A request will be handled: the history of its instrument, if anybody follows.
    #[inline]
    pub fn before(&self, cell: &Cell<Book>, request: &Request) -> Option<u64> {
        (!self.links.is_empty()).then(|| cell.history(request.instrument).1)
    }

    /// A request was handled; `before` is what [`Followers::before`] returned.
    #[inline]
    pub fn after(
        &mut self,
        cell: &Cell<Book>,
        (request, received_ns): (&Request, u64),
        before: Option<u64>,
        handled: Handled,
    ) {
        if let (Some(previous_history), Handled::Executed(outcome)) = (before, handled) {
            let update = BookUpdate {
                instrument: request.instrument,
                cell: cell.number(),
                output_seq: outcome.output_seq,
                now_ns: cell.now_ns(),
                received_ns,
                previous_history,
                history: cell.history(request.instrument).1,
                is_retirement: false,
                command: cell.applied(request),
            };
            nm_wire::write(&update, &mut self.bytes);
        }
    }

    /// Sessions were retired.
    pub fn retired(&mut self, cell: &Cell<Book>) {
        if self.links.is_empty() {
            return;
        }
        for Retirement { user, previous_history, position } in cell.retirements() {
            let update = BookUpdate {
                instrument: position.instrument,
                cell: cell.number(),
                output_seq: position.output_seq,
                now_ns: cell.now_ns(),
                received_ns: 0,
                previous_history: *previous_history,
                history: position.history,
                is_retirement: true,
                command: Some(Command::MassCancel { user: *user }),
            };
            nm_wire::write(&update, &mut self.bytes);
        }
    }

    /// Sends what was gathered; whose link is closed follows no more.
    pub fn send(&mut self, links: &mut Links) {
        if self.bytes.is_empty() {
            return;
        }
        let Followers { links: followers, bytes } = self;
        followers.retain(|to| links.output_for(*to, Kind::BookUpdate).is_some());
        followers.iter().for_each(|to| links.forward(*to, bytes));
        bytes.clear();
    }
}

/// Sends the book of an instrument in pieces; none if no cell has it.
pub fn send_image(
    links: &mut Links,
    to: LinkId,
    instrument: InstrumentId,
    cell: Option<&Cell<Book>>,
) {
    let mut saved = vec![];
    let mut position = BookPosition { instrument, output_seq: 0, history: 0 };
    if let Some((cell, book)) = cell.and_then(|cell| Some((cell, cell.book(instrument)?))) {
        (position.output_seq, position.history) = cell.history(instrument);
        book.save(&mut saved);
    }
    let total = saved.len() as u64;
    let mut offset = 0;
    loop {
        let piece = &saved[offset..saved.len().min(offset + IMAGE_BYTES_MAX)];
        let image = BookImage { position, offset: offset as u64, total, bytes: piece.into() };
        links.send(to, &AdminResponse::Image { image });
        offset += piece.len();
        if offset == saved.len() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use nm_book::testing::{Stream, seeded};
    use nm_wire::{Retire, Retired};
    use proptest::prelude::*;

    use super::*;
    use crate::cell::testing::{INSTRUMENT, order};
    use crate::limits::CellLimits;

    /// What was gathered, and nothing is left.
    fn updates(followers: &mut Followers) -> Vec<BookUpdate> {
        let (bytes, mut all) = (std::mem::take(&mut followers.bytes), vec![]);
        let mut rest = &bytes[..];
        while let Some(frame) = nm_wire::read(rest).unwrap() {
            all.push(frame.read().unwrap());
            rest = &rest[frame.bytes.len()..];
        }
        all
    }

    #[test]
    fn nothing_is_gathered_while_nobody_follows() {
        let (mut cell, mut followers) = (Cell::<Book>::default(), Followers::default());
        cell.begin(1, 5);
        let request = order(2, INSTRUMENT, 1, 0);
        let before = followers.before(&cell, &request);
        let handled = cell.handle(&request, |_| {});
        followers.after(&cell, (&request, 7), before, handled);
        assert!(before.is_none() && followers.bytes.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// Requests of five sessions of all kinds, some of which exceed limits, are not allowed, or
        /// come twice; and sessions that are retired.
        #[test]
        fn who_executes_the_updates_has_the_book_of_the_cell(seed in any::<u64>()) {
            let mut cell = Cell::<Book>::default();
            cell.limits = CellLimits { instruments: 3, sessions: 9, orders: 12 };
            let mut followers = Followers { links: vec![LinkId::none()], bytes: vec![] };
            let mut stream = Stream::new(seeded(seed), 48);
            let (mut book, mut history) = (Book::new(), 0);
            for step in 1..400_u64 {
                let command = stream.command().unwrap();
                cell.begin(step, stream.now_ns);
                let session = (step % 5) as u32;
                if step % 97 == 0 {
                    let retired = Retired::Session { session };
                    let mut entry = vec![];
                    nm_wire::write(&Retire { cell: 0, retired }, &mut entry);
                    cell.admit(nm_wire::read(&entry).unwrap().unwrap()).unwrap();
                    followers.retired(&cell);
                } else {
                    let last = cell.last_request_seq(INSTRUMENT, session);
                    let seq = if step % 11 == 0 { last } else { last + 1 };
                    let own = order(session, INSTRUMENT, seq, seq.saturating_sub(1));
                    let request = Request { command, ..own };
                    let before = followers.before(&cell, &request);
                    let handled = cell.handle(&request, |_| {});
                    followers.after(&cell, (&request, 7), before, handled);
                }
                for update in updates(&mut followers) {
                    prop_assert_eq!(update.previous_history, history);
                    history = update.history;
                    update.execute(&mut book, &mut |_| {});
                }
                if let Some(known) = cell.book(INSTRUMENT) {
                    prop_assert_eq!(known.hash(), book.hash());
                    prop_assert_eq!(cell.history(INSTRUMENT).1, history);
                }
            }
        }
    }
}
