//! What the file of a transport provides: a listener, and one end of a connection.

use std::time::Duration;

use nm_model::stack::Stack;

use crate::connection_error::ConnectionError;
use crate::handshake::Admission;
use crate::sockets::Options;
use crate::transport::Visitor;

/// How long to wait for the other end, and what ends the wait before.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// Lengths of the probe's messages, which no handshake message has.
    pub message_lengths: &'a [usize],
    /// The longest wait.
    pub limit: Duration,
    /// Whether the caller has given up.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// What to connect to.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    /// The stack of this end.
    pub stack: Stack,
    /// The listener's address.
    pub address: &'a str,
    /// This end's own IP address.
    pub local: &'a str,
    /// Settings of the task.
    pub options: &'a Options,
    /// The longest wait.
    pub limit: Duration,
}

/// A listener that waits for one peer.
pub(crate) trait Listen: Sized {
    /// One end of a connection.
    type End: End;

    /// Listens on `address`, or where it chooses.
    fn bind(stack: Stack, address: &str, options: &Options) -> Result<Self, ConnectionError>;

    /// Where the peer connects to.
    fn address(&self) -> String;

    /// Waits for the peer; returns this end with the peer's name.
    fn accept(
        &self,
        stack: Stack,
        admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(Self::End, String), ConnectionError>;

    /// Connects to such a listener; returns this end with the peer's name.
    fn connect(to: &Destination<'_>) -> Result<(Self::End, String), ConnectionError>;
}

/// One end of a connection, not yet bound to a way of waiting.
pub(crate) trait End: Sized {
    /// Waits until the listener answers, where connecting does not.
    fn handshake(self, peer: &str, patience: &Patience<'_>) -> Result<Self, ConnectionError> {
        let _ = (peer, patience);
        Ok(self)
    }

    /// Largest datagram that is sent without fragmentation, bytes, where the route's MTU is known.
    fn datagram_bytes_max(&self) -> Option<u32> {
        None
    }

    /// Does `visitor` with a transport of fixed type, which waits in the way of the stack.
    fn with<V: Visitor>(self, stack: Stack, visitor: V) -> Result<V::Output, ConnectionError>;
}
