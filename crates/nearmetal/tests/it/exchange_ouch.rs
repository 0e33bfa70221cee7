//! OUCH through the built program, before networks of the built program. The client is written from
//! the published layouts alone.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_doors::fix::message::seal;
use nm_doors::fix::time;
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;

use crate::exchange_net::Net;
use crate::support::{BINARY, finish, free_port, listens, signal, wait_for};

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

const SYMBOL: &str =
    "[[symbol]]\nname = \"ACME\"\ninstrument = 1000\ntick = \"0.01\"\nlot = \"1\"\n";

/// A door that runs; killed when it goes.
struct Door {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file of sessions: alice has a password, bob has none.
fn sessions(folder: &Path, more: &str) {
    let word = folder.join("word");
    fs::write(&word, "Secret\n").unwrap();
    fs::set_permissions(&word, Permissions::from_mode(0o600)).unwrap();
    let clients = "[[session]]\nusername = \"alice\"\nsession = 9101\npassword = \"word\"\n\
                   [[session]]\nusername = \"bob\"\nsession = 9102\n";
    fs::write(folder.join("ouch.toml"), format!("{more}\n{SYMBOL}{clients}")).unwrap();
}

fn command(protocol: &str, network: &Path, port: u16, folder: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["exchange", protocol, "--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--network").arg(network);
    command.arg("--sessions").arg(folder.join(format!("{protocol}.toml")));
    command.arg("--store").arg(folder.join(format!("{protocol}-store")));
    command
}

impl Door {
    fn start(net: &Net, more: &str) -> Door {
        sessions(net.path(), more);
        Door::start_at("ouch", net, free_port())
    }

    fn start_at(protocol: &str, net: &Net, port: u16) -> Door {
        let mut command = command(protocol, &net.path().join("network.toml"), port, net.path());
        let log = File::options().create(true).append(true).open(net.path().join("door.log"));
        let log = log.unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let door = Door { child: command.spawn().unwrap(), port, folder: net.path().to_path_buf() };
        wait_for("the door to listen", || listens(port).then_some(()));
        door
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("door.log")).unwrap()
    }
}

/// A client, which keeps all numbered messages over connections.
struct Client {
    name: &'static str,
    password: &'static str,
    port: u16,
    stream: Option<TcpStream>,
    input: Vec<u8>,
    session: String,
    received: Vec<Vec<u8>>,
    /// Requests, which are sent again after a reconnect.
    sent: Vec<Vec<u8>>,
    /// The reason of a rejected login.
    refused: Option<u8>,
    is_logged_in: bool,
}

impl Client {
    fn new(name: &'static str, port: u16) -> Client {
        Client {
            name,
            password: if name == "alice" { "sEcret" } else { "" },
            port,
            stream: None,
            input: vec![],
            session: String::new(),
            received: vec![],
            sent: vec![],
            refused: None,
            is_logged_in: false,
        }
    }

    /// Connects, logs in with the number that comes next, and sends all requests again.
    fn log_in(&mut self) -> bool {
        let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        (self.stream, self.input, self.is_logged_in) = (Some(stream), vec![], false);
        let next = self.received.len() + 1;
        let login = format!("{:<6}{:<10}{:<10}{next:>20}", self.name, self.password, self.session);
        self.packet(b'L', login.as_bytes());
        let deadline = Deadline::after(Duration::from_secs(5));
        while !deadline.passed() && self.stream.is_some() && !self.is_logged_in {
            self.turn();
        }
        for request in self.sent.clone() {
            self.packet(b'U', &request);
        }
        self.is_logged_in
    }

    fn packet(&mut self, kind: u8, payload: &[u8]) {
        let bytes = [&(payload.len() as u16 + 1).to_be_bytes()[..], &[kind], payload].concat();
        if let Some(stream) = &mut self.stream
            && stream.write_all(&bytes).is_err()
        {
            self.stream = None;
        }
    }

    fn send(&mut self, message: Vec<u8>) {
        self.packet(b'U', &message);
        self.sent.push(message);
    }

    fn order(&mut self, number: u32, side: u8, shares: u32, price: u64) {
        let parts = [
            b"O",
            &number.to_be_bytes()[..],
            &[side],
            &shares.to_be_bytes(),
            b"ACME    ",
            &price.to_be_bytes(),
            b"0YANN",
            format!("{number:<14}").as_bytes(),
            &[0, 0],
        ]
        .concat();
        self.send(parts);
    }

