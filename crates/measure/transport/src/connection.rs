//! A connection: two ends that know each other, not yet bound to a way of waiting.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nm_model::agent::Token;
use nm_model::stack::{Mode, Protocol, Stack};
use nm_ring::EndpointParts;
use nm_sys::socket;

use crate::address::AddressError;
use crate::error::SystemError;
use crate::handshake::{self, HandshakeError};
use crate::kernel::{self, KernelSockets};
use crate::shm::{SharedMemoryError, SharedMemoryTransport};
use crate::sockets::SocketError;
use crate::transport::Visitor;
use crate::xdp::endpoint::XdpEndpoint;
use crate::xdp::error::XdpError;
use crate::xdp::tcp::{EstablishedTcp, XdpTcpTransport};
use crate::xdp::udp::{ConnectedUdp, XdpUdpTransport};

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A kernel socket could not be set up.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The listener did not answer.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Shared memory could not be set up.
    #[error(transparent)]
    SharedMemory(#[from] SharedMemoryError),
    /// An endpoint over AF_XDP could not be set up.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The address belongs to another protocol.
    #[error("`{address}` is not an address of {protocol}")]
    WrongAddress {
        /// The address.
        address: String,
        /// The protocol that was to be used.
        protocol: Protocol,
    },
    /// The probes over this protocol move no bytes.
    #[error("{protocol} moves no bytes, so it has no addresses")]
    NoTransport {
        /// The protocol.
        protocol: Protocol,
    },
    /// Nobody connected to the listener.
    #[error("nobody connected to {address} within {limit:?}, and {strangers} others were dropped")]
    NoPeer {
        /// The listener's address.
        address: String,
        /// How long it waited.
        limit: Duration,
        /// Datagrams and connections from other hosts, or without the task's token.
        strangers: u64,
    },
    /// The caller cancelled it.
    #[error("the connection was cancelled")]
    Cancelled,
}

/// Two ends that know each other, not yet bound to a way of waiting.
#[derive(Debug)]
pub struct Connection {
    stack: Stack,
    backend: Backend,
    /// The peer's address, for messages.
    peer: String,
}

/// What carries the bytes.
#[derive(Debug)]
enum Backend {
    /// Kernel sockets, whose listener may still have to acknowledge us.
    Kernel {
        sockets: KernelSockets,
        needs_handshake: bool,
    },
    SharedMemory(EndpointParts),
    /// UDP over AF_XDP before the handshake, beside a kernel socket that reserves the port.
    XdpUdpUnconnected {
        kernel: OwnedFd,
        endpoint: Box<XdpEndpoint>,
        token: Token,
    },
    XdpUdp(Box<ConnectedUdp>),
    XdpTcp(Box<EstablishedTcp>),
}

impl Connection {
    /// An end over kernel sockets, to send on and, where that is another, to receive from.
    pub(crate) fn over_kernel(
        stack: Stack,
        sockets: (OwnedFd, Option<OwnedFd>),
        peer: String,
        ipv4: bool,
        token: Token,
        needs_handshake: bool,
    ) -> Result<Connection, SocketError> {
        let sockets = KernelSockets::new(stack, sockets, ipv4, token)?;
        Ok(Connection { stack, backend: Backend::Kernel { sockets, needs_handshake }, peer })
    }

    /// An end over shared memory.
    pub(crate) fn over_memory(stack: Stack, parts: EndpointParts, peer: String) -> Connection {
        Connection { stack, backend: Backend::SharedMemory(parts), peer }
    }

    /// The connecting end of UDP over AF_XDP, beside the kernel's socket of the same address.
    pub(crate) fn over_xdp_unconnected(
        stack: Stack,
        kernel: OwnedFd,
        endpoint: XdpEndpoint,
        peer: SocketAddr,
        token: Token,
    ) -> Result<Connection, SocketError> {
        kernel::configure(&kernel, stack)?;
        let backend = Backend::XdpUdpUnconnected { kernel, endpoint: Box::new(endpoint), token };
        Ok(Connection { stack, backend, peer: format!("xdp:{peer}") })
    }

