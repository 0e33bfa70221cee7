//! The version of the frames rises with each change of them, and peers of another version are
//! refused.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_book::book::Book;
use nm_book::order::{Command, Matching};
use nm_book::testing::{Stream as Commands, seeded};
use nm_exchange::client::{self, say_hello};
use nm_exchange::control::{InstrumentMap, State};
use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::network::{Durability, NodeId, Role};
use nm_exchange::testing::{LIMIT, TestRing, request};
use nm_sys::clock::Deadline;
use nm_wire::{Close, Format, Hello, Kind, ROWS, Row, VERSION, Value, Welcome, Who};

use super::peer;

/// Commands, and the events that a book makes of them.
fn commands_and_events(out: &mut Vec<u8>) {
    let mut commands = Commands::new(seeded(1), 20);
    let mut book = Book::new();
    for _ in 0..3_000 {
        let command = commands.command().expect("the bytes do not end");
        command.put(out);
        book.apply(&command, commands.now_ns, &mut |event| event.put(out));
    }
    book.save(out);
}

/// Each message with any numbers.
fn messages(out: &mut Vec<u8>) {
    ROWS.iter().for_each(|row| out.extend((0..9).flat_map(|seed| row.example_of(seed))));
}

/// What of control stands in messages, and is none itself.
fn state_of_control(out: &mut Vec<u8>) {
    let mut state = State::new(InstrumentMap::with_spares(3, 1));
    state.begin(9);
    // Without its checksum: with it, the checksum of all would always be the same.
    let saved = state.save();
    out.extend(&saved[..saved.len() - 4]);
}

#[test]
fn a_change_of_frames_is_a_change_of_their_version() {
    let all = [commands_and_events, messages, state_of_control];
    let digests = all.map(|write| {
        let mut bytes = vec![];
        write(&mut bytes);
        nm_codec::crc32c(&bytes)
    });
    let known = [231_224_662, 2_561_649_950, 1_395_471_226];
    assert_eq!((VERSION, digests), (10, known), "raise the version, and note both here");
}

/// Why a node ends a link.
fn refusal(link: &mut Link) -> String {
    link.flush().unwrap();
    let deadline = Deadline::after(LIMIT);
    loop {
        assert!(!deadline.passed(), "the gateway does not answer");
        if nm_sys::poll::readable(link.as_fd().as_raw_fd(), Duration::from_millis(50)).unwrap() {
            let _ = link.receive();
        }
        if let Some(frame) = link.input.next_frame().unwrap() {
            return frame.read::<Close>().unwrap().printable();
        }
    }
}

