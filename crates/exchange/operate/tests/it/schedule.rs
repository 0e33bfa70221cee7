//! A schedule directs a network: at the times that are passed in, and each phase once.

use nm_book::order::{Command, Event, NewOrder, RejectReason, Side, TimeInForce};
use nm_exchange::network::Durability;
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_operate::schedule::{Phase, Schedule};
use nm_operate::{directions, scheduler};
use nm_sys::clock::Deadline;
use nm_wire::{Direction, Series};

/// 2026-01-05, a Monday, 00:00 UTC.
const MONDAY_S: u64 = 1_767_571_200;

const HOUR_S: u64 = 3_600;

const TEXT: &str = "zone = \"+02:00\"\ndays = [\"mon\", \"tue\"]\n[[group]]\nname = \"all\"\n\
                    pre_open = \"08:00\"\nopen = \"09:00\"\nclosing_auction = \"17:00\"\n\
                    close = \"18:00\"\n";

fn schedule(ring: &TestRing) -> Schedule {
    let file = ring.folder.path().join("schedule.toml");
    std::fs::write(&file, TEXT).unwrap();
    Schedule::read(&file).unwrap()
}

/// The events of the answer to one request.
fn answer(client: &mut Client, command: &Command) -> Vec<Event> {
    let deadline = Deadline::after(LIMIT);
    let before = client.replies().count();
    let session = *client.sessions.keys().next().unwrap();
    client.request(session, 0, command);
    while client.waiting() > 0 {
        client.turn();
        assert!(!deadline.passed(), "no answer");
    }
    let reply = client.replies().nth(before).unwrap();
    let events: Series<'_, Event> = Series::of(&reply.events);
    events.map(|event| event.unwrap()).collect()
}

/// An order that stays until it is cancelled.
fn good_till_cancelled(session: u32, seq: u64, side: Side, price: i64) -> Command {
    match order(session, seq, side, price) {
        Command::New(new) => Command::New(NewOrder {
            time_in_force: TimeInForce::GoodTillCancelled,
            quantity: 5,
            ..new
        }),
        other => other,
    }
}

/// What begins at a time.
fn step(ring: &TestRing, schedule: &Schedule, now_s: u64) -> Vec<Phase> {
    let mut begun = vec![];
    scheduler::step(&ring.network, schedule, now_s, |one| begun.push(one.due.phase)).unwrap();
    begun
}

fn is_rejected(events: &[Event], reason: RejectReason) -> bool {
    matches!(events, [Event::Rejected { reason: it, .. }] if *it == reason)
}

#[test]
fn the_phases_of_a_day_begin_once_and_good_till_cancel_orders_stay() {
    let mut ring = TestRing::new("1-1-2-2", Durability::MemoryQuorum);
    ring.start();
    let schedule = schedule(&ring);
    let mut client = Client::new(&ring, 0, &[1]);
    client.connect();
    let rejected = answer(&mut client, &order(1, 1, Side::Buy, 100));
    assert!(matches!(rejected[..], [Event::Accepted { .. }]), "it is open before any schedule");
    // Before eight of the first day, the close of the week before is due, and halts.
    let night_s = MONDAY_S + HOUR_S;
    assert_eq!(step(&ring, &schedule, night_s), [Phase::Close]);
    let rejected = answer(&mut client, &order(1, 2, Side::Buy, 100));
    assert!(is_rejected(&rejected, RejectReason::Halted), "{rejected:?}");
    assert_eq!(step(&ring, &schedule, night_s), []);
    assert_eq!(step(&ring, &schedule, MONDAY_S + 6 * HOUR_S), [Phase::PreOpen]);
    // Orders of the opening auction: they cross, and do not trade before nine.
    for (seq, side) in [(3, Side::Buy), (4, Side::Sell)] {
        let command = good_till_cancelled(1, seq, side, 100);
        assert!(matches!(answer(&mut client, &command)[..], [Event::Accepted { .. }]));
    }
    assert_eq!(step(&ring, &schedule, MONDAY_S + 7 * HOUR_S - 1), []);
    assert_eq!(step(&ring, &schedule, MONDAY_S + 7 * HOUR_S), [Phase::Open]);
    let gone = answer(&mut client, &Command::Cancel { id: 1 << 32 | 3, user: 1 });
    let events: Vec<Event> = client
        .received
        .iter()
        .flat_map(|it| Series::<Event>::of(&it.events).map(|event| event.unwrap()))
        .collect();
    assert!(is_rejected(&gone, RejectReason::UnknownOrder), "it has traded: {events:?}");
    // An operator halts, and nobody looks until the evening: what was missed is done, in order.
    directions::direct_all(&ring.network, Direction::Halt).unwrap();
    directions::direct_all(&ring.network, Direction::Resume).unwrap();
    let kept = good_till_cancelled(1, 5, Side::Buy, 90);
    assert!(matches!(answer(&mut client, &kept)[..], [Event::Accepted { .. }]));
    let of_day = answer(&mut client, &order(1, 6, Side::Buy, 80));
    assert!(matches!(of_day[..], [Event::Accepted { .. }]));
    let mut on_close = order(1, 7, Side::Buy, 85);
    if let Command::New(new) = &mut on_close {
        new.time_in_force = TimeInForce::AtClose;
    }
    let on_close = answer(&mut client, &on_close);
    assert!(matches!(on_close[..], [Event::Accepted { .. }]), "{on_close:?}");
    let evening_s = MONDAY_S + 20 * HOUR_S;
    let missed = [Phase::ClosingAuction, Phase::Close];
    assert_eq!(step(&ring, &schedule, evening_s), missed);
    assert_eq!(step(&ring, &schedule, evening_s), []);
    let of_day = answer(&mut client, &Command::Cancel { id: 1 << 32 | 6, user: 1 });
    assert!(is_rejected(&of_day, RejectReason::UnknownOrder), "{of_day:?}");
    // The next day begins, and the other order is there.
    assert_eq!(step(&ring, &schedule, MONDAY_S + 31 * HOUR_S), [Phase::PreOpen, Phase::Open]);
    let kept = answer(&mut client, &Command::Cancel { id: 1 << 32 | 5, user: 1 });
    assert!(matches!(kept[..], [Event::Cancelled { .. }]), "{kept:?}");
    // What has begun is in control's log: whoever leads it later knows.
    for mediator in [0, 1] {
        let ready = ring.restart(nm_exchange::network::Role::Mediator.node(mediator));
        let deadline = Deadline::after(LIMIT);
        while ready.load(std::sync::atomic::Ordering::Acquire) == 0 {
            assert!(!deadline.passed(), "mediator {mediator} is not ready");
            client.turn();
        }
    }
    assert_eq!(step(&ring, &schedule, MONDAY_S + 31 * HOUR_S), []);
    ring.stop_all();
}
