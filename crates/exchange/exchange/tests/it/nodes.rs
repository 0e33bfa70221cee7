//! Complete rings in one process: replies exactly once and in order, while links fail and nodes
//! die.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nm_book::book::Book;
use nm_book::order::Event;
use nm_exchange::batch;
use nm_exchange::cell::{Cell, Handled, Outcome, Request};
use nm_exchange::client::say_hello;
use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_exchange::node;
use nm_exchange::testing::{
    Client, Cutter, INSTRUMENTS, LIMIT, TestRing, assert_executed_once, start_with_cutters, trade,
};
use nm_exchange::testing::{Message, unread_events};
use nm_replica::journal::Reader;
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Series, Shape, Who};

#[test]
fn a_ring_answers_once_in_order_and_notifies_counterparties_and_all_clients() {
    let mut ring = TestRing::new("2-1-3-2", Durability::None);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3])];
    clients.iter_mut().for_each(|client| {
        while client.link.is_none() {
            client.connect()
        }
    });
    trade(&mut clients, 100, |_| {});
    assert_executed_once(&clients, 100);
    let trades = |kind: Kind, client: &Client| -> BTreeSet<(u32, u64, u64, u64)> {
        let of_kind = client.received.iter().filter(|message| message.kind == kind);
        of_kind
            .flat_map(|message| {
                let events: Series<'_, Event> = Series::of(&message.events);
                let instrument = message.instrument;
                events.filter_map(move |event| match event.unwrap() {
                    Event::Traded { maker, taker, maker_left, .. } => {
                        Some((instrument, maker, taker, maker_left))
                    }
                    _ => None,
                })
            })
            .collect()
    };
    let by = |id: u64| (id >> 32) as u32;
    // The trades that the third session's orders caused others are those that it was notified of as
    // their counterparty.
    let [first, second] = &clients;
    let with_third: BTreeSet<_> =
        trades(Kind::Reply, first).into_iter().filter(|t| by(t.1) == 3).collect();
    let private: BTreeSet<_> =
        trades(Kind::Private, second).into_iter().filter(|t| by(t.2) != 3).collect();
    assert!(!private.is_empty());
    assert_eq!(private, with_third);
    // All clients receive the same broadcasts, once both are there: by their numbers, all of them.
    let public = |client: &Client, instrument| -> BTreeSet<u64> {
        let of_it = client.received.iter().filter(|it| it.instrument == instrument);
        let public = of_it.filter(|message| message.kind == Kind::BestPrices);
        public.map(|message| message.previous_event).collect()
    };
    let is_same = |clients: &[Client; 2], instrument| {
        let [one, other] = [0, 1].map(|at| public(&clients[at], instrument));
        let from = one.first().max(other.first()).copied().unwrap_or_default();
        let both = [&one, &other].map(|all| all.range(from..).copied().collect::<Vec<u64>>());
        let is_complete = both[0].iter().zip(from..).all(|(number, at)| *number == at);
        both[0] == both[1] && is_complete && both[0].len() > 50
    };
    let deadline = Deadline::after(LIMIT);
    while !(0..INSTRUMENTS).all(|instrument| is_same(&clients, instrument)) {
        assert!(!deadline.passed(), "not all clients have the broadcasts");
        clients.iter_mut().for_each(Client::turn);
    }
    let ended = ring.stop();
    let requests =
        |role| ended.iter().filter(|e| e.node.class == role).map(|e| e.requests).sum::<u64>();
    let total = 3 * 100 * u64::from(INSTRUMENTS);
    assert!(Role::ALL.iter().all(|role| requests(*role) == total), "{ended:?}");
    assert!(ended.iter().all(|ended| ended.resent == 0 && ended.turns > 0));
}

/// Lets nodes die one after another while clients trade, and asserts that clients see no more than
/// a pause.
fn kill(counts: &str, durability: Durability, victims: &[NodeId]) {
    let mut ring = TestRing::new(counts, durability);
    ring.start();
    let gateways = ring.network.classes[Role::Gateway].nodes.len();
    let mut clients: Vec<Client> = (0..gateways)
        .map(|gateway| Client::new(&ring, gateway, &[1, 2].map(|s| gateway as u32 * 2 + s)))
        .collect();
    let (count, mut killed) = (150, 0);
    let total = clients.len() * 2 * count as usize * INSTRUMENTS as usize;
    // A group survives the death of one replica at a time: the next one is killed when the one
    // before has caught up.
    let mut recovered = Arc::new(AtomicU64::new(1));
    trade(&mut clients, count, |replies| {
        if killed < victims.len() && replies > (killed + 1) * total / (victims.len() + 2) {
            let node = victims[killed];
            killed += 1;
            let deadline = Deadline::after(LIMIT);
            while recovered.load(Ordering::Acquire) == 0 {
                assert!(!deadline.passed(), "{:?} is not ready again", victims[killed - 2]);
                std::thread::sleep(Duration::from_millis(1));
            }
            recovered = ring.restart(node);
        }
    });
    assert_eq!(killed, victims.len());
    assert_executed_once(&clients, count);
    ring.stop();
}

