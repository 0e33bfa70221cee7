//! Links between clients and nodes: FIFO streams of frames over TCP, Unix sockets or shared memory,
//! without blocking.
//!
//! A link reads what is there in one call, hands the frames on in place, and writes what it was
//! given in one call ([`Link::flush`]): under load, many frames share a call.

mod ring;
mod watch;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nm_sys::socket;

use crate::wire::{self, HEADER_BYTES, Header};

pub use ring::{SHM_RING_BYTES, ShmStream};
pub use watch::LinkPoller;

/// Room that the kernel is asked for in each direction, bytes.
const SOCKET_BYTES: u32 = 4 << 20;

/// A peer that has been silent for so long is asked whether it is there; one that does not answer
/// for twice as long has gone, as when its host has lost its power.
const SILENCE: Duration = Duration::from_secs(2);

/// Bytes that one call may read.
const READ_BYTES: usize = 256 << 10;

/// Bytes that may wait to be written: a peer that lets more pile up is cut off.
pub const WAITING_BYTES_MAX: usize = 256 << 20;

/// Where a node listens: `HOST:PORT` with a numeric host, `unix:PATH`, or `shm:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// A Unix socket at which shared memory is handed over.
    Shm(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let path = |path: &str| match path {
            "" => Err(format!("an address `{text}` has no path")),
            path => Ok(PathBuf::from(path)),
        };
        match (text.strip_prefix("unix:"), text.strip_prefix("shm:")) {
            (Some(rest), _) => path(rest).map(Address::Unix),
            (_, Some(rest)) => path(rest).map(Address::Shm),
            _ => text.parse().map(Address::Tcp).map_err(|_| {
                format!(
                    "`{text}` is no address: it is like `127.0.0.1:5001`, `unix:/run/node` or \
                     `shm:/run/node`"
                )
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Shm(path) => write!(f, "shm:{}", path.display()),
        }
    }
}

/// A connected stream.
#[derive(Debug)]
pub enum Stream {
    /// TCP, small messages sent at once.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// Shared memory.
    Shm(ShmStream),
}

impl Stream {
    /// Connects, for at most `limit`.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(address: &Address, limit: Duration) -> io::Result<Stream> {
        match address {
            Address::Tcp(address) => TcpStream::connect_timeout(address, limit).map(Stream::Tcp),
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Address::Shm(path) => {
                let lifeline = UnixStream::connect(path)?;
                ShmStream::take(lifeline, limit).map(Stream::Shm)
            }
        }
    }

    /// Makes it ready for a link: not blocking, with room, and without delay.
    fn prepare(&self) -> io::Result<()> {
        if !matches!(self, Stream::Shm(_)) {
            // Less room than wished for is slower, not wrong.
            let _ = socket::set_buffers(self.as_fd(), SOCKET_BYTES);
        }
        match self {
            Stream::Tcp(stream) => {
                socket::set_peer_timeout(stream.as_fd(), SILENCE)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)
            }
            Stream::Unix(stream) => stream.set_nonblocking(true),
            Stream::Shm(_) => Ok(()),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Shm(ring) => ring.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Shm(ring) => ring.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Shm(ring) => ring.as_fd(),
        }
    }
}

/// A socket that listens, without blocking.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
    /// A Unix socket at which shared memory is handed over.
    Shm(UnixListener),
}

impl Listener {
    /// Listens. What a killed predecessor left at a Unix path is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Address::Unix(path) => bind_unix(path).map(Listener::Unix),
            Address::Shm(path) => bind_unix(path).map(Listener::Shm),
        }
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Listener::Shm(listener) => {
                listener.accept().and_then(|(stream, _)| ShmStream::offer(stream)).map(Stream::Shm)
            }
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) | Listener::Shm(listener) => listener.as_fd(),
        }
    }
}

/// Listens at a path that nobody listens at.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether an error only says that there is nothing now, or that who came has left again.
fn is_passing(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    let kind = error.kind();
    matches!(kind, WouldBlock | Interrupted | ConnectionAborted | ConnectionReset | BrokenPipe)
}

