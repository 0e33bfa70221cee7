//! The feed of one book: what a consumer builds of it is what the book shows.

use nm_book::book::Book;
use nm_book::order::{
    Command, Event, Matching, NewOrder, OrderType, Peg, SelfTrade, Side, TimeInForce, TradingPhase,
};
use nm_book::reference::ReferenceBook;
use nm_book::snapshot::BookSnapshot;
use nm_book::testing::{Stream, limit, seeded};
use nm_feed::books::Books;
use nm_feed::derive::Derivation;
use nm_feed::displayed::{self, Shown, displayed};
use nm_feed::itch::{Body, MESSAGE_BYTES_MAX, Message};
use nm_feed::stock::Listing;
use proptest::prelude::*;

const LOCATE: u16 = 3;

const LISTING: Listing = Listing { stock: *b"ACME    ", tick: 100, lot: 1 };

/// A book, its feed and a consumer.
struct Chain {
    book: ReferenceBook,
    feed: Derivation,
    books: Books,
    time_ns: u64,
    /// Types of all messages.
    kinds: Vec<u8>,
}

impl Chain {
    fn new() -> Chain {
        let feed = Derivation::new(LOCATE, LISTING);
        let (book, books) = (ReferenceBook::new(), Books::default());
        let mut chain = Chain { book, feed, books, time_ns: 0, kinds: vec![] };
        let mut out = vec![];
        chain.feed.describe(&mut out);
        chain.deliver(&out);
        chain
    }

    /// Messages reach the consumer as bytes.
    fn deliver(&mut self, messages: &[Message]) {
        for message in messages {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = message.write(&mut bytes);
            let read = Message::read(&bytes[..length]).unwrap();
            assert_eq!(read, *message);
            self.kinds.push(message.body.kind());
            self.books.apply(&read).unwrap_or_else(|wrong| panic!("{read:?}: {wrong}"));
        }
    }

    fn apply(&mut self, command: Command) -> (Vec<Event>, Vec<Message>) {
        let (mut events, mut out) = (vec![], vec![]);
        self.book.apply(&command, self.time_ns, &mut |event| events.push(event));
        self.feed.derive(&command, &events, self.time_ns, &mut out);
        self.deliver(&out);
        (events, out)
    }

    fn snapshot(&self) -> BookSnapshot {
        let mut bytes = vec![];
        self.book.save(&mut bytes);
        BookSnapshot::read(&bytes).unwrap()
    }

    fn check(&self) {
        let expected = displayed(&self.snapshot(), &LISTING);
        let found: Vec<Shown> = self.books.displayed(LOCATE).collect();
        assert_eq!(found, expected);
        assert_eq!(self.books.hash(LOCATE), displayed::hash(expected));
        let state = match self.book.phase() {
            TradingPhase::Continuous => b'T',
            TradingPhase::Auction => b'Q',
            TradingPhase::Halted => b'H',
        };
        assert_eq!(self.books.stocks().next().unwrap().1.state, state);
    }
}

/// Commands of all kinds of the book, one after the other.
fn follow(mut stream: Stream<impl Iterator<Item = u8>>, steps: usize) -> Vec<u8> {
    let mut chain = Chain::new();
    for _ in 0..steps {
        let Some(command) = stream.command() else { break };
        chain.time_ns = stream.now_ns;
        chain.apply(command);
        chain.check();
    }
    chain.kinds
}

