//! The process of a door: sockets of clients, the link to a gateway, stores, and the clock.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_exchange::link::LinkPoller;
use nm_sys::private_folder::{self, FolderError};
use thiserror::Error;

use crate::door::{Act, ConnectionId, Door};
use crate::gateway::{Gateway, GatewayError};
use crate::limits::{MARKET_ROOM_BYTES, OUTPUT_BYTES_MAX};
use crate::line::Line;
use crate::market::Board;
use crate::settings::Settings;
use crate::store::{Owner, Store, StoreError};
use crate::symbols::Symbols;

/// Longest sleep: heartbeats are not finer.
const NAP: Duration = Duration::from_millis(50);

/// Sleep while a client does not take what is written to it.
const SHORT_NAP: Duration = Duration::from_millis(5);

/// Bytes that one call reads.
const READ_BYTES: usize = 64 << 10;

/// How long a client whose session has ended may take to read the rest, ns.
const LINGER_NS: u64 = 5_000_000_000;

/// After how long a door that has no descriptors accepts again, ns.
const ACCEPT_AGAIN_NS: u64 = 500_000_000;

/// How long clients may take to read the last messages of a door that closes.
const END_LIMIT_NS: u64 = 500_000_000;

/// Tokens of what is waited for; connections have those above.
const LISTENER: ConnectionId = 0;
const DIALER: ConnectionId = 1;
const GATEWAY: ConnectionId = 2;
const MARKET: ConnectionId = 3;
const FIRST_CONNECTION: ConnectionId = 4;

/// Why a door ends.
#[derive(Debug, Error)]
pub enum ServerError {
    /// It cannot listen.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The folder of its stores cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another door has the folder.
    #[error("another door uses the store {}", .0.display())]
    InUse(PathBuf),
    /// A store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An order cannot be reported.
    #[error(
        "{client} has a live order of {symbol}, which neither the sessions file nor the network's \
         instrument master has"
    )]
    LostSymbol {
        /// Whose order it is.
        client: String,
        /// Its symbol.
        symbol: String,
    },
    /// The gateways refuse it for good.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// A system call failed.
    #[error("{action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

fn system(action: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::System { action, source }
}

/// What a door runs with.
#[derive(Debug)]
pub struct Options<P> {
    /// The network's file, which is read again before each attempt to connect.
    pub network: PathBuf,
    /// File of keys, if it is not the one that the network's file names.
    pub credentials: Option<PathBuf>,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Folder of the stores.
    pub store: PathBuf,
    /// Who may log on, and what is traded.
    pub settings: Settings<P>,
    /// Where a follower of the books posts what they show; without it nobody learns of the market.
    pub market: Option<Arc<Board>>,
    /// What is traded, whenever that changes.
    pub symbols: Option<Receiver<Symbols>>,
}

/// A client's socket.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    output: Vec<u8>,
    written: usize,
    /// Whether it is not read, because it has sent too much in this second.
    is_paused: bool,
    /// Since when it is to end once all is written, if it is.
    ending_ns: Option<u64>,
}

/// The store of a session.
#[derive(Debug)]
struct OpenStore {
    store: Store,
    /// Bytes of it when it was made smaller last.
    kept_bytes: u64,
}

/// A door that runs.
struct Server<'a, L: Line> {
    door: Door<L>,
    stores: Vec<OpenStore>,
    store_bytes: u64,
    /// Locked as long as the door runs.
    _lock: File,
    listener: TcpListener,
    /// Since when nobody is accepted, because there were no descriptors.
    full_ns: Option<u64>,
    poller: LinkPoller,
    sockets: BTreeMap<ConnectionId, Socket>,
    next_id: ConnectionId,
    gateway: Gateway,
    market: Option<Arc<Board>>,
    symbols: Option<Receiver<Symbols>>,
    note: &'a mut dyn FnMut(&str),
}

