//! Errors become failures: one sentence for people (what was wrong and where) and a hint (what to
//! do). The agent protocol carries these, so they are made in this one place.

use std::fmt::Display;
use std::io;

use nm_model::{Failure, FailureKind};

use crate::address::AddressError;
use crate::connection_error::ConnectionError;
use crate::error::SystemError;
use crate::guest_memory::GuestMemoryError;
use crate::handshake::HandshakeError;
use crate::shm::SharedMemoryError;
use crate::sockets::SocketError;
use crate::transport::TransportError;
use crate::xdp::endpoint::QUEUE;
use crate::xdp::engine::CONGESTION;
use crate::xdp::error::{XdpError, XdpSetupError};

const CHECK_FIREWALL: &str = "check that the peer runs and that no firewall drops the datagrams";

/// The failure of a task that was cancelled.
pub fn cancelled() -> Failure {
    Failure::new(FailureKind::Cancelled, "the task was cancelled")
}

/// The failure of a [`Transport`](crate::Transport)'s call during `action`.
pub fn from_transport(error: TransportError, action: impl Display) -> Failure {
    match error {
        TransportError::TimedOut => from_io(&io::ErrorKind::TimedOut.into(), action),
        TransportError::Closed => from_io(&io::ErrorKind::BrokenPipe.into(), action),
        TransportError::System(code) => from_io(&io::Error::from_raw_os_error(code), action),
    }
}

/// The failure of making a connection.
pub fn from_connection(error: ConnectionError) -> Failure {
    match error {
        ConnectionError::Address(error) => from_address(error),
        ConnectionError::System(error) => from_system(&error),
        ConnectionError::Socket(error) => from_socket(error),
        ConnectionError::Handshake(error) => from_handshake(error),
        ConnectionError::SharedMemory(error) => from_shared_memory(error),
        ConnectionError::Xdp(error) => from_xdp(error),
        ConnectionError::Obstacle(obstacle) => {
            Failure::new(FailureKind::NotAvailable, obstacle.to_string())
        }
        ConnectionError::WrongAddress { .. } | ConnectionError::NoTransport { .. } => {
            Failure::new(FailureKind::BadRequest, error.to_string())
        }
        ConnectionError::NoPeer { address, limit, strangers } => {
            let mut what = format!("nobody connected to {address} in {limit:?}");
            if strangers > 0 {
                what += &format!("; {strangers} datagrams or connections were not the peer's");
            }
            Failure::new(FailureKind::Peer, what)
                .hint("check that the peer was started and reaches this address")
        }
        ConnectionError::Cancelled => cancelled(),
    }
}

/// The failure of a text that is not an address.
pub fn from_address(error: AddressError) -> Failure {
    let failure = Failure::new(FailureKind::BadRequest, error.to_string());
    match error {
        AddressError::Address { .. } => failure.hint(
            "write 127.0.0.1:4000, [::1]:4000, unix:@NAME, unix:/PATH, mcast:GROUP:PORT/PORT, \
             xdp:10.0.0.1:4000 or shm:PID/FD",
        ),
        AddressError::Ip(_) => failure.hint("write 127.0.0.1, 127.0.0.1:4000, ::1 or [::1]:4000"),
    }
}

fn from_system(error: &SystemError) -> Failure {
    from_io(&error.source, &error.action)
}

/// The failure of a system call during `action`, such as `connecting to ADDRESS`.
fn from_io(error: &io::Error, action: impl Display) -> Failure {
    use io::ErrorKind;
    let failure = |kind, what: &str| Failure::new(kind, format!("{action}: {what}"));
    match error.kind() {
        ErrorKind::AddrInUse => failure(FailureKind::AddressInUse, "the address is in use")
            .hint("choose another port, or end the program that uses it (`ss -lnp` shows it)"),
        ErrorKind::ConnectionRefused => failure(FailureKind::Peer, "nobody listens there")
            .hint("start the peer first, and check address and port"),
        ErrorKind::NotFound if error.raw_os_error() == Some(libc::ENOENT) => {
            failure(FailureKind::Peer, "nobody listens there").hint("start the peer first")
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            failure(FailureKind::Peer, "no answer in time")
                .hint("check that the peer's machine is up and no firewall is between")
        }
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            failure(FailureKind::Peer, "the peer has gone")
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            failure(FailureKind::Peer, "there is no route to it")
                .hint("check the address and the routes (`ip route get ADDRESS`)")
        }
        ErrorKind::PermissionDenied => failure(FailureKind::Permission, "not permitted"),
        ErrorKind::AddrNotAvailable => {
            failure(FailureKind::BadRequest, "this machine does not have that address")
                .hint("`ip address` lists those that it has")
        }
        _ => failure(FailureKind::System, &error.to_string()),
    }
}