    /// Takes what has come.
    fn turn(&mut self) {
        let mut bytes = vec![0; 1 << 16];
        let Some(stream) = &mut self.stream else { return };
        match stream.read(&mut bytes) {
            Ok(0) => self.stream = None,
            Ok(count) => self.input.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if self.is_logged_in {
                    self.packet(b'R', b"");
                }
            }
            Err(_) => self.stream = None,
        }
        while self.input.len() >= 2 {
            let end = 2 + usize::from(u16::from_be_bytes([self.input[0], self.input[1]]));
            if self.input.len() < end {
                break;
            }
            let packet: Vec<u8> = self.input.drain(..end).collect();
            match packet[2] {
                b'A' => {
                    self.session = String::from_utf8(packet[3..13].to_vec()).unwrap();
                    let next = String::from_utf8(packet[13..33].to_vec()).unwrap();
                    assert_eq!(next.trim().parse(), Ok(self.received.len() + 1));
                    self.is_logged_in = true;
                }
                b'J' => self.refused = Some(packet[3]),
                b'S' => self.received.push(packet[3..].to_vec()),
                b'H' => {}
                kind => panic!("{}: a packet of type {kind}", self.name),
            }
        }
    }

    /// Messages of a kind about an order.
    fn of(&self, kind: u8, number: u32) -> Vec<&Vec<u8>> {
        let is_it = |message: &&Vec<u8>| message[0] == kind && u32_at(message, 9) == number;
        self.received.iter().filter(is_it).collect()
    }

    /// Waits for a message of a kind about an order.
    fn wait(&mut self, kind: u8, number: u32) -> Vec<u8> {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(found) = self.of(kind, number).first() {
                return found.to_vec();
            }
            let kind = char::from(kind);
            assert!(!deadline.passed(), "{}: no {kind} {number}: {:?}", self.name, self.received);
            self.turn();
        }
    }

    /// Shares that have traded.
    fn traded(&self) -> u32 {
        let fills = self.received.iter().filter(|message| message[0] == b'E');
        fills.map(|message| u32_at(message, 13)).sum()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().unwrap()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn started(counts: &str, durability: Durability) -> Net {
    let mut net = Net::new(counts, durability);
    net.start_all(|_, command| command);
    net
}

#[test]
fn ouch_trades_with_ouch_and_with_fix() {
    let mut net = started("1-1-1-1", Durability::None);
    let mut door = Door::start(&net, "");
    let (mut alice, mut bob) = (Client::new("alice", door.port), Client::new("bob", door.port));
    assert!(alice.log_in() && bob.log_in());
    alice.order(1, b'B', 100, 102_500);
    let accepted = alice.wait(b'A', 1);
    assert_eq!((u32_at(&accepted, 14), u64_at(&accepted, 26), accepted[47]), (100, 102_500, b'L'));
    assert_eq!((&accepted[18..26], accepted.len()), (&b"ACME    "[..], 64));
    bob.order(1, b'S', 40, 102_000);
    let (rested, came) = (alice.wait(b'E', 1), bob.wait(b'E', 1));
    assert_eq!((u32_at(&came, 13), u64_at(&came, 17), came[25]), (40, 102_500, b'R'));
    assert_eq!((u32_at(&rested, 13), u64_at(&rested, 17), rested[25]), (40, 102_500, b'A'));
    assert_eq!(u64_at(&rested, 26), u64_at(&came, 26), "the match number");
    // The total becomes 120, of which 40 have traded.
    let price = 103_000_u64.to_be_bytes();
    let begin = b"U\0\0\0\x01\0\0\0\x02\0\0\0\x78";
    alice.send([&begin[..], &price, b"0YNsecond        \0\0"].concat());
    let replaced = alice.wait(b'U', 1);
    let found = (u32_at(&replaced, 13), u32_at(&replaced, 18), u64_at(&replaced, 30));
    assert_eq!(found, (2, 80, 103_000));
    fix_sells(&net, 30);
    assert_eq!(u32_at(&alice.wait(b'E', 2), 13), 30);
    alice.send(b"X\0\0\0\x02\0\0\0\0".to_vec());
    let canceled = alice.wait(b'C', 2);
    assert_eq!((u32_at(&canceled, 13), canceled[17]), (50, b'U'));
    alice.order(3, b'B', 10, 102_550);
    assert_eq!(alice.wait(b'J', 3)[13..15], [0, 0x1d], "off the tick");
    // Ctrl-C: the program ends well.
    signal("INT", door.child.id());
    assert_eq!(wait_for("the door to end", || door.child.try_wait().unwrap()).code(), Some(0));
    net.stop();
}

/// A client of FIX sells at 10.30, through a door of its own.
fn fix_sells(net: &Net, shares: u32) {
    let client = "[[session]]\nclient = \"F\"\nversion = \"FIX.4.4\"\nsession = 9103\n";
    fs::write(net.path().join("fix.toml"), format!("venue = \"V\"\n{SYMBOL}{client}")).unwrap();
    let door = Door::start_at("fix", net, free_port());
    let mut stream = TcpStream::connect(("127.0.0.1", door.port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = time::format(now.as_nanos() as u64);
    let order = format!("11=f|55=ACME|54=2|38={shares}|40=2|44=10.30|60={now}");
    for (kind, seq, body) in [("A", 1, "98=0|108=30"), ("D", 2, &*order)] {
        let fields = format!("35={kind}|34={seq}|49=F|52={now}|56=V|{body}|");
        stream.write_all(&seal("FIX.4.4", &fields.replace('|', "\u{1}"))).unwrap();
    }
    let (mut all, mut bytes) = (vec![], [0; 4096]);
    while !String::from_utf8_lossy(&all).contains("\u{1}150=F\u{1}") {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&bytes[..count]);
    }
}

/// Both sides trade while something is done to the network and the door; in the end each message
/// has reached each client once.
fn trade_while(mut disturb: impl FnMut(&mut Net, &mut Door, u32)) {
    const ORDERS: u32 = 120;
    let mut net = started("2-1-2-2", Durability::MemoryQuorum);
    let mut door = Door::start(&net, "");
    let (mut alice, mut bob) = (Client::new("alice", door.port), Client::new("bob", door.port));
    let deadline = Deadline::after(LIMIT * 2);
    let mut sent = 0;
    while alice.traded() < ORDERS * 10 || bob.traded() < ORDERS * 10 {
        assert!(!deadline.passed(), "{}", door.log());
        for client in [&mut alice, &mut bob] {
            if client.stream.is_none() {
                client.log_in();
            }
            client.turn();
        }
        if sent < ORDERS {
            sent += 1;
            alice.order(sent, b'B', 10, 100_000);
            bob.order(sent, b'S', 10, 100_000);
            disturb(&mut net, &mut door, sent);
        }
    }
    // What would come twice comes soon.
    for _ in 0..50 {
        alice.turn();
        bob.turn();
    }
    for client in [&alice, &bob] {
        for number in 1..=ORDERS {
            assert_eq!(client.of(b'A', number).len(), 1, "{} {number}", client.name);
            let fills = client.of(b'E', number);
            assert_eq!(fills.iter().map(|it| u32_at(it, 13)).sum::<u32>(), 10);
        }
        assert_eq!(client.traded(), ORDERS * 10);
    }
    // From the first message on, all are the same.
    alice.stream = None;
    let before = std::mem::take(&mut alice.received);
    wait_for("the session to be free", || alice.log_in().then_some(()));
    wait_for("all messages", || {
        alice.turn();
        (alice.received.len() >= before.len()).then_some(())
    });
    assert_eq!(alice.received, before);
    drop(door);
    net.stop();
}

#[test]
fn after_kills_of_the_door_each_message_of_ouch_arrives_once() {
    trade_while(|net, door, sent| {
        if sent % 30 == 0 {
            door.child.kill().unwrap();
            door.child.wait().unwrap();
            *door = Door::start_at("ouch", net, door.port);
        }
    });
}

#[test]
fn a_door_for_ouch_goes_on_at_another_gateway_when_its_own_dies() {
    let mut killed = 0;
    trade_while(|net, door, sent| {
        if sent == 40 || sent == 80 {
            let dead = Role::Gateway.node(killed);
            net.kill(dead);
            let other = format!("connected to gateway {}", 1 - killed);
            wait_for("the door to go on", || door.log().contains(&other).then_some(()));
            net.start(dead, |command| command);
            killed += 1;
        }
    });
}

#[test]
fn a_login_with_a_wrong_password_is_rejected() {
    let net = Net::new("1-1-1-1", Durability::None);
    let door = Door::start(&net, "");
    let mut alice = Client::new("alice", door.port);
    alice.password = "wrong";
    assert!(!alice.log_in());
    assert_eq!(alice.refused, Some(b'A'));
    let mut alice = Client::new("alice", door.port);
    assert!(alice.log_in(), "passwords have no case");
    let mut second = Client::new("alice", door.port);
    assert!(!second.log_in());
    assert_eq!(second.refused, Some(b'S'), "it is in use");
}

#[test]
fn a_full_store_of_ouch_takes_no_new_orders() {
    let mut net = started("1-1-1-1", Durability::None);
    let door = Door::start(&net, "store_bytes = 65536");
    let mut bob = Client::new("bob", door.port);
    assert!(bob.log_in());
    bob.order(1, b'B', 10, 100);
    bob.wait(b'A', 1);
    let is_full = |bob: &Client| bob.received.iter().any(|it| it[0] == b'J' && it[14] == 0x0a);
    let mut number = 1;
    while !is_full(&bob) {
        number += 1;
        assert!(number < 5_000, "it is never full");
        bob.order(number, b'B', 10, 101);
        bob.wait(b'J', number);
    }
    bob.send(b"X\0\0\0\x01\0\0\0\0".to_vec());
    bob.wait(b'C', 1);
    net.stop();
}

#[test]
fn wrong_files_of_ouch_are_refused_in_one_sentence() {
    let net = Net::new("1-1-1-1", Durability::None);
    sessions(net.path(), "venue = \"V\"");
    let network = net.path().join("network.toml");
    let run = finish(&mut command("ouch", &network, free_port(), net.path()));
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("ouch.toml: unknown field `venue`"), "{run:?}");
    assert_eq!(run.stderr.trim_end().lines().count(), 1, "{run:?}");
}
