//! What clients can ask of a network at most, over its links.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nm_book::order::{Command, Event, RejectReason, Side};
use nm_exchange::client::say_hello;
use nm_exchange::limits::{FREE_BYTES_SHARE, GATEWAY_BYTES_MAX, SESSION_INSTRUMENTS_MAX};
use nm_exchange::link::{Link, Stream};
use nm_exchange::network::{Durability, Role};
use nm_exchange::testing::{Client, LIMIT, TestRing, order};
use nm_sys::clock::Deadline;
use nm_wire::{FRAME_BYTES_MAX, RefusalReason, Refused, Reply, Request, Series, Shape, Who};

/// A client that sends any request, right or wrong.
struct RawClient {
    link: Link,
    /// Replies: to which request, and why it was refused.
    replies: Vec<(u64, Option<RefusalReason>)>,
}

impl RawClient {
    fn new(ring: &TestRing, session: u32) -> RawClient {
        let deadline = Deadline::after(LIMIT);
        let stream = loop {
            match Stream::connect(&ring.network.classes[Role::Gateway].nodes[0].address, LIMIT) {
                Ok(stream) => break stream,
                Err(error) => assert!(!deadline.passed(), "{error}"),
            }
        };
        let mut link = Link::new(stream).unwrap();
        say_hello(Who::Client { session }, None, &mut link.output);
        // A gateway does not wait for it for ever.
        link.flush().unwrap();
        RawClient { link, replies: vec![] }
    }

    /// Sends a request behind another one.
    fn send(&mut self, (session, instrument): (u32, u32), seqs: (u64, u64), size_bytes: usize) {
        let (client_seq, previous_seq) = seqs;
        let request = nm_exchange::testing::request(session, instrument, Command::Tick);
        let request = Request { client_seq, previous_seq, ..request };
        let shape = Shape { is_stamped: false, size_bytes };
        nm_wire::write_shaped(&request, shape, &mut self.link.output);
    }

    /// Waits for so many replies, and takes them.
    fn replies(&mut self, count: usize) -> Vec<(u64, Option<RefusalReason>)> {
        let deadline = Deadline::after(LIMIT);
        while self.replies.len() < count {
            assert!(!deadline.passed(), "only {:?}", self.replies);
            self.turn();
        }
        self.replies.drain(..count).collect()
    }

    /// Sends what it has, and receives what there is.
    fn turn(&mut self) {
        self.link.flush().unwrap();
        let fd = self.link.as_fd().as_raw_fd();
        if nm_sys::poll::readable(fd, Duration::from_millis(1)).unwrap() {
            self.link.receive().unwrap();
        }
        while let Some(frame) = self.link.input.next_frame().unwrap() {
            if let Ok(Reply { client_seq, .. }) = frame.read() {
                self.replies.push((client_seq, None));
            } else if let Ok(Refused { client_seq, reason, .. }) = frame.read() {
                self.replies.push((client_seq, Some(reason)));
            }
        }
    }
}

const UNKNOWN: Option<RefusalReason> = Some(RefusalReason::UnknownPredecessor);

/// Before, such a request went through the log until its client left.
#[test]
fn a_request_whose_predecessor_was_not_sent_is_refused_and_the_session_goes_on() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let mut client = RawClient::new(&ring, 1);
    client.send((1, 0), (1, 0), 0);
    // The second of these depends on the first.
    client.send((1, 0), (4, 3), 0);
    client.send((1, 0), (5, 4), 0);
    client.send((1, 0), (6, 1), 0);
    let mut replies = client.replies(4);
    replies.sort_unstable_by_key(|(client_seq, _)| *client_seq);
    assert_eq!(replies, [(1, None), (4, UNKNOWN), (5, UNKNOWN), (6, None)]);
    ring.stop_all();
}

/// A session comes by a new link, and its gateway knows nothing of it any more.
#[test]
fn the_first_request_on_a_link_is_refused_if_its_predecessor_was_passed_or_never_was() {
    let mut ring = TestRing::new("1-1-2-1", Durability::DiskQuorum);
    ring.start();
    let mut client = RawClient::new(&ring, 1);
    client.send((1, 0), (1, 0), 0);
    client.send((1, 0), (2, 1), 0);
    assert_eq!(client.replies(2), [(1, None), (2, None)]);
    // Passed.
    let mut client = RawClient::new(&ring, 1);
    client.send((1, 0), (5, 1), 0);
    client.send((1, 0), (6, 5), 0);
    assert_eq!(client.replies(2), [(5, UNKNOWN), (6, UNKNOWN)]);
    // Never was.
    let mut client = RawClient::new(&ring, 1);
    client.send((1, 0), (9, 8), 0);
    client.send((1, 0), (10, 9), 0);
    assert_eq!(client.replies(2), [(9, UNKNOWN), (10, UNKNOWN)]);
    let resent = |ring: &mut TestRing| ring.stop_one(Role::Gateway.node(0)).resent;
    // The session goes on where it was.
    let mut client = RawClient::new(&ring, 1);
    client.send((1, 0), (11, 2), 0);
    client.send((1, 0), (12, 11), 0);
    assert_eq!(client.replies(2), [(11, None), (12, None)]);
    assert!(resent(&mut ring) < 200, "the log has few copies");
    ring.stop_all();
}

