//! Making the two ends of a connection: one listens, the other connects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use nm_model::stack::{Protocol, Stack};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_sys::poll;
use nm_sys::socket::{self, SocketType};
use nm_sys::xdp::FlowFilter;

use crate::address::{self, Address};
use crate::greeting::{self, Word};
use crate::link::Connection;
use crate::xdp::endpoint::{self, Endpoint};
use crate::xdp::{self, Door, Half};
use crate::{SLICE, failure, shm};

/// Settings of a connection that differ between tasks.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `SO_SNDBUF` and `SO_RCVBUF`, bytes; the kernel's own tuning if absent.
    pub buffer_bytes: Option<u32>,
    /// Congestion control of TCP by name; the host's default if absent.
    pub congestion: Option<String>,
}

impl Options {
    /// Must happen before the connection is made: the window scale is agreed on then.
    fn apply(&self, fd: &OwnedFd, protocol: Protocol) -> Result<(), Failure> {
        if let Some(bytes) = self.buffer_bytes {
            socket::set_buffers(fd.as_fd(), bytes)
                .map_err(|error| failure::of(&error, "setting the socket buffers"))?;
        }
        if let (Some(name), Protocol::Tcp) = (&self.congestion, protocol) {
            socket::set_congestion(fd.as_fd(), name).map_err(|error| {
                let what = format!("choosing congestion control `{name}`: {error}");
                Failure::new(FailureKind::NotAvailable, what).hint(
                    "net.ipv4.tcp_available_congestion_control lists what this kernel has; load a \
                     module, or run as root",
                )
            })?;
        }
        Ok(())
    }
}

/// A socket that waits for one peer.
#[derive(Debug)]
pub struct Listener {
    stack: Stack,
    address: Address,
    socket: OwnedFd,
    /// What [`Address::Descriptor`] speaks of; the peer opens it, we only keep it open.
    _door: Option<OwnedFd>,
    /// The interface that multicast leaves by.
    interface: IpAddr,
    /// The endpoint over AF_XDP, whose port `socket` reserves.
    xdp: Option<Door>,
    /// The same for TCP.
    xdp_tcp: Option<xdp::tcp::Door>,
}

impl Listener {
    /// Listens on `address`: an IP address with or without port for TCP and UDP, that of the
    /// interface for multicast; for Unix sockets `unix:@NAME` or `unix:/PATH`, and anything else
    /// gives a name that cannot be guessed. Shared memory has an address of its own making.
    ///
    /// # Errors
    /// A sentence, such as that the port is taken.
    pub fn bind(stack: Stack, address: &str, options: &Options) -> Result<Listener, Failure> {
        let unspecified = IpAddr::from([0, 0, 0, 0]);
        match stack.protocol {
            Protocol::Unix => {
                let address = match address.starts_with("unix:") {
                    true => address.parse()?,
                    false => Address::Abstract(address::random_name()),
                };
                let socket = listen_unix(&address)?;
                options.apply(&socket, stack.protocol)?;
                Ok(Listener::plain(stack, address, socket, unspecified))
            }
            Protocol::Tcp | Protocol::Udp => {
                let local = address::local(address)?;
                let kind = match stack.protocol {
                    Protocol::Tcp => SocketType::Stream,
                    _ => SocketType::Datagram,
                };
                let socket = bind_socket(&local, kind, options, stack.protocol)?;
                let found = socket::local_address(&socket)
                    .map_err(|error| failure::of(&error, "reading the own address"))?;
                Ok(Listener::plain(stack, Address::Socket(found), socket, found.ip()))
            }
            Protocol::Multicast => {
                let interface = address::local(address)?.ip();
                let group = address::random_group(interface);
                let (there, socket) = join(SocketAddr::new(group, 0), interface, options)?;
                // The port back only has to be free of our own use; the group is ours alone.
                let (back, _) = join(SocketAddr::new(group, 0), interface, options)?;
                let address = Address::Group(there, back.port());
                Ok(Listener::plain(stack, address, socket, interface))
            }
            Protocol::Xdp => {
                endpoint::check(stack)?;
                let local = address::local(address)?;
                let socket = bind_socket(&local, SocketType::Datagram, options, stack.protocol)?;
                let found = socket::local_address(&socket)
                    .map_err(|error| failure::of(&error, "reading the own address"))?;
                let door = Some(Door::open(found, stack.mode)?);
                let mut listener = Listener::plain(stack, Address::Xdp(found), socket, found.ip());
                listener.xdp = door;
                Ok(listener)
            }
            Protocol::XdpTcp => {
                endpoint::check(stack)?;
                let (socket, own) = reserve(&address::local(address)?)?;
                let door = xdp::tcp::Door::open(own, stack.mode, options)?;
                let mut listener = Listener::plain(stack, Address::Socket(own), socket, own.ip());
                listener.xdp_tcp = Some(door);
                Ok(listener)
            }
            Protocol::Shm => {
                shm::check(stack)?;
                let (socket, door) =
                    shm::listen().map_err(|error| failure::of(&error, "listening by shm"))?;
                let address =
                    Address::Descriptor(std::process::id(), door.as_raw_fd().unsigned_abs());
                let mut listener = Listener::plain(stack, address, socket, unspecified);
                listener._door = Some(door);
                Ok(listener)
            }
        }
    }

