//! The control group of complete rings in one process: it agrees, trading does not wait for it, and
//! no instrument is traded in two cells.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_book::book::Book;
use nm_book::order::Side;
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, Handled};
use nm_exchange::control::{
    AdminRequest, AdminResponse, CellLeader, InstrumentMap, MembershipReport, Observer, Placement,
    RoutingTable, State,
};
use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, assert_executed_once, order, trade};
use nm_model::agent::FailureKind;
use nm_operate::admin::{self, NetworkStatus};
use nm_replica::journal::{self, Reader};
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Leader, Request, Who};

use crate::peer::{self, Peer};

/// The network's status once it meets a condition.
fn until(network: &Network, what: &str, is_met: impl Fn(&NetworkStatus) -> bool) -> NetworkStatus {
    let deadline = Deadline::after(LIMIT);
    loop {
        let status = admin::status(network, LIMIT);
        if let Ok(status) = &status
            && is_met(status)
        {
            return status.clone();
        }
        assert!(!deadline.passed(), "not {what}: {status:#?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a gateway routes requests by a version of the map: control sends it to routers, and
/// they to gateways, after it has answered the operator.
fn wait_for_map(ring: &TestRing, gateway: usize, version: u32) {
    let mut probe = Client::new(ring, gateway, &[99]);
    let deadline = Deadline::after(LIMIT);
    let mut routed_by = None;
    for number in 1.. {
        if routed_by >= Some(version) {
            return;
        }
        probe.request(99, 1_000, &order(99, number, Side::Buy, 100));
        while probe.waiting() > 0 {
            assert!(!deadline.passed(), "the gateway has map version {routed_by:?}");
            probe.turn();
        }
        routed_by = probe.replies().last().map(|reply| reply.map_version);
    }
}

/// The state that a mediator's replica has.
fn state_at(network: &Network, mediator: usize) -> State {
    let mut observer = Observer::connect(
        &network.classes[Role::Mediator].nodes[mediator].address,
        Who::Observer,
        None,
        LIMIT,
    )
    .unwrap();
    match observer.request(&AdminRequest::Status, LIMIT).unwrap() {
        AdminResponse::Status { state, .. } => State::load(&state).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Moves an instrument; the version of the map then, or why it was refused.
fn move_to(network: &Network, instrument: u32, cell: u16) -> Result<u32, String> {
    let outcomes = admin::move_instruments(network, &[instrument], cell, LIMIT);
    let outcome = outcomes.map_err(|failure| failure.message)?.remove(0);
    outcome.map_version.ok_or_else(|| outcome.refused.unwrap_or_default())
}

#[test]
fn control_agrees_on_the_membership_while_its_leaders_die() {
    let mut ring = TestRing::new("2-2-3-2", Durability::MemoryQuorum);
    ring.start();
    let network = ring.network.clone();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3])];
    let mut leaders = vec![];
    for round in 1..=3 {
        let status = until(&network, "healthy", NetworkStatus::is_healthy);
        let leader = usize::from(status.control.unwrap().leader.unwrap());
        leaders.push(leader);
        ring.restart(Role::Mediator.node(leader as u16));
        let times = leaders.iter().filter(|known| **known == leader).count() as u32;
        let is_back = |status: &NetworkStatus| {
            let back = |node: &&admin::NodeStatus| node.id == Role::Mediator.node(leader as u16);
            let starts = status.nodes.iter().find(back).and_then(|node| node.starts);
            status.is_healthy() && starts == Some(1 + times)
        };
        let status = until(&network, "back", is_back);
        // The next one dies only when this one has caught up.
        let index = status.control.as_ref().unwrap().index;
        let deadline = Deadline::after(LIMIT);
        while state_at(&network, leader).index() < index {
            assert!(!deadline.passed(), "mediator {leader} does not catch up");
        }
        assert!(status.nodes.iter().all(|node| node.starts >= Some(1)), "{status:#?}");
        if round == 2 {
            trade(&mut clients, 40, |_| {});
        }
    }
    assert_executed_once(&clients, 40);
    // All replicas come to one state, also those that received all of it again.
    let deadline = Deadline::after(LIMIT);
    loop {
        let states = [0, 1, 2].map(|mediator| state_at(&network, mediator));
        if states.iter().all(|state| state.index() == states[0].index()) {
            assert!(states.iter().all(|state| state.hash() == states[0].hash()), "{states:#?}");
            break;
        }
        assert!(!deadline.passed(), "{states:#?}");
    }
    // A node that does not come back has left.
    let router = |status: &NetworkStatus| {
        let is_router = |node: &&admin::NodeStatus| node.id == Role::Router.node(1);
        status.nodes.iter().find(is_router).cloned().unwrap()
    };
    ring.stop_one(Role::Router.node(1));
    let status = until(&network, "noticed", |status| !router(status).is_up);
    assert!(!status.is_healthy());
    ring.start_one(Role::Router.node(1), &network, &Arc::default());
    let status = until(&network, "back", NetworkStatus::is_healthy);
    assert_eq!(router(&status).starts, Some(2));
    assert_eq!((status.map_version, status.exceptions.len(), status.cells.len()), (0, 0, 3));
    ring.stop();
}

/// By instrument: the map version after its move, or why it was not moved.
type Outcomes = BTreeMap<u32, Result<u32, String>>;

/// The numbers of the requests that were executed on each instrument, in any cell, by the journals
/// of their mediators.
fn executed(ring: &TestRing) -> BTreeMap<u32, Vec<u64>> {
    let mut executed = BTreeMap::<u32, Vec<u64>>::new();
    let cells = ring.network.classes[Role::Mediator].nodes.len() as u16;
    for number in 0..cells {
        let folder = ring.network.folder(Role::Mediator.node(number)).unwrap();
        let mut reader = Reader::open(&folder.join(format!("cell-{number}"))).unwrap();
        let mut cell = Cell::<Book>::new(number, cells);
        while let Some(record) = reader.next_record().unwrap() {
            if record.kind != journal::RecordKind::Batch {
                continue;
            }
            let (time_ns, frames) = batch::decode(&record.bytes).unwrap();
            cell.begin(record.index, time_ns);
            for frame in frames {
                let admitted = cell.admit(frame.unwrap()).unwrap();
                let Admitted::Request(request) = admitted else { continue };
                if let Handled::Executed(outcome) = cell.handle(&request, |_| {}) {
                    executed.entry(request.instrument).or_default().push(outcome.output_seq);
                }
            }
        }
    }
    executed
}

/// Asserts that each reply to a session's requests on its instrument came once and in order; the
/// cell of the last one, by instrument.
fn assert_answered_once(clients: &[Client], count: u64) -> BTreeMap<u32, u16> {
    let mut cells = BTreeMap::new();
    for client in clients {
        let mut numbers = BTreeMap::<u32, Vec<u64>>::new();
        for reply in client.replies() {
            numbers.entry(reply.instrument).or_default().push(reply.output_seq);
            cells.insert(reply.instrument, reply.cell);
        }
        for (instrument, numbers) in numbers {
            let wanted: Vec<u64> = (1..=count).collect();
            assert_eq!(numbers, wanted, "instrument {instrument}");
        }
    }
    cells
}

/// Moves all instruments but the first five, one after the other; every third one after it has
/// begun to be traded. Counts the moves that it has begun and those that it has ended.
fn start_mover(
    network: &Network,
    instruments: &[u32],
    begun: &Arc<[AtomicBool]>,
    moves: &Arc<[AtomicUsize; 2]>,
) -> JoinHandle<Outcomes> {
    let (network, instruments) = (network.clone(), instruments.to_vec());
    let (begun, moves) = (Arc::clone(begun), Arc::clone(moves));
    std::thread::spawn(move || {
        let mut outcomes = Outcomes::new();
        for (at, instrument) in instruments.into_iter().enumerate().skip(5) {
            while at % 3 == 2 && !begun[at].load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(200));
            }
            moves[0].fetch_add(1, Ordering::AcqRel);
            let cell = ((instrument + 2) % 3) as u16;
            outcomes.insert(instrument, move_to(&network, instrument, cell));
            moves[1].fetch_add(1, Ordering::AcqRel);
        }
        outcomes
    })
}

