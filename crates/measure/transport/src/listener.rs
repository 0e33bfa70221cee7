//! The listening end of a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nm_model::stack::{Protocol, Stack};
use nm_ring::window::WindowListener;
use nm_sys::clock::Deadline;
use nm_sys::poll;
use nm_sys::socket::{self, SocketType};

use crate::address::{self, Address};
use crate::connection::{Connection, ConnectionError};
use crate::error::SystemError;
use crate::handshake::{self, Admission, HandshakeMessage};
use crate::shm::SharedMemoryError;
use crate::sockets::{self, Options};
use crate::transport::CALL_TIMEOUT;
use crate::xdp::tcp::XdpTcpListener;
use crate::xdp::udp::XdpUdpListener;
use crate::{guest_memory, shm, xdp};

/// Most datagrams that are dropped when the peer is known; more than a receive buffer holds.
const STALE_DATAGRAMS_MAX: u32 = 1 << 16;

/// A socket that waits for one peer.
#[derive(Debug)]
pub struct Listener {
    stack: Stack,
    address: Address,
    socket: OwnedFd,
    backend: Backend,
    admission: Admission,
    /// Datagrams and connections that were not the peer's.
    strangers: AtomicU64,
}

/// What a listener needs besides its socket.
#[derive(Debug)]
enum Backend {
    /// The socket alone.
    Socket,
    /// An address of the interface that multicast leaves by.
    Multicast(IpAddr),
    /// The descriptor that [`Address::Descriptor`] names; the peer opens it, we keep it open.
    SharedMemory { _descriptor: OwnedFd },
    /// A part of the memory that two guests share.
    GuestMemory(WindowListener),
    /// The endpoint over AF_XDP whose port the socket reserves.
    XdpUdp(Box<XdpUdpListener>),
    /// The same for TCP.
    XdpTcp(Box<XdpTcpListener>),
}

impl Listener {
    /// Listens on `address`: an IP address with or without port for TCP and UDP, that of the
    /// interface for multicast; for Unix sockets `unix:@NAME` or `unix:/PATH`, and anything else
    /// gives a random name. Shared memory chooses its own address.
    ///
    /// # Errors
    /// See [`ConnectionError`], such as that the port is in use.
    pub fn bind(
        stack: Stack,
        address: &str,
        options: &Options,
    ) -> Result<Listener, ConnectionError> {
        let (address, socket, backend) = match stack.protocol {
            Protocol::Unix => bind_unix(address, options)?,
            Protocol::Tcp => bind_ip(stack, address, SocketType::Stream, options)?,
            Protocol::Udp => bind_ip(stack, address, SocketType::Datagram, options)?,
            Protocol::Multicast => bind_multicast(address, options)?,
            Protocol::Xdp => bind_xdp_udp(stack, address, options)?,
            Protocol::XdpTcp => bind_xdp_tcp(stack, address, options)?,
            Protocol::Shm => bind_shared_memory(stack)?,
            protocol @ Protocol::Cpu => return Err(ConnectionError::NoTransport { protocol }),
        };
        let admission = Admission { token: options.token, peer: None };
        Ok(Listener { stack, address, socket, backend, admission, strangers: AtomicU64::new(0) })
    }

    /// Accepts only a peer with this IP address, where peers have one.
    pub fn only_from(&mut self, peer: IpAddr) {
        self.admission.peer = Some(peer.to_canonical());
    }

