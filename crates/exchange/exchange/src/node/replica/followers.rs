//! Those who follow the books of a node's replicas: they are sent what each book executes, as the
//! log of its cell commits it. While nobody follows, nothing is done.

use nm_book::book::Book;
use nm_book::order::{Command, InstrumentId, Matching as _};
use nm_wire::{AdminResponse, BookImage, BookPosition, BookUpdate};

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
        request: &Request,
        before: Option<u64>,
        handled: Handled,
    ) {
        if let (Some(previous_history), Handled::Executed(outcome)) = (before, handled) {
            let update = BookUpdate {
                instrument: request.instrument,
                cell: cell.number(),
                output_seq: outcome.output_seq,
                now_ns: cell.now_ns(),
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
        followers.retain(|to| links.output(*to).is_some());
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
