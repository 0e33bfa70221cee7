//! Firms: their sessions alone may connect, and what they have counts for the firm.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nm_book::order::Side;
use nm_exchange::client::{self, ClientError};
use nm_exchange::control::Retired;
use nm_exchange::firms::{Firm, Firms};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::retire;
use nm_sys::clock::Deadline;
use nm_wire::{Close, Kind, Who};

fn ring() -> TestRing {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    let firm = |number, name: &str, session: &str| Firm {
        number,
        name: name.to_string(),
        sessions: vec![session.to_string()],
    };
    let firms = Firms::of(vec![firm(7, "A", "1-2"), firm(8, "B", "3-4")]).unwrap();
    ring.network.firms = Some(Arc::new(firms));
    ring.start();
    ring
}

/// The sentence with which a gateway ends the link of a session.
pub fn refusal(ring: &TestRing, session: u32) -> String {
    let address = &ring.network.nodes(Role::Gateway)[0].address;
    let connected = client::connect(address, &[Who::Client { session }], None, LIMIT);
    let mut link = match connected {
        Ok(link) => link,
        Err(ClientError::Refused(why)) => return why,
        Err(other) => panic!("{other}"),
    };
    let deadline = Deadline::after(LIMIT);
    loop {
        let _ = link.flush();
        let fd = link.as_fd().as_raw_fd();
        let is_over = nm_sys::poll::readable(fd, Duration::from_millis(5)).unwrap()
            && link.receive().is_err();
        if let Ok(Some(frame)) = link.input.next_frame()
            && frame.kind() == Kind::Close
        {
            return frame.read::<Close>().unwrap().printable();
        }
        assert!(!is_over && !deadline.passed(), "session {session} is not refused");
    }
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
