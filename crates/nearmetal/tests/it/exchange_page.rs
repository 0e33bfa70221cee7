//! The page of a supervisor in a real browser, while clients send, and what it costs.
//!
//! `SCREENSHOTS=DIR` keeps pictures of it, and `PICTURES=1` that of the guide. `PAIRS=N` measures
//! so many pairs of rounds of 10 s, and prints their figures.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nm_exchange::network::{Durability, ReplicaAddress, Role};
use nm_sys::process::ChildProcess;
use nm_test_support::browser::{Browser, CUT, SIDEWAYS};
use serde_json::Value;

use crate::exchange_net::{Load, Net};
use crate::exchange_serve::{end, nodes, serve_of, wait_until_healthy};
use crate::exchange_stopped::p99_ms;
use crate::support::{free_port, wait_for};

/// A network whose hops have latencies, with its file: over TCP.
fn network() -> Net {
    let mut net = Net::new("2-2-2-2", Durability::MemoryQuorum);
    for role in Role::ALL.iter().copied() {
        for node in &mut net.network.classes[role].nodes {
            node.address = format!("127.0.0.1:{}", free_port()).parse().unwrap();
            let replication = format!("127.0.0.1:{}", free_port()).parse().unwrap();
            node.replication = Some(ReplicaAddress::Tcp(replication));
        }
    }
    fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
    net
}

/// Fails if the page wrote to the console, or requested anything but itself and its events.
fn check_no_messages(browser: &Browser, url: &str) {
    let of = |method: &'static str| browser.events().iter().filter(move |e| e["method"] == method);
    for method in ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"] {
        let messages: Vec<&Value> = of(method).collect();
        assert!(messages.is_empty(), "{method}: {messages:?}");
    }
    let requested: Vec<&str> = of("Network.requestWillBeSent")
        .filter_map(|e| e["params"]["request"]["url"].as_str())
        .collect();
    assert_eq!(requested, [url.to_string(), format!("{url}events")]);
}

/// Waits until an expression of the page is true.
fn wait_until(browser: &mut Browser, expression: &str) {
    wait_for(expression, || (browser.value(expression) == true).then_some(()));
}

fn check_look(browser: &mut Browser, scheme: &str, width: u32) {
    browser.media("screen", scheme);
    browser.width(width);
    let case = format!("{scheme}, {width} px");
    assert_eq!(browser.value(SIDEWAYS), 0, "{case}");
    assert_eq!(browser.value(CUT), "[]", "{case}");
    const MEANINGLESS: &str = "/undefined|NaN|null|\\[object|Infinity/
        .exec(document.body.innerText)?.[0] ?? ''";
    assert_eq!(browser.value(MEANINGLESS), "", "{case}");
    // Each text of the ring is within it, at the width of the window.
    wait_until(
        browser,
        "(svg => [...svg.querySelectorAll('rect, text')].every(one => {
            const [box, frame] = [one.getBoundingClientRect(), svg.getBoundingClientRect()];
            return box.width >= 0 && box.left >= frame.left - 1 && box.right <= frame.right + 1;
        }) && svg.viewBox.baseVal.width === Math.max(svg.clientWidth, 300))
        (document.getElementById('ring'))",
    );
    browser.picture(&format!("exchange-page-{scheme}-{width}"));
}

/// The upper part of the page, as the guide shows it.
fn picture_of_guide(browser: &mut Browser) {
    if std::env::var_os("PICTURES").is_some() {
        let picture = browser.shot((1265, 0, 700));
        fs::write(crate::support::root().join("docs/images/exchange-page.png"), picture).unwrap();
    }
}

fn check_keys(browser: &mut Browser) {
    for table in 1..=4 {
        browser.press(char::from_digit(table, 10).unwrap());
        let focused = browser.value("document.activeElement.getAttribute('aria-labelledby')");
        assert_eq!(focused, format!("h{table}"));
    }
    browser.press('p');
    assert_eq!(browser.value("document.getElementById('pause').textContent"), "Go on");
    browser.press('p');
    assert_eq!(browser.value("document.getElementById('pause').ariaPressed"), "false");
    browser.value("document.activeElement.blur()");
    // The body comes between the last one and the first.
    let mut seen = BTreeSet::new();
    for _ in 0..7 {
        browser.tab();
        let at = "document.activeElement.id
            || document.activeElement.getAttribute('aria-labelledby') || ''";
        seen.insert(browser.value(at).as_str().unwrap().to_string());
    }
    seen.remove("");
    let all = ["h1", "h2", "h3", "h4", "pause"].map(str::to_string);
    assert_eq!(seen, BTreeSet::from(all), "what the tab key reaches");
}

/// Sets a flag when it goes, also where a check has failed.
struct EndOfScope<'a>(&'a AtomicBool);

