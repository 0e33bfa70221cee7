//! Sockets of the kernel: TCP, UDP, multicast, Unix.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use nm_model::agent::Token;
use nm_model::stack::{Protocol, Stack};
use nm_sys::clock::Deadline;
use nm_sys::poll;
use nm_sys::socket::{self, SocketType};

use crate::address::{self, Address};
use crate::carrier::interface::{Destination, End, Listen, Patience};
use crate::connection_error::ConnectionError;
use crate::error::SystemError;
use crate::handshake::{self, Admission, HandshakeMessage};
use crate::kernel::KernelSockets;
use crate::sockets::{self, Options};
use crate::transport::{CALL_TIMEOUT, Visitor};

/// Most datagrams that are dropped when the peer is known; more than a receive buffer holds.
const STALE_DATAGRAMS_MAX: u32 = 1 << 16;

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Listener {
    address: Address,
    socket: OwnedFd,
    /// An address of the interface that multicast leaves by.
    interface: Option<IpAddr>,
    /// Datagrams and connections that were not the peer's.
    strangers: AtomicU64,
}

/// Connected sockets, whose listener may still have to acknowledge us.
#[derive(Debug)]
pub(crate) struct KernelEnd {
    sockets: KernelSockets,
    needs_handshake: bool,
}

/// A socket to send on and, where that is another, one to receive from.
type Sockets = (OwnedFd, Option<OwnedFd>);

impl KernelEnd {
    fn new(
        stack: Stack,
        sockets: Sockets,
        ipv4: bool,
        token: Token,
    ) -> Result<KernelEnd, ConnectionError> {
        let sockets = KernelSockets::new(stack, sockets, ipv4, token)?;
        Ok(KernelEnd { sockets, needs_handshake: false })
    }
}

impl End for KernelEnd {
    fn handshake(self, peer: &str, patience: &Patience<'_>) -> Result<KernelEnd, ConnectionError> {
        if self.needs_handshake {
            let Patience { message_lengths, limit, cancelled } = *patience;
            let (descriptors, token) = (self.sockets.descriptors(), self.sockets.token());
            handshake::connect(descriptors, (peer, token), message_lengths, limit, cancelled)?;
        }
        Ok(KernelEnd { needs_handshake: false, ..self })
    }

    fn datagram_bytes_max(&self) -> Option<u32> {
        self.sockets.datagram_bytes_max()
    }

    fn with<V: Visitor>(self, _stack: Stack, visitor: V) -> Result<V::Output, ConnectionError> {
        Ok(self.sockets.with(visitor)?)
    }
}

/// Two ends in this process.
pub(crate) fn unix_pair(stack: Stack) -> Result<[KernelEnd; 2], ConnectionError> {
    let (a, b) = socket::unix_pair().map_err(SystemError::during("making a socket pair"))?;
    let end = |fd| KernelEnd::new(stack, (fd, None), false, Token::default());
    Ok([end(a)?, end(b)?])
}

impl Listen for Listener {
    type End = KernelEnd;

