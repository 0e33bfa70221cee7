//! Rings of nodes in one process, their clients, and links that fail, for tests.

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

use nm_auth::{Credentials, Secret};
use nm_book::order::{Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce};
use nm_sys::clock::Deadline;
use nm_wire::{FrameMut, Kind, Message as AnyMessage, Request, Shape, Who};

use crate::client;
use crate::link::{Address, Link};
use crate::network::{Durability, Network, Node, NodeId, Role};
use crate::node::{self, EventQueue, Limits, NodeEvent, NodeSummary};

/// Nothing takes so long unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A network of threads over Unix sockets, in a temporary folder.
pub struct TestRing {
    /// The network that the nodes were given.
    pub network: Network,
    /// Holds the sockets and what the nodes write.
    pub folder: tempfile::TempDir,
    /// Warnings of the nodes.
    pub warnings: Arc<Mutex<Vec<String>>>,
    /// Limits of the nodes.
    pub limits: Limits,
    nodes: BTreeMap<NodeId, RunningNode>,
}

/// Events that nobody reads.
pub fn unread_events(node: NodeId) -> EventQueue {
    EventQueue::start(node, |_| {}).unwrap()
}

/// A node that runs.
pub struct RunningNode {
    stop: UnixStream,
    thread: JoinHandle<NodeSummary>,
}

impl TestRing {
    /// A ring of so many nodes, not started.
    pub fn new(counts: &str, durability: Durability) -> TestRing {
        let folder = tempfile::tempdir().unwrap();
        let mut network = Network::new(counts.parse().unwrap(), |node| {
            let path = folder.path().join(node.file_name());
            let address = format!("unix:{}", path.display());
            let replication = folder.path().join(format!("{}-replication", node.file_name()));
            let replication = Some(nm_replica::Address::Unix(replication));
            Node { address: address.parse().unwrap(), replication }
        });
        network.durability = durability;
        network.data = Some(folder.path().join("data"));
        let (warnings, limits) = (Arc::default(), Limits::STANDARD);
        TestRing { network, folder, warnings, limits, nodes: BTreeMap::new() }
    }

    /// Gives the network a secret.
    pub fn make_secret(&mut self) -> Secret {
        let (secret, path) = (Secret::random().unwrap(), self.folder.path().join("secret"));
        secret.create(&path).unwrap();
        self.network.secret = Some(path);
        secret
    }

