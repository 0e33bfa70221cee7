//! A snapshot of a large cell while it is traded. Built without debug assertions it is one of about
//! 1 GB, and the figures that are printed are of interest: `cargo test --release -p nm-exchange
//! --test it large_snapshot -- --nocapture`.

use nm_book::book::Book;
use nm_book::order::{Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce};
use nm_exchange::cell::{Cell, Request};
use nm_sys::clock::{Deadline, monotonic_ns};

/// Instruments, sessions of each, and orders of each session.
const INSTRUMENTS: u32 = if cfg!(debug_assertions) { 4 } else { 64 };
const SESSIONS: u32 = 8;
const ORDERS: u64 = if cfg!(debug_assertions) { 600 } else { 25_000 };

/// A buy order that rests; it acknowledges all events.
fn order(instrument: u32, session: u32, seq: u64) -> Request {
    Request {
        session,
        gateway: 0,
        instrument,
        owner: nm_wire::Owner::NOBODY,
        map_version: 0,
        cell: 0,
        attempt: 0,
        client_seq: seq,
        previous_seq: seq - 1,
        intended_ns: 0,
        acknowledged: u64::MAX,
        is_previous_answered: false,
        breach: 0,
        command: Command::New(NewOrder {
            id: u64::from(session) << 32 | seq,
            user: session,
            side: Side::Buy,
            order_type: OrderType::Limit,
            time_in_force: TimeInForce::GoodTillCancelled,
            price: 100 + (seq % 500) as i64,
            stop_price: 0,
            quantity: 5,
            display: 0,
            minimum: 0,
            is_hidden: false,
            peg: Peg::No,
            post_only: PostOnly::No,
            self_trade: SelfTrade::CancelNewest,
        }),
    }
}

#[test]
fn a_snapshot_of_a_large_cell_does_not_stop_it() {
    let mut cell = Cell::<Book>::default();
    cell.begin(1, 7);
    for seq in 1..=ORDERS {
        for session in 1..=SESSIONS {
            for instrument in 0..INSTRUMENTS {
                cell.handle(&order(instrument, session, seq), |_| {});
            }
        }
    }
    let begin_ns = monotonic_ns();
    let saved = cell.save();
    let at_once_ns = monotonic_ns() - begin_ns;

    let (limit, begin_ns) = (Deadline::after(nm_exchange::testing::LIMIT * 5), monotonic_ns());
    cell.begin_snapshot();
    let (mut longest_ns, mut requests) = (monotonic_ns() - begin_ns, 0);
    let snapshot = loop {
        let turn_ns = monotonic_ns();
        let (instrument, turn) = (requests % INSTRUMENTS, u64::from(requests / INSTRUMENTS));
        cell.handle(&order(instrument, 1, ORDERS + 1 + turn), |_| {});
        requests += 1;
        let snapshot = cell.copy_next();
        longest_ns = longest_ns.max(monotonic_ns() - turn_ns);
        if let Some(snapshot) = snapshot {
            break snapshot;
        }
        assert!(!limit.passed(), "{requests} requests");
        if !cell.is_copying() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    assert!(snapshot == saved, "it is that of the state when it began");
    // For people, with --nocapture.
    let ms = |ns: u64| ns as f64 / 1e6;
    let (size_mb, took_ms) = (saved.len() as f64 / 1e6, ms(monotonic_ns() - begin_ns));
    println!(
        "{size_mb:.0} MB: saved at once in {:.0} ms; as a snapshot in {took_ms:.0} ms, while \
         {requests} requests were executed, and the longest turn took {:.1} ms",
        ms(at_once_ns),
        ms(longest_ns),
    );
}
