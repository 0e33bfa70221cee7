//! What a session sends and gives.

use nm_client::order::{CancelReason, Command, Event, RejectReason, Side};
use nm_client::{Change, Happened, LiveOrder, OpenOrder, Session, SessionPosition};
use nm_wire::{
    Kind, Message, RefusalReason, Refused, Reply, Request, ResendRequest, Resent, Series, Value,
};

pub const ON: u32 = 7;
const SESSION: u32 = 3;
const CANCEL_ALL: Command = Command::MassCancel { user: SESSION };

/// What the session has sent since the last call.
pub fn sent(session: &mut Session) -> (Vec<Request>, Vec<ResendRequest>) {
    let (mut requests, mut resend_requests) = (vec![], vec![]);
    let mut bytes = &std::mem::take(&mut session.frames)[..];
    while let Some(frame) = nm_wire::read(bytes).unwrap() {
        match frame.kind() {
            Kind::Request => requests.push(frame.read().unwrap()),
            Kind::ResendRequest => resend_requests.push(frame.read().unwrap()),
            other => panic!("{other:?}"),
        }
        bytes = &bytes[frame.bytes.len()..];
    }
    (requests, resend_requests)
}

fn coded(ids: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = vec![];
    ids.into_iter().for_each(|id| Event::Accepted { id, user: SESSION }.put(&mut bytes));
    bytes
}

/// The answer to a resend request: events behind a number, each named by its own.
pub fn resent(session: &mut Session, previous_event: u64, count: u64, executed_seq: u64) {
    let bytes = coded(previous_event + 1..=previous_event + count);
    let message = Message::Resent(Resent {
        instrument: ON,
        session: SESSION,
        previous_event,
        executed_seq,
        live_orders: 2,
        gateway: 0,
        cell: 0,
        has_gap: false,
        events: Series::of(&bytes),
    });
    session.receive(&message, 0);
}

pub fn reply(session: &mut Session, client_seq: u64, previous_event: u64, count: u64) {
    let bytes = coded(previous_event + 1..=previous_event + count);
    let message = Message::Reply(Reply {
        instrument: ON,
        session: SESSION,
        client_seq,
        output_seq: 1,
        previous_event,
        events_hash: 0,
        intended_ns: 0,
        map_version: 0,
        gateway: 0,
        cell: 0,
        is_repeated: false,
        is_expired: false,
        events: Series::of(&bytes),
    });
    session.receive(&message, 0);
}

fn refuse(session: &mut Session, client_seq: u64, reason: RefusalReason) {
    let refused = Refused {
        instrument: ON,
        session: SESSION,
        client_seq,
        intended_ns: 0,
        expected_previous: 0,
        gateway: 0,
        cell: 0,
        reason,
    };
    session.receive(&Message::Refused(refused), 0);
}

/// The numbers of the events that it gives until there are none.
pub fn given(session: &mut Session) -> Vec<u64> {
    let event = |happened| match happened {
        Happened::Event { number, .. } => number,
        other => panic!("{other}"),
    };
    std::iter::from_fn(|| session.next_happened()).map(event).collect()
}

/// A session with a link, of which the exchange knows nothing yet.
pub fn connected() -> Session {
    let mut session = Session::new(SESSION);
    session.connected(0);
    session
}

/// Number and predecessor of each request that was sent.
pub fn numbers(session: &mut Session) -> Vec<(u64, u64)> {
    sent(session).0.iter().map(|it| (it.client_seq, it.previous_seq)).collect()
}

#[test]
fn the_first_request_waits_until_the_session_is_known_to_be_new() {
    let mut session = connected();
    session.submit(ON, 100, CANCEL_ALL, 0);
    session.submit(ON, 101, CANCEL_ALL, 0);
    let (requests, resend_requests) = sent(&mut session);
    assert!(requests.is_empty());
    assert_eq!((resend_requests.len(), resend_requests[0].acknowledged), (1, 0));
    session.tick(999_999_999);
    assert!(sent(&mut session).1.is_empty());
    session.tick(1_000_000_000);
    assert_eq!(sent(&mut session).1.len(), 1, "asked again");
    resent(&mut session, 0, 0, 0);
    assert_eq!(numbers(&mut session), [(100, 0), (101, 100)]);
    assert_eq!(session.next_happened(), None);
}