    /// Starts all nodes and waits until all links are up.
    pub fn start(&mut self) {
        let ready = Arc::new(AtomicU64::new(0));
        let all: Vec<NodeId> = self.network.all().map(|(id, _)| id).collect();
        for node in &all {
            self.start_one(*node, &self.network.clone(), &ready);
        }
        let deadline = Deadline::after(LIMIT);
        while ready.load(Ordering::Acquire) < all.len() as u64 {
            assert!(!deadline.passed(), "the ring is not ready");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts one node with its view of the network; the number rises when it is ready.
    pub fn start_one(&mut self, node: NodeId, network: &Network, ready: &Arc<AtomicU64>) {
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (network, ready) = (network.clone(), Arc::clone(ready));
        let (warnings, limits) = (Arc::clone(&self.warnings), self.limits);
        let thread = std::thread::spawn(move || {
            let report = move |event: &NodeEvent| {
                if matches!(event, NodeEvent::Ready { .. }) {
                    ready.fetch_add(1, Ordering::AcqRel);
                }
                if let NodeEvent::Warning { message, .. } = event {
                    warnings.lock().unwrap().push(message.clone());
                }
            };
            let events = EventQueue::start(node, report).unwrap();
            let ended = node::run_with_limits(&network, node, stopped.as_fd(), &limits, &events);
            assert!(events.end(LIMIT), "its events are written");
            ended.unwrap()
        });
        self.nodes.insert(node, RunningNode { stop, thread });
    }

    /// Restarts a node. The number rises when it is ready.
    pub fn restart(&mut self, node: NodeId) -> Arc<AtomicU64> {
        self.stop_one(node);
        let ready = Arc::default();
        self.start_one(node, &self.network.clone(), &ready);
        ready
    }

    /// Waits until a node has warned of something.
    pub fn wait_for_warning(&self, words: &str) {
        let deadline = Deadline::after(LIMIT);
        while !self.warnings.lock().unwrap().iter().any(|warning| warning.contains(words)) {
            assert!(!deadline.passed(), "no `{words}` in {:?}", self.warnings.lock().unwrap());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends one node.
    pub fn stop_one(&mut self, node: NodeId) -> NodeSummary {
        let running = self.nodes.remove(&node).unwrap();
        drop(running.stop);
        running.thread.join().unwrap()
    }

    /// Ends all nodes.
    pub fn stop(mut self) -> Vec<NodeSummary> {
        self.stop_all()
    }

    /// Ends all nodes; what they wrote stays as long as the ring.
    pub fn stop_all(&mut self) -> Vec<NodeSummary> {
        let all: Vec<_> = self.nodes.keys().copied().collect();
        all.into_iter().map(|node| self.stop_one(node)).collect()
    }
}

/// A request of a session that has sent none before.
pub fn request(session: u32, instrument: u32, command: Command) -> Request {
    Request {
        instrument,
        session,
        client_seq: 1,
        previous_seq: 0,
        acknowledged: 0,
        intended_ns: 0,
        owner: nm_wire::Owner::NOBODY,
        map_version: 0,
        gateway: 0,
        cell: 0,
        attempt: 0,
        is_previous_answered: false,
        breach: 0,
        command,
    }
}

/// A message that a client received: what its kind has of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which it is.
    pub kind: Kind,
    /// Instrument.
    pub instrument: u32,
    /// Session.
    pub session: u32,
    /// Number of the request that it answers.
    pub client_seq: u64,
    /// Number of the request among all that were executed.
    pub output_seq: u64,
    /// Number of the event before its first one.
    pub previous_event: u64,
    /// Gateway.
    pub gateway: u16,
    /// Cell.
    pub cell: u16,
    /// When the request was to be sent, ns.
    pub intended_ns: u64,
    /// Version of the map that the gateway had.
    pub map_version: u32,
    /// Hash of the request's events.
    pub events_hash: u64,
    /// Whether it is the answer to a request that was executed before.
    pub is_repeated: bool,
    /// Whether the outcome is not kept any more.
    pub is_expired: bool,
    /// Whether events are not kept any more.
    pub has_gap: bool,
    /// Its events.
    pub events: Vec<u8>,
}

impl Message {
    /// The message of a frame.
    pub fn of(frame: &FrameMut<'_>) -> Message {
        let kind = frame.kind();
        let none = Message {
            kind,
            instrument: 0,
            session: 0,
            client_seq: 0,
            output_seq: 0,
            previous_event: 0,
            gateway: 0,
            cell: 0,
            intended_ns: 0,
            map_version: 0,
            events_hash: 0,
            is_repeated: false,
            is_expired: false,
            has_gap: false,
            events: vec![],
        };
        macro_rules! with {
            ($of:expr, $($field:ident),*) => { Message { $($field: $of.$field,)* ..none } };
        }
        match AnyMessage::read(frame.shared()).unwrap() {
            AnyMessage::Reply(it) => Message {
                events: it.events.bytes.to_vec(),
                ..with!(
                    it,
                    instrument,
                    session,
                    client_seq,
                    output_seq,
                    previous_event,
                    gateway,
                    cell,
                    intended_ns,
                    map_version,
                    events_hash,
                    is_repeated,
                    is_expired
                )
            },
            AnyMessage::Refused(it) => {
                with!(it, instrument, session, client_seq, gateway, cell, intended_ns)
            }
            AnyMessage::Private(it) => Message {
                events: it.events.bytes.to_vec(),
                ..with!(it, instrument, session, output_seq, previous_event, gateway, cell)
            },
            AnyMessage::Resent(it) => Message {
                events: it.events.bytes.to_vec(),
                ..with!(it, instrument, session, previous_event, gateway, cell, has_gap)
            },
            AnyMessage::Public(it) => Message {
                events: it.events.bytes.to_vec(),
                ..with!(it, instrument, output_seq, previous_event, gateway, cell)
            },
            AnyMessage::BestPrices(it) => {
                with!(it, instrument, output_seq, previous_event, gateway, cell)
            }
            AnyMessage::Standing(it) => with!(it, session, cell),
            AnyMessage::EventsLost(it) => with!(it, cell, gateway),
            AnyMessage::GoAway(it) => with!(it, gateway),
            AnyMessage::Nak(it) => with!(it, instrument, session, client_seq, gateway, cell),
            _ => none,
        }
    }
}

/// Last number sent, and requests without a reply.
#[derive(Debug, Default)]
pub struct PendingRequests {
    last: u64,
    requests: VecDeque<(u64, Vec<u8>)>,
}

/// A client with one link and any number of sessions; it reconnects and resends.
pub struct Client {
    /// Its gateway.
    pub address: Address,
    /// Its link, while it is connected.
    pub link: Option<Link>,
    /// Last sequence number of each session.
    pub sessions: BTreeMap<u32, u64>,
    /// By session and instrument.
    pub pending: BTreeMap<(u32, u32), PendingRequests>,
    /// All messages that it received.
    pub received: Vec<Message>,
    /// What it proves its sessions with, if the network has a secret.
    pub credentials: Option<Credentials>,
}

impl Client {
    /// A client of these sessions at a gateway.
    pub fn new(ring: &TestRing, gateway: usize, sessions: &[u32]) -> Client {
        Client {
            address: ring.network.nodes(Role::Gateway)[gateway].address.clone(),
            link: None,
            sessions: sessions.iter().map(|session| (*session, 0)).collect(),
            pending: BTreeMap::new(),
            received: vec![],
            credentials: ring.network.credentials().unwrap(),
        }
    }

    /// Requests without a reply.
    pub fn waiting(&self) -> usize {
        self.pending.values().map(|of_one| of_one.requests.len()).sum()
    }

    /// Sends a request.
    pub fn request(&mut self, session: u32, instrument: u32, command: &Command) {
        let seq = self.sessions.get_mut(&session).unwrap();
        *seq += 1;
        let pending = self.pending.entry((session, instrument)).or_default();
        let request = Request {
            client_seq: *seq,
            previous_seq: pending.last,
            intended_ns: *seq,
            is_previous_answered: pending.requests.is_empty(),
            ..request(session, instrument, *command)
        };
        let shape = Shape { is_stamped: true, size_bytes: 300 + (*seq as usize * 37) % 900 };
        let mut bytes = vec![];
        nm_wire::write_shaped(&request, shape, &mut bytes);
        if let Some(link) = &mut self.link {
            link.output.extend_from_slice(&bytes);
        }
        pending.last = *seq;
        pending.requests.push_back((*seq, bytes));
    }

    /// Connects, and resends requests without a reply.
    pub fn connect(&mut self) {
        let hello = |session: &u32| Who::Client { session: *session };
        let hellos: Vec<Who> = self.sessions.keys().map(hello).collect();
        let credentials = self.credentials.as_ref();
        let Ok(mut link) = client::connect(&self.address, &hellos, credentials, LIMIT) else {
            return std::thread::sleep(Duration::from_millis(2));
        };
        for pending in self.pending.values() {
            pending.requests.iter().for_each(|(_, bytes)| link.output.extend_from_slice(bytes));
        }
        self.link = Some(link);
    }

    /// Writes its backlog, and receives what arrives within 5 ms.
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
            let message = Message::of(&frame);
            if matches!(message.kind, Kind::Reply | Kind::Refused) {
                let stamps = frame.shared().stamps().unwrap();
                assert!(stamps[0] > 0 && stamps.is_sorted(), "{stamps:?}");
                assert!(stamps[3] <= nm_sys::clock::monotonic_ns());
                let pending = self.pending.get_mut(&(message.session, message.instrument)).unwrap();
                let first = pending.requests.front().map(|(seq, _)| *seq);
                // Replies arrive in order, and once for each link.
                if first != Some(message.client_seq) {
                    assert!(first.is_none_or(|first| first > message.client_seq), "{message:?}");
                    continue;
                }
                pending.requests.pop_front();
            }
            self.received.push(message);
        }
        if outcome.is_err() {
            self.link = None;
        }
    }

    /// The replies that it received.
    pub fn replies(&self) -> impl Iterator<Item = &Message> {
        self.received.iter().filter(|message| message.kind == Kind::Reply)
    }
}

/// A limit order of a session.
pub fn order(session: u32, seq: u64, side: Side, price: i64) -> Command {
    Command::New(NewOrder {
        id: u64::from(session) << 32 | seq,
        user: session,
        side,
        order_type: OrderType::Limit,
        time_in_force: TimeInForce::Day,
        price,
        stop_price: 0,
        quantity: 1 + seq % 5,
        display: 0,
        minimum: 0,
        is_hidden: false,
        peg: Peg::No,
        post_only: PostOnly::No,
        self_trade: SelfTrade::CancelOldest,
    })
}

/// Instruments that are traded.
pub const INSTRUMENTS: u32 = 5;

/// Orders that a session may have without reply on an instrument.
const WINDOW: usize = 8;

/// Lets a session send as many requests as its window allows; `sent` of `count` are sent.
fn send(client: &mut Client, session: u32, instrument: u32, sent: &mut u64, count: u64) {
    let pending =
        client.pending.get(&(session, instrument)).map_or(0, |of_one| of_one.requests.len());
    let room = WINDOW.saturating_sub(pending).min((count - *sent) as usize);
    for _ in 0..room {
        *sent += 1;
        let is_buy = (u64::from(session) + *sent).is_multiple_of(2);
        let side = if is_buy { Side::Buy } else { Side::Sell };
        let price = 100 + (*sent * 7 % 5) as i64;
        client.request(session, instrument, &order(session, *sent, side, price));
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
                for instrument in 0..INSTRUMENTS {
                    let sent = sent.entry((session, instrument)).or_default();
                    send(client, session, instrument, sent, count);
                    is_done &= *sent == count;
                }
            }
            client.turn();
            is_done &= client.waiting() == 0;
        }
        let mut replies = [0; INSTRUMENTS as usize];
        for reply in clients.iter().flat_map(Client::replies) {
            replies[reply.instrument as usize] += 1;
        }
        meanwhile(replies.into_iter().min().unwrap_or(0) * replies.len());
        if is_done {
            return;
        }
        let waiting: Vec<usize> = clients.iter().map(Client::waiting).collect();
        assert!(!deadline.passed(), "no reply to {waiting:?} requests");
    }
}