/// Asserts that each instrument moved where it should, and that the map says so.
fn assert_where_the_map_has_them(network: &Network, instruments: &[u32], outcomes: &Outcomes) {
    let status = until(network, "healthy", NetworkStatus::is_healthy);
    let exceptions: BTreeMap<u32, u16> =
        status.exceptions.iter().map(|known| (known.instrument, known.cell)).collect();
    for instrument in instruments {
        let rule = (instrument % 3) as u16;
        let by_map = exceptions.get(instrument).copied().unwrap_or(rule);
        match outcomes.get(instrument) {
            Some(Ok(_)) => assert_eq!(by_map, ((instrument + 2) % 3) as u16),
            Some(Err(why)) => panic!("instrument {instrument}: {why}"),
            None => assert_eq!(by_map, ((instrument + 1) % 3) as u16),
        }
    }
    assert_eq!(status.map_version as usize, instruments.len(), "one version for each move");
    assert!(status.pending_moves.is_empty(), "{status:#?}");
}

/// Instruments move to other cells while they begin to be traded; the victims die meanwhile.
fn move_while_trading(victims: &[NodeId]) {
    const COUNT: u64 = 30;
    let mut ring = TestRing::new("2-2-3-2", Durability::MemoryQuorum);
    ring.network.record = true;
    ring.start();
    let network = ring.network.clone();
    until(&network, "healthy", NetworkStatus::is_healthy);
    // Two sessions, each with instruments of its own.
    let mut clients = [Client::new(&ring, 0, &[1]), Client::new(&ring, 1, &[2])];
    let instruments: Vec<u32> = (100..130).collect();
    // The first ones move before their first request.
    for instrument in &instruments[..5] {
        assert!(move_to(&network, *instrument, (instrument % 3) as u16).is_ok(), "no change");
        assert!(move_to(&network, *instrument, ((instrument + 1) % 3) as u16).is_ok());
    }
    // Of the others, one begins after its move, one during its move, and the third moves after it
    // has begun; and so on.
    let begun: Arc<[AtomicBool]> = instruments.iter().map(|_| AtomicBool::new(false)).collect();
    let moves = Arc::new([const { AtomicUsize::new(5) }; 2]);
    let mover = start_mover(&network, &instruments, &begun, &moves);
    let has_moved = |at: usize| match at % 3 {
        0 => moves[1].load(Ordering::Acquire) > at,
        1 => moves[0].load(Ordering::Acquire) > at,
        _ => true,
    };
    let deadline = Deadline::after(LIMIT);
    let (mut sent, mut killed) = (BTreeMap::<u32, u64>::new(), 0);
    loop {
        for (at, instrument) in instruments.iter().enumerate() {
            let (client, session) = (&mut clients[at % 2], at as u32 % 2 + 1);
            let before = instruments.get(at.wrapping_sub(3));
            let is_due = before.is_none_or(|before| sent.get(before) >= Some(&(COUNT / 3)));
            let may_begin = is_due && (at < 5 || has_moved(at));
            let sent = sent.entry(*instrument).or_default();
            if may_begin && *sent < COUNT && client.waiting() < 40 {
                *sent += 1;
                let side = if *sent % 2 == 0 { Side::Buy } else { Side::Sell };
                client.request(session, *instrument, &order(session, *sent, side, 100));
                begun[at].store(true, Ordering::Release);
            }
        }
        clients.iter_mut().for_each(Client::turn);
        let replies: usize = clients.iter().map(|client| client.replies().count()).sum();
        let total = instruments.len() * COUNT as usize;
        if killed < victims.len() && replies > (killed + 1) * total / (victims.len() + 2) {
            let node = victims[killed];
            killed += 1;
            ring.restart(node);
        }
        if replies == total {
            break;
        }
        assert!(!deadline.passed(), "{replies} replies to {sent:?}");
    }
    let outcomes = mover.join().unwrap();
    assert_eq!(killed, victims.len());
    assert_answered_once(&clients, COUNT);
    assert_where_the_map_has_them(&network, &instruments, &outcomes);
    if victims.is_empty() {
        ring.stop_all();
        for (instrument, mut numbers) in executed(&ring) {
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(1..=COUNT), "instrument {instrument}: {numbers:?}");
        }
    }
}