#[test]
fn the_rebuilt_book_is_the_displayed_one_for_a_long_time() {
    let mut kinds = vec![];
    for seed in 0..20 {
        kinds.extend(follow(Stream::new(seeded(seed), 48), 5_000));
    }
    // Every type that a book leads to, and often.
    for kind in *b"AECXDUPQH" {
        let times = kinds.iter().filter(|known| **known == kind).count();
        assert!(times >= 20, "{} {times} times", char::from(kind));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_rebuilt_book_is_the_displayed_one_for_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..4000),
    ) {
        follow(Stream::new(bytes.into_iter(), 48), usize::MAX);
    }

    #[test]
    fn a_derivation_that_goes_on_from_a_snapshot_leads_to_the_same_book(
        seed in any::<u64>(), missed in 1_usize..60,
    ) {
        let mut stream = Stream::new(seeded(seed), 48);
        let mut chain = Chain::new();
        for step in 0..300 {
            let command = stream.command().unwrap();
            chain.time_ns = stream.now_ns;
            if (100..100 + missed).contains(&step) {
                chain.book.apply(&command, stream.now_ns, &mut |_| {});
                continue;
            }
            if step == 100 + missed {
                let mut out = vec![];
                chain.feed.resume_from(&chain.snapshot(), &mut out);
                chain.deliver(&out);
                chain.check();
            }
            chain.apply(command);
        }
        chain.check();
    }

    #[test]
    fn an_imbalance_is_what_the_auction_will_do(seed in any::<u64>()) {
        let mut stream = Stream::new(seeded(seed), 48);
        let mut book = Book::new();
        book.apply(&Command::BeginAuction, 0, &mut |_| {});
        for _ in 0..100 {
            let command = stream.command().unwrap();
            use Command::{Cancel, New, Replace};
            if matches!(command, New(_) | Replace { .. } | Cancel { .. }) {
                book.apply(&command, stream.now_ns, &mut |_| {});
            }
        }
        // What expires until then leaves before.
        book.apply(&Command::Tick, stream.now_ns, &mut |_| {});
        let sent = book.indicative();
        let mut found = None;
        book.apply(&Command::Uncross, stream.now_ns, &mut |event| {
            if let Event::Uncrossed { price, volume } = event {
                found = Some((price, volume));
            }
        });
        prop_assert_eq!(found, Some((sent.price, sent.volume)));
        if sent.surplus == 0 {
            prop_assert_eq!(sent.surplus_side, None);
        }
    }
}

fn bodies(messages: &[Message]) -> Vec<Body> {
    messages.iter().map(|message| message.body).collect()
}

/// The reference that is the nth of its instrument.
fn nth(number: u64) -> u64 {
    u64::from(LOCATE) << 48 | number
}

/// As published: the far price is that of the orders for the auction alone, the near price that of
/// all orders, and the shares are those at the reference price.
#[test]
fn an_imbalance_has_the_far_the_near_and_the_reference_price() {
    let chain = Chain::new();
    let mut book = Book::new();
    let add = |book: &mut Book, user: u32, side, price: Option<i64>, quantity| {
        let order =
            NewOrder { id: user.into(), ..limit(1, user, side, price.unwrap_or(0), quantity) };
        let order_type = if price.is_some() { OrderType::Limit } else { OrderType::Market };
        let order = NewOrder { order_type, time_in_force: TimeInForce::Day, ..order };
        book.apply(&Command::New(order), 0, &mut |event| {
            assert!(!matches!(event, Event::Rejected { .. }), "{event:?}");
        });
    };
    let prices = |book: &mut Book| match chain.feed.imbalance(book.indicative()).body {
        Body::Imbalance { far, near, reference, paired, .. } => (far, near, reference, paired),
        other => panic!("{other:?}"),
    };
    // The last trade is at 100.
    add(&mut book, 1, Side::Sell, Some(100), 5);
    add(&mut book, 2, Side::Buy, Some(100), 5);
    book.apply(&Command::BeginAuction, 0, &mut |_| {});
    add(&mut book, 3, Side::Buy, Some(110), 9);
    add(&mut book, 4, Side::Sell, Some(105), 9);
    assert_eq!(prices(&mut book), (0, 10_500, 10_500, 9), "no order is for the auction alone");
    add(&mut book, 5, Side::Buy, None, 4);
    assert_eq!(prices(&mut book).0, 0, "nor would it trade with another one of its kind");
    add(&mut book, 6, Side::Sell, None, 2);
    assert_eq!(prices(&mut book), (10_000, 10_500, 10_500, 11));
}

#[test]
fn messages_say_nothing_of_who_trades() {
    let mut chain = Chain::new();
    let (user, id) = (0x5566_7788, 0x1122_3344_5566_7788);
    let mut all = vec![];
    for side in [Side::Buy, Side::Sell] {
        let order = NewOrder { id, ..limit(id, user + side as u32, side, 100, 5) };
        all.extend(chain.apply(Command::New(order)).1);
    }
    assert_eq!(all.len(), 2);
    for message in all {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        message.write(&mut bytes);
        let digits = nm_codec::hex::write(&bytes);
        assert!(!digits.contains("556677") && !digits.contains("112233"), "{digits}");
    }
}

