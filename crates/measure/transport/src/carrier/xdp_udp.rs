//! UDP over AF_XDP.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use nm_model::agent::Token;
use nm_model::stack::{Mode, Stack};
use nm_sys::socket::{self, SocketType};
use nm_sys::xdp::FlowFilter;

use crate::address::{self, Address};
use crate::carrier::interface::{Destination, End, Listen, Patience};
use crate::connection_error::ConnectionError;
use crate::error::SystemError;
use crate::handshake::Admission;
use crate::kernel;
use crate::sockets::{self, Options};
use crate::transport::Visitor;
use crate::xdp::endpoint::XdpEndpoint;
use crate::xdp::udp::{ConnectedUdp, XdpUdpListener, XdpUdpTransport};

/// An endpoint whose port a kernel socket reserves.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    socket: OwnedFd,
    endpoint: Box<XdpUdpListener>,
}

#[derive(Debug)]
pub(crate) enum XdpUdpEnd {
    /// Before the handshake, beside a kernel socket that reserves the port.
    Unconnected { kernel: OwnedFd, endpoint: Box<XdpEndpoint>, token: Token },
    /// After it.
    Connected(Box<ConnectedUdp>),
}

impl End for XdpUdpEnd {
    fn handshake(self, peer: &str, patience: &Patience<'_>) -> Result<XdpUdpEnd, ConnectionError> {
        let XdpUdpEnd::Unconnected { kernel, endpoint, token } = self else { return Ok(self) };
        let Patience { message_lengths, limit, cancelled } = *patience;
        let peer = (peer, token);
        let connected =
            ConnectedUdp::connect(*endpoint, kernel, peer, message_lengths, limit, cancelled)?;
        Ok(XdpUdpEnd::Connected(Box::new(connected)))
    }

    fn with<V: Visitor>(self, stack: Stack, visitor: V) -> Result<V::Output, ConnectionError> {
        let XdpUdpEnd::Connected(connected) = self else {
            panic!("the connection was used before its handshake");
        };
        Ok(match stack.mode {
            Mode::Spin => visitor.visit(XdpUdpTransport::<true>::new(*connected)),
            _ => visitor.visit(XdpUdpTransport::<false>::new(*connected)),
        })
    }
}

impl Listen for Listener {
    type End = XdpUdpEnd;

    fn bind(stack: Stack, address: &str, options: &Options) -> Result<Listener, ConnectionError> {
        let local = address::local(address)?;
        let (socket, address) =
            sockets::bind(&local, SocketType::Datagram, options, stack.protocol)?;
        let endpoint = Box::new(XdpUdpListener::open(address, stack.mode)?);
        Ok(Listener { address, socket, endpoint })
    }

    fn address(&self) -> String {
        Address::Xdp(self.address).to_string()
    }

    fn accept(
        &self,
        stack: Stack,
        admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(XdpUdpEnd, String), ConnectionError> {
        let Patience { message_lengths, limit, cancelled } = *patience;
        let own = (&self.socket, admission);
        let connected = self.endpoint.accept(own, message_lengths, limit, cancelled)?;
        kernel::configure(connected.kernel(), stack)?;
        let peer = Address::Xdp(connected.peer()).to_string();
        Ok((XdpUdpEnd::Connected(Box::new(connected)), peer))
    }

    fn connect(to: &Destination<'_>) -> Result<(XdpUdpEnd, String), ConnectionError> {
        let Destination { stack, options, limit, .. } = *to;
        let protocol = stack.protocol;
        let failed = SystemError::during(format!("connecting to {} by {protocol}", to.address));
        let (Address::Xdp(peer) | Address::Socket(peer)) = to.address.parse()? else {
            let address = to.address.to_string();
            return Err(ConnectionError::WrongAddress { address, protocol });
        };
        let local = address::local(to.local)?;
        let (kernel, _) = sockets::bind(&local, SocketType::Datagram, options, protocol)?;
        socket::connect(&kernel, &peer, limit).map_err(&failed)?;
        // Connecting chooses the own address, where `local` left it open.
        let own = socket::local_address(&kernel).map_err(&failed)?;
        let endpoint = XdpEndpoint::open(own, &FlowFilter::udp(own), stack.mode)?;
        kernel::configure(&kernel, stack)?;
        let (endpoint, token) = (Box::new(endpoint), options.token);
        let end = XdpUdpEnd::Unconnected { kernel, endpoint, token };
        Ok((end, Address::Xdp(peer).to_string()))
    }
}
