//! The version of the frames rises with each change of them, and peers of another version are
//! refused.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nm_auth::{Nonce, Proof};
use nm_book::book::Book;
use nm_book::order::Matching;
use nm_book::testing::{Stream as Commands, seeded};
use nm_exchange::client;
use nm_exchange::control::{
    AdminRequest, AdminResponse, CellLeader, CellReplicas, InstrumentMap, InstrumentWork,
    LinkLatency, MembershipReport, RoutingTable, State, Work,
};
use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::message::{
    CatchUp, Challenge, Close, Evidence, GoAway, Hello, Leader, Reply, ResendRequest, Welcome,
};
use nm_exchange::moves::{
    Attempt, Claim, CopyStart, Forget, MoveEnded, MoveId, MoveOrder, MoveParts, MoveProgress,
    MoveRefusal, Part, Release,
};
use nm_exchange::network::{Durability, Node, Role};
use nm_exchange::refused::RefusalReason;
use nm_exchange::testing::{LIMIT, TestRing};
use nm_exchange::wire::{self, FrameKind, Header, VERSION};
use nm_sys::clock::Deadline;

use super::peer;

/// Each kind of frame with any numbers.
fn headers(out: &mut Vec<u8>) {
    for kind in FrameKind::ALL {
        let header = Header {
            kind: *kind,
            flags: wire::STAMPED | wire::PUBLIC,
            instrument: 1,
            gateway: 2,
            cell: 3,
            map_version: 4,
            session: 5,
            client_seq: 6,
            previous_seq: 7,
            intended_ns: 8,
            output_seq: 9,
        };
        wire::write(&header, b"body", 200, out);
    }
}

fn handshakes(out: &mut Vec<u8>) {
    let (nonce, proof) = (Nonce([1; 32]), Proof([2; 32]));
    let node = Hello::Node { node: Role::Router.node(1), start: 2 };
    for hello in [Hello::Client(7), Hello::Observer, Hello::Operator, node] {
        hello.write(None, out);
        hello.write(Some(&Evidence { nonce, proof }), out);
    }
    Challenge(nonce).write(out);
    Welcome { start: 3, session: 4 }.write(Some(&proof), out);
    Close("because".to_string()).write(out);
    GoAway { gateway: 1 }.write(out);
    Leader { cell: 1, term: 2 }.write(out);
    CatchUp { cell: 1, index: 2 }.write(out);
    let resend = ResendRequest { session: 1, instrument: 2, acknowledged: 3 };
    wire::write(&resend.header(), &[], 0, out);
}

/// Commands, and the events that a book makes of them.
fn commands_and_events(out: &mut Vec<u8>) {
    let mut commands = Commands::new(seeded(1), 20);
    let mut book = Book::new();
    let mut body = vec![];
    for _ in 0..3_000 {
        let command = commands.command().expect("the bytes do not end");
        let mut events = vec![];
        book.apply(&command, commands.now_ns, &mut |event| events.push(event));
        nm_book::codec::write_command(&command, out);
        Reply::encode(1, &events, &mut body);
        out.extend_from_slice(&body);
    }
    book.save(out);
    for reason in RefusalReason::ALL {
        reason.encode(&mut body);
        out.extend_from_slice(&body);
    }
}

/// The addresses of a node that is added.
fn added() -> Node {
    let replication = "127.0.0.1:2".parse::<Address>().unwrap().try_into().ok();
    Node { address: "unix:/run/more".parse().unwrap(), replication }
}