#[test]
fn a_session_has_a_number_of_instruments_on_its_link() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let mut client = RawClient::new(&ring, 1);
    let most = SESSION_INSTRUMENTS_MAX as u32;
    for instrument in 0..=most {
        client.send((1, instrument), (u64::from(instrument) + 1, 0), 0);
    }
    let replies = client.replies(most as usize + 1);
    let refused: Vec<_> = replies.into_iter().filter(|(_, reason)| reason.is_some()).collect();
    let reason = Some(RefusalReason::TooManySessionInstruments);
    assert_eq!(refused, [(u64::from(most) + 1, reason)]);
    // What it has on its new link counts anew.
    let mut client = RawClient::new(&ring, 1);
    client.send((1, most), (u64::from(most) + 2, 0), 0);
    assert_eq!(client.replies(1), [(u64::from(most) + 2, None)]);
    ring.stop_all();
}

/// Before, a client with requests of 1 GiB made its gateway close the links of all others.
#[test]
fn a_client_that_fills_its_share_of_a_gateway_leaves_room_for_others() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    let network = ring.network.clone();
    // Without a router there are no replies.
    ring.start_one(Role::Gateway.node(0), &network, &Default::default());
    let mut greedy = RawClient::new(&ring, 1);
    let fitting = GATEWAY_BYTES_MAX / (FREE_BYTES_SHARE + 1) / FRAME_BYTES_MAX;
    let count = fitting as u64 + 20;
    for seq in 1..=count {
        greedy.send((1, 0), (seq, seq - 1), FRAME_BYTES_MAX);
    }
    let refused = greedy.replies(15);
    let full = Some(RefusalReason::TooManyPendingBytes);
    assert_eq!(refused[0].1, full);
    assert!(refused[0].0.abs_diff(fitting as u64) < 5, "{refused:?}");
    let mut other = RawClient::new(&ring, 2);
    other.send((2, 0), (1, 0), 0);
    other.send((2, 1), (2, 0), FRAME_BYTES_MAX);
    for (node, _) in network.all() {
        if node.class != Role::Gateway {
            ring.start_one(node, &network, &Default::default());
        }
    }
    let deadline = Deadline::after(LIMIT);
    while other.replies.len() < 2 {
        assert!(!deadline.passed(), "no reply to the other client");
        other.turn();
        // A client that reads less than it is sent would be cut off: its replies are as long as its
        // requests, and the other one waits 1 ms in each turn.
        (0..64).for_each(|_| greedy.turn());
    }
    let mut replies = other.replies(2);
    replies.sort_unstable_by_key(|(client_seq, _)| *client_seq);
    assert_eq!(replies, [(1, None), (2, None)]);
    // The greedy one has its replies, too, to what was not refused.
    let executed = refused[0].0 - 1;
    let rest = greedy.replies(count as usize - 15);
    assert_eq!(rest.iter().filter(|(_, reason)| reason.is_none()).count() as u64, executed);
    ring.stop_all();
}

