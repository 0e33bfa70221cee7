//! Gateways are drained, or end, under load: their clients go to other ones, and nothing is lost,
//! doubled or reordered, as `exchange verify` checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nm_book::order::Side;
use nm_exchange::client::{self, ClientError};
use nm_exchange::network::{Durability, Network, Role};
use nm_exchange::testing::{Client, TestRing, order};
use nm_model::{Failure, FailureKind};
use nm_operate::admin;
use nm_operate::drain::{self, Drained};
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Who};

use super::faults::{Load, recorded};

const LIMIT: Duration = Duration::from_secs(60);

/// The sessions of the load.
const SESSIONS: u32 = 13;

/// Sends requests until something is done in another thread.
fn under_load<T: Send>(load: &mut Load, what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let doing = scope.spawn(what);
        while !doing.is_finished() {
            let round = load.send_and_await_all(20);
            assert_eq!((round.refused, round.unknown), (0, 0), "{round:?}");
        }
        doing.join().unwrap()
    })
}

fn drain(network: &Network, index: u16) -> Result<Drained, Failure> {
    drain::drain(network, Role::Gateway.node(index))
}

/// By gateway: how many sessions it has, and whether it takes no more.
fn sessions(network: &Network) -> Vec<(u32, bool)> {
    let nodes: Vec<_> = (0..network.classes[Role::Gateway].nodes.len() as u16)
        .map(|it| Role::Gateway.node(it))
        .collect();
    let works = admin::work_of(network, &nodes, LIMIT).unwrap();
    works.into_iter().map(|(_, work)| (work.sessions, work.is_leaving)).collect()
}

/// A client that comes to a gateway that is drained is sent away.
fn wait_until_sent_away(ring: &TestRing, index: usize) {
    let credentials = ring.network.credentials().unwrap();
    let address = &ring.network.classes[Role::Gateway].nodes[index].address;
    let deadline = Deadline::after(LIMIT);
    loop {
        // Until a gateway that was restarted knows that it is drained, it answers nothing, or
        // says welcome.
        let limit = Duration::from_millis(200);
        let hellos = [Who::Client { session: 1_000 }];
        let connected = client::connect(address, &hellos, credentials.as_ref(), limit);
        let welcome = connected
            .and_then(|mut link| client::receive(&mut link, Kind::Welcome, Deadline::after(limit)));
        match welcome {
            Err(ClientError::GoingAway) => break,
            other => assert!(!deadline.passed(), "{other:?}"),
        }
    }
    ring.wait_for_warning("is drained and takes no more sessions: connect to another gateway");
}

fn check(durability: Durability, has_secret: bool) {
    let mut ring = recorded("2-2-2-2", durability);
    if has_secret {
        ring.make_secret();
    }
    ring.start();
    let network = ring.network.clone();
    let mut load = Load::on(&ring);
    load.send_and_await_all(100);
    assert_eq!(sessions(&network), [(7, false), (6, false)]);

    let drained = under_load(&mut load, || drain(&network, 0)).unwrap();
    assert_eq!((drained.sessions, drained.refused()), (Some(7), 0));
    assert_eq!(drained.to_string(), "its 7 sessions are at other gateways");
    assert_eq!(sessions(&network), [(0, true), (SESSIONS, false)]);
    let status = admin::status(&network, LIMIT).unwrap();
    assert!(status.is_drained(Role::Gateway.node(0)) && !status.is_drained(Role::Gateway.node(1)));
    wait_until_sent_away(&ring, 0);
    let nobody_else = drain(&network, 1).unwrap_err();
    assert_eq!(nobody_else.kind, FailureKind::BadRequest, "{nobody_else:?}");
    assert!(nobody_else.message.contains("no other gateway could take"), "{nobody_else:?}");

    // It is restarted, and remains drained until it is resumed.
    let ready: Arc<AtomicU64> = Arc::default();
    under_load(&mut load, || {
        ring.stop_one(Role::Gateway.node(0));
        ring.start_one(Role::Gateway.node(0), &network, &ready);
        let deadline = Deadline::after(LIMIT);
        while ready.load(Ordering::Acquire) == 0 {
            assert!(!deadline.passed(), "the gateway is not ready");
            thread::sleep(Duration::from_millis(1));
        }
        wait_until_sent_away(&ring, 0);
    });
    assert_eq!(drain::resume(&network, Role::Gateway.node(0)), Ok(true));
    assert_eq!(drain::resume(&network, Role::Gateway.node(0)), Ok(false));
    assert_eq!(sessions(&network), [(0, false), (SESSIONS, false)]);

    let drained = under_load(&mut load, || drain(&network, 1)).unwrap();
    assert_eq!(drained.sessions, Some(SESSIONS));
    assert_eq!(sessions(&network), [(SESSIONS, false), (0, true)]);
    let round = load.send_and_await_all(100);
    assert_eq!((round.refused, round.reconnects), (0, 0));
    let findings = load.verify(ring);
    assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
}