#[test]
fn gateways_routers_and_processors_die_and_nothing_is_lost_or_executed_twice() {
    use Role::{Gateway, Processor, Router};
    let victims = [
        Gateway.node(0),
        Router.node(1),
        Processor.node(0),
        Processor.node(1),
        Router.node(0),
        Gateway.node(1),
    ];
    kill("2-2-2-2", Durability::None, &victims);
}

#[test]
fn with_a_quorum_in_memory_any_node_may_die() {
    use Role::{Gateway, Mediator, Processor, Router};
    let victims = [
        Mediator.node(0),
        Processor.node(1),
        Mediator.node(1),
        Gateway.node(0),
        Router.node(1),
        Processor.node(0),
    ];
    kill("2-2-2-2", Durability::MemoryQuorum, &victims);
}

#[test]
fn with_a_quorum_on_disk_two_replicas_survive_the_death_of_each() {
    use Role::{Mediator, Processor};
    kill(
        "1-1-1-1",
        Durability::DiskQuorum,
        &[Mediator.node(0), Processor.node(0), Mediator.node(0)],
    );
}

/// Each of two nodes of a class is away for a third of the time, and does not come back before the
/// other one carries everything.
fn trade_without_one_of_two(role: Role, durability: Durability) {
    let counts = if role == Role::Router { "2-2-2-1" } else { "2-1-2-2" };
    let mut ring = TestRing::new(counts, durability);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    let (count, mut step, ready) = (120, 0, Arc::<AtomicU64>::default());
    let total = 4 * count as usize * INSTRUMENTS as usize;
    trade(&mut clients, count, |replies| {
        let is_due = replies > (step + 1) * total / 4;
        match step {
            0 if is_due => {
                ring.stop_one(role.node(0));
            }
            1 if is_due => {
                ring.start_one(role.node(0), &ring.network.clone(), &ready);
            }
            2 if is_due && ready.load(Ordering::Acquire) > 0 => {
                ring.stop_one(role.node(1));
            }
            _ => return,
        }
        step += 1;
    });
    // The last third may have been traded before the first node was ready.
    if step == 2 {
        let deadline = Deadline::after(LIMIT);
        while ready.load(Ordering::Acquire) == 0 {
            assert!(!deadline.passed(), "{role} 0 is not ready again");
            std::thread::sleep(Duration::from_millis(1));
        }
        ring.stop_one(role.node(1));
    }
    assert_executed_once(&clients, count);
    trade(&mut clients, 10, |_| {});
    let carried = ring.stop_one(role.node(0)).requests;
    assert!(carried >= 10 * 4 * u64::from(INSTRUMENTS), "{durability}: {carried}");
    ring.stop();
}

#[test]
fn gateways_use_another_router_while_theirs_is_away() {
    trade_without_one_of_two(Role::Router, Durability::None);
    trade_without_one_of_two(Role::Router, Durability::MemoryQuorum);
}

#[test]
fn replies_take_another_processor_while_that_of_their_cell_is_away() {
    trade_without_one_of_two(Role::Processor, Durability::None);
    trade_without_one_of_two(Role::Processor, Durability::MemoryQuorum);
    trade_without_one_of_two(Role::Processor, Durability::DiskQuorum);
}

#[test]
fn a_mediator_without_durability_dies_and_trading_continues() {
    let mut ring = TestRing::new("1-1-2-1", Durability::None);
    ring.network.record = true;
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2, 3])];
    let mut is_killed = false;
    trade(&mut clients, 60, |replies| {
        if !is_killed && replies > 300 {
            is_killed = true;
            ring.restart(Role::Mediator.node(1));
        }
    });
    assert!(is_killed);
    // Its instruments may have been ahead of the others: it gets some requests after the restart,
    // too.
    trade(&mut clients, 10, |_| {});
    // The record shows where the books were lost, and has every reply's request at most once in
    // each term.
    for (mediator, term_count) in [(0, 1), (1, 2)] {
        let folder = ring.network.folder(Role::Mediator.node(mediator)).unwrap();
        let mut reader = Reader::open(&folder.join(format!("cell-{mediator}"))).unwrap();
        let (mut terms, mut cell, mut next) = (BTreeSet::new(), Cell::<Book>::default(), 1);
        let mut done = BTreeSet::new();
        while let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record.index, next);
            next += 1;
            if terms.insert(record.term) {
                cell = Cell::default();
                cell.accepts_unknown_sessions = terms.len() > 1;
            }
            let (time_ns, frames) = batch::decode(&record.bytes).unwrap();
            cell.begin(record.index, time_ns);
            for frame in frames {
                let request: Request = frame.unwrap().read().unwrap();
                if let Handled::Executed(outcome) = cell.handle(&request, |_| {}) {
                    done.insert((request.instrument, request.session, outcome));
                }
            }
        }
        assert_eq!(terms.len(), term_count, "{terms:?}");
        for message in clients[0].replies() {
            if message.cell == mediator && !message.is_expired {
                let Message { client_seq, output_seq, events_hash, .. } = *message;
                let outcome = Outcome { client_seq, output_seq, events_hash };
                let found = done.contains(&(message.instrument, message.session, outcome));
                assert!(found, "{message:?}");
            }
        }
    }
    ring.stop();
}

