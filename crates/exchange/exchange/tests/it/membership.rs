//! An added node that was refused asks control whether it was removed. The test plays control,
//! which is silent.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use nm_exchange::control::{AdminRequest, AdminResponse, Observer};
use nm_exchange::link::{Link, Stream};
use nm_exchange::network::{Durability, Node, NodeId, Role};
use nm_exchange::testing::{LIMIT, TestRing};
use nm_operate::admin;
use nm_sys::clock::Deadline;
use nm_wire::{Close, Hello, Kind, Welcome, Who};

use super::peer::{self, Peer};

const ADDED: NodeId = Role::Router.node(1);

/// A connection that the mediator gets within this time, and who it is from.
fn next_within(listener: &UnixListener, limit: Duration) -> Option<(Peer, Who)> {
    use std::os::fd::AsRawFd;
    nm_sys::poll::readable(listener.as_fd().as_raw_fd(), limit).unwrap().then_some(())?;
    let (stream, _) = listener.accept().unwrap();
    let mut peer = Peer { link: Link::new(Stream::Unix(stream)).unwrap() };
    let (kind, hello) = peer.next();
    assert_eq!(kind, Kind::Hello);
    let Hello { who, .. } = nm_wire::decode(&hello).unwrap();
    peer.send(&Welcome { digest: nm_wire::digest(), start: 7, session: 0, proof: None });
    Some((peer, who))
}

fn next(listener: &UnixListener) -> (Peer, Who) {
    next_within(listener, LIMIT).expect("a connection")
}

/// Takes the connections with which the added node begins: it asks control, and makes its link.
fn begin(listener: &UnixListener, control: &AdminResponse) -> Peer {
    let (mut question, who) = next(listener);
    assert_eq!(who, Who::Observer);
    assert_eq!(question.next().0, Kind::AdminRequest);
    question.send(control);
    let (link, who) = next(listener);
    assert!(matches!(who, Who::Node { node: ADDED, .. }), "{who:?}");
    link
}

#[test]
fn a_node_that_doubts_its_membership_goes_on_and_believes_no_stranger() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let path = ring.folder.path().join("more");
    let address = format!("unix:{}", path.display()).parse().unwrap();
    let node = Node { address, replication: None };
    admin::add_node(&ring.network, Role::Router, &node, LIMIT).unwrap();
    let mediator = ring.network.node(Role::Mediator.node(0)).unwrap().address.clone();
    let mut observer = Observer::connect(&mediator, Who::Observer, None, LIMIT).unwrap();
    let control = observer.request(&AdminRequest::Status, LIMIT).unwrap();
    ring.stop_all();
    std::fs::remove_file(mediator.to_string().strip_prefix("unix:").unwrap()).unwrap();
    let listener = peer::listener(&mediator);
    ring.start_one(ADDED, &ring.network.clone(), &Arc::default());
    let mut link = begin(&listener, &control);

    for _ in 0..20 {
        let stream = Stream::connect(&node.address, LIMIT).unwrap();
        let mut stranger = Peer { link: Link::new(stream).unwrap() };
        stranger.send(&Close::because("go away"));
        // The node has read it when it closes the connection.
        while stranger.link.receive().is_ok() {}
    }
    assert!(next_within(&listener, Duration::from_secs(1)).is_none(), "a stranger is believed");

    // Its link is refused by the mediator: now it asks, gets no answer for a while, and goes on.
    let mut n_meanwhile = 0;
    let deadline = Deadline::after(LIMIT);
    while n_meanwhile == 0 {
        assert!(!deadline.passed(), "it stands still while it asks");
        link.send(&Close::because("who are you?"));
        let (mut question, mut again) = (None, None);
        while question.is_none() || again.is_none() {
            match next(&listener) {
                (it, Who::Observer) => question = Some(it),
                (it, _) => again = Some(it),
            }
        }
        let mut question = question.unwrap();
        assert_eq!(question.next().0, Kind::AdminRequest);
        for _ in 0..10 {
            Peer::connected(&node.address, &Who::Observer);
        }
        // It gives up a question that is not answered in time; that it has not shows that it
        // answered others first.
        if question.link.receive().is_ok() {
            n_meanwhile += 10;
        }
        nm_wire::write(&control, &mut question.link.output);
        let _ = question.link.flush();
        link = again.unwrap();
    }
    // What it learns by the answer: nothing new, so it stays.
    Peer::connected(&node.address, &Who::Observer);
    ring.stop();
}
