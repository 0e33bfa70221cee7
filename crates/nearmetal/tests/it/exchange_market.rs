//! Market data and copies of reports by the FIX acceptor of the built program.

use std::fs;

use nm_doors::fix::message::Message;
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;
use std::time::Duration;

use crate::exchange_fix::{Client, Door, started};
use crate::support::{run, wait_for};

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Bids that a client has after all that it was sent: price and quantity.
fn bids(client: &Client) -> Vec<(String, String)> {
    let mut bids: Vec<(String, String)> = vec![];
    for message in client.received.iter().filter(|it| matches!(it.kind(), "W" | "X")) {
        if message.kind() == "W" {
            bids.clear();
        }
        for entry in entries(message).into_iter().filter(|entry| entry.side == "0") {
            bids.retain(|(price, _)| *price != entry.price);
            if entry.action != "2" {
                bids.push((entry.price, entry.quantity));
            }
        }
    }
    bids.sort();
    bids
}

#[derive(Default)]
struct Entry {
    action: String,
    side: String,
    price: String,
    quantity: String,
}

fn entries(message: &Message) -> Vec<Entry> {
    let first = if message.kind() == "W" { 269 } else { 279 };
    let mut entries: Vec<Entry> = vec![];
    for (tag, value) in message.fields() {
        if tag == first {
            entries.push(Entry::default());
        }
        let Some(entry) = entries.last_mut() else { continue };
        let value = String::from_utf8_lossy(value).into_owned();
        match tag {
            279 => entry.action = value,
            269 => entry.side = value,
            270 => entry.price = value,
            271 => entry.quantity = value,
            _ => {}
        }
    }
    entries
}

fn wait_for_bids(client: &mut Client, expected: &[(&str, &str)]) {
    let deadline = Deadline::after(LIMIT);
    let expected: Vec<(String, String)> =
        expected.iter().map(|(price, size)| (price.to_string(), size.to_string())).collect();
    while bids(client) != expected {
        assert!(!deadline.passed(), "{:?} instead of {expected:?}", bids(client));
        client.turn();
    }
}

const LEVELS: &str = "263=1|264=0|265=1|267=2|269=0|269=1|146=1|55=ACME";

#[test]
fn a_subscriber_has_the_book_after_a_move_and_a_kill_of_its_leader() {
    let mut net = started("1-1-3-1", Durability::MemoryQuorum);
    let door = Door::start(&net);
    let (mut alice, mut bob) = (Client::new("ALICE", door.port), Client::new("BOB", door.port));
    assert!(alice.log_on() && bob.log_on());
    bob.send("V", &format!("262=levels|{LEVELS}"));
    bob.wait(&[(35, "W"), (262, "levels"), (268, "0")]);
    alice.order("a1", 1, 100, "10.25");
    alice.order("a2", 1, 50, "10.20");
    wait_for_bids(&mut bob, &[("10.2", "50"), ("10.25", "100")]);
    // Who subscribes later begins with the book.
    alice.send("V", &format!("262=late|{LEVELS}"));
    alice.wait(&[(35, "W"), (262, "late"), (268, "2")]);
    let file = net.path().join("network.toml");
    let args = ["exchange", "move", "1000", "--to", "1", "--network", file.to_str().unwrap()];
    let moved = run(&args);
    assert_eq!(moved.code, 0, "{}{}", moved.stdout, moved.stderr);
    bob.order("b1", 2, 40, "10.25");
    bob.wait(&[(11, "b1"), (150, "F")]);
    wait_for_bids(&mut bob, &[("10.2", "50"), ("10.25", "60")]);
    net.kill(Role::Mediator.node(1));
    alice.order("a3", 1, 7, "10.22");
    alice.wait(&[(11, "a3"), (150, "0")]);
    wait_for_bids(&mut bob, &[("10.2", "50"), ("10.22", "7"), ("10.25", "60")]);
    wait_for_bids(&mut alice, &[("10.2", "50"), ("10.22", "7"), ("10.25", "60")]);
    drop(door);
}