#[test]
fn instruments_move_while_they_begin_to_be_traded_and_never_trade_in_two_cells() {
    move_while_trading(&[]);
}

#[test]
fn instruments_move_while_a_leader_and_routers_die() {
    use Role::{Mediator, Router};
    // One mediator: a cell cannot lose the memory of two within a moment.
    move_while_trading(&[Router.node(0), Mediator.node(0), Router.node(1)]);
}

#[test]
fn an_instrument_moves_away_and_back_and_is_traded_in_its_first_cell() {
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    ring.start();
    let network = ring.network.clone();
    assert_eq!(move_to(&network, 0, 1), Ok(1));
    assert_eq!(move_to(&network, 0, 0), Ok(2));
    assert_eq!(move_to(&network, 1, 0), Ok(3));
    wait_for_map(&ring, 0, 3);
    let mut clients = [Client::new(&ring, 0, &[1, 2])];
    trade(&mut clients, 20, |_| {});
    assert_executed_once(&clients, 20);
    let home = clients[0].replies().find(|reply| reply.instrument == 0).unwrap();
    assert_eq!((home.cell, home.map_version), (0, 3));
    let refused = move_to(&network, 7, 2).unwrap_err();
    assert!(refused.contains("no cell 2"), "{refused}");
    ring.stop();
}

