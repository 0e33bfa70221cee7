//! Whole rings in one process: replies exactly once and in order, while links break and nodes die.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_exchange::batch;
use nm_exchange::book::Book;
use nm_exchange::cell::{Cell, Handled, Outcome, Request};
use nm_exchange::codec::{self, Fields};
use nm_exchange::journal::Reader;
use nm_exchange::link::{Link, Stream};
use nm_exchange::network::{Durability, Network, Node, Role};
use nm_exchange::node::{self, Ended, Notice};
use nm_exchange::order::{Command, Event, Kind, Life, NewOrder, PostOnly, SelfTrade, Side};
use nm_exchange::wire::{self, FrameKind, Header};
use nm_sys::clock::Deadline;

/// Nothing here takes so long unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A network of threads over Unix sockets, in a folder that goes with it.
pub struct Ring {
    pub network: Network,
    pub folder: tempfile::TempDir,
    /// What nodes complained of.
    pub troubles: Arc<Mutex<Vec<String>>>,
    nodes: BTreeMap<(Role, usize), Running>,
}

pub struct Running {
    stop: UnixStream,
    thread: JoinHandle<Ended>,
}

impl Ring {
    pub fn new(counts: &str, durability: Durability) -> Ring {
        let folder = tempfile::tempdir().unwrap();
        let mut network = Network::new(counts.parse().unwrap(), |role, index| {
            let path = folder.path().join(format!("{role}-{index}"));
            let address = format!("unix:{}", path.display());
            let replication = Some(format!("{address}-replication"));
            Node { address: address.parse().unwrap(), replication }
        });
        network.durability = durability;
        network.data = Some(folder.path().join("data"));
        Ring { network, folder, troubles: Arc::default(), nodes: BTreeMap::new() }
    }