    fn bind(stack: Stack, address: &str, options: &Options) -> Result<Listener, ConnectionError> {
        let (address, socket, interface) = match stack.protocol {
            Protocol::Unix => bind_unix(address, options)?,
            Protocol::Multicast => bind_multicast(address, options)?,
            protocol => {
                let local = address::local(address)?;
                let (socket, bound) = sockets::bind(&local, kind(protocol), options, protocol)?;
                (Address::Socket(bound), socket, None)
            }
        };
        Ok(Listener { address, socket, interface, strangers: AtomicU64::new(0) })
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn accept(
        &self,
        stack: Stack,
        admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(KernelEnd, String), ConnectionError> {
        let failed = SystemError::during(format!("listening on {}", self.address));
        let Patience { message_lengths, limit, cancelled } = *patience;
        let deadline = Deadline::after(limit);
        loop {
            if cancelled() {
                return Err(ConnectionError::Cancelled);
            }
            if poll::readable(self.socket.as_raw_fd(), CALL_TIMEOUT).map_err(&failed)?
                && let Some(end) = self.try_accept(stack, admission, message_lengths)?
            {
                return Ok(end);
            }
            if deadline.passed() {
                let (address, strangers) = (self.address(), self.strangers.load(Ordering::Relaxed));
                return Err(ConnectionError::NoPeer { address, limit, strangers });
            }
        }
    }

    fn connect(to: &Destination<'_>) -> Result<(KernelEnd, String), ConnectionError> {
        let Destination { stack, options, limit, .. } = *to;
        let (protocol, token) = (stack.protocol, options.token);
        let failed = SystemError::during(format!("connecting to {} by {protocol}", to.address));
        let (sockets, ipv4) = match (protocol, to.address.parse()?) {
            (Protocol::Tcp, Address::Socket(peer))
            | (Protocol::Udp, Address::Socket(peer) | Address::Xdp(peer)) => {
                let socket = socket::socket(&peer, kind(protocol)).map_err(&failed)?;
                options.apply(&socket, protocol)?;
                socket::connect(&socket, &peer, limit).map_err(&failed)?;
                ((socket, None), peer.is_ipv4())
            }
            (Protocol::Multicast, Address::Group(group, reply_port)) => {
                let interface = address::local(to.local)?.ip();
                let reply_group = SocketAddr::new(group.ip(), reply_port);
                let (receiver, _) = sockets::join_group(reply_group, interface, options)?;
                let sender = sockets::group_sender(group, interface)?;
                ((sender, Some(receiver)), group.is_ipv4())
            }
            (Protocol::Unix, peer @ (Address::Abstract(_) | Address::Path(_))) => {
                let socket = sockets::unix_address(&peer)
                    .and_then(|address| UnixStream::connect_addr(&address))
                    .map_err(&failed)?;
                let socket = OwnedFd::from(socket);
                options.apply(&socket, protocol)?;
                ((socket, None), false)
            }
            _ => {
                let address = to.address.to_string();
                return Err(ConnectionError::WrongAddress { address, protocol });
            }
        };
        let needs_handshake = protocol.datagram_bytes_max().is_some();
        let end = KernelEnd::new(stack, sockets, ipv4, token)?;
        Ok((KernelEnd { needs_handshake, ..end }, to.address.to_string()))
    }
}

impl Listener {
    /// Takes the peer that is there, or none if what was received is not from a peer of ours.
    fn try_accept(
        &self,
        stack: Stack,
        admission: &Admission,
        message_lengths: &[usize],
    ) -> Result<Option<(KernelEnd, String)>, ConnectionError> {
        let accepted = match (self.interface, &self.address) {
            (Some(interface), Address::Group(group, reply_port)) => {
                let reply_group = SocketAddr::new(group.ip(), *reply_port);
                self.accept_multicast(reply_group, interface, admission, message_lengths)?
            }
            _ if stack.protocol == Protocol::Udp => self.accept_udp(admission, message_lengths)?,
            _ => self.accept_stream(admission)?,
        };
        let Some((sockets, peer, ipv4)) = accepted else { return Ok(None) };
        Ok(Some((KernelEnd::new(stack, sockets, ipv4, admission.token)?, peer)))
    }

    fn accept_stream(
        &self,
        admission: &Admission,
    ) -> Result<Option<(Sockets, String, bool)>, ConnectionError> {
        let failed = SystemError::during(format!("listening on {}", self.address));
        let accepted = socket::accept(self.socket.as_fd()).map_err(failed)?;
        let ipv4 = matches!(self.address, Address::Socket(address) if address.is_ipv4());
        if let (Address::Socket(_), Some(_)) = (&self.address, admission.peer) {
            let peer = socket::peer_address(&accepted);
            if !peer.is_ok_and(|peer| admission.allows(peer.ip())) {
                self.strangers.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
        }
        Ok(Some(((accepted, None), format!("the peer of {}", self.address), ipv4)))
    }

    fn accept_udp(
        &self,
        admission: &Admission,
        message_lengths: &[usize],
    ) -> Result<Option<(Sockets, String, bool)>, ConnectionError> {
        let Some(peer) = self.receive_hello(admission)? else { return Ok(None) };
        let failed = SystemError::during(format!("listening on {}", self.address));
        self.connect_to(&peer).map_err(&failed)?;
        let ack = HandshakeMessage::HelloAck(admission.token);
        handshake::send(self.socket.as_raw_fd(), ack, message_lengths).map_err(&failed)?;
        let sockets = (self.socket.try_clone().map_err(&failed)?, None);
        Ok(Some((sockets, peer.to_string(), peer.is_ipv4())))
    }

    fn accept_multicast(
        &self,
        reply_group: SocketAddr,
        interface: IpAddr,
        admission: &Admission,
        message_lengths: &[usize],
    ) -> Result<Option<(Sockets, String, bool)>, ConnectionError> {
        let Some(peer) = self.receive_hello(admission)? else { return Ok(None) };
        let failed = SystemError::during(format!("listening on {}", self.address));
        self.connect_to(&peer).map_err(&failed)?;
        let sender = sockets::group_sender(reply_group, interface)?;
        let ack = HandshakeMessage::HelloAck(admission.token);
        handshake::send(sender.as_raw_fd(), ack, message_lengths).map_err(&failed)?;
        let sockets = (sender, Some(self.socket.try_clone().map_err(&failed)?));
        Ok(Some((sockets, peer.to_string(), reply_group.is_ipv4())))
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
    fn receive_hello(&self, admission: &Admission) -> Result<Option<SocketAddr>, SystemError> {
        let mut buffer = [0; handshake::BYTES_MAX];
        let received =
            socket::receive_from(self.socket.as_raw_fd(), &mut buffer, socket::DONT_WAIT)
                .map(Some)
                .or_else(sockets::would_block)
                .map_err(SystemError::during(format!("listening on {}", self.address)))?;
        let Some((length, source)) = received else { return Ok(None) };
        let is_hello = handshake::decode(&buffer[..length])
            .is_ok_and(|message| admission.is_hello(message, source.ip()));
        if !is_hello {
            self.strangers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(is_hello.then_some(source))
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

fn kind(protocol: Protocol) -> SocketType {
    match protocol.datagram_bytes_max() {
        Some(_) => SocketType::Datagram,
        None => SocketType::Stream,
    }
}

type Bound = (Address, OwnedFd, Option<IpAddr>);

fn bind_unix(address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    let address = match address.starts_with("unix:") {
        true => address.parse()?,
        false => Address::Abstract(address::random_name()),
    };
    let socket = sockets::listen_unix(&address)?;
    options.apply(&socket, Protocol::Unix)?;
    Ok((address, socket, None))
}

fn bind_multicast(address: &str, options: &Options) -> Result<Bound, ConnectionError> {
    let interface = address::local(address)?.ip();
    let group = SocketAddr::new(address::random_group(interface), 0);
    let (socket, group_to_us) = sockets::join_group(group, interface, options)?;
    // Finds a port for the replies that no other socket of the group has.
    let (_, reply_group) = sockets::join_group(group, interface, options)?;
    let address = Address::Group(group_to_us, reply_group.port());
    Ok((address, socket, Some(interface)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Transport, TransportError};
    use std::net::{TcpStream, UdpSocket};
    use std::time::Duration;

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
    const PATIENCE: Patience<'_> =
        Patience { message_lengths: &[], limit: LIMIT, cancelled: &|| false };

    fn bound(stack: &str, address: &str, options: &Options) -> (Stack, Listener) {
        let stack = stack.parse().unwrap();
        (stack, Listener::bind(stack, address, options).unwrap())
    }

    fn from(peer: &str) -> Admission {
        Admission { token: TOKEN, peer: Some(peer.parse().unwrap()) }
    }

    #[test]
    fn udp_listener_answers_only_the_peer_with_the_token() {
        let (stack, listener) = bound("udp-blocking", "0.0.0.0", &Options::default());
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
        let (end, _) = listener.accept(stack, &from("127.0.0.2"), &PATIENCE).unwrap();
        assert_eq!(listener.strangers.load(Ordering::Relaxed), 5);
        stranger.send_to(b"late", at).unwrap();
        peer.send_to(b"data", at).unwrap();
        assert_eq!(end.with(stack, First).unwrap(), b"data");
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
        let (stack, listener) = bound("mcast-blocking", "127.0.0.1", &options);
        let admission = Admission { token: TOKEN, peer: None };
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
        assert!(listener.try_accept(stack, &admission, &[]).unwrap().is_none());
        let quiet = poll::readable(replies.as_raw_fd(), Duration::ZERO).unwrap();
        assert!(!quiet, "no answer to a stranger");
        send(&peer, &hello(TOKEN));
        send(&stranger, b"early");
        let (end, _) = listener.accept(stack, &admission, &PATIENCE).unwrap();
        assert!(poll::readable(replies.as_raw_fd(), LIMIT).unwrap());
        send(&stranger, b"late");
        send(&peer, b"data");
        assert_eq!(end.with(stack, First).unwrap(), b"data");
    }

    #[test]
    fn tcp_listener_accepts_only_the_peer() {
        let (stack, listener) = bound("tcp-blocking", "127.0.0.1", &Options::default());
        let Address::Socket(address) = listener.address else { panic!() };
        let stranger = TcpStream::connect(address).unwrap();
        assert!(listener.try_accept(stack, &from("127.0.0.2"), &[]).unwrap().is_none());
        assert_eq!(listener.strangers.load(Ordering::Relaxed), 1);
        drop(stranger);
        let _peer = TcpStream::connect(address).unwrap();
        assert!(listener.try_accept(stack, &from("127.0.0.1"), &[]).unwrap().is_some());
    }
}