fn from_socket(error: SocketError) -> Failure {
    match error {
        SocketError::System(error) => from_system(&error),
        SocketError::CongestionControl { name, source } => {
            let what = format!("choosing congestion control `{name}`: {source}");
            Failure::new(FailureKind::NotAvailable, what).hint(
                "net.ipv4.tcp_available_congestion_control lists what this kernel has; load a \
                 module, or run as root",
            )
        }
        SocketError::BusyPoll(source) => from_io(&source, "setting SO_BUSY_POLL")
            .hint("run as root (CAP_NET_ADMIN), or raise net.core.busy_read to 50"),
        SocketError::MulticastRoute { group, interface } => {
            let what = format!("multicast to {group}: {interface}'s interface has no route");
            Failure::new(FailureKind::NotAvailable, what).hint(
                "loopback carries no IPv6 multicast: use an address of another interface, or IPv4",
            )
        }
    }
}

fn from_handshake(error: HandshakeError) -> Failure {
    match error {
        HandshakeError::System(error) => from_system(&error),
        HandshakeError::Cancelled => cancelled(),
        HandshakeError::NoReply { peer, limit } => {
            let what = format!("connecting to {peer}: no answer in {limit:?}");
            Failure::new(FailureKind::Peer, what).hint(CHECK_FIREWALL)
        }
    }
}

fn from_shared_memory(error: SharedMemoryError) -> Failure {
    match error {
        SharedMemoryError::System(error) => from_system(&error),
        SharedMemoryError::Connect { address, source } => {
            let failure = from_io(&source, format!("connecting to {address} by shm"));
            match failure.kind {
                FailureKind::Permission => {
                    failure.hint("both ends must run as one user, with the same capabilities")
                }
                FailureKind::Peer => failure.hint(
                    "both ends must run on one host and see the same processes; between hosts use \
                     tcp or udp",
                ),
                _ => failure,
            }
        }
        SharedMemoryError::Guests(error) => from_guest_memory(error),
        SharedMemoryError::OtherUser => Failure::new(FailureKind::Permission, error.to_string())
            .hint("start both ends as the same user"),
        SharedMemoryError::Hello(error) => {
            let what = format!("the peer's shared memory has another layout: {error}");
            Failure::new(FailureKind::Peer, what)
                .hint("run the same version of nearmetal at both ends")
        }
    }
}

fn from_guest_memory(error: GuestMemoryError) -> Failure {
    let what = error.to_string();
    match error {
        GuestMemoryError::Map(source) => from_io(&source, what),
        GuestMemoryError::Full(_) => Failure::new(FailureKind::NotAvailable, what),
        GuestMemoryError::NoListener(_) => Failure::new(FailureKind::Peer, what),
        GuestMemoryError::NoDevice => Failure::new(FailureKind::BadRequest, what)
            .hint("both ends must be guests of one environment"),
    }
}

fn from_xdp(error: XdpError) -> Failure {
    match error {
        XdpError::System(error) => from_system(&error),
        XdpError::Cancelled => cancelled(),
        XdpError::NoPeer { address, limit, other_queue } => {
            let what = format!("{address}: nobody connected in {limit:?}");
            Failure::new(FailureKind::Peer, what).hint(queue_hint(other_queue))
        }
        XdpError::NoReply { peer, limit, other_queue } => {
            let what = format!("connecting to {peer}: no answer in {limit:?}");
            Failure::new(FailureKind::Peer, what).hint(queue_hint(other_queue))
        }
        XdpError::RouteByOtherLink { peer, link } => {
            let what = format!("the route to {peer} does not use {link}");
            Failure::new(FailureKind::Peer, what)
                .hint(format!("`ip route get {peer}` shows it; use that link's address"))
        }
        XdpError::NoNeighbour { hop, peer } => {
            let what = format!("{hop}, the next hop to {peer}, has no known hardware address");
            Failure::new(FailureKind::Peer, what)
                .hint("check that the peer's machine is up and on this link")
        }
        XdpError::AlreadyAccepted => Failure::new(FailureKind::BadRequest, error.to_string()),
        XdpError::AddressFamilies { local, peer } => {
            let what = format!("{local} to {peer}: both ends must be of one address family");
            Failure::new(FailureKind::BadRequest, what)
        }
        XdpError::Setup(error) => from_xdp_setup(error),
    }
}

