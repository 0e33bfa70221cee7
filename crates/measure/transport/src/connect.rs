//! The connecting end of a connection.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nm_model::stack::{Protocol, Stack};
use nm_sys::socket::{self, SocketType};
use nm_sys::xdp::FlowFilter;

use crate::address::{self, Address};
use crate::connection::{Connection, ConnectionError};
use crate::error::SystemError;
use crate::guest_memory;
use crate::shm::{self, SharedMemoryError};
use crate::sockets::{self, Options};
use crate::xdp::endpoint::{self, XdpEndpoint};
use crate::xdp::tcp::EstablishedTcp;

/// Connects to a listener's address. `local` is this end's own IP address: multicast leaves by its
/// interface.
///
/// # Errors
/// See [`ConnectionError`], such as that nobody listens there.
pub fn connect(
    stack: Stack,
    address: &str,
    local: &str,
    options: &Options,
    limit: Duration,
) -> Result<Connection, ConnectionError> {
    let failed = SystemError::during(format!("connecting to {address} by {}", stack.protocol));
    let token = options.token;
    match (stack.protocol, address.parse()?) {
        (Protocol::Tcp, Address::Socket(peer))
        | (Protocol::Udp, Address::Socket(peer) | Address::Xdp(peer)) => {
            let udp = stack.protocol == Protocol::Udp;
            let kind = if udp { SocketType::Datagram } else { SocketType::Stream };
            let socket = socket::socket(&peer, kind).map_err(&failed)?;
            options.apply(&socket, stack.protocol)?;
            socket::connect(&socket, &peer, limit).map_err(&failed)?;
            let (text, ipv4) = (address.to_string(), peer.is_ipv4());
            Ok(Connection::over_kernel(stack, (socket, None), text, ipv4, token, udp)?)
        }
        (Protocol::Multicast, Address::Group(group, reply_port)) => {
            let interface = address::local(local)?.ip();
            let reply_group = SocketAddr::new(group.ip(), reply_port);
            let (receiver, _) = sockets::join_group(reply_group, interface, options)?;
            let sockets = (sockets::group_sender(group, interface)?, Some(receiver));
            let (text, ipv4) = (address.to_string(), group.is_ipv4());
            Ok(Connection::over_kernel(stack, sockets, text, ipv4, token, true)?)
        }
        (Protocol::Unix, peer @ (Address::Abstract(_) | Address::Path(_))) => {
            let socket = sockets::unix_address(&peer)
                .and_then(|address| UnixStream::connect_addr(&address))
                .map_err(&failed)?;
            let socket = OwnedFd::from(socket);
            options.apply(&socket, stack.protocol)?;
            let sockets = (socket, None);
            Ok(Connection::over_kernel(stack, sockets, address.to_string(), false, token, false)?)
        }
        (Protocol::XdpTcp, Address::Socket(peer)) => {
            endpoint::check_mode(stack)?;
            let (socket, own) = sockets::reserve(&address::local(local)?)?;
            let established =
                EstablishedTcp::connect(stack.mode, socket, (own, peer), options, limit)?;
            Ok(Connection::over_xdp_tcp(stack, established, peer))
        }
        (Protocol::Xdp, Address::Xdp(peer) | Address::Socket(peer)) => {
            endpoint::check_mode(stack)?;
            let local = address::local(local)?;
            let (socket, _) = sockets::bind(&local, SocketType::Datagram, options, stack.protocol)?;
            socket::connect(&socket, &peer, limit).map_err(&failed)?;
            // Connecting chooses the own address, where `local` left it open.
            let own = socket::local_address(&socket).map_err(&failed)?;
            let endpoint = XdpEndpoint::open(own, &FlowFilter::udp(own), stack.mode)?;
            Ok(Connection::over_xdp_unconnected(stack, socket, endpoint, peer, token)?)
        }
        (Protocol::Shm, Address::Descriptor(process, descriptor)) => {
            shm::check_mode(stack)?;
            let parts = shm::connect(process, descriptor, address)?;
            Ok(Connection::over_memory(stack, parts, address.to_string()))
        }
        (Protocol::Shm, Address::Window(window, token)) => {
            shm::check_mode(stack)?;
            let parts =
                guest_memory::connect(window, token, address).map_err(SharedMemoryError::from)?;
            Ok(Connection::over_memory(stack, parts, address.to_string()))
        }
        (protocol, _) => {
            Err(ConnectionError::WrongAddress { address: address.to_string(), protocol })
        }
    }
}
