//! A connection: two ends that know each other, not yet bound to a way of waiting.

use std::time::Duration;

use nm_model::stack::{Mode, Protocol, Stack};

use crate::carrier::interface::Patience;
use crate::carrier::{self, AnyEnd};
use crate::connection_error::ConnectionError;
use crate::transport::Visitor;

/// Two ends that know each other, not yet bound to a way of waiting.
#[derive(Debug)]
pub struct Connection {
    stack: Stack,
    end: AnyEnd,
    /// The peer's address, for messages.
    peer: String,
}

impl Connection {
    /// An end over any transport.
    pub(crate) fn new(stack: Stack, (end, peer): (AnyEnd, String)) -> Connection {
        Connection { stack, end, peer }
    }

    /// Two ends in this process, connected by Unix stream sockets.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn unix_pair(mode: Mode) -> Result<(Connection, Connection), ConnectionError> {
        let stack = Stack::new(Protocol::Unix, mode);
        let [a, b] = carrier::unix_pair(stack)?;
        Ok((Connection::new(stack, a), Connection::new(stack, b)))
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
        let patience = Patience { message_lengths, limit, cancelled };
        self.end = self.end.handshake(&self.peer, &patience)?;
        Ok(self)
    }

    /// Largest datagram that is sent without fragmentation, bytes, where the route's MTU is known.
    pub fn datagram_bytes_max(&self) -> Option<u32> {
        self.end.datagram_bytes_max()
    }

    /// Does `visitor` over this connection with a transport of fixed type.
    ///
    /// # Errors
    /// Those of the system calls that prepare the wait.
    ///
    /// # Panics
    /// If a connection of UDP over AF_XDP has not done its [`Connection::handshake`].
    pub fn with<V: Visitor>(self, visitor: V) -> Result<V::Output, ConnectionError> {
        self.end.with(self.stack, visitor)
    }
}
