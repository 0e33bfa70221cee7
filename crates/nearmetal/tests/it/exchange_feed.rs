//! Market data through the built program: a publisher and consumers beside networks of the built
//! program, whose nodes die and whose instruments move.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nm_exchange::network::{Durability, Role};

use crate::exchange_net::{Load, Net};
use crate::support::{Run, Running, run, signal};

/// Instruments of the load.
const INSTRUMENTS: u32 = 24;

/// The addresses of a feed, and the file of its network.
struct Feed {
    network: PathBuf,
    addresses: Vec<String>,
}

impl Feed {
    /// Lines are multicast groups of the loopback interface, or addresses.
    fn new(net: &Net, is_multicast: bool) -> Feed {
        // All are bound at the same time, so that no two are equal.
        let udp: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut all: Vec<SocketAddr> =
            udp.iter().map(|socket| socket.local_addr().unwrap()).collect();
        all.push(tcp.local_addr().unwrap());
        for (line, number) in all[..2].iter_mut().zip(1..).filter(|_| is_multicast) {
            line.set_ip([239, 255, 77, number].into());
        }
        let names = ["--line-a", "--line-b", "--requests", "--snapshots"];
        let addresses = names.iter().zip(all);
        Feed {
            network: net.path().join("network.toml"),
            addresses: addresses
                .flat_map(|(name, at)| [name.to_string(), at.to_string()])
                .collect(),
        }
    }

    fn start(&self, command: &str, more: &[&str]) -> Running {
        let network = self.network.to_str().unwrap();
        let own = ["exchange", command, "--network", network, "--interface", "127.0.0.1"];
        let addresses = self.addresses.iter().map(String::as_str);
        let args: Vec<&str> =
            own.into_iter().chain(addresses).chain(more.iter().copied()).collect();
        Running::start(&args)
    }

    fn publish(&self) -> Running {
        self.start("feed-publish", &[])
    }

    /// A consumer that loses and doubles packets of both lines, and compares its books in the end.
    fn consume(&self, lost: &str) -> Running {
        self.start("feed", &["--drop", lost, "--double", "1%", "--check"])
    }
}

/// Ctrl-C: the consumer compares its books, or the publisher ends.
fn interrupt(running: Running) -> Run {
    signal("INT", running.pid());
    running.finish()
}

fn assert_equal_books(run: &Run) {
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let equal = format!("{INSTRUMENTS} books are equal to those of their cells");
    assert!(run.stdout.contains(&equal), "{}", run.stdout);
    assert!(run.stdout.contains(", 0 contradictions"), "{}", run.stdout);
}

/// A number in the line of counts.
fn count(run: &Run, what: &str) -> u64 {
    let before = run.stdout.split(what).next().unwrap().trim_end();
    before.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{}", run.stdout))
}

#[test]
fn books_of_the_feed_are_those_of_the_cells_after_a_move_a_kill_and_lost_packets() {
    let mut net = Net::new("1-1-3-1", Durability::MemoryQuorum);
    net.start_all(|_, command| command);
    let feed = Feed::new(&net, true);
    let publisher = feed.publish();
    let first = feed.consume("1%");
    let mut load = Load::new(&net, INSTRUMENTS, 256);
    load.all_answered("at first", 400);
    // It begins with a snapshot.
    let late = feed.consume("1%");
    let leader = Role::Mediator.node(0);
    let (pid, file) = (net.pid(leader), feed.network.to_str().unwrap().to_string());
    let trouble = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        let args = ["exchange", "move", "0", "1", "2", "--to", "2", "--network", &file];
        let moved = run(&args);
        assert_eq!(moved.code, 0, "{}{}", moved.stdout, moved.stderr);
        thread::sleep(Duration::from_millis(500));
        signal("KILL", pid);
    });
    load.all_answered("meanwhile", 1_600);
    trouble.join().unwrap();
    net.kill(leader);
    net.start(leader, |command| command);
    net.wait_for_output(leader, "\"event\":\"ready\"", 2);
    load.all_answered("at the end", 400);
    let (first, late) = (interrupt(first), interrupt(late));
    for consumer in [&first, &late] {
        assert_equal_books(consumer);
        assert!(count(consumer, "packets lost on purpose") > 0, "{}", consumer.stdout);
        assert!(count(consumer, "doubles") > 0, "{}", consumer.stdout);
    }
    assert!(count(&late, "snapshots") > 0, "{}", late.stdout);
    let published = interrupt(publisher);
    assert_eq!(published.code, 0, "{}", published.stderr);
    assert!(!published.stdout.contains("is not in it"), "{}", published.stdout);
    load.finish(&mut net);
}