#[test]
fn a_drop_copy_session_has_each_report_of_its_firm_after_kills_of_the_door() {
    let net = started("1-1-1-1", Durability::None);
    let mut door = Door::start(&net);
    let port = door.port;
    // The helper's file has no firms.
    drop(door);
    let file = net.path().join("sessions.toml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("client = \"ALICE\"", "client = \"ALICE\"\nfirm = \"F\"");
    let text =
        text.replace("client = \"CAROL\"", "client = \"CAROL\"\nfirm = \"F\"\ndrop_copy = true");
    fs::write(&file, text).unwrap();
    door = Door::start_at(&net, port);
    let (mut alice, mut carol) = (Client::new("ALICE", port), Client::new("CAROL", port));
    assert!(alice.log_on() && carol.log_on());
    alice.order("a1", 1, 100, "10.25");
    let original = alice.wait(&[(11, "a1"), (150, "0")]);
    let copy = carol.wait(&[(11, "a1"), (150, "0")]);
    assert_eq!((copy.get(17), copy.get(115)), (original.get(17), Some("ALICE")));
    carol.order("c1", 1, 1, "9");
    assert_eq!(carol.wait(&[(35, "j")]).get(380), Some("6"));
    drop(door);
    let door = Door::start_at(&net, port);
    wait_for("a logon", || alice.log_on().then_some(()));
    alice.order("a2", 1, 5, "9");
    alice.wait(&[(11, "a2"), (150, "0")]);
    wait_for("a logon", || carol.log_on().then_some(()));
    let copy = carol.wait(&[(11, "a2"), (150, "0")]);
    assert_eq!(copy.get(43), Some("Y"), "it was sent while nobody was there");
    drop(door);
}

#[test]
fn a_symbol_that_is_listed_later_is_traded_and_shown_without_a_restart() {
    let mut net = crate::exchange_net::Net::new("1-1-1-1", Durability::None);
    let rules = |symbol: &str, number: u32| {
        format!(
            "[[instrument]]\nnumber = {number}\nsymbol = \"{symbol}\"\ntick = \"0.01\"\n\
             lot = \"1\"\n"
        )
    };
    let file = net.path().join("network.toml");
    let network = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{network}\n{}", rules("EMCA", 1001))).unwrap();
    net.start_all(|_, command| command);
    // The master says what is traded: the file of sessions has no symbols.
    let sessions = "venue = \"NEARMETAL\"\n[[session]]\nclient = \"ALICE\"\nversion = \"FIX.4.4\"\n\
                    session = 9001\n";
    fs::write(net.path().join("sessions.toml"), sessions).unwrap();
    let door = Door::start_at(&net, crate::support::free_port());
    let mut alice = Client::new("ALICE", door.port);
    assert!(alice.log_on());
    alice.send("V", &format!("262=early|{LEVELS}"));
    assert_eq!(alice.wait(&[(35, "Y"), (262, "early")]).get(281), Some("0"));
    let more = net.path().join("more.toml");
    fs::write(&more, rules("ACME", 1000)).unwrap();
    let args = ["exchange", "instruments", "add", more.to_str().unwrap(), "--network"];
    let added = run(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(added.code, 0, "{}{}", added.stdout, added.stderr);
    wait_for("the door to learn of it", || {
        let log = fs::read_to_string(net.path().join("fix.log")).unwrap();
        log.contains("2 symbols are traded now").then_some(())
    });
    alice.order("a1", 1, 100, "10.25");
    alice.wait(&[(11, "a1"), (150, "0")]);
    alice.send("V", &format!("262=late|{LEVELS}"));
    alice.wait(&[(35, "W"), (262, "late"), (268, "1"), (270, "10.25")]);
}

/// A subscriber that never reads: its socket is full after some MB, and others notice nothing.
#[test]
fn a_subscriber_that_does_not_read_delays_nobody() {
    let net = started("1-1-1-1", Durability::None);
    let door = Door::start(&net);
    let (mut alice, mut bob) = (Client::new("ALICE", door.port), Client::new("BOB", door.port));
    let mut carol = Client::new("CAROL", door.port);
    assert!(alice.log_on() && bob.log_on() && carol.log_on());
    bob.send("V", &format!("262=levels|{LEVELS}"));
    bob.wait(&[(35, "W"), (262, "levels")]);
    for at in 0..64 {
        let all = LEVELS.replace("265=1", "265=0");
        carol.send("V", &format!("262=all{at}|{all}"));
    }
    carol.wait(&[(35, "W"), (262, "all63")]);
    let mut slowest = Duration::ZERO;
    for at in 0..400_u64 {
        let sent = Deadline::after(LIMIT);
        let price = format!("10.{:02}", at % 90);
        alice.order(&format!("a{at}"), 1, 1, &price);
        alice.wait(&[(11, &format!("a{at}")), (150, "0")]);
        slowest = slowest.max(LIMIT - sent.remaining());
        bob.turn();
    }
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    let quantity = |at: u64| if at < 400 % 90 { "5" } else { "4" };
    let levels: Vec<(String, String)> = (0..90)
        .map(|at| (format!("{:.2}", 10.0 + at as f64 / 100.0), quantity(at).to_string()))
        .map(|(price, size)| (price.trim_end_matches('0').trim_end_matches('.').to_string(), size))
        .collect();
    let levels: Vec<(&str, &str)> = levels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    wait_for_bids(&mut bob, &levels);
    drop(door);
}