/// The names and numbers of constants in tables of a page.
fn listed(page: &str) -> Vec<(&str, u64)> {
    let of_line = |line| {
        let mut cells = str::strip_prefix(line, "| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`');
        // Keys of plans are in small letters.
        let is_constant = name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        is_constant.then(|| (name, cells.next().unwrap().parse().unwrap()))
    };
    page.lines().filter_map(of_line).collect()
}

/// docs/limits.md has each number as it is.
#[test]
fn the_page_of_limits_has_the_numbers_of_the_code() {
    use nm_exchange::limits::*;
    let mut listed = listed(include_str!("../../../../../docs/limits.md"));
    macro_rules! numbers {
        ($($name:ident),*) => { vec![$((stringify!($name), $name as u64)),*] };
    }
    let mut numbers = numbers![
        ICEBERG_PARTS_MAX,
        ORDERS_MAX,
        ORDER_TRADES_MAX,
        COMMAND_TRADES_MAX,
        PEGS_MAX,
        SESSION_ORDERS_MAX,
        CELL_INSTRUMENTS_MAX,
        CELL_SESSIONS_MAX,
        CELL_ORDERS_MAX,
        RETIRE_WORK_MAX,
        RETIRED_NS,
        STOP_ORDERS_MAX,
        FIRMS_MAX,
        FIRM_RANGES_MAX,
        FIRM_NAME_BYTES_MAX,
        DIRECTIONS_WAITING_MAX,
        SCHEDULE_GROUPS_MAX,
        SCHEDULE_NAME_BYTES_MAX,
        WATCHED_MAX,
        WATCHED_AFTER_S,
        CANCEL_AFTER_S_MIN,
        CANCEL_AFTER_S_MAX,
        HEARTBEAT_MS_MIN,
        HEARTBEAT_MS_MAX,
        HEARTBEATS_MISSED_MAX,
        OPEN_ORDERS_MAX,
        OPEN_ORDERS_INSTRUMENTS_MAX,
        ORDERS_REQUESTS_MAX,
        OUTCOMES_MAX,
        EVENTS_KEPT_MAX,
        EVENTS_WAITING_MAX,
        FRAME_EVENTS_MAX,
        FRAME_INSTRUMENTS_MAX,
        PADDING_BYTES_MAX,
        LINK_SESSIONS_MAX,
        SESSION_INSTRUMENTS_MAX,
        PENDING_REQUESTS_MAX,
        OWNER_REQUESTS_MAX,
        OWNER_REQUESTS_BYTES_MAX,
        GATEWAY_BYTES_MAX,
        FREE_BYTES_SHARE,
        LINK_RESEND_REQUESTS_MAX,
        RESEND_REQUESTS_MAX,
        UNKNOWN_PREDECESSOR_NAKS_MAX,
        LISTED_MAX,
        MOVED_INSTRUMENTS_MAX,
        MOVES_PENDING_MAX,
        MOVES_ORDERED_MAX,
        CELL_LEAVING_MAX,
        LEAVING_REQUESTS_BYTES_MAX,
        REFUSED_MOVES_MAX,
        ADDRESS_BYTES_MAX
    ];
    // Nor is one missing on the page.
    let sources =
        [include_str!("../../src/limits.rs"), include_str!("../../../book/src/limits.rs")];
    let constants = sources.iter().flat_map(|source| source.lines());
    let constants = constants.filter(|line| line.starts_with("pub const ")).count();
    assert_eq!(constants, numbers.len());
    listed.sort_unstable();
    numbers.sort_unstable();
    assert_eq!(listed, numbers);
}

/// Before, an order that shows one of 10^12 and one that takes them were 10^12 trades in each
/// replica of the cell, and again after each restart.
#[test]
fn orders_of_a_trillion_parts_are_rejected_and_the_cell_trades_also_after_restarts() {
    const HUGE: u64 = 1_000_000_000_000;
    let mut ring = TestRing::new("1-1-2-1", Durability::DiskQuorum);
    ring.start();
    let mut client = Client::new(&ring, 0, &[1, 2]);
    let mut place = |session: u32, side: Side, quantity: u64, display: u64| {
        let (before, first) = (client.replies().count(), client.received.len());
        let seq = client.sessions[&session] + 1;
        let mut command = order(session, seq, side, 100);
        if let Command::New(new) = &mut command {
            (new.quantity, new.display) = (quantity, display);
        }
        client.request(session, 0, &command);
        let deadline = Deadline::after(LIMIT);
        while client.replies().count() == before {
            assert!(!deadline.passed(), "no reply");
            client.turn();
        }
        let of_session = client.received[first..].iter().filter(|m| m.session == session);
        let mut events: Vec<Event> = vec![];
        for message in of_session {
            let all: Series<'_, Event> = Series::of(&message.events);
            events.extend(all.map(|event| event.unwrap()));
        }
        events
    };
    let parts = |events: &[Event]| {
        let is_rejected = |event: &Event| {
            matches!(event, Event::Rejected { reason: RejectReason::TooManyParts, .. })
        };
        events.iter().any(is_rejected)
    };
    let trades = |events: &[Event]| {
        events.iter().filter(|event| matches!(event, Event::Traded { .. })).count()
    };
    for round in 0..2 {
        let hidden = place(1, Side::Sell, HUGE, 1);
        assert!(parts(&hidden), "{hidden:?}");
        let taken = place(2, Side::Buy, HUGE, 0);
        assert_eq!(trades(&taken), 0, "round {round}: {taken:?}");
        let sold = place(1, Side::Sell, HUGE, 0);
        assert_eq!(trades(&sold), 1, "round {round}: {sold:?}");
        let shown = place(1, Side::Sell, HUGE, HUGE / 1_000);
        assert!(!parts(&shown), "{shown:?}");
        let all = place(2, Side::Buy, HUGE, 0);
        assert_eq!(trades(&all), 1_000, "round {round}");
        let nodes = [Role::Processor.node(0), Role::Mediator.node(0), Role::Mediator.node(1)];
        for node in nodes.into_iter().filter(|_| round == 0) {
            let ready = ring.restart(node);
            let deadline = Deadline::after(LIMIT);
            while ready.load(Ordering::Acquire) == 0 {
                assert!(!deadline.passed(), "{node} did not start again");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    ring.stop_all();
}
