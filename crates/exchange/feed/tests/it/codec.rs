//! Messages and packets as bytes.

use nm_feed::itch::{self, Body, Fault, LENGTHS, MESSAGE_BYTES_MAX, Message, Stock};
use nm_feed::mold::{self, Draft, END_OF_SESSION, Header, PACKET_BYTES_MAX, Packet};
use nm_test_support::allocations;
use proptest::prelude::*;

const STOCK: Stock = *b"ACME    ";

fn message(body: Body) -> Message {
    Message { locate: 7, tracking: 0, time_ns: 34_200_000_000_001, body }
}

fn written(message: &Message) -> Vec<u8> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = message.write(&mut bytes);
    bytes[..length].to_vec()
}

/// Type, locate, tracking number and time, then the fields.
fn check(kind: char, body: Body, fields: &str) {
    let hex = format!("{:02x} 0007 0000 1f1aced9f001 {fields}", kind as u8);
    let digits: String = hex.split_whitespace().collect();
    let bytes = nm_codec::hex::read(&digits).unwrap();
    let message = message(body);
    assert_eq!(written(&message), bytes, "{body:?}");
    assert_eq!(Message::read(&bytes), Ok(message));
}

/// Bytes that were put together by hand from the table of the layout.
#[test]
fn orders_have_the_bytes_of_the_published_layout() {
    for (kind, body, hex) in [
        ('S', Body::SystemEvent { event: b'O' }, "4f"),
        (
            'H',
            Body::TradingAction { stock: STOCK, state: b'T', reserved: b' ', reason: *b"    " },
            "41434d4520202020 54 20 20202020",
        ),
        (
            'A',
            Body::AddOrder {
                reference: 0x0102_0304_0506_0708,
                side: b'B',
                shares: 500,
                stock: STOCK,
                price: 1_002_500,
            },
            "0102030405060708 42 000001f4 41434d4520202020 000f4c04",
        ),
        (
            'E',
            Body::Executed { reference: 9, shares: 200, match_number: 0x0a0b },
            "0000000000000009 000000c8 0000000000000a0b",
        ),
        (
            'C',
            Body::ExecutedAtPrice {
                reference: 9,
                shares: 200,
                match_number: 3,
                printable: b'N',
                price: 1,
            },
            "0000000000000009 000000c8 0000000000000003 4e 00000001",
        ),
        ('X', Body::Cancel { reference: 9, shares: 1 }, "0000000000000009 00000001"),
        ('D', Body::Delete { reference: 9 }, "0000000000000009"),
        (
            'U',
            Body::Replace { original: 9, reference: 10, shares: 2, price: 3 },
            "0000000000000009 000000000000000a 00000002 00000003",
        ),
    ] {
        check(kind, body, hex);
    }
}

#[test]
fn trades_have_the_bytes_of_the_published_layout() {
    for (kind, body, hex) in [
        (
            'P',
            Body::Trade {
                reference: 0,
                side: b'B',
                shares: 2,
                stock: STOCK,
                price: 3,
                match_number: 4,
            },
            "0000000000000000 42 00000002 41434d4520202020 00000003 \
                 0000000000000004",
        ),
        (
            'Q',
            Body::Cross { shares: 5, stock: STOCK, price: 3, match_number: 4, cross: b'O' },
            "0000000000000005 41434d4520202020 00000003 0000000000000004 4f",
        ),
        (
            'I',
            Body::Imbalance {
                paired: 5,
                imbalance: 6,
                direction: b'S',
                stock: STOCK,
                far: 1,
                near: 2,
                reference: 3,
                cross: b'O',
                variation: b'L',
            },
            "0000000000000005 0000000000000006 53 41434d4520202020 00000001 \
                 00000002 00000003 4f 4c",
        ),
    ] {
        check(kind, body, hex);
    }
}