fn messages_of_control(out: &mut Vec<u8>) {
    let node = Role::Mediator.node(3);
    for request in [
        AdminRequest::Status,
        AdminRequest::Move { instrument: 1, cell: 2 },
        AdminRequest::Work,
        AdminRequest::Drain { node, is_drained: true },
        AdminRequest::Replicas { cell: 1 },
        AdminRequest::Replace { cell: 1, from: node, to: Role::Processor.node(2) },
        AdminRequest::Add { role: Role::Mediator, node: added() },
        AdminRequest::Remove(node),
    ] {
        out.extend(request.encode());
    }
    let mut state = Box::new(State::new(InstrumentMap::with_spares(3, 1)));
    state.begin(9);
    let by_gateway = vec![1, 2];
    let instrument = InstrumentWork { instrument: 1, cell: 2, executed: 3, busy_ns: 4, by_gateway };
    let work = Work {
        at_ns: 1,
        cpu_ns: 2,
        moved: 3,
        sessions: 4,
        is_leaving: true,
        pauses_ns: vec![5],
        links: vec![LinkLatency { peer: node, latency_ns: 6 }],
        instruments: vec![instrument],
    };
    let (voters, replace_failed) = (vec![node], Some("because".to_string()));
    for response in [
        AdminResponse::Status { leading_term: Some(3), stalled_ms: 4, state },
        AdminResponse::Moved { instrument: 1, map_version: 2 },
        AdminResponse::Refused { instrument: 1, reason: "because".to_string() },
        AdminResponse::Work(work),
        AdminResponse::NotLeading,
        AdminResponse::Replicas(CellReplicas { is_leader: true, voters, replace_failed }),
    ] {
        out.extend(response.encode());
    }
    let mut table = RoutingTable::new(InstrumentMap::new(3));
    table.map.set_drained(Role::Mediator.node(1), true);
    Role::ALL.iter().for_each(|role| table.map.add(*role, added()));
    table.leaders.insert(1, CellLeader { mediator: 2, term: 3, start: 4 });
    let mut report = MembershipReport::new(InstrumentMap::new(3));
    report.nodes.insert(node, 5);
    report.routes = table;
    out.extend(report.encode());
}

fn messages_of_moves(out: &mut Vec<u8>) {
    let id = MoveId { instrument: 1, epoch: 2 };
    let attempt = Attempt(3);
    MoveOrder { id, from: 4, to: 5 }.write(out);
    Release { id, to: 4 }.write(5, out);
    Forget(id).write(6, out);
    Claim(id).write(7, out);
    let parts = [
        Part::Start(CopyStart { output_seq: 1, public_seq: 2, history: 3, sessions: 4 }),
        Part::Sessions(b"sessions"),
        Part::Book(b"book"),
        Part::BookEnd,
        Part::Request { now_ns: 1, header: Header::new(FrameKind::Request), body: b"command" },
        Part::End { now_ns: 1, output_seq: 2, public_seq: 3, history: 4 },
    ];
    let mut body = vec![];
    parts.iter().for_each(|part| part.write(&mut body));
    MoveParts { id, from: 4, to: 5, attempt, number: 6 }.write(&body, out);
    for refusal in [None, Some(MoveRefusal::Damaged)] {
        MoveProgress { id, from: 4, attempt, next: 5, refusal }.write(out);
        MoveEnded { id, cell: 4, refusal }.write(out);
    }
}

#[test]
fn a_change_of_frames_is_a_change_of_their_version() {
    let all = [headers, handshakes, commands_and_events, messages_of_control, messages_of_moves];
    let digests = all.map(|write| {
        let mut bytes = vec![];
        write(&mut bytes);
        nm_codec::crc32c(&bytes)
    });
    let known = [2_961_607_374, 1_747_360_715, 3_981_733_110, 3_562_628_786, 3_802_650_189];
    assert_eq!((VERSION, digests), (5, known), "raise the version, and note both here");
}

#[test]
fn a_peer_of_another_version_is_refused_with_the_reason() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let stream =
        Stream::connect(&ring.network.classes[Role::Gateway].nodes[0].address, LIMIT).unwrap();
    let mut link = Link::new(stream).unwrap();
    Hello::Client(1).write(None, &mut link.output);
    // Behind the length of the frame.
    link.output[4] = 1;
    link.flush().unwrap();
    let deadline = Deadline::after(LIMIT);
    let close = loop {
        assert!(!deadline.passed(), "the gateway does not answer");
        if nm_sys::poll::readable(link.as_fd().as_raw_fd(), Duration::from_millis(50)).unwrap() {
            let _ = link.receive();
        }
        if let Some(frame) = link.input.next_frame().unwrap() {
            assert_eq!(frame.header.kind, FrameKind::Close);
            break Close::decode(frame.body()).0;
        }
    };
    let reason = "it is 1, and this version of nearmetal reads only 5";
    assert!(close.contains(reason), "{close}");
    ring.wait_for_warning(reason);
    ring.stop();
}

#[test]
fn a_client_gives_up_on_a_node_of_another_version() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("gateway"));
    let listener = peer::listener(&address);
    let mut link = client::connect(&address, &[Hello::Client(1)], None, LIMIT).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut welcome = vec![];
    Welcome { start: 0, session: 1 }.write(None, &mut welcome);
    welcome[4] = 1;
    stream.write_all(&welcome).unwrap();
    let error = client::receive(&mut link, FrameKind::Welcome, Deadline::after(LIMIT)).unwrap_err();
    assert!(error.is_lasting(), "{error}");
    assert!(error.to_string().contains("both ends must be of the same version"), "{error}");
}
