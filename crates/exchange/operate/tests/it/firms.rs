//! Firms: their sessions alone may connect, and what they have counts for the firm.

use std::sync::Arc;

use nm_book::order::{Event, RejectReason, Side};
use nm_exchange::control::Retired;
use nm_exchange::firms::{Firm, FirmLimits, Firms};
use nm_exchange::network::Durability;
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::{firms, retire};
use nm_sys::clock::Deadline;

use crate::asking::{answer, refusal};

/// Firm A has sessions 1 and 2.
fn firm_a() -> Firm {
    Firm { number: 7, name: "A".to_string(), sessions: vec!["1-2".to_string()], ..Firm::default() }
}

/// Firm B has sessions 3 and 4.
fn firm_b() -> Firm {
    Firm { number: 8, name: "B".to_string(), sessions: vec!["3-4".to_string()], ..Firm::default() }
}

fn ring_of(counts: &str, durability: Durability, all: Vec<Firm>) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    ring.network.firms = Some(Arc::new(Firms::of(all).unwrap()));
    ring.start();
    ring
}

fn ring() -> TestRing {
    ring_of("1-1-1-1", Durability::None, vec![firm_a(), firm_b()])
}

/// A client of sessions 1 and 3.
fn client(ring: &TestRing) -> Client {
    let mut client = Client::new(ring, 0, &[1, 3]);
    client.connect();
    client
}

/// Why an order of a session is rejected, if it is, and by which numbers.
fn rejected(
    client: &mut Client,
    session: u32,
    instrument: u32,
    seq: u64,
) -> Option<(RejectReason, u64, u64)> {
    let buys = order(session, seq, Side::Buy, 100);
    match answer(client, session, instrument, &buys)[..] {
        [Event::Accepted { .. }] => None,
        [Event::Rejected { reason, most, asked, .. }] => Some((reason, most, asked)),
        ref other => panic!("{other:?}"),
    }
}

/// A firm A that may have so many live orders in each cell.
fn with_orders(orders: u64) -> Firm {
    Firm { limits: FirmLimits { orders: Some(orders), ..FirmLimits::default() }, ..firm_a() }
}

#[test]
fn limits_of_the_file_hold_for_the_first_request() {
    for &durability in Durability::ALL {
        let mut ring = ring_of("1-1-1-1", durability, vec![with_orders(0), firm_b()]);
        let mut client = client(&ring);
        let first = rejected(&mut client, 1, 0, 1);
        assert_eq!(first, Some((RejectReason::FirmOrders, 0, 1)), "{durability:?}");
        assert_eq!(rejected(&mut client, 3, 0, 1), None);
        ring.stop_all();
    }
}

#[test]
fn firms_hold_in_all_cells_and_after_a_restart_of_all_nodes() {
    let mut ring = ring_of("1-1-2-2", Durability::DiskQuorum, vec![firm_a(), firm_b()]);
    let network = ring.network.clone();
    assert!(firms::set(&network, &with_orders(2)).unwrap());
    assert!(!firms::set(&network, &with_orders(2)).unwrap(), "it was so");
    let mut one = client(&ring);
    let full = Some((RejectReason::FirmOrders, 2, 3));
    for instrument in [0, 1] {
        assert_eq!(rejected(&mut one, 1, instrument, 1), None);
        assert_eq!(rejected(&mut one, 1, instrument + 2, 1), None);
        assert_eq!(rejected(&mut one, 1, instrument, 2), full, "each cell has its own");
    }
    drop(one);
    ring.stop_all();
    ring.start();
    let version = firms::firms(&network).unwrap().version();
    let uses = firms::uses(&network, version).unwrap();
    let orders: Vec<_> = uses.iter().map(|(cell, all)| (*cell, all[0].orders)).collect();
    assert_eq!(orders, [(0, 2), (1, 2)]);
    let mut ring_client = client(&ring);
    assert_eq!(rejected(&mut ring_client, 1, 4, 1), full);
    // A limit that is lowered cancels nothing.
    assert!(firms::set(&network, &with_orders(1)).unwrap());
    let lowered = Some((RejectReason::FirmOrders, 1, 3));
    assert_eq!(rejected(&mut ring_client, 1, 6, 1), lowered);
    assert!(firms::set(&network, &firm_a()).unwrap());
    assert_eq!(rejected(&mut ring_client, 1, 8, 1), None, "no limit any more");
    ring.stop_all();
}

#[test]
fn a_removed_firm_leaves_nothing_and_its_sessions_are_refused() {
    let mut ring = ring_of("1-1-2-2", Durability::MemoryQuorum, vec![firm_a(), firm_b()]);
    let network = ring.network.clone();
    let mut both = client(&ring);
    for instrument in [0, 1] {
        assert_eq!(rejected(&mut both, 1, instrument, 1), None);
        assert_eq!(rejected(&mut both, 3, instrument, 1), None);
    }
    let kept = firms::remove(&network, "A", false).unwrap_err().message;
    assert!(kept.contains("A has 2 live orders: cancel them first, or by --cancel"), "{kept}");
    assert_eq!(rejected(&mut both, 1, 2, 1), None, "it is there");
    assert_eq!(firms::remove(&network, "A", true).unwrap().orders, 3);
    let owner = firm_a().owner();
    let had = retire::retire(&network, Retired::Owner { owner }).unwrap();
    assert!(had.iter().all(|(_, had)| *had == Default::default()), "{had:?}");
    let why = refusal(&ring, 1);
    assert!(why.contains("session 1 belongs to no firm of this network"), "{why}");
    let gone = firms::remove(&network, "A", true).unwrap_err().message;
    assert!(gone.contains("there is no firm A: the network has B"), "{gone}");
    let last = firms::remove(&network, "B", true).unwrap_err().message;
    assert!(last.contains("B is the only firm"), "{last}");
    // It may come again, with other sessions; the others are free for another one.
    assert!(firms::set(&network, &Firm { sessions: vec!["2".to_string()], ..firm_a() }).unwrap());
    ring.stop_all();
}

#[test]
fn only_sessions_of_firms_connect_and_a_firm_has_what_its_sessions_have() {
    let mut ring = ring();
    let why = refusal(&ring, 5);
    assert!(why.contains("session 5 belongs to no firm of this network"), "{why}");
    let mut client = Client::new(&ring, 0, &[1, 2, 3]);
    client.connect();
    for session in [1, 2, 3] {
        client.request(session, 0, &order(session, 1, Side::Buy, 100));
    }
    let deadline = Deadline::after(LIMIT);
    while client.waiting() > 0 {
        client.turn();
        assert!(!deadline.passed(), "no replies");
    }
    // One link has sessions of two firms: each session counts for its own.
    let firms = ring.network.firms.clone().unwrap();
    for (session, orders) in [(1, 2), (3, 1)] {
        let owner = firms.of_session(session).unwrap().owner();
        let had = retire::retire(&ring.network, Retired::Owner { owner }).unwrap();
        let had: Vec<_> = had.iter().map(|(_, had)| (had.sessions, had.orders)).collect();
        assert_eq!(had, [(orders, orders)]);
    }
    ring.stop_all();
}
