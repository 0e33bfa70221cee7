//! Why a connection could not be made.

use std::time::Duration;

use nm_model::capability::Obstacle;
use nm_model::stack::Protocol;

use crate::address::AddressError;
use crate::error::SystemError;
use crate::handshake::HandshakeError;
use crate::shm::SharedMemoryError;
use crate::sockets::SocketError;
use crate::xdp::error::XdpError;

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
    /// The stack cannot be used at all, or not in guests.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
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