    /// Starts all nodes and waits until all links are up.
    pub fn start(&mut self) {
        let ready = Arc::new(AtomicU64::new(0));
        let all: Vec<_> = self.network.all().map(|(role, index, _)| (role, index)).collect();
        for (role, index) in &all {
            self.start_one(*role, *index, &self.network.clone(), &ready);
        }
        let deadline = Deadline::after(LIMIT);
        while ready.load(Ordering::Acquire) < all.len() as u64 {
            assert!(!deadline.passed(), "the ring is not ready");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn start_one(&mut self, role: Role, index: usize, seen: &Network, ready: &Arc<AtomicU64>) {
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (network, ready) = (seen.clone(), Arc::clone(ready));
        let troubles = Arc::clone(&self.troubles);
        let thread = std::thread::spawn(move || {
            let mut say = |notice: &Notice| {
                if matches!(notice, Notice::Ready { .. }) {
                    ready.fetch_add(1, Ordering::AcqRel);
                }
                if let Notice::Trouble { message, .. } = notice {
                    troubles.lock().unwrap().push(message.clone());
                }
            };
            node::run(&network, role, index, stopped.as_fd(), &mut say).unwrap()
        });
        self.nodes.insert((role, index), Running { stop, thread });
    }

    /// Ends a node, and starts it again as it was. The number rises when it is ready.
    pub fn restart(&mut self, role: Role, index: usize) -> Arc<AtomicU64> {
        self.stop_one(role, index);
        let ready = Arc::default();
        self.start_one(role, index, &self.network.clone(), &ready);
        ready
    }

    pub fn stop_one(&mut self, role: Role, index: usize) -> Ended {
        let running = self.nodes.remove(&(role, index)).unwrap();
        drop(running.stop);
        running.thread.join().unwrap()
    }

    pub fn stop(mut self) -> Vec<Ended> {
        self.stop_all()
    }

    /// Ends all nodes; what they wrote stays as long as the ring.
    pub fn stop_all(&mut self) -> Vec<Ended> {
        let all: Vec<_> = self.nodes.keys().copied().collect();
        all.into_iter().map(|(role, index)| self.stop_one(role, index)).collect()
    }
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub header: Header,
    pub body: Vec<u8>,
}

/// Last number sent, and what has no reply.
#[derive(Debug, Default)]
pub struct Flow {
    last: u64,
    pending: VecDeque<(u64, Vec<u8>)>,
}

/// A client with one link and any number of sessions; it connects again and sends again.
pub struct Client {
    pub address: nm_exchange::link::Address,
    pub link: Option<Link>,
    pub sessions: BTreeMap<u32, u64>,
    /// By session and instrument.
    pub flows: BTreeMap<(u32, u32), Flow>,
    pub told: Vec<Told>,
}

impl Client {
    pub fn new(ring: &Ring, gateway: usize, sessions: &[u32]) -> Client {
        Client {
            address: ring.network.gateway[gateway].address.clone(),
            link: None,
            sessions: sessions.iter().map(|session| (*session, 0)).collect(),
            flows: BTreeMap::new(),
            told: vec![],
        }
    }

    pub fn waiting(&self) -> usize {
        self.flows.values().map(|flow| flow.pending.len()).sum()
    }

    pub fn request(&mut self, session: u32, segment: u32, flags: u16, command: &Command) {
        let seq = self.sessions.get_mut(&session).unwrap();
        *seq += 1;
        let flow = self.flows.entry((session, segment)).or_default();
        let settled = if flow.pending.is_empty() { wire::SETTLED } else { 0 };
        let header = Header {
            flags: flags | wire::STAMPED | settled,
            segment,
            session,
            client_seq: *seq,
            previous_seq: flow.last,
            intended_ns: *seq,
            ..Header::new(FrameKind::Request)
        };
        let (mut body, mut bytes) = (vec![], vec![]);
        codec::write_command(command, &mut body);
        wire::write(&header, &body, 300 + (*seq as usize * 37) % 900, &mut bytes);
        if let Some(link) = &mut self.link {
            link.output.extend_from_slice(&bytes);
        }
        flow.last = *seq;
        flow.pending.push_back((*seq, bytes));
    }

    pub fn connect(&mut self) {
        let Ok(stream) = Stream::connect(&self.address, LIMIT) else {
            return std::thread::sleep(Duration::from_millis(2));
        };
        let mut link = Link::new(stream).unwrap();
        for session in self.sessions.keys() {
            let header = Header { session: *session, ..Header::new(FrameKind::Hello) };
            wire::write(&header, b"client", 0, &mut link.output);
        }
        for flow in self.flows.values() {
            flow.pending.iter().for_each(|(_, bytes)| link.output.extend_from_slice(bytes));
        }
        self.link = Some(link);
    }

    /// Sends what is to be sent, and takes what comes within a moment.
    pub fn turn(&mut self) {
        if self.link.is_none() {
            self.connect();
        }
        let Some(link) = &mut self.link else { return };
        let mut outcome = link.flush().map(|_| ());
        let fd = link.as_fd().as_raw_fd();
        if outcome.is_ok() && nm_sys::poll::readable(fd, Duration::from_millis(5)).unwrap() {
            outcome = link.receive();
        }
        while let Ok(Some(frame)) = link.input.next_frame() {
            let (header, body) = (frame.header, frame.body().to_vec());
            if header.kind == FrameKind::Reply {
                let whole = wire::read(frame.bytes).unwrap().unwrap();
                let stamps = wire::stamps(&whole).unwrap();
                assert!(stamps[0] > 0 && stamps.is_sorted(), "{stamps:?}");
                assert!(stamps[3] <= nm_sys::clock::monotonic_ns());
                let flow = self.flows.get_mut(&(header.session, header.segment)).unwrap();
                let first = flow.pending.front().map(|(seq, _)| *seq);
                // Whatever the gateway lost, a reply comes in order and once for each link.
                if first != Some(header.client_seq) {
                    assert!(first.is_none_or(|first| first > header.client_seq), "{header:?}");
                    continue;
                }
                flow.pending.pop_front();
            }
            self.told.push(Told { header, body });
        }
        if outcome.is_err() {
            self.link = None;
        }
    }

    pub fn replies(&self) -> impl Iterator<Item = &Told> {
        self.told.iter().filter(|told| told.header.kind == FrameKind::Reply)
    }
}

pub fn order(session: u32, seq: u64, side: Side, price: i64) -> Command {
    Command::New(NewOrder {
        id: u64::from(session) << 32 | seq,
        user: session,
        side,
        kind: Kind::Limit,
        life: Life::Day,
        price,
        stop_price: 0,
        quantity: 1 + seq % 5,
        display: 0,
        minimum: 0,
        post_only: PostOnly::No,
        self_trade: SelfTrade::CancelOldest,
    })
}

pub const SEGMENTS: u32 = 5;

/// Orders that a session may have without reply on an instrument.
const WINDOW: usize = 8;

/// Lets a session send what its window has room for; `sent` of `count` are sent.
fn send(client: &mut Client, session: u32, segment: u32, sent: &mut u64, count: u64) {
    let pending = client.flows.get(&(session, segment)).map_or(0, |flow| flow.pending.len());
    let room = WINDOW.saturating_sub(pending).min((count - *sent) as usize);
    for _ in 0..room {
        *sent += 1;
        let is_buy = (u64::from(session) + *sent).is_multiple_of(2);
        let side = if is_buy { Side::Buy } else { Side::Sell };
        let price = 100 + (*sent * 7 % 5) as i64;
        let flags = if sent.is_multiple_of(50) { wire::PUBLIC } else { 0 };
        client.request(session, segment, flags, &order(session, *sent, side, price));
    }
}

/// Sends `count` orders of each session on each instrument, and calls `meanwhile` with the number
/// of replies so far, as if all instruments had as few as the slowest.
pub fn trade(clients: &mut [Client], count: u64, mut meanwhile: impl FnMut(usize)) {
    let deadline = Deadline::after(LIMIT);
    let mut sent: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    loop {
        let mut is_done = true;
        for client in &mut *clients {
            for session in client.sessions.keys().copied().collect::<Vec<_>>() {
                for segment in 0..SEGMENTS {
                    let sent = sent.entry((session, segment)).or_default();
                    send(client, session, segment, sent, count);
                    is_done &= *sent == count;
                }
            }
            client.turn();
            is_done &= client.waiting() == 0;
        }
        let mut replies = [0; SEGMENTS as usize];
        for told in clients.iter().flat_map(Client::replies) {
            replies[told.header.segment as usize] += 1;
        }
        meanwhile(replies.into_iter().min().unwrap_or(0) * replies.len());
        if is_done {
            return;
        }
        let waiting: Vec<usize> = clients.iter().map(Client::waiting).collect();
        assert!(!deadline.passed(), "no reply to {waiting:?} requests");
    }
}

/// Each request has one reply, each instrument's outcomes are numbered without a gap, and each
/// session's requests on an instrument were carried out in the order sent.
pub fn prove(clients: &[Client], count: u64) {
    let mut numbers: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    let mut last: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    let mut sessions = 0;
    for client in clients {
        sessions += client.sessions.len() as u64;
        for told in client.replies() {
            let header = &told.header;
            assert_eq!(header.flags & wire::FORGOTTEN, 0);
            assert!(numbers.entry(header.segment).or_default().insert(header.output_seq));
            let now = (header.client_seq, header.output_seq);
            let before = last.insert((header.session, header.segment), now).unwrap_or_default();
            assert!(before.0 < now.0 && before.1 < now.1, "{before:?} {now:?}");
        }
    }
    for numbers in numbers.values() {
        assert_eq!(numbers.len() as u64, sessions * count);
        assert_eq!(numbers.last(), Some(&(sessions * count)), "carried out twice");
    }
    assert_eq!(numbers.len(), SEGMENTS as usize);
}

#[test]
fn a_ring_answers_once_in_order_and_tells_counterparties_and_everybody() {
    let mut ring = Ring::new("2-1-3-2", Durability::None);
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3])];
    clients.iter_mut().for_each(|client| {
        while client.link.is_none() {
            client.connect()
        }
    });
    trade(&mut clients, 100, |_| {});
    prove(&clients, 100);
    let trades = |kind: FrameKind, client: &Client| -> BTreeSet<(u32, u64, u64, u64)> {
        let told = client.told.iter().filter(|told| told.header.kind == kind);
        told.flat_map(|told| {
            let skip = if kind == FrameKind::Reply { 8 } else { 0 };
            let mut fields = Fields(&told.body[skip..]);
            let segment = told.header.segment;
            std::iter::from_fn(move || codec::read_event(&mut fields).ok()).filter_map(
                move |event| match event {
                    Event::Traded { maker, taker, maker_left, .. } => {
                        Some((segment, maker, taker, maker_left))
                    }
                    _ => None,
                },
            )
        })
        .collect()
    };
    let by = |id: u64| (id >> 32) as u32;
    // What the third session's orders made others trade is what it was told as their counterparty.
    let [first, second] = &clients;
    let with_third: BTreeSet<_> =
        trades(FrameKind::Reply, first).into_iter().filter(|t| by(t.1) == 3).collect();
    let told: BTreeSet<_> =
        trades(FrameKind::Private, second).into_iter().filter(|t| by(t.2) != 3).collect();
    assert!(!told.is_empty());
    assert_eq!(told, with_third);
    // Everybody is told the same.
    let public = |client: &Client| -> BTreeSet<(u32, u64)> {
        let told = client.told.iter().filter(|told| told.header.kind == FrameKind::Public);
        told.map(|told| (told.header.segment, told.header.output_seq)).collect()
    };
    let deadline = Deadline::after(LIMIT);
    while clients.iter().any(|client| public(client).len() < 3 * 2 * SEGMENTS as usize) {
        assert!(!deadline.passed(), "not everybody is told");
        clients.iter_mut().for_each(Client::turn);
    }
    assert_eq!(public(&clients[0]), public(&clients[1]));
    let ended = ring.stop();
    let requests = |role| ended.iter().filter(|e| e.role == role).map(|e| e.requests).sum::<u64>();
    let total = 3 * 100 * u64::from(SEGMENTS);
    assert_eq!(Role::ALL.map(requests), [total; 4]);
    assert!(ended.iter().all(|ended| ended.resent == 0 && ended.turns > 0));
}

