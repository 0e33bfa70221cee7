//! One hostile owner does all that docs/limits.md names at once, while others trade. It learns that
//! its quotas are full, and nobody else is refused, cut off or kept from an answer.
//!
//! The hostile one comes from 127.0.0.2, so that it is an owner of its own. The figures of the
//! others with and without it are printed and not judged:
//! `-- --ignored others_trade_beside --nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nm_book::order::{
    Command, Event, InstrumentId, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce,
};
use nm_exchange::client::say_hello;
use nm_exchange::link::{Address, Link, Stream};
use nm_exchange::network::{Durability, Role};
use nm_sys::clock::Deadline;
use nm_wire::{Close, Kind, Message, Owner, Refused, Reply, Request, Shape, Who};

use crate::exchange_net::{Load, Net};
use crate::support::run;

/// Where the hostile owner is, and one that comes later than it.
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const LATER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Sessions of the hostile owner begin here.
const FIRST_SESSION: u32 = 100_000;

/// Requests of a session without an answer.
const WINDOW: u64 = 500;

const ANSWERED: &str = "replies";
const LINKS_FULL: &str = "your quota of client links is full";

/// A network whose gateway listens at a port of 127.0.0.1.
fn network() -> (Net, SocketAddr) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut net = Net::new("1-1-1-1", Durability::None);
    net.network.classes[Role::Gateway].nodes[0].address = Address::Tcp(free);
    let file = net.path().join("network.toml");
    fs::write(file, net.network.to_toml().unwrap()).unwrap();
    (net, free)
}

/// An owner, and what it does.
struct Principal {
    from: Ipv4Addr,
    gateway: SocketAddr,
    is_over: AtomicBool,
    /// What it was sent, with how often.
    sent: Mutex<BTreeMap<String, u64>>,
}

