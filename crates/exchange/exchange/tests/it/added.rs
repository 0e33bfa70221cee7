//! Nodes are added to complete rings in one process, and removed again, while instruments are
//! traded. No node is ever given a network file that has them.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nm_exchange::control::{
    AdminRequest, AdminResponse, InstrumentMap, Observer, RoutingTable, addresses_of,
};
use nm_exchange::network::{Durability, Network, Node, NodeId, Role};
use nm_exchange::node;
use nm_exchange::testing::{
    Client, INSTRUMENTS, LIMIT, TestRing, assert_executed_once, trade, unread_events,
};
use nm_model::agent::FailureKind;
use nm_operate::admin::{self, NetworkStatus};
use nm_sys::clock::Deadline;
use nm_wire::{CatchUp, Kind, Public, Series, Who};

use super::peer::Peer;

/// Addresses in the folder of a ring.
fn listening(ring: &TestRing, name: &str) -> Node {
    let address = format!("unix:{}", ring.folder.path().join(name).display()).parse().unwrap();
    let replication = ring.folder.path().join(format!("{name}-replication"));
    Node { address, replication: Some(nm_replica::Address::Unix(replication)) }
}

/// Waits until all nodes are up and all cells have a leader, so many of each class.
fn wait_until_healthy(network: &Network, mediators: usize) -> NetworkStatus {
    let deadline = Deadline::after(LIMIT);
    loop {
        let status = admin::status(network, LIMIT);
        let is_it = |status: &NetworkStatus| {
            status.is_healthy() && status.network.cells().count() == mediators
        };
        match status {
            Ok(status) if is_it(&status) => return status,
            other => assert!(!deadline.passed(), "{other:?}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Starts a node with the file that the ring began with.
fn start(ring: &mut TestRing, node: NodeId) {
    let network = ring.network.clone();
    ring.start_one(node, &network, &Arc::default());
}

/// Adds a mediator to a ring with two of them, and moves two instruments to it.
fn add_and_move(ring: &mut TestRing) {
    let node = listening(ring, "more");
    assert_eq!(admin::add_node(&ring.network, Role::Mediator, &node, LIMIT).unwrap(), 2);
    assert_eq!(
        admin::add_node(&ring.network, Role::Mediator, &node, LIMIT).unwrap(),
        2,
        "it is the same one"
    );
    start(ring, Role::Mediator.node(2));
    let network = wait_until_healthy(&ring.network, 3).network;
    let outcomes = admin::move_all(&network, &[(0, 2), (1, 2)], LIMIT).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.refused.is_none()), "{outcomes:?}");
}

/// Moves the instruments back, and removes the mediator, which ends.
fn move_and_remove(ring: &mut TestRing) {
    let network = admin::status(&ring.network, LIMIT).unwrap().network;
    let full = admin::remove_node(&network, Role::Mediator.node(2), LIMIT).unwrap_err();
    assert_eq!(full.kind, FailureKind::BadRequest);
    assert!(full.message.contains("cell 2 has 2 instruments"), "{}", full.message);
    admin::move_all(&network, &[(0, 1), (1, 0)], LIMIT).unwrap();
    admin::remove_node(&network, Role::Mediator.node(2), LIMIT).unwrap();
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_one(Role::Mediator.node(2));
    let status = wait_until_healthy(&ring.network, 2);
    assert!(status.network.is_removed(Role::Mediator.node(2)) && status.cell(2).is_none());
    // Nothing is moved there any more, and it does not start again.
    let gone = admin::move_instruments(&status.network, &[0], 2, LIMIT).unwrap_err();
    assert!(gone.message.contains("no cell 2"), "{}", gone.message);
    let (_input, stop) = UnixStream::pair().unwrap();
    let node = Role::Mediator.node(2);
    let started = node::run(&ring.network, node, stop.as_fd(), &unread_events(node));
    let refused = started.unwrap_err().message;
    assert!(refused.contains("mediator 2 was removed"), "{refused}");
}

/// Requests of each session on each instrument, half of them before the middle and half after it.
const COUNT: u64 = 60;

/// A mediator is added after a third of the requests, and removed after two thirds; `middle` is
/// called in between, with the ring at rest.
fn a_mediator_comes_and_goes(durability: Durability, middle: impl FnOnce(&mut TestRing)) {
    let mut ring = TestRing::new("2-2-2-2", durability);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    let third = COUNT as usize * 4 * INSTRUMENTS as usize / 3;
    let mut is_added = false;
    trade(&mut clients, COUNT, |replies| {
        if !is_added && replies > third {
            is_added = true;
            add_and_move(&mut ring);
        }
    });
    assert!(is_added);
    middle(&mut ring);
    let mut is_removed = false;
    // All replies so far count.
    trade(&mut clients, COUNT, |replies| {
        if !is_removed && replies > 4 * third {
            is_removed = true;
            move_and_remove(&mut ring);
        }
    });
    assert!(is_removed);
    assert_executed_once(&clients, 2 * COUNT);
    if durability != Durability::None {
        ring.wait_for_warning("cell 2 was removed, and so is this node's replica of it");
    }
    ring.stop();
}

#[test]
fn a_mediator_comes_and_goes_without_durability() {
    a_mediator_comes_and_goes(Durability::None, |_| {});
}

#[test]
fn a_mediator_comes_restarts_and_goes_with_a_memory_quorum() {
    a_mediator_comes_and_goes(Durability::MemoryQuorum, |ring| {
        ring.stop_one(Role::Mediator.node(2));
        start(ring, Role::Mediator.node(2));
        wait_until_healthy(&ring.network, 3);
        for node in [Role::Router.node(0), Role::Gateway.node(1), Role::Router.node(1)] {
            ring.restart(node);
            wait_until_healthy(&ring.network, 3);
        }
    });
}

/// All nodes end, and start again with the file that lacks it: it is in control's log.
#[test]
fn a_mediator_that_was_added_survives_the_restart_of_all_nodes() {
    a_mediator_comes_and_goes(Durability::DiskQuorum, |ring| {
        ring.stop_all();
        let all: Vec<_> = ring.network.all().map(|(id, _)| id).collect();
        assert!(!all.contains(&Role::Mediator.node(2)));
        all.into_iter().for_each(|node| start(ring, node));
        // Others lead its cell, without it.
        let deadline = Deadline::after(LIMIT);
        while !admin::status(&ring.network, LIMIT)
            .is_ok_and(|status| status.cell(2).is_some_and(|cell| cell.leader.is_some()))
        {
            assert!(!deadline.passed(), "nobody leads cell 2");
        }
        start(ring, Role::Mediator.node(2));
        let status = wait_until_healthy(&ring.network, 3);
        let in_cell_2 = status.exceptions.iter().filter(|it| it.cell == 2).count();
        assert_eq!(in_cell_2, 2);
    });
}

/// Routers look for it where it does not listen, so it has the news from nobody. Processors, to
/// which it makes its links itself, refuse it: then it asks control.
#[test]
fn a_mediator_that_is_removed_while_it_is_cut_off_from_routers_ends() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let address = listening(&ring, "more");
    assert_eq!(admin::add_node(&ring.network, Role::Mediator, &address, LIMIT).unwrap(), 1);
    let mut elsewhere = ring.network.clone();
    elsewhere.classes[Role::Mediator].nodes.push(listening(&ring, "elsewhere"));
    elsewhere.classes[Role::Mediator].added = 1;
    ring.start_one(Role::Mediator.node(1), &elsewhere, &Arc::default());
    admin::remove_node(&ring.network, Role::Mediator.node(1), LIMIT).unwrap();
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop();
}

/// A router or processor is added after a third of a round of requests, and removed after a third
/// of the last one: it is the second one of its class. In between, with the ring at rest, `middle`
/// is called; it says how many rounds it traded.
fn a_node_comes_and_goes(
    role: Role,
    durability: Durability,
    middle: impl FnOnce(&mut TestRing, &mut [Client]) -> u64,
) {
    let counts = if role == Role::Router { "2-1-2-2" } else { "2-2-2-1" };
    let mut ring = TestRing::new(counts, durability);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    let third = COUNT as usize * 4 * INSTRUMENTS as usize / 3;
    let node = Node { replication: None, ..listening(&ring, "more") };
    let (mut is_added, mut is_removed) = (false, false);
    trade(&mut clients, COUNT, |replies| {
        if !is_added && replies > third {
            is_added = true;
            for _ in 0..2 {
                assert_eq!(admin::add_node(&ring.network, role, &node, LIMIT).unwrap(), 1);
            }
            start(&mut ring, role.node(1));
            let status = wait_until_healthy(&ring.network, 2);
            assert_eq!(status.network.nodes(role).last(), Some(&node));
        }
    });
    assert!(is_added);
    let rounds = 1 + middle(&mut ring, &mut clients);
    trade(&mut clients, COUNT, |replies| {
        if !is_removed && replies > (3 * rounds as usize + 1) * third {
            is_removed = true;
            admin::remove_node(&ring.network, role.node(1), LIMIT).unwrap();
            ring.wait_for_warning("it was removed from the network, and ends");
            let carried = ring.stop_one(role.node(1)).requests;
            assert!(carried > 0, "the way of a second gateway, or of a cell, went over it");
            let status = wait_until_healthy(&ring.network, 2);
            assert!(status.network.is_removed(role.node(1)));
        }
    });
    assert!(is_removed);
    assert_executed_once(&clients, (rounds + 1) * COUNT);
    let (_input, stop) = UnixStream::pair().unwrap();
    let node = role.node(1);
    let started = node::run(&ring.network, node, stop.as_fd(), &unread_events(node));
    let refused = started.unwrap_err().message;
    assert!(refused.contains(&format!("{role} 1 was removed")), "{refused}");
    ring.stop();
}

#[test]
fn a_router_comes_and_goes_without_durability() {
    a_node_comes_and_goes(Role::Router, Durability::None, |_, _| 0);
}

/// It carries the requests of all gateways, or the replies of all cells, while the other one is
/// down, and the other one those of all while it is.
fn a_node_comes_carries_all_and_goes(role: Role) {
    a_node_comes_and_goes(role, Durability::MemoryQuorum, |ring, clients| {
        for down in [0, 1] {
            ring.stop_one(role.node(down));
            trade(clients, COUNT, |_| {});
            start(ring, role.node(down));
            wait_until_healthy(&ring.network, 2);
        }
        ring.restart(Role::Mediator.node(0));
        wait_until_healthy(&ring.network, 2);
        // A processor without replicas has work only while another one is down.
        ring.stop_one(role.node(0));
        trade(clients, COUNT, |_| {});
        start(ring, role.node(0));
        wait_until_healthy(&ring.network, 2);
        3
    });
}

#[test]
fn a_router_comes_carries_all_and_goes_with_a_memory_quorum() {
    a_node_comes_carries_all_and_goes(Role::Router);
}

#[test]
fn a_processor_comes_carries_all_and_goes_with_a_memory_quorum() {
    a_node_comes_carries_all_and_goes(Role::Processor);
}

/// All nodes end, and start again with the file that lacks it: it is in control's log.
fn a_node_survives_the_restart_of_all(role: Role) {
    a_node_comes_and_goes(role, Durability::DiskQuorum, |ring, clients| {
        ring.stop_all();
        let all: Vec<_> = ring.network.all().map(|(id, _)| id).collect();
        assert!(!all.contains(&role.node(1)));
        all.into_iter().for_each(|node| start(ring, node));
        start(ring, role.node(1));
        let status = wait_until_healthy(&ring.network, 2);
        assert_eq!(status.network.nodes(role).len(), 2);
        ring.stop_one(role.node(0));
        trade(clients, COUNT, |_| {});
        start(ring, role.node(0));
        wait_until_healthy(&ring.network, 2);
        1
    });
}

#[test]
fn a_router_that_was_added_survives_the_restart_of_all_nodes() {
    a_node_survives_the_restart_of_all(Role::Router);
}

#[test]
fn a_processor_that_was_added_survives_the_restart_of_all_nodes() {
    a_node_survives_the_restart_of_all(Role::Processor);
}

/// The replies of the second cell take it as soon as it has links to all gateways.
#[test]
fn a_processor_comes_and_goes_without_durability() {
    a_node_comes_and_goes(Role::Processor, Durability::None, |ring, clients| {
        for down in [1, 0] {
            ring.stop_one(Role::Processor.node(down));
            trade(clients, COUNT, |_| {});
            start(ring, Role::Processor.node(down));
            wait_until_healthy(&ring.network, 2);
        }
        2
    });
}

/// Until each of its mediators has said that nothing more comes, it forwards what they send. The
/// test plays one of them, which learns of the removal late.
#[test]
fn a_processor_that_is_removed_forwards_what_mediators_send_before_they_know() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let played = listening(&ring, "played");
    assert_eq!(admin::add_node(&ring.network, Role::Mediator, &played, LIMIT).unwrap(), 1);
    let node = Node { replication: None, ..listening(&ring, "more") };
    assert_eq!(admin::add_node(&ring.network, Role::Processor, &node, LIMIT).unwrap(), 1);
    start(&mut ring, Role::Processor.node(1));
    let deadline = Deadline::after(LIMIT);
    let is_up = |status: &NetworkStatus| {
        let mut nodes = status.nodes.iter();
        nodes.any(|node| node.id == Role::Processor.node(1) && node.is_up)
    };
    while !admin::status(&ring.network, LIMIT).is_ok_and(|status| is_up(&status)) {
        assert!(!deadline.passed(), "it is not up");
    }
    let hello = Who::Node { node: Role::Mediator.node(1), start: 7 };
    let mut mediator = Peer::connected(&node.address, &hello);
    // It has links to all gateways.
    mediator.send(&CatchUp { cell: 1, index: 0 });
    while mediator.next().0 != Kind::CatchUp {}
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 1, |_| {});
    let status = admin::status(&ring.network, LIMIT).unwrap();
    admin::remove_node(&ring.network, Role::Processor.node(1), LIMIT).unwrap();
    let mut map = InstrumentMap::of(&status.network);
    while !admin::status(&ring.network, LIMIT)
        .is_ok_and(|status| status.network.is_removed(Role::Processor.node(1)))
    {
        assert!(!deadline.passed(), "it is not removed");
    }
    let events = Series::of(&[]);
    let (instrument, output_seq, previous_event, gateway, cell) = (3, 1, 0, 0, 1);
    mediator.send(&Public { instrument, output_seq, previous_event, gateway, cell, events });
    map.remove(Role::Processor.node(1));
    mediator.send(&RoutingTable::new(map).message());
    while !clients[0].received.iter().any(|message| message.kind == Kind::Public) {
        assert!(!deadline.passed(), "the broadcast is lost");
        clients[0].turn();
    }
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_all();
}