/// Lets nodes die one after another while clients trade, and proves that nobody noticed more than a
/// pause.
fn kill(counts: &str, durability: Durability, victims: &[(Role, usize)]) {
    let mut ring = Ring::new(counts, durability);
    ring.start();
    let gateways = ring.network.gateway.len();
    let mut clients: Vec<Client> = (0..gateways)
        .map(|gateway| Client::new(&ring, gateway, &[1, 2].map(|s| gateway as u32 * 2 + s)))
        .collect();
    let (count, mut killed) = (150, 0);
    let total = clients.len() * 2 * count as usize * SEGMENTS as usize;
    // A group survives the death of one replica at a time: the next is killed when the one before
    // can stand in for it.
    let mut recovered = Arc::new(AtomicU64::new(1));
    trade(&mut clients, count, |replies| {
        if killed < victims.len() && replies > (killed + 1) * total / (victims.len() + 2) {
            let (role, index) = victims[killed];
            killed += 1;
            let deadline = Deadline::after(LIMIT);
            while recovered.load(Ordering::Acquire) == 0 {
                assert!(!deadline.passed(), "{:?} is not ready again", victims[killed - 2]);
                std::thread::sleep(Duration::from_millis(1));
            }
            recovered = ring.restart(role, index);
        }
    });
    assert_eq!(killed, victims.len());
    prove(&clients, count);
    ring.stop();
}

