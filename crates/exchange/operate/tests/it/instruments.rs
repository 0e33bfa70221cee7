//! An operator changes what may be traded while clients trade it.

use std::sync::Arc;

use nm_book::order::{Command, Event, RejectReason, Side};
use nm_exchange::master::{Listing, Master};
use nm_exchange::network::Durability;
use nm_exchange::testing::{Client, LIMIT, Message, TestRing, order};
use nm_operate::instruments;
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Series};

fn listing(instrument: u32, symbol: &str) -> Listing {
    Listing {
        instrument,
        symbol: symbol.to_string(),
        tick: "0.01".to_string(),
        lot: "1".to_string(),
        currency: String::new(),
        low: 50,
        high: 200,
        most: 1_000,
    }
}

fn ring_with(durability: Durability) -> TestRing {
    let mut ring = TestRing::new("1-1-1-1", durability);
    let master = Master::of(vec![listing(0, "ACME")]).unwrap();
    ring.network.master = Some(Arc::new(master));
    ring.start();
    ring
}

/// The answer to one request.
fn answer(client: &mut Client, instrument: u32, command: &Command) -> Message {
    let deadline = Deadline::after(LIMIT);
    let session = *client.sessions.keys().next().unwrap();
    client.received.clear();
    client.request(session, instrument, command);
    loop {
        client.turn();
        let is_answer = |it: &&Message| matches!(it.kind, Kind::Reply | Kind::Refused);
        if let Some(answer) = client.received.iter().find(is_answer) {
            return answer.clone();
        }
        assert!(!deadline.passed(), "no answer");
    }
}

/// Asks, each time by another session, until the answer is as it should be.
fn until(ring: &TestRing, instrument: u32, price: i64, is_it: impl Fn(&Message) -> bool) {
    let deadline = Deadline::after(LIMIT);
    for session in 100.. {
        let mut client = Client::new(ring, 0, &[session]);
        client.connect();
        let answer = answer(&mut client, instrument, &order(session, 1, Side::Buy, price));
        if is_it(&answer) {
            return;
        }
        assert!(!deadline.passed(), "the last answer: {answer:?}");
    }
}

/// The first event of an answer, if it has one.
fn event(answer: &Message) -> Option<Event> {
    let mut events: Series<'_, Event> = Series::of(&answer.events);
    events.next().map(|event| event.unwrap())
}

fn is_rejected(answer: &Message, reason: RejectReason) -> bool {
    matches!(event(answer), Some(Event::Rejected { reason: found, .. }) if found == reason)
}

fn is_accepted(answer: &Message) -> bool {
    matches!(event(answer), Some(Event::Accepted { .. }))
}

#[test]
fn clients_trade_what_is_listed_by_its_rules_as_an_operator_changes_them() {
    let mut ring = ring_with(Durability::None);
    let network = ring.network.clone();
    let mut client = Client::new(&ring, 0, &[1]);
    client.connect();
    assert!(is_accepted(&answer(&mut client, 0, &order(1, 1, Side::Buy, 100))));
    let outside = answer(&mut client, 0, &order(1, 2, Side::Buy, 300));
    assert!(is_rejected(&outside, RejectReason::OutsideCollar), "{outside:?}");
    until(&ring, 1, 100, |answer| answer.kind == Kind::Refused);
    // Another instrument, and other rules.
    let wider = Listing { high: 400, ..listing(0, "ACME") };
    let all = [wider.clone(), listing(1, "BETA")];
    let changed = instruments::list(&network, all.iter()).unwrap();
    assert_eq!(changed, [&all[0], &all[1]]);
    assert_eq!(instruments::list(&network, all.iter()).unwrap(), <[&Listing; 0]>::default());
    until(&ring, 1, 100, is_accepted);
    until(&ring, 0, 300, is_accepted);
    // What is listed no more can only be cancelled.
    assert_eq!(instruments::delist(&network, "ACME").unwrap(), wider);
    let again = instruments::delist(&network, "ACME").unwrap_err().message;
    assert!(again.contains("ACME is not listed"), "{again}");
    until(&ring, 0, 100, |answer| answer.kind == Kind::Refused);
    let gone = answer(&mut client, 0, &order(1, 3, Side::Buy, 100));
    assert!(is_rejected(&gone, RejectReason::NotListed), "{gone:?}");
    let cancelled = answer(&mut client, 0, &Command::Cancel { id: 1 << 32 | 1, user: 1 });
    assert!(matches!(event(&cancelled), Some(Event::Cancelled { .. })), "{cancelled:?}");
    ring.stop_all();
}

#[test]
fn what_an_operator_has_listed_is_listed_after_a_restart_of_all_nodes() {
    let mut ring = ring_with(Durability::DiskQuorum);
    let network = ring.network.clone();
    instruments::list(&network, std::iter::once(&listing(1, "BETA"))).unwrap();
    instruments::delist(&network, "ACME").unwrap();
    ring.stop_all();
    ring.start();
    let master = instruments::master(&network).unwrap();
    let symbols: Vec<&str> = master.listings().map(|one| one.symbol.as_str()).collect();
    assert_eq!(symbols, ["BETA"]);
    until(&ring, 1, 100, is_accepted);
    ring.stop_all();
}

#[test]
fn a_network_without_a_master_gets_none_and_trades_any_instrument() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let beta = listing(1, "BETA");
    let listed = instruments::list(&ring.network, std::iter::once(&beta));
    let why = listed.unwrap_err().message;
    assert!(why.contains("no instrument master, so any instrument may be traded"), "{why}");
    until(&ring, 1_000_007, 1 << 40, is_accepted);
    ring.stop_all();
}
