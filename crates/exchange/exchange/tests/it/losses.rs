//! Replies that are lost between a processor and a gateway. One end of their link knows later than
//! the other one that it is made. Also what a restarted cell forgets.

use std::time::Duration;

use nm_book::order::Side;
use nm_exchange::control::{InstrumentMap, Placement, RoutingTable};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::admin;
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Public, RepliesLost, Request, Series, Who};

use crate::peer::{self, Peer};

/// The report of a loss of a cell to the first gateway.
fn report_of_loss(cell: u16) -> RepliesLost {
    RepliesLost { cell, gateway: 0 }
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
            for cell in [0, 2] {
                let (kind, message) = gateway.next();
                assert_eq!(kind, Kind::RepliesLost);
                assert_eq!(nm_wire::decode(&message), Ok(report_of_loss(cell)));
            }
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
    client.request(1, 0, &order(1, 1, Side::Buy, 100));
    client.turn();
    assert_eq!(router.next().0, Kind::Request);

    let hello = Who::Node { node: Role::Processor.node(0), start: 7 };
    let mut processor = Peer::connected(&network.classes[Role::Gateway].nodes[0].address, &hello);
    // What the gateway did because of frames before a broadcast is done when the next one arrives.
    let mut wait_for_gateway = |processor: &mut Peer| {
        for _ in 0..2 {
            let before = client.received.len();
            let events = Series::of(&[]);
            let (instrument, output_seq, previous_event, gateway, cell) = (0, 0, 0, 0, 0);
            processor.send(&Public {
                instrument,
                output_seq,
                previous_event,
                gateway,
                cell,
                events,
            });
            let deadline = Deadline::after(LIMIT);
            let is_public = |message: &nm_exchange::testing::Message| message.kind == Kind::Public;
            while !client.received[before..].iter().any(is_public) {
                assert!(!deadline.passed(), "the broadcast did not come");
                client.turn();
            }
        }
        let is_notice = |it: &&nm_exchange::testing::Message| {
            (it.kind, it.cell, it.gateway) == (Kind::EventsLost, 0, 0)
        };
        client.received.iter().filter(is_notice).count()
    };
    let mut copies = || {
        let all = std::iter::from_fn(|| router.next_within(Duration::ZERO));
        all.inspect(|(kind, _)| assert_eq!(*kind, Kind::Request)).count()
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
    let hello = Who::Node { node: Role::Router.node(0), start: 5 };
    let address = &network.classes[Role::Mediator].nodes[0].address;
    let deadline = Deadline::after(LIMIT);
    while nm_exchange::link::Stream::connect(address, LIMIT).is_err() {
        assert!(!deadline.passed(), "the mediator does not listen");
    }
    let mut router = Peer::connected(address, &hello);
    // It announces itself once it has a processor.
    while router.next().0 != Kind::Leader {}
    let mut map = InstrumentMap::of(&network);
    map.assign(0, Placement { cell: 1, epoch: 1 });
    let routes = RoutingTable::new(map.clone());
    router.send(&routes.message());
    let mut request = |instrument| {
        let request = nm_exchange::testing::request(1, instrument, order(1, 1, Side::Buy, 100));
        router.send::<Request>(&request);
    };
    // The gateway of the first request does not know the map yet.
    request(0);
    request(2);
    loop {
        let (kind, body) = router.next();
        if kind == Kind::RoutingTable {
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