    /// The listening end of UDP over AF_XDP.
    pub(crate) fn over_xdp(
        stack: Stack,
        connected: ConnectedUdp,
    ) -> Result<Connection, SocketError> {
        kernel::configure(connected.kernel(), stack)?;
        let peer = format!("xdp:{}", connected.peer());
        Ok(Connection { stack, backend: Backend::XdpUdp(Box::new(connected)), peer })
    }

    /// An end of a TCP connection over AF_XDP.
    pub(crate) fn over_xdp_tcp(
        stack: Stack,
        established: EstablishedTcp,
        peer: SocketAddr,
    ) -> Connection {
        let backend = Backend::XdpTcp(Box::new(established));
        Connection { stack, backend, peer: peer.to_string() }
    }

    /// Two ends in this process, connected by Unix stream sockets.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn unix_pair(mode: Mode) -> Result<(Connection, Connection), ConnectionError> {
        let (a, b) = socket::unix_pair().map_err(SystemError::during("making a socket pair"))?;
        let stack = Stack::new(Protocol::Unix, mode);
        let (name, token) = ("unix pair".to_string(), Token::default());
        let end =
            |fd| Connection::over_kernel(stack, (fd, None), name.clone(), false, token, false);
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
    /// multicast); elsewhere returns at once. `message_lengths` are those of the probe's messages.
    ///
    /// # Errors
    /// If nobody answers within `limit`, and those of the system calls.
    pub fn handshake(
        mut self,
        message_lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, ConnectionError> {
        self.backend = match self.backend {
            Backend::XdpUdpUnconnected { kernel, endpoint, token } => {
                let connected = ConnectedUdp::connect(
                    *endpoint,
                    kernel,
                    (&self.peer, token),
                    message_lengths,
                    limit,
                    cancelled,
                )?;
                Backend::XdpUdp(Box::new(connected))
            }
            Backend::Kernel { sockets, needs_handshake: true } => {
                let (descriptors, peer) = (sockets.descriptors(), (&*self.peer, sockets.token()));
                handshake::connect(descriptors, peer, message_lengths, limit, cancelled)?;
                Backend::Kernel { sockets, needs_handshake: false }
            }
            connected @ (Backend::Kernel { .. }
            | Backend::SharedMemory(_)
            | Backend::XdpUdp(_)
            | Backend::XdpTcp(_)) => connected,
        };
        Ok(self)
    }

    /// Largest datagram that is sent without fragmentation, bytes, where the route's MTU is known.
    pub fn datagram_bytes_max(&self) -> Option<u32> {
        match &self.backend {
            Backend::Kernel { sockets, .. } => sockets.datagram_bytes_max(),
            _ => None,
        }
    }

    /// Does `visitor` over this connection with a transport of fixed type.
    ///
    /// # Errors
    /// Those of the system calls that prepare the wait.
    ///
    /// # Panics
    /// If a connection of UDP over AF_XDP has not done its [`Connection::handshake`].
    pub fn with<V: Visitor>(self, visitor: V) -> Result<V::Output, ConnectionError> {
        let spins = self.stack.mode == Mode::Spin;
        Ok(match self.backend {
            Backend::Kernel { sockets, .. } => sockets.with(visitor)?,
            Backend::SharedMemory(parts) if spins => {
                visitor.visit(SharedMemoryTransport::<false>::new(parts))
            }
            Backend::SharedMemory(parts) => {
                visitor.visit(SharedMemoryTransport::<true>::new(parts))
            }
            Backend::XdpUdpUnconnected { .. } => {
                panic!("the connection to {} was used before its handshake", self.peer)
            }
            Backend::XdpUdp(connected) if spins => {
                visitor.visit(XdpUdpTransport::<true>::new(*connected))
            }
            Backend::XdpUdp(connected) => visitor.visit(XdpUdpTransport::<false>::new(*connected)),
            Backend::XdpTcp(established) if spins => {
                visitor.visit(XdpTcpTransport::<true>::new(*established))
            }
            Backend::XdpTcp(established) => {
                visitor.visit(XdpTcpTransport::<false>::new(*established))
            }
        })
    }
}