#[test]
fn a_network_without_a_majority_of_control_continues_trading_and_warns_once() {
    // No cell has replicas at both of these two mediators.
    let mut ring = TestRing::new("1-1-5-1", Durability::MemoryQuorum);
    ring.start();
    let network = ring.network.clone();
    until(&network, "healthy", NetworkStatus::is_healthy);
    ring.warnings.lock().unwrap().clear();
    assert_eq!(move_to(&network, 4, 1), Ok(1));
    wait_for_map(&ring, 0, 1);
    ring.stop_one(Role::Mediator.node(0));
    // Followers learn of the end of the move a heartbeat later, or from the next leader.
    let is_led = |status: &NetworkStatus| {
        let leader = status.control.as_ref().and_then(|control| control.leader);
        leader.is_some_and(|leader| leader != 0) && status.map_version == 1
    };
    until(&network, "led by another mediator", is_led);
    ring.stop_one(Role::Mediator.node(2));
    let mut clients = [Client::new(&ring, 0, &[1, 2])];
    trade(&mut clients, 60, |_| {});
    assert_executed_once(&clients, 60);
    let moved = clients[0].replies().find(|reply| reply.instrument == 4).unwrap();
    assert_eq!((moved.cell, moved.map_version), (1, 1));
    let is_stalled = |status: &NetworkStatus| status.control.as_ref().unwrap().stalled_ms > 0;
    let status = until(&network, "stalled", is_stalled);
    assert!(!status.is_healthy() && status.map_version == 1, "{status:#?}");
    let warning_count = |ring: &TestRing| {
        let warnings = ring.warnings.lock().unwrap();
        warnings.iter().filter(|warning| warning.contains("control group has no majority")).count()
    };
    let deadline = Deadline::after(LIMIT);
    while warning_count(&ring) == 0 {
        assert!(!deadline.passed(), "{:?}", ring.warnings.lock().unwrap());
        std::thread::sleep(Duration::from_millis(2));
    }
    let failure =
        admin::move_instruments(&network, &[9], 1, Duration::from_millis(300)).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Peer, "{failure}");
    assert_eq!(warning_count(&ring), 1);
    ring.stop();
}

#[test]
fn control_recovers_from_its_journal() {
    let mut ring = TestRing::new("1-1-2-1", Durability::DiskQuorum);
    ring.start();
    let network = ring.network.clone();
    until(&network, "healthy", NetworkStatus::is_healthy);
    assert_eq!((move_to(&network, 2, 1), move_to(&network, 1_000_001, 0)), (Ok(1), Ok(2)));
    ring.stop_all();
    assert_eq!(admin::status(&network, LIMIT).unwrap_err().kind, FailureKind::Peer);
    ring.start();
    let is_back = |status: &NetworkStatus| {
        status.is_healthy() && status.nodes.iter().all(|node| node.starts == Some(2))
    };
    let status = until(&network, "back", is_back);
    let exceptions: Vec<_> = status.exceptions.iter().map(|e| (e.instrument, e.cell)).collect();
    assert_eq!((status.map_version, exceptions), (2, vec![(2, 1), (1_000_001, 0)]));
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 20, |_| {});
    assert_executed_once(&clients, 20);
    let moved = clients[0].replies().find(|reply| reply.instrument == 2).unwrap();
    assert_eq!((moved.cell, moved.map_version), (1, 2));
    ring.stop();
}

#[test]
fn a_network_without_addresses_for_control_has_the_map_of_its_file() {
    let mut ring = TestRing::new("1-1-2-1", Durability::None);
    for node in &mut ring.network.classes[Role::Mediator].nodes {
        node.replication = None;
    }
    ring.start();
    let status = admin::status(&ring.network, LIMIT).unwrap();
    assert!(status.is_healthy() && status.control.is_none(), "{status:#?}");
    let refused = move_to(&ring.network, 1, 0).unwrap_err();
    assert!(refused.contains("no control group"), "{refused}");
    ring.stop_one(Role::Gateway.node(0));
    let status = admin::status(&ring.network, LIMIT).unwrap();
    assert!(!status.is_healthy() && !status.nodes[0].is_up && status.nodes[1].is_up, "{status:#?}");
    ring.stop_all();
    assert_eq!(admin::status(&ring.network, LIMIT).unwrap_err().kind, FailureKind::Peer);
}