/// Losses that no line repairs are many enough that the server of requests has work.
#[test]
fn messages_that_both_lines_lose_are_asked_for() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    net.start_all(|_, command| command);
    let feed = Feed::new(&net, false);
    let (publisher, consumer) = (feed.publish(), feed.consume("30%"));
    let mut load = Load::new(&net, INSTRUMENTS, 256);
    load.all_answered("the load", 800);
    let consumed = interrupt(consumer);
    assert_equal_books(&consumed);
    assert!(count(&consumed, "messages asked for") > 10, "{}", consumed.stdout);
    // A publisher that starts again has another session, and its consumers another snapshot.
    let consumer = feed.consume("0%");
    load.all_answered("before the end", 50);
    let published = interrupt(publisher);
    assert_eq!(published.code, 0);
    // The load has timestamps, and all run on one host.
    let (_, latency) = published.stdout.split_once("order entry to ITCH out: ").unwrap();
    let requests: u64 = latency.split(' ').next().unwrap().parse().unwrap();
    assert!(requests > 400 && latency.contains("p99"), "{latency}");
    let publisher = feed.publish();
    load.all_answered("after it", 400);
    assert_equal_books(&interrupt(consumer));
    assert_eq!(interrupt(publisher).code, 0);
    load.finish(&mut net);
}

/// Lines of best prices, the latest of each stock.
fn tops(run: &Run) -> std::collections::BTreeMap<String, String> {
    let lines = run.stdout.lines().filter(|line| line.contains(": bid "));
    lines.map(|line| (line.split(' ').next().unwrap().to_string(), line.to_string())).collect()
}

#[test]
fn best_prices_are_those_of_the_feed() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    net.start_all(|_, command| command);
    let feed = Feed::new(&net, false);
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let publisher = feed.start("feed-publish", &["--top-of-book", &port, "--top-interval", "200"]);
    let consumer = feed.start("feed", &["--top", "100"]);
    let mut load = Load::new(&net, INSTRUMENTS, 256);
    load.all_answered("at first", 400);
    // Who begins later learns of each stock within two seconds, whether it changes or not.
    let viewer = Running::start(&["exchange", "top-of-book", "--line", &port, "--seconds", "4"]);
    load.all_answered("meanwhile", 400);
    let viewed = viewer.finish();
    assert_eq!(viewed.code, 0, "{}{}", viewed.stdout, viewed.stderr);
    let consumed = interrupt(consumer);
    let (expected, found) = (tops(&consumed), tops(&viewed));
    assert_eq!(expected.len(), INSTRUMENTS as usize, "{}", consumed.stdout);
    for (stock, line) in &expected {
        // A trade is at another price in the feed's own count of an auction; there is none here.
        let prices = |line: &str| line.split(", volume").next().unwrap().replace("  ", " ");
        let shown = found.get(stock).map(|line| prices(line));
        assert_eq!(best(shown.as_deref()), best(Some(&prices(line))), "{stock}");
    }
    let updates = viewed.stdout.lines().count();
    assert!(updates <= INSTRUMENTS as usize * 21, "{updates} lines in 4 s, at 5 a second at most");
    assert_eq!(interrupt(publisher).code, 0);
    load.finish(&mut net);
}

/// Bid and offer of a line, without what is behind them.
fn best(line: Option<&str>) -> Option<String> {
    let line = line?;
    let from = line.find("bid ")?;
    Some(line[from..line.find(", last")?].to_string())
}
