//! Both ends of a link name the network and the node that they mean, and that they are. Where an
//! address was another network's before, nobody is taken for somebody else.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_exchange::client::{Meant, say_hello_to};
use nm_exchange::link::{Link, Stream};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{LIMIT, TestRing};
use nm_sys::clock::Deadline;
use nm_wire::{Close, Kind, Welcome, Who};

use super::peer;

/// What the gateway of a network answers to a hello: the kind, and the reason if it refuses.
fn answer(ring: &TestRing, meant: Meant, who: Who) -> (Kind, String) {
    let address = &ring.network.classes[Role::Gateway].nodes[0].address;
    let mut link = Link::new(Stream::connect(address, LIMIT).unwrap()).unwrap();
    say_hello_to(meant, who, None, &mut link.output);
    link.flush().unwrap();
    let deadline = Deadline::after(LIMIT);
    loop {
        assert!(!deadline.passed(), "no answer");
        if nm_sys::poll::readable(link.as_fd().as_raw_fd(), Duration::from_millis(50)).unwrap() {
            let _ = link.receive();
        }
        if let Some(frame) = link.input.next_frame().unwrap() {
            let why = frame.read::<Close>().map(|close| close.printable());
            return (frame.kind(), why.unwrap_or_default());
        }
    }
}

#[test]
fn a_node_of_another_network_or_another_node_is_not_believed() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.network.cluster = 7;
    ring.start();
    let (gateway, other) = (Role::Gateway.node(0), Role::Gateway.node(1));
    let meant = |network, node| Meant { network, node };
    for meant in [meant(7, Some(gateway)), meant(0, None), meant(7, None)] {
        assert_eq!(answer(&ring, meant, Who::Observer), (Kind::Welcome, String::new()));
    }
    let this = "was meant, and this is gateway 0 of network 7";
    let why = answer(&ring, meant(8, None), Who::Observer).1;
    assert_eq!(why, format!("a node of network 8 {this}"));
    let why = answer(&ring, meant(8, Some(gateway)), Who::Client { session: 1 }).1;
    assert_eq!(why, format!("gateway 0 of network 8 {this}"));
    let why = answer(&ring, meant(7, Some(other)), Who::Observer).1;
    assert_eq!(why, format!("gateway 1 of network 7 {this}"));
    // A node knows its network.
    let node = Who::Node { node: Role::Processor.node(0), start: 1 };
    let why = answer(&ring, meant(0, Some(gateway)), node).1;
    assert_eq!(why, format!("gateway 0 of a network without a number {this}"));
    ring.wait_for_warning("a link was refused: a node of network 8 was meant");
    ring.stop();
}

/// The end that connects looks as well: whoever answers may believe anybody.
#[test]
fn a_node_does_not_use_a_node_of_another_network() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.network.cluster = 7;
    let network = ring.network.clone();
    let listener = peer::listener(&network.classes[Role::Router].nodes[0].address);
    ring.start_one(Role::Gateway.node(0), &network, &Default::default());
    let (router, other) = (Role::Router.node(0), Role::Router.node(3));
    for (network, node, is) in [(9, router, "router 0 of network 9"), (7, other, "router 3")] {
        let (mut stream, _) = listener.accept().unwrap();
        let digest = nm_wire::digest();
        let welcome = Welcome { digest, network, start: 1, session: 0, node, proof: None };
        let mut bytes = vec![];
        nm_wire::write(&welcome, &mut bytes);
        stream.write_all(&bytes).unwrap();
        ring.wait_for_warning(&format!("router 0 of network 7 was meant, and this is {is}"));
    }
    ring.stop();
}
