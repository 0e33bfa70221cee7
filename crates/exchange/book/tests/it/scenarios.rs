//! Scenarios: commands and the events that they cause, as readable text.
//!
//! A file of `tests/scenarios` holds sections that begin with `##` and a title, each with a book
//! of its own. A line that begins with `>` is a command; the lines below it are what happens, one
//! event a line. `> book` shows the live orders in order of priority. Both books must emit what is
//! written, also if they are restored from a snapshot after every command.
//! `BLESS=1 cargo test -p nm-book scenarios` rewrites the files with the actual events: review
//! them.

use std::fmt::Write as _;
use std::path::Path;
use std::str::SplitWhitespace;

use nm_book::book::Book;
use nm_book::order::{
    Command, Event, Matching, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce,
    UserId,
};
use nm_book::reference;
use nm_book::snapshot::BookSnapshot;
use nm_book::testing::limit;

/// The text of a file with the events of one kind of book, and its number of sections. With
/// `reloads`, the book is restored from its snapshot after every command.
fn played<M: Matching>(text: &str, reloads: bool) -> (String, usize) {
    let (mut book, mut now_ns) = (M::new(), 0);
    let (mut out, mut sections, mut in_events) = (String::new(), 0, false);
    for line in text.lines() {
        if let Some(command_text) = line.strip_prefix("> ") {
            in_events = true;
            let _ = writeln!(out, "{line}");
            play(&mut book, &mut now_ns, command_text, &mut out);
            if reloads {
                let mut bytes = vec![];
                book.save(&mut bytes);
                book = M::load(&bytes).unwrap();
            }
        } else if line.is_empty() || line.starts_with('#') || !in_events {
            in_events = false;
            let _ = writeln!(out, "{line}");
            if line.starts_with("## ") {
                (book, now_ns) = (M::new(), 0);
                sections += 1;
            }
        }
    }
    (out, sections)
}

fn play<M: Matching>(book: &mut M, now_ns: &mut u64, command_text: &str, out: &mut String) {
    let mut words = command_text.split_whitespace();
    if command_text == "book" {
        let mut bytes = vec![];
        book.save(&mut bytes);
        for order in BookSnapshot::read(&bytes).unwrap().orders {
            let NewOrder { id, side, order_type, price, stop_price, is_hidden, .. } = order.order;
            let side = if side == Side::Buy { "buy" } else { "sell" };
            let _ = write!(out, "{id} {side} {}", order.left);
            if order_type.has_limit() {
                let _ = write!(out, " @{price}");
            }
            if order.is_pending_stop {
                let _ = write!(out, " stop {stop_price}");
            }
            if order.shown < order.left {
                let _ = write!(out, " shows {}", order.shown);
            }
            if order.order.is_on_close() {
                let _ = write!(out, " on close");
            }
            if is_hidden {
                let _ = write!(out, " hidden");
            }
            match order.order.peg {
                Peg::No => {}
                Peg::Primary { offset } => drop(write!(out, " primary {offset}")),
                Peg::Mid => drop(write!(out, " mid")),
            }
            let _ = writeln!(out);
        }
        return;
    }
    if let Some(rest) = command_text.strip_prefix("at ") {
        words = rest.split_whitespace();
        *now_ns = number(&mut words);
    }
    let command = command(&mut words).unwrap_or_else(|| panic!("no command: {command_text}"));
    assert_eq!(words.next(), None, "{command_text}");
    book.apply(&command, *now_ns, &mut |event| {
        let _ = writeln!(out, "{}", shown(&event));
    });
}

