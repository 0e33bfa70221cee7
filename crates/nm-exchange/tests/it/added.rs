//! Mediators and routers are added to complete rings in one process, and removed again, while
//! instruments are traded. No node is ever given a network file that has them.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nm_exchange::control::admin::{self, NetworkStatus, Observer};
use nm_exchange::control::{AdminRequest, AdminResponse};
use nm_exchange::message::Hello;
use nm_exchange::network::{Durability, Network, Node, Role};
use nm_exchange::node;
use nm_exchange::testing::{Client, INSTRUMENTS, LIMIT, TestRing, assert_executed_once, trade};
use nm_model::agent::FailureKind;
use nm_sys::clock::Deadline;

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
fn start(ring: &mut TestRing, role: Role, index: usize) {
    let network = ring.network.clone();
    ring.start_one(role, index, &network, &Arc::default());
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
    start(ring, Role::Mediator, 2);
    let network = wait_until_healthy(&ring.network, 3).network;
    let outcomes = admin::move_all(&network, &[(0, 2), (1, 2)], LIMIT).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.refused.is_none()), "{outcomes:?}");
}

/// Moves the instruments back, and removes the mediator, which ends.
fn move_and_remove(ring: &mut TestRing) {
    let network = admin::status(&ring.network, LIMIT).unwrap().network;
    let full = admin::remove_node(&network, (Role::Mediator, 2), LIMIT).unwrap_err();
    assert_eq!(full.kind, FailureKind::BadRequest);
    assert!(full.message.contains("cell 2 has 2 instruments"), "{}", full.message);
    admin::move_all(&network, &[(0, 1), (1, 0)], LIMIT).unwrap();
    admin::remove_node(&network, (Role::Mediator, 2), LIMIT).unwrap();
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_one(Role::Mediator, 2);
    let status = wait_until_healthy(&ring.network, 2);
    assert!(status.network.is_removed(Role::Mediator, 2) && status.cell(2).is_none());
    // Nothing is moved there any more, and it does not start again.
    let gone = admin::move_instruments(&status.network, &[0], 2, LIMIT).unwrap_err();
    assert!(gone.message.contains("no cell 2"), "{}", gone.message);
    let (_input, stop) = UnixStream::pair().unwrap();
    let started = node::run(&ring.network, Role::Mediator, 2, stop.as_fd(), &mut |_| {});
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
        ring.stop_one(Role::Mediator, 2);
        start(ring, Role::Mediator, 2);
        wait_until_healthy(&ring.network, 3);
        for (role, index) in [(Role::Router, 0), (Role::Gateway, 1), (Role::Router, 1)] {
            ring.restart(role, index);
            wait_until_healthy(&ring.network, 3);
        }
    });
}