/// Why a link is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkError(pub String);

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A frame as it came, to be changed and sent on.
#[derive(Debug)]
pub struct ReceivedFrame<'a> {
    /// Its header.
    pub header: Header,
    body_bytes: usize,
    /// All of it.
    pub bytes: &'a mut [u8],
}

impl ReceivedFrame<'_> {
    /// Its body, without padding.
    pub fn body(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.body_bytes]
    }
}

/// Bytes that came and are not handled yet: whole frames first, then the beginning of one.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// The next whole frame. Its bytes may be changed, and are gone with the next call.
    ///
    /// # Errors
    /// If what comes next is no frame.
    pub fn next_frame(&mut self) -> Result<Option<ReceivedFrame<'_>>, LinkError> {
        let start = self.start;
        let (header, body_bytes, length) = match wire::read(&self.bytes[start..self.end]) {
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => (frame.header, frame.body.len(), frame.bytes.len()),
            Err(error) => return Err(LinkError(error.to_string())),
        };
        self.start += length;
        let bytes = &mut self.bytes[start..start + length];
        Ok(Some(ReceivedFrame { header, body_bytes, bytes }))
    }

    /// Room for at least `bytes` behind what is there.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.bytes.len() - self.end < bytes {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < bytes {
            self.bytes.resize(self.end + bytes, 0);
        }
        &mut self.bytes[self.end..]
    }
}

/// A link.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    /// What came.
    pub input: Input,
    /// What is to be written, in order.
    pub output: Vec<u8>,
    written: usize,
}

impl Link {
    /// A link over a stream.
    ///
    /// # Errors
    /// What the system says of the stream.
    pub fn new(stream: Stream) -> io::Result<Link> {
        stream.prepare()?;
        Ok(Link { stream, input: Input::default(), output: vec![], written: 0 })
    }

    /// Reads what is there, in one call.
    ///
    /// # Errors
    /// If the peer ended the stream, or it failed.
    pub fn receive(&mut self) -> Result<(), LinkError> {
        let room = self.input.room(READ_BYTES);
        match self.stream.read(room) {
            Ok(0) => Err(LinkError("the peer ended it".to_string())),
            Ok(count) => {
                self.input.end += count;
                Ok(())
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(LinkError(error.to_string())),
        }
    }

    /// Writes what the kernel takes; whether all of it went.
    ///
    /// # Errors
    /// If the stream failed, or too much waits.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.waits();
                }
                Err(error) => return Err(LinkError(error.to_string())),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(true)
    }

    fn waits(&mut self) -> Result<bool, LinkError> {
        let waiting = self.output.len() - self.written;
        if waiting > WAITING_BYTES_MAX {
            return Err(LinkError(format!("the peer does not read: {waiting} bytes wait for it")));
        }
        if self.written > waiting {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(false)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameKind;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["127.0.0.1:5001", "[::1]:80", "unix:/tmp/a node", "shm:/tmp/b"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "shm:", "localhost:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn frames_cross_a_slow_link_whole_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut from = Link::new(Stream::Unix(a)).unwrap();
        let mut to = Link::new(Stream::Unix(b)).unwrap();
        let (frames, mut came) = (2_000, 0);
        for seq in 0..frames {
            let header = Header { client_seq: seq, ..Header::new(FrameKind::Request) };
            wire::write(&header, b"body", 100 + seq as usize * 7, &mut from.output);
        }
        let mut all_went = from.flush().unwrap();
        assert!(!all_went, "more than the kernel takes");
        while came < frames {
            to.receive().unwrap();
            while let Some(frame) = to.input.next_frame().unwrap() {
                assert_eq!((frame.header.client_seq, frame.body()), (came, &b"body"[..]));
                came += 1;
            }
            all_went = from.flush().unwrap();
        }
        assert!(all_went);
        from.output.extend_from_slice(&[9; 100]);
        from.flush().unwrap();
        drop(from);
        to.receive().unwrap();
        assert!(to.input.next_frame().is_err(), "no frame");
        assert!(to.receive().is_err(), "the end");
    }
}
