//! Replies that are lost between a processor and a gateway, because one end of their link knows
//! later than the other one that it is made; and what a restarted cell forgets.

use std::time::Duration;

use nm_book::codec;
use nm_book::order::Side;
use nm_exchange::control::{InstrumentMap, Placement, RoutingTable};
use nm_exchange::message::Hello;
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_exchange::wire::{FrameKind, Header};
use nm_operate::admin;
use nm_sys::clock::Deadline;

use crate::peer::{self, Peer};

fn report_of_loss(cell: u16) -> Header {
    Header { cell, ..Header::new(FrameKind::ResendRequest) }
}

#[test]
fn a_processor_reports_a_possible_loss_of_each_cell_through_it_whenever_it_knows_of_a_link() {
    for durability in [Durability::None, Durability::MemoryQuorum] {
        let mut ring = TestRing::new("1-1-3-3", durability);
        let network = ring.network.clone();
        let listener = peer::listener(&network.classes[Role::Gateway].nodes[0].address);
        ring.start_one(Role::Processor.node(0), &network, &Default::default());
        for start in [5, 6] {
            let mut gateway = Peer::accepted(&listener, start);
            assert_eq!(gateway.next().0, report_of_loss(0));
            assert_eq!(gateway.next().0, report_of_loss(2));
        }
        ring.stop();
    }
}

#[test]
fn a_gateway_sends_requests_again_when_their_processor_reports_a_loss() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    // Without control the gateway sends its router nothing but requests.
    ring.network.classes[Role::Mediator].nodes[0].replication = None;
    let network = ring.network.clone();
    let listener = peer::listener(&network.classes[Role::Router].nodes[0].address);
    ring.start_one(Role::Gateway.node(0), &network, &Default::default());
    let mut router = Peer::accepted(&listener, 5);
    let mut client = Client::new(&ring, 0, &[1]);
    while client.link.is_none() {
        client.connect();
    }
    client.request(1, 0, 0, &order(1, 1, Side::Buy, 100));
    client.turn();
    assert_eq!(router.next().0.kind, FrameKind::Request);

    let hello = Hello::Node { node: Role::Processor.node(0), start: 7 };
    let mut processor = Peer::connected(&network.classes[Role::Gateway].nodes[0].address, &hello);
    // What the gateway did because of frames before a broadcast is done when the next one arrives.
    let mut wait_for_gateway = |processor: &mut Peer| {
        for _ in 0..2 {
            let before = client.received.len();
            processor.send(&Header::new(FrameKind::Public));
            let deadline = Deadline::after(LIMIT);
            let is_public =
                |message: &nm_exchange::testing::Message| message.header.kind == FrameKind::Public;
            while !client.received[before..].iter().any(is_public) {
                assert!(!deadline.passed(), "the broadcast did not come");
                client.turn();
            }
        }
        client.received.iter().filter(|message| message.header == report_of_loss(0)).count()
    };
    let mut copies = || {
        let all = std::iter::from_fn(|| router.next_within(Duration::ZERO));
        all.inspect(|(header, _)| assert_eq!(header.kind, FrameKind::Request)).count()
    };
    assert_eq!(wait_for_gateway(&mut processor), 0);
    // Some may have been sent because there was no reply in time.
    copies();
    processor.send(&report_of_loss(0));
    assert_eq!(wait_for_gateway(&mut processor), 1, "its client is to ask for events");
    assert!(copies() > 0, "the request was not sent again");
    drop(processor);
    ring.stop();
}

#[test]
fn a_restarted_mediator_does_not_execute_what_has_moved_away() {
    let mut ring = TestRing::new("1-1-2-1", Durability::None);
    let network = ring.network.clone();
    for role in [Role::Gateway, Role::Processor] {
        ring.start_one(role.node(0), &network, &Default::default());
    }
    ring.start_one(Role::Mediator.node(0), &network, &Default::default());
    let hello = Hello::Node { node: Role::Router.node(0), start: 5 };
    let address = &network.classes[Role::Mediator].nodes[0].address;
    let deadline = Deadline::after(LIMIT);
    while nm_exchange::link::Stream::connect(address, LIMIT).is_err() {
        assert!(!deadline.passed(), "the mediator does not listen");
    }
    let mut router = Peer::connected(address, &hello);
    // It announces itself once it has a processor.
    while router.next().0.kind != FrameKind::Leader {}
    let mut map = InstrumentMap::of(&network);
    map.assign(0, Placement { cell: 1, epoch: 1 });
    let routes = RoutingTable::new(map.clone());
    router.send_with(&Header::new(FrameKind::RoutingTable), &routes.encode());
    let mut request = |instrument| {
        let mut body = vec![];
        codec::write_command(&order(1, 1, Side::Buy, 100), &mut body);
        let (session, client_seq) = (1, 1);
        let header = Header { instrument, session, client_seq, ..Header::new(FrameKind::Request) };
        router.send_with(&header, &body);
    };
    // The gateway of the first request does not know the map yet.
    request(0);
    request(2);
    loop {
        let (header, body) = router.next();
        if header.kind == FrameKind::RoutingTable {
            assert_eq!(RoutingTable::decode(&body).unwrap().map, map);
            break;
        }
    }
    let deadline = Deadline::after(LIMIT);
    loop {
        let work = admin::work(&network, LIMIT).unwrap().remove(0).1;
        let executed: Vec<u32> = work.instruments.iter().map(|one| one.instrument).collect();
        assert!(!executed.contains(&0));
        if executed == [2] {
            break;
        }
        assert!(!deadline.passed(), "{executed:?}");
    }
    drop(router);
    ring.stop();
}
