//! Streams that links use, and the sockets at which they are accepted.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nm_sys::{socket, unix};

use super::address::Address;
use super::shm::ShmStream;

/// Buffer that the kernel is asked for in each direction, bytes.
const SOCKET_BYTES: u32 = 4 << 20;

/// A TCP peer that has been silent for so long is probed (keep-alive). An idle peer answers, and
/// may stay idle.
const SILENCE: Duration = Duration::from_secs(2);

/// A TCP peer that acknowledges neither probes nor data for so long is taken for dead, as when its
/// host has lost power (`TCP_USER_TIMEOUT`).
pub const PEER_TIMEOUT: Duration = Duration::from_secs(2 * SILENCE.as_secs());

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
    /// Configures it for a link: non-blocking, with large buffers, and without delay.
    pub(super) fn configure(&self) -> io::Result<()> {
        if !matches!(self, Stream::Shm(_)) {
            // Smaller buffers than asked for are slower, not wrong.
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

    /// Latency of one way, ns, as [`super::Link::latency_ns`] says.
    pub(super) fn latency_ns(&self) -> Option<u64> {
        match self {
            Stream::Tcp(stream) => {
                let round_trip = socket::round_trip(stream.as_fd()).ok().flatten()?;
                Some((round_trip.as_nanos() as u64 / 2).max(1))
            }
            Stream::Unix(_) | Stream::Shm(_) => Some(0),
        }
    }

    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Shm(stream) => stream.read(bytes),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Shm(stream) => stream.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Shm(stream) => stream.as_fd(),
        }
    }
}

/// A non-blocking listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
    /// A Unix socket over which shared memory is handed over.
    Shm(UnixListener),
}

impl Listener {
    /// Listens. A Unix socket that a killed process left at the path is replaced.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Address::Unix(path) => unix::listen(path).map(Listener::Unix),
            Address::Shm(path) => unix::listen(path).map(Listener::Shm),
        }
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Listener::Shm(listener) => {
                listener.accept().and_then(|(socket, _)| ShmStream::accept(socket)).map(Stream::Shm)
            }
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if is_transient(&error) => Ok(None),
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

/// Whether no connection waits now, or the one that did was closed by its peer.
fn is_transient(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    let kind = error.kind();
    matches!(kind, WouldBlock | Interrupted | ConnectionAborted | ConnectionReset | BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_link_has_a_measured_latency_and_a_link_within_a_host_none() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Listener::Tcp(socket) = &listener else { panic!("{listener:?}") };
        let address = Address::Tcp(socket.local_addr().unwrap());
        let near = Stream::connect(&address, Duration::from_secs(10)).unwrap();
        let far = listener.accept().unwrap().expect("it is connected");
        for end in [near, far] {
            let latency_ns = end.latency_ns().expect("the handshake is measured");
            assert!((1..1_000_000_000).contains(&latency_ns), "{latency_ns}");
        }
        let (unix, _) = UnixStream::pair().unwrap();
        assert_eq!(Stream::Unix(unix).latency_ns(), Some(0));
    }

    /// A peer whose host has vanished sends nothing, so the kernel has to look for it.
    #[test]
    fn an_idle_tcp_link_is_probed_at_both_ends() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let Listener::Tcp(socket) = &listener else { panic!("{listener:?}") };
        let address = socket.local_addr().unwrap();
        let near = Stream::connect(&Address::Tcp(address), Duration::from_secs(10)).unwrap();
        let far = listener.accept().unwrap().expect("it is connected");
        near.configure().unwrap();
        far.configure().unwrap();
        let port = format!(":{:04X}", address.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        // `sl local remote state queues timer:when`; state 1 is established, timer 2 keep-alive.
        let timers: Vec<&str> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.len() > 5 && words[3] == "01")
            .filter(|words| words[1].ends_with(&port) || words[2].ends_with(&port))
            .map(|words| words[5].split(':').next().unwrap())
            .collect();
        assert_eq!(timers, ["02", "02"], "{table}");
    }
}
