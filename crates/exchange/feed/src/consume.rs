//! The consumer: it joins both lines, fills gaps, and builds every book.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inputs, SyncSender, sync_channel};
use std::time::Duration;

use nm_codec::Random;
use nm_sys::clock::{self, Deadline};
use nm_sys::socket::{self, SocketType};
use thiserror::Error;

use crate::books::Books;
use crate::glimpse::{self, Snapshot};
use crate::itch::Message;
use crate::mold::{HEADER_BYTES, Session};
use crate::receiver::{Act, Counts, Receiver};
use crate::requests::is_passing;

/// Datagrams that wait to be read; more of them wait in the sockets.
const INPUTS_MAX: usize = 16_384;

/// Longest sleep.
const NAP: Duration = Duration::from_millis(5);

/// How long a socket is waited for before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// How long a snapshot may take to begin or go on.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(10);

/// Pause after a snapshot that could not be taken, ns.
const AGAIN_NS: u64 = 200_000_000;

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Bytes that a line's socket keeps, if the system allows it.
const RECEIVE_BYTES: u32 = 4 << 20;

/// Listens at an address, or a multicast group that comes at an interface.
///
/// # Errors
/// If the address cannot be used.
pub fn listen(address: SocketAddr, interface: IpAddr) -> Result<UdpSocket, ConsumeError> {
    join(address, interface).map_err(|source| ConsumeError::Listen { address, source })
}

/// Why a consumer ends.
#[derive(Debug, Error)]
pub enum ConsumeError {
    /// It cannot listen.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// What a consumer runs with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where each line comes: an own address, or a multicast group.
    pub lines: [SocketAddr; 2],
    /// The address of the interface at which multicast comes.
    pub interface: IpAddr,
    /// Where the feed answers requests.
    pub requests: SocketAddr,
    /// Where it gives snapshots.
    pub snapshots: SocketAddr,
    /// Of 1 000 packets of each line, so many are lost and so many come twice, as if the network
    /// did that.
    pub lost: u32,
    /// See [`Options::lost`].
    pub doubled: u32,
    /// Seed of which these are.
    pub seed: u64,
}

/// What comes of reading a snapshot: its session, with which message the feed goes on, and the
/// messages; or why it cannot be used.
type SnapshotRead = Result<(Session, u64, Vec<Message>), String>;

/// A consumer that runs.
pub struct Consumer {
    options: Options,
    receiver: Receiver,
    /// The books.
    pub books: Books,
    /// Messages that contradicted the books.
    pub wrong: u64,
    /// Packets that were lost on purpose.
    pub dropped: u64,
    asks: UdpSocket,
    inputs: Inputs<(bool, Vec<u8>)>,
    snapshots: Option<Inputs<SnapshotRead>>,
    snapshot_ns: u64,
    random: Random,
    /// What somebody should know.
    pub notes: Vec<String>,
}

