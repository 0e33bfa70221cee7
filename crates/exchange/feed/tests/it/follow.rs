//! Updates of several replicas, and what comes of them.

use nm_book::book::{Book, Level};
use nm_book::order::{Command, Matching as _, Side};
use nm_book::snapshot::BookSnapshot;
use nm_book::testing::{Stream, seeded};
use nm_codec::{Random, fnv1a_on};
use nm_feed::books::Books as Consumer;
use nm_feed::displayed::{displayed, hash};
use nm_feed::follow::Books;
use nm_feed::itch::Message;
use nm_feed::limits::{EARLY_UPDATES_MAX, MISSING_NS, STOCKS_MAX};
use nm_feed::stock::Listing;
use nm_wire::{BookPosition, BookUpdate};
use proptest::prelude::*;

const INSTRUMENT: u32 = 5;

/// A cell's book, and the updates that its replicas send.
struct Cell {
    book: Book,
    output_seq: u64,
    history: u64,
    stream: Stream<Box<dyn Iterator<Item = u8>>>,
}

impl Cell {
    fn new(seed: u64) -> Cell {
        let bytes: Box<dyn Iterator<Item = u8>> = Box::new(seeded(seed));
        let stream = Stream::new(bytes, 48);
        Cell { book: Book::new(), output_seq: 0, history: 0, stream }
    }

    fn step(&mut self) -> BookUpdate {
        let command = self.stream.command().unwrap();
        self.execute(command)
    }

    fn execute(&mut self, command: Command) -> BookUpdate {
        let now_ns = self.stream.now_ns;
        self.book.apply(&command, now_ns, &mut |_| {});
        self.output_seq += 1;
        let previous_history = self.history;
        self.history = fnv1a_on(previous_history, &self.output_seq.to_le_bytes());
        BookUpdate {
            instrument: INSTRUMENT,
            cell: 0,
            output_seq: self.output_seq,
            now_ns,
            received_ns: 0,
            previous_history,
            history: self.history,
            is_retirement: false,
            command: Some(command),
        }
    }

    fn position(&self) -> BookPosition {
        let Cell { output_seq, history, .. } = *self;
        BookPosition { instrument: INSTRUMENT, output_seq, history }
    }

    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.book.save(&mut bytes);
        bytes
    }
}

/// The consumer's book is what the cell's displays.
fn is_equal(cell: &Cell, out: &[Message]) -> bool {
    let mut consumer = Consumer::default();
    out.iter().for_each(|message| consumer.apply(message).unwrap());
    let listing = Listing::unnamed(INSTRUMENT);
    let expected = hash(displayed(&BookSnapshot::read(&cell.image()).unwrap(), &listing));
    consumer.hash_of(&listing.stock) == Some(expected)
}

/// Messages of a publisher that has all updates once and in order.
fn in_order(seed: u64, steps: usize) -> Vec<Message> {
    let (mut cell, mut books, mut out) = (Cell::new(seed), Books::new(None), vec![]);
    (0..steps).for_each(|_| books.on_update(0, cell.step(), 0, &mut out));
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Each replica sends some of the updates, later than the others, and the order of two replicas
    /// is any; each update comes at least once.
    #[test]
    fn the_feed_is_the_same_whichever_replicas_send_the_updates(seed in any::<u64>()) {
        let (mut cell, mut books, mut out) = (Cell::new(seed), Books::new(None), vec![]);
        let (mut random, mut waiting) = (Random::new(seed), vec![]);
        for _ in 0..200 {
            let update = cell.step();
            let sender = random.below(3) as usize;
            for replica in (0..3).filter(|it| *it == sender || random.below(2) == 0) {
                waiting.push((replica, update));
            }
            while waiting.len() > 8 {
                let (replica, update) = waiting.swap_remove(random.below(8) as usize);
                books.on_update(replica, update, 0, &mut out);
            }
        }
        waiting.into_iter().for_each(|(it, update)| books.on_update(it, update, 0, &mut out));
        prop_assert_eq!(out, in_order(seed, 200));
        prop_assert!(books.notes.is_empty());
        prop_assert_eq!(books.on_time(10 * MISSING_NS), vec![]);
    }

    #[test]
    fn an_update_that_nobody_sends_is_repaired_by_the_book(
        seed in any::<u64>(), missing in 1_usize..100,
    ) {
        let (mut cell, mut books, mut out) = (Cell::new(seed), Books::new(None), vec![]);
        for step in 0..200 {
            let update = cell.step();
            if step != missing {
                books.on_update(7, update, 0, &mut out);
            }
        }
        prop_assert_eq!(books.on_time(MISSING_NS - 1), vec![]);
        prop_assert_eq!(books.on_time(MISSING_NS), vec![(7, INSTRUMENT)]);
        prop_assert_eq!(books.on_time(MISSING_NS + 1), vec![], "it is asked once");
        books.on_image(cell.position(), &cell.image(), MISSING_NS, &mut out);
        prop_assert!(is_equal(&cell, &out));
        prop_assert_eq!(books.notes.len(), 1, "an operator learns of it");
        (0..50).for_each(|_| books.on_update(7, cell.step(), 0, &mut out));
        prop_assert!(is_equal(&cell, &out));
    }

    /// A publisher that starts later knows of a book by its position alone.
    #[test]
    fn a_publisher_that_starts_late_goes_on_from_the_book(seed in any::<u64>()) {
        let (mut cell, mut books, mut out) = (Cell::new(seed), Books::new(None), vec![]);
        for _ in 0..100 {
            cell.step();
        }
        books.on_position(2, cell.position(), 0, &mut out);
        prop_assert_eq!(books.on_time(MISSING_NS), vec![(2, INSTRUMENT)]);
        let (position, image) = (cell.position(), cell.image());
        books.on_update(1, cell.step(), 0, &mut out);
        books.on_image(position, &image, MISSING_NS, &mut out);
        prop_assert!(is_equal(&cell, &out));
        prop_assert!(books.notes.is_empty(), "nothing was missed");
        let mut snapshot = vec![];
        books.snapshot(&mut snapshot);
        prop_assert!(is_equal(&cell, &snapshot));
    }
}

