//! Rings with a secret: who has no key, or another one, is refused, and both ends say why.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nm_auth::{Credentials, End, Nonce, Nonces, Right, Secret};
use nm_book::order::Side;
use nm_exchange::client::say_hello;
use nm_exchange::client::{self, ClientError};
use nm_exchange::control::{AdminRequest, AdminResponse, Observer, Owner, Retired};
use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{
    Client, LIMIT, TestRing, assert_executed_once, order, trade, unread_events,
};
use nm_operate::admin;
use nm_sys::clock::Deadline;
use nm_wire::{
    Challenge, Direction, Evidence, Kind, Listing, Request, ResendRequest, StopOrder, Welcome, Who,
};

fn ring(durability: Durability) -> (TestRing, Secret) {
    let mut ring = TestRing::new("1-1-2-1", durability);
    let secret = ring.make_secret();
    ring.start();
    (ring, secret)
}

fn address(ring: &TestRing, role: Role) -> Address {
    ring.network.nodes(role)[0].address.clone()
}

fn keys(secret: &Secret, session: u32) -> Credentials {
    Credentials::Keys(secret.keys(Some(session..=session), &[]))
}

/// A link whose node has sent its challenge.
fn challenged(ring: &TestRing, role: Role) -> (Link, Challenge) {
    let mut link = Link::new(Stream::connect(&address(ring, role), LIMIT).unwrap()).unwrap();
    let received = client::receive(&mut link, Kind::Challenge, Deadline::after(LIMIT));
    let challenge = nm_wire::decode(&received.unwrap()).unwrap();
    (link, challenge)
}

/// Evidence by the key of one right.
fn evidence(secret: &Secret, right: Right, challenge: Challenge, hello: &Who) -> Evidence {
    let nonce = Nonce::random().unwrap();
    let nonces = Nonces { acceptor: challenge.nonce, connector: nonce };
    let proof = secret.key(right).prove(End::Connector, &nonces, &hello.claim());
    Evidence { nonce, proof }
}

/// A session asks for its events on instrument 0.
fn resend_request(session: u32) -> ResendRequest {
    ResendRequest { instrument: 0, session, acknowledged: 0, gateway: 0, cell: 0 }
}

/// Why a node ends a link.
fn refusal(link: &mut Link) -> String {
    let nothing = client::receive(link, Kind::AdminResponse, Deadline::after(LIMIT));
    match nothing.unwrap_err() {
        ClientError::Refused(why) => why,
        other => panic!("{other}"),
    }
}

/// Why a node refuses a hello.
fn refusal_of(mut link: Link, hello: &Who, evidence: Option<&Evidence>) -> String {
    say_hello(*hello, evidence.copied(), &mut link.output);
    refusal(&mut link)
}

#[test]
fn a_ring_with_a_secret_trades_and_is_administrated() {
    let (mut ring, secret) = ring(Durability::MemoryQuorum);
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 0, &[3])];
    clients[1].credentials = Some(keys(&secret, 3));
    trade(&mut clients, 20, |_| {});
    let ready = ring.restart(Role::Mediator.node(0));
    trade(&mut clients, 20, |_| {});
    assert_executed_once(&clients, 40);
    let deadline = Deadline::after(LIMIT);
    while ready.load(Ordering::Acquire) == 0 {
        assert!(!deadline.passed(), "the mediator does not come back");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(
        admin::move_instruments(&ring.network, &[1_000_000], 1, LIMIT).unwrap()[0].map_version,
        Some(1)
    );
    assert!(admin::status(&ring.network, LIMIT).unwrap().control.is_some());
    ring.stop_all();
}