fn number<T: std::str::FromStr>(words: &mut SplitWhitespace<'_>) -> T {
    let word = words.next().expect("a number is missing");
    let digits = word.trim_start_matches(['u', '@']);
    digits.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

fn command(words: &mut SplitWhitespace<'_>) -> Option<Command> {
    Some(match words.next()? {
        "new" => Command::New(order(words)),
        "replace" => {
            let (id, user) = (number(words), number(words));
            let quantity = number(words);
            Command::Replace { id, user, price: number(words), quantity }
        }
        "cancel" => Command::Cancel { id: number(words), user: number(words) },
        "mass" => Command::MassCancel { user: number::<UserId>(words) },
        "bands" => Command::Bands { low: number(words), high: number(words) },
        "halt" => Command::Halt,
        "resume" => Command::Resume,
        "auction" => Command::BeginAuction,
        "expect" => Command::ExpectClosing,
        "closing" => Command::BeginClosing,
        "uncross" => Command::Uncross,
        "day" => Command::EndOfDay,
        "tick" => Command::Tick,
        _ => return None,
    })
}

fn order(words: &mut SplitWhitespace<'_>) -> NewOrder {
    let (id, user) = (number(words), number(words));
    let side = if words.next() == Some("buy") { Side::Buy } else { Side::Sell };
    let mut order = limit(id, user, side, 0, number(words));
    let (mut has_limit, mut has_stop) = (false, false);
    while let Some(word) = words.next() {
        match word {
            "stop" => (has_stop, order.stop_price) = (true, number(words)),
            "day" => order.time_in_force = TimeInForce::Day,
            "until" => order.time_in_force = TimeInForce::GoodTill(number(words)),
            "ioc" => order.time_in_force = TimeInForce::ImmediateOrCancel,
            "close" => order.time_in_force = TimeInForce::AtClose,
            "fok" => order.time_in_force = TimeInForce::FillOrKill,
            "hidden" => order.is_hidden = true,
            "mid" => order.peg = Peg::Mid,
            "primary" => order.peg = Peg::Primary { offset: number(words) },
            "show" => order.display = number(words),
            "min" => order.minimum = number(words),
            "post" => order.post_only = PostOnly::Reject,
            "slide" => order.post_only = PostOnly::Slide,
            "newest" => order.self_trade = SelfTrade::CancelNewest,
            "oldest" => order.self_trade = SelfTrade::CancelOldest,
            "both" => order.self_trade = SelfTrade::CancelBoth,
            "decrement" => order.self_trade = SelfTrade::Decrement,
            price => {
                let price = price.strip_prefix('@').unwrap_or_else(|| panic!("what is {price}"));
                (has_limit, order.price) = (true, price.parse().unwrap());
            }
        }
    }
    order.order_type = match (has_limit, has_stop) {
        (true, false) => OrderType::Limit,
        (false, false) => OrderType::Market,
        (false, true) => OrderType::Stop,
        (true, true) => OrderType::StopLimit,
    };
    order
}

fn shown(event: &Event) -> String {
    match *event {
        Event::Accepted { id, .. } => format!("accepted {id}"),
        Event::Rejected { id, reason, .. } => format!("rejected {id} {reason:?}"),
        Event::Traded { maker, taker, price, quantity, maker_left, taker_left, .. } => {
            format!("traded {maker} {taker} {quantity} @{price} left {maker_left} {taker_left}")
        }
        Event::Cancelled { id, left, reason, .. } => {
            format!("cancelled {id} left {left} {reason:?}")
        }
        Event::Replaced { id, price, quantity, kept_priority, .. } => {
            let place = if kept_priority { "kept its place" } else { "moved" };
            format!("replaced {id} {quantity} @{price} {place}")
        }
        Event::Reduced { id, left, .. } => format!("reduced {id} left {left}"),
        Event::Slid { id, price, .. } => format!("slid {id} @{price}"),
        Event::Triggered { id, .. } => format!("triggered {id}"),
        Event::Refreshed { id, shown, .. } => format!("refreshed {id} shows {shown}"),
        Event::BandsSet { low, high } => format!("bands {low} {high}"),
        Event::Halted => "halted".to_string(),
        Event::Resumed => "resumed".to_string(),
        Event::AuctionBegun => "auction".to_string(),
        Event::Uncrossed { price: Some(price), volume } => format!("uncrossed {volume} @{price}"),
        Event::Uncrossed { price: None, .. } => "uncrossed nothing".to_string(),
    }
}

#[test]
fn every_scenario_happens_as_written_in_both_books() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let (by_reference, sections) = played::<reference::ReferenceBook>(&text, false);
        for reloads in [false, true] {
            let (by_fast, _) = played::<Book>(&text, reloads);
            assert_eq!(by_reference, by_fast, "{}: the books differ ({reloads})", path.display());
        }
        let (from_snapshot, _) = played::<reference::ReferenceBook>(&text, true);
        assert_eq!(
            by_reference,
            from_snapshot,
            "{}: a book restored from a snapshot behaves differently",
            path.display()
        );
        count += sections;
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, by_reference).unwrap();
        } else {
            assert_eq!(
                text,
                by_reference,
                "{}: left: as written, right: as it happens",
                path.display()
            );
        }
    }
    assert!(count >= 190, "{count} scenarios");
}
