//! Programs that make a market, in Rust and in Python, outlive their gateway, the leader of their
//! cell and their own death. Each event comes once. By what the other side of the trades sees,
//! nothing is lost or doubled.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_client::order::{Event, Side};
use nm_client::{Client, Happened, Settings};
use nm_exchange::link::Address;
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;
use nm_wire::Close;
use serde_json::Value;

use crate::exchange_net::Net;
use crate::support::{BINARY, Run, finish, root, run};

const MAKER: u32 = 9001;
const TAKER: u32 = 9002;
const INSTRUMENT: u32 = 1000;

/// Lots after which a maker ends.
const FILLS: usize = 60;

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A trade: maker's order, taker's order, lots.
type Trade = (u64, u64, u64);

fn in_rust() -> Command {
    example("client_make_market")
}

fn example(name: &str) -> Command {
    let example = Path::new(BINARY).with_file_name("examples").join(name);
    assert!(example.exists(), "cargo build -p nearmetal --examples makes {}", example.display());
    Command::new(example)
}

fn in_python() -> Command {
    let package = root().join("clients/python");
    let mut maker = Command::new("python3");
    maker.arg(package.join("examples/make_market.py")).env("PYTHONPATH", package);
    maker.env("PYTHONDONTWRITEBYTECODE", "1");
    maker
}

fn client(net: &Net, session: u32) -> Client {
    // The gateway that stays comes first.
    let gateways = net.network.nodes(Role::Gateway).iter().rev();
    let gateways = gateways.map(|node| node.address.clone()).collect();
    Client::open(Settings::new(gateways, session)).unwrap()
}

/// A network, a maker on it, and a session of this process that trades with the maker.
struct Market {
    net: Net,
    maker: Child,
    output: Option<JoinHandle<Vec<String>>>,
    taker: Client,
    taken: Vec<Trade>,
    deadline: Deadline,
}

/// A maker that does not end would outlive a test that has failed.
impl Drop for Market {
    fn drop(&mut self) {
        let _ = self.maker.kill();
        let _ = self.maker.wait();
    }
}

fn state(net: &Net) -> PathBuf {
    net.path().join("maker.state")
}

/// A maker with its arguments, which ends after so many fills.
fn words(net: &Net, maker: &mut Command, fills: usize, keys: &str) {
    maker.args([&MAKER.to_string(), &INSTRUMENT.to_string()]).arg(state(net));
    maker.args([&fills.to_string(), keys]);
    maker.args(net.network.nodes(Role::Gateway).iter().map(|node| node.address.to_string()));
}

fn start(net: &Net, mut maker: Command) -> (Child, JoinHandle<Vec<String>>) {
    words(net, &mut maker, FILLS, "-");
    spawn(maker)
}

fn spawn(mut maker: Command) -> (Child, JoinHandle<Vec<String>>) {
    let mut child = maker.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, std::thread::spawn(move || lines.map_while(Result::ok).collect()))
}

impl Market {
    fn new(maker: Command) -> Market {
        Market::of(|net| start(net, maker))
    }

    fn of(start: impl FnOnce(&Net) -> (Child, JoinHandle<Vec<String>>)) -> Market {
        let mut net = Net::new("2-1-3-2", Durability::MemoryQuorum);
        net.start_all(|_, command| command);
        let (maker, output) = start(&net);
        let taker = client(&net, TAKER);
        let deadline = Deadline::after(LIMIT);
        Market { net, maker, output: Some(output), taker, taken: vec![], deadline }
    }

    /// Takes one lot after the other until there were so many trades, or the maker has ended.
    fn trade(&mut self, trades: usize) {
        while self.taken.len() < trades && self.maker.try_wait().unwrap().is_none() {
            let side = if self.taken.len().is_multiple_of(3) { Side::Sell } else { Side::Buy };
            let trade = self.take(side);
            self.taken.extend(trade);
        }
    }

    /// Sends an order that trades at once or not at all; its trade.
    fn take(&mut self, side: Side) -> Option<Trade> {
        let price = if side == Side::Buy { 2_000 } else { 1 };
        let id = self.taker.immediate(INSTRUMENT, side, price, 1).unwrap();
        loop {
            assert!(!self.deadline.passed(), "no answer after {} trades", self.taken.len());
            match self.taker.next(Duration::from_millis(100)).unwrap() {
                Some(Happened::Event { event, .. }) => match event {
                    Event::Traded { maker, taker, quantity, .. } => {
                        return Some((maker, taker, quantity));
                    }
                    Event::Cancelled { id: of, .. } if of == id => return None,
                    _ => {}
                },
                Some(other) => panic!("{other}"),
                None => {}
            }
        }
    }

