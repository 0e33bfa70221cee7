//! What holds for each row of the table.

use std::collections::BTreeSet;

use nm_auth::{Nonce, Proof};
use nm_book::order::{Event, Side};
use nm_wire::{
    Close, DecodeError, Evidence, Frame, Hello, Kind, Message, NodeId, ROWS, Reader, Role, Row,
    Series, Shape, VERSION, Value, Welcome, Who, digest, encode,
};
use proptest::prelude::*;

fn frame_of(row: &Row, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let (example, mut bytes) = (row.example_of(seed), vec![]);
    let shape = Shape { is_stamped: seed.is_multiple_of(2), size_bytes: seed as usize % 300 };
    nm_wire::write_with(row.code, shape, &mut bytes, |out| out.extend(&example));
    (example, bytes)
}

proptest! {
    #[test]
    fn each_message_is_read_back(seed: u64) {
        for row in ROWS {
            let (example, bytes) = frame_of(row, seed);
            prop_assert_eq!((row.again)(&example), Ok(example.clone()), "{}", row.name);
            let frame = nm_wire::read(&bytes).unwrap().unwrap();
            prop_assert_eq!((frame.kind().name(), frame.message), (row.name, &example[..]));
            let message = Message::read(frame).unwrap();
            prop_assert_eq!(message.kind(), frame.kind());
            let mut written = vec![];
            let shape = Shape { is_stamped: frame.is_stamped(), size_bytes: bytes.len() };
            message.write(shape, &mut written);
            prop_assert_eq!(written, bytes, "{}", row.name);
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(
        seed: u64, noise in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(), to: u8,
    ) {
        for row in ROWS {
            row.check(&noise);
            let mut bytes = row.example_of(seed);
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = to;
                row.check(&bytes);
                row.check(&bytes[..at]);
            }
        }
    }

    /// What does not end a message by its content is refused behind it.
    #[test]
    fn bytes_behind_a_message_are_refused(seed: u64) {
        let open = ["Reply", "Private", "Resent", "Public", "MoveParts"];
        for row in ROWS.iter().filter(|row| !open.contains(&row.name)) {
            let mut bytes = row.example_of(seed);
            bytes.push(0);
            prop_assert!((row.again)(&bytes).is_err(), "{}", row.name);
        }
    }

    #[test]
    fn who_differs_claims_something_else(seeds: [u64; 2], start: u64) {
        let [one, other] = seeds.map(|seed| {
            let mut bytes = vec![];
            Who::example(&mut nm_wire::Random::new(seed), &mut bytes);
            Who::take("who", &mut Reader::new(&bytes)).unwrap()
        });
        prop_assert_eq!(one == other, one.claim() == other.claim());
        let node = NodeId { class: Role::Gateway, index: 1 };
        let welcome = Welcome { digest: 1, network: 7, start, session: 0, node, proof: None };
        let other_node = NodeId { class: Role::Gateway, index: 2 };
        for other in [
            Welcome { start: start ^ 1, ..welcome },
            Welcome { network: 8, ..welcome },
            Welcome { node: other_node, ..welcome },
        ] {
            prop_assert_ne!(welcome.claim(&one), other.claim(&one));
        }
    }

    #[test]
    fn the_sentence_of_a_close_can_be_printed(bytes in prop::collection::vec(any::<u8>(), 0..900)) {
        let close = Close::because(&String::from_utf8_lossy(&bytes));
        prop_assert!(close.reason.len() <= 400);
        let long = Close { reason: String::from_utf8_lossy(&bytes).into_owned() };
        prop_assert!(long.printable().len() <= 400 && !long.printable().contains(char::is_control));
    }
}

#[test]
fn a_change_of_the_format_is_a_change_of_its_digest() {
    let text = "raise the version if a peer of the one before cannot read it; note both";
    assert_eq!(
        (VERSION, format!("{:016x}", digest())),
        (10, "172aaffb5277f838".to_string()),
        "{text}"
    );
}

/// The digest of some rows is another one, so a format with one message less, or more, has another.
#[test]
fn each_message_counts_in_the_digest() {
    let without: BTreeSet<u64> = (0..ROWS.len())
        .map(|at| nm_wire::digest_of(&[&ROWS[..at], &ROWS[at + 1..]].concat()))
        .collect();
    assert_eq!(without.len(), ROWS.len());
    assert!(!without.contains(&digest()));
}

#[test]
fn kinds_are_those_of_the_table() {
    assert_eq!(Kind::ALL.len(), ROWS.len());
    for (kind, row) in Kind::ALL.iter().zip(ROWS) {
        assert_eq!((kind.code(), kind.name()), (row.code, row.name));
    }
    assert!(!Kind::is_known(0) && Kind::is_known(1));
}

#[test]
fn a_message_is_not_read_as_another_one() {
    let mut bytes = vec![];
    nm_wire::write(&Close::because("x"), &mut bytes);
    let frame = nm_wire::read(&bytes).unwrap().unwrap();
    let other: Result<Hello, DecodeError> = frame.read();
    assert_eq!(other.unwrap_err(), DecodeError::invalid("kind", "is that of another message"));
    assert!(nm_wire::request::View::of(frame).is_err());
    let short = Frame { code: Kind::Request.code(), message: &[], bytes: &bytes };
    assert_eq!(nm_wire::request::View::of(short).unwrap_err(), DecodeError::truncated("message"));
}

#[test]
fn handshakes_are_read_back_with_their_proofs() {
    let (nonce, proof) = (Nonce([1; 32]), Proof([2; 32]));
    let who = Who::Node { node: NodeId { class: Role::Router, index: 1 }, start: 2 };
    let to = Some(NodeId { class: Role::Mediator, index: 3 });
    let evidence = Some(Evidence { nonce, proof });
    let hello = Hello { digest: digest(), network: 9, who, to, evidence };
    let mut bytes = vec![];
    nm_wire::write(&hello, &mut bytes);
    let read: Hello = nm_wire::read(&bytes).unwrap().unwrap().read().unwrap();
    let evidence = read.evidence.unwrap();
    assert_eq!((read.digest, read.network, read.who, read.to), (digest(), 9, who, to));
    assert_eq!((evidence.nonce, evidence.proof.0), (nonce, proof.0));
    assert_eq!(
        nm_wire::hello::View::of(nm_wire::read(&bytes).unwrap().unwrap()).unwrap().digest(),
        digest()
    );
    assert!(nm_wire::decode::<Hello>(&encode(&hello)[..60]).is_err());
}

#[test]
fn a_series_ends_with_its_first_error() {
    let events = [Event::Halted, Event::Triggered { id: 1, user: 2 }];
    let mut bytes: Vec<u8> = events.iter().flat_map(encode).collect();
    let read: Result<Vec<Event>, DecodeError> = Series::of(&bytes).collect();
    assert_eq!(read.unwrap(), events);
    bytes.insert(1, Side::ALL.len() as u8 + 200);
    let read: Vec<Result<Event, DecodeError>> = Series::of(&bytes).collect();
    assert!(read.len() == 2 && read[0] == Ok(Event::Halted) && read[1].is_err());
}