/// The failures of opening the endpoint of one end.
fn from_xdp_setup(error: XdpSetupError) -> Failure {
    let not_available = |what: String| Failure::new(FailureKind::NotAvailable, what);
    match error {
        XdpSetupError::Loopback(ip) => {
            not_available(format!("AF_XDP on {ip}: loopback has no device to take frames from"))
                .hint("use the address of a network link, or udp")
        }
        XdpSetupError::Unspecified(ip) => {
            let what = format!("AF_XDP needs the address of one link, not {ip}");
            Failure::new(FailureKind::BadRequest, what)
                .hint("`ip address` lists the addresses of this host")
        }
        XdpSetupError::NotEthernet(link) => {
            not_available(format!("AF_XDP on {link}: it is not an Ethernet link"))
                .hint("use the address of an Ethernet link")
        }
        XdpSetupError::Permission { link, source } => from_io(&source, format!("AF_XDP on {link}"))
            .hint(
                "run as root: it takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside of any user \
                 namespace",
            ),
        XdpSetupError::NoKernelSupport { link } => {
            not_available(format!("AF_XDP on {link}: the kernel has no AF_XDP"))
                .hint("use a kernel with CONFIG_XDP_SOCKETS")
        }
        XdpSetupError::LinkInUse { link } => {
            let what = format!("AF_XDP on {link}: another XDP program or socket uses the link");
            Failure::new(FailureKind::AddressInUse, what)
                .hint(format!("`ip link show {link}` names the program; end what uses it"))
        }
        XdpSetupError::LockedMemory { link } => {
            let what = format!("AF_XDP on {link}: the limit of locked memory is too low");
            Failure::new(FailureKind::Permission, what)
                .hint("raise `ulimit -l` (limits.conf: memlock) by 1024 KiB")
        }
        XdpSetupError::NoPath { link, driver, tried } => {
            let tried: Vec<String> =
                tried.iter().map(|(path, error)| format!("{path}: {error}")).collect();
            let tried = tried.join("; ");
            not_available(format!("AF_XDP on {link} (driver {driver}): no path works: {tried}"))
                .hint(
                    "an MTU of 1500 or less and fewer queues than the device has help some drivers",
                )
        }
        XdpSetupError::CongestionControl(name) => {
            let what =
                format!("choosing congestion control `{name}`: xdp-tcp has only {CONGESTION}");
            not_available(what).hint("leave it out, or use the kernel's tcp")
        }
    }
}

/// What to check where nothing was received.
fn queue_hint(other_queue: Option<String>) -> String {
    match other_queue {
        Some(link) => format!(
            "datagrams came by another queue than {QUEUE} of {link}; give it one queue: \
             ethtool -L {link} combined 1"
        ),
        None => CHECK_FIREWALL.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind_and_sentence() {
        let failure =
            |code| from_io(&io::Error::from_raw_os_error(code), "listening on 127.0.0.1:1");
        for (code, kind) in [
            (libc::EADDRINUSE, FailureKind::AddressInUse),
            (libc::ECONNREFUSED, FailureKind::Peer),
            (libc::ETIMEDOUT, FailureKind::Peer),
            (libc::ECONNRESET, FailureKind::Peer),
            (libc::ENETUNREACH, FailureKind::Peer),
            (libc::EACCES, FailureKind::Permission),
            (libc::EPERM, FailureKind::Permission),
            (libc::EADDRNOTAVAIL, FailureKind::BadRequest),
            (libc::EMFILE, FailureKind::System),
        ] {
            assert_eq!(failure(code).kind, kind, "{code}");
        }
        let text = failure(libc::EADDRINUSE).message;
        assert_eq!(text, "listening on 127.0.0.1:1: the address is in use");
    }

    #[test]
    fn addresses_are_refused_as_bad_requests() {
        for text in ["", "localhost", "unix:", "xdp:1", "shm:1/../2"] {
            let error = text.parse::<crate::address::Address>().unwrap_err();
            let failure = from_address(error);
            assert_eq!(failure.kind, FailureKind::BadRequest, "{text}");
            assert!(failure.hint.is_some(), "{text}");
        }
    }
}
