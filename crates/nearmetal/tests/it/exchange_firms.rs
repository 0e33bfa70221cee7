//! Firms of a network that runs, by the built binary: who may trade, and how much.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nm_client::order::{Event, RejectReason, Side};
use nm_client::{Client, Happened, Settings};
use nm_exchange::firms::{Firm, Firms};
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;
use serde_json::Value;

use crate::exchange_net::Net;
use crate::support::{Run, finish, root, run, wait_for};

/// An instrument of cell 0.
const INSTRUMENT: u32 = 1_000;

const LIMIT: Duration = Duration::from_secs(60);

/// A client in Python that buys, and says in words what came of it.
const BUYS: &str = "
import sys
from nearmetal_client import Client
client = Client(sys.argv[1:], 9002)
client.order(1000, 'buy', 5, 30)
print(client.next(30))
";

fn network() -> Net {
    let mut net = Net::new("1-1-2-2", Durability::MemoryQuorum);
    let firm = |number, name: &str, sessions: &str| Firm {
        number,
        name: name.to_string(),
        sessions: vec![sessions.to_string()],
        ..Firm::default()
    };
    let all = vec![firm(7, "ACME Capital", "9001-9002"), firm(8, "Borealis", "9101")];
    net.network.firms = Some(Arc::new(Firms::of(all).unwrap()));
    fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
    net.start_all(|_, command| command);
    net
}

fn firms(net: &Net, words: &[&str]) -> Run {
    let file = net.path().join("network.toml");
    let network = ["--network", file.to_str().unwrap(), "--format", "json"];
    run(&[&["exchange", "firms"], words, &network].concat())
}