/// Says hello to a node as a program whose digest is another one, and that has these messages.
fn introduced(ring: &TestRing, to: NodeId, who: Who, rows: &[Row]) -> Link {
    let address = &ring.network.classes[to.class].nodes[0].address;
    let deadline = Deadline::after(LIMIT);
    // It may not listen yet.
    let stream = loop {
        match Stream::connect(address, LIMIT) {
            Ok(stream) => break stream,
            Err(error) => assert!(!deadline.passed(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut link = Link::new(stream).unwrap();
    nm_wire::write(&Format::of("7.8.9", rows), &mut link.output);
    let hello = Hello { digest: 0x1234, network: 0, who, to: None, evidence: None };
    nm_wire::write(&hello, &mut link.output);
    link
}

fn without(kind: Kind) -> Vec<Row> {
    ROWS.iter().filter(|row| row.code != kind.code()).copied().collect()
}

/// Receives until a frame of this kind has come; the kinds of all.
fn receive_until(link: &mut Link, last: Kind) -> Vec<Kind> {
    let deadline = Deadline::after(LIMIT);
    let mut kinds = vec![];
    while kinds.last() != Some(&last) {
        assert!(!deadline.passed(), "no {last:?} after {kinds:?}");
        assert!(link.flush().unwrap());
        if nm_sys::poll::readable(link.as_fd().as_raw_fd(), Duration::from_millis(50)).unwrap() {
            link.receive().unwrap();
        }
        while let Some(frame) = link.input.next_frame().unwrap() {
            kinds.push(frame.kind());
        }
    }
    kinds
}

/// The mediator of this ring sends the cells of instruments to each router that connects.
#[test]
fn a_node_of_another_version_is_linked_and_is_not_sent_what_it_does_not_know() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    let (network, mediator) = (ring.network.clone(), Role::Mediator.node(0));
    ring.start_one(mediator, &network, &Default::default());
    let who = Who::Node { node: Role::Router.node(0), start: 5 };
    let mut link = introduced(&ring, mediator, who, ROWS);
    let kinds = receive_until(&mut link, Kind::RoutingTable);
    assert_eq!(kinds[..2], [Kind::Format, Kind::Welcome], "{kinds:?}");
    drop(link);

    let mut link = introduced(&ring, mediator, who, &without(Kind::RoutingTable));
    let kinds = receive_until(&mut link, Kind::Welcome);
    assert_eq!(kinds, [Kind::Format, Kind::Welcome]);
    ring.wait_for_warning("a RoutingTable was not sent to router 0, which is of another version");
    let fd = link.as_fd().as_raw_fd();
    assert!(!nm_sys::poll::readable(fd, Duration::from_millis(100)).unwrap(), "it sent more");
    ring.stop();
}

#[test]
fn a_client_of_another_version_trades() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let gateway = Role::Gateway.node(0);
    let rows = without(Kind::CatchUp);
    let mut link = introduced(&ring, gateway, Who::Client { session: 1 }, &rows);
    nm_wire::write(&request(1, 1, Command::Tick), &mut link.output);
    assert_eq!(receive_until(&mut link, Kind::Reply), [Kind::Reply]);
    ring.stop();
}

#[test]
fn a_peer_without_a_message_of_the_logs_is_refused_in_a_sentence_with_both_versions() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let who = Who::Client { session: 1 };
    let mut link = introduced(&ring, Role::Gateway.node(0), who, &without(Kind::Claim));
    let why = refusal(&mut link);
    let own = nm_wire::PROGRAM;
    for words in ["nearmetal 7.8.9", &format!("nearmetal {own}"), "0000000000001234", "Claim"] {
        assert!(why.contains(words), "no `{words}` in: {why}");
    }
    ring.stop();
}

/// A build may have another format without another version.
#[test]
fn a_peer_of_another_format_is_refused_in_a_sentence_with_both_digests() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let stream = Stream::connect(&ring.network.classes[Role::Gateway].nodes[0].address, LIMIT);
    let mut link = Link::new(stream.unwrap()).unwrap();
    let who = Who::Client { session: 1 };
    let hello = Hello { digest: 0x1234, network: 0, who, to: None, evidence: None };
    nm_wire::write(&hello, &mut link.output);
    let why = refusal(&mut link);
    let own = format!("{:016x}", nm_wire::digest());
    for words in ["0000000000001234", &own, "version 10", "both ends must be of the same version"] {
        assert!(why.contains(words), "no `{words}` in: {why}");
    }
    ring.wait_for_warning("its format of messages is 0000000000001234");
    ring.stop();
}

/// The end that connects looks as well.
#[test]
fn a_node_does_not_use_a_node_of_another_format() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    let network = ring.network.clone();
    let listener = peer::listener(&network.classes[Role::Router].nodes[0].address);
    ring.start_one(Role::Gateway.node(0), &network, &Default::default());
    let (mut stream, _) = listener.accept().unwrap();
    let mut welcome = vec![];
    let node = Role::Router.node(0);
    let other = Welcome { digest: 0x1234, network: 0, start: 1, session: 0, node, proof: None };
    nm_wire::write(&other, &mut welcome);
    stream.write_all(&welcome).unwrap();
    ring.wait_for_warning("its format of messages is 0000000000001234");
    ring.stop();
}

#[test]
fn a_peer_of_another_version_is_refused_with_the_reason() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let stream =
        Stream::connect(&ring.network.classes[Role::Gateway].nodes[0].address, LIMIT).unwrap();
    let mut link = Link::new(stream).unwrap();
    say_hello(Who::Client { session: 1 }, None, &mut link.output);
    // Behind the length of the frame.
    link.output[4] = 1;
    let close = refusal(&mut link);
    let reason = "it is 1, and this version of nearmetal reads only 10";
    assert!(close.contains(reason), "{close}");
    ring.wait_for_warning(reason);
    ring.stop();
}

#[test]
fn a_client_gives_up_on_a_node_of_another_version() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("gateway"));
    let listener = peer::listener(&address);
    let mut link = client::connect(&address, &[Who::Client { session: 1 }], None, LIMIT).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut welcome = vec![];
    let digest = nm_wire::digest();
    let node = Role::Gateway.node(0);
    let answer = Welcome { digest, network: 0, start: 0, session: 1, node, proof: None };
    nm_wire::write(&answer, &mut welcome);
    welcome[4] = 1;
    stream.write_all(&welcome).unwrap();
    let error = client::receive(&mut link, Kind::Welcome, Deadline::after(LIMIT)).unwrap_err();
    assert!(error.is_lasting(), "{error}");
    assert!(error.to_string().contains("both ends must be of the same version"), "{error}");
}
