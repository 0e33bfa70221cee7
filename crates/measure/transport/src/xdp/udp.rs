//! UDP over AF_XDP.
//!
//! The kernel socket of the same address sends the first hello, so the kernel finds the way to the
//! peer (routes, ARP, neighbour discovery). It also receives the report that the peer's port is
//! closed. The peer's hardware address is that of the first frame received from it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nm_model::Doubt;
use nm_model::agent::Token;
use nm_model::setting::Settings;
use nm_model::stack::Mode;
use nm_sys::clock::Deadline;
use nm_sys::xdp::{FlowFilter, PACKET_BYTES_MAX};
use nm_sys::{poll, socket};

use super::endpoint::{self, XdpEndpoint};
use super::error::XdpError;
use crate::error::SystemError;
use crate::frame::{self, FrameAddresses, FrameWriter};
use crate::handshake::{self, Admission, HandshakeMessage};
use crate::transport::{CALL_TIMEOUT, Transport, TransportError};
use crate::wait::SpinLimit;

/// Pause between two hellos.
const HELLO_INTERVAL: Duration = Duration::from_millis(20);

/// How often a close message is sent, because each may be lost.
const CLOSE_COPIES: u32 = 3;

/// Receives the next handshake message that is available, with the addresses of its frame.
fn try_receive_handshake(
    endpoint: &mut XdpEndpoint,
) -> io::Result<Option<(HandshakeMessage, FrameAddresses)>> {
    let verify = endpoint.verify;
    let received = endpoint.socket.receive(|bytes| {
        let datagram = frame::decode(bytes, verify).ok()?;
        Some((handshake::decode(datagram.payload).ok()?, datagram.addresses))
    })?;
    Ok(received.flatten())
}

/// Waits for a message that is `expected`, for at most `limit`.
fn receive_handshake(
    endpoint: &mut XdpEndpoint,
    expected: impl Fn(HandshakeMessage, IpAddr) -> bool,
    limit: Duration,
) -> io::Result<Option<FrameAddresses>> {
    let deadline = Deadline::after(limit);
    loop {
        while let Some((received, addresses)) = try_receive_handshake(endpoint)? {
            if expected(received, addresses.source.ip()) {
                return Ok(Some(addresses));
            }
        }
        if deadline.passed() {
            return Ok(None);
        }
        endpoint.socket.wait(deadline.remaining())?;
    }
}

/// The link, if the kernel socket got datagrams: then the link delivers them to another queue.
fn other_queue(endpoint: &XdpEndpoint, kernel: &OwnedFd) -> Option<String> {
    let readable = poll::readable(kernel.as_raw_fd(), Duration::ZERO);
    matches!(readable, Ok(true)).then(|| endpoint.link.clone())
}

/// A listening endpoint, until its peer connects.
#[derive(Debug)]
pub(crate) struct XdpUdpListener(Mutex<Option<XdpEndpoint>>);

impl XdpUdpListener {
    /// Opens an endpoint on the address of a bound kernel socket.
    pub fn open(local: SocketAddr, mode: Mode) -> Result<XdpUdpListener, XdpError> {
        let endpoint = XdpEndpoint::open(local, &FlowFilter::udp(local), mode)?;
        Ok(XdpUdpListener(Mutex::new(Some(endpoint))))
    }

    /// Waits for the peer's hello and acknowledges it. `kernel` is the socket that has the port.
    pub fn accept(
        &self,
        (kernel, admission): (&OwnedFd, &Admission),
        message_lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<ConnectedUdp, XdpError> {
        let endpoint = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut endpoint) = endpoint else { return Err(XdpError::AlreadyAccepted) };
        let failed = SystemError::during("waiting for the peer by AF_XDP");
        let deadline = Deadline::after(limit);
        while !deadline.passed() {
            if cancelled() {
                return Err(XdpError::Cancelled);
            }
            let is_hello = |message, source| admission.is_hello(message, source);
            let hello = receive_handshake(&mut endpoint, is_hello, CALL_TIMEOUT);
            let Some(addresses) = hello.map_err(&failed)? else { continue };
            let kernel = kernel.try_clone().map_err(&failed)?;
            socket::connect(&kernel, &addresses.source, CALL_TIMEOUT).map_err(&failed)?;
            let mut connected = ConnectedUdp::new(endpoint, kernel, &addresses, admission.token)?;
            let mut buffer = [0; handshake::BYTES_MAX];
            let ack = HandshakeMessage::HelloAck(admission.token);
            let ack = handshake::encode(ack, message_lengths, &mut buffer);
            connected.send(ack).map_err(&failed)?;
            return Ok(connected);
        }
        Err(XdpError::NoPeer {
            address: format!("xdp:{}", endpoint.local),
            limit,
            other_queue: other_queue(&endpoint, kernel),
        })
    }
}

/// An endpoint with its peer.
#[derive(Debug)]
pub(crate) struct ConnectedUdp {
    endpoint: XdpEndpoint,
    peer: SocketAddr,
    writer: FrameWriter,
    /// Largest frame that the link takes.
    frame_bytes_max: usize,
    kernel: OwnedFd,
    /// The secret of both ends, for handshake messages.
    token: Token,
}