/// The clients of a gateway: how many sessions it has.
fn sessions(network: &Network, gateway: u16) -> u32 {
    let works = admin::work_of(network, &[Role::Gateway.node(gateway)], LIMIT).unwrap();
    works.first().map_or(0, |(_, work)| work.sessions)
}

/// A client goes to a gateway that was added after a third of a round of requests, and back after a
/// third of the last one. In between, with the ring at rest, `middle` is called.
fn a_gateway_comes_and_goes(durability: Durability, middle: impl FnOnce(&mut TestRing)) {
    let mut ring = TestRing::new("1-2-2-2", durability);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 0, &[3, 4])];
    let third = COUNT as usize * 4 * INSTRUMENTS as usize / 3;
    let node = Node { replication: None, ..listening(&ring, "more") };
    let (role, gateway, mut is_added) = (Role::Gateway, Role::Gateway.node(1), false);
    trade(&mut clients[..1], COUNT, |replies| {
        if !is_added && replies > third / 2 {
            is_added = true;
            assert_eq!(admin::add_node(&ring.network, role, &node, LIMIT).unwrap(), 1);
            start(&mut ring, role.node(1));
            let status = wait_until_healthy(&ring.network, 2);
            assert_eq!(status.network.classes[Role::Gateway].nodes.last(), Some(&node));
        }
    });
    assert!(is_added);
    clients[1].address = node.address.clone();
    trade(&mut clients[1..], COUNT, |_| {});
    let network = admin::status(&ring.network, LIMIT).unwrap().network;
    assert_eq!((sessions(&network, 0), sessions(&network, 1)), (2, 2));
    middle(&mut ring);
    trade(&mut clients, COUNT, |_| {});
    // It takes clients until it is drained, and is not removed before.
    let taken = admin::remove_node(&network, gateway, LIMIT).unwrap_err();
    assert!(taken.message.contains("gateway 1 takes clients"), "{}", taken.message);
    admin::set_drained(&network, gateway, true, LIMIT).unwrap();
    clients[1].address = ring.network.classes[Role::Gateway].nodes[0].address.clone();
    clients[1].link = None;
    admin::remove_node(&network, gateway, LIMIT).unwrap();
    trade(&mut clients, COUNT, |_| {});
    ring.wait_for_warning("it was removed from the network, and ends");
    assert!(ring.stop_one(role.node(1)).requests > 0);
    let status = wait_until_healthy(&ring.network, 2);
    assert!(status.network.is_removed(role.node(1)) && !status.is_drained(gateway));
    assert_executed_once(&clients, 3 * COUNT);
    ring.stop();
}