/// The firms that a command shows.
fn shown(net: &Net, words: &[&str]) -> Value {
    let done = firms(net, words);
    assert_eq!(done.code, 0, "{words:?}: {}{}", done.stdout, done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

/// What the first firm has in cell 0: orders, value and position.
fn used(net: &Net) -> (u64, u64, u64) {
    let list = shown(net, &["list"]);
    let cell = &list["firms"][0]["cells"][0];
    let number = |key: &str| cell[key].as_u64().unwrap();
    (number("orders"), number("value"), number("position"))
}

fn client(net: &Net, session: u32) -> Client {
    let gateways = net.network.nodes(Role::Gateway).iter().map(|node| node.address.clone());
    Client::open(Settings::new(gateways.collect(), session)).unwrap()
}

/// The next event of a client.
fn event(client: &mut Client) -> (Event, String) {
    let deadline = Deadline::after(LIMIT);
    loop {
        assert!(!deadline.passed(), "no event");
        if let Some(happened) = client.next(Duration::from_millis(100)).unwrap() {
            let text = happened.to_string();
            let Happened::Event { event, .. } = happened else { panic!("{happened}") };
            return (event, text);
        }
    }
}

/// What comes of an order.
fn order(client: &mut Client, side: Side, quantity: u64) -> (Event, String) {
    client.order(INSTRUMENT, side, 5, quantity).unwrap();
    event(client)
}

fn is_rejected(event: &Event, limit: RejectReason, numbers: (u64, u64)) -> bool {
    matches!(
        *event,
        Event::Rejected { reason, most, asked, .. } if (reason, (most, asked)) == (limit, numbers)
    )
}

#[test]
fn a_firm_trades_within_its_limits_also_after_the_death_of_a_leader() {
    let mut net = network();
    let limits = ["--order-quantity", "100", "--position", "15", "--value", "60"];
    let set = shown(&net, &[&["set", "7"], &limits[..]].concat());
    assert_eq!((&set["changed"], &set["firms"][0]["limits"]["value"]), (&true.into(), &60.into()));
    let again = shown(&net, &[&["set", "7"], &limits[..]].concat());
    assert_eq!(again["changed"], false);
    let mut buyer = client(&net, 9001);
    let (large, text) = order(&mut buyer, Side::Buy, 101);
    assert!(is_rejected(&large, RejectReason::FirmQuantity, (100, 101)), "{large:?}");
    assert!(text.contains("is 101 lots, and its firm's orders may have 100 at most"), "{text}");
    assert!(matches!(order(&mut buyer, Side::Buy, 10).0, Event::Accepted { .. }));
    assert_eq!(used(&net), (1, 50, 10));
    let (more, _) = order(&mut buyer, Side::Buy, 3);
    assert!(is_rejected(&more, RejectReason::FirmValue, (60, 65)), "{more:?}");
    shown(&net, &["set", "7", "--value", "none"]);
    let (more, _) = order(&mut buyer, Side::Buy, 6);
    assert!(is_rejected(&more, RejectReason::FirmPosition, (15, 16)), "{more:?}");
    // Another firm without limits sells: the position stays, and the order goes.
    let mut seller = client(&net, 9101);
    assert!(matches!(order(&mut seller, Side::Sell, 10).0, Event::Accepted { .. }));
    assert!(matches!(event(&mut buyer).0, Event::Traded { quantity: 10, .. }));
    assert_eq!(used(&net), (0, 0, 10));
    net.kill(Role::Mediator.node(0));
    wait_for("another leader", || (firms(&net, &["list"]).code == 0).then_some(()));
    assert_eq!(used(&net), (0, 0, 10));
    let (more, _) = order(&mut buyer, Side::Buy, 6);
    assert!(is_rejected(&more, RejectReason::FirmPosition, (15, 16)), "{more:?}");
    let raised = shown(&net, &["set", "7", "--position", "16"]);
    assert_eq!(raised["changed"], true);
    assert!(matches!(order(&mut buyer, Side::Buy, 6).0, Event::Accepted { .. }));
    // A client in Python reads the same words.
    let mut python = Command::new("python3");
    python.args(["-c", BUYS]).env("PYTHONPATH", root().join("clients/python"));
    python.args(net.network.nodes(Role::Gateway).iter().map(|it| it.address.to_string()));
    let said = finish(python.env("PYTHONDONTWRITEBYTECODE", "1"));
    let words = "its firm's position on the instrument could become 46 lots, and may be 16 at most";
    assert!(said.stdout.contains(words), "{}{}", said.stdout, said.stderr);
    net.start(Role::Mediator.node(0), |command| command);
    net.stop();
}

#[test]
fn a_firm_comes_and_goes_with_its_sessions() {
    let mut net = network();
    let list = shown(&net, &["list"]);
    assert_eq!(
        (&list["firms"][1]["name"], list["firms"][1]["cells"].as_array().map(Vec::len)),
        (&"Borealis".into(), Some(0))
    );
    let mut old = client(&net, 9101);
    assert!(matches!(order(&mut old, Side::Sell, 10).0, Event::Accepted { .. }));
    let sessions = ["set", "9", "--name", "Newcomer", "--sessions", "9201-9202", "--orders", "1"];
    assert_eq!(shown(&net, &sessions)["changed"], true);
    let mut new = wait_for("the gateway to know the firm", || {
        let mut new = client(&net, 9201);
        new.order(INSTRUMENT, Side::Buy, 1, 1).ok()?;
        new.next(Duration::from_secs(5)).ok().flatten().map(|_| new)
    });
    let (second, _) = order(&mut new, Side::Buy, 1);
    assert!(is_rejected(&second, RejectReason::FirmOrders, (1, 2)), "{second:?}");
    let kept = firms(&net, &["remove", "Borealis"]);
    assert_eq!(kept.code, 5, "{}{}", kept.stdout, kept.stderr);
    assert!(kept.stderr.contains("Borealis has 1 live orders: cancel them first"), "{kept:?}");
    let removed = shown(&net, &["remove", "Borealis", "--cancel"]);
    assert_eq!((&removed["cancelled"], &removed["changed"]), (&1.into(), &true.into()));
    let refused = wait_for("the session to be refused", || {
        old.order(INSTRUMENT, Side::Sell, 5, 1).ok();
        old.next(Duration::from_millis(100)).err()
    });
    let refused = refused.to_string();
    assert!(refused.contains("session 9101 belongs to no firm of this network"), "{refused}");
    for (words, code, why) in [
        (&["remove", "Borealis"][..], 2, "there is no firm Borealis: the network has ACME"),
        (&["set", "8"], 2, "there is no firm 8: give --name and --sessions to add it"),
        (
            &["set", "9", "--sessions", "9002"],
            2,
            "session 9002 belongs to both ACME Capital and Newcomer",
        ),
        (&["set", "9", "--orders", "1.5"], 2, "a number without a fraction from 0"),
    ] {
        let refused = firms(&net, words);
        assert_eq!(refused.code, code, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
    shown(&net, &["remove", "Newcomer", "--cancel"]);
    let last = firms(&net, &["remove", "ACME Capital"]);
    assert_eq!(last.code, 2, "{}", last.stdout);
    assert!(last.stderr.contains("ACME Capital is the only firm"), "{}", last.stderr);
    net.stop();
}
