//! Instruments move between the cells of complete rings in one process while they are traded, and
//! nodes die or lose their links meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_book::book::Book;
use nm_exchange::batch;
use nm_exchange::cell::{Admitted, Cell, MoveStep};
use nm_exchange::limits::{CELL_LEAVING_MAX, MOVES_ORDERED_MAX};
use nm_exchange::moves::{MoveId, MoveOrder};
use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_exchange::testing::{
    Client, INSTRUMENTS, LIMIT, TestRing, assert_executed_once, start_with_cutters, trade,
};
use nm_operate::admin::{self, InstrumentMover};
use nm_replica::journal::{self, Reader};
use nm_sys::clock::Deadline;
use nm_wire::{Kind, Who};

use crate::peer::{self, Peer};

/// Moves all instruments from cell to cell until it is stopped; how often, and how long it took at
/// most, ms.
struct Mover {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Mover {
    fn start(network: &Network) -> Mover {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (network, stopped) = (network.clone(), Arc::clone(&is_stopped));
        let thread = std::thread::spawn(move || {
            let (cells, mut count) = (network.classes[Role::Mediator].nodes.len() as u32, 0);
            let mut mover = InstrumentMover::new(&network).unwrap();
            for round in 1.. {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                let cell = |instrument: u32| ((instrument + round) % cells) as u16;
                let moves: Vec<_> = (0..INSTRUMENTS).map(|it| (it, cell(it))).collect();
                let outcomes = mover.move_all(&moves, LIMIT).unwrap();
                assert_eq!(outcomes.len(), moves.len());
                for outcome in outcomes {
                    assert_eq!(outcome.refused, None, "{outcome:?}");
                    count += 1;
                }
            }
            count
        });
        Mover { is_stopped, thread }
    }