/// Asserts that each request has one reply, each instrument's outcomes are numbered without a gap,
/// and each session's requests on an instrument were executed in the order sent.
pub fn assert_executed_once(clients: &[Client], count: u64) {
    let mut numbers: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    let mut last: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    let mut sessions = 0;
    for client in clients {
        sessions += client.sessions.len() as u64;
        for reply in client.replies() {
            assert!(!reply.is_expired);
            assert!(numbers.entry(reply.instrument).or_default().insert(reply.output_seq));
            let now = (reply.client_seq, reply.output_seq);
            let before = last.insert((reply.session, reply.instrument), now).unwrap_or_default();
            assert!(before.0 < now.0 && before.1 < now.1, "{before:?} {now:?}");
        }
    }
    for numbers in numbers.values() {
        assert_eq!(numbers.len() as u64, sessions * count);
        assert_eq!(numbers.last(), Some(&(sessions * count)), "executed twice");
    }
    assert_eq!(numbers.len(), INSTRUMENTS as usize);
}

/// A proxy before a node that cuts each connection after some bytes.
pub struct Cutter {
    address: PathBuf,
    is_stopped: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Cutter {
    fn new(folder: &Path, name: &str, seed: u64) -> Cutter {
        let target = folder.join(name);
        let address = folder.join(format!("{name}-cut"));
        let listener = UnixListener::bind(&address).unwrap();
        let (is_stopped, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (Arc::clone(&is_stopped), Arc::clone(&cuts));
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
        Cutter { address, is_stopped, cuts }
    }

    /// Connections that it has cut so far.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.address);
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, left: &AtomicU64, cuts: &AtomicU64) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let before = left.load(Ordering::Acquire);
        left.store(before.saturating_sub(count as u64), Ordering::Release);
        // The cut is in the middle of what was read.
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

/// Starts a ring in which each node is connected to through a cutter.
pub fn start_with_cutters(ring: &mut TestRing) -> Vec<Cutter> {
    let mut cutters = vec![];
    let mut proxied = ring.network.clone();
    for (class, of) in proxied.classes.iter_mut() {
        for (node, index) in of.nodes.iter_mut().zip(0..) {
            let name = class.node(index).file_name();
            let cutter = Cutter::new(ring.folder.path(), &name, cutters.len() as u64 * 77 + 5);
            node.address = format!("unix:{}", cutter.address.display()).parse().unwrap();
            cutters.push(cutter);
        }
    }
    let all: Vec<_> = ring.network.all().map(|(id, node)| (id, node.clone())).collect();
    for (id, own) in all {
        let mut network = proxied.clone();
        network.classes[id.class].nodes[id.position()] = own;
        ring.start_one(id, &network, &Arc::default());
    }
    cutters
}