#[test]
fn the_clients_of_a_drained_gateway_go_to_another_one_and_nothing_is_lost() {
    check(Durability::None, false);
    check(Durability::MemoryQuorum, false);
}

#[test]
fn clients_that_prove_their_sessions_go_to_another_gateway_as_well() {
    check(Durability::MemoryQuorum, true);
}

/// They go back when it is there again.
#[test]
fn the_clients_of_a_gateway_that_ends_go_to_another_one_and_nothing_is_lost() {
    let mut ring = recorded("2-2-2-2", Durability::MemoryQuorum);
    ring.start();
    let network = ring.network.clone();
    let mut load = Load::on(&ring);
    load.send_and_await_all(100);
    ring.stop_one(Role::Gateway.node(0));
    // Every request is answered, although it does not come back.
    let round = load.send_and_await_all(200);
    assert_eq!((round.refused, round.unknown, round.reconnects), (0, 0, 1), "{round:?}");
    let of_other = admin::work_of(&network, &[Role::Gateway.node(1)], LIMIT).unwrap();
    assert_eq!(of_other[0].1.sessions, SESSIONS);

    let ready: Arc<AtomicU64> = Arc::default();
    ring.start_one(Role::Gateway.node(0), &network, &ready);
    let deadline = Deadline::after(LIMIT);
    let mut is_home = false;
    while !is_home {
        assert!(!deadline.passed(), "the sessions do not go back");
        let round = load.send_and_await_all(20);
        assert_eq!((round.refused, round.unknown, round.reconnects), (0, 0, 0), "{round:?}");
        is_home =
            ready.load(Ordering::Acquire) > 0 && sessions(&network) == [(7, false), (6, false)];
    }
    load.send_and_await_all(100);
    let findings = load.verify(ring);
    assert!(findings.not_guaranteed.is_empty(), "{findings:?}");
}

/// Its client does not know that it is asked to go. The gateway stays drained, and has no sessions
/// when the client has ended.
#[test]
fn clients_that_stay_at_a_drained_gateway_are_counted_when_the_time_is_over() {
    let mut ring = TestRing::new("2-1-1-1", Durability::None);
    ring.start();
    let network = ring.network.clone();
    let mut client = Client::new(&ring, 1, &[1, 2, 3]);
    client.request(1, 0, &order(1, 1, Side::Buy, 100));
    let deadline = Deadline::after(LIMIT);
    while client.waiting() > 0 {
        assert!(!deadline.passed(), "no reply");
        client.turn();
    }
    let limit = Duration::from_secs(1);
    let stays = drain::drain_within(&network, Role::Gateway.node(1), limit).unwrap_err();
    assert_eq!(stays.kind, FailureKind::Peer, "{stays:?}");
    let message = "after 1 s 3 sessions are still at gateway 1: their clients do not go";
    assert!(stays.message.starts_with(message), "{stays:?}");
    assert_eq!(sessions(&network), [(0, false), (3, true)]);
    drop(client);
    let drained = drain(&network, 1).unwrap();
    assert!(drained.sessions <= Some(3) && sessions(&network)[1] == (0, true), "{drained:?}");
    ring.stop_all();
}

/// Its clients would have nowhere to go.
#[test]
fn the_only_gateway_is_not_drained() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let refused = drain(&ring.network, 0).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest, "{refused:?}");
    assert!(refused.message.contains("gateway 0 is the only one"), "{refused:?}");
    ring.stop_all();
}