impl Principal {
    fn new(from: Ipv4Addr, gateway: SocketAddr) -> Principal {
        let (is_over, sent) = (AtomicBool::new(false), Mutex::default());
        Principal { from, gateway, is_over, sent }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, what: String) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    fn was_sent(&self, what: &str) -> bool {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).contains_key(what)
    }

    /// A connection from its address; none if it is not accepted.
    fn connect(&self) -> Option<TcpStream> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
        bind(&socket, &SocketAddrV4::new(self.from, 0)).ok()?;
        connect(&socket, &self.gateway).ok()?;
        Some(TcpStream::from(socket))
    }

    /// A client of some session.
    fn client(&self, session: u32) -> Option<Link> {
        let mut link = Link::new(Stream::Tcp(self.connect()?)).ok()?;
        say_hello(Who::Client { session }, None, &mut link.output);
        link.flush().ok()?;
        Some(link)
    }

    /// Connections that say nothing, as many as there may be, again and again: once it has its
    /// links, because they fill its own quota.
    fn half_open(&self) {
        let mut silent = vec![];
        while !self.is_over() {
            if !self.was_sent(LINKS_FULL) {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            silent.extend(self.connect());
            if silent.len() > 400 {
                silent.drain(..200);
            }
            // Its refusals are many soon, and then it is not answered.
            if silent.len() % 40 == 0 {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Clients that do nothing, as many as there may be.
    fn idle_links(&self) {
        let (mut idle, mut session) = (vec![], FIRST_SESSION + 10_000);
        while !self.is_over() {
            session += 1;
            let Some(mut link) = self.client(session) else { continue };
            if session % 16 == 0 && !self.answers(&mut link, Duration::from_millis(20)).is_empty() {
                thread::sleep(Duration::from_millis(5));
            }
            idle.push(link);
            if idle.len() > 2_600 {
                // Those beyond the quota were closed.
                idle.truncate(2_500);
                thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// What a link is sent within some time; the requests that were answered.
    fn answers(&self, link: &mut Link, limit: Duration) -> Vec<u64> {
        let mut answered = vec![];
        let _ = nm_sys::poll::readable(link.as_fd().as_raw_fd(), limit);
        let received = link.receive();
        while let Ok(Some(frame)) = link.input.next_frame() {
            match frame.kind() {
                Kind::Close => {
                    let why = frame.read::<Close>().unwrap().printable();
                    self.note(why.split(':').next().unwrap_or_default().to_string());
                }
                Kind::Refused => {
                    let refused: Refused = frame.read().unwrap();
                    self.note(format!("{:?}", refused.reason));
                    answered.push(refused.client_seq);
                }
                Kind::Reply => {
                    let Ok(Message::Reply(Reply { client_seq, events, .. })) =
                        Message::read(frame.shared())
                    else {
                        continue;
                    };
                    answered.push(client_seq);
                    self.note(ANSWERED.to_string());
                    for event in events.flatten() {
                        if let Event::Rejected { reason, .. } = event {
                            self.note(format!("{reason:?}"));
                        }
                    }
                }
                _ => {}
            }
        }
        if received.is_err() {
            answered.push(u64::MAX);
        }
        answered
    }

    /// A session asks for many things in turn, and waits for their answers.
    fn ask(&self, session: u32, limit: u64, next: impl Fn(u64) -> (InstrumentId, Command)) {
        let Some(mut link) = self.client(session) else { return };
        let mut last = BTreeMap::<InstrumentId, u64>::new();
        let mut waiting = BTreeSet::new();
        for client_seq in 1..=limit {
            let (instrument, command) = next(client_seq);
            let previous_seq = last.insert(instrument, client_seq).unwrap_or_default();
            let request = request(session, instrument, (client_seq, previous_seq), command);
            nm_wire::write(&request, &mut link.output);
            waiting.insert(client_seq);
            while waiting.len() as u64 >= WINDOW || client_seq == limit && !waiting.is_empty() {
                if self.is_over() || link.flush().is_err() {
                    return;
                }
                for answered in self.answers(&mut link, Duration::from_millis(50)) {
                    if answered == u64::MAX {
                        return;
                    }
                    waiting.remove(&answered);
                }
            }
        }
    }

    /// Frames of 1 MiB without their last byte, on many links.
    fn large_frames(&self) {
        let command = Command::Tick;
        let mut frame = vec![];
        let shape = Shape { is_stamped: false, size_bytes: 1 << 20 };
        nm_wire::write_shaped(&request(1, 1, (1, 0), command), shape, &mut frame);
        frame.pop();
        let mut links = vec![];
        for number in 0..24 {
            let Some(mut link) = self.client(FIRST_SESSION + 5_000 + number) else { continue };
            link.output.extend_from_slice(&frame);
            let _ = link.flush();
            links.push(link);
        }
        while !self.is_over() {
            for link in &mut links {
                let _ = link.flush();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Large requests whose replies, as large, it does not read.
    fn unread_replies(&self) {
        let session = FIRST_SESSION + 6_000;
        let Some(mut link) = self.client(session) else { return };
        let shape = Shape { is_stamped: false, size_bytes: 100_000 };
        for seq in 1.. {
            if self.is_over() {
                return;
            }
            let request = request(session, 3, (seq, seq - 1), Command::Tick);
            nm_wire::write_shaped(&request, shape, &mut link.output);
            if link.flush().is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is no frame, again and again.
    fn garbage(&self) {
        use std::io::Write;
        while !self.is_over() {
            if let Some(mut stream) = self.connect() {
                let _ = stream.write_all(&[0xA5; 300]);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything at once, with the least share of the CPUs: a hostile owner has its own machine.
    fn do_everything<'s>(&'s self, scope: &'s thread::Scope<'s, '_>, extent: Extent) {
        let it = self;
        nm_sys::cpu::lower_thread_priority();
        scope.spawn(move || it.half_open());
        scope.spawn(move || it.idle_links());
        scope.spawn(move || it.large_frames());
        scope.spawn(move || it.unread_replies());
        scope.spawn(move || it.garbage());
        // Each session may use 4096 instruments.
        for number in 0..3 {
            let first = 10_000 + number * 4_000;
            let next = move |seq: u64| (first + seq as u32, Command::Tick);
            scope.spawn(move || it.ask(FIRST_SESSION + number, 4_000, next));
        }
        // An instrument that others trade.
        let orders = if extent == Extent::Full { 50_000 } else { 3_000 };
        for number in 0..3 {
            let next = |seq: u64| (0, resting(seq));
            scope.spawn(move || it.ask(FIRST_SESSION + 100 + number, orders, next));
        }
    }
}

fn request(
    session: u32,
    instrument: InstrumentId,
    (client_seq, previous_seq): (u64, u64),
    command: Command,
) -> Request {
    Request {
        instrument,
        session,
        client_seq,
        previous_seq,
        acknowledged: client_seq,
        intended_ns: 0,
        owner: Owner::NOBODY,
        map_version: 0,
        gateway: 0,
        cell: 0,
        attempt: 0,
        is_previous_answered: previous_seq == 0,
        breach: 0,
        command,
    }
}

/// An order far from the market that rests, every other one a stop.
fn resting(seq: u64) -> Command {
    let is_stop = seq.is_multiple_of(2);
    Command::New(NewOrder {
        id: seq,
        user: 0,
        side: Side::Buy,
        order_type: if is_stop { OrderType::Stop } else { OrderType::Limit },
        time_in_force: TimeInForce::GoodTillCancelled,
        price: if is_stop { 0 } else { 1 + (seq % 50) as i64 },
        stop_price: if is_stop { 1_000_000_000 + (seq % 50) as i64 } else { 0 },
        quantity: 1,
        display: 0,
        minimum: 0,
        is_hidden: false,
        peg: Peg::No,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
    })
}

/// Whether the hostile owner goes up to its quotas of orders and instruments, which takes a while.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Short,
    Full,
}

/// Ends the hostile owner, also if the test fails.
struct Ends<'a>(&'a Principal);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Does all of it at once while `work` runs; what the hostile owner was sent.
fn while_hostile<T>(
    gateway: SocketAddr,
    extent: Extent,
    work: impl FnOnce(&Principal) -> T,
) -> (T, BTreeMap<String, u64>) {
    let hostile = Principal::new(HOSTILE, gateway);
    let done = thread::scope(|scope| {
        let it = &hostile;
        scope.spawn(move || it.do_everything(scope, extent));
        let _ends = Ends(it);
        work(it)
    });
    (done, hostile.sent.into_inner().unwrap())
}

/// Waits until the hostile owner was sent all of these.
fn wait_until_sent(hostile: &Principal, all: &[&str]) {
    let deadline = Deadline::after(Duration::from_secs(120));
    while !all.iter().all(|what| hostile.was_sent(what)) {
        assert!(!deadline.passed(), "{all:?}: {:?}", hostile.sent.lock().unwrap());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hostile_owner_that_does_everything_at_once_shuts_nobody_out() {
    nm_sys::process::raise_file_limit().unwrap();
    let (mut net, gateway) = network();
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 4, 200);
    load.all_answered("before", 200);
    let quotas = [LINKS_FULL, "TooManyOwnerInstruments"];
    let ((), sent) = while_hostile(gateway, Extent::Short, |hostile| {
        load.all_answered("with the hostile one", 400);
        wait_until_sent(hostile, &quotas);
        // Others come as well, and make instruments.
        let later = Principal::new(LATER, gateway);
        later.ask(50_000, 1_000, |seq| (40_000 + seq as u32, Command::Tick));
        assert_eq!(*later.sent.lock().unwrap(), BTreeMap::from([(ANSWERED.into(), 1_000)]));
        load.all_answered("when its quotas are full", 400);
    });
    let output = net.output(Role::Gateway.node(0));
    assert!(output.contains("your quota of unfinished handshakes is full: address:127.0.0.2"));
    assert!(!output.contains("address:127.0.0.1"), "nobody else: {output}");
    assert!(output.lines().count() < 400, "{} lines", output.lines().count());
    // What it made goes; the books are there for others.
    let file = net.path().join("network.toml");
    let args = ["exchange", "retire", "--owner", "address:127.0.0.2", "--network"];
    let retired = run(&[&args[..], &[file.to_str().unwrap(), "--format", "json"]].concat());
    assert_eq!(retired.code, 0, "{retired:?} {}", net.output(Role::Mediator.node(0)));
    let document: serde_json::Value = serde_json::from_str(&retired.stdout).unwrap();
    let of = |what: &str| document["cells"][0][what].as_u64().unwrap();
    assert!(of("instruments") > 8_000 && of("orders") > 3_000, "{document} {sent:?}");
    let again = run(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert!(again.stdout.contains("address:127.0.0.2 is removed: 0 sessions"), "{again:?}");
    load.all_answered("afterwards", 200);
    load.finish(&mut net);
}

/// Connections of the hostile owner that are refused, as many as four threads can make, and how
/// many of them the node answered.
fn refused_while<T>(gateway: SocketAddr, work: impl FnOnce() -> T) -> (T, u64, u64) {
    const WHY: &str = "refused";
    const MADE: &str = "made";
    let hostile = Principal::new(HOSTILE, gateway);
    let refused = |it: &Principal| {
        use std::io::{Read, Write};
        while !it.is_over() {
            let Some(mut stream) = it.connect() else { continue };
            it.note(MADE.to_string());
            let mut answer = vec![];
            let _ = stream.write_all(&[7; 100]);
            let _ = stream.read_to_end(&mut answer);
            if !answer.is_empty() {
                it.note(WHY.to_string());
            }
        }
    };
    let done = thread::scope(|scope| {
        let it = &hostile;
        (0..4).for_each(|_| drop(scope.spawn(move || refused(it))));
        let _ends = Ends(it);
        work()
    });
    let sent = hostile.sent.into_inner().unwrap();
    let of = |what: &str| sent.get(what).copied().unwrap_or(0);
    (done, of(MADE), of(WHY))
}

/// Else the kernel lets the node stand still each time that twice as many clients have come.
#[test]
fn a_node_has_room_for_all_its_clients_before_they_come() {
    let (mut net, _) = network();
    net.start_all(|_, command| command);
    let status = format!("/proc/{}/status", net.pid(Role::Gateway.node(0)));
    let status = fs::read_to_string(status).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    let (files, limit) = (size.trim().parse::<u64>().unwrap(), nm_sys::process::file_limit());
    assert!(files >= limit.min(5_120), "{files} of {limit}");
    net.stop();
}

/// Before, the node read and refused all of them, tens of thousands in this time.
#[test]
fn who_is_refused_again_and_again_is_not_answered_and_others_connect() {
    let (mut net, gateway) = network();
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 4, 200);
    load.all_answered("before", 200);
    let begin = nm_sys::clock::Moment::now();
    let (mut waits_ms, made, refused) = refused_while(gateway, || {
        let later = Principal::new(LATER, gateway);
        // By then the node has refused it more often than it answers.
        thread::sleep(Duration::from_secs(2));
        let connect = |number: u32| {
            let begin = nm_sys::clock::Moment::now();
            later.ask(50_000 + number, 1, |_| (40_000, Command::Tick));
            begin.elapsed().as_secs_f64() * 1e3
        };
        let waits_ms: Vec<f64> = (0..100).map(connect).collect();
        assert_eq!(*later.sent.lock().unwrap(), BTreeMap::from([(ANSWERED.into(), 100)]));
        load.all_answered("while it connects", 400);
        waits_ms
    });
    let seconds = begin.elapsed().as_secs_f64();
    waits_ms.sort_by(f64::total_cmp);
    let (median_ms, longest_ms) = (waits_ms[50], waits_ms[99]);
    println!(
        "{made} connections in {seconds:.1} s, {refused} were refused in a sentence; others were \
         answered after {median_ms:.2} ms, at most {longest_ms:.2} ms"
    );
    // 1024 at once, and 100 a second.
    let most = 1_024.0 + 100.0 * seconds + 50.0;
    assert!((refused as f64) < most, "{refused} of {made} in {seconds} s");
    assert!(made as f64 > 2.0 * most, "too few to show anything: {made}");
    let output = net.output(Role::Gateway.node(0));
    assert!(output.contains("address:127.0.0.2 was refused too often"), "{output}");
    assert!(output.lines().count() < 20 + 3 * seconds as usize, "{output}");
    load.finish(&mut net);
}

/// The 99th percentile of a round of the others, µs.
fn p99_us(load: &mut Load, what: &str) -> f64 {
    let round = load.send(1_200, 60.0);
    assert_eq!((round.lost, round.refused, round.reconnects), (0, 0, 0), "{what}");
    let p99 = round.latency.percentiles.iter().find(|it| it.percentile == 99.0);
    p99.and_then(|it| it.value_ns).map_or(f64::NAN, |ns| ns / 1e3)
}

/// A network without a record, which is for checks and not for service.
fn network_without_record() -> (Net, SocketAddr) {
    let (mut net, gateway) = network();
    net.network.record = false;
    fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
    (net, gateway)
}

/// Five rounds alone, beside an owner that is hostile to another network on this machine, and
/// beside one that is hostile to this network. It goes up to each of its quotas.
///
/// The second figure is what the CPUs cost that the hostile owner and its nodes take: here they
/// share a machine, which they would not elsewhere. The third against it is what the gateway costs.
#[test]
#[ignore = "it takes minutes and prints the others' figures with and without the hostile owner"]
fn others_trade_beside_a_hostile_for_long() {
    nm_sys::process::raise_file_limit().unwrap();
    let (mut machine_ratios, mut ratios) = (vec![], vec![]);
    for trial in 0..5 {
        let (mut net, gateway) = network_without_record();
        net.start_all(|_, command| command);
        let (mut other, elsewhere) = network_without_record();
        other.start_all(|_, command| command);
        let mut load = Load::new(&net, 4, 200);
        p99_us(&mut load, "to warm up");
        let alone = p99_us(&mut load, "alone");
        let mut beside = |gateway, what| {
            let (p99, sent) = while_hostile(gateway, Extent::Full, |hostile| {
                wait_until_sent(hostile, &["TooManyOwnerOrders", "TooManyOwnerInstruments"]);
                p99_us(&mut load, what)
            });
            println!("{what}: {sent:?}");
            p99
        };
        let machine = beside(elsewhere, "beside one that is hostile to another network");
        let here = beside(gateway, "beside the hostile one");
        println!("trial {trial}: p99 {alone:.0} µs alone, {machine:.0} and {here:.0} µs beside it");
        machine_ratios.push(machine / alone);
        ratios.push(here / machine);
        load.finish(&mut net);
    }
    for (what, mut ratios) in [
        ("beside one that is hostile to another network : alone", machine_ratios),
        ("beside one that is hostile to this network : to another", ratios),
    ] {
        ratios.sort_by(f64::total_cmp);
        println!("p99 {what}, median {:.2} of {ratios:.2?}", ratios[2]);
    }
}
