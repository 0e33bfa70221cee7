//! A connection, and the one over kernel sockets as a transport with its mode built in.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nm_model::stack::{Mode, Protocol, Stack};
use nm_model::{Failure, FailureKind};
use nm_ring::EndpointParts;
use nm_sys::poll::{EpollOne, SelectOne};
use nm_sys::socket;

use crate::greeting::{self, Word};
use crate::shm::Shm;
use crate::wait::{Blocking, Multiplexed, Patience, Poll, Spin, Wait};
use crate::xdp::Half;
use crate::xdp::tcp::{Joined, XdpTcp};
use crate::{Fault, SLICE, Transport, failure};

/// µs that a sleeping receive spins on the device in mode `busy-poll`; the value that the kernel's
/// documentation recommends.
pub(crate) const BUSY_POLL_US: u32 = 50;

/// Two ends that have found each other, not yet bound to a way of waiting.
#[derive(Debug)]
pub struct Connection {
    stack: Stack,
    carrier: Carrier,
    /// The peer's address, for sentences.
    peer: String,
}

/// What a connection goes over.
#[derive(Debug)]
enum Carrier {
    Kernel {
        sockets: Sockets,
        ipv4: bool,
        /// Whether the listener has yet to welcome us.
        must_knock: bool,
    },
    Memory(EndpointParts),
    /// AF_XDP, beside a kernel socket that reserves the port; the half goes while it is greeted.
    Frames {
        kernel: OwnedFd,
        half: Option<Half>,
    },
    /// TCP of our own over AF_XDP.
    Segments(Box<Joined>),
}

/// One socket, or two where multicast goes out by one and comes in by another.
#[derive(Debug)]
struct Sockets {
    sender: OwnedFd,
    receiver: Option<OwnedFd>,
}

impl Sockets {
    fn sender(&self) -> RawFd {
        self.sender.as_raw_fd()
    }

    fn receiver(&self) -> RawFd {
        self.receiver.as_ref().unwrap_or(&self.sender).as_raw_fd()
    }

    /// The options that the stack's protocol and mode stand for.
    fn prepare(&self, stack: Stack) -> Result<(), Failure> {
        let Sockets { sender, receiver } = self;
        let failed = |e: io::Error| failure::of(&e, format!("setting up {}", stack));
        for fd in [Some(sender), receiver.as_ref()].into_iter().flatten() {
            socket::set_timeouts(fd.as_fd(), SLICE).map_err(failed)?;
            if stack.mode == Mode::BusyPoll {
                socket::set_busy_poll(fd.as_fd(), BUSY_POLL_US).map_err(|error| {
                    failure::of(&error, "setting SO_BUSY_POLL")
                        .hint("run as root (CAP_NET_ADMIN), or raise net.core.busy_read to 50")
                })?;
            }
        }
        if stack.protocol == Protocol::Tcp {
            socket::set_no_delay(sender.as_fd()).map_err(failed)?;
        }
        Ok(())
    }

    fn mtu(&self, stack: Stack, ipv4: bool) -> io::Result<u32> {
        if stack.protocol == Protocol::Unix {
            return Err(io::ErrorKind::Unsupported.into());
        }
        socket::route_mtu(self.sender.as_fd(), ipv4)
    }

    fn settings(&self, stack: Stack, ipv4: bool) -> BTreeMap<String, String> {
        let fd = self.sender.as_fd();
        let receiver = self.receiver.as_ref().unwrap_or(&self.sender).as_fd();
        let mut settings = BTreeMap::new();
        let mut add = |name: &str, value: io::Result<String>| {
            if let Ok(value) = value {
                settings.insert(name.to_string(), value);
            }
        };
        let bytes = |value: io::Result<u32>| value.map(|bytes| format!("{bytes} B"));
        add("send buffer", bytes(socket::send_buffer(fd)));
        add("receive buffer", bytes(socket::receive_buffer(receiver)));
        if stack.protocol == Protocol::Tcp {
            add("congestion control", socket::congestion(fd));
            add("MSS", bytes(socket::max_segment(fd)));
        }
        add("MTU", bytes(self.mtu(stack, ipv4)));
        settings
    }
}

/// What is done over a transport whose type is chosen at run time: a closure for any transport.
pub trait Visitor {
    /// What it comes to.
    type Output;

    /// Does it.
    fn visit<T: Transport>(self, transport: T) -> Self::Output;
}

impl Connection {
    pub(crate) fn new(
        stack: Stack,
        (sender, receiver): (OwnedFd, Option<OwnedFd>),
        peer: String,
        ipv4: bool,
        must_knock: bool,
    ) -> Result<Connection, Failure> {
        let sockets = Sockets { sender, receiver };
        sockets.prepare(stack)?;
        let carrier = Carrier::Kernel { sockets, ipv4, must_knock };
        Ok(Connection { stack, carrier, peer })
    }

    pub(crate) fn over_memory(stack: Stack, parts: EndpointParts, peer: String) -> Connection {
        Connection { stack, carrier: Carrier::Memory(parts), peer }
    }

