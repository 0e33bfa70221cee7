//! A consumer's side of the lines.

use nm_codec::Random;
use nm_feed::itch::{Body, Message};
use nm_feed::limits::{EARLY_MESSAGES_MAX, REQUESTED_MESSAGES};
use nm_feed::mold::{Draft, END_OF_SESSION, Header, Session};
use nm_feed::receiver::{Act, Receiver};
use nm_feed::store::Store;
use proptest::prelude::*;

const SESSION: Session = *b"0000000007";

fn message(reference: u64) -> Message {
    Message { locate: 1, tracking: 0, time_ns: 0, body: Body::Delete { reference } }
}

fn reference(bytes: &[u8]) -> u64 {
    match Message::read(bytes).unwrap().body {
        Body::Delete { reference } => reference,
        other => panic!("{other:?}"),
    }
}

/// Packets of up to five messages each, with those messages in a store.
fn packets(messages: u64, random: &mut Random) -> (Store, Vec<Vec<u8>>) {
    let mut store = Store::new(SESSION, 1 << 20);
    let (mut draft, mut all) = (Draft::new(SESSION, 1), vec![]);
    for number in 1..=messages {
        draft.push(store.push(&message(number)));
        if random.below(5) == 0 || number == messages {
            all.push(draft.bytes().to_vec());
            draft.begin_next();
        }
    }
    all.push(
        Header { session: SESSION, sequence: messages + 1, count: END_OF_SESSION }.bytes().into(),
    );
    (store, all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Two lines lose, double and delay packets, and so does the server of requests.
    #[test]
    fn each_message_comes_once_and_in_order(seed in any::<u64>(), lost in 0_u64..40) {
        let mut random = Random::new(seed);
        let (store, packets) = packets(500, &mut random);
        let (mut receiver, mut found, mut now_ns) = (Receiver::default(), vec![], 1);
        let mut waiting: Vec<Vec<u8>> = vec![];
        // The first packet comes: who begins later takes a snapshot.
        receiver.on_packet(&packets[0], now_ns, |bytes| found.push(reference(bytes))).unwrap();
        let mut rest = packets.into_iter().skip(1).peekable();
        for _ in 0..20_000 {
            if let Some(packet) = rest.next() {
                for _line in 0..2 {
                    let copies = match random.below(100) {
                        one if one < lost && rest.peek().is_some() => 0,
                        one if one >= 95 => 2,
                        _ => 1,
                    };
                    waiting.extend(std::iter::repeat_n(packet.clone(), copies));
                }
            }
            while waiting.len() > 4 || (rest.peek().is_none() && !waiting.is_empty()) {
                let at = random.below(waiting.len() as u64) as usize;
                let packet = waiting.swap_remove(at);
                receiver.on_packet(&packet, now_ns, |bytes| found.push(reference(bytes))).unwrap();
            }
            now_ns += 3_000_000;
            match receiver.act(now_ns) {
                Some(Act::Request(request)) if random.below(100) >= lost => {
                    waiting.extend(store.answer(&request).map(|mut it| it.bytes().to_vec()));
                }
                Some(Act::Snapshot) => {
                    // Books of this number would go on here; the test counts on.
                    let next = receiver.next();
                    prop_assert!(receiver.resume(SESSION, next, now_ns, |_| panic!()));
                }
                _ => {}
            }
            if receiver.has_ended() && waiting.is_empty() {
                break;
            }
        }
        prop_assert!(receiver.has_ended());
        prop_assert_eq!(found, (1..=500).collect::<Vec<u64>>());
    }

    #[test]
    fn hostile_datagrams_do_no_harm(all in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..60), 0..20,
    )) {
        let mut receiver = Receiver::default();
        for (at, bytes) in all.iter().enumerate() {
            let _ = receiver.on_packet(bytes, at as u64, |_| {});
            receiver.act(at as u64 * 50_000_000);
        }
        prop_assert!(receiver.counts.packets + receiver.counts.damaged == all.len() as u64);
    }
}

fn packet(session: Session, first: u64, count: u64) -> Vec<u8> {
    let mut draft = Draft::new(session, first);
    for number in first..first + count {
        let mut bytes = [0; nm_feed::itch::MESSAGE_BYTES_MAX];
        let length = message(number).write(&mut bytes);
        assert!(draft.push(&bytes[..length]));
    }
    draft.bytes().to_vec()
}