/// The lengths that Nasdaq publishes, of all 23 types.
#[test]
fn each_type_has_its_published_length() {
    let published = [
        ('S', 12),
        ('R', 39),
        ('H', 25),
        ('Y', 20),
        ('L', 26),
        ('V', 35),
        ('W', 12),
        ('K', 28),
        ('J', 35),
        ('h', 21),
        ('A', 36),
        ('F', 40),
        ('E', 31),
        ('C', 36),
        ('X', 23),
        ('D', 19),
        ('U', 35),
        ('P', 44),
        ('Q', 40),
        ('B', 19),
        ('I', 50),
        ('N', 20),
        ('O', 48),
    ];
    let own: Vec<(char, usize)> =
        LENGTHS.iter().map(|(kind, bytes)| (char::from(*kind), *bytes)).collect();
    assert_eq!(own, published);
    for (kind, bytes) in published {
        assert_eq!(itch::length(kind as u8), Some(bytes));
    }
    assert_eq!(itch::length(b'G'), None);
    assert_eq!(LENGTHS.iter().map(|(_, bytes)| *bytes).max(), Some(MESSAGE_BYTES_MAX));
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    assert_eq!(Message::read(&[]), Err(Fault::Empty));
    assert_eq!(Message::read(b"G1234567890"), Err(Fault::Type(b'G')));
    let good = written(&message(Body::Delete { reference: 9 }));
    let wrong = |found| Err(Fault::Length { kind: 'D', bytes: 19, found });
    assert_eq!(Message::read(&good[..18]), wrong(18));
    assert_eq!(Message::read(&[&good[..], b"x"].concat()), wrong(20));
}

#[test]
fn writing_messages_and_packets_allocates_nothing() {
    let mut draft = Draft::new(*b"0000000001", 1);
    let add =
        message(Body::AddOrder { reference: 1, side: b'S', shares: 2, stock: STOCK, price: 3 });
    let before = allocations();
    let (mut bytes, mut packets) = ([0; MESSAGE_BYTES_MAX], 0);
    for _ in 0..1_000 {
        let length = add.write(&mut bytes);
        if !draft.push(&bytes[..length]) {
            packets += draft.bytes().len().min(1);
            draft.begin_next();
            assert!(draft.push(&bytes[..length]));
        }
    }
    assert_eq!(allocations() - before, 0);
    assert!(packets > 10 && before > 0);
}

proptest! {
    #[test]
    fn any_message_comes_back_as_it_was(
        kind in 0..LENGTHS.len(), rest in prop::collection::vec(any::<u8>(), MESSAGE_BYTES_MAX),
    ) {
        let (kind, bytes) = LENGTHS[kind];
        let mut own = vec![kind];
        own.extend_from_slice(&rest[..bytes - 1]);
        let read = Message::read(&own).unwrap();
        prop_assert_eq!(read.body.kind(), kind);
        prop_assert_eq!(written(&read), own);
    }

    #[test]
    fn hostile_bytes_are_a_message_of_that_length_or_none(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        if let Ok(read) = Message::read(&bytes) {
            prop_assert_eq!(written(&read), bytes);
        }
    }

    #[test]
    fn packets_have_the_messages_that_were_put_into_them(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..60),
        first in any::<u64>(),
    ) {
        let first = first / 2;
        let mut draft = Draft::new(*b"SESSION  1", first);
        let mut packets = vec![];
        for message in &messages {
            if !draft.push(message) {
                packets.push(draft.bytes().to_vec());
                draft.begin_next();
                prop_assert!(draft.push(message));
            }
        }
        packets.push(draft.bytes().to_vec());
        prop_assert!(packets.iter().all(|packet| packet.len() <= PACKET_BYTES_MAX));
        let (mut found, mut next) = (vec![], first);
        for bytes in &packets {
            let packet = Packet::read(bytes).unwrap();
            prop_assert_eq!(packet.header.sequence, next);
            next = packet.header.next();
            found.extend(packet.messages().map(|(number, it)| (number, it.to_vec())));
        }
        prop_assert_eq!(next, first + messages.len() as u64);
        let sent: Vec<_> = (first..).zip(messages).collect();
        prop_assert_eq!(found, sent);
    }

    #[test]
    fn hostile_bytes_are_a_packet_of_complete_messages_or_none(
        count in any::<u16>(), blocks in prop::collection::vec(0_u8..4, 0..40),
    ) {
        let header = Header { session: *b"0000000001", sequence: u64::MAX - 3, count };
        let bytes = [&header.bytes()[..], &blocks].concat();
        match Packet::read(&bytes) {
            Ok(packet) => {
                let expected = if count == END_OF_SESSION { 0 } else { usize::from(count) };
                prop_assert_eq!(packet.messages().count(), expected);
                let inside = packet.messages().map(|(_, it)| it.len() + 2).sum::<usize>();
                prop_assert_eq!(inside, blocks.len());
            }
            Err(mold::Fault::Message(_)) => {}
            Err(other) => prop_assert!(false, "{:?}", other),
        }
        prop_assert!(Packet::read(&bytes[..19]).is_err());
    }
}