    /// An end over AF_XDP, beside the kernel's socket of the same address.
    pub(crate) fn over_xdp(
        stack: Stack,
        kernel: OwnedFd,
        peer: SocketAddr,
        xdp: Half,
    ) -> Result<Connection, Failure> {
        let sockets = Sockets { sender: kernel, receiver: None };
        sockets.prepare(stack)?;
        let carrier = Carrier::Frames { kernel: sockets.sender, half: Some(xdp) };
        Ok(Connection { stack, carrier, peer: format!("xdp:{peer}") })
    }

    /// An end of a TCP connection of our own over AF_XDP.
    pub(crate) fn over_segments(stack: Stack, joined: Joined, peer: SocketAddr) -> Connection {
        Connection { stack, carrier: Carrier::Segments(Box::new(joined)), peer: peer.to_string() }
    }

    /// Two ends in this process, connected by Unix stream sockets.
    ///
    /// # Errors
    /// What the system says.
    pub fn unix_pair(mode: Mode) -> Result<(Connection, Connection), Failure> {
        let (a, b) = socket::unix_pair().map_err(|e| failure::of(&e, "making a socket pair"))?;
        let stack = Stack::new(Protocol::Unix, mode);
        let end = |fd| Connection::new(stack, (fd, None), "unix pair".to_string(), false, false);
        Ok((end(a)?, end(b)?))
    }

    /// The stack of this end.
    pub fn stack(&self) -> Stack {
        self.stack
    }

    /// The peer's address as text.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Waits until the listener answers, where the protocol itself makes no connection (UDP and
    /// multicast). `lengths` are those of the probe's messages.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if nobody answers within `limit`.
    pub fn greet(
        &mut self,
        lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        match &mut self.carrier {
            Carrier::Frames { kernel, half } => {
                if let Some(alone) = half.take() {
                    let kernel = kernel.as_raw_fd();
                    *half = Some(alone.knock(kernel, &self.peer, lengths, limit, cancelled)?);
                }
            }
            Carrier::Kernel { sockets, must_knock, .. } if *must_knock => {
                let sockets = (sockets.sender(), sockets.receiver());
                greeting::knock(sockets, &self.peer, lengths, limit, cancelled)?;
                *must_knock = false;
            }
            Carrier::Kernel { .. } | Carrier::Memory(_) | Carrier::Segments(_) => {}
        }
        Ok(())
    }

    /// Largest datagram that leaves in one piece, bytes, where the route's MTU is known.
    pub fn datagram_bytes(&self) -> Option<u32> {
        let Carrier::Kernel { sockets, ipv4, .. } = &self.carrier else { return None };
        let header_bytes = if *ipv4 { 28 } else { 48 };
        sockets.mtu(self.stack, *ipv4).ok()?.checked_sub(header_bytes)
    }

    /// Does `visitor` over this connection with a transport of fixed type.
    ///
    /// # Errors
    /// What the system says while getting ready to wait.
    pub fn with<V: Visitor>(self, visitor: V) -> Result<V::Output, Failure> {
        let stack = self.stack;
        match self.carrier {
            Carrier::Memory(parts) if stack.mode == Mode::Spin => {
                Ok(visitor.visit(Shm::<false>::new(parts)))
            }
            Carrier::Memory(parts) => Ok(visitor.visit(Shm::<true>::new(parts))),
            Carrier::Segments(joined) if stack.mode == Mode::Spin => {
                Ok(visitor.visit(XdpTcp::<true>::new(*joined)))
            }
            Carrier::Segments(joined) => Ok(visitor.visit(XdpTcp::<false>::new(*joined))),
            Carrier::Frames { kernel, half: Some(half) } => half.with(stack.mode, kernel, visitor),
            Carrier::Frames { half: None, .. } => Err(Failure::new(
                FailureKind::Peer,
                format!("the peer of {} was never met", self.peer),
            )),
            Carrier::Kernel { sockets, ipv4, .. } => {
                let open = Open { stack, sockets, ipv4 };
                match stack.protocol {
                    Protocol::Udp | Protocol::Multicast => open.with_mode::<V, true>(visitor),
                    _ => open.with_mode::<V, false>(visitor),
                }
            }
        }
    }
}

/// Kernel sockets that are about to be bound to a way of waiting.
struct Open {
    stack: Stack,
    sockets: Sockets,
    ipv4: bool,
}

impl Open {
    fn with_mode<V: Visitor, const DATAGRAM: bool>(self, visitor: V) -> Result<V::Output, Failure> {
        match self.stack.mode {
            Mode::Blocking | Mode::BusyPoll => self.go::<V, Blocking, DATAGRAM>(visitor),
            Mode::Spin => self.go::<V, Spin, DATAGRAM>(visitor),
            Mode::Select => self.go::<V, Multiplexed<SelectOne, false>, DATAGRAM>(visitor),
            Mode::SelectSpin => self.go::<V, Multiplexed<SelectOne, true>, DATAGRAM>(visitor),
            Mode::Poll => self.go::<V, Multiplexed<Poll, false>, DATAGRAM>(visitor),
            Mode::PollSpin => self.go::<V, Multiplexed<Poll, true>, DATAGRAM>(visitor),
            Mode::Epoll => self.go::<V, Multiplexed<EpollOne, false>, DATAGRAM>(visitor),
            Mode::EpollSpin => self.go::<V, Multiplexed<EpollOne, true>, DATAGRAM>(visitor),
        }
    }