/// A mediator to which the router connects, played by the test, announces that it leads a cell.
fn lead(mediator: &mut Peer, cell: u16, term: u32) {
    mediator.send(&Leader { cell, term });
}

/// Kind and cell of the next frame that is not about control, and the term of a leader.
fn next_data_frame(peer: &mut Peer) -> (Kind, u16, u32) {
    loop {
        let (kind, message) = peer.next();
        match kind {
            Kind::MembershipReport | Kind::RoutingTable => {}
            Kind::Leader => {
                let Leader { cell, term } = nm_wire::decode(&message).unwrap();
                return (kind, cell, term);
            }
            Kind::Request => {
                return (kind, nm_wire::decode::<Request>(&message).unwrap().cell, 0);
            }
            kind => return (kind, 0, 0),
        }
    }
}

/// A request for cell 0.
fn any_request() -> Request {
    nm_exchange::testing::request(1, 0, nm_book::order::Command::Tick)
}

/// A router, and what it is connected to, which the test plays: two mediators, with the listeners
/// of both, and a gateway.
fn router_among_peers() -> (TestRing, [UnixListener; 2], [Peer; 2], Peer) {
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    let network = ring.network.clone();
    let listeners = [0, 1]
        .map(|mediator| peer::listener(&network.classes[Role::Mediator].nodes[mediator].address));
    ring.start_one(Role::Router.node(0), &network, &Default::default());
    let mediators = [0, 1].map(|idx| Peer::accepted(&listeners[idx], 10 + idx as u64));
    let hello = Who::Node { node: Role::Gateway.node(0), start: 12 };
    let gateway = Peer::connected(&network.classes[Role::Router].nodes[0].address, &hello);
    (ring, listeners, mediators, gateway)
}

/// A mediator may know of an added cell before the router's map has it. Nobody would tell the
/// router of its leader again.
#[test]
fn a_router_keeps_the_leader_of_a_cell_that_its_map_lacks() {
    let (ring, _listeners, [mut first, _second], mut gateway) = router_among_peers();
    lead(&mut first, 2, 3);
    lead(&mut first, 0, 5);
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 2, 3));
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 0, 5));
    gateway.send(&Request { cell: 2, ..any_request() });
    assert_eq!(next_data_frame(&mut first), (Kind::Request, 2, 0));
    ring.stop();
}

#[test]
fn a_router_ignores_a_leader_with_an_older_term_than_control_s() {
    let (ring, listeners, [mut first, mut second], mut gateway) = router_among_peers();
    let ask = |gateway: &mut Peer| gateway.send(&any_request());

    // A router that has just started learns the leader from control.
    let mut routes = RoutingTable::new(InstrumentMap::new(2));
    routes.leaders.insert(0, CellLeader { mediator: 1, term: 7, start: 11 });
    second.send(&routes.message());
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 0, 7));
    // The leader of an older term announces itself, too late.
    lead(&mut first, 0, 5);
    lead(&mut first, 1, 5);
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 1, 5));
    ask(&mut gateway);
    assert_eq!(next_data_frame(&mut second), (Kind::Request, 0, 0));
    // It is elected again; the routing table of control is older.
    lead(&mut first, 0, 9);
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 0, 9));
    second.send(&routes.message());
    lead(&mut second, 1, 6);
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 1, 6));
    ask(&mut gateway);
    assert_eq!(next_data_frame(&mut first), (Kind::Request, 0, 0));
    // It restarts: the terms of the next leader may begin at 1.
    drop(first);
    let _first = Peer::accepted(&listeners[0], 12);
    lead(&mut second, 0, 1);
    assert_eq!(next_data_frame(&mut gateway), (Kind::Leader, 0, 1));
    ask(&mut gateway);
    assert_eq!(next_data_frame(&mut second), (Kind::Request, 0, 0));
    ring.stop();
}

/// The membership report that comes next. No map is sent back to where it came from.
fn next_report(mediator: &mut Peer) -> MembershipReport {
    loop {
        let (kind, body) = mediator.next();
        assert_ne!(kind, Kind::RoutingTable);
        if kind == Kind::MembershipReport {
            return MembershipReport::decode(&body).unwrap();
        }
    }
}