/// ns since 1970.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Runs a door until it is interrupted. `note` gets a line for each thing that an operator should
/// know, the first of which says where it listens.
///
/// # Errors
/// If it cannot begin, or cannot write a store.
pub fn run<L: Line>(
    options: Options<L::Profile>,
    interrupted: &AtomicBool,
    note: &mut dyn FnMut(&str),
) -> Result<(), ServerError> {
    let mut server = Server::<L>::start(options, note)?;
    let mut ready = vec![];
    while !interrupted.load(Ordering::Relaxed) {
        let is_slow = server.sockets.values().any(|it| !it.output.is_empty());
        let nap = if is_slow { SHORT_NAP } else { NAP };
        server.poller.wait(&mut ready, Some(nap)).map_err(system("cannot wait"))?;
        for token in ready.iter().map(|found| found.token) {
            match token {
                LISTENER => server.accept()?,
                DIALER | GATEWAY => server.hear()?,
                MARKET => server.hear_market()?,
                id => server.read(id)?,
            }
        }
        server.tick()?;
    }
    server.end()
}

/// Opens the stores of all sessions, and puts what is in them into the door.
fn open_stores<L: Line>(
    folder: &Path,
    settings: &Settings<L::Profile>,
    door: &mut Door<L>,
) -> Result<Vec<OpenStore>, ServerError> {
    let mut stores = vec![];
    for (line, one) in settings.sessions.iter().enumerate() {
        let (client, venue) = L::names(&one.profile);
        let (client, venue) = (client.to_string(), venue.to_string());
        let owner = Owner { venue, client, session: one.session };
        let (mut store, records) = Store::open(folder, &owner, L::PROTOCOL)?;
        let is_used = !records.is_empty();
        records.into_iter().for_each(|record| door.restore(line, record));
        if let Some(symbol) = door.lost_symbol(line) {
            let (client, symbol) = (owner.client, symbol.to_string());
            return Err(ServerError::LostSymbol { client, symbol });
        }
        if is_used {
            store.rewrite(door.snapshot(line))?;
        }
        let kept_bytes = store.bytes();
        stores.push(OpenStore { store, kept_bytes });
    }
    Ok(stores)
}

/// Locks the folder of the stores.
#[expect(clippy::disallowed_methods, reason = "before there are clients")]
fn lock(folder: &Path) -> Result<File, ServerError> {
    private_folder::claim(folder)?;
    let lock = File::create(folder.join("lock")).map_err(system("cannot lock the store"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::InUse(folder.into())),
        Err(TryLockError::Error(error)) => Err(system("cannot lock the store")(error)),
    }
}