    /// Where the peer connects to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits for the peer. `message_lengths` are those of the probe's messages.
    ///
    /// # Errors
    /// If nobody connects within `limit`, if it was cancelled, and those of the system calls.
    pub fn accept(
        &self,
        message_lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, ConnectionError> {
        match &self.backend {
            Backend::XdpUdp(listener) => {
                let own = (&self.socket, &self.admission);
                let connected = listener.accept(own, message_lengths, limit, cancelled)?;
                return Ok(Connection::over_xdp(self.stack, connected)?);
            }
            Backend::XdpTcp(listener) => {
                let (established, peer) = listener.accept(&self.socket, limit, cancelled)?;
                if !self.admission.allows(peer.ip()) {
                    // This endpoint takes one connection, which ends here.
                    let address = self.address();
                    return Err(ConnectionError::NoPeer { address, limit, strangers: 1 });
                }
                return Ok(Connection::over_xdp_tcp(self.stack, established, peer));
            }
            Backend::GuestMemory(listener) => {
                return self.accept_guest(listener, limit, cancelled);
            }
            Backend::Socket | Backend::Multicast(_) | Backend::SharedMemory { .. } => {}
        }
        let failed = SystemError::during(format!("listening on {}", self.address));
        let deadline = Deadline::after(limit);
        loop {
            if cancelled() {
                return Err(ConnectionError::Cancelled);
            }
            if poll::readable(self.socket.as_raw_fd(), CALL_TIMEOUT).map_err(&failed)?
                && let Some(connection) = self.try_accept(message_lengths)?
            {
                return Ok(connection);
            }
            if deadline.passed() {
                let (address, strangers) = (self.address(), self.strangers.load(Ordering::Relaxed));
                return Err(ConnectionError::NoPeer { address, limit, strangers });
            }
        }
    }

    fn accept_guest(
        &self,
        listener: &WindowListener,
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, ConnectionError> {
        let accepted = guest_memory::accept(listener, limit, cancelled);
        match accepted.map_err(SharedMemoryError::from)? {
            Some(parts) => Ok(Connection::over_memory(self.stack, parts, self.peer())),
            None if cancelled() => Err(ConnectionError::Cancelled),
            None => Err(ConnectionError::NoPeer { address: self.address(), limit, strangers: 0 }),
        }
    }

    /// Takes the peer that is there, or none if what was received is not from a peer of ours.
    fn try_accept(&self, message_lengths: &[usize]) -> Result<Option<Connection>, ConnectionError> {
        match (&self.backend, &self.address) {
            (Backend::Multicast(interface), Address::Group(group, reply_port)) => {
                let reply_group = SocketAddr::new(group.ip(), *reply_port);
                self.accept_multicast(reply_group, *interface, message_lengths)
            }
            (Backend::SharedMemory { .. }, _) => {
                let accepted = self.accept_socket()?;
                let parts = shm::accept(accepted)?;
                Ok(parts.map(|parts| Connection::over_memory(self.stack, parts, self.peer())))
            }
            _ if self.stack.protocol == Protocol::Udp => self.accept_udp(message_lengths),
            _ => {
                let accepted = self.accept_socket()?;
                let ipv4 = matches!(self.address, Address::Socket(address) if address.is_ipv4());
                if let (Address::Socket(_), Some(_)) = (&self.address, self.admission.peer) {
                    let peer = socket::peer_address(&accepted);
                    if !peer.is_ok_and(|peer| self.admission.allows(peer.ip())) {
                        self.strangers.fetch_add(1, Ordering::Relaxed);
                        return Ok(None);
                    }
                }
                self.over_kernel((accepted, None), self.peer(), ipv4).map(Some)
            }
        }
    }

    fn accept_udp(&self, message_lengths: &[usize]) -> Result<Option<Connection>, ConnectionError> {
        let Some(peer) = self.receive_hello()? else { return Ok(None) };
        let failed = SystemError::during(format!("listening on {}", self.address));
        self.connect_to(&peer).map_err(&failed)?;
        let ack = HandshakeMessage::HelloAck(self.admission.token);
        handshake::send(self.socket.as_raw_fd(), ack, message_lengths).map_err(&failed)?;
        let sockets = (self.socket.try_clone().map_err(&failed)?, None);
        self.over_kernel(sockets, peer.to_string(), peer.is_ipv4()).map(Some)
    }

    fn accept_multicast(
        &self,
        reply_group: SocketAddr,
        interface: IpAddr,
        message_lengths: &[usize],
    ) -> Result<Option<Connection>, ConnectionError> {
        let Some(peer) = self.receive_hello()? else { return Ok(None) };
        let failed = SystemError::during(format!("listening on {}", self.address));
        self.connect_to(&peer).map_err(&failed)?;
        let sender = sockets::group_sender(reply_group, interface)?;
        let ack = HandshakeMessage::HelloAck(self.admission.token);
        handshake::send(sender.as_raw_fd(), ack, message_lengths).map_err(&failed)?;
        let sockets = (sender, Some(self.socket.try_clone().map_err(&failed)?));
        self.over_kernel(sockets, peer.to_string(), reply_group.is_ipv4()).map(Some)
    }

    fn over_kernel(
        &self,
        sockets: (OwnedFd, Option<OwnedFd>),
        peer: String,
        ipv4: bool,
    ) -> Result<Connection, ConnectionError> {
        let token = self.admission.token;
        Ok(Connection::over_kernel(self.stack, sockets, peer, ipv4, token, false)?)
    }

    /// Makes the kernel drop datagrams of all others, and drops those that came before. The peer
    /// has sent nothing but hellos, since it waits for their acknowledgement.
    fn connect_to(&self, peer: &SocketAddr) -> io::Result<()> {
        socket::connect(&self.socket, peer, CALL_TIMEOUT)?;
        for _ in 0..STALE_DATAGRAMS_MAX {
            let stale = socket::receive(self.socket.as_raw_fd(), &mut [0], socket::DONT_WAIT);
            if stale.map(Some).or_else(sockets::would_block)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// The peer that sent the next datagram, if that is its hello.
    fn receive_hello(&self) -> Result<Option<SocketAddr>, SystemError> {
        let mut buffer = [0; handshake::BYTES_MAX];
        let received =
            socket::receive_from(self.socket.as_raw_fd(), &mut buffer, socket::DONT_WAIT)
                .map(Some)
                .or_else(sockets::would_block)
                .map_err(SystemError::during(format!("listening on {}", self.address)))?;
        let Some((length, source)) = received else { return Ok(None) };
        let is_hello = handshake::decode(&buffer[..length])
            .is_ok_and(|message| self.admission.is_hello(message, source.ip()));
        if !is_hello {
            self.strangers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(is_hello.then_some(source))
    }

    fn accept_socket(&self) -> Result<OwnedFd, SystemError> {
        socket::accept(self.socket.as_fd())
            .map_err(SystemError::during(format!("listening on {}", self.address)))
    }

    /// The peer's name where it has no address of its own.
    fn peer(&self) -> String {
        format!("the peer of {}", self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Path(path) = &self.address {
            // Somebody else may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

type Bound = (Address, OwnedFd, Backend);

fn bind_unix(address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    let address = match address.starts_with("unix:") {
        true => address.parse()?,
        false => Address::Abstract(address::random_name()),
    };
    let socket = sockets::listen_unix(&address)?;
    options.apply(&socket, Protocol::Unix)?;
    Ok((address, socket, Backend::Socket))
}

fn bind_ip(
    stack: Stack,
    address: &str,
    kind: SocketType,
    options: &Options,
) -> Result<Bound, ConnectionError> {
    let local = address::local(address)?;
    let (socket, bound) = sockets::bind(&local, kind, options, stack.protocol)?;
    Ok((Address::Socket(bound), socket, Backend::Socket))
}

fn bind_multicast(address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    let interface = address::local(address)?.ip();
    let group = SocketAddr::new(address::random_group(interface), 0);
    let (socket, group_to_us) = sockets::join_group(group, interface, options)?;
    // Finds a port for the replies that no other socket of the group has.
    let (_, reply_group) = sockets::join_group(group, interface, options)?;
    let address = Address::Group(group_to_us, reply_group.port());
    Ok((address, socket, Backend::Multicast(interface)))
}

fn bind_xdp_udp(stack: Stack, address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    xdp::endpoint::check_mode(stack)?;
    let local = address::local(address)?;
    let (socket, bound) = sockets::bind(&local, SocketType::Datagram, options, stack.protocol)?;
    let listener = XdpUdpListener::open(bound, stack.mode)?;
    Ok((Address::Xdp(bound), socket, Backend::XdpUdp(Box::new(listener))))
}

fn bind_xdp_tcp(stack: Stack, address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    xdp::endpoint::check_mode(stack)?;
    let (socket, own) = sockets::reserve(&address::local(address)?)?;
    let listener = XdpTcpListener::open(own, stack.mode, options)?;
    Ok((Address::Socket(own), socket, Backend::XdpTcp(Box::new(listener))))
}

fn bind_shared_memory(stack: Stack) -> Result<Bound, ConnectionError> {
    shm::check_mode(stack)?;
    if guest_memory::is_in_use() {
        let (address, listener) = guest_memory::listen().map_err(SharedMemoryError::from)?;
        let failed = SystemError::during("listening by shm between guests");
        // There is no socket to wait at; this one is for nobody.
        let (unused, _) = socket::unix_pair().map_err(failed)?;
        return Ok((address, unused, Backend::GuestMemory(listener)));
    }
    let (socket, descriptor) = shm::listen().map_err(SystemError::during("listening by shm"))?;
    let address = Address::Descriptor(std::process::id(), descriptor.as_raw_fd().unsigned_abs());
    Ok((address, socket, Backend::SharedMemory { _descriptor: descriptor }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::connect;
    use crate::failure;
    use crate::transport::{Transport, TransportError, Visitor};
    use nm_model::FailureKind;
    use nm_model::agent::Token;
    use nm_model::stack::Mode;
    use std::net::{TcpStream, UdpSocket};

    fn shared_memory_pair(mode: &str) -> (Connection, Connection) {
        let stack: Stack = format!("shm-{mode}").parse().unwrap();
        let options = Options::default();
        let listener = Listener::bind(stack, "127.0.0.1", &options).unwrap();
        let limit = Duration::from_secs(5);
        let connecting = connect(stack, &listener.address(), "127.0.0.1", &options, limit);
        (listener.accept(&[], limit, &|| false).unwrap(), connecting.unwrap())
    }

    struct Sender(&'static [u8]);

    impl Visitor for Sender {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            transport.send(self.0).unwrap();
            transport.end_sending(&[]);
            // Keeps this end open until the other one has closed.
            while transport.receive(&mut [0]) == Err(TransportError::TimedOut) {}
        }
    }

    struct Receiver(&'static [u8]);

    impl Visitor for Receiver {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            let mut buffer = vec![0; self.0.len()];
            while let Err(error) = transport.receive(&mut buffer) {
                assert_eq!(error, TransportError::TimedOut);
            }
            assert_eq!(buffer, self.0);
            assert_eq!(transport.receive(&mut [0]), Err(TransportError::Closed));
            assert_eq!(transport.try_receive(&mut [0]), Err(TransportError::Closed));
        }
    }

    #[test]
    fn shared_memory_listener_is_reached_and_bytes_arrive() {
        for mode in ["blocking", "spin"] {
            let (server, client) = shared_memory_pair(mode);
            std::thread::scope(|scope| {
                scope.spawn(|| client.with(Sender(b"over the rings")).unwrap());
                server.with(Receiver(b"over the rings")).unwrap();
            });
        }
    }

    /// A hello with this token.
    fn hello(token: Token) -> Vec<u8> {
        let mut buffer = [0; handshake::BYTES_MAX];
        handshake::encode(HandshakeMessage::Hello(token), &[], &mut buffer).to_vec()
    }

    /// Receives the first datagram that is not a handshake message.
    struct First;

    impl Visitor for First {
        type Output = Vec<u8>;

        fn visit<T: Transport>(self, mut transport: T) -> Vec<u8> {
            let mut buffer = [0; 64];
            loop {
                match transport.receive(&mut buffer) {
                    Ok(length) if handshake::decode(&buffer[..length]).is_err() => {
                        return buffer[..length].to_vec();
                    }
                    Ok(_) | Err(TransportError::TimedOut) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    const TOKEN: Token = Token([1; 16]);
    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn udp_listener_answers_only_the_peer_with_the_token() {
        let options = Options { token: TOKEN, ..Options::default() };
        let stack = "udp-blocking".parse().unwrap();
        let mut listener = Listener::bind(stack, "0.0.0.0", &options).unwrap();
        listener.only_from("127.0.0.2".parse().unwrap());
        let Address::Socket(address) = listener.address else { panic!() };
        let at = SocketAddr::new("127.0.0.1".parse().unwrap(), address.port());
        let socket = |ip: &str| {
            let socket = UdpSocket::bind((ip, 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (stranger, peer) = (socket("127.0.0.1"), socket("127.0.0.2"));
        // One byte, what was a hello before there were tokens, and the token from another address.
        let tokenless = [b"nearmetlh".to_vec(), vec![0; 15]].concat();
        for datagram in [vec![0], tokenless.clone(), hello(TOKEN)] {
            stranger.send_to(&datagram, at).unwrap();
        }
        for datagram in [tokenless, hello(Token([2; 16])), hello(TOKEN)] {
            peer.send_to(&datagram, at).unwrap();
        }
        // Queued before the peer is known, so the kernel cannot drop it.
        stranger.send_to(b"early", at).unwrap();
        let connection = listener.accept(&[], LIMIT, &|| false).unwrap();
        assert_eq!(listener.strangers.load(Ordering::Relaxed), 5);
        stranger.send_to(b"late", at).unwrap();
        peer.send_to(b"data", at).unwrap();
        assert_eq!(connection.with(First).unwrap(), b"data");
        let mut answer = [0; 64];
        let length = peer.recv(&mut answer).unwrap();
        let ack = handshake::decode(&answer[..length]);
        assert_eq!(ack, Ok(HandshakeMessage::HelloAck(TOKEN)));
        assert!(length <= hello(TOKEN).len(), "no answer is longer than its hello");
        let silence = stranger.recv(&mut answer).unwrap_err();
        assert_eq!(silence.kind(), io::ErrorKind::WouldBlock, "no answer to a stranger");
    }

    #[test]
    fn multicast_listener_receives_only_from_the_peer_with_the_token() {
        let options = Options { token: TOKEN, ..Options::default() };
        let stack = "mcast-blocking".parse().unwrap();
        let listener = Listener::bind(stack, "127.0.0.1", &options).unwrap();
        let Address::Group(group, reply_port) = listener.address else { panic!() };
        let interface = "127.0.0.1".parse().unwrap();
        let sender = || sockets::group_sender(group, interface).unwrap();
        let send = |from: &OwnedFd, bytes: &[u8]| {
            socket::send(from.as_raw_fd(), bytes, 0).unwrap();
        };
        let replies = SocketAddr::new(group.ip(), reply_port);
        let (replies, _) = sockets::join_group(replies, interface, &options).unwrap();
        let (stranger, peer) = (sender(), sender());
        send(&stranger, &hello(Token::default()));
        assert!(listener.try_accept(&[]).unwrap().is_none());
        let quiet = poll::readable(replies.as_raw_fd(), Duration::ZERO).unwrap();
        assert!(!quiet, "no answer to a stranger");
        send(&peer, &hello(TOKEN));
        send(&stranger, b"early");
        let connection = listener.accept(&[], LIMIT, &|| false).unwrap();
        assert!(poll::readable(replies.as_raw_fd(), LIMIT).unwrap());
        send(&stranger, b"late");
        send(&peer, b"data");
        assert_eq!(connection.with(First).unwrap(), b"data");
    }

    #[test]
    fn tcp_listener_accepts_only_the_peer() {
        let stack = "tcp-blocking".parse().unwrap();
        let mut listener = Listener::bind(stack, "127.0.0.1", &Options::default()).unwrap();
        listener.only_from("127.0.0.2".parse().unwrap());
        let Address::Socket(address) = listener.address else { panic!() };
        let stranger = TcpStream::connect(address).unwrap();
        assert!(listener.try_accept(&[]).unwrap().is_none());
        assert_eq!(listener.strangers.load(Ordering::Relaxed), 1);
        drop(stranger);
        listener.only_from("127.0.0.1".parse().unwrap());
        let _peer = TcpStream::connect(address).unwrap();
        assert!(listener.try_accept(&[]).unwrap().is_some());
    }

    #[test]
    fn shared_memory_refuses_other_ways_of_waiting() {
        for &mode in Mode::ALL {
            let stack = Stack::new(Protocol::Shm, mode);
            let bound = Listener::bind(stack, "127.0.0.1", &Options::default());
            assert_eq!(bound.is_ok(), matches!(mode, Mode::Blocking | Mode::Spin), "{mode}");
        }
    }

    #[test]
    fn shared_memory_without_a_listener_is_a_failure_with_a_hint() {
        let error = shm::connect(u32::MAX, 1, "shm:4294967295/1").unwrap_err();
        assert!(matches!(error, SharedMemoryError::Connect { .. }));
        let failure = failure::from_connection(error.into());
        assert_eq!(failure.kind, FailureKind::Peer);
        assert!(failure.hint.unwrap().contains("one host"));
        // A descriptor that is not a listening socket.
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd() as u32;
        assert!(shm::connect(std::process::id(), number, "shm:X").is_err());
    }
}
