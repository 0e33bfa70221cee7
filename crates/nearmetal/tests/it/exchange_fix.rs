//! The FIX acceptor of the built program, before networks of the built program. It has fills, kills
//! of the door and of gateways, limits, and what it says of wrong files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_doors::fix::framer::Framer;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::time;
use nm_doors::limits::{
    LOGON_LIMIT_NS, MESSAGE_BYTES_MAX, MESSAGES_PER_SECOND, UNKNOWN_CONNECTIONS_MAX,
};
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;

use crate::exchange_net::Net;
use crate::support::{BINARY, finish, free_port, listens, signal, wait_for};

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// A door that runs; killed when it goes.
pub struct Door {
    pub child: Child,
    pub port: u16,
    folder: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file of sessions: ALICE and CAROL with FIX 4.4, BOB with FIXT 1.1.
fn sessions(folder: &Path, more: &str) -> PathBuf {
    let mut text = format!("venue = \"NEARMETAL\"\n{more}\n");
    for (name, instrument) in [("ACME", 1000), ("EMCA", 1001)] {
        text += &format!(
            "[[symbol]]\nname = \"{name}\"\ninstrument = {instrument}\ntick = \"0.01\"\n\
             lot = \"1\"\n"
        );
    }
    let clients =
        [("ALICE", "FIX.4.4", 9001), ("BOB", "FIXT.1.1", 9002), ("CAROL", "FIX.4.4", 9003)];
    for (client, version, session) in clients {
        text += &format!(
            "[[session]]\nclient = \"{client}\"\nversion = \"{version}\"\nsession = {session}\n"
        );
    }
    let file = folder.join("sessions.toml");
    fs::write(&file, text).unwrap();
    file
}

fn command(network: &Path, port: u16, folder: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["exchange", "fix", "--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--network").arg(network);
    command.arg("--sessions").arg(folder.join("sessions.toml"));
    command.arg("--store").arg(folder.join("store"));
    command
}

impl Door {
    pub fn start(net: &Net) -> Door {
        Door::start_with(net, "")
    }

    pub fn start_with(net: &Net, more: &str) -> Door {
        sessions(net.path(), more);
        Door::start_at(net, free_port())
    }

    pub fn start_at(net: &Net, port: u16) -> Door {
        let mut command = command(&net.path().join("network.toml"), port, net.path());
        let log = File::options().create(true).append(true).open(net.path().join("fix.log"));
        let log = log.unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let door = Door { child: command.spawn().unwrap(), port, folder: net.path().to_path_buf() };
        wait_for("the door to listen", || listens(port).then_some(()));
        door
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("fix.log")).unwrap()
    }
}