    fn plain(stack: Stack, address: Address, socket: OwnedFd, interface: IpAddr) -> Listener {
        Listener { stack, address, socket, _door: None, interface, xdp: None, xdp_tcp: None }
    }

    /// Where the peer connects to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits for the peer. `lengths` are those of the probe's messages.
    ///
    /// # Errors
    /// [`FailureKind::Peer`] if nobody comes within `limit`, [`FailureKind::Cancelled`].
    pub fn accept(
        &self,
        lengths: &[usize],
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Connection, Failure> {
        if let Some(door) = &self.xdp {
            return door.accept(self.stack, &self.socket, lengths, limit, cancelled);
        }
        if let Some(door) = &self.xdp_tcp {
            return door.accept(self.stack, &self.socket, limit, cancelled);
        }
        let failed =
            |error: io::Error| failure::of(&error, format!("listening on {}", self.address));
        let deadline = Deadline::after(limit);
        loop {
            if cancelled() {
                return Err(failure::cancelled());
            }
            if poll::readable(self.socket.as_raw_fd(), SLICE).map_err(failed)?
                && let Some(connection) = self.try_accept(lengths)?
            {
                return Ok(connection);
            }
            if deadline.passed() {
                let what = format!("nobody connected to {} in {limit:?}", self.address);
                return Err(Failure::new(FailureKind::Peer, what)
                    .hint("check that the peer was started and reaches this address"));
            }
        }
    }

    fn try_accept(&self, lengths: &[usize]) -> Result<Option<Connection>, Failure> {
        let failed =
            |error: io::Error| failure::of(&error, format!("listening on {}", self.address));
        let again = |socket: &OwnedFd| socket.try_clone().map_err(failed);
        match &self.address {
            Address::Socket(own) if self.stack.protocol == Protocol::Udp => {
                let mut buffer = [0; greeting::BYTES_MAX];
                let fd = self.socket.as_raw_fd();
                let Some((length, peer)) = socket::receive_from(fd, &mut buffer, socket::DONT_WAIT)
                    .map(Some)
                    .or_else(nothing)
                    .map_err(failed)?
                else {
                    return Ok(None);
                };
                if greeting::read(&buffer[..length]) != Some(Word::Hello) {
                    return Ok(None);
                }
                socket::connect(&self.socket, &peer, SLICE).map_err(failed)?;
                greeting::say(fd, Word::Welcome, lengths).map_err(failed)?;
                let sockets = (again(&self.socket)?, None);
                Connection::new(self.stack, sockets, peer.to_string(), own.is_ipv4(), false)
                    .map(Some)
            }
            Address::Group(there, back) => {
                let mut buffer = [0; greeting::BYTES_MAX];
                let fd = self.socket.as_raw_fd();
                let Some((length, peer)) = socket::receive_from(fd, &mut buffer, socket::DONT_WAIT)
                    .map(Some)
                    .or_else(nothing)
                    .map_err(failed)?
                else {
                    return Ok(None);
                };
                if greeting::read(&buffer[..length]) != Some(Word::Hello) {
                    return Ok(None);
                }
                let sender = group_sender(SocketAddr::new(there.ip(), *back), self.interface)?;
                greeting::say(sender.as_raw_fd(), Word::Welcome, lengths).map_err(failed)?;
                let sockets = (sender, Some(again(&self.socket)?));
                Connection::new(self.stack, sockets, peer.to_string(), there.is_ipv4(), false)
                    .map(Some)
            }
            Address::Xdp(_) => Ok(None),
            Address::Descriptor(..) => {
                let accepted = socket::accept(self.socket.as_fd()).map_err(failed)?;
                let peer = format!("the peer of {}", self.address);
                let joint = shm::welcome(accepted)?;
                Ok(joint.map(|joint| Connection::over_memory(self.stack, joint, peer)))
            }
            Address::Socket(_) | Address::Abstract(_) | Address::Path(_) => {
                let accepted = socket::accept(self.socket.as_fd()).map_err(failed)?;
                let ipv4 = matches!(self.address, Address::Socket(address) if address.is_ipv4());
                let peer = format!("the peer of {}", self.address);
                Connection::new(self.stack, (accepted, None), peer, ipv4, false).map(Some)
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Path(path) = &self.address {
            // It may have been removed by somebody else; there is nothing to do about it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Connects to a listener's address. `local` is this end's own IP address: multicast leaves by its
/// interface.
///
/// # Errors
/// A sentence, such as that nobody listens there.
pub fn connect(
    stack: Stack,
    address: &str,
    local: &str,
    options: &Options,
    limit: Duration,
) -> Result<Connection, Failure> {
    let peer: Address = address.parse()?;
    let doing = format!("connecting to {address} by {}", stack.protocol);
    let failed = |error: io::Error| failure::of(&error, &doing);
    match (stack.protocol, &peer) {
        (Protocol::Tcp, Address::Socket(peer))
        | (Protocol::Udp, Address::Socket(peer) | Address::Xdp(peer)) => {
            let udp = stack.protocol == Protocol::Udp;
            let kind = if udp { SocketType::Datagram } else { SocketType::Stream };
            let socket = socket::socket(peer, kind).map_err(failed)?;
            options.apply(&socket, stack.protocol)?;
            socket::connect(&socket, peer, limit).map_err(failed)?;
            Connection::new(stack, (socket, None), address.to_string(), peer.is_ipv4(), udp)
        }
        (Protocol::Multicast, Address::Group(there, back)) => {
            let interface = address::local(local)?.ip();
            let (_, receiver) = join(SocketAddr::new(there.ip(), *back), interface, options)?;
            let sockets = (group_sender(*there, interface)?, Some(receiver));
            Connection::new(stack, sockets, address.to_string(), there.is_ipv4(), true)
        }
        (Protocol::Unix, Address::Abstract(_) | Address::Path(_)) => {
            let socket = unix_address(&peer).and_then(|address| UnixStream::connect_addr(&address));
            let socket = OwnedFd::from(socket.map_err(failed)?);
            options.apply(&socket, stack.protocol)?;
            Connection::new(stack, (socket, None), address.to_string(), false, false)
        }
        (Protocol::XdpTcp, Address::Socket(peer)) => {
            endpoint::check(stack)?;
            let (socket, own) = reserve(&address::local(local)?)?;
            xdp::tcp::connect(stack, socket, (own, *peer), options, limit)
        }
        (Protocol::Xdp, Address::Xdp(peer) | Address::Socket(peer)) => {
            endpoint::check(stack)?;
            let socket = bind_socket(
                &address::local(local)?,
                SocketType::Datagram,
                options,
                stack.protocol,
            )?;
            socket::connect(&socket, peer, limit).map_err(failed)?;
            let own = socket::local_address(&socket).map_err(failed)?;
            let half =
                Half::Alone(Box::new(Endpoint::open(own, &FlowFilter::udp(own), stack.mode)?));
            Connection::over_xdp(stack, socket, *peer, half)
        }
        (Protocol::Shm, Address::Descriptor(process, descriptor)) => {
            shm::check(stack)?;
            let joint = shm::connect(*process, *descriptor, address)?;
            Ok(Connection::over_memory(stack, joint, address.to_string()))
        }
        _ => Err(Failure::new(
            FailureKind::BadRequest,
            format!("`{address}` is not an address of {}", stack.protocol),
        )),
    }
}

/// An attempt to receive that found nothing, or an error left over from a peer that went.
fn nothing<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::WouldBlock
        | io::ErrorKind::Interrupted
        | io::ErrorKind::ConnectionRefused => Ok(None),
        _ => Err(error),
    }
}

fn bind_socket(
    local: &SocketAddr,
    kind: SocketType,
    options: &Options,
    protocol: Protocol,
) -> Result<OwnedFd, Failure> {
    let failed =
        |error: io::Error| failure::of(&error, format!("listening on {local} ({protocol})"));
    let socket = socket::socket(local, kind).map_err(failed)?;
    if kind == SocketType::Stream {
        // So that a port is free again at once; two listeners on it are still refused.
        socket::set_reuse_address(socket.as_fd()).map_err(failed)?;
    }
    options.apply(&socket, protocol)?;
    socket::bind(&socket, local).map_err(failed)?;
    if kind == SocketType::Stream {
        socket::listen(&socket, 1).map_err(failed)?;
    }
    Ok(socket)
}

/// A kernel socket that holds a TCP port, so that no other program gets it, and says nothing.
fn reserve(local: &SocketAddr) -> Result<(OwnedFd, SocketAddr), Failure> {
    let failed = |error: io::Error| failure::of(&error, format!("taking {local} for TCP"));
    let socket = socket::socket(local, SocketType::Stream).map_err(failed)?;
    socket::bind(&socket, local).map_err(failed)?;
    let own = socket::local_address(&socket).map_err(failed)?;
    Ok((socket, own))
}

fn unix_address(address: &Address) -> io::Result<UnixAddress> {
    match address {
        Address::Abstract(name) => UnixAddress::from_abstract_name(name),
        Address::Path(path) => UnixAddress::from_pathname(path),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn listen_unix(address: &Address) -> Result<OwnedFd, Failure> {
    unix_address(address)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map(OwnedFd::from)
        .map_err(|error| failure::of(&error, format!("listening on {address}")))
}

/// A socket that receives what is sent to `group`, and the port it was given.
fn join(
    group: SocketAddr,
    interface: IpAddr,
    options: &Options,
) -> Result<(SocketAddr, OwnedFd), Failure> {
    let failed = |error: io::Error| {
        failure::of(&error, format!("joining the group {} on {interface}", group.ip()))
    };
    let group = scoped(group, interface).map_err(failed)?;
    let socket = socket::socket(&group, SocketType::Datagram).map_err(failed)?;
    if group.port() != 0 {
        socket::set_reuse_address(socket.as_fd()).map_err(failed)?;
    }
    options.apply(&socket, Protocol::Multicast)?;
    socket::bind(&socket, &group).map_err(failed)?;
    socket::join_group(socket.as_fd(), group.ip(), interface).map_err(failed)?;
    let bound = socket::local_address(&socket).map_err(failed)?;
    // The scope is a number of this machine and means nothing to the peer.
    Ok((SocketAddr::new(group.ip(), bound.port()), socket))
}

/// A socket that sends to `group` out of the interface that has the address `interface`.
fn group_sender(group: SocketAddr, interface: IpAddr) -> Result<OwnedFd, Failure> {
    let failed = |error: io::Error| {
        failure::of(&error, format!("sending to the group {} from {interface}", group.ip()))
    };
    let group = scoped(group, interface).map_err(failed)?;
    let socket = socket::socket(&group, SocketType::Datagram).map_err(failed)?;
    socket::set_multicast_interface(socket.as_fd(), interface).map_err(failed)?;
    socket::bind(&socket, &SocketAddr::new(interface, 0)).map_err(failed)?;
    socket::connect(&socket, &group, SLICE).map_err(|error| match error.kind() {
        io::ErrorKind::NetworkUnreachable => {
            let what = format!("multicast to {}: {interface}'s interface has no route", group.ip());
            Failure::new(FailureKind::NotAvailable, what).hint(
                "loopback carries no IPv6 multicast: use an address of another interface, or IPv4",
            )
        }
        _ => failed(error),
    })?;
    Ok(socket)
}

/// Adds the interface to an IPv6 group, whose address alone does not say where it is.
fn scoped(group: SocketAddr, interface: IpAddr) -> io::Result<SocketAddr> {
    match (group, interface) {
        (SocketAddr::V6(mut group), IpAddr::V6(interface)) => {
            group.set_scope_id(socket::interface_index(interface)?);
            Ok(group.into())
        }
        (group, _) => Ok(group),
    }
}