#[test]
fn an_iceberg_shows_one_part_at_a_time() {
    let mut chain = Chain::new();
    let iceberg = NewOrder { display: 2, ..limit(1, 1, Side::Sell, 100, 5) };
    let price = 10_000;
    let (stock, side) = (LISTING.stock, b'S');
    let add =
        |number, shares| Body::AddOrder { reference: nth(number), side, shares, stock, price };
    assert_eq!(bodies(&chain.apply(Command::New(iceberg)).1), [add(1, 2)]);
    let buy = NewOrder {
        time_in_force: TimeInForce::ImmediateOrCancel,
        ..limit(2, 2, Side::Buy, 100, 3)
    };
    let executed = |number, shares, at| Body::Executed {
        reference: nth(number),
        shares,
        match_number: nth(at),
    };
    assert_eq!(
        bodies(&chain.apply(Command::New(buy)).1),
        [executed(1, 2, 1), add(2, 2), executed(2, 1, 2)]
    );
    chain.check();
}

#[test]
fn a_hidden_order_is_seen_by_its_trades_alone() {
    let mut chain = Chain::new();
    let hidden = NewOrder { is_hidden: true, ..limit(1, 1, Side::Sell, 100, 5) };
    assert!(bodies(&chain.apply(Command::New(hidden)).1).is_empty());
    let replace = Command::Replace { id: 1, user: 1, price: 100, quantity: 4 };
    assert!(bodies(&chain.apply(replace).1).is_empty());
    let (stock, price) = (LISTING.stock, 10_000);
    let trade = |shares, at| {
        let match_number = nth(at);
        Body::Trade { reference: 0, side: b'B', shares, stock, price, match_number }
    };
    let buy = |id, quantity| Command::New(limit(id, 2, Side::Buy, 100, quantity));
    assert_eq!(bodies(&chain.apply(buy(2, 3)).1), [trade(3, 1)]);
    chain.check();
    // What is left of the order that took rests, and is shown.
    let (reference, side) = (nth(1), b'B');
    let rest = Body::AddOrder { reference, side, shares: 2, stock, price };
    assert_eq!(bodies(&chain.apply(buy(3, 3)).1), [trade(1, 2), rest]);
    chain.check();
}

#[test]
fn a_pegged_order_is_seen_by_its_trades_alone_also_when_it_moves() {
    let mut chain = Chain::new();
    chain.apply(Command::New(limit(1, 1, Side::Buy, 100, 5)));
    chain.apply(Command::New(limit(2, 1, Side::Sell, 110, 5)));
    let pegged = NewOrder { peg: Peg::Mid, ..limit(3, 2, Side::Buy, 108, 5) };
    assert!(bodies(&chain.apply(Command::New(pegged)).1).is_empty());
    let hidden = NewOrder { is_hidden: true, ..limit(4, 3, Side::Sell, 106, 3) };
    assert!(bodies(&chain.apply(Command::New(hidden)).1).is_empty());
    chain.check();
    // A better bid moves the middle to 107, where the pegged order takes the hidden one.
    let all = bodies(&chain.apply(Command::New(limit(5, 1, Side::Buy, 104, 1))).1);
    let [Body::Trade { shares: 3, price: 10_600, .. }, Body::AddOrder { shares: 1, .. }] = all[..]
    else {
        panic!("{all:?}")
    };
    chain.check();
    // What is left of it moves without a word, and is taken in the middle.
    let all = bodies(&chain.apply(Command::Cancel { id: 5, user: 1 }).1);
    assert!(matches!(all[..], [Body::Delete { .. }]), "{all:?}");
    let all = bodies(&chain.apply(Command::New(limit(6, 3, Side::Sell, 105, 2))).1);
    assert!(matches!(all[..], [Body::Trade { shares: 2, price: 10_500, .. }]), "{all:?}");
    chain.check();
}

