//! A gateway that is drained: it asks its clients to go, serves those that stay, and takes no
//! others until it is resumed.

use nm_book::order::Side;
use nm_exchange::client::{self, ClientError};
use nm_exchange::network::{Durability, NodeId, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::admin;
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Who};

const GATEWAY: NodeId = Role::Gateway.node(0);

/// Turns until a client has what is wanted.
fn wait_for(client: &mut Client, what: &str, is_done: impl Fn(&Client) -> bool) {
    let deadline = Deadline::after(LIMIT);
    while !is_done(client) {
        assert!(!deadline.passed(), "{what}: no");
        client.turn();
    }
}

/// A session trades, and has its reply.
fn trade(client: &mut Client, session: u32, seq: u64) {
    let replies = client.replies().count();
    client.request(session, 0, &order(session, seq, Side::Sell, 100));
    wait_for(client, "a reply", |client| client.replies().count() > replies);
}

/// Why a session cannot come to the gateway.
fn refusal(ring: &TestRing, session: u32) -> ClientError {
    let address = &ring.network.classes[Role::Gateway].nodes[0].address;
    let mut link = client::connect(address, &[Who::Client { session }], None, LIMIT).unwrap();
    client::receive(&mut link, Kind::Welcome, Deadline::after(LIMIT)).unwrap_err()
}

/// How many sessions the gateway has, and whether it leaves.
fn sessions(ring: &TestRing) -> (u32, bool) {
    let works = admin::work_of(&ring.network, &[GATEWAY], LIMIT).unwrap();
    (works[0].1.sessions, works[0].1.is_leaving)
}

#[test]
fn a_drained_gateway_serves_the_clients_that_stay_and_takes_no_others() {
    for durability in [Durability::None, Durability::MemoryQuorum] {
        let mut ring = TestRing::new("2-1-2-1", durability);
        ring.start();
        let mut client = Client::new(&ring, 0, &[1]);
        client.connect();
        trade(&mut client, 1, 1);
        assert_eq!(sessions(&ring), (1, false));

        admin::set_drained(&ring.network, GATEWAY, true, LIMIT).unwrap();
        let is_asked = |client: &Client| {
            let mut received = client.received.iter();
            let frame = received.find(|message| message.kind == Kind::GoAway);
            frame.map(|message| message.gateway)
        };
        wait_for(&mut client, "the gateway leaves", |client| is_asked(client).is_some());
        assert_eq!(is_asked(&client), Some(0));
        trade(&mut client, 1, 2);
        assert!(matches!(refusal(&ring, 2), ClientError::GoingAway));
        // Nor can a session that is there come by another link.
        assert!(matches!(refusal(&ring, 1), ClientError::GoingAway));
        ring.wait_for_warning(
            "gateway 0 is drained and takes no more sessions: connect to another gateway",
        );
        trade(&mut client, 1, 3);
        assert_eq!(sessions(&ring), (1, true));

        admin::set_drained(&ring.network, GATEWAY, false, LIMIT).unwrap();
        let deadline = Deadline::after(LIMIT);
        while sessions(&ring).1 {
            assert!(!deadline.passed(), "the gateway remains drained");
        }
        let mut other = Client::new(&ring, 0, &[2]);
        other.connect();
        trade(&mut other, 2, 1);
        assert_eq!(sessions(&ring), (2, false));
        ring.stop_all();
    }
}

/// Events may have been on their way to sessions that had gone from there.
#[test]
fn clients_are_asked_for_resend_requests_when_another_gateway_has_ended() {
    for durability in [Durability::None, Durability::MemoryQuorum] {
        let mut ring = TestRing::new("2-1-2-1", durability);
        ring.start();
        let mut client = Client::new(&ring, 0, &[1]);
        client.connect();
        trade(&mut client, 1, 1);
        client.received.clear();
        ring.stop_one(Role::Gateway.node(1));
        for cell in 0..2 {
            wait_for(&mut client, "the gateway asks", |client| {
                let mut received = client.received.iter();
                received.any(|it| it.kind == Kind::EventsLost && it.cell == cell)
            });
        }
        trade(&mut client, 1, 2);
        ring.stop_all();
    }
}