/// A map of two cells in which so many instruments have moved.
fn moved(count: u32) -> InstrumentMap {
    let mut map = InstrumentMap::new(2);
    (0..count).for_each(|it| map.assign(2 * it, Placement { cell: 1, epoch: it + 1 }));
    map
}

#[test]
fn a_router_reports_no_map_that_control_has_logged() {
    let (ring, _listeners, [mut first, mut second], mut gateway) = router_among_peers();
    let mut routes = RoutingTable::new(InstrumentMap::new(2));
    routes.leaders.insert(0, CellLeader { mediator: 1, term: 7, start: 11 });
    second.send(&routes.message());
    for mediator in [&mut first, &mut second] {
        while {
            let report = next_report(mediator);
            report.nodes.len() < 3 || report.routes.leaders.is_empty()
        } {}
    }

    // Control sends its map; then a gateway that has it by another router reports another node.
    routes.map = moved(1);
    second.send(&routes.message());
    while gateway.next().0 != Kind::RoutingTable {}
    let processor = Role::Processor.node(0);
    let mut report = MembershipReport::new(moved(1));
    let mut send = |map: InstrumentMap, start: u64| {
        report.routes.map = map;
        report.nodes.insert(processor, start);
        gateway.send(&report.message());
        gateway.send(&any_request());
    };
    send(moved(1), 1);
    let (kind, body) = first.next();
    assert_eq!(kind, Kind::RoutingTable);
    assert_eq!(RoutingTable::decode(&body).unwrap(), routes);
    let start_of = |report: &MembershipReport| report.nodes.get(&processor).copied();
    assert_eq!(start_of(&next_report(&mut first)), Some(1), "it reported a map of control");
    assert_eq!(start_of(&next_report(&mut second)), Some(1), "it reported a map of control");

    // It reports the same again: control has no use for that.
    send(moved(1), 1);
    while second.next().0 != Kind::Request {}
    send(moved(1), 2);
    assert_eq!(start_of(&next_report(&mut second)), Some(2), "it reported the same again");

    // It has a map that control has lost: the report has it at once, and all mediators get it.
    send(moved(2), 2);
    for mediator in [&mut first, &mut second] {
        let (mut reported, mut sent) = (None, None);
        while reported.is_none() || sent.is_none() {
            let (kind, body) = mediator.next();
            match kind {
                Kind::MembershipReport => {
                    let report = MembershipReport::decode(&body).unwrap();
                    assert_eq!(start_of(&report), Some(2));
                    reported = Some(report.routes.map);
                }
                Kind::RoutingTable => sent = Some(RoutingTable::decode(&body).unwrap().map),
                _ => {}
            }
        }
        assert_eq!([reported, sent], [Some(moved(2)), Some(moved(2))]);
    }
    ring.stop();
}

#[test]
fn a_router_does_not_send_all_nodes_a_map_for_each_of_many_moves() {
    const MOVES: u32 = 100;
    let (ring, _listeners, [_first, mut second], mut gateway) = router_among_peers();
    for count in 1..=MOVES {
        let routes = RoutingTable::new(moved(count));
        second.send(&routes.message());
    }
    let (mut tables, mut map) = (0, InstrumentMap::new(2));
    while map.version() < MOVES {
        let (kind, body) = gateway.next();
        if kind == Kind::RoutingTable {
            map = RoutingTable::decode(&body).unwrap().map;
            tables += 1;
        }
    }
    assert_eq!(map, moved(MOVES));
    assert!(tables < MOVES / 4, "{tables}");
    ring.stop();
}

/// Routers send each map that is new to them to all mediators, and may report nothing because of
/// it.
#[test]
fn control_restores_a_map_that_its_node_has_from_a_router() {
    let mut ring = TestRing::new("1-1-2-1", Durability::MemoryQuorum);
    let network = ring.network.clone();
    for node in [Role::Processor.node(0), Role::Mediator.node(0), Role::Mediator.node(1)] {
        ring.start_one(node, &network, &Default::default());
    }
    until(&network, "led", |status| status.control.is_some());
    let hello = Who::Node { node: Role::Router.node(0), start: 5 };
    let mut routers = [0, 1].map(|mediator| {
        Peer::connected(&network.classes[Role::Mediator].nodes[mediator].address, &hello)
    });
    let routes = RoutingTable::new(moved(2));
    for router in &mut routers {
        router.send(&routes.message());
    }
    until(&network, "restored", |status| status.map_version == 2);
    ring.stop();
}
