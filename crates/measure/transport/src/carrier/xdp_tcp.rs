//! TCP over AF_XDP.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use nm_model::stack::{Mode, Stack};

use crate::address::{self, Address};
use crate::carrier::interface::{Destination, End, Listen, Patience};
use crate::connection_error::ConnectionError;
use crate::handshake::Admission;
use crate::sockets::{self, Options};
use crate::transport::Visitor;
use crate::xdp::tcp::{EstablishedTcp, XdpTcpListener, XdpTcpTransport};

/// An endpoint whose port a kernel socket reserves.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    socket: OwnedFd,
    endpoint: XdpTcpListener,
}

#[derive(Debug)]
pub(crate) struct XdpTcpEnd(Box<EstablishedTcp>);

impl End for XdpTcpEnd {
    fn with<V: Visitor>(self, stack: Stack, visitor: V) -> Result<V::Output, ConnectionError> {
        Ok(match stack.mode {
            Mode::Spin => visitor.visit(XdpTcpTransport::<true>::new(*self.0)),
            _ => visitor.visit(XdpTcpTransport::<false>::new(*self.0)),
        })
    }
}

impl Listen for Listener {
    type End = XdpTcpEnd;

    fn bind(stack: Stack, address: &str, options: &Options) -> Result<Listener, ConnectionError> {
        let (socket, address) = sockets::reserve(&address::local(address)?)?;
        let endpoint = XdpTcpListener::open(address, stack.mode, options)?;
        Ok(Listener { address, socket, endpoint })
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn accept(
        &self,
        _stack: Stack,
        admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(XdpTcpEnd, String), ConnectionError> {
        let Patience { limit, cancelled, .. } = *patience;
        let (established, peer) = self.endpoint.accept(&self.socket, limit, cancelled)?;
        if !admission.allows(peer.ip()) {
            // This endpoint takes one connection, which ends here.
            let address = self.address();
            return Err(ConnectionError::NoPeer { address, limit, strangers: 1 });
        }
        Ok((XdpTcpEnd(Box::new(established)), peer.to_string()))
    }

    fn connect(to: &Destination<'_>) -> Result<(XdpTcpEnd, String), ConnectionError> {
        let Destination { stack, options, limit, .. } = *to;
        let Address::Socket(peer) = to.address.parse()? else {
            let (address, protocol) = (to.address.to_string(), stack.protocol);
            return Err(ConnectionError::WrongAddress { address, protocol });
        };
        let (socket, own) = sockets::reserve(&address::local(to.local)?)?;
        let ends = (own, peer);
        let established = EstablishedTcp::connect(stack.mode, socket, ends, options, limit)?;
        Ok((XdpTcpEnd(Box::new(established)), peer.to_string()))
    }
}