#[test]
fn a_session_that_the_exchange_knows_more_of_sends_nothing_until_it_takes_over() {
    let mut session = connected();
    session.submit(ON, 100, CANCEL_ALL, 0);
    // Events 1 to 5, by requests up to number 50.
    resent(&mut session, 3, 2, 50);
    resent(&mut session, 3, 2, 50);
    let used =
        Happened::UsedBefore { instrument: ON, executed_seq: 50, known_seq: 0, live_orders: 2 };
    assert_eq!(
        (session.next_happened(), session.next_happened()),
        (Some(used.clone()), None),
        "once"
    );
    assert!(used.to_string().contains("its state is lost or old"), "{used}");
    session.submit(ON, 101, CANCEL_ALL, 0);
    assert!(numbers(&mut session).is_empty(), "a new order is never taken for an old one");
    let refused = session.next_happened();
    assert!(matches!(refused, Some(Happened::Refused { seq: 101, previous_seq: 50, .. })));
    assert!(session.take_over(ON) && !session.take_over(ON));
    assert_eq!(session.next_seq(0), 102);
    session.submit(ON, 102, CANCEL_ALL, 0);
    assert_eq!(numbers(&mut session), [(102, 50)]);
    reply(&mut session, 102, 5, 1);
    assert_eq!(given(&mut session), [6], "events from before are skipped");
}

#[test]
fn a_number_is_above_that_of_every_request_that_was_executed_even_if_the_clock_is_behind() {
    let mut session = connected();
    session.submit(ON, 10, CANCEL_ALL, 0);
    resent(&mut session, 0, 0, 1_000);
    session.next_happened();
    session.take_over(ON);
    assert_eq!((session.next_seq(5), session.next_seq(2_000)), (1_001, 2_000));
    assert!(numbers(&mut session).is_empty(), "request 10 would be taken for an old one");
}

#[test]
fn each_event_is_given_once_and_in_order() {
    let mut session = connected();
    session.submit(ON, 100, CANCEL_ALL, 0);
    resent(&mut session, 0, 0, 0);
    sent(&mut session);
    reply(&mut session, 100, 0, 2);
    reply(&mut session, 100, 0, 2);
    assert_eq!(given(&mut session), [1, 2]);
    reply(&mut session, 100, 4, 1);
    assert!(given(&mut session).is_empty(), "events 3 and 4 are missing");
    let (_, resend_requests) = sent(&mut session);
    assert_eq!(resend_requests.iter().map(|it| it.acknowledged).collect::<Vec<_>>(), [2]);
    resent(&mut session, 1, 4, 100);
    assert_eq!(given(&mut session), [3, 4, 5]);
}

#[test]
fn requests_without_an_answer_are_sent_again_unchanged_over_the_next_link() {
    let mut session = connected();
    (100..103).for_each(|seq| session.submit(ON, seq, CANCEL_ALL, 0));
    resent(&mut session, 0, 0, 0);
    let before = sent(&mut session).0;
    reply(&mut session, 100, 0, 1);
    session.disconnected();
    session.submit(ON, 103, CANCEL_ALL, 0);
    assert!(session.frames.is_empty());
    session.connected(0);
    let (again, resend_requests) = sent(&mut session);
    let commands = |requests: &[Request]| -> Vec<_> {
        requests.iter().map(|it| (it.client_seq, it.previous_seq, it.command)).collect()
    };
    assert_eq!(commands(&again)[..2], commands(&before)[1..]);
    assert_eq!((again.len(), again[2].previous_seq), (3, 102));
    let marks: Vec<bool> = again.iter().map(|it| it.is_previous_answered).collect();
    assert_eq!((marks, resend_requests[0].acknowledged), (vec![true, false, false], 1));
}

#[test]
fn what_follows_a_refused_request_names_the_one_before_it() {
    let mut session = connected();
    (100..102).for_each(|seq| session.submit(ON, seq, CANCEL_ALL, 0));
    resent(&mut session, 0, 0, 0);
    reply(&mut session, 100, 0, 0);
    refuse(&mut session, 101, RefusalReason::TooManyPendingBytes);
    sent(&mut session);
    let words = session.next_happened().unwrap().to_string();
    assert!(words.contains("request 101") && words.contains("follows request 100"), "{words}");
    session.submit(ON, 102, CANCEL_ALL, 0);
    assert_eq!(numbers(&mut session), [(102, 100)]);
}

#[test]
fn a_session_that_somebody_else_uses_meanwhile_finds_out() {
    let mut session = connected();
    session.submit(ON, 100, CANCEL_ALL, 0);
    resent(&mut session, 0, 0, 0);
    reply(&mut session, 100, 0, 1);
    session.submit(ON, 200, CANCEL_ALL, 0);
    sent(&mut session);
    refuse(&mut session, 200, RefusalReason::UnknownPredecessor);
    session.submit(ON, 201, CANCEL_ALL, 0);
    assert!(numbers(&mut session).is_empty(), "it asks first");
    resent(&mut session, 1, 3, 150);
    let last = std::iter::from_fn(|| session.next_happened()).last();
    assert!(
        matches!(last, Some(Happened::UsedBefore { executed_seq: 150, known_seq: 100, .. })),
        "{last:?}"
    );
}

