//! Programs that make a market, in Rust and in Python, outlive their gateway and the leader of their
//! cell: each event once, and nothing lost or doubled by what the other side of the trades sees.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nm_client::order::{Event, Side};
use nm_client::{Client, Happened, Settings};
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;

use crate::exchange_net::Net;
use crate::support::{BINARY, root};

const MAKER: u32 = 9001;
const TAKER: u32 = 9002;
const INSTRUMENT: u32 = 1000;

/// Lots after which the maker ends.
const FILLS: u64 = 60;

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A trade: maker's order, taker's order, lots.
type Trade = (u64, u64, u64);

fn client(net: &Net, session: u32) -> Client {
    let gateways = net.network.nodes(Role::Gateway).iter().rev();
    let gateways = gateways.map(|node| node.address.clone()).collect();
    let settings = Settings { gateways, session, network: 0, credentials: None, state: None };
    Client::open(settings).unwrap()
}

/// Sends an order that trades at once or not at all; its trades.
fn take(client: &mut Client, side: Side) -> Vec<Trade> {
    let price = if side == Side::Buy { 2_000 } else { 1 };
    let id = client.immediate(INSTRUMENT, side, price, 1).unwrap();
    let mut trades = vec![];
    let deadline = Deadline::after(LIMIT);
    loop {
        assert!(!deadline.passed(), "no answer to order {id}");
        match client.next(Duration::from_millis(100)).unwrap() {
            Some(Happened::Event { event, .. }) => match event {
                Event::Traded { maker, taker, quantity, .. } => {
                    trades.push((maker, taker, quantity));
                    return trades;
                }
                Event::Cancelled { id: of, .. } if of == id => return trades,
                _ => {}
            },
            Some(other) => panic!("{other}"),
            None => {}
        }
    }
}

/// The number behind a word of a line.
fn number(line: &str, word: &str) -> u64 {
    let at = line.find(word).unwrap_or_else(|| panic!("no {word} in {line}")) + word.len();
    let digits = line[at..].trim_start_matches(['\'', ':', ' ']);
    let end = digits.find(|it: char| !it.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or_else(|_| panic!("no number behind {word} in {line}"))
}

/// The trades in what a maker wrote; each of its events came once.
fn trades_of(output: &str) -> Vec<Trade> {
    let events: Vec<&str> = output.lines().filter(|line| line.starts_with("event ")).collect();
    let numbers: Vec<u64> = events.iter().map(|line| number(line, "event ")).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "once each: {numbers:?}");
    let trades = events.iter().filter(|line| line.to_lowercase().contains(": traded"));
    let trade = |line: &&str| (number(line, "maker"), number(line, "taker"), number(line, "quantity"));
    trades.map(trade).collect()
}

/// A maker trades with a session of this process; its gateway dies, and then its cell's leader.
fn survives(mut maker: Command) {
    let mut net = Net::new("2-1-3-2", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let state = net.path().join("maker.state");
    maker.args([&MAKER.to_string(), &INSTRUMENT.to_string()]).arg(&state);
    maker.args([&FILLS.to_string(), "-"]);
    maker.args(net.network.nodes(Role::Gateway).iter().map(|node| node.address.to_string()));
    let mut child = maker.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let output = std::thread::spawn(move || output.lines().map_while(Result::ok).collect::<Vec<_>>());
    let mut taker = client(&net, TAKER);
    let (mut taken, mut kills) = (vec![], 0);
    let deadline = Deadline::after(LIMIT);
    while child.try_wait().unwrap().is_none() {
        assert!(!deadline.passed(), "the maker hangs after {} trades", taken.len());
        let side = if taken.len() % 3 == 0 { Side::Sell } else { Side::Buy };
        taken.extend(take(&mut taker, side));
        if kills == 0 && taken.len() as u64 > FILLS / 3 {
            net.kill(Role::Gateway.node(0));
            kills = 1;
        } else if kills == 1 && taken.len() as u64 > 2 * FILLS / 3 {
            let cells = net.network.nodes(Role::Mediator).len() as u32;
            net.kill(Role::Mediator.node((INSTRUMENT % cells) as u16));
            kills = 2;
        }
    }
    assert!(child.wait().unwrap().success() && kills == 2);
    let lines = output.join().unwrap();
    let output = lines.join("\n");
    assert!(lines.last().unwrap().contains("links 2"), "{output}");
    let mut made = trades_of(&output);
    made.sort_unstable();
    taken.sort_unstable();
    assert_eq!(made, taken, "both sides see the same trades, once each");
    assert!(fs::read_to_string(&state).unwrap().contains(&format!("handled {INSTRUMENT} ")));
    assert_nothing_is_left(&net);
    net.stop();
}

/// Whoever begins the maker's session anew is told that it was used, and that no order is left.
fn assert_nothing_is_left(net: &Net) {
    let mut anew = client(net, MAKER);
    anew.order(INSTRUMENT, Side::Buy, 1, 1).unwrap();
    match anew.next(LIMIT).unwrap() {
        Some(Happened::UsedBefore { executed_seq, known_seq: 0, live_orders: 0, .. }) => {
            assert!(executed_seq > 0);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_maker_in_rust_outlives_its_gateway_and_its_leader_with_each_event_once() {
    let example = Path::new(BINARY).with_file_name("examples").join("make_market");
    assert!(example.exists(), "cargo build -p nearmetal --examples makes {}", example.display());
    survives(Command::new(example));
}

#[test]
fn a_maker_in_python_outlives_its_gateway_and_its_leader_with_each_event_once() {
    let mut maker = Command::new("python3");
    let package = root().join("clients/python");
    maker.arg(package.join("examples/make_market.py")).env("PYTHONPATH", package);
    maker.env("PYTHONDONTWRITEBYTECODE", "1");
    survives(maker);
}