    fn go<V: Visitor, W: Wait, const DATAGRAM: bool>(
        self,
        visitor: V,
    ) -> Result<V::Output, Failure> {
        let receiver = self.sockets.receiver();
        let wait = W::new(receiver)
            .map_err(|error| failure::of(&error, format!("setting up {}", self.stack)))?;
        Ok(visitor.visit(Link::<W, DATAGRAM> {
            sender: self.sockets.sender(),
            receiver,
            sent: 0,
            filled: 0,
            stack: self.stack,
            ipv4: self.ipv4,
            wait,
            sockets: self.sockets,
        }))
    }
}

/// A connection with a fixed way of waiting.
#[derive(Debug)]
pub struct Link<W, const DATAGRAM: bool> {
    sender: RawFd,
    receiver: RawFd,
    /// Bytes of the current message that have gone, after a call that timed out.
    sent: usize,
    /// Bytes of the current message that are there, after a call that timed out.
    filled: usize,
    stack: Stack,
    ipv4: bool,
    /// Before the sockets: what watches a descriptor goes before the descriptor.
    wait: W,
    sockets: Sockets,
}

impl<W: Wait, const DATAGRAM: bool> Link<W, DATAGRAM> {
    #[inline(always)]
    fn receive_with(&mut self, buffer: &mut [u8], flags: i32) -> Result<usize, Fault> {
        let mut patience = Patience::default();
        loop {
            if self.wait.before(self.receiver).map_err(|error| Fault::of(&error))? {
                match socket::receive(self.receiver, buffer, flags) {
                    Ok(0) if !DATAGRAM => return Err(Fault::Closed),
                    Ok(length) => return Ok(length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => match Fault::of(&error) {
                        Fault::TimedOut => {}
                        fault => return Err(fault),
                    },
                }
            }
            if !W::SPINS || patience.spent() {
                return Err(Fault::TimedOut);
            }
        }
    }
}

impl<W: Wait, const DATAGRAM: bool> Transport for Link<W, DATAGRAM> {
    const DATAGRAM: bool = DATAGRAM;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        loop {
            let rest = &message[self.sent.min(message.len())..];
            match socket::send(self.sender, rest, 0) {
                Ok(length) if DATAGRAM || length == rest.len() => {
                    self.sent = 0;
                    return Ok(());
                }
                Ok(length) => self.sent += length,
                Err(error) => return Err(full_or(&error)),
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        if DATAGRAM {
            return self.receive_with(buffer, W::FLAGS);
        }
        let wait_all = if W::FLAGS == 0 { socket::WAIT_ALL } else { 0 };
        loop {
            let filled = self.filled.min(buffer.len());
            let length = self.receive_with(&mut buffer[filled..], W::FLAGS | wait_all)?;
            if filled + length == buffer.len() {
                self.filled = 0;
                return Ok(buffer.len());
            }
            self.filled = filled + length;
        }
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.receive_with(buffer, W::FLAGS)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        match socket::send(self.sender, bytes, socket::DONT_WAIT) {
            Ok(length) => Ok(Some(length)),
            Err(error) => none_or(full_or(&error)),
        }
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        match socket::receive(self.receiver, buffer, socket::DONT_WAIT) {
            Ok(0) if !DATAGRAM => Err(Fault::Closed),
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => none_or(Fault::of(&error)),
        }
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        self.wait.within(self.receiver, limit).map_err(|error| Fault::of(&error))
    }

    fn end_sending(&mut self, lengths: &[usize]) {
        // Whether the peer is still there to hear it does not matter.
        if DATAGRAM {
            for _ in 0..3 {
                let _ = greeting::say(self.sender, Word::Bye, lengths);
            }
        } else {
            let _ = socket::shutdown_write(self.sender);
        }
    }

    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        if !DATAGRAM {
            return Ok(());
        }
        match greeting::say(self.sender, Word::Welcome, lengths).map_err(|e| full_or(&e)) {
            Err(Fault::TimedOut) => Ok(()),
            said => said,
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        self.sockets.settings(self.stack, self.ipv4)
    }

    fn retransmits(&self) -> Option<u64> {
        if DATAGRAM { None } else { socket::retransmits(self.sockets.sender.as_fd()).ok() }
    }
}

/// No buffers in the kernel or the device's queue is the same as no room.
#[cold]
fn full_or(error: &io::Error) -> Fault {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => Fault::TimedOut,
        _ => Fault::of(error),
    }
}

#[cold]
fn none_or(fault: Fault) -> Result<Option<usize>, Fault> {
    match fault {
        Fault::TimedOut => Ok(None),
        fault => Err(fault),
    }
}