#[test]
fn who_begins_late_takes_a_snapshot_and_goes_on_behind_it() {
    let (mut receiver, mut found) = (Receiver::default(), vec![]);
    receiver.on_packet(&packet(SESSION, 10, 3), 1, |_| panic!("before the snapshot")).unwrap();
    assert_eq!(receiver.act(1), Some(Act::Snapshot));
    assert!(!receiver.resume(*b"0000000008", 11, 2, |_| panic!("of another session")));
    assert!(receiver.resume(SESSION, 11, 2, |bytes| found.push(reference(bytes))));
    receiver.on_packet(&packet(SESSION, 13, 1), 3, |bytes| found.push(reference(bytes))).unwrap();
    assert_eq!(found, [11, 12, 13]);
    assert!(receiver.is_complete());
}

#[test]
fn what_the_server_does_not_have_is_repaired_by_a_snapshot() {
    let mut receiver = Receiver::default();
    receiver.on_packet(&packet(SESSION, 1, 1), 1, |_| {}).unwrap();
    receiver.on_packet(&packet(SESSION, 5, 1), 1, |_| panic!("a gap is before it")).unwrap();
    assert_eq!(receiver.act(2), None, "the other line may have it");
    let (mut now_ns, mut requests) = (10_000_000, 0);
    loop {
        match receiver.act(now_ns) {
            Some(Act::Request(request)) => {
                assert_eq!(request, Header { session: SESSION, sequence: 2, count: 3 });
                requests += 1;
            }
            Some(Act::Snapshot) => break,
            None => now_ns += 10_000_000,
        }
    }
    assert_eq!(requests, 10);
    let mut found = vec![];
    assert!(receiver.resume(SESSION, 4, now_ns, |bytes| found.push(reference(bytes))));
    assert_eq!(
        receiver.act(now_ns + 2_000_000),
        Some(Act::Request(Header { session: SESSION, sequence: 4, count: 1 }))
    );
}

#[test]
fn another_session_is_begun_by_a_snapshot() {
    let mut receiver = Receiver::default();
    receiver.on_packet(&packet(SESSION, 1, 4), 1, |_| {}).unwrap();
    let other = *b"0000000008";
    receiver
        .on_packet(&packet(other, 1, 1), 2, |_| panic!("the books are those of before"))
        .unwrap();
    assert_eq!(receiver.act(2), Some(Act::Snapshot));
    let mut found = vec![];
    assert!(receiver.resume(other, 1, 3, |bytes| found.push(reference(bytes))));
    assert_eq!(found, [1]);
}

/// A packet of messages without bytes, numbered from one on.
fn empty_messages(first: u64, count: u16) -> Vec<u8> {
    let mut bytes = Header { session: SESSION, sequence: first, count }.bytes().to_vec();
    bytes.extend((0..count).flat_map(|_| [0, 0]));
    bytes
}

#[test]
fn a_consumer_asks_for_a_number_of_messages_at_once() {
    let mut receiver = Receiver::default();
    receiver.on_packet(&empty_messages(1, 1), 1, |_| {}).unwrap();
    let far = 2 + 3 * u64::from(REQUESTED_MESSAGES);
    receiver.on_packet(&empty_messages(far, 1), 1, |_| {}).unwrap();
    let Some(Act::Request(first)) = receiver.act(1_000_000_000) else { panic!() };
    assert_eq!((first.sequence, first.count), (2, REQUESTED_MESSAGES));
    receiver.on_packet(&empty_messages(2, REQUESTED_MESSAGES), 2_000_000_000, |_| {}).unwrap();
    let Some(Act::Request(next)) = receiver.act(3_000_000_000) else { panic!() };
    assert_eq!(next.sequence, 2 + u64::from(REQUESTED_MESSAGES), "the rest is asked for later");
}

#[test]
fn messages_that_come_too_early_are_kept_in_a_number() {
    let (mut receiver, mut delivered) = (Receiver::default(), 0_u64);
    receiver.on_packet(&empty_messages(1, 1), 1, |_| delivered += 1).unwrap();
    let most = EARLY_MESSAGES_MAX as u64;
    // Message 2 is missing; of the others, the last two find no place.
    let mut first = 3;
    while first < 3 + most + 2 {
        let count = (3 + most + 2 - first).min(30_000);
        receiver.on_packet(&empty_messages(first, count as u16), 1, |_| delivered += 1).unwrap();
        first += count;
    }
    assert_eq!(delivered, 1);
    receiver.on_packet(&empty_messages(2, 1), 2, |_| delivered += 1).unwrap();
    assert_eq!((delivered, receiver.next()), (2 + most, 3 + most));
    assert!(!receiver.is_complete(), "those that found no place are asked for");
}