impl Consumer {
    /// Joins the lines.
    ///
    /// # Errors
    /// If an address cannot be used.
    pub fn start(options: Options, stop: &Arc<AtomicBool>) -> Result<Consumer, ConsumeError> {
        let (to, inputs) = sync_channel(INPUTS_MAX);
        let any: SocketAddr = match options.requests.ip() {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            IpAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        let listen = |address| move |source| ConsumeError::Listen { address, source };
        let asks = UdpSocket::bind(any).map_err(listen(any))?;
        for address in options.lines {
            let socket = join(address, options.interface).map_err(listen(address))?;
            read_all(socket, true, to.clone(), Arc::clone(stop))?;
        }
        read_all(asks.try_clone()?, false, to, Arc::clone(stop))?;
        Ok(Consumer {
            random: Random::new(options.seed),
            options,
            receiver: Receiver::default(),
            books: Books::default(),
            wrong: 0,
            dropped: 0,
            asks,
            inputs,
            snapshots: None,
            snapshot_ns: 0,
            notes: vec![],
        })
    }

    /// Takes what has come, for a moment.
    pub fn turn(&mut self) {
        let Ok(first) = self.inputs.recv_timeout(NAP) else { return self.act() };
        let now_ns = clock::monotonic_ns();
        let (mut next, mut left) = (Some(first), 256);
        while let Some((is_line, bytes)) = next {
            for _ in 0..self.copies(is_line, &bytes) {
                self.on_packet(&bytes, now_ns);
            }
            left -= 1;
            next = if left > 0 { self.inputs.try_recv().ok() } else { None };
        }
        self.act();
    }

    /// How often a packet comes.
    fn copies(&mut self, is_line: bool, bytes: &[u8]) -> usize {
        if !is_line || bytes.len() <= HEADER_BYTES {
            return 1;
        }
        if self.random.below(1_000) < u64::from(self.options.lost) {
            self.dropped += 1;
            return 0;
        }
        1 + usize::from(self.random.below(1_000) < u64::from(self.options.doubled))
    }

    fn on_packet(&mut self, bytes: &[u8], now_ns: u64) {
        let Consumer { receiver, books, wrong, notes, .. } = self;
        let session = receiver.session();
        let taken = receiver.on_packet(bytes, now_ns, |message| {
            apply(books, message, wrong, notes);
        });
        if let Err(fault) = taken {
            notes.push(fault.to_string());
        }
        if session.is_some() && session != receiver.session() {
            notes.push("the feed has begun another session".to_string());
        }
    }

    fn act(&mut self) {
        let now_ns = clock::monotonic_ns();
        self.take_snapshot(now_ns);
        match self.receiver.act(now_ns) {
            None => {}
            Some(Act::Request(header)) => {
                // It is sent again if no answer comes.
                let _ = self.asks.send_to(&header.bytes(), self.options.requests);
            }
            Some(Act::Snapshot) if self.snapshots.is_none() && now_ns >= self.snapshot_ns => {
                self.snapshots = self.begin_snapshot().ok();
                self.snapshot_ns = now_ns + AGAIN_NS;
            }
            Some(Act::Snapshot) => {}
        }
    }

    fn begin_snapshot(&self) -> io::Result<Inputs<SnapshotRead>> {
        let (to, snapshot) = sync_channel(1);
        let from = self.options.snapshots;
        let read = move || {
            let read = read_snapshot(from).map_err(|why| format!("a snapshot at {from}: {why}"));
            drop(to.send(read));
        };
        std::thread::Builder::new().name("snapshot".to_string()).spawn(read)?;
        Ok(snapshot)
    }

    /// Goes on from a snapshot that has come.
    fn take_snapshot(&mut self, now_ns: u64) {
        let Some(read) = self.snapshots.as_ref().and_then(|it| it.try_recv().ok()) else { return };
        self.snapshots = None;
        let (session, next, messages) = match read {
            Ok(snapshot) => snapshot,
            Err(why) => return self.notes.push(why),
        };
        let (mut books, mut wrong) = (Books::default(), 0);
        let notes = &mut self.notes;
        for message in &messages {
            if let Err(why) = books.apply(message) {
                wrong += 1;
                notes.push(why.to_string());
            }
        }
        // Early messages are applied to the books of the snapshot.
        let before = std::mem::replace(&mut self.books, books);
        let books = &mut self.books;
        let resumed = self.receiver.resume(session, next, now_ns, |message| {
            apply(books, message, &mut wrong, notes);
        });
        match resumed {
            true => self.wrong += wrong,
            false => self.books = before,
        }
    }

    /// Takes all that has come, and waits until nothing that exists is missing, for at most so
    /// long.
    pub fn catch_up(&mut self, limit: Duration) {
        let deadline = Deadline::after(limit);
        self.turn();
        while !self.receiver.is_complete() && !deadline.passed() {
            self.turn();
        }
    }

    /// Where it stands.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// What has come.
    pub fn counts(&self) -> Counts {
        self.receiver.counts
    }
}

fn apply(books: &mut Books, bytes: &[u8], wrong: &mut u64, notes: &mut Vec<String>) {
    let applied = match Message::read(bytes) {
        Ok(message) => books.apply(&message).map_err(|wrong| wrong.to_string()),
        Err(fault) => Err(fault.to_string()),
    };
    if let Err(why) = applied {
        *wrong += 1;
        if *wrong <= 10 {
            notes.push(why);
        }
    }
}

/// A socket at an own address, or in a multicast group, in which other programs may be as well.
fn join(address: SocketAddr, interface: IpAddr) -> io::Result<UdpSocket> {
    let fd = socket::socket(&address, SocketType::Datagram)?;
    let group = address.ip();
    if group.is_multicast() {
        socket::set_reuse_address(fd.as_fd())?;
    }
    socket::set_buffers(fd.as_fd(), RECEIVE_BYTES)?;
    socket::bind(&fd, &address)?;
    if group.is_multicast() {
        socket::join_group(fd.as_fd(), group, interface)?;
    }
    Ok(UdpSocket::from(fd))
}

/// Reads a socket in a thread.
fn read_all(
    socket: UdpSocket,
    is_line: bool,
    to: SyncSender<(bool, Vec<u8>)>,
    stop: Arc<AtomicBool>,
) -> io::Result<()> {
    socket.set_read_timeout(Some(WAIT))?;
    let read = move || {
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        while !stop.load(Ordering::Relaxed) {
            match socket.recv_from(&mut bytes) {
                Ok((length, _)) if to.send((is_line, bytes[..length].to_vec())).is_err() => return,
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("line".to_string()).spawn(read).map(drop)
}

/// Reads a snapshot.
fn read_snapshot(from: SocketAddr) -> SnapshotRead {
    let failed = |error: io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&from, SNAPSHOT_LIMIT).map_err(failed)?;
    stream.set_read_timeout(Some(SNAPSHOT_LIMIT)).map_err(failed)?;
    stream.set_write_timeout(Some(SNAPSHOT_LIMIT)).map_err(failed)?;
    stream.write_all(&glimpse::login()).map_err(failed)?;
    let (mut snapshot, mut bytes) = (Snapshot::default(), vec![0; DATAGRAM_BYTES_MAX]);
    loop {
        let length = stream.read(&mut bytes).map_err(failed)?;
        if length == 0 {
            return Err("the server has closed the connection".to_string());
        }
        let next = snapshot.on_bytes(&bytes[..length]).map_err(|refusal| refusal.to_string())?;
        if let (Some(next), Some(session)) = (next, snapshot.session) {
            return Ok((session, next, snapshot.messages));
        }
    }
}
