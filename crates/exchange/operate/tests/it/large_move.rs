//! An instrument with a large state moves while it is traded. Built without debug assertions the
//! state is that of more than 20 MB, and the figures that are printed are of interest:
//! `cargo test --release -p nm-operate --test it large_move -- --nocapture`.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nm_book::order::Side;
use nm_exchange::batch;
use nm_exchange::moves::{MoveParts, Part};
use nm_exchange::network::{Durability, Network, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::admin::{self, MoveOutcome};
use nm_replica::journal::{Reader, RecordKind};
use nm_sys::clock::{Deadline, monotonic_ns};
use nm_wire::Kind;

/// The instrument that moves, from cell 0 to cell 1.
const INSTRUMENT: u32 = 0;

/// An instrument that stays in cell 0.
const NEIGHBOUR: u32 = 2;

/// Sessions, each with so many orders that rest and whose events it does not acknowledge.
const SESSIONS: u32 = if cfg!(debug_assertions) { 64 } else { 1_000 };
const ORDERS: u64 = if cfg!(debug_assertions) { 100 } else { 260 };

/// Requests of a session without a reply.
const WINDOW: u64 = 16;

/// Fills the book of the instrument: nothing trades.
fn fill(client: &mut Client) {
    let limit = Deadline::after(LIMIT * 5);
    let sessions: Vec<u32> = client.sessions.keys().copied().collect();
    for sent in (0..ORDERS).step_by(WINDOW as usize) {
        for session in &sessions {
            for seq in sent + 1..=(sent + WINDOW).min(ORDERS) {
                let price = 100 + (u64::from(*session) * 7 + seq) as i64 % 500;
                let (side, price) = match session % 2 {
                    0 => (Side::Buy, price),
                    _ => (Side::Sell, price + 1_000),
                };
                client.request(*session, INSTRUMENT, &order(*session, seq, side, price));
            }
        }
        while client.waiting() > 0 {
            assert!(!limit.passed(), "{} requests wait", client.waiting());
            client.turn();
        }
    }
}

/// Sends one request after the other on an instrument until the move has ended, and a few more;
/// the longest round trip, ns.
fn trade_until_moved(
    client: &mut Client,
    instrument: u32,
    moved: Receiver<Vec<MoveOutcome>>,
) -> (u64, Vec<MoveOutcome>) {
    let session = *client.sessions.keys().next().unwrap();
    let (mut outcomes, mut left, mut longest_ns) = (vec![], 20, 0);
    while left > 0 {
        if outcomes.is_empty() {
            outcomes = moved.try_recv().unwrap_or_default();
        } else {
            left -= 1;
        }
        let seq = client.sessions[&session] + 1;
        let begin_ns = monotonic_ns();
        client.request(session, instrument, &order(session, seq, Side::Buy, 7));
        while client.waiting() > 0 {
            client.turn();
        }
        longest_ns = longest_ns.max(monotonic_ns() - begin_ns);
    }
    (longest_ns, outcomes)
}

/// Bytes of the instrument that the journal of its new cell has.
fn bytes_moved(ring: &TestRing) -> usize {
    let folder = ring.network.folder(Role::Mediator.node(1)).unwrap().join("cell-1");
    let (mut reader, mut bytes) = (Reader::open(&folder).unwrap(), 0);
    while let Some(record) = reader.next_record().unwrap() {
        if record.kind != RecordKind::Batch {
            continue;
        }
        for frame in batch::decode(&record.bytes).unwrap().1 {
            let frame = frame.unwrap();
            if frame.kind() == Kind::MoveParts {
                bytes += (frame.read::<MoveParts<'_>>().unwrap().parts)
                    .map(|part| match part.unwrap() {
                        Part::Sessions { saved } | Part::Book { saved } => saved.0.len(),
                        _ => 0,
                    })
                    .sum::<usize>();
            }
        }
    }
    bytes
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn a_large_instrument_moves(durability: Durability) {
    let mut ring = TestRing::new("1-1-2-1", durability);
    ring.network.record = true;
    ring.start();
    let all: Vec<u32> = (1..=SESSIONS).collect();
    let mut client = Client::new(&ring, 0, &all);
    fill(&mut client);
    let mut neighbour = Client::new(&ring, 0, &[SESSIONS + 1]);
    let (sender, moved) = channel();
    let (neighbour_sender, neighbour_moved) = channel();
    let network: Network = ring.network.clone();
    let (longest_ns, neighbour_ns, outcomes) = thread::scope(|scope| {
        scope.spawn(move || {
            // Both clients trade before it begins.
            thread::sleep(Duration::from_millis(200));
            let outcomes = admin::move_instruments(&network, &[INSTRUMENT], 1, LIMIT).unwrap();
            sender.send(outcomes.clone()).unwrap();
            neighbour_sender.send(outcomes).unwrap();
        });
        let of_neighbour =
            scope.spawn(|| trade_until_moved(&mut neighbour, NEIGHBOUR, neighbour_moved).0);
        let (longest_ns, outcomes) = trade_until_moved(&mut client, INSTRUMENT, moved);
        (longest_ns, of_neighbour.join().unwrap(), outcomes)
    });
    let work = admin::work(&ring.network, LIMIT).unwrap();
    let pauses: Vec<f64> =
        work.iter().flat_map(|(_, work)| &work.pauses_ns).map(|ns| ms(*ns)).collect();
    ring.stop_all();
    let replies: Vec<u64> = client
        .replies()
        .filter(|reply| reply.instrument == INSTRUMENT)
        .map(|reply| reply.output_seq)
        .collect();
    assert!(replies.len() as u64 > u64::from(SESSIONS) * ORDERS + 20);
    let mut sorted = replies.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(1..=replies.len() as u64), "each is executed once");
    assert_eq!(client.replies().last().unwrap().cell, 1);
    assert!(neighbour.replies().all(|reply| reply.cell == 0));
    assert!(outcomes[0].map_version.is_some() && pauses.len() == 1, "{outcomes:?} {pauses:?}");
    let bytes = bytes_moved(&ring);
    let least = u64::from(SESSIONS) * ORDERS * 50;
    assert!(bytes as u64 > least, "{bytes} bytes");
    // For people, with --nocapture.
    #[expect(clippy::print_stdout, reason = "the figures of a large move")]
    {
        println!(
            "{durability}: {:.1} MB moved in {:.0} ms, paused for {:.2} ms; the longest round trip \
         meanwhile was {:.1} ms, on another instrument of the old cell {:.1} ms",
            bytes as f64 / 1e6,
            outcomes[0].took_ms,
            pauses[0],
            ms(longest_ns),
            ms(neighbour_ns)
        );
    }
}

#[test]
fn a_large_instrument_moves_while_it_is_traded_without_durability() {
    a_large_instrument_moves(Durability::None);
}

#[test]
fn a_large_instrument_moves_while_it_is_traded_between_memory_quorums() {
    a_large_instrument_moves(Durability::MemoryQuorum);
}

#[test]
fn a_large_instrument_moves_while_it_is_traded_between_disk_quorums() {
    a_large_instrument_moves(Durability::DiskQuorum);
}
