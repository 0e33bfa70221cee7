//! The publisher: it follows a network's books, and sends their feed on two lines.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_doors::symbols::Symbols;
use nm_sys::{clock, socket};
use thiserror::Error;

use crate::conflate::Conflation;
use crate::entry_latency::EntryLatency;
use crate::follow::{Books, Source};
use crate::glimpse;
use crate::itch::{Body, MESSAGE_BYTES_MAX, Message};
use crate::mold::{Draft, END_OF_SESSION, Header, Session};
use crate::node_link::{FollowError, FromNode, Input, NetworkFile, NodeLinks};
use crate::snapshot_server::{Kept, Wanted};
use crate::store::Store;
use crate::{requests, snapshot_server};

/// Inputs of nodes that wait; a link whose inputs find no place waits as well.
const INPUTS_MAX: usize = 65_536;

/// Inputs that are taken before packets are sent.
const INPUTS_AT_ONCE: usize = 512;

/// After how long without a packet a heartbeat is sent, ns.
const HEARTBEAT_NS: u64 = 1_000_000_000;

/// Longest sleep.
const NAP: Duration = Duration::from_millis(20);

/// How often the end of the session is sent, and the pause between.
const ENDS: u32 = 3;
const END_PAUSE: Duration = Duration::from_millis(100);

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// Why a publisher ends.
#[derive(Debug, Error)]
pub enum PublishError {
    /// It cannot listen, or send.
    #[error("cannot {what} {address}: {source}")]
    Address {
        /// What was attempted.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The network cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// What a publisher runs with.
#[derive(Debug)]
pub struct Options {
    /// The network.
    pub network: NetworkFile,
    /// What is shown; all instruments if there is none.
    pub symbols: Option<Symbols>,
    /// Where each line is sent: an address, or a multicast group.
    pub lines: [SocketAddr; 2],
    /// The address of the interface from which multicast is sent.
    pub interface: Option<IpAddr>,
    /// Where requests are answered.
    pub requests: SocketAddr,
    /// Where snapshots are given.
    pub snapshots: SocketAddr,
    /// Bytes of messages that are kept for requests.
    pub kept_bytes: u64,
    /// Where the best prices are sent, and the interval of a stock, ns; to nobody if there is none.
    pub top: Option<(SocketAddr, u64)>,
    /// What is shown, whenever that changes.
    pub listed: Option<Receiver<Symbols>>,
}

/// The conflated feed of best prices.
struct TopLine {
    conflation: Conflation,
    draft: Draft,
    line: (UdpSocket, SocketAddr),
}

impl TopLine {
    fn send(&mut self) {
        // Nobody may listen there, and the next message has all that this one has.
        let _ = self.line.0.send_to(self.draft.bytes(), self.line.1);
        self.draft.begin_next();
    }

    /// Sends what is due.
    fn flush(&mut self, books: &mut Books, now_ns: u64) {
        for top in self.conflation.due(books, now_ns) {
            let bytes = top.write();
            if !self.draft.push(&bytes) {
                self.send();
                self.draft.push(&bytes);
            }
        }
        if !self.draft.is_empty() {
            self.send();
        }
    }
}

/// A feed that is sent.
struct Publisher {
    books: Books,
    store: Arc<Mutex<Store>>,
    draft: Draft,
    lines: Vec<(UdpSocket, SocketAddr)>,
    sent_ns: u64,
    messages: Vec<Message>,
    snapshot: Kept,
    top: Option<TopLine>,
    latency: EntryLatency,
}

/// Publishes until `stop`. `note` gets each line that an operator should know.
///
/// # Errors
/// If an address cannot be used, or the network's file cannot be read.
pub fn run(
    options: Options,
    stop: &Arc<AtomicBool>,
    note: &mut dyn FnMut(&str),
) -> Result<(), PublishError> {
    let session = session_name();
    let store = Arc::new(Mutex::new(Store::new(session, options.kept_bytes)));
    let address = |what, address| move |source| PublishError::Address { what, address, source };
    let socket = UdpSocket::bind(options.requests)
        .map_err(address("answer requests at", options.requests))?;
    let listener = TcpListener::bind(options.snapshots)
        .map_err(address("give snapshots at", options.snapshots))?;
    let line = |to: SocketAddr| {
        let socket = sender(to, options.interface).map_err(address("send to", to))?;
        Ok::<_, PublishError>((socket, to))
    };
    let lines = options.lines.map(line).into_iter().collect::<Result<Vec<_>, _>>()?;
    let top_line = |(to, interval_ns)| {
        let (conflation, draft) = (Conflation::new(interval_ns), Draft::new(session, 1));
        Ok::<_, PublishError>(TopLine { conflation, draft, line: line(to)? })
    };
    let top = options.top.map(top_line).transpose()?;
    let (want, wanted) = sync_channel(0);
    requests::start(socket, Arc::clone(&store), Arc::clone(stop))?;
    let of = (session, snapshot_server::Limits::STANDARD);
    snapshot_server::start(listener, of, want, Arc::clone(stop))?;
    let (to, inputs) = sync_channel(INPUTS_MAX);
    let mut links = NodeLinks::start(options.network, to, Arc::clone(stop))?;
    let mut publisher = Publisher {
        books: Books::new(options.symbols),
        store,
        draft: Draft::new(session, 1),
        lines,
        sent_ns: clock::monotonic_ns(),
        messages: vec![],
        snapshot: Kept::default(),
        top,
        latency: EntryLatency::new(),
    };
    note(&format!("publishing session {}", String::from_utf8_lossy(&session)));
    publisher.events(b"OSQ");
    while !stop.load(Ordering::Relaxed) {
        publisher.take_inputs(&inputs);
        publisher.on_time(&mut links);
        publisher.flush();
        publisher.flush_top();
        publisher.give_snapshots(&wanted);
        links.update()?;
        // Only the latest matters.
        if let Some(symbols) = options.listed.as_ref().and_then(|it| it.try_iter().last()) {
            publisher.books.set_symbols(symbols);
        }
        publisher.books.notes.drain(..).for_each(|line| note(&line));
    }
    publisher.end();
    publisher.latency.line().iter().for_each(|line| note(line));
    note(&format!("ended after message {}", publisher.lock().next() - 1));
    Ok(())
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// The seconds since 1970: a feed that starts again has another name.
fn session_name() -> Session {
    let mut name = [b'0'; 10];
    let seconds = format!("{:010}", unix_ns() / 1_000_000_000);
    name.iter_mut().zip(seconds.bytes()).for_each(|(place, digit)| *place = digit);
    name
}

fn sender(to: SocketAddr, interface: Option<IpAddr>) -> io::Result<UdpSocket> {
    let any: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    if let Some(interface) = interface.filter(|_| to.ip().is_multicast()) {
        socket::set_multicast_interface(socket.as_fd(), interface)?;
    }
    Ok(socket)
}

impl Publisher {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends system events.
    fn events(&mut self, events: &[u8]) {
        for event in events {
            let body = Body::SystemEvent { event: *event };
            let time_ns = unix_ns() % DAY_NS;
            self.messages.push(Message { locate: 0, tracking: 0, time_ns, body });
        }
        self.append();
    }

    #[expect(clippy::disallowed_methods, reason = "the only wait of the loop, with a limit")]
    fn take_inputs(&mut self, inputs: &Receiver<Input>) {
        let mut next = match inputs.recv_timeout(NAP) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return std::thread::sleep(NAP),
        };
        let now_ns = clock::monotonic_ns();
        let mut left = INPUTS_AT_ONCE;
        while let Some((source, input)) = next {
            self.take(source, input, now_ns);
            left -= 1;
            next = if left > 0 { inputs.try_recv().ok() } else { None };
        }
        self.append();
    }

    fn take(&mut self, source: Source, input: FromNode, now_ns: u64) {
        let (books, out) = (&mut self.books, &mut self.messages);
        match input {
            FromNode::Update(update) => {
                let (before, received_ns) = (out.len(), update.received_ns);
                books.on_update(source, update, now_ns, out);
                if out.len() > before {
                    self.latency.follow(received_ns);
                }
            }
            FromNode::Positions(all) => {
                all.into_iter().for_each(|it| books.on_position(source, it, now_ns, out));
            }
            FromNode::Image(position, bytes) => books.on_image(position, &bytes, now_ns, out),
            FromNode::Note(line) => books.notes.push(line),
        }
    }

    fn on_time(&mut self, links: &mut NodeLinks) {
        let now_ns = clock::monotonic_ns();
        for (source, instrument) in self.books.on_time(now_ns) {
            links.ask(source, instrument);
        }
        self.books.imbalances(now_ns, &mut self.messages);
        self.append();
        if now_ns >= self.sent_ns + HEARTBEAT_NS && self.draft.is_empty() {
            self.send();
        }
    }

    /// Gives messages their numbers, keeps them, and puts them into packets.
    fn append(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let store = Arc::clone(&self.store);
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        for message in std::mem::take(&mut self.messages) {
            let bytes = store.push(&message);
            if !self.draft.push(bytes) {
                self.send();
                self.draft.push(bytes);
            }
        }
    }

    fn flush(&mut self) {
        if !self.draft.is_empty() {
            self.send();
        }
        self.latency.sent(clock::monotonic_ns());
    }

    /// Sends best prices; without a line for them, nobody asks which books have changed.
    fn flush_top(&mut self) {
        match &mut self.top {
            Some(top) => top.flush(&mut self.books, clock::monotonic_ns()),
            None => drop(self.books.take_changed()),
        }
    }

    /// Sends the packet on both lines.
    fn send(&mut self) {
        let bytes = self.draft.bytes();
        for (socket, to) in &self.lines {
            // Nobody may listen there, and who misses a packet asks for it.
            let _ = socket.send_to(bytes, to);
        }
        self.draft.begin_next();
        self.sent_ns = clock::monotonic_ns();
    }

    fn give_snapshots(&mut self, wanted: &Receiver<Wanted>) {
        while let Ok(to) = wanted.try_recv() {
            let mut kept = std::mem::take(&mut self.snapshot);
            let snapshot = kept.get(clock::monotonic_ns(), || self.take_snapshot());
            self.snapshot = kept;
            // The client may have gone.
            let _ = to.send(snapshot);
        }
    }

    fn take_snapshot(&mut self) -> Vec<u8> {
        let (mut messages, mut bytes) = (vec![], vec![]);
        for event in *b"OSQ" {
            let body = Body::SystemEvent { event };
            messages.push(Message { locate: 0, tracking: 0, time_ns: 0, body });
        }
        self.books.snapshot(&mut messages);
        for message in messages {
            let mut place = [0; MESSAGE_BYTES_MAX];
            let length = message.write(&mut place);
            glimpse::push(&place[..length], &mut bytes);
        }
        glimpse::push_end(self.lock().next(), &mut bytes);
        bytes
    }

    /// Ends the day and the session.
    #[expect(clippy::disallowed_methods, reason = "the publisher ends")]
    fn end(&mut self) {
        self.events(b"MEC");
        self.flush();
        let (session, sequence) = {
            let store = self.lock();
            (store.session(), store.next())
        };
        let end = Header { session, sequence, count: END_OF_SESSION }.bytes();
        for _ in 0..ENDS {
            for (socket, to) in &self.lines {
                let _ = socket.send_to(&end, to);
            }
            std::thread::sleep(END_PAUSE);
        }
    }
}
