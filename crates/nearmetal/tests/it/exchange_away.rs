//! Sessions that are away: their orders are cancelled, unless they come back in time. Clients and
//! gateways are killed or stand still, and each finds out about the other.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nm_client::order::{CancelReason, Event, Side};
use nm_client::{Client, Happened, Settings};
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;

use crate::exchange_net::Net;
use crate::support::{finish, root, signal};

const SESSION: u32 = 9_001;

/// Instruments of two cells.
const INSTRUMENTS: [u32; 2] = [1_000, 1_001];

/// After how long the orders are cancelled.
const CANCEL_AFTER: Duration = Duration::from_secs(3);

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A client in Python that quotes on both instruments and then waits.
const QUOTES: &str = "
import sys, time
from nearmetal_client import Client, Event
client = Client(sys.argv[3:], int(sys.argv[1]), sys.argv[2], heartbeat_s=0.5, cancel_after_s=3)
for instrument in (1000, 1001):
    for price in (1, 2, 3):
        client.order(instrument, 'buy', price, 10)
accepted = 0
while accepted < 6:
    happened = client.next(30)
    assert isinstance(happened, Event) and happened.name == 'accepted', happened
    accepted += 1
client.next(0)
print('quoted', flush=True)
links = client.links
while True:
    client.next(0.1)
    if client.links != links:
        links = client.links
        print('links', links, flush=True)
";