#[test]
fn unknown_peers_and_invalid_frames_are_refused_and_trading_continues() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let frame = |kind: Kind, message: &[u8]| {
        let mut bytes = vec![];
        let put = |out: &mut Vec<u8>| out.extend_from_slice(message);
        nm_wire::write_with(kind.code(), Shape::default(), &mut bytes, put);
        bytes
    };
    let say = |who: Who| {
        let mut bytes = vec![];
        say_hello(who, None, &mut bytes);
        bytes
    };
    let node = |node: NodeId| Who::Node { node, start: 1 };
    let hello = say(Who::Client { session: 0 });
    let digest = nm_wire::digest().to_le_bytes();
    let nobody = [&digest[..], &[0; 8], &[0xff, 0xfe]].concat();
    let leader = frame(Kind::Leader, &[0; 6]);
    let gateway = Role::Gateway.node(0);
    let refused = [
        (gateway, vec![7; 500]),
        (gateway, say(node(Role::Mediator.node(0)))),
        (gateway, say(node(Role::Processor.node(7)))),
        (gateway, frame(Kind::Hello, &nobody)),
        (gateway, frame(Kind::Request, b"")),
        (gateway, [hello.clone(), frame(Kind::Request, &[99])].concat()),
        (gateway, [hello.clone(), leader].concat()),
        (Role::Router.node(0), hello.clone()),
        (Role::Mediator.node(0), frame(Kind::Request, b"")),
        (Role::Mediator.node(0), frame(Kind::Welcome, b"")),
        (Role::Processor.node(0), frame(Kind::Reply, b"")),
    ];
    for (NodeId { class, index }, bytes) in refused {
        let path = ring.folder.path().join(format!("{class}-{index}"));
        let mut unknown_peer = UnixStream::connect(path).unwrap();
        unknown_peer.set_read_timeout(Some(LIMIT)).unwrap();
        unknown_peer.write_all(&bytes).unwrap();
        let mut answer = vec![];
        let end = unknown_peer.read_to_end(&mut answer);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(end.is_ok() || end.as_ref().is_err_and(reset), "{end:?}");
        // A peer that sent frames is sent the reason.
        let kind = nm_wire::read(&answer).unwrap().map(|frame| frame.kind());
        assert!(matches!(kind, None | Some(Kind::Close)), "{kind:?}");
    }
    ring.wait_for_warning("field `who`: no value has the code 255");
    ring.wait_for_warning("a client sent a Leader to a gateway");
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 20, |_| {});
    assert_executed_once(&clients, 20);
    ring.stop();
}

#[test]
fn a_node_that_cannot_start_is_refused() {
    let ring = TestRing::new("1-1-1-1", Durability::None);
    let (_stop, stopped) = UnixStream::pair().unwrap();
    let run = |network: &Network, role: Role, index| {
        let node = role.node(index);
        node::run(network, node, stopped.as_fd(), &unread_events(node)).unwrap_err()
    };
    // Without control none can have been added.
    let mut network = ring.network.clone();
    network.classes[Role::Mediator].nodes[0].replication = None;
    assert!(run(&network, Role::Gateway, 4).message.contains("there is no gateway 4"));
    network.classes[Role::Router].nodes[0].address = "unix:/no/such/folder/node".parse().unwrap();
    let refused = run(&network, Role::Router, 0).message;
    assert!(refused.contains("router 0 cannot listen at unix:/no/such"), "{refused}");
}

#[test]
fn links_that_fail_repeatedly_lose_nothing_and_repeat_nothing() {
    let mut ring = TestRing::new("2-2-2-2", Durability::None);
    let cutters = start_with_cutters(&mut ring);
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    trade(&mut clients, 60, |_| {});
    assert_executed_once(&clients, 60);
    let cuts: u64 = cutters.iter().map(Cutter::cuts).sum();
    assert!(cuts > 20, "{cuts} cuts");
    ring.stop();
}