fn now() -> String {
    time::format(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
}

/// A client, which keeps its numbers over connections, and all that it has received by number.
pub struct Client {
    name: &'static str,
    begin: &'static str,
    port: u16,
    stream: Option<TcpStream>,
    framer: Framer,
    next_out: u64,
    next_in: u64,
    sent: BTreeMap<u64, String>,
    pub received: Vec<Message>,
    early: BTreeMap<u64, Message>,
}

impl Client {
    pub fn new(name: &'static str, port: u16) -> Client {
        Client {
            name,
            begin: if name == "BOB" { "FIXT.1.1" } else { "FIX.4.4" },
            port,
            stream: None,
            framer: Framer::default(),
            next_out: 1,
            next_in: 1,
            sent: BTreeMap::new(),
            received: vec![],
            early: BTreeMap::new(),
        }
    }

    /// Connects, and logs on with the number that comes next.
    pub fn log_on(&mut self) -> bool {
        let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        (self.stream, self.framer) = (Some(stream), Framer::default());
        let next_in = self.next_in;
        let version = if self.name == "BOB" { "|1137=9" } else { "" };
        self.send("A", &format!("98=0|108=30|789={next_in}{version}"));
        let deadline = Deadline::after(Duration::from_secs(5));
        while !deadline.passed() && self.stream.is_some() {
            if self.turn().iter().any(|message| message.kind() == "A") {
                return true;
            }
        }
        self.stream = None;
        false
    }

    fn frame(&self, seq: u64, fields: &str, is_again: bool) -> Vec<u8> {
        let (kind, body) = fields.split_once('|').unwrap();
        let again = if is_again { format!("43=Y|122={}|", now()) } else { String::new() };
        let header =
            format!("35={kind}|34={seq}|49={}|52={}|56=NEARMETAL|{again}", self.name, now());
        seal(self.begin, &format!("{header}{body}|").replace('|', "\u{1}"))
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(stream) = &mut self.stream
            && stream.write_all(bytes).is_err()
        {
            self.stream = None;
        }
    }

    /// Sends a message under the next number; what is lost is sent again when the door asks.
    pub fn send(&mut self, kind: &str, body: &str) {
        let (seq, fields) = (self.next_out, format!("{kind}|{body}"));
        self.next_out += 1;
        let bytes = self.frame(seq, &fields, false);
        self.sent.insert(seq, fields);
        self.write(&bytes);
    }

    pub fn order(&mut self, id: &str, side: u8, quantity: u64, price: &str) {
        let body = format!("11={id}|55=ACME|54={side}|38={quantity}|40=2|44={price}|60={}", now());
        self.send("D", &body);
    }

    /// Takes what has come, in order; the new messages.
    pub fn turn(&mut self) -> Vec<Message> {
        let mut bytes = vec![0; 1 << 16];
        let Some(stream) = &mut self.stream else { return vec![] };
        match stream.read(&mut bytes) {
            Ok(0) => self.stream = None,
            Ok(count) => self.framer.push(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.stream = None,
        }
        let mut new = vec![];
        while let Some(message) = self.framer.next_message() {
            let message = message.expect("the door sends good messages");
            if message.seq() >= self.next_in {
                self.early.insert(message.seq(), message);
            }
            while let Some(message) = self.early.remove(&self.next_in) {
                self.next_in += 1;
                match message.kind() {
                    "2" => self.resend(&message),
                    "4" => self.next_in = message.number(36).unwrap(),
                    "1" => self.send("0", &format!("112={}", message.get(112).unwrap())),
                    _ => {}
                }
                new.push(message.clone());
                self.received.push(message);
            }
        }
        new
    }

    /// Sends again what the door asks for: orders as they were, all else as a gap.
    fn resend(&mut self, request: &Message) {
        let from = request.number(7).unwrap();
        for (seq, fields) in
            self.sent.range(from..).map(|it| (*it.0, it.1.clone())).collect::<Vec<_>>()
        {
            let is_admin = ["A|", "0|", "2|", "5|"].iter().any(|kind| fields.starts_with(kind));
            let fields = if is_admin { format!("4|36={}|123=Y", seq + 1) } else { fields };
            let bytes = self.frame(seq, &fields, true);
            self.write(&bytes);
        }
    }

    /// Waits for the first message, received already or not, that has these fields.
    pub fn wait(&mut self, fields: &[(u32, &str)]) -> Message {
        let has = |message: &Message| fields.iter().all(|(tag, it)| message.get(*tag) == Some(it));
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(found) = self.received.iter().find(|message| has(message)) {
                return found.clone();
            }
            assert!(!deadline.passed(), "{}: nothing with {fields:?}", self.name);
            self.turn();
        }
    }

    /// Reports of kind `150`.
    fn reports(&self, kind: &str) -> Vec<&Message> {
        let is_it = |message: &&Message| message.kind() == "8" && message.get(150) == Some(kind);
        self.received.iter().filter(is_it).collect()
    }
}

pub fn started(counts: &str, durability: Durability) -> Net {
    let mut net = Net::new(counts, durability);
    net.start_all(|_, command| command);
    net
}

#[test]
fn two_versions_of_fix_trade_with_each_other() {
    let mut net = started("1-1-1-1", Durability::None);
    let mut door = Door::start(&net);
    let (mut alice, mut bob) = (Client::new("ALICE", door.port), Client::new("BOB", door.port));
    assert!(alice.log_on() && bob.log_on());
    alice.order("a1", 1, 100, "10.25");
    let new = alice.wait(&[(11, "a1"), (150, "0")]);
    assert_eq!((new.get(39), new.get(151), new.get(44)), (Some("0"), Some("100"), Some("10.25")));
    bob.order("b1", 2, 40, "10.20");
    let fill = bob.wait(&[(11, "b1"), (150, "F")]);
    let found = [31, 32, 39, 151, 14, 6].map(|tag| fill.get(tag).unwrap().to_string());
    assert_eq!(found, ["10.25", "40", "2", "0", "40", "10.25"]);
    let fill = alice.wait(&[(11, "a1"), (150, "F")]);
    assert_eq!((fill.get(39), fill.get(151), fill.get(14)), (Some("1"), Some("60"), Some("40")));
    // The total becomes 120, of which 40 have traded.
    let replace = format!("41=a1|11=a2|55=ACME|54=1|38=120|40=2|44=10.30|60={}", now());
    alice.send("G", &replace);
    let replaced = alice.wait(&[(11, "a2"), (150, "5")]);
    let found = [41, 38, 151, 14, 44, 39].map(|tag| replaced.get(tag).unwrap().to_string());
    assert_eq!(found, ["a1", "120", "80", "40", "10.3", "1"]);
    alice.send("H", "11=a1|55=ACME|54=1");
    assert_eq!(alice.wait(&[(150, "I")]).get(11), Some("a2"));
    alice.send("F", &format!("41=a2|11=a3|55=ACME|54=1|60={}", now()));
    let cancelled = alice.wait(&[(11, "a3"), (150, "4")]);
    assert_eq!(
        (cancelled.get(41), cancelled.get(39), cancelled.get(151)),
        (Some("a2"), Some("4"), Some("0"))
    );
    alice.send("F", &format!("41=a2|11=a4|55=ACME|54=1|60={}", now()));
    assert_eq!(alice.wait(&[(35, "9"), (11, "a4")]).get(102), Some("0"));
    alice.order("a5", 1, 10, "10.255");
    assert!(alice.wait(&[(11, "a5"), (150, "8")]).get(58).unwrap().contains("10.255"));
    // An order that finds nobody, and all orders at once.
    alice.send("D", &format!("11=a6|55=ACME|54=1|38=5|40=1|59=3|60={}", now()));
    assert_eq!(alice.wait(&[(11, "a6"), (150, "4")]).get(14), Some("0"));
    alice.order("a7", 1, 10, "9");
    alice.order("a8", 1, 10, "9.5");
    alice.wait(&[(11, "a8"), (150, "0")]);
    alice.send("q", &format!("11=m|530=7|60={}", now()));
    assert_eq!(alice.wait(&[(35, "r")]).get(531), Some("7"));
    alice.wait(&[(11, "a7"), (150, "4")]);
    alice.wait(&[(11, "a8"), (150, "4")]);
    // Two orders in the middle.
    alice.order("p1", 1, 10, "10");
    bob.order("p2", 2, 10, "11");
    alice.wait(&[(11, "p1"), (150, "0")]);
    bob.wait(&[(11, "p2"), (150, "0")]);
    alice.send("D", &format!("11=p3|55=ACME|54=1|38=10|40=P|18=M|60={}", now()));
    assert_eq!(alice.wait(&[(11, "p3"), (150, "0")]).get(18), Some("M"));
    bob.send("D", &format!("11=p4|55=ACME|54=2|38=10|40=P|18=M|60={}", now()));
    assert_eq!(bob.wait(&[(11, "p4"), (150, "F")]).get(31), Some("10.5"));
    alice.wait(&[(11, "p3"), (150, "F")]);
    // Ctrl-C: each client gets a Logout, the program ends well, and only stores are left.
    signal("INT", door.child.id());
    assert_eq!(alice.wait(&[(35, "5")]).get(58), Some("the door closes"));
    assert_eq!(wait_for("the door to end", || door.child.try_wait().unwrap()).code(), Some(0));
    let left: BTreeSet<String> = fs::read_dir(net.path().join("store"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let stores = ["lock", "session-9001.fix", "session-9002.fix", "session-9003.fix"];
    assert_eq!(left, stores.map(String::from).into());
    net.stop();
}

/// Each order has one report that it is new, reports have ids of their own, and what both sides
/// have traded is equal.
fn assert_once(alice: &Client, bob: &Client, orders: u64) {
    let mut traded = vec![];
    for client in [alice, bob] {
        let news = client.reports("0");
        let ids: BTreeSet<&str> = news.iter().map(|it| it.get(11).unwrap()).collect();
        assert_eq!((ids.len() as u64, news.len() as u64), (orders, orders), "{}", client.name);
        let reports = client.received.iter().filter(|message| message.kind() == "8");
        let ids: Vec<&str> = reports.map(|it| it.get(17).unwrap()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{}", client.name);
        let sum: u64 = client.reports("F").iter().map(|it| it.number(32).unwrap()).sum();
        traded.push(sum);
    }
    assert_eq!(traded, [orders * 10, orders * 10]);
}

/// Both sides trade while something is done to the network and the door; in the end each event has
/// reached each client once.
fn trade_while(mut disturb: impl FnMut(&mut Net, &mut Door, u64)) {
    const ORDERS: u64 = 120;
    let mut net = started("2-1-2-2", Durability::MemoryQuorum);
    let mut door = Door::start(&net);
    let (mut alice, mut bob) = (Client::new("ALICE", door.port), Client::new("BOB", door.port));
    let deadline = Deadline::after(LIMIT * 2);
    let mut sent = 0;
    let is_done = |client: &Client| {
        let sum: u64 = client.reports("F").iter().map(|it| it.number(32).unwrap()).sum();
        sum == ORDERS * 10 && client.reports("0").len() as u64 == ORDERS
    };
    while !(is_done(&alice) && is_done(&bob)) {
        assert!(!deadline.passed(), "{}", door.log());
        for client in [&mut alice, &mut bob] {
            if client.stream.is_none() {
                client.log_on();
            }
            client.turn();
        }
        if sent < ORDERS {
            sent += 1;
            alice.order(&format!("a{sent}"), 1, 10, "10");
            bob.order(&format!("b{sent}"), 2, 10, "10");
            disturb(&mut net, &mut door, sent);
        }
    }
    // What would come twice comes soon.
    for _ in 0..50 {
        alice.turn();
        bob.turn();
    }
    assert_once(&alice, &bob, ORDERS);
    drop(door);
    net.stop();
}

#[test]
fn after_kills_of_the_door_each_event_reaches_each_client_once() {
    trade_while(|net, door, sent| {
        if sent % 30 == 0 {
            door.child.kill().unwrap();
            door.child.wait().unwrap();
            *door = Door::start_at(net, door.port);
        }
    });
}

#[test]
fn a_door_goes_on_at_another_gateway_when_its_own_dies() {
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
fn a_door_has_keys_for_its_sessions_alone() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let (secret, keys) = (net.path().join("secret"), net.path().join("keys"));
    let new = finish(Command::new(BINARY).args(["exchange", "secret", "new"]).arg(&secret));
    assert_eq!(new.code, 0, "{}", new.stderr);
    let mut derive = Command::new(BINARY);
    derive.args(["exchange", "secret", "derive", "--secret"]).arg(&secret);
    derive.args(["--sessions", "9001-9003", "--out"]).arg(&keys);
    assert_eq!(finish(&mut derive).code, 0);
    net.network.secret = Some(secret.clone());
    fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
    net.start_all(|_, command| command);
    // The door knows nothing but the keys.
    let elsewhere = tempfile::tempdir().unwrap();
    net.network.secret = Some(keys);
    let network = elsewhere.path().join("network.toml");
    fs::write(&network, net.network.to_toml().unwrap()).unwrap();
    sessions(elsewhere.path(), "");
    let port = free_port();
    let start = |mut command: Command, port| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let folder = elsewhere.path().to_path_buf();
        let door = Door { child: command.spawn().unwrap(), port, folder };
        wait_for("the door to listen", || listens(port).then_some(()));
        door
    };
    let door = start(command(&network, port, elsewhere.path()), port);
    let mut alice = Client::new("ALICE", port);
    assert!(alice.log_on());
    alice.order("a1", 1, 10, "10");
    alice.wait(&[(11, "a1"), (150, "0")]);
    // Such a key does not say what the books have.
    let market = "263=1|264=5|265=1|267=2|269=0|269=1|146=1|55=ACME";
    alice.send("V", &format!("262=m1|{market}"));
    let refused = alice.wait(&[(35, "Y"), (262, "m1")]);
    assert!(refused.get(58).unwrap().contains("does not say what its books have"));
    drop(door);
    let port = free_port();
    let mut command = self::command(&network, port, elsewhere.path());
    command.arg("--market-credentials").arg(&secret);
    let _door = start(command, port);
    let mut bob = Client::new("BOB", port);
    assert!(bob.log_on());
    bob.send("V", &format!("262=m2|{market}"));
    bob.wait(&[(35, "W"), (262, "m2"), (268, "1")]);
    net.stop();
}

#[test]
fn a_client_that_was_away_gets_its_fills_when_it_asks() {
    let mut net = started("1-1-1-1", Durability::None);
    let door = Door::start(&net);
    let (mut alice, mut bob) = (Client::new("ALICE", door.port), Client::new("BOB", door.port));
    assert!(alice.log_on() && bob.log_on());
    alice.order("a1", 1, 10, "10");
    alice.wait(&[(11, "a1"), (150, "0")]);
    alice.stream = None;
    bob.order("b1", 2, 10, "10");
    bob.wait(&[(150, "F")]);
    assert!(alice.log_on());
    let fill = alice.wait(&[(150, "F")]);
    assert_eq!((fill.get(11), fill.get(43)), (Some("a1"), Some("Y")));
    net.stop();
}

#[test]
fn a_session_that_another_client_has_used_takes_no_orders() {
    let mut net = started("1-1-1-1", Durability::None);
    let mut door = Door::start(&net);
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on());
    alice.order("a1", 1, 10, "10");
    alice.wait(&[(11, "a1"), (150, "0")]);
    // The store is lost: what the door sends now would be taken for what it has sent before.
    door.child.kill().unwrap();
    door.child.wait().unwrap();
    fs::remove_dir_all(net.path().join("store")).unwrap();
    door = Door::start_at(&net, door.port);
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on());
    alice.order("a1", 1, 10, "10");
    let refused = alice.wait(&[(11, "a1"), (150, "8")]);
    assert!(refused.get(58).unwrap().contains("another client has used this session"));
    net.stop();
}

#[test]
fn strangers_are_limited_in_number_and_time() {
    let net = Net::new("1-1-1-1", Durability::None);
    let door = Door::start(&net);
    let connect = || TcpStream::connect(("127.0.0.1", door.port)).unwrap();
    // `listens` has connected before.
    wait_for("a free place", || door.log().contains("listening").then_some(()));
    std::thread::sleep(Duration::from_millis(200));
    // One address has half of the places.
    let of_one = UNKNOWN_CONNECTIONS_MAX / 2;
    let strangers: Vec<TcpStream> = (0..of_one).map(|_| connect()).collect();
    std::thread::sleep(Duration::from_millis(200));
    let is_closed = |mut stream: &TcpStream, limit: Duration| {
        stream.set_read_timeout(Some(limit)).unwrap();
        matches!(stream.read(&mut [0; 8]), Ok(0))
    };
    assert!(is_closed(&connect(), Duration::from_secs(5)), "one more is not accepted");
    assert!(!is_closed(&strangers[0], Duration::from_millis(100)));
    let late = Duration::from_nanos(LOGON_LIMIT_NS) + Duration::from_secs(2);
    for stranger in &strangers {
        assert!(is_closed(stranger, late), "all are ended after the limit");
    }
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on(), "then there is room");
}