#[test]
fn a_hello_without_the_right_key_is_refused() {
    let (mut ring, secret) = ring(Durability::None);
    let mine = Who::Client { session: 1 };
    let (link, _) = challenged(&ring, Role::Gateway);
    let why = refusal_of(link, &mine, None);
    assert!(why.contains("has not proved that it has the session 1 key"), "{why}");
    ring.wait_for_warning("has not proved that it has the session 1 key");

    // The key of another session does not do, nor does one of another network.
    let wrong = [
        (Who::Client { session: 2 }, &secret, Right::Session(1)),
        (Who::Client { session: 0 }, &secret, Right::Session(1)),
        (Who::Observer, &secret, Right::Session(1)),
        (Who::Operator, &secret, Right::Observer),
        (mine, &Secret::random().unwrap(), Right::Session(1)),
    ];
    for (hello, secret, right) in wrong {
        let (link, challenge) = challenged(&ring, Role::Gateway);
        let evidence = evidence(secret, right, challenge, &hello);
        let why = refusal_of(link, &hello, Some(&evidence));
        let expected = format!("the {} key of the end that connects is not", hello.right());
        assert!(why.starts_with(&expected), "{why}");
    }
    for (hello, right) in [(mine, Right::Session(1)), (Who::Client { session: 0 }, Right::Operator)]
    {
        let (mut link, challenge) = challenged(&ring, Role::Gateway);
        let evidence = evidence(&secret, right, challenge, &hello);
        say_hello(hello, Some(evidence), &mut link.output);
        client::receive(&mut link, Kind::Welcome, Deadline::after(LIMIT)).unwrap();
    }
    // Another client's second session does not help a client that has one.
    let connect = |hellos: &[Who], credentials: &Credentials| {
        client::connect(&address(&ring, Role::Gateway), hellos, Some(credentials), LIMIT)
    };
    connect(&[mine], &keys(&secret, 1)).unwrap();
    let refused = connect(&[mine, Who::Client { session: 2 }], &keys(&secret, 1)).unwrap_err();
    assert!(matches!(refused, ClientError::NoKey(Right::Session(2))), "{refused}");
    let stranger = Credentials::Secret(Secret::random().unwrap());
    let refused = connect(&[mine], &stranger).unwrap_err();
    assert!(matches!(&refused, ClientError::Refused(_)), "{refused}");
    ring.stop_all();
}

#[test]
fn a_recorded_hello_cannot_be_replayed() {
    let (mut ring, secret) = ring(Durability::None);
    let hello = Who::Client { session: 1 };
    let (mut link, challenge) = challenged(&ring, Role::Gateway);
    let recorded = evidence(&secret, Right::Session(1), challenge, &hello);
    say_hello(hello, Some(recorded), &mut link.output);
    client::receive(&mut link, Kind::Welcome, Deadline::after(LIMIT)).unwrap();
    let (later, _) = challenged(&ring, Role::Gateway);
    let why = refusal_of(later, &hello, Some(&recorded));
    assert!(why.contains("session 1 key of the end that connects is not"), "{why}");
    ring.stop_all();
}

#[test]
fn a_client_trades_for_its_own_sessions_only_and_administrates_nothing() {
    for with_secret in [true, false] {
        let mut ring = TestRing::new("1-1-1-1", Durability::None);
        let secret = with_secret.then(|| ring.make_secret());
        ring.start();
        let connect = |session| {
            let credentials = secret.as_ref().map(|secret| keys(secret, session));
            let hello = [Who::Client { session }];
            client::connect(&address(&ring, Role::Gateway), &hello, credentials.as_ref(), LIMIT)
        };
        for kind in [Kind::Request, Kind::ResendRequest] {
            let mut link = connect(1).unwrap();
            if kind == Kind::Request {
                let request = nm_exchange::testing::request(2, 0, order(2, 1, Side::Buy, 100));
                nm_wire::write::<Request>(&request, &mut link.output);
            } else {
                nm_wire::write(&resend_request(2), &mut link.output);
            }
            let why = refusal(&mut link);
            assert!(why.starts_with("session 2 does not belong to this link"), "{why}");
        }
        let mut link = connect(1).unwrap();
        let request = AdminRequest::Move { instrument: 1, cell: 0 };
        nm_wire::write(&request, &mut link.output);
        assert_eq!(refusal(&mut link), "a client sent a AdminRequest to a gateway");
        ring.stop_all();
    }
}