#[test]
fn an_event_that_was_not_handled_comes_again_after_a_restart_and_one_that_was_does_not() {
    let mut session = connected();
    session.submit(ON, 100, CANCEL_ALL, 0);
    session.submit(ON, 101, CANCEL_ALL, 0);
    resent(&mut session, 0, 0, 0);
    reply(&mut session, 100, 0, 3);
    session.next_happened();
    session.next_happened();
    let kept: Vec<Change> = std::mem::take(&mut session.changes);
    let mut restarted = Session::new(SESSION);
    kept.into_iter().for_each(|change| restarted.restore(change));
    restarted.connected(0);
    assert_eq!(sent(&mut restarted).1[0].acknowledged, 1);
    resent(&mut restarted, 1, 2, 101);
    assert_eq!(given(&mut restarted), [2, 3], "the second one was not handled completely");
    assert_eq!(numbers(&mut restarted), [(101, 100)], "sent again unchanged");
}

#[test]
fn a_session_resumes_with_its_orders_where_the_exchange_has_it() {
    let live = |id| LiveOrder { id, is_buy: false, price: 9, left: 3, is_pending_stop: false };
    let orders = vec![live(40), live(50)];
    let standing =
        SessionPosition { instrument: ON, executed_seq: 60, last_event: 8, live_orders: 2, orders };
    let mut session = connected();
    session.resume(&standing);
    let open = OpenOrder { side: Side::Sell, price: 9, left: 3, is_open: true };
    let known = |session: &Session| {
        session.orders().map(|(on, id, order)| (on, id, *order)).collect::<Vec<_>>()
    };
    assert_eq!(known(&session), [(ON, 40, open), (ON, 50, open)]);
    let mut restarted = Session::new(SESSION);
    session.changes.drain(..).for_each(|change| restarted.restore(change));
    assert_eq!(restarted.snapshot(), session.snapshot());
    session.submit(ON, session.next_seq(0), CANCEL_ALL, 0);
    resent(&mut session, 8, 0, 60);
    assert_eq!(numbers(&mut session), [(61, 60)]);
    reply(&mut session, 61, 8, 1);
    assert_eq!(given(&mut session), [9]);
    // What this client has sent and the exchange has not executed is not forgotten.
    session.submit(ON, 70, CANCEL_ALL, 0);
    session.resume(&standing);
    assert_eq!(session.pending(ON), 1);
}

#[test]
fn events_say_in_words_why_orders_are_rejected_and_cancelled() {
    let words = |event| Happened::Event { instrument: ON, number: 1, event }.to_string();
    let rejected = Event::rejected(1, SESSION, RejectReason::UnknownOrder);
    assert!(words(rejected).ends_with(": no live order of the session has this id"));
    let (id, user, left, reason) = (1, SESSION, 2, CancelReason::Disconnected);
    let cancelled = words(Event::Cancelled { id, user, left, reason });
    assert!(cancelled.ends_with(": its session was away for longer than it had asked for"));
}

/// The gateway that it has left read its requests late, so the exchange sent the last event there.
#[test]
fn a_session_looks_twice_for_what_another_gateway_may_have_got() {
    const SECOND: u64 = 1_000_000_000;
    let mut session = Session::new(SESSION);
    session.connected(SECOND);
    session.submit(ON, 1, CANCEL_ALL, SECOND);
    resent(&mut session, 0, 0, 0);
    reply(&mut session, 1, 0, 2);
    sent(&mut session);
    session.disconnected();
    session.connected(10 * SECOND);
    resent(&mut session, 2, 0, 1);
    sent(&mut session);
    let mut asks = |at_ns: u64| {
        session.tick(at_ns);
        let asked = sent(&mut session).1;
        asked.iter().for_each(|_| resent(&mut session, 2, 1, 1));
        asked.iter().map(|it| (it.instrument, it.acknowledged)).collect::<Vec<_>>()
    };
    assert_eq!(asks(12 * SECOND - 1), []);
    assert_eq!(asks(12 * SECOND), [(ON, 2)]);
    assert_eq!(asks(12 * SECOND + 1), [], "the event has come");
    assert_eq!(asks(18 * SECOND), [(ON, 3)]);
    assert_eq!(asks(60 * SECOND), []);
}