/// A client that comes and goes makes the door write more than a pipe takes.
#[test]
fn a_door_whose_lines_nobody_reads_goes_on_and_ends() {
    let net = Net::new("1-1-1-1", Durability::None);
    sessions(net.path(), "");
    let port = free_port();
    let mut command = command(&net.path().join("network.toml"), port, net.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut door = Door { child, port, folder: net.path().to_path_buf() };
    wait_for("the door to listen", || listens(port).then_some(()));
    let mut bob = Client::new("BOB", port);
    for _ in 0..1_500 {
        wait_for("the door to accept him", || bob.log_on().then_some(()));
        bob.stream = None;
    }
    let mut alice = Client::new("ALICE", port);
    assert!(alice.log_on(), "nobody has read a line");
    signal("INT", door.child.id());
    let ended = wait_for("the door to end", || door.child.try_wait().unwrap());
    assert!(ended.success());
}

#[test]
fn a_session_is_limited_in_messages_a_second_and_in_their_size() {
    let net = Net::new("1-1-1-1", Durability::None);
    let door = Door::start(&net);
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on());
    let count = MESSAGES_PER_SECOND * 2 + 1;
    let mut all = vec![];
    for _ in 0..count {
        let (seq, fields) = (alice.next_out, "1|112=x".to_string());
        alice.next_out += 1;
        all.extend(alice.frame(seq, &fields, false));
    }
    let begin = SystemTime::now();
    let mut stream = alice.stream.as_ref().unwrap().try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&all).unwrap());
    let answers = |alice: &Client| alice.received.iter().filter(|it| it.kind() == "0").count();
    while answers(&alice) < count as usize {
        alice.turn();
        assert!(begin.elapsed().unwrap() < LIMIT, "{}", answers(&alice));
    }
    writer.join().unwrap();
    assert!(begin.elapsed().unwrap() > Duration::from_secs(1), "it took more than one second");
    alice.write(format!("8=FIX.4.4\u{1}9={}\u{1}", MESSAGE_BYTES_MAX + 1).as_bytes());
    let logout = alice.wait(&[(35, "5")]);
    assert_eq!(logout.get(58), Some("a message has more than 65536 bytes"));
}

