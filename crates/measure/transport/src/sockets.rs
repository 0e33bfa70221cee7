//! Kernel sockets with the options of a task: bound, listening, or joined to a multicast group.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use nm_model::agent::Token;
use nm_model::stack::Protocol;
use nm_sys::socket::{self, SocketType};

use crate::address::Address;
use crate::error::SystemError;
use crate::transport::CALL_TIMEOUT;

/// Why a kernel socket could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The kernel does not have this congestion control, or does not allow it.
    #[error("congestion control `{name}` could not be chosen")]
    CongestionControl {
        /// Its name.
        name: String,
        /// The error of the call.
        source: io::Error,
    },
    /// `SO_BUSY_POLL` could not be set.
    #[error("SO_BUSY_POLL could not be set")]
    BusyPoll(#[source] io::Error),
    /// The interface has no route for multicast.
    #[error("the interface of {interface} has no route to {group}")]
    MulticastRoute {
        /// The multicast group.
        group: IpAddr,
        /// An address of the interface.
        interface: IpAddr,
    },
}

/// Settings of a connection that differ between tasks.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `SO_SNDBUF` and `SO_RCVBUF`, bytes; the kernel's own tuning if absent.
    pub buffer_bytes: Option<u32>,
    /// Congestion control of TCP by name; the host's default if absent.
    pub congestion: Option<String>,
    /// The secret of both ends, for the handshake over datagrams.
    pub token: Token,
}

impl Options {
    /// Sets them. The connection must not be made yet, because that fixes the window scale.
    pub(crate) fn apply(&self, fd: &OwnedFd, protocol: Protocol) -> Result<(), SocketError> {
        if let Some(bytes) = self.buffer_bytes {
            socket::set_buffers(fd.as_fd(), bytes)
                .map_err(SystemError::during("setting the socket buffers"))?;
        }
        if let (Some(name), Protocol::Tcp) = (&self.congestion, protocol) {
            socket::set_congestion(fd.as_fd(), name)
                .map_err(|source| SocketError::CongestionControl { name: name.clone(), source })?;
        }
        Ok(())
    }
}

/// An attempt to receive that found nothing, or an error left over from a peer that has gone.
pub(crate) fn would_block<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::WouldBlock
        | io::ErrorKind::Interrupted
        | io::ErrorKind::ConnectionRefused => Ok(None),
        _ => Err(error),
    }
}

/// A socket bound to `local`, and the address that it got; listening if it is a stream.
pub(crate) fn bind(
    local: &SocketAddr,
    kind: SocketType,
    options: &Options,
    protocol: Protocol,
) -> Result<(OwnedFd, SocketAddr), SocketError> {
    let failed = SystemError::during(format!("listening on {local} ({protocol})"));
    let socket = socket::socket(local, kind).map_err(&failed)?;
    if kind == SocketType::Stream {
        // So that a port is free again at once; a second listener on it is still refused.
        socket::set_reuse_address(socket.as_fd()).map_err(&failed)?;
    }
    options.apply(&socket, protocol)?;
    socket::bind(&socket, local).map_err(&failed)?;
    if kind == SocketType::Stream {
        socket::listen(&socket, 1).map_err(&failed)?;
    }
    let bound = socket::local_address(&socket).map_err(&failed)?;
    Ok((socket, bound))
}

/// A kernel socket that only reserves a TCP port, so that no other program gets it.
pub(crate) fn reserve(local: &SocketAddr) -> Result<(OwnedFd, SocketAddr), SystemError> {
    let failed = SystemError::during(format!("reserving {local} for TCP"));
    let socket = socket::socket(local, SocketType::Stream).map_err(&failed)?;
    socket::bind(&socket, local).map_err(&failed)?;
    let own = socket::local_address(&socket).map_err(&failed)?;
    Ok((socket, own))
}

/// The system's form of a Unix socket address.
pub(crate) fn unix_address(address: &Address) -> io::Result<UnixAddress> {
    match address {
        Address::Abstract(name) => UnixAddress::from_abstract_name(name),
        Address::Path(path) => UnixAddress::from_pathname(path),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A listening Unix socket.
pub(crate) fn listen_unix(address: &Address) -> Result<OwnedFd, SystemError> {
    unix_address(address)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map(OwnedFd::from)
        .map_err(SystemError::during(format!("listening on {address}")))
}

/// A socket that receives what is sent to `group`, and the group with the port that it got.
pub(crate) fn join_group(
    group: SocketAddr,
    interface: IpAddr,
    options: &Options,
) -> Result<(OwnedFd, SocketAddr), SocketError> {
    let failed = SystemError::during(format!("joining the group {} on {interface}", group.ip()));
    let group = scoped(group, interface).map_err(&failed)?;
    let socket = socket::socket(&group, SocketType::Datagram).map_err(&failed)?;
    if group.port() != 0 {
        socket::set_reuse_address(socket.as_fd()).map_err(&failed)?;
    }
    options.apply(&socket, Protocol::Multicast)?;
    socket::bind(&socket, &group).map_err(&failed)?;
    socket::join_group(socket.as_fd(), group.ip(), interface).map_err(&failed)?;
    let bound = socket::local_address(&socket).map_err(&failed)?;
    // The scope is a number of this machine and means nothing to the peer.
    Ok((socket, SocketAddr::new(group.ip(), bound.port())))
}

/// A socket that sends to `group` out of the interface that has the address `interface`.
pub(crate) fn group_sender(group: SocketAddr, interface: IpAddr) -> Result<OwnedFd, SocketError> {
    let failed =
        SystemError::during(format!("sending to the group {} from {interface}", group.ip()));
    let group = scoped(group, interface).map_err(&failed)?;
    let socket = socket::socket(&group, SocketType::Datagram).map_err(&failed)?;
    socket::set_multicast_interface(socket.as_fd(), interface).map_err(&failed)?;
    socket::bind(&socket, &SocketAddr::new(interface, 0)).map_err(&failed)?;
    socket::connect(&socket, &group, CALL_TIMEOUT).map_err(|error| match error.kind() {
        io::ErrorKind::NetworkUnreachable => {
            SocketError::MulticastRoute { group: group.ip(), interface }
        }
        _ => failed(error).into(),
    })?;
    Ok(socket)
}

/// Adds the interface to an IPv6 group: the address alone does not say on which link it is.
fn scoped(group: SocketAddr, interface: IpAddr) -> io::Result<SocketAddr> {
    match (group, interface) {
        (SocketAddr::V6(mut group), IpAddr::V6(interface)) => {
            group.set_scope_id(socket::interface_index(interface)?);
            Ok(group.into())
        }
        (group, _) => Ok(group),
    }
}
