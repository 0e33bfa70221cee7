//! Why an endpoint over AF_XDP could not be set up or connected.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::SystemError;

/// Why an endpoint over AF_XDP could not be set up or connected.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The caller cancelled it.
    #[error("the connection was cancelled")]
    Cancelled,
    /// The endpoint of this end could not be opened.
    #[error(transparent)]
    Setup(#[from] XdpSetupError),
    /// One end has an IPv4 address and the other an IPv6 address.
    #[error("{local} and {peer} are of different address families")]
    AddressFamilies {
        /// This end.
        local: SocketAddr,
        /// The other end.
        peer: SocketAddr,
    },
    /// A listener accepts one peer.
    #[error("the listener has already accepted its peer")]
    AlreadyAccepted,
    /// Nobody connected to the listener.
    #[error("nobody connected to {address} within {limit:?}")]
    NoPeer {
        /// The listener's address.
        address: String,
        /// How long it waited.
        limit: Duration,
        /// The link, if datagrams were received by another queue of it.
        other_queue: Option<String>,
    },
    /// The listener did not acknowledge any hello.
    #[error("no reply from {peer} within {limit:?}")]
    NoReply {
        /// The listener's address.
        peer: String,
        /// How long the handshake was tried.
        limit: Duration,
        /// The link, if datagrams were received by another queue of it.
        other_queue: Option<String>,
    },
    /// The kernel's route to the peer uses another link.
    #[error("the route to {peer} does not use {link}")]
    RouteByOtherLink {
        /// The peer's address.
        peer: IpAddr,
        /// The link of this end's address.
        link: String,
    },
    /// The next hop did not reveal its hardware address.
    #[error("no hardware address of {hop}, the next hop to {peer}")]
    NoNeighbour {
        /// The next hop.
        hop: IpAddr,
        /// The peer's address.
        peer: IpAddr,
    },
}

/// Why the endpoint of one end could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpSetupError {
    /// Loopback has no device.
    #[error("{0} is an address of the loopback interface")]
    Loopback(IpAddr),
    /// An endpoint needs the address of one link.
    #[error("{0} is not the address of one link")]
    Unspecified(IpAddr),
    /// The link is not Ethernet.
    #[error("{0} is not an Ethernet link")]
    NotEthernet(String),
    /// The process lacks a privilege.
    #[error("AF_XDP on {link} is not permitted")]
    Permission {
        /// Name of the link.
        link: String,
        /// The error of the call.
        source: io::Error,
    },
    /// The kernel was built without AF_XDP.
    #[error("the kernel has no AF_XDP")]
    NoKernelSupport {
        /// Name of the link.
        link: String,
    },
    /// Another XDP program or socket uses the link.
    #[error("another XDP program or socket uses {link}")]
    LinkInUse {
        /// Name of the link.
        link: String,
    },
    /// The limit of locked memory is too low.
    #[error("the limit of locked memory is too low")]
    LockedMemory {
        /// Name of the link.
        link: String,
    },
    /// No path of AF_XDP works on the link.
    #[error("no path of AF_XDP works on {link}")]
    NoPath {
        /// Name of the link.
        link: String,
        /// Its driver.
        driver: String,
        /// Each path that was tried, with its error.
        tried: Vec<(&'static str, io::Error)>,
    },
    /// TCP over AF_XDP has one congestion control only.
    #[error("congestion control `{0}` is not available")]
    CongestionControl(String),
}