impl Drop for EndOfScope<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_page_of_a_supervisor_shows_the_ring_in_a_browser_and_requests_nothing_else() {
    let net = network();
    let file = net.path().join("network.toml");
    let policy = net.path().join("policy.log");
    fs::write(&policy, "     1.0 s  move instrument 3 to cell 1: <b>busy</b>\n").unwrap();
    let port = free_port();
    let mut command = serve_of(&file);
    command.args(["--page", &format!("127.0.0.1:{port}")]);
    command.arg("--follow").arg(format!("policy={}", policy.display()));
    let serving = ChildProcess::spawn(command).unwrap();
    wait_until_healthy(&file);
    let mut load = Load::new(&net, 8, 16);
    let is_over = AtomicBool::new(false);
    let url = format!("http://127.0.0.1:{port}/");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                load.all_answered("while it is shown", 100);
            }
        });
        let _sending_ends = EndOfScope(&is_over);
        let mut browser = Browser::start("exchange-page");
        browser.width(1280);
        browser.open(&url);
        wait_until(&mut browser, "document.querySelectorAll('#ring g.good').length === 8");
        wait_until(
            &mut browser,
            "/[1-9][0-9]*\\/s/.test(document.getElementById('ring').textContent)",
        );
        wait_until(
            &mut browser,
            "/router to mediator: [0-9.]+ to/.test(
            document.getElementById('hops').textContent)",
        );
        wait_until(&mut browser, "document.querySelectorAll('#ring line').length >= 8");
        let line = "[...document.querySelectorAll('#events tr')].map(row =>
            [...row.cells].slice(1).map(cell => cell.textContent).join(': '))
            .find(text => text.startsWith('policy')) ?? ''";
        let decided = "policy: 1.0 s  move instrument 3 to cell 1: <b>busy</b>";
        assert_eq!(browser.value(line), decided, "text is no markup");
        picture_of_guide(&mut browser);
        for scheme in ["light", "dark"] {
            for width in [1280, 400] {
                check_look(&mut browser, scheme, width);
            }
        }
        check_keys(&mut browser);
        check_no_messages(&browser, &url);
    });
    end(serving);
}

/// Clients of the page in a round of the cost.
const CLIENTS: usize = 2;

/// Somebody who has the page open, without a browser's own work: what is sent is read.
struct Client {
    stream: TcpStream,
    reading: Option<thread::JoinHandle<usize>>,
}

impl Client {
    fn open(port: u16) -> Client {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let request = format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut from = stream.try_clone().unwrap();
        let reading = thread::spawn(move || {
            let mut bytes = vec![];
            let _ = from.read_to_end(&mut bytes);
            bytes.windows(6).filter(|it| it == b"data: ").count()
        });
        Client { stream, reading: Some(reading) }
    }

    /// Leaves, and says how many looks it was sent.
    fn close(mut self) -> usize {
        self.stream.shutdown(Shutdown::Both).unwrap();
        self.reading.take().unwrap().join().unwrap()
    }
}

/// CPU time of processes so far, s: of all of their threads, also of those that have ended.
fn cpu_s(pids: &[u32]) -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    pids.iter().map(of).sum::<u64>() as f64 / TICKS_PER_S
}

/// Rounds with two clients of the page and without, in turn. The figures are printed and not
/// judged: requests are answered, and the clients see the network.
#[test]
fn what_the_page_costs_is_measured_in_pairs() {
    let pairs: Option<u32> = std::env::var("PAIRS").ok().map(|text| text.parse().unwrap());
    let (rate_per_s, count) = if pairs.is_some() { (500.0, 5_000) } else { (400.0, 600) };
    let net = network();
    let file = net.path().join("network.toml");
    let port = free_port();
    let mut command = serve_of(&file);
    command.args(["--page", &format!("127.0.0.1:{port}")]);
    let serving = ChildProcess::spawn(command).unwrap();
    wait_until_healthy(&file);
    let mut pids: Vec<u32> = nodes(serving.pid()).into_iter().map(|(_, pid)| pid).collect();
    pids.push(serving.pid());
    let mut load = Load::new(&net, 8, 64);
    load.send_at(rate_per_s, count, 60.0);
    println!("pair  clients  CPU of a request, µs  p99, ms");
    for pair in 0..pairs.unwrap_or(1) {
        // In every second pair the other one is first.
        let order = if pair % 2 == 0 { [0, CLIENTS] } else { [CLIENTS, 0] };
        for n_clients in order {
            let clients: Vec<Client> = (0..n_clients).map(|_| Client::open(port)).collect();
            let before_s = cpu_s(&pids);
            let round = load.send_at(rate_per_s, count, 60.0);
            let cpu_us = (cpu_s(&pids) - before_s) * 1e6 / f64::from(count);
            let looks: Vec<usize> = clients.into_iter().map(Client::close).collect();
            assert_eq!((round.sent, round.lost), (u64::from(count), 0));
            assert!(looks.iter().all(|looks| *looks >= 1), "{looks:?}");
            assert!(cpu_us > 0.0);
            println!("{pair:4}  {n_clients:7}  {cpu_us:20.1}  {:7.2}", p99_ms(&round));
        }
    }
    end(serving);
}