#[test]
fn a_gateway_and_a_router_and_a_processor_die_and_nothing_is_lost_or_done_twice() {
    use Role::{Gateway, Processor, Router};
    let victims =
        [(Gateway, 0), (Router, 1), (Processor, 0), (Processor, 1), (Router, 0), (Gateway, 1)];
    kill("2-2-2-2", Durability::None, &victims);
}

#[test]
fn with_a_quorum_in_memory_any_node_may_die() {
    use Role::{Gateway, Mediator, Processor, Router};
    let victims =
        [(Mediator, 0), (Processor, 1), (Mediator, 1), (Gateway, 0), (Router, 1), (Processor, 0)];
    kill("2-2-2-2", Durability::MemoryQuorum, &victims);
}

#[test]
fn with_a_quorum_on_disk_two_replicas_survive_the_death_of_each() {
    use Role::{Mediator, Processor};
    kill("1-1-1-1", Durability::DiskQuorum, &[(Mediator, 0), (Processor, 0), (Mediator, 0)]);
}

#[test]
fn a_mediator_that_keeps_nothing_dies_and_trading_goes_on() {
    let mut ring = Ring::new("1-1-2-1", Durability::None);
    ring.network.record = true;
    ring.start();
    let mut clients = [Client::new(&ring, 0, &[1, 2, 3])];
    let mut is_killed = false;
    trade(&mut clients, 60, |replies| {
        if !is_killed && replies > 300 {
            is_killed = true;
            ring.restart(Role::Mediator, 1);
        }
    });
    assert!(is_killed);
    // Its instruments may have been ahead of the others: something comes to its second life, too.
    trade(&mut clients, 10, |_| {});
    // The record tells where the books were lost, and has every reply's request once at most
    // within a life of the books.
    for (mediator, lives) in [(0, 1), (1, 2)] {
        let folder = ring.network.folder(Role::Mediator, mediator).unwrap();
        let mut reader = Reader::open(&folder.join(format!("cell-{mediator}"))).unwrap();
        let (mut terms, mut cell, mut next) = (BTreeSet::new(), Cell::<Book>::default(), 1);
        let mut done = BTreeSet::new();
        while let Some(record) = reader.next_record().unwrap() {
            assert_eq!(record.index, next);
            next += 1;
            if terms.insert(record.term) {
                cell = Cell::default();
                cell.forgives = terms.len() > 1;
            }
            let (time_ns, frames) = batch::open(&record.bytes).unwrap();
            cell.begin(record.index, time_ns);
            for frame in frames {
                let request = Request::of(&frame.unwrap()).unwrap();
                if let Handled::Done(outcome) = cell.handle(&request, |_| {}) {
                    done.insert((request.segment, request.session, outcome));
                }
            }
        }
        assert_eq!(terms.len(), lives, "{terms:?}");
        for told in clients[0].replies() {
            let header = &told.header;
            if usize::from(header.cell) == mediator && header.flags & wire::FORGOTTEN == 0 {
                let events_hash = Fields(&told.body).u64().unwrap();
                let (client_seq, output_seq) = (header.client_seq, header.output_seq);
                let outcome = Outcome { client_seq, output_seq, events_hash };
                assert!(done.contains(&(header.segment, header.session, outcome)), "{header:?}");
            }
        }
    }
    ring.stop();
}

