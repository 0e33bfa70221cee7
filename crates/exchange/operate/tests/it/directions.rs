//! What an operator directs while clients trade.

use std::collections::BTreeSet;
use std::sync::Arc;

use nm_book::order::{CancelReason, Event, RejectReason, Side};
use nm_exchange::cell::DESK;
use nm_exchange::control::Retired;
use nm_exchange::firms::{Firm, Firms};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{Client, LIMIT, Message, TestRing, order};
use nm_operate::{admin, directions};
use nm_sys::clock::Deadline;
use nm_wire::{Direction, Kind, Owner};

use crate::asking::{answer, events, refusal};

/// Two firms, A with sessions 1 and 2, B with 3 and 4.
fn ring(counts: &str, durability: Durability) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    let firm = |number, name: &str, session: &str| Firm {
        number,
        name: name.to_string(),
        sessions: vec![session.to_string()],
        ..Firm::default()
    };
    let firms = Firms::of(vec![firm(7, "A", "1-2"), firm(8, "B", "3-4")]).unwrap();
    ring.network.firms = Some(Arc::new(firms));
    ring.start();
    ring
}

/// The firm of sessions 1 and 2.
fn firm_a() -> Owner {
    Owner::of_firm(7)
}

fn is_accepted(client: &mut Client, session: u32, instrument: u32, seq: u64, price: i64) -> bool {
    let side = if session.is_multiple_of(2) { Side::Sell } else { Side::Buy };
    let got = answer(client, session, instrument, &order(session, seq, side, price));
    matches!(got[..], [Event::Accepted { .. }])
}

fn rejection(events: &[Event]) -> Option<RejectReason> {
    match events {
        [Event::Rejected { reason, .. }] => Some(*reason),
        _ => None,
    }
}

/// Waits until a client has received as many messages as it is to have.
fn until(client: &mut Client, what: &str, is_there: impl Fn(&[Message]) -> bool) {
    let deadline = Deadline::after(LIMIT);
    while !is_there(&client.received) {
        client.turn();
        assert!(!deadline.passed(), "{what} does not come: {:?}", client.received);
    }
}

/// The orders of a session that an operator has cancelled, as the client was notified.
fn cancelled(received: &[Message], session: u32) -> Vec<(u32, u64)> {
    let of_it = received.iter().filter(|it| it.kind == Kind::Private && it.session == session);
    let all = of_it.flat_map(|it| events(it).into_iter().map(|event| (it.instrument, event)));
    let ids = all.filter_map(|(instrument, event)| match event {
        Event::Cancelled { id, reason: CancelReason::Operator, .. } => Some((instrument, id)),
        _ => None,
    });
    ids.collect()
}

#[test]
fn a_halt_and_an_auction_of_all_cells_reach_all_clients_and_can_be_repeated() {
    let mut ring = ring("1-1-2-2", Durability::MemoryQuorum);
    let network = ring.network.clone();
    let mut client = Client::new(&ring, 0, &[1, 4]);
    client.connect();
    for instrument in 0..4 {
        assert!(is_accepted(&mut client, 1, instrument, 1, 100));
    }
    let halted = directions::direct_all(&network, Direction::Halt).unwrap();
    let counts = |all: &[directions::OfCell]| -> Vec<(u64, u64)> {
        all.iter().map(|(_, it)| (it.instruments, it.changed)).collect()
    };
    assert_eq!(counts(&halted), [(2, 2), (2, 2)]);
    let again = directions::direct_all(&network, Direction::Halt).unwrap();
    assert_eq!(counts(&again), [(2, 0), (2, 0)]);
    until(&mut client, "a broadcast", |received| {
        let public = received.iter().filter(|it| it.kind == Kind::Public);
        public.filter(|it| events(it) == [Event::Halted]).count() == 4
    });
    let refused = answer(&mut client, 4, 2, &order(4, 1, Side::Sell, 100));
    assert_eq!(rejection(&refused), Some(RejectReason::Halted));
    // An auction is not begun while it is halted.
    let unfit = directions::direct(&network, 2, Direction::Auction).unwrap().1;
    assert_eq!((unfit.changed, unfit.unfit), (0, 1));
    directions::direct_all(&network, Direction::Resume).unwrap();
    let (cell, auction) = directions::direct(&network, 2, Direction::Auction).unwrap();
    assert_eq!((cell, auction.changed), (0, 1));
    assert!(is_accepted(&mut client, 4, 2, 2, 90), "it does not trade");
    assert!(!is_accepted(&mut client, 4, 3, 2, 90), "it trades elsewhere");
    assert_eq!(directions::direct(&network, 2, Direction::Uncross).unwrap().1.changed, 1);
    until(&mut client, "the trade", |received| {
        let private = received.iter().filter(|it| it.kind == Kind::Private && it.instrument == 2);
        private.flat_map(events).any(|event| matches!(event, Event::Traded { .. }))
    });
    // What is broadcast of it does not say who trades.
    until(&mut client, "the end of the auction", |received| {
        let public = received.iter().filter(|it| it.kind == Kind::Public && it.instrument == 2);
        let last = public.flat_map(events).last();
        matches!(last, Some(Event::Uncrossed { price: Some(_), .. }))
    });
    // One that was never traded is halted before its first order.
    assert_eq!(directions::direct(&network, 9, Direction::Halt).unwrap().1.changed, 1);
    let refused = answer(&mut client, 4, 9, &order(4, 1, Side::Sell, 100));
    assert_eq!(rejection(&refused), Some(RejectReason::Halted));
    let told = |received: &[Message], kind| received.iter().filter(|it| it.kind == kind).count();
    assert_eq!(told(&client.received, Kind::DayEnded), 0);
    let ended = directions::direct_all(&network, Direction::EndOfDay).unwrap();
    // Both processors pass on what each of two cells says.
    until(&mut client, "the end of the day", |received| told(received, Kind::DayEnded) == 4);
    assert!(ended.iter().map(|(_, it)| it.orders).sum::<u64>() >= 3, "{ended:?}");
    ring.stop_all();
}

