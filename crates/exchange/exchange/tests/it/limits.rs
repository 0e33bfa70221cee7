//! Peers that take more than their share: of time, of connections, of memory. Each is ended with a
//! sentence, and trading continues.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use nm_book::order::Side;
use nm_exchange::client::say_hello;
use nm_exchange::control::Observer;
use nm_exchange::network::{Durability, Role};
use nm_exchange::node::Limits;
use nm_exchange::testing::{Client, LIMIT, TestRing, assert_executed_once, order, trade};
use nm_sys::clock::Deadline;
use nm_wire::{Close, Kind, ResendRequest, Who};

/// A ring whose nodes have such limits.
fn ring(limits: Limits) -> TestRing {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.limits = limits;
    ring.start();
    ring
}

fn connect(ring: &TestRing, role: Role) -> UnixStream {
    let stream = UnixStream::connect(ring.folder.path().join(format!("{role}-0"))).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A client that has said hello, and does nothing else.
fn idle_client(ring: &TestRing, session: u32) -> UnixStream {
    let mut stream = connect(ring, Role::Gateway);
    let mut hello = vec![];
    say_hello(Who::Client { session }, None, &mut hello);
    stream.write_all(&hello).unwrap();
    stream
}

/// What a node says before it closes a connection; nothing if it closes it without a word.
fn refusal(mut stream: &UnixStream) -> Option<String> {
    let mut bytes = vec![];
    stream.set_nonblocking(false).unwrap();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    let frame = nm_wire::read(&bytes).unwrap()?;
    Some(frame.read::<Close>().unwrap().printable())
}

/// Whether the node has not closed a connection. A node may have sent it frames: a gateway asks
/// its clients to send resend requests when a cell has a new leader.
fn is_open(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = vec![];
    let read = stream.read_to_end(&mut bytes);
    let is_close = nm_wire::read(&bytes).unwrap().is_some_and(|frame| frame.kind() == Kind::Close);
    !is_close && matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// How many warnings with such words there were, by the numbers in the lines.
fn count_of_warnings(ring: &TestRing, words: &str) -> u64 {
    let warnings = ring.warnings.lock().unwrap();
    let count = |line: &String| {
        let count = line.strip_suffix(" such warnings since the last one)");
        count.map_or(1, |line| line.rsplit_once('(').unwrap().1.parse().unwrap())
    };
    warnings.iter().filter(|line| line.contains(words)).map(count).sum()
}

#[test]
fn a_connection_without_handshake_is_closed_and_an_idle_client_is_not() {
    let hello_timeout = Duration::from_secs(3);
    let mut ring = ring(Limits { hello_timeout, ..Limits::STANDARD });
    let idle = idle_client(&ring, 7);
    let mut active = [Client::new(&ring, 0, &[1])];
    trade(&mut active, 10, |_| {});
    let mut hello = vec![];
    say_hello(Who::Observer, None, &mut hello);
    let roles = [Role::Gateway, Role::Router, Role::Mediator, Role::Processor];
    let strangers = roles.map(|role| {
        let (silent, mut slow) = (connect(&ring, role), connect(&ring, role));
        slow.write_all(&hello[..20]).unwrap();
        [silent, slow]
    });
    for stranger in strangers.as_flattened() {
        let reason = refusal(stranger).expect("it is sent a reason");
        assert_eq!(reason, "the handshake was not complete after 3000 ms");
    }
    ring.wait_for_warning("a link was refused: the handshake was not complete after 3000 ms");
    assert!(is_open(&idle), "a client may be idle for any time");
    trade(&mut active, 10, |_| {});
    ring.stop_all();
}

#[test]
fn connections_beyond_the_quota_of_those_without_handshake_are_closed_at_once() {
    let (unauthenticated_max, hello_timeout) = (8, 10 * LIMIT);
    let mut ring = ring(Limits { unauthenticated_max, hello_timeout, ..Limits::STANDARD });
    let strangers: Vec<UnixStream> = (0..30).map(|_| connect(&ring, Role::Gateway)).collect();
    let open = || strangers.iter().filter(|stranger| is_open(stranger)).count();
    let deadline = Deadline::after(LIMIT);
    // All of them are of one owner, whose quota is half of that.
    let quota = unauthenticated_max / 2;
    while open() > quota {
        assert!(!deadline.passed(), "{} are open", open());
        std::thread::sleep(Duration::from_millis(2));
    }
    while count_of_warnings(&ring, "your quota of unfinished handshakes is full") < 26 {
        assert!(!deadline.passed(), "{:?}", ring.warnings.lock().unwrap());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(open(), quota);
    drop(strangers);
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 20, |_| {});
    assert_executed_once(&clients, 20);
    ring.stop_all();
}

#[test]
fn clients_and_observers_beyond_the_quota_of_their_owner_are_sent_the_quota() {
    let mut ring = ring(Limits { clients_max: 4, observers_max: 2, ..Limits::STANDARD });
    let mut clients = [Client::new(&ring, 0, &[1]), Client::new(&ring, 0, &[2])];
    trade(&mut clients, 5, |_| {});
    let refused = refusal(&idle_client(&ring, 3)).unwrap();
    let expected = "your quota of client links is full: user:";
    assert!(refused.starts_with(expected) && refused.contains(" has 2, "), "{refused}");
    // One goes, another one comes.
    let [mut first, second] = clients;
    drop(second);
    let mut third = [Client::new(&ring, 0, &[3])];
    trade(&mut third, 5, |_| {});
    first.turn();
    assert!(first.link.is_some(), "the first one stays");

    let address = &ring.network.classes[Role::Router].nodes[0].address;
    let observer = Observer::connect(address, Who::Observer, None, LIMIT).unwrap();
    let refused = Observer::connect(address, Who::Observer, None, LIMIT).unwrap_err();
    assert!(refused.to_string().contains("your quota of observer links is full"), "{refused}");
    drop(observer);
    ring.stop_all();
}

/// A client that is connected and reads nothing, while another one trades until a warning comes.
fn does_not_read(limits: Limits, warning: &str) {
    let mut ring = ring(limits);
    let silent_reader = idle_client(&ring, 7);
    let mut active = Client::new(&ring, 0, &[1]);
    let deadline = Deadline::after(LIMIT);
    for seq in 1.. {
        if ring.warnings.lock().unwrap().iter().any(|line| line.contains(warning)) {
            break;
        }
        assert!(!deadline.passed(), "no `{warning}`: {:?}", ring.warnings.lock().unwrap());
        for instrument in 0..5 {
            let side = if seq % 2 == 0 { Side::Buy } else { Side::Sell };
            active.request(1, instrument, &order(1, seq, side, 100));
        }
        while active.waiting() > 0 {
            assert!(!deadline.passed(), "no reply");
            active.turn();
        }
    }
    // What was sent before can be read, then comes the end.
    let mut bytes = vec![];
    (&silent_reader).read_to_end(&mut bytes).unwrap();
    assert!(!bytes.is_empty());
    let mut others = [active];
    trade(&mut others, 10, |_| {});
    ring.stop_all();
}

#[test]
fn a_client_with_too_large_a_backlog_is_ended_and_the_others_trade() {
    let limits = Limits { client_backlog_bytes_max: 64 << 10, ..Limits::STANDARD };
    does_not_read(limits, "the link with a client is closed: the peer does not read: its backlog");
}

#[test]
fn a_client_that_takes_nothing_for_too_long_is_ended_and_the_others_trade() {
    let limits = Limits { slow_timeout: Duration::from_millis(500), ..Limits::STANDARD };
    does_not_read(limits, "it has read nothing for 0.5 s, although data wait for it");
}

#[test]
fn clients_that_do_not_read_are_ended_before_they_hold_too_much_together() {
    let limits = Limits { foreign_bytes_max: 8 << 20, ..Limits::STANDARD };
    let mut ring = ring(limits);
    let silent_readers: Vec<UnixStream> = (0..20).map(|k| idle_client(&ring, 100 + k)).collect();
    let mut active = Client::new(&ring, 0, &[1]);
    let warning = "your quota of bytes of this node is full";
    let deadline = Deadline::after(LIMIT);
    for seq in 1.. {
        if ring.warnings.lock().unwrap().iter().any(|line| line.contains(warning)) {
            break;
        }
        assert!(!deadline.passed(), "no `{warning}`: {:?}", ring.warnings.lock().unwrap());
        for number in 0..50 {
            // Each of them is the best bid: all clients are told.
            let order = order(1, seq * 50 + number, Side::Buy, (seq * 50 + number) as i64);
            active.request(1, number as u32 % 5, &order);
        }
        while active.waiting() > 0 {
            assert!(!deadline.passed(), "no reply");
            active.turn();
        }
    }
    let open = || silent_readers.iter().filter(|reader| is_open(reader)).count();
    assert!(active.link.is_some() && open() > 0, "only those go that hold the most");
    trade(&mut [active], 10, |_| {});
    ring.stop_all();
}

/// Each answer is a hundred times as long as the request for it.
#[test]
fn a_client_that_sends_resend_requests_without_end_holds_up_nobody() {
    let ring = ring(Limits::STANDARD);
    let mut greedy = Client::new(&ring, 0, &[7]);
    for seq in 1..=500 {
        greedy.request(7, 1, &order(7, seq, Side::Buy, 100));
    }
    let deadline = Deadline::after(LIMIT);
    while greedy.waiting() > 0 {
        assert!(!deadline.passed(), "no reply");
        greedy.turn();
    }
    const REQUESTS: usize = 50_000;
    let link = greedy.link.as_mut().unwrap();
    let (instrument, session, acknowledged, gateway, cell) = (1, 7, 0, 0, 0);
    let request = ResendRequest { instrument, session, acknowledged, gateway, cell };
    for _ in 0..REQUESTS {
        nm_wire::write(&request, &mut link.output);
    }
    link.flush().unwrap();
    let mut others = [Client::new(&ring, 0, &[1])];
    trade(&mut others, 50, |_| {
        greedy.turn();
    });
    while greedy.link.as_mut().is_some_and(|link| !link.flush().unwrap()) {
        assert!(!deadline.passed(), "its requests are not read");
        greedy.turn();
    }
    drop(greedy);
    let ended = ring.stop();
    let gateway = ended.iter().find(|ended| ended.node.class == Role::Gateway).unwrap();
    assert!(gateway.frames_in > REQUESTS as u64, "{gateway:?}");
    assert!(gateway.frames_out < REQUESTS as u64 / 2, "{gateway:?}");
}

#[test]
fn strangers_that_connect_often_make_few_lines() {
    const STRANGERS: u64 = 3_000;
    let mut ring = ring(Limits::STANDARD);
    let count = |ring: &TestRing| {
        let unread = count_of_warnings(ring, "was refused too often; it is not answered for now");
        (count_of_warnings(ring, "bytes that are not a frame"), unread)
    };
    for _ in 0..STRANGERS {
        let mut stranger = connect(&ring, Role::Gateway);
        // It may be refused before all is written, and the reason lost then.
        let _ = stranger.write_all(&[7; 100]);
        let reason = refusal(&stranger);
        let is_clear = |reason: &String| reason.contains("field `version`: it is 7");
        assert!(reason.as_ref().is_none_or(is_clear), "{reason:?}");
    }
    let deadline = Deadline::after(LIMIT);
    while count(&ring).0 + count(&ring).1 < STRANGERS {
        assert!(!deadline.passed(), "{:?}", ring.warnings.lock().unwrap());
        std::thread::sleep(Duration::from_millis(2));
    }
    let lines = ring.warnings.lock().unwrap().len() as u64;
    assert!(lines < STRANGERS / 10, "{lines} lines");
    let (read, unread) = count(&ring);
    assert!(read >= 1024 && unread > STRANGERS / 4, "{read} were read, {unread} were not");
    // They are of this user, too, which is answered again after a while.
    trade(&mut [Client::new(&ring, 0, &[1])], 5, |_| {});
    ring.stop_all();
}

#[test]
fn a_client_stays_a_client() {
    let mut ring = ring(Limits::STANDARD);
    let mut client = idle_client(&ring, 7);
    let mut hello = vec![];
    say_hello(Who::Node { node: Role::Processor.node(0), start: 1 }, None, &mut hello);
    client.write_all(&hello).unwrap();
    assert_eq!(refusal(&client).as_deref(), Some("it sent a second handshake"));
    ring.stop_all();
}

#[test]
fn a_node_without_descriptors_keeps_trading_and_accepts_again_later() {
    let test = "limits::in_a_process_with_few_descriptors";
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256 && exec \"$0\" --exact \"$1\" --nocapture"]);
    command.arg(std::env::current_exe().unwrap()).arg(test).env(FEW_DESCRIPTORS, "1");
    let ended = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// Set in the process that the test above starts: the test below takes all descriptors.
const FEW_DESCRIPTORS: &str = "NEARMETAL_TEST_FEW_DESCRIPTORS";

#[test]
fn in_a_process_with_few_descriptors() {
    if std::env::var_os(FEW_DESCRIPTORS).is_none() {
        return;
    }
    let ring = ring(Limits::STANDARD);
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 5, |_| {});
    let mut taken = vec![];
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    // An odd number is left, and a connection needs two: the last one cannot be accepted.
    taken.truncate(taken.len() - 9);
    let path = ring.folder.path().join("gateway-0");
    let mut strangers = vec![];
    while let Ok(stranger) = UnixStream::connect(&path) {
        strangers.push(stranger);
    }
    ring.wait_for_warning("no connection can be accepted");
    trade(&mut clients, 50, |_| {});
    // A node that spins would take many thousand turns.
    std::thread::sleep(Duration::from_millis(500));
    drop((strangers, taken));
    let mut later = [Client::new(&ring, 0, &[2])];
    trade(&mut later, 5, |_| {});
    ring.wait_for_warning("connections are accepted again");
    let lines = ring.warnings.lock().unwrap().clone();
    let of_accept = lines.iter().filter(|line| line.contains("no connection can be accepted"));
    assert_eq!(of_accept.count(), 1, "{lines:?}");
    let ended = ring.stop();
    let gateway = ended.iter().find(|ended| ended.node.class == Role::Gateway).unwrap();
    assert!(gateway.turns < 10_000, "{gateway:?}");
}