struct Quoter {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Quoter {
    /// A network, and a client that has quoted by its first gateway.
    fn new(net: &Net) -> Quoter {
        let package = root().join("clients/python");
        let mut command = Command::new("python3");
        command.args(["-c", QUOTES, &SESSION.to_string()]).arg(state(net));
        command.args(net.network.nodes(Role::Gateway).iter().map(|it| it.address.to_string()));
        command.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut quoter = Quoter { child, output };
        assert_eq!(quoter.line(), "quoted");
        quoter
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_string()
    }
}

impl Drop for Quoter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn network() -> Net {
    let mut net = Net::new("2-1-2-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    net
}

fn state(net: &Net) -> PathBuf {
    net.path().join("quoter.state")
}

/// A client at the second gateway.
fn client(net: &Net, session: u32) -> Settings {
    let gateways = net.network.nodes(Role::Gateway).iter().rev();
    Settings::new(gateways.map(|node| node.address.clone()).collect(), session)
}

/// How many live orders the session has, as the exchange says.
fn live_orders(client: &mut Client) -> usize {
    let found = client.open_orders(LIMIT).unwrap().expect("an answer");
    let instruments: Vec<u32> = found.iter().map(|it| it.instrument).collect();
    assert_eq!(instruments, INSTRUMENTS);
    found.iter().map(|it| it.orders.len()).sum()
}

/// The session goes on with its state: it gets an event for each order that is gone.
fn assert_notified(net: &Net) {
    let settings = Settings { state: Some(state(net)), ..client(net, SESSION) };
    let mut owner = Client::open(settings).unwrap();
    let (mut notified, deadline) = (0, Deadline::after(LIMIT));
    while notified < 6 {
        assert!(!deadline.passed(), "{notified} events");
        match owner.next(Duration::from_millis(100)).unwrap() {
            Some(Happened::Event {
                event: Event::Cancelled { reason: CancelReason::Disconnected, left: 10, .. },
                ..
            }) => notified += 1,
            Some(other) => panic!("{other}"),
            None => {}
        }
    }
    assert_eq!(owner.next(Duration::from_millis(300)).unwrap(), None);
    assert!(INSTRUMENTS.iter().all(|it| owner.orders(*it).count() == 0));
    assert_eq!(live_orders(&mut owner), 0);
    // It goes on where it was.
    let id = owner.order(INSTRUMENTS[0], Side::Buy, 5, 1).unwrap();
    loop {
        assert!(!deadline.passed(), "no answer");
        match owner.next(Duration::from_millis(100)).unwrap() {
            Some(Happened::Event { event: Event::Accepted { id: of, .. }, .. }) if of == id => {
                break;
            }
            Some(other) => panic!("{other}"),
            None => {}
        }
    }
}

#[test]
fn orders_of_a_client_that_dies_with_its_gateway_are_cancelled_and_it_learns_of_each() {
    let mut net = network();
    let mut quoter = Quoter::new(&net);
    quoter.child.kill().unwrap();
    net.kill(Role::Gateway.node(0));
    std::thread::sleep(CANCEL_AFTER + Duration::from_secs(3));
    assert_notified(&net);
    net.stop();
}

#[test]
fn orders_of_a_client_that_stands_still_are_cancelled_and_it_goes_on_later() {
    let mut net = network();
    let mut quoter = Quoter::new(&net);
    signal("STOP", quoter.child.id());
    // The gateway takes it for dead after three heartbeats.
    std::thread::sleep(CANCEL_AFTER + Duration::from_secs(5));
    signal("CONT", quoter.child.id());
    assert_eq!(quoter.line(), "links 2", "its link was ended, and it makes another one");
    drop(quoter);
    assert!(net.output(Role::Gateway.node(0)).contains("no heartbeat came for 1.5 s"));
    net.stop();
}

#[test]
fn a_client_that_comes_back_in_time_keeps_its_orders_although_its_gateway_is_dead() {
    let mut net = network();
    let mut quoter = Quoter::new(&net);
    quoter.child.kill().unwrap();
    net.kill(Role::Gateway.node(0));
    std::thread::sleep(Duration::from_secs(1));
    let back =
        Settings { cancel_after: CANCEL_AFTER, state: Some(state(&net)), ..client(&net, SESSION) };
    let mut back = Client::open(back).unwrap();
    let deadline = Deadline::after(CANCEL_AFTER * 3);
    while !deadline.passed() {
        assert_eq!(back.next(Duration::from_millis(100)).unwrap(), None, "no order is cancelled");
    }
    assert_eq!(live_orders(&mut back), 6);
    net.stop();
}

#[test]
fn a_client_leaves_a_gateway_that_stands_still_and_keeps_its_orders() {
    let mut net = network();
    let mut quoter = Quoter::new(&net);
    let gateway = net.pid(Role::Gateway.node(0));
    signal("STOP", gateway);
    assert_eq!(quoter.line(), "links 2");
    std::thread::sleep(CANCEL_AFTER * 2);
    drop(quoter);
    // What the exchange has, by a session that knows nothing of it.
    let mut anew = Client::open(client(&net, SESSION)).unwrap();
    assert_eq!(live_orders(&mut anew), 6);
    assert!(anew.resume(LIMIT).unwrap());
    assert!(INSTRUMENTS.iter().all(|it| anew.orders(*it).count() == 3));
    let first = anew.orders(INSTRUMENTS[0]).next().unwrap().0;
    anew.cancel(INSTRUMENTS[0], first).unwrap();
    let happened = anew.next(LIMIT).unwrap();
    let is_it = matches!(happened, Some(Happened::Event { event: Event::Cancelled { id, .. }, .. })
        if id == first);
    assert!(is_it, "a client without a state goes on: {happened:?}");
    signal("CONT", gateway);
    net.stop();
}

/// A client in Python that knows one message more, and then another `Request`.
const OTHER: &str = "
import sys
from nearmetal_client import Client, Refusal, generated, wire
wire.DIGEST = 7
generated.MESSAGES[200] = 1
client = Client(sys.argv[1:], 9001)
client.order(1000, 'buy', 1, 10)
print(client.next(30).name)
generated.MESSAGES[wire.REQUEST] += 1
client = Client(sys.argv[1:], 9002)
client.order(1000, 'buy', 1, 10)
try:
    client.next(30)
except Refusal as refusal:
    print(refusal)
";

#[test]
fn a_python_client_of_another_version_trades_or_learns_what_differs() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    net.start_all(|_, command| command);
    let mut command = Command::new("python3");
    command.args(["-c", OTHER, &net.network.nodes(Role::Gateway)[0].address.to_string()]);
    command.env("PYTHONPATH", root().join("clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let done = finish(&mut command);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[0], "accepted");
    assert!(lines[1].contains("nearmetal nearmetal-client 0.1.0"), "{}", lines[1]);
    assert!(lines[1].ends_with("cannot run in one network: Request differs"), "{}", lines[1]);
    net.stop();
}