    /// The mediator that leads the cell of the instrument.
    fn leader(&self) -> u16 {
        let network = self.net.path().join("network.toml");
        let network = network.to_str().unwrap();
        let status = run(&["exchange", "status", "--network", network, "--format", "json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let cells = status["cells"].as_array().unwrap();
        let cell = u64::from(INSTRUMENT) % cells.len() as u64;
        let cell = cells.iter().find(|it| it["cell"] == cell).unwrap();
        cell["leader"].as_u64().unwrap() as u16
    }

    /// What the maker has written, once it has ended.
    fn lines(&mut self) -> Vec<String> {
        self.maker.wait().unwrap();
        self.output.take().unwrap().join().unwrap()
    }

    /// Both sides have seen the same trades, and nothing is left.
    fn assert_equal(mut self, lines: &[String]) {
        let mut made = trades_of(lines);
        made.sort_unstable();
        self.taken.sort_unstable();
        assert_eq!(made, self.taken, "both sides see the same trades, once each");
        // Whoever begins the maker's session anew learns that it was used, and has no order left.
        let mut anew = client(&self.net, MAKER);
        anew.order(INSTRUMENT, Side::Buy, 1, 1).unwrap();
        match anew.next(LIMIT).unwrap() {
            Some(Happened::UsedBefore {
                executed_seq: 1.., known_seq: 0, live_orders: 0, ..
            }) => {}
            other => panic!("{other:?}"),
        }
        self.net.stop();
    }
}

/// The number behind a word of a line.
fn number(line: &str, word: &str) -> u64 {
    let at = line.find(word).unwrap_or_else(|| panic!("no {word} in {line}")) + word.len();
    let digits = line[at..].trim_start_matches(['\'', ':', ' ']);
    let end = digits.find(|it: char| !it.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or_else(|_| panic!("no number behind {word} in {line}"))
}

/// The lines of a maker's events.
fn events(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| line.starts_with("event ")).cloned().collect()
}

/// The trades in what a maker wrote; each of its events came once.
fn trades_of(lines: &[String]) -> Vec<Trade> {
    let events = events(lines);
    let numbers: Vec<u64> = events.iter().map(|line| number(line, "event ")).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "once each: {numbers:?}");
    let trades = events.iter().filter(|line| line.to_lowercase().contains(": traded"));
    let of = |line: &String| ["maker", "taker", "quantity"].map(|word| number(line, word));
    trades.map(of).map(|[maker, taker, lots]| (maker, taker, lots)).collect()
}

/// The maker's gateway dies, and then its cell's leader; what the maker has written.
fn outlive(market: &mut Market) -> Vec<String> {
    market.trade(FILLS / 3);
    market.net.kill(Role::Gateway.node(0));
    market.trade(2 * FILLS / 3);
    let leader = market.leader();
    market.net.kill(Role::Mediator.node(leader));
    market.trade(usize::MAX);
    assert!(market.maker.wait().unwrap().success());
    market.lines()
}

fn survives(maker: Command) {
    let mut market = Market::new(maker);
    let lines = outlive(&mut market);
    assert!(lines.last().unwrap().contains("links 2"), "{lines:?}");
    market.assert_equal(&lines);
}

#[test]
fn a_maker_in_rust_outlives_its_gateway_and_its_leader_with_each_event_once() {
    survives(in_rust());
}

/// Its waits are given up fifty times a second.
#[test]
fn a_maker_on_tokio_outlives_its_gateway_and_its_leader_with_each_event_once() {
    survives(example("client_make_market_async"));
}

#[test]
fn a_maker_in_python_outlives_its_gateway_and_its_leader_with_each_event_once() {
    survives(in_python());
}

/// The example of the C header, as any C99 compiler takes it.
#[test]
fn a_maker_in_c_outlives_its_gateway_and_its_leader_with_each_event_once() {
    let mut market = Market::of(|net| {
        let program = net.path().join("make_market");
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
        let built = finish(cc.arg(root().join("clients/c/make_market.c")));
        assert_eq!(built.code, 0, "{}", built.stderr);
        let mut maker = Command::new(program);
        maker.args([MAKER.to_string(), INSTRUMENT.to_string(), FILLS.to_string()]);
        maker.args(net.network.nodes(Role::Gateway).iter().map(|node| node.address.to_string()));
        spawn(maker)
    });
    let lines = outlive(&mut market);
    let events = events(&lines);
    let numbers: Vec<u64> = events.iter().map(|line| number(line, "event ")).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "once each: {numbers:?}");
    assert_eq!(lines.last().unwrap(), &format!("filled {} links 2", market.taken.len()));
    let mut anew = client(&market.net, MAKER);
    let found = anew.open_orders(LIMIT).unwrap().expect("an answer");
    assert!(found.iter().all(|it| it.live_orders == 0), "nothing is left: {found:?}");
    market.net.stop();
}