#[test]
fn a_later_link_of_a_session_takes_it_over() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 5, |_| {});
    let hello = [Who::Client { session: 1 }];
    let connect = || client::connect(&address(&ring, Role::Gateway), &hello, None, LIMIT);
    let (mut first, mut second) = (connect().unwrap(), connect().unwrap());
    let send = |link: &mut Link| nm_wire::write(&resend_request(1), &mut link.output);
    for link in [&mut first, &mut second] {
        send(link);
        client::receive(link, Kind::Resent, Deadline::after(LIMIT)).unwrap();
    }
    send(&mut first);
    let why = refusal(&mut first);
    assert!(why.starts_with("session 1 does not belong to this link"), "{why}");
    ring.stop_all();
}

/// Each order closes its link, whichever mediator is asked.
#[test]
fn an_observer_changes_nothing() {
    let (mut ring, secret) = ring(Durability::MemoryQuorum);
    let observer = Credentials::Keys(secret.keys(None, &[Right::Observer]));
    let mediator = address(&ring, Role::Mediator);
    let (cell, node, owner) = (0, Role::Mediator.node(0), Owner::of_firm(7));
    let whose = Retired::Owner { owner };
    let listing = Listing {
        instrument: 1,
        symbol: "ACME".to_string(),
        tick: "1".to_string(),
        lot: "1".to_string(),
        currency: String::new(),
        low: 1,
        high: 2,
        most: 3,
    };
    for request in [
        AdminRequest::Direct { cell, instrument: None, direction: Direction::Halt },
        AdminRequest::Stop { cell, order: StopOrder { owner, version: 1, is_stopped: true } },
        AdminRequest::Retire { cell, retired: whose },
        AdminRequest::List { listing },
        AdminRequest::Delist { instrument: 1 },
        AdminRequest::Remove { node },
        AdminRequest::Follow,
    ] {
        let mut link = Observer::connect(&mediator, Who::Observer, Some(&observer), LIMIT).unwrap();
        let answer = link.request(&request, LIMIT);
        assert!(matches!(answer, Err(ClientError::Refused(_))), "{request:?}: {answer:?}");
    }
    ring.stop_all();
}

#[test]
fn only_an_operator_changes_the_network() {
    let (mut ring, secret) = ring(Durability::MemoryQuorum);
    let mediator = address(&ring, Role::Mediator);
    let change = AdminRequest::Move { instrument: 1_000_000, cell: 1 };
    let observer = Credentials::Keys(secret.keys(None, &[Right::Observer]));
    let connect =
        |hello, credentials| Observer::connect(&mediator, hello, Some(credentials), LIMIT);
    let mut link = connect(Who::Observer, &observer).unwrap();
    let status = link.request(&AdminRequest::Status, LIMIT).unwrap();
    assert!(matches!(status, AdminResponse::Status { .. }), "{status:?}");
    let refused = link.request(&change, LIMIT).unwrap();
    assert!(
        matches!(&refused, AdminResponse::Refused { reason, .. }
            if reason.contains("only an operator")),
        "{refused:?}"
    );
    let refused = connect(Who::Operator, &observer).unwrap_err();
    assert!(matches!(refused, ClientError::NoKey(Right::Operator)), "{refused}");
    // The same by files, as the commands read them.
    let mut network = ring.network.clone();
    let file = |name: &str, rights: &[Right]| {
        let path = ring.folder.path().join(name);
        Credentials::Keys(secret.keys(None, rights)).create(&path).unwrap();
        Some(path)
    };
    network.secret = file("observer", &[Right::Observer]);
    assert!(admin::status(&network, LIMIT).unwrap().control.is_some());
    let refused = admin::move_instruments(&network, &[1_000_000], 1, LIMIT).unwrap_err();
    assert!(refused.message.contains("the credentials have no operator key"), "{refused}");
    network.secret = file("operator", &[Right::Operator]);
    assert!(admin::status(&network, LIMIT).unwrap().control.is_some());
    assert_eq!(
        admin::move_instruments(&network, &[1_000_000], 1, LIMIT).unwrap()[0].map_version,
        Some(1)
    );
    network.secret = None;
    let refused = admin::status(&network, LIMIT).unwrap_err();
    assert!(refused.message.contains("has not proved that it has the observer key"), "{refused}");
    ring.stop_all();
}