/// The instrument may have moved on.
#[test]
fn a_book_that_one_node_does_not_have_is_asked_of_the_next_one() {
    let (mut cell, mut books, mut out) = (Cell::new(1), Books::new(None), vec![]);
    for _ in 0..10 {
        cell.step();
    }
    books.on_position(2, cell.position(), 0, &mut out);
    let second_ns = 1_000_000_000;
    for (attempt, source) in [2, 0, 1, 2].into_iter().enumerate() {
        let now_ns = MISSING_NS + attempt as u64 * second_ns;
        assert_eq!(books.on_time(now_ns), [(source, INSTRUMENT)]);
        books.on_image(
            BookPosition { instrument: INSTRUMENT, ..cell.position() },
            &[],
            now_ns,
            &mut out,
        );
    }
    books.on_image(cell.position(), &cell.image(), 9 * second_ns, &mut out);
    assert!(is_equal(&cell, &out));
}

/// Without replicas, the books of a mediator that dies are lost.
#[test]
fn a_book_that_begins_again_replaces_the_one_before() {
    let (mut cell, mut books, mut out) = (Cell::new(1), Books::new(None), vec![]);
    (0..300).for_each(|_| books.on_update(0, cell.step(), 0, &mut out));
    let now_ns = cell.stream.now_ns;
    let mut again = Cell::new(2);
    again.stream.now_ns = now_ns + 1;
    (0..50).for_each(|_| books.on_update(0, again.step(), 0, &mut out));
    assert_eq!(books.on_time(MISSING_NS), [(0, INSTRUMENT)]);
    books.on_image(again.position(), &again.image(), MISSING_NS, &mut out);
    assert!(is_equal(&again, &out));
}

#[test]
fn updates_that_wait_for_those_before_them_are_limited_and_the_book_is_asked_for() {
    let (mut cell, mut books, mut out) = (Cell::new(3), Books::new(None), vec![]);
    let first = cell.step();
    for _ in 0..EARLY_UPDATES_MAX {
        books.on_update(0, cell.step(), 0, &mut out);
    }
    let beyond = cell.step();
    books.on_update(0, beyond, 0, &mut out);
    books.on_update(0, first, 0, &mut out);
    // A node says where the book stands.
    books.on_position(0, cell.position(), 0, &mut out);
    assert_eq!(books.on_time(MISSING_NS), [(0, INSTRUMENT)], "the last one found no place");
    books.on_update(0, beyond, 0, &mut out);
    assert!(is_equal(&cell, &out), "all others were kept");
    assert_eq!(books.on_time(100 * MISSING_NS), []);
}

#[test]
fn a_feed_has_a_number_of_stocks() {
    let (mut books, mut out) = (Books::new(None), vec![]);
    let list = |books: &mut Books, out: &mut Vec<Message>, instrument: u32| {
        books.on_position(0, BookPosition { instrument, output_seq: 0, history: 0 }, 0, out);
        out.clear();
    };
    (0..STOCKS_MAX as u32).for_each(|instrument| list(&mut books, &mut out, instrument));
    assert_eq!((books.len(), books.notes.len()), (STOCKS_MAX, 0));
    list(&mut books, &mut out, u32::MAX);
    assert_eq!(books.len(), STOCKS_MAX);
    assert_eq!(
        books.notes,
        [format!("instrument {} and others have no place in the feed", u32::MAX)]
    );
}

/// What a door is shown of a book is what the book has.
#[test]
fn a_view_is_what_the_book_shows() {
    let (mut cell, mut books, mut out) = (Cell::new(4), Books::default(), vec![]);
    books.set_instruments([INSTRUMENT].into());
    for _ in 0..300 {
        books.on_update(0, cell.step(), 0, &mut out);
        let view = books.view(INSTRUMENT, 3).unwrap();
        for (side, levels) in [(Side::Buy, &view.bids), (Side::Sell, &view.offers)] {
            let best = levels.first().map(|level| (level.price, level.quantity));
            assert_eq!(best, cell.book.best(side));
            assert!(levels.len() <= 3 && levels.iter().all(|level| level.orders > 0));
            let falls = |pair: &[Level]| match side {
                Side::Buy => pair[0].price > pair[1].price,
                Side::Sell => pair[0].price < pair[1].price,
            };
            assert!(levels.windows(2).all(falls));
        }
        assert_eq!(view.phase, cell.book.phase());
    }
    assert_eq!(books.take_changed(), [INSTRUMENT].into());
    assert!(books.take_changed().is_empty());
    assert!(books.view(INSTRUMENT, 3).unwrap().volume > 0);
    // Another instrument is wanted: this one is forgotten.
    books.set_instruments([INSTRUMENT + 1].into());
    books.on_update(0, cell.step(), 0, &mut out);
    assert_eq!(books.view(INSTRUMENT, 3), None);
}