/// The one in Rust is killed, and the one in Python goes on with its state.
#[test]
fn a_maker_that_is_killed_goes_on_where_it_was_in_the_other_language_too() {
    let mut market = Market::new(in_rust());
    market.trade(FILLS / 2);
    market.maker.kill().unwrap();
    let mut lines = events(&market.lines());
    let (maker, output) = start(&market.net, in_python());
    (market.maker, market.output) = (maker, Some(output));
    market.trade(usize::MAX);
    assert!(market.maker.wait().unwrap().success());
    let rest = events(&market.lines());
    // The last event was given, and perhaps not handled: it comes again, with its number.
    let (last, next) = (number(lines.last().unwrap(), "event "), number(&rest[0], "event "));
    assert!(next == last || next == last + 1, "event {next} comes after {last}");
    lines.extend(rest.into_iter().skip(usize::from(next == last)));
    market.assert_equal(&lines);
}

/// A maker that ends at once: it cancels all orders, of which there are none.
fn ends(net: &Net, mut maker: Command, keys: &Path) -> Run {
    words(net, &mut maker, 0, keys.to_str().unwrap());
    let _ = fs::remove_file(state(net));
    finish(&mut maker)
}

#[test]
fn clients_in_both_languages_prove_who_they_are() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let folder = net.path().to_path_buf();
    let file = |name: &str| folder.join(name);
    for secret in ["secret", "another"] {
        let new =
            finish(Command::new(BINARY).args(["exchange", "secret", "new"]).arg(file(secret)));
        assert_eq!(new.code, 0, "{}", new.stderr);
        let mut derive = Command::new(BINARY);
        derive.args(["exchange", "secret", "derive", "--secret"]).arg(file(secret));
        derive.args(["--sessions", "9001", "--out"]).arg(file(&format!("{secret}-keys")));
        assert_eq!(finish(&mut derive).code, 0);
    }
    let (keys, others) = (file("secret-keys"), file("another-keys"));
    net.network.secret = Some(file("secret"));
    fs::write(file("network.toml"), net.network.to_toml().unwrap()).unwrap();
    net.start_all(|_, command| command);
    for maker in [in_rust, in_python] {
        let done = ends(&net, maker(), &keys);
        assert_eq!(done.code, 0, "{}", done.stderr);
        // The second one has no state, so it first takes over what the first one has left.
        assert!(done.stdout.trim().ends_with("filled 0 links 1"), "{}", done.stdout);
        let refused = ends(&net, maker(), &others);
        assert_ne!(refused.code, 0, "{}", refused.stdout);
        assert!(refused.stderr.contains("both need the same secret"), "{}", refused.stderr);
    }
    net.stop();
}

/// Before, the library in Python showed the sentence as it was.
#[test]
fn a_gateway_that_refuses_a_client_commands_no_terminal() {
    let net = Net::new("1-1-1-1", Durability::None);
    let Address::Unix(path) = &net.network.nodes(Role::Gateway)[0].address else { panic!() };
    let listener = UnixListener::bind(path).unwrap();
    let mut close = vec![];
    let hostile = "not here\x1b]0;title\x07\x1b[2J\u{9b}1m, go away\r";
    nm_wire::write(&Close { reason: hostile.to_string() }, &mut close);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&close);
            // A client that still sends must not lose what it was sent.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut vec![]);
        }
    });
    for maker in [in_rust, in_python] {
        let refused = ends(&net, maker(), Path::new("-"));
        assert_ne!(refused.code, 0, "{}", refused.stdout);
        let all = format!("{}{}", refused.stdout, refused.stderr);
        assert!(all.contains("not here") && all.contains(", go away"), "{all:?}");
        assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{all:?}");
    }
}