#[test]
fn a_node_that_does_not_have_the_secret_cannot_join_and_both_ends_report_it() {
    let (mut ring, _) = ring(Durability::None);
    ring.stop_one(Role::Gateway.node(0));
    let hello = Who::Node { node: Role::Gateway.node(0), start: 7 };
    let (link, _) = challenged(&ring, Role::Router);
    let why = refusal_of(link, &hello, None);
    assert!(why.contains("has not proved that it has the node key"), "{why}");

    let other = ring.folder.path().join("other");
    Secret::random().unwrap().create(&other).unwrap();
    for (secret, own, far) in [
        (
            Some(other),
            "there is no link with router 0: it refuses this node: the node key of the end",
            "a link was refused: the node key of the end that connects is not the network's",
        ),
        (
            None,
            "there is no link with router 0: the peer's network has a secret",
            "this node's has none",
        ),
    ] {
        ring.warnings.lock().unwrap().clear();
        let mut network = ring.network.clone();
        network.secret = secret;
        let ready = Arc::new(AtomicU64::new(0));
        ring.start_one(Role::Gateway.node(0), &network, &ready);
        ring.wait_for_warning(own);
        ring.wait_for_warning(far);
        assert_eq!(ready.load(Ordering::Acquire), 0, "it has no links");
        ring.stop_one(Role::Gateway.node(0));
    }
    let network = ring.network.clone();
    ring.start_one(Role::Gateway.node(0), &network, &Arc::default());
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 10, |_| {});
    ring.stop_all();
}

#[test]
fn a_node_does_not_accept_the_welcome_of_one_without_the_secret() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.make_secret();
    // An end that takes the router's place.
    let listener = UnixListener::bind(ring.folder.path().join("router-0")).unwrap();
    let network = ring.network.clone();
    let ready = Arc::default();
    ring.start_one(Role::Gateway.node(0), &network, &ready);
    for with_challenge in [false, true] {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = vec![];
        if with_challenge {
            nm_wire::write(&Challenge { nonce: Nonce([7; 32]) }, &mut answer);
        }
        let digest = nm_wire::digest();
        let node = Role::Router.node(0);
        let welcome = Welcome { digest, network: 0, start: 1, session: 0, node, proof: None };
        nm_wire::write(&welcome, &mut answer);
        stream.write_all(&answer).unwrap();
        // It ends the link.
        if let Err(error) = stream.read_to_end(&mut vec![]) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    }
    ring.wait_for_warning("the peer does not prove that it has the network's secret");
    ring.stop_all();
}

#[test]
fn a_node_that_other_hosts_may_reach_does_not_start_without_a_secret() {
    let ring = TestRing::new("1-1-1-1", Durability::None);
    let mut network = ring.network.clone();
    network.classes[Role::Gateway].nodes[0].address = "0.0.0.0:1".parse().unwrap();
    let (_stop, stopped) = std::os::unix::net::UnixStream::pair().unwrap();
    let stop = std::os::fd::AsFd::as_fd(&stopped);
    let node = Role::Router.node(0);
    let refused = nm_exchange::node::run(&network, node, stop, &unread_events(node)).unwrap_err();
    assert!(refused.message.contains("nearmetal exchange secret new FILE"), "{refused}");
}