    fn stop(self) -> usize {
        self.is_stopped.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// What the journals of cells say of moves: by move, the hash of the instrument's state, when it
/// was released and when it was adopted.
#[derive(Debug, Default)]
struct Moves {
    released: BTreeMap<MoveId, Vec<u64>>,
    adopted: BTreeMap<MoveId, Vec<u64>>,
}

/// Reads the journals of all cells, each from the replica that has most of it.
fn moves_of(ring: &TestRing) -> Moves {
    let mut moves = Moves::default();
    let cells = ring.network.active_cells();
    for number in 0..cells {
        let mut replicas = ring.network.replicas(number);
        if ring.network.durability == Durability::None {
            replicas.truncate(1);
        }
        let folders = replicas
            .into_iter()
            .map(|node| ring.network.folder(node).unwrap().join(format!("cell-{number}")));
        let records = folders.map(|folder| {
            let (mut reader, mut records) = (Reader::open(&folder).unwrap(), vec![]);
            while let Some(record) = reader.next_record().unwrap() {
                if record.kind == journal::RecordKind::Batch {
                    records.push(record);
                }
            }
            records
        });
        let records = records.max_by_key(Vec::len).unwrap();
        let mut cell = Cell::<Book>::new(number, cells);
        cell.accepts_unknown_sessions = ring.network.durability != Durability::DiskQuorum;
        for record in records {
            let (time_ns, frames) = batch::decode(&record.bytes).unwrap();
            cell.begin(record.index, time_ns);
            for frame in frames {
                match cell.admit(frame.unwrap()).unwrap() {
                    Admitted::Request(request) => drop(cell.handle(&request, |_| {})),
                    Admitted::NotOwned | Admitted::Undecodable => {}
                    Admitted::Move(MoveStep::Released(id)) => {
                        let hash = cell.instrument_hash(id.instrument).unwrap();
                        moves.released.entry(id).or_default().push(hash);
                    }
                    Admitted::Move(MoveStep::Adopted(id)) => {
                        let hash = cell.instrument_hash(id.instrument).unwrap();
                        moves.adopted.entry(id).or_insert_with(|| vec![hash]);
                    }
                    Admitted::Move(_)
                    | Admitted::Retired(_)
                    | Admitted::Watched
                    | Admitted::Firms(_)
                    | Admitted::Stopped(_) => {}
                }
            }
        }
    }
    moves
}

/// Asserts that each move was released in one cell and adopted in one, with equal states.
fn assert_one_owner(ring: &TestRing) {
    let Moves { released, adopted } = moves_of(ring);
    assert!(!released.is_empty());
    assert_eq!(released, adopted);
    assert!(released.values().all(|hashes| hashes.len() == 1), "{released:?}");
}

/// Trades in a ring whose instruments move all the time; `meanwhile` gets the number of replies.
fn trade_while_moving(
    ring: &mut TestRing,
    count: u64,
    meanwhile: impl FnMut(&mut TestRing, usize),
) -> usize {
    let mover = Mover::start(&ring.network);
    let mut clients = [Client::new(ring, 0, &[1, 2]), Client::new(ring, 1, &[3, 4])];
    let mut meanwhile = meanwhile;
    trade(&mut clients, count, |replies| meanwhile(ring, replies));
    let moves = mover.stop();
    assert_executed_once(&clients, count);
    moves
}

fn ring(counts: &str, durability: Durability) -> TestRing {
    let mut ring = TestRing::new(counts, durability);
    ring.network.record = true;
    ring
}

fn nothing_is_lost_while_instruments_move(durability: Durability) {
    let mut ring = ring("2-2-3-2", durability);
    ring.start();
    let moves = trade_while_moving(&mut ring, 300, |_, _| {});
    assert!(moves >= INSTRUMENTS as usize, "{moves} moves");
    ring.stop_all();
    assert_one_owner(&ring);
}

#[test]
fn nothing_is_lost_while_instruments_move_without_durability() {
    nothing_is_lost_while_instruments_move(Durability::None);
}

#[test]
fn nothing_is_lost_while_instruments_move_between_memory_quorums() {
    nothing_is_lost_while_instruments_move(Durability::MemoryQuorum);
}

#[test]
fn nothing_is_lost_while_instruments_move_between_disk_quorums() {
    nothing_is_lost_while_instruments_move(Durability::DiskQuorum);
}

/// Restarts nodes one after the other while instruments move.
fn nodes_die_while_instruments_move(durability: Durability, victims: &[NodeId]) {
    const COUNT: u64 = 300;
    let mut ring = ring("2-2-3-2", durability);
    ring.start();
    let mut killed = 0;
    let total = COUNT as usize * 4 * INSTRUMENTS as usize;
    trade_while_moving(&mut ring, COUNT, |ring, replies| {
        if killed < victims.len() && replies > (killed + 1) * total / (victims.len() + 2) {
            let node = victims[killed];
            ring.restart(node);
            killed += 1;
        }
    });
    assert_eq!(killed, victims.len());
    ring.stop_all();
    if durability == Durability::DiskQuorum {
        assert_one_owner(&ring);
    }
}

#[test]
fn stateless_nodes_die_while_instruments_move() {
    use Role::{Gateway, Processor, Router};
    let victims =
        [Router.node(0), Processor.node(1), Gateway.node(0), Router.node(1), Processor.node(0)];
    nodes_die_while_instruments_move(Durability::None, &victims);
}

#[test]
fn leaders_and_routers_die_while_instruments_move_between_memory_quorums() {
    use Role::{Mediator, Router};
    nodes_die_while_instruments_move(
        Durability::MemoryQuorum,
        &[Router.node(0), Mediator.node(0), Router.node(1)],
    );
}

#[test]
fn all_mediators_die_in_turn_while_instruments_move_between_disk_quorums() {
    use Role::{Mediator, Processor};
    nodes_die_while_instruments_move(
        Durability::DiskQuorum,
        &[Mediator.node(0), Mediator.node(1), Processor.node(0), Mediator.node(2)],
    );
}

#[test]
fn nothing_is_lost_while_instruments_move_over_links_that_are_cut() {
    let mut ring = ring("2-2-3-2", Durability::MemoryQuorum);
    let cutters = start_with_cutters(&mut ring);
    trade_while_moving(&mut ring, 60, |_, _| {});
    assert!(cutters.iter().map(|cutter| cutter.cuts()).sum::<u64>() > 5);
    drop(cutters);
    ring.stop_all();
    assert_one_owner(&ring);
}

/// More than may be ordered at once, or may leave a cell at once.
#[test]
fn many_instruments_move_at_once() {
    let mut ring = ring("1-2-2-1", Durability::MemoryQuorum);
    ring.start();
    let network = ring.network.clone();
    let count = 10 * MOVES_ORDERED_MAX.max(CELL_LEAVING_MAX) as u32;
    let moves: Vec<_> = (0..count).map(|instrument| (instrument * 2, 1)).collect();
    let mover = std::thread::spawn(move || admin::move_all(&network, &moves, LIMIT).unwrap());
    let mut clients = [Client::new(&ring, 0, &[1, 2])];
    trade(&mut clients, 100, |_| {});
    let outcomes = mover.join().unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.map_version.is_some()), "{outcomes:?}");
    assert_eq!(outcomes.len(), count as usize);
    assert_executed_once(&clients, 100);
    let status = admin::status(&ring.network, LIMIT).unwrap();
    assert_eq!((status.exceptions.len(), status.pending_moves.len()), (count as usize, 0));
    ring.stop_all();
    assert_one_owner(&ring);
}

#[test]
fn spare_mediators_take_instruments_and_give_them_back() {
    let mut ring = ring("2-1-3-1", Durability::None);
    ring.network.spare_mediators = 2;
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2])];
    let network = ring.network.clone();
    let cells = |clients: &[Client]| {
        let replies = clients[0].replies();
        replies.map(|reply| (reply.instrument, reply.cell)).collect::<BTreeMap<_, _>>()
    };
    let (mut has_moved, mut is_back) = (false, false);
    trade(&mut clients, 200, |replies| {
        if !has_moved && replies > 200 {
            has_moved = true;
            let outcomes = admin::move_all(&network, &[(0, 1), (1, 2), (2, 1)], LIMIT).unwrap();
            assert!(outcomes.iter().all(|outcome| outcome.map_version.is_some()), "{outcomes:?}");
        }
        if !is_back && replies > 1_000 {
            is_back = true;
            admin::move_instruments(&network, &[1], 0, LIMIT).unwrap();
        }
    });
    assert_executed_once(&clients, 200);
    // All requests on an instrument may have been answered before it moved.
    trade(&mut clients, 10, |_| {});
    let last = BTreeMap::from([(0, 1), (1, 0), (2, 1), (3, 0), (4, 0)]);
    assert_eq!(cells(&clients), last);
    ring.stop_all();
}