#[test]
fn a_full_store_takes_no_new_orders_until_both_sides_begin_again() {
    let mut net = started("1-1-1-1", Durability::None);
    let door = Door::start_with(&net, "store_bytes = 65536");
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on());
    alice.order("first", 1, 10, "1");
    alice.wait(&[(11, "first"), (150, "0")]);
    let mut orders = 0;
    while !alice.received.iter().any(|message| message.kind() == "j") {
        orders += 1;
        assert!(orders < 2_000, "it is never full");
        alice.send("x", "320=s|559=4");
        alice.order(&format!("a{orders}"), 1, 10, "10.001");
        alice.turn();
    }
    let refused = alice.wait(&[(35, "j")]);
    assert!(refused.get(58).unwrap().contains("log on with ResetSeqNumFlag"));
    alice.send("F", &format!("41=first|11=cancel|55=ACME|54=1|60={}", now()));
    alice.wait(&[(11, "cancel"), (150, "4")]);
    // Answers take room as well: in the end the session is closed.
    let mut requests = 0;
    while !alice.received.iter().any(|message| message.kind() == "5") {
        requests += 1;
        assert!(requests < 5_000, "it grows without end");
        alice.send("x", "320=s|559=4");
        alice.turn();
    }
    assert!(alice.wait(&[(35, "5")]).get(58).unwrap().contains("ResetSeqNumFlag"));
    let size = fs::metadata(net.path().join("store/session-9001.fix")).unwrap().len();
    assert!(size < 4 * 65_536, "{size} bytes");
    let mut alice = Client::new("ALICE", door.port);
    alice.stream = Some(TcpStream::connect(("127.0.0.1", door.port)).unwrap());
    alice.stream.as_ref().unwrap().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    alice.send("A", "98=0|108=30|141=Y");
    alice.wait(&[(35, "A"), (34, "1")]);
    alice.order("again", 1, 10, "1");
    alice.wait(&[(11, "again"), (150, "0")]);
    net.stop();
}

#[test]
fn wrong_files_and_addresses_are_refused_in_one_sentence() {
    let net = Net::new("1-1-1-1", Durability::None);
    let door = Door::start(&net);
    let network = net.path().join("network.toml");
    let refused = |command: &mut Command, code: i32, why: &str| {
        let run = finish(command);
        assert_eq!(run.code, code, "{run:?}");
        assert!(run.stderr.contains(why), "{run:?}");
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{run:?}");
    };
    let port = free_port();
    let elsewhere = tempfile::tempdir().unwrap();
    refused(&mut command(&network, port, net.path()), 5, "another door uses the store");
    refused(&mut command(&network, port, elsewhere.path()), 2, "sessions.toml cannot be read");
    sessions(elsewhere.path(), "");
    refused(&mut command(&network, door.port, elsewhere.path()), 5, "cannot listen at 127.0.0.1");
    refused(&mut command(Path::new("none.toml"), port, elsewhere.path()), 2, "none.toml cannot be");
    sessions(elsewhere.path(), "other = 1");
    refused(&mut command(&network, port, elsewhere.path()), 2, "unknown field `other`");
}