impl<'a, L: Line> Server<'a, L> {
    fn start(
        options: Options<L::Profile>,
        note: &'a mut dyn FnMut(&str),
    ) -> Result<Server<'a, L>, ServerError> {
        let Options { network, credentials, listen, store, settings, market, symbols } = options;
        let lock = lock(&store)?;
        let mut door = Door::new(&settings);
        let stores = open_stores(&store, &settings, &mut door)?;
        let failed = |source| ServerError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let poller = LinkPoller::new().map_err(system("cannot wait"))?;
        let sessions = settings.sessions.iter().map(|one| one.session).collect();
        let gateway = Gateway::new(network, credentials, sessions)?;
        poller.add(&listener, LISTENER).map_err(system("cannot wait"))?;
        poller.add(gateway.waker(), DIALER).map_err(system("cannot wait"))?;
        if let Some(board) = &market {
            poller.add(board.waker(), MARKET).map_err(system("cannot wait"))?;
        }
        note(&format!("listening at {address}"));
        let mut server = Server {
            door,
            stores,
            store_bytes: settings.store_bytes,
            _lock: lock,
            listener,
            full_ns: None,
            poller,
            sockets: BTreeMap::new(),
            next_id: FIRST_CONNECTION,
            gateway,
            market,
            symbols,
            note,
        };
        (0..server.stores.len()).for_each(|line| server.compare_size(line));
        server.gateway.dial();
        Ok(server)
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        loop {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::ConnectionAborted
                    ) =>
                {
                    return Ok(());
                }
                Err(error) => {
                    (self.note)(&format!("nobody is accepted for a moment: {error}"));
                    self.poller.remove_other(&self.listener);
                    self.full_ns = Some(now_ns());
                    return Ok(());
                }
            };
            let id = self.next_id;
            let is_set = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            if is_set.is_err()
                || !self.door.connected(id, nm_wire::Owner::of_address(peer.ip()), now_ns())
            {
                continue;
            }
            self.poller.add(&stream, id).map_err(system("cannot wait"))?;
            self.next_id += 1;
            let (output, written) = (vec![], 0);
            let (is_paused, ending_ns) = (false, None);
            let socket = Socket { stream, output, written, is_paused, ending_ns };
            self.sockets.insert(id, socket);
        }
    }

    /// Reads what a client has sent.
    fn read(&mut self, id: ConnectionId) -> Result<(), ServerError> {
        let Some(socket) = self.sockets.get_mut(&id) else { return Ok(()) };
        let mut bytes = vec![0; READ_BYTES];
        match socket.stream.read(&mut bytes) {
            Ok(count) if count > 0 && socket.ending_ns.is_some() => Ok(()),
            Ok(count) if count > 0 => {
                self.door.received(id, &bytes[..count], now_ns());
                self.act()?;
                self.pause(id);
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Ok(_) | Err(_) => {
                self.remove(id);
                self.door.disconnected(id, now_ns());
                self.act()
            }
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.remove(&id)
            && !socket.is_paused
        {
            self.poller.remove_other(&socket.stream);
        }
    }

    /// Stops reading a client that has sent too much in this second, or reads it again.
    fn pause(&mut self, id: ConnectionId) {
        let is_throttled = self.door.is_throttled(id, now_ns());
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        match (socket.is_paused, is_throttled) {
            (false, true) => {
                self.poller.remove_other(&socket.stream);
                socket.is_paused = true;
            }
            (true, false) => socket.is_paused = self.poller.add(&socket.stream, id).is_err(),
            _ => {}
        }
    }

    /// Handles what the gateway has sent, and links that were made.
    fn hear(&mut self) -> Result<(), ServerError> {
        if self.gateway.take_link(&mut self.poller, GATEWAY)? {
            (self.note)(&format!("connected to gateway {}", self.gateway.index()));
            self.door.link_up(now_ns());
            self.act()?;
        }
        let door = &mut self.door;
        let is_up = self.gateway.receive(|frame| door.received_frame(frame, now_ns()));
        self.act()?;
        if !is_up {
            self.link_down();
        }
        Ok(())
    }

    /// Hands on what books show now.
    fn hear_market(&mut self) -> Result<(), ServerError> {
        if let Some(board) = &self.market {
            self.door.market_changed(board.take(), now_ns());
        }
        self.act()
    }

    /// Says what is wanted of the market, and takes over what is traded now.
    fn tick_market(&mut self) {
        if let Some(board) = &self.market {
            let wanted = self.door.wanted();
            board.want(&wanted);
            self.door.forget_views(&wanted);
        }
        // Only the latest matters.
        if let Some(symbols) = self.symbols.as_ref().and_then(|it| it.try_iter().last()) {
            let traded = symbols.0.len();
            self.door.set_symbols(&Arc::new(symbols));
            (self.note)(&format!("{traded} symbols are traded now"));
        }
    }

    fn link_down(&mut self) {
        (self.note)("the link to the gateway has ended");
        self.door.link_down();
        self.gateway.disconnect(&mut self.poller);
        self.gateway.dial();
    }

    fn tick(&mut self) -> Result<(), ServerError> {
        self.tick_market();
        self.door.tick(now_ns());
        self.act()?;
        if self.full_ns.is_some_and(|since| now_ns().saturating_sub(since) >= ACCEPT_AGAIN_NS) {
            self.full_ns = None;
            self.poller.add(&self.listener, LISTENER).map_err(system("cannot wait"))?;
        }
        let ids: Vec<ConnectionId> = self.sockets.keys().copied().collect();
        for id in ids {
            self.pause(id);
            self.write(id)?;
        }
        if !self.gateway.flush() {
            self.link_down();
        }
        Ok(())
    }

    /// Does what the door says: first it writes what is to be kept, then it sends.
    fn act(&mut self) -> Result<(), ServerError> {
        let mut acts = vec![];
        let mut kept: BTreeMap<usize, Vec<L::Record>> = BTreeMap::new();
        for act in self.door.take_acts() {
            match act {
                Act::Keep(line, record) => kept.entry(line).or_default().push(record),
                act => acts.push(act),
            }
        }
        // Copies first: who gets them may get one twice, and misses none.
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_by_key(|(line, _)| !self.door.gets_copies(*line));
        for (line, records) in kept {
            let is_new = records.iter().any(L::is_reset);
            self.stores[line].store.append(&records)?;
            self.compact(line, is_new)?;
        }
        let mut written = vec![];
        for act in acts {
            match act {
                Act::Keep(..) => {}
                Act::Note(text) => (self.note)(&text),
                Act::SendFrames(frames) => self.gateway.send(&frames),
                Act::Send(id, bytes) => {
                    if let Some(socket) = self.sockets.get_mut(&id) {
                        socket.output.extend_from_slice(&bytes);
                        written.push(id);
                    }
                }
                Act::Close(id) => {
                    if let Some(socket) = self.sockets.get_mut(&id) {
                        socket.ending_ns = Some(now_ns());
                        written.push(id);
                    }
                }
            }
        }
        written.sort_unstable();
        written.dedup();
        written.into_iter().try_for_each(|id| self.write(id))?;
        if !self.gateway.flush() {
            self.link_down();
        }
        Ok(())
    }

    /// Makes a store smaller when it has outgrown its size, or its session has begun again. If that
    /// does not help, it takes no new orders.
    fn compact(&mut self, line: usize, is_new: bool) -> Result<(), ServerError> {
        let OpenStore { store, kept_bytes } = &mut self.stores[line];
        if is_new && *kept_bytes > self.store_bytes / 4 * 3 {
            self.door.forget_ended(line);
        }
        if is_new || store.bytes() > self.store_bytes.max(*kept_bytes * 2) {
            store.rewrite(self.door.snapshot(line))?;
            if self.door.gets_copies(line) && store.bytes() > self.store_bytes / 2 {
                self.door.make_room(line);
                store.rewrite(self.door.snapshot(line))?;
            }
            *kept_bytes = store.bytes();
            self.compare_size(line);
        }
        Ok(())
    }

    fn compare_size(&mut self, line: usize) {
        let kept_bytes = self.stores[line].kept_bytes;
        let is_full = kept_bytes > self.store_bytes / 4 * 3;
        self.door.set_full(line, is_full, kept_bytes > self.store_bytes);
    }

    /// Writes what waits for a client.
    fn write(&mut self, id: ConnectionId) -> Result<(), ServerError> {
        let Some(socket) = self.sockets.get_mut(&id) else { return Ok(()) };
        let is_up = socket.flush();
        let is_done = socket.output.is_empty();
        let is_ending = socket.ending_ns.is_some();
        self.door.set_slow(id, socket.output.len() > MARKET_ROOM_BYTES, now_ns());
        let since_ns = socket.ending_ns.unwrap_or(u64::MAX);
        let is_late = now_ns().saturating_sub(since_ns) >= LINGER_NS;
        if is_up && !is_late && !(is_ending && is_done) {
            return Ok(());
        }
        self.remove(id);
        if !is_ending {
            self.door.disconnected(id, now_ns());
            return self.act();
        }
        Ok(())
    }

    /// Tells all clients that the door closes, and gives them a moment to read it.
    #[expect(clippy::disallowed_methods, reason = "the door ends, within a limit")]
    fn end(&mut self) -> Result<(), ServerError> {
        self.door.end(now_ns());
        self.act()?;
        let until_ns = now_ns() + END_LIMIT_NS;
        while !self.sockets.is_empty() && now_ns() < until_ns {
            let ids: Vec<ConnectionId> = self.sockets.keys().copied().collect();
            ids.into_iter().try_for_each(|id| self.write(id))?;
            self.sockets.retain(|_, socket| socket.ending_ns.is_some());
            std::thread::sleep(SHORT_NAP);
        }
        Ok(())
    }
}

impl Socket {
    /// Writes as much as the socket takes; whether it still works.
    fn flush(&mut self) -> bool {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return false,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.output.drain(..self.written);
                    self.written = 0;
                    return self.output.len() <= OUTPUT_BYTES_MAX;
                }
                Err(_) => return false,
            }
        }
        self.output.clear();
        self.written = 0;
        true
    }
}