impl ConnectedUdp {
    /// Sends the hello through the kernel until the listener's acknowledgement is received as a
    /// frame.
    pub fn connect(
        mut endpoint: XdpEndpoint,
        kernel: OwnedFd,
        (peer, token): (&str, Token),
        message_lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<ConnectedUdp, XdpError> {
        let failed = SystemError::during(format!("connecting to {peer}"));
        let deadline = Deadline::after(limit);
        while !deadline.passed() {
            if cancelled() {
                return Err(XdpError::Cancelled);
            }
            handshake::send(kernel.as_raw_fd(), HandshakeMessage::Hello(token), message_lengths)
                .map_err(&failed)?;
            let is_ack = |message, _| message == HandshakeMessage::HelloAck(token);
            let ack = receive_handshake(&mut endpoint, is_ack, HELLO_INTERVAL);
            if let Some(addresses) = ack.map_err(&failed)? {
                return ConnectedUdp::new(endpoint, kernel, &addresses, token);
            }
        }
        Err(XdpError::NoReply {
            peer: peer.to_string(),
            limit,
            other_queue: other_queue(&endpoint, &kernel),
        })
    }

    /// Connects `endpoint` with the peer that sent a frame with these addresses.
    fn new(
        endpoint: XdpEndpoint,
        kernel: OwnedFd,
        received: &FrameAddresses,
        token: Token,
    ) -> Result<ConnectedUdp, XdpError> {
        let (local, peer) = (endpoint.local, received.source);
        let reply = FrameAddresses {
            source_link: endpoint.hardware,
            destination_link: received.source_link,
            source: local,
            destination: peer,
        };
        let writer = FrameWriter::new(&reply).ok_or(XdpError::AddressFamilies { local, peer })?;
        let frame_bytes_max = PACKET_BYTES_MAX.min(endpoint.mtu + frame::LINK_BYTES);
        Ok(ConnectedUdp { endpoint, peer, writer, frame_bytes_max, kernel, token })
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The kernel socket of the same address.
    pub fn kernel(&self) -> &OwnedFd {
        &self.kernel
    }

    /// Sends a datagram; false if there is no room.
    #[inline(always)]
    fn send(&mut self, payload: &[u8]) -> io::Result<bool> {
        let length = self.writer.frame_bytes(payload.len());
        if length > self.frame_bytes_max {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let writer = &self.writer;
        self.endpoint.socket.send(length, |frame| writer.write(payload, frame))
    }

    /// Takes the next frame, if one is available and it is a datagram of the peer.
    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let (peer, verify) = (self.peer, self.endpoint.verify);
        let received = self.endpoint.socket.receive(|bytes| {
            let decoded = frame::decode(bytes, verify).ok();
            let datagram = decoded.filter(|datagram| datagram.addresses.source == peer)?;
            let length = datagram.payload.len().min(buffer.len());
            buffer[..length].copy_from_slice(&datagram.payload[..length]);
            Some(length)
        })?;
        Ok(received.flatten())
    }
}

/// UDP over AF_XDP that spins on its ring, or sleeps in `poll`.
#[derive(Debug)]
pub struct XdpUdpTransport<const SPINS: bool> {
    connected: ConnectedUdp,
}

impl<const SPINS: bool> XdpUdpTransport<SPINS> {
    pub(crate) fn new(connected: ConnectedUdp) -> XdpUdpTransport<SPINS> {
        XdpUdpTransport { connected }
    }

    /// What a timeout means: the peer has gone if its host reported that the port is closed.
    #[cold]
    fn timeout_error(&self) -> TransportError {
        let mut stray = [0; 1];
        let kernel = self.connected.kernel.as_raw_fd();
        match socket::receive(kernel, &mut stray, socket::DONT_WAIT).map_err(TransportError::from) {
            Err(TransportError::Closed) => TransportError::Closed,
            _ => TransportError::TimedOut,
        }
    }
}

impl<const SPINS: bool> Transport for XdpUdpTransport<SPINS> {
    const DATAGRAM: bool = true;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let mut spin_limit = SpinLimit::default();
        while !self.connected.send(message)? {
            if spin_limit.count_spin() {
                return Err(self.timeout_error());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        let mut spin_limit = SpinLimit::default();
        loop {
            if let Some(length) = self.try_receive(buffer)? {
                return Ok(length);
            }
            let ready = SPINS || self.connected.endpoint.socket.wait(CALL_TIMEOUT)?;
            if !ready || spin_limit.count_spin() {
                return Err(self.timeout_error());
            }
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.receive(buffer)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        let sent = self.connected.send(bytes)?;
        Ok(sent.then_some(bytes.len()))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        Ok(self.connected.receive(buffer)?)
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        if SPINS {
            return Ok(true);
        }
        Ok(self.connected.endpoint.socket.wait(limit)?)
    }

    fn end_sending(&mut self, message_lengths: &[usize]) {
        // By the kernel, which still sends it when the endpoint is dropped a moment later. A peer
        // that has already gone needs no close message, so errors do not matter.
        for _ in 0..CLOSE_COPIES {
            let kernel = self.connected.kernel.as_raw_fd();
            let _ = handshake::send(kernel, HandshakeMessage::Close, message_lengths);
        }
    }

    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        // By the kernel, to which a closed port is reported.
        let kernel = self.connected.kernel.as_raw_fd();
        let ack = HandshakeMessage::HelloAck(self.connected.token);
        match handshake::send(kernel, ack, message_lengths).map_err(TransportError::from) {
            Err(TransportError::Closed) => Err(TransportError::Closed),
            _ => Ok(()),
        }
    }

    fn settings(&self) -> Settings {
        self.connected.endpoint.report().settings
    }

    fn doubts(&self) -> Vec<Doubt> {
        endpoint::doubts(&self.connected.endpoint.socket, self.connected.endpoint.local)
    }
}