#[test]
fn a_stopped_firm_sends_no_orders_in_any_cell_whoever_leads_and_wherever_instruments_go() {
    let mut ring = ring("2-2-2-2", Durability::MemoryQuorum);
    let network = ring.network.clone();
    let mut client = Client::new(&ring, 0, &[1, 2, 3]);
    client.connect();
    for instrument in 0..6 {
        for (session, price) in [(1, 100), (2, 200), (3, 50)] {
            assert!(is_accepted(&mut client, session, instrument, 1, price));
        }
    }
    let stopped = directions::set_stopped(&network, firm_a(), true).unwrap();
    let orders: Vec<u64> = stopped.cells.iter().map(|(_, it)| it.orders).collect();
    assert_eq!((stopped.was_so, &orders[..]), (false, &[6, 6][..]), "of both sessions");
    for session in [1, 2] {
        let all: BTreeSet<(u32, u64)> =
            (0..6).map(|it| (it, u64::from(session) << 32 | 1)).collect();
        until(&mut client, "a cancel", |received| cancelled(received, session).len() >= 6);
        let got = cancelled(&client.received, session);
        assert_eq!((got.len(), got.into_iter().collect()), (6, all), "each order once");
    }
    assert!(cancelled(&client.received, 3).is_empty());
    let told = |received: &[Message]| -> Vec<u32> {
        received.iter().filter(|it| it.kind == Kind::Standing).map(|it| it.session).collect()
    };
    until(&mut client, "the news", |received| told(received).len() >= 2);
    assert_eq!(told(&client.received), [1, 2], "each session of the firm once");
    let again = directions::set_stopped(&network, firm_a(), true).unwrap();
    assert!(again.was_so && again.cells.iter().all(|(_, it)| it.orders == 0), "{again:?}");
    // Both leaders die, and a cell is added that gets an instrument.
    for mediator in [0, 1] {
        let is_ready = ring.restart(Role::Mediator.node(mediator));
        let deadline = Deadline::after(LIMIT);
        while is_ready.load(std::sync::atomic::Ordering::Acquire) == 0 {
            client.turn();
            assert!(!deadline.passed(), "mediator {mediator} is not ready");
        }
    }
    let moved = admin::move_instruments(&network, &[0], 1, LIMIT).unwrap();
    assert!(moved[0].refused.is_none(), "{moved:?}");
    for instrument in 0..6 {
        let refused = answer(&mut client, 1, instrument, &order(1, 2, Side::Buy, 100));
        assert_eq!(rejection(&refused), Some(RejectReason::OwnerStopped), "{instrument}");
        assert!(is_accepted(&mut client, 3, instrument, 2, 50), "others trade");
    }
    assert!(!directions::set_stopped(&network, firm_a(), false).unwrap().was_so);
    for instrument in 0..6 {
        assert!(is_accepted(&mut client, 2, instrument, 3, 200));
    }
    ring.stop_all();
}

#[test]
fn all_orders_of_a_session_or_a_firm_are_cancelled_and_its_sessions_are_notified() {
    let mut ring = ring("1-1-2-2", Durability::None);
    let network = ring.network.clone();
    let mut client = Client::new(&ring, 0, &[1, 2, 3]);
    client.connect();
    for instrument in 0..4 {
        for (session, price) in [(1, 100), (2, 200), (3, 50)] {
            assert!(is_accepted(&mut client, session, instrument, 1, price));
        }
    }
    let whose = Retired::Session { session: 1 };
    let of_one = directions::cancel(&network, whose, Some(3)).unwrap();
    assert_eq!(of_one.iter().map(|(cell, it)| (*cell, it.orders)).collect::<Vec<_>>(), [(1, 1)]);
    let of_it = directions::cancel(&network, whose, None).unwrap();
    assert_eq!(of_it.iter().map(|(_, it)| it.orders).sum::<u64>(), 3);
    until(&mut client, "a cancel", |received| cancelled(received, 1).len() == 4);
    let firm = Retired::Owner { owner: firm_a() };
    let of_firm = directions::cancel(&network, firm, None).unwrap();
    assert_eq!(of_firm.iter().map(|(_, it)| it.orders).sum::<u64>(), 4);
    until(&mut client, "a cancel", |received| cancelled(received, 2).len() == 4);
    assert!(cancelled(&client.received, 3).is_empty());
    assert!(is_accepted(&mut client, 1, 0, 2, 100), "it may send new ones");
    let unknown = directions::cancel(&network, Retired::Session { session: 4 }, None);
    let why = unknown.unwrap_err().message;
    assert!(why.contains("session 4 has sent no request there"), "{why}");
    ring.stop_all();
}

#[test]
fn nobody_has_the_session_of_the_exchange_itself() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let why = refusal(&ring, DESK);
    assert!(why.contains("is the exchange's own, which no client may have"), "{why}");
    ring.stop_all();
}