/// The test plays the other nodes. Whatever one of them is cut off from, another one may reach.
#[test]
fn instrument_that_did_not_arrive_is_sent_again_through_another_router() {
    let mut ring = TestRing::new("1-2-2-1", Durability::None);
    let network = ring.network.clone();
    let listener = peer::listener(&network.classes[Role::Processor].nodes[0].address);
    ring.start_one(Role::Mediator.node(0), &network, &Default::default());
    // It connects to processors, and is connected to by routers.
    let _processor = Peer::accepted(&listener, 5);
    let mut routers = [0, 1].map(|index| {
        let hello = Who::Node { node: Role::Router.node(index), start: 5 };
        Peer::connected(&network.classes[Role::Mediator].nodes[0].address, &hello)
    });
    let order = MoveOrder { id: MoveId { instrument: 0, epoch: 1 }, from: 0, to: 1 };
    let (mut has_parts, deadline) = ([false; 2], Deadline::after(LIMIT));
    while has_parts != [true; 2] {
        assert!(!deadline.passed(), "parts came through {has_parts:?}");
        routers[0].send(&order);
        for (router, has_parts) in routers.iter_mut().zip(&mut has_parts) {
            while let Some((kind, _)) = router.next_within(Duration::from_millis(20)) {
                *has_parts |= kind == Kind::MoveParts;
            }
        }
    }
    ring.stop();
}