#[test]
fn a_gateway_comes_and_goes_without_durability() {
    a_gateway_comes_and_goes(Durability::None, |_| {});
}

/// It restarts, and so do others, with the file that lacks it.
#[test]
fn a_gateway_comes_restarts_and_goes_with_a_disk_quorum() {
    a_gateway_comes_and_goes(Durability::DiskQuorum, |ring| {
        for node in [Role::Gateway.node(1), Role::Processor.node(0), Role::Router.node(1)] {
            ring.stop_one(node);
            start(ring, node);
            wait_until_healthy(&ring.network, 2);
        }
    });
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_with_a_sentence() {
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    ring.start();
    let network = wait_until_healthy(&ring.network, 2).network;
    let add = |node: &Node| admin::add_node(&network, Role::Mediator, node, LIMIT).unwrap_err();
    let taken = add(&listening(&ring, "processor-0"));
    assert!(taken.message.contains("processor 0 listens at one of these"), "{}", taken.message);
    let alone = add(&Node { replication: None, ..listening(&ring, "more") });
    assert!(alone.message.contains("has no `replication` address"), "{}", alone.message);
    let far = Node { address: "192.0.2.1:7001".parse().unwrap(), ..listening(&ring, "more") };
    let far = add(&far);
    assert!(far.message.contains("has no secret"), "{}", far.message);
    for (node, why) in [
        (Role::Mediator.node(0), "the network began with it"),
        (Role::Mediator.node(2), "there is no mediator 2"),
        (Role::Router.node(0), "the network began with it"),
        (Role::Router.node(1), "there is no router 1"),
        (Role::Gateway.node(0), "the network began with it"),
        (Role::Gateway.node(1), "there is no gateway 1"),
        (Role::Processor.node(0), "the network began with it"),
        (Role::Processor.node(1), "there is no processor 1"),
    ] {
        let refused = admin::remove_node(&network, node, LIMIT).unwrap_err();
        assert!(refused.message.contains(why), "{}", refused.message);
        assert_eq!(refused.kind, FailureKind::BadRequest);
    }
    // Whoever asks the nodes themselves changes nothing by the same, and no observer can.
    let leader = admin::status(&network, LIMIT).unwrap().control.unwrap().leader.unwrap();
    let address = &network.classes[Role::Mediator].nodes[usize::from(leader)].address;
    let mut operator = Observer::connect(address, Who::Operator, None, LIMIT).unwrap();
    let alone = Node { replication: None, ..listening(&ring, "more") };
    let add = |class, node: Node| AdminRequest::Add { class, addresses: addresses_of(&node) };
    for request in [
        add(Role::Mediator, listening(&ring, "processor-0")),
        add(Role::Router, listening(&ring, "processor-0")),
        add(Role::Mediator, alone),
        add(Role::Gateway, listening(&ring, "processor-0")),
        add(Role::Processor, listening(&ring, "gateway-0")),
        AdminRequest::Remove { node: Role::Mediator.node(0) },
        AdminRequest::Remove { node: Role::Mediator.node(2) },
        AdminRequest::Remove { node: Role::Router.node(0) },
        AdminRequest::Remove { node: Role::Processor.node(0) },
    ] {
        let response = operator.request(&request, LIMIT).unwrap();
        assert!(matches!(response, AdminResponse::Status { .. }), "{response:?}");
    }
    let mut observer = Observer::connect(address, Who::Observer, None, LIMIT).unwrap();
    let more = listening(&ring, "more");
    assert!(observer.request(&add(Role::Mediator, more.clone()), LIMIT).is_err());
    // What is logged after them is in the state alone.
    admin::add_node(&network, Role::Mediator, &more, LIMIT).unwrap();
    let status = admin::status(&network, LIMIT).unwrap();
    assert_eq!(
        (status.map_version, status.network.classes[Role::Mediator].nodes[2..].to_vec()),
        (1, vec![more])
    );
    let (input, stop) = UnixStream::pair().unwrap();
    // A node that is to stop asks once, one that is not asks for 10 s whether it is added.
    drop(input);
    let node = Role::Router.node(7);
    let nobody = node::run(&ring.network, node, stop.as_fd(), &unread_events(node)).unwrap_err();
    assert!(nobody.message.contains("there is no router 7"), "{}", nobody.message);
    ring.stop();
}