#[test]
fn strangers_and_nonsense_are_refused_and_trading_goes_on() {
    let mut ring = Ring::new("1-1-1-1", Durability::None);
    ring.start();
    let frame = |kind: FrameKind, body: &[u8]| {
        let mut bytes = vec![];
        wire::write(&Header { client_seq: 1, ..Header::new(kind) }, body, 0, &mut bytes);
        bytes
    };
    let hello = frame(FrameKind::Hello, b"client");
    let gateway = (Role::Gateway, 0);
    let refused = [
        (gateway, vec![7; 500]),
        (gateway, frame(FrameKind::Hello, b"mediator 0")),
        (gateway, frame(FrameKind::Hello, b"processor 7")),
        (gateway, frame(FrameKind::Hello, &[0xff, 0xfe])),
        (gateway, frame(FrameKind::Request, b"")),
        (gateway, [hello.clone(), frame(FrameKind::Request, &[99])].concat()),
        (gateway, [hello.clone(), frame(FrameKind::Lead, b"")].concat()),
        ((Role::Router, 0), hello.clone()),
        ((Role::Mediator, 0), frame(FrameKind::Request, b"")),
        ((Role::Mediator, 0), frame(FrameKind::Welcome, b"")),
        ((Role::Processor, 0), frame(FrameKind::Reply, b"")),
    ];
    for ((role, index), bytes) in refused {
        let path = ring.folder.path().join(format!("{role}-{index}"));
        let mut stranger = UnixStream::connect(path).unwrap();
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        stranger.write_all(&bytes).unwrap();
        let end = stranger.read(&mut [0; 64]);
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(end.as_ref().is_ok_and(|n| *n == 0) || end.as_ref().is_err_and(reset), "{end:?}");
    }
    let mut clients = [Client::new(&ring, 0, &[1])];
    trade(&mut clients, 20, |_| {});
    prove(&clients, 20);
    ring.stop();
}