#[test]
fn an_on_close_order_is_seen_in_the_closing_cross_alone() {
    let mut chain = Chain::new();
    let mut silent = |command| assert!(bodies(&chain.apply(command).1).is_empty());
    silent(Command::ExpectClosing);
    let time_in_force = TimeInForce::AtClose;
    let of_close = |order| Command::New(NewOrder { time_in_force, ..order });
    silent(of_close(limit(1, 1, Side::Buy, 101, 5)));
    silent(of_close(NewOrder { order_type: OrderType::Market, ..limit(2, 2, Side::Sell, 0, 3) }));
    silent(Command::Replace { id: 1, user: 1, price: 101, quantity: 7 });
    chain.check();
    assert_eq!(bodies(&chain.apply(Command::BeginClosing).1).len(), 1, "the phase");
    assert!(bodies(&chain.apply(of_close(limit(3, 3, Side::Buy, 100, 1))).1).is_empty());
    chain.check();
    let all = bodies(&chain.apply(Command::Uncross).1);
    assert!(matches!(all[0], Body::Cross { shares: 3, cross: b'C', .. }), "{all:?}");
    assert_eq!(all.len(), 2, "the cross and the phase: {all:?}");
    chain.check();
    // The next auction is none of the close.
    chain.apply(Command::BeginAuction);
    let all = bodies(&chain.apply(Command::Uncross).1);
    assert!(matches!(all[0], Body::Cross { cross: b'O', .. }), "{all:?}");
}

#[test]
fn an_auction_is_one_cross_and_its_executions_are_not_printed() {
    let mut chain = Chain::new();
    chain.apply(Command::BeginAuction);
    chain.apply(Command::New(limit(1, 1, Side::Buy, 102, 5)));
    let market = NewOrder {
        order_type: OrderType::Market,
        self_trade: SelfTrade::Allow,
        ..limit(2, 2, Side::Sell, 0, 3)
    };
    assert_eq!(chain.apply(Command::New(market)).1, [], "a market order is not shown");
    let stock = LISTING.stock;
    let (_, out) = chain.apply(Command::Uncross);
    assert_eq!(
        bodies(&out),
        [
            Body::ExecutedAtPrice {
                reference: nth(1),
                shares: 3,
                match_number: nth(1),
                printable: b'N',
                price: 10_200,
            },
            Body::Cross { shares: 3, stock, price: 10_200, match_number: nth(2), cross: b'O' },
            Body::TradingAction { stock, state: b'T', reserved: b' ', reason: *b"    " },
        ]
    );
    chain.check();
    assert_eq!(chain.books.stocks().next().unwrap().1.volume, 3, "counted once");
}

/// The iceberg shows more after the auction than before, and keeps its place.
#[test]
fn orders_behind_an_iceberg_of_an_auction_stay_behind_it_in_their_order() {
    let mut chain = Chain::new();
    let iceberg = NewOrder { display: 10, ..limit(1, 1, Side::Buy, 100, 50) };
    chain.apply(Command::New(iceberg));
    chain.apply(Command::New(limit(2, 2, Side::Sell, 100, 7)));
    chain.apply(Command::BeginAuction);
    for id in 3..30 {
        chain.apply(Command::New(limit(id, 1, Side::Buy, 100, id)));
    }
    chain.apply(Command::New(limit(40, 2, Side::Sell, 100, 5)));
    chain.apply(Command::Uncross);
    chain.check();
    let shares: Vec<u32> = chain.books.displayed(LOCATE).map(|order| order.shares).collect();
    let expected: Vec<u32> = [10].into_iter().chain(3..30).collect();
    assert_eq!(shares, expected);
}

#[test]
fn a_message_that_contradicts_the_books_is_refused_and_changes_nothing() {
    let mut chain = Chain::new();
    chain.apply(Command::New(limit(1, 1, Side::Buy, 100, 5)));
    let before = chain.books.hash(LOCATE);
    for body in [
        Body::Delete { reference: nth(2) },
        Body::Cancel { reference: nth(1), shares: 6 },
        Body::Executed { reference: nth(9), shares: 1, match_number: 1 },
        Body::Replace { original: nth(9), reference: nth(2), shares: 1, price: 1 },
        Body::Replace { original: nth(1), reference: nth(1), shares: 1, price: 1 },
        Body::AddOrder { reference: nth(1), side: b'B', shares: 1, stock: LISTING.stock, price: 1 },
    ] {
        let message = Message { locate: LOCATE, tracking: 0, time_ns: 0, body };
        assert!(chain.books.apply(&message).is_err(), "{body:?}");
    }
    assert_eq!(chain.books.hash(LOCATE), before);
    let orders: Vec<Shown> = chain.books.displayed(LOCATE).collect();
    assert_eq!(orders, [Shown { side: Side::Buy, price: 10_000, shares: 5 }]);
}