/// All nodes end, and start again with the file that lacks it: it is in control's log.
#[test]
fn a_mediator_that_was_added_survives_the_restart_of_all_nodes() {
    a_mediator_comes_and_goes(Durability::DiskQuorum, |ring| {
        ring.stop_all();
        let all: Vec<_> = ring.network.all().map(|(role, index, _)| (role, index)).collect();
        assert!(!all.contains(&(Role::Mediator, 2)));
        all.into_iter().for_each(|(role, index)| start(ring, role, index));
        // Others lead its cell, without it.
        let deadline = Deadline::after(LIMIT);
        while !admin::status(&ring.network, LIMIT)
            .is_ok_and(|status| status.cell(2).is_some_and(|cell| cell.leader.is_some()))
        {
            assert!(!deadline.passed(), "nobody leads cell 2");
        }
        start(ring, Role::Mediator, 2);
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
    elsewhere.mediator.push(listening(&ring, "elsewhere"));
    elsewhere.added_mediators = 1;
    ring.start_one(Role::Mediator, 1, &elsewhere, &Arc::default());
    admin::remove_node(&ring.network, (Role::Mediator, 1), LIMIT).unwrap();
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop();
}

/// A router is added after a third of a round of requests, and removed after a third of the last
/// one. In between, with the ring at rest, `middle` is called; it says how many rounds it traded.
fn a_router_comes_and_goes(
    durability: Durability,
    middle: impl FnOnce(&mut TestRing, &mut [Client]) -> u64,
) {
    let mut ring = TestRing::new("2-1-2-2", durability);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    let third = COUNT as usize * 4 * INSTRUMENTS as usize / 3;
    let node = Node { replication: None, ..listening(&ring, "more") };
    let (mut is_added, mut is_removed) = (false, false);
    trade(&mut clients, COUNT, |replies| {
        if !is_added && replies > third {
            is_added = true;
            for _ in 0..2 {
                assert_eq!(admin::add_node(&ring.network, Role::Router, &node, LIMIT).unwrap(), 1);
            }
            start(&mut ring, Role::Router, 1);
            let status = wait_until_healthy(&ring.network, 2);
            assert_eq!(status.network.router.last(), Some(&node));
        }
    });
    assert!(is_added);
    let rounds = 1 + middle(&mut ring, &mut clients);
    trade(&mut clients, COUNT, |replies| {
        if !is_removed && replies > (3 * rounds as usize + 1) * third {
            is_removed = true;
            admin::remove_node(&ring.network, (Role::Router, 1), LIMIT).unwrap();
            ring.wait_for_warning("it was removed from the network, and ends");
            let carried = ring.stop_one(Role::Router, 1).requests;
            assert!(carried > 0, "the second gateway's path went over it");
            let status = wait_until_healthy(&ring.network, 2);
            assert!(status.network.is_removed(Role::Router, 1));
        }
    });
    assert!(is_removed);
    assert_executed_once(&clients, (rounds + 1) * COUNT);
    let (_input, stop) = UnixStream::pair().unwrap();
    let started = node::run(&ring.network, Role::Router, 1, stop.as_fd(), &mut |_| {});
    let refused = started.unwrap_err().message;
    assert!(refused.contains("router 1 was removed"), "{refused}");
    ring.stop();
}

#[test]
fn a_router_comes_and_goes_without_durability() {
    a_router_comes_and_goes(Durability::None, |_, _| 0);
}

/// It carries the requests of all gateways while the other one is down, and the other one those of
/// all while it is.
#[test]
fn a_router_comes_carries_all_and_goes_with_a_memory_quorum() {
    a_router_comes_and_goes(Durability::MemoryQuorum, |ring, clients| {
        for down in [0, 1] {
            ring.stop_one(Role::Router, down);
            trade(clients, COUNT, |_| {});
            start(ring, Role::Router, down);
            wait_until_healthy(&ring.network, 2);
        }
        ring.restart(Role::Mediator, 0);
        wait_until_healthy(&ring.network, 2);
        2
    });
}

/// All nodes end, and start again with the file that lacks it: it is in control's log.
#[test]
fn a_router_that_was_added_survives_the_restart_of_all_nodes() {
    a_router_comes_and_goes(Durability::DiskQuorum, |ring, _| {
        ring.stop_all();
        let all: Vec<_> = ring.network.all().map(|(role, index, _)| (role, index)).collect();
        assert!(!all.contains(&(Role::Router, 1)));
        all.into_iter().for_each(|(role, index)| start(ring, role, index));
        start(ring, Role::Router, 1);
        let status = wait_until_healthy(&ring.network, 2);
        assert_eq!(status.network.router.len(), 2);
        0
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
    for role in [Role::Gateway, Role::Processor] {
        let fixed = admin::add_node(&network, role, &listening(&ring, "more"), LIMIT).unwrap_err();
        assert!(fixed.message.contains("only mediators and routers can"), "{}", fixed.message);
    }
    for (node, why) in [
        ((Role::Mediator, 0), "the network began with it"),
        ((Role::Mediator, 2), "there is no mediator 2"),
        ((Role::Router, 0), "the network began with it"),
        ((Role::Router, 1), "there is no router 1"),
        ((Role::Gateway, 0), "only mediators and routers that were added can"),
    ] {
        let refused = admin::remove_node(&network, node, LIMIT).unwrap_err();
        assert!(refused.message.contains(why), "{}", refused.message);
        assert_eq!(refused.kind, FailureKind::BadRequest);
    }
    // Whoever asks the nodes themselves changes nothing by the same, and no observer can.
    let leader = admin::status(&network, LIMIT).unwrap().control.unwrap().leader.unwrap();
    let address = &network.mediator[usize::from(leader)].address;
    let mut operator = Observer::connect(address, Hello::Operator, None, LIMIT).unwrap();
    let alone = Node { replication: None, ..listening(&ring, "more") };
    let add = |role, node| AdminRequest::Add { role, node };
    for request in [
        add(Role::Mediator, listening(&ring, "processor-0")),
        add(Role::Router, listening(&ring, "processor-0")),
        add(Role::Mediator, alone),
        add(Role::Gateway, listening(&ring, "more")),
        AdminRequest::Remove((Role::Mediator, 0)),
        AdminRequest::Remove((Role::Mediator, 2)),
        AdminRequest::Remove((Role::Router, 0)),
        AdminRequest::Remove((Role::Processor, 0)),
    ] {
        let response = operator.request(&request, LIMIT).unwrap();
        assert!(matches!(response, AdminResponse::Status { .. }), "{response:?}");
    }
    let mut observer = Observer::connect(address, Hello::Observer, None, LIMIT).unwrap();
    let more = listening(&ring, "more");
    assert!(observer.request(&add(Role::Mediator, more.clone()), LIMIT).is_err());
    // What is logged after them is in the state alone.
    admin::add_node(&network, Role::Mediator, &more, LIMIT).unwrap();
    let status = admin::status(&network, LIMIT).unwrap();
    assert_eq!((status.map_version, status.network.mediator[2..].to_vec()), (1, vec![more]));
    let (_input, stop) = UnixStream::pair().unwrap();
    let nobody = node::run(&ring.network, Role::Router, 7, stop.as_fd(), &mut |_| {}).unwrap_err();
    assert!(nobody.message.contains("there is no router 7"), "{}", nobody.message);
    ring.stop();
}