#[test]
fn a_node_that_cannot_be_is_refused_in_a_sentence() {
    let ring = Ring::new("1-1-1-1", Durability::None);
    let (_stop, stopped) = UnixStream::pair().unwrap();
    let run = |network: &Network, index| {
        node::run(network, Role::Router, index, stopped.as_fd(), &mut |_| {}).unwrap_err()
    };
    assert!(run(&ring.network, 4).message.contains("there is no router 4"));
    let mut network = ring.network.clone();
    network.router[0].address = "unix:/no/such/folder/node".parse().unwrap();
    assert!(run(&network, 0).message.contains("router 0 cannot listen at unix:/no/such"));
}

/// Stands between a node and those that connect to it, and cuts each connection after a while.
pub struct Cutter {
    address: PathBuf,
    is_over: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Cutter {
    fn new(folder: &Path, name: &str, seed: u64) -> Cutter {
        let target = folder.join(name);
        let address = folder.join(format!("{name}-cut"));
        let listener = UnixListener::bind(&address).unwrap();
        let (is_over, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&cuts));
        std::thread::spawn(move || {
            let mut random = seed | 1;
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                if over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(far) = UnixStream::connect(&target) else { continue };
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let left = Arc::new(AtomicU64::new(20_000 + random % 60_000));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, count) = (Arc::clone(&left), Arc::clone(&count));
                    std::thread::spawn(move || copy(from, to, &left, &count));
                }
            }
        });
        Cutter { address, is_over, cuts }
    }

    /// Connections that it has cut so far.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.address);
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, left: &AtomicU64, cuts: &AtomicU64) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let before = left.load(Ordering::Acquire);
        left.store(before.saturating_sub(count as u64), Ordering::Release);
        // The cut goes through the middle of what came.
        let passes = count.min(before as usize);
        if to.write_all(&bytes[..passes]).is_err() {
            break;
        }
        if passes < count {
            cuts.fetch_add(1, Ordering::AcqRel);
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn links_that_break_again_and_again_lose_nothing_and_repeat_nothing() {
    let mut ring = Ring::new("2-2-2-2", Durability::None);
    let cutters = cut_again_and_again(&mut ring);
    let mut clients = [Client::new(&ring, 0, &[1, 2]), Client::new(&ring, 1, &[3, 4])];
    trade(&mut clients, 60, |_| {});
    prove(&clients, 60);
    let cuts: u64 = cutters.iter().map(Cutter::cuts).sum();
    assert!(cuts > 20, "{cuts} cuts");
    ring.stop();
}

/// Starts a ring each node of which is reached through a cutter; it listens where it always did.
pub fn cut_again_and_again(ring: &mut Ring) -> Vec<Cutter> {
    let mut cutters = vec![];
    let mut seen = ring.network.clone();
    for (role, nodes) in [
        (Role::Gateway, &mut seen.gateway),
        (Role::Router, &mut seen.router),
        (Role::Mediator, &mut seen.mediator),
        (Role::Processor, &mut seen.processor),
    ] {
        for (index, node) in nodes.iter_mut().enumerate() {
            let name = format!("{role}-{index}");
            let cutter = Cutter::new(ring.folder.path(), &name, cutters.len() as u64 * 77 + 5);
            node.address = format!("unix:{}", cutter.address.display()).parse().unwrap();
            cutters.push(cutter);
        }
    }
    let all: Vec<_> = ring.network.all().map(|(role, index, _)| (role, index)).collect();
    for (role, index) in all {
        let own = &ring.network.nodes(role)[index];
        let mut network = seen.clone();
        match role {
            Role::Gateway => network.gateway[index] = own.clone(),
            Role::Router => network.router[index] = own.clone(),
            Role::Mediator => network.mediator[index] = own.clone(),
            Role::Processor => network.processor[index] = own.clone(),
        }
        ring.start_one(role, index, &network, &Arc::default());
    }
    cutters
}
