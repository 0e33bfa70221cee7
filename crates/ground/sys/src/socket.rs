//! Sockets: creating them, moving bytes, and the options that change what is measured.
//!
//! Every call uses the C library's function, never a direct system call. Accelerators that are
//! preloaded into a program (Onload, VMA, our own) replace those functions.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream, ToSocketAddrs,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

use crate::poll;

/// Flag of [`receive`]: return `EAGAIN` instead of sleeping.
pub const DONT_WAIT: c_int = libc::MSG_DONTWAIT;

/// Flag of [`receive`] on a stream: sleep until the buffer is full.
pub const WAIT_ALL: c_int = libc::MSG_WAITALL;

/// `ssize_t send(int, const void *, size_t, int)`—Sends and never raises `SIGPIPE`.
#[inline(always)]
pub fn send(fd: RawFd, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a live slice, which the kernel only reads. A
    // closed descriptor would be an error, not undefined behaviour.
    let sent = unsafe {
        libc::send(fd, bytes.as_ptr().cast::<c_void>(), bytes.len(), flags | libc::MSG_NOSIGNAL)
    };
    if sent >= 0 { Ok(sent as usize) } else { Err(io::Error::last_os_error()) }
}

/// `ssize_t recv(int, void *, size_t, int)`—Receives.
#[inline(always)]
pub fn receive(fd: RawFd, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a live slice that we may write.
    let received =
        unsafe { libc::recv(fd, buffer.as_mut_ptr().cast::<c_void>(), buffer.len(), flags) };
    if received >= 0 { Ok(received as usize) } else { Err(io::Error::last_os_error()) }
}

/// `recvfrom`—Receives a datagram and returns the address of its sender.
pub fn receive_from(fd: RawFd, buffer: &mut [u8], flags: c_int) -> io::Result<(usize, SocketAddr)> {
    let mut address = Address::empty();
    // SAFETY: both buffers are live and writable, each with its true length.
    let received = unsafe {
        libc::recvfrom(
            fd,
            buffer.as_mut_ptr().cast::<c_void>(),
            buffer.len(),
            flags,
            (&raw mut address.storage).cast::<libc::sockaddr>(),
            &mut address.length,
        )
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((received as usize, address.read()?))
}

/// Type of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// TCP.
    Stream,
    /// UDP.
    Datagram,
}

/// `socket`—A socket of the address family of `address`, closed on exec.
pub fn socket(address: &SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = match kind {
        SocketType::Stream => libc::SOCK_STREAM,
        SocketType::Datagram => libc::SOCK_DGRAM,
    };
    // SAFETY: the arguments are numbers; the result is checked before it is owned.
    unsafe { owned(libc::socket(family, kind | libc::SOCK_CLOEXEC, 0)) }
}

/// `socketpair(AF_UNIX, SOCK_STREAM)`—Two Unix stream sockets that are connected to each other.
pub fn unix_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    Ok((a.into(), b.into()))
}

/// `bind`.
pub fn bind(fd: &OwnedFd, address: &SocketAddr) -> io::Result<()> {
    let address = Address::from(address);
    // SAFETY: pointer and length describe a live socket address.
    check(unsafe { libc::bind(fd.as_raw_fd(), address.pointer(), address.length) })
}

/// `listen`.
pub fn listen(fd: &OwnedFd, backlog: i32) -> io::Result<()> {
    // SAFETY: the arguments are numbers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })
}

/// `accept4`—The next connection; sleeps until there is one.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (peer, length) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: null pointers are allowed where the peer's address is not needed; the result is
    // checked.
    unsafe { owned(libc::accept4(fd.as_raw_fd(), peer, length, libc::SOCK_CLOEXEC)) }
}

/// `connect`—Connects, for at most `limit`.
///
/// # Errors
/// `ETIMEDOUT` after `limit`, and those of the system calls.
pub fn connect(fd: &OwnedFd, address: &SocketAddr, limit: Duration) -> io::Result<()> {
    let address = Address::from(address);
    set_nonblocking(fd, true)?;
    // SAFETY: pointer and length describe a live socket address.
    let connected =
        check(unsafe { libc::connect(fd.as_raw_fd(), address.pointer(), address.length) });
    if let Err(error) = connected {
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
        if !poll::writable(fd.as_raw_fd(), limit)? {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let code: c_int = get(fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
    }
    set_nonblocking(fd, false)
}

/// `shutdown(SHUT_WR)`—Signals the end of a stream to the peer.
pub fn shutdown_write(fd: RawFd) -> io::Result<()> {
    // SAFETY: the arguments are numbers.
    check(unsafe { libc::shutdown(fd, libc::SHUT_WR) })
}

/// `getsockname`—The local address.
pub fn local_address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    let mut address = Address::empty();
    // SAFETY: the storage is live and writable, and the length is its own.
    check(unsafe {
        libc::getsockname(
            fd.as_raw_fd(),
            (&raw mut address.storage).cast::<libc::sockaddr>(),
            &mut address.length,
        )
    })?;
    address.read()
}

/// `getpeername`—The address of the peer of a connected socket.
pub fn peer_address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    let mut address = Address::empty();
    // SAFETY: the storage is live and writable, and the length is its own.
    check(unsafe {
        libc::getpeername(
            fd.as_raw_fd(),
            (&raw mut address.storage).cast::<libc::sockaddr>(),
            &mut address.length,
        )
    })?;
    address.read()
}

/// `TCP_NODELAY`: small messages are sent at once.
pub fn set_no_delay(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1 as c_int)
}

/// `SO_KEEPALIVE`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_USER_TIMEOUT`: after `limit` without data
/// from the peer, keepalive probes are sent. If the peer acknowledges neither probes nor data for
/// twice as long, the connection fails. Rounded down to seconds, at least one.
pub fn set_peer_timeout(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let seconds = limit.as_secs().clamp(1, 3_600) as c_int;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1 as c_int)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, seconds * 2_000)
}

/// What the connection between an agent and its controller needs: small messages are sent at once,
/// and it fails after about half a minute without a sign of the other machine.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_for_agents(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_no_delay(fd)?;
    set_peer_timeout(fd, Duration::from_secs(15))
}

/// Connects to the first address of a host and port that answers, each within `limit`.
///
/// # Errors
/// If there is no address, or why the last one did not answer.
pub fn connect_to_any(place: impl ToSocketAddrs, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// `SO_REUSEADDR`: lets a server bind again at once, and several receivers of a multicast group
/// share a port.
pub fn set_reuse_address(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1 as c_int)
}

/// `SO_BUSY_POLL`: how long a blocking receive polls the device before it sleeps, µs.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN` where the value is above `net.core.busy_read`.
pub fn set_busy_poll(fd: BorrowedFd<'_>, microseconds: u32) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, microseconds as c_int)
}

/// `SO_RCVTIMEO` and `SO_SNDTIMEO`: after this time a blocking call returns `EAGAIN`.
pub fn set_timeouts(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: limit.as_secs().min(1 << 30) as _,
        tv_usec: libc::suseconds_t::from(limit.subsec_micros()),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time)?;
    set(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time)
}

/// `SO_SNDBUF` and `SO_RCVBUF`: requests buffers of this size; the kernel doubles and limits it.
pub fn set_buffers(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

/// `SO_SNDBUF` in effect, bytes.
pub fn send_buffer(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)? as u32)
}

/// `SO_RCVBUF` in effect, bytes.
pub fn receive_buffer(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)? as u32)
}

/// `TCP_CONGESTION`: sets the congestion control algorithm.
///
/// # Errors
/// `ENOENT` if the kernel has no such algorithm, `EPERM` if an ordinary user may not set it.
pub fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the pointer and length are those of a live string, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast::<c_void>(),
            name.len() as socklen_t,
        )
    })
}

/// `TCP_CONGESTION`: the congestion control algorithm in use.
pub fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    let name: [u8; 16] = get(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION)?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// `TCP_MAXSEG`: maximum segment size, bytes.
pub fn max_segment(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(get::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)? as u32)
}

/// `IP_MTU` or `IPV6_MTU`: MTU of the route of a connected socket, bytes.
pub fn route_mtu(fd: BorrowedFd<'_>, ipv4: bool) -> io::Result<u32> {
    let (level, name) =
        if ipv4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    Ok(get::<c_int>(fd, level, name)? as u32)
}

/// `TCP_INFO`: segments retransmitted since the connection was established.
pub fn retransmits(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // `tcpi_total_retrans` is the u32 at byte 100 of `struct tcp_info` (linux/tcp.h), which the
    // kernel only extends at its end.
    let info: [u8; 104] = get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(u64::from(u32::from_ne_bytes([info[100], info[101], info[102], info[103]])))
}

/// `TCP_INFO`: the smallest round trip of a TCP connection of late, as the kernel has measured it
/// with the data and the handshake that this end has sent; the smoothed one where the kernel knows
/// no smallest one; none if nothing was measured. The kernel looks back over five minutes
/// (`net.ipv4.tcp_min_rtt_wlen`), and takes no acknowledgement into the smallest one that the peer
/// may have delayed.
///
/// # Errors
/// If it is not a TCP socket.
pub fn round_trip(fd: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    // `tcpi_rtt` is the u32 at byte 68 of `struct tcp_info` (linux/tcp.h), `tcpi_min_rtt` that at
    // byte 148; both are in µs. A kernel before 4.9 fills fewer bytes; those stay zero.
    let info: [u8; 152] = get(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let at = |place: usize| {
        u32::from_ne_bytes([info[place], info[place + 1], info[place + 2], info[place + 3]])
    };
    // The kernel begins with the largest number as the smallest round trip.
    let known = [at(148), at(68)].into_iter().find(|us| *us > 0 && *us < u32::MAX);
    Ok(known.map(|us| Duration::from_micros(us.into())))
}

/// Joins a multicast group on the interface that has the address `interface`.
pub fn join_group(fd: BorrowedFd<'_>, group: IpAddr, interface: IpAddr) -> io::Result<()> {
    match (group, interface) {
        (IpAddr::V4(group), IpAddr::V4(interface)) => {
            let request = membership_request(group, interface);
            set(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, request)?;
            // Otherwise the socket also receives groups that other sockets of this machine joined.
            set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0 as c_int)
        }
        (IpAddr::V6(group), IpAddr::V6(interface)) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                ipv6mr_interface: interface_index(interface)?,
            };
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, request)
        }
        _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// Sends multicast through the interface that has the address `interface`, with a hop limit of one,
/// and to receivers on this machine as well.
pub fn set_multicast_interface(fd: BorrowedFd<'_>, interface: IpAddr) -> io::Result<()> {
    match interface {
        IpAddr::V4(interface) => {
            let request = membership_request(Ipv4Addr::UNSPECIFIED, interface);
            set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)?;
            set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 1 as c_int)?;
            set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 1 as c_int)
        }
        IpAddr::V6(interface) => {
            let index = interface_index(interface)? as c_int;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index)?;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, 1 as c_int)?;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 1 as c_int)
        }
    }
}

fn membership_request(group: Ipv4Addr, interface: Ipv4Addr) -> libc::ip_mreqn {
    let in_addr = |address: Ipv4Addr| libc::in_addr { s_addr: u32::from(address).to_be() };
    libc::ip_mreqn {
        imr_multiaddr: in_addr(group),
        imr_address: in_addr(interface),
        imr_ifindex: 0,
    }
}

/// Index of the interface that has an IPv6 address, as `if_inet6` of the thread's own network
/// namespace lists it.
pub fn interface_index(address: Ipv6Addr) -> io::Result<u32> {
    let wanted: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6")?;
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(found, _)| *found == wanted)
        .find_map(|(_, rest)| u32::from_str_radix(rest.split_ascii_whitespace().next()?, 16).ok())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
}

fn set_nonblocking(fd: &OwnedFd, nonblocking: bool) -> io::Result<()> {
    let value = c_int::from(nonblocking);
    // SAFETY: `FIONBIO` reads one int from live memory.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &value) })
}

/// `setsockopt`.
fn set<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: T) -> io::Result<()> {
    // SAFETY: pointer and length are those of a live value, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<T>() as socklen_t,
        )
    })
}

/// Types of which any bytes are a valid value.
trait AnyBytes: Copy {}
impl AnyBytes for c_int {}
impl<const N: usize> AnyBytes for [u8; N] {}

/// `getsockopt`; bytes that the kernel does not fill stay zero.
fn get<T: AnyBytes>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: all-zero bytes are a valid value of every `AnyBytes` type.
    let mut value: T = unsafe { zeroed() };
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: the value is live and writable, the length is its own, and any bytes are valid.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &mut length,
        )
    })?;
    Ok(value)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
/// `fd` must be negative (an error) or a new descriptor that nothing else owns.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: not negative, hence new and not owned elsewhere, by the caller's contract.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The IP address in a socket address of the C library; none for null and for other families.
///
/// # Safety
/// The pointer must be null or point to a complete address of its family.
pub(crate) unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, hence a complete address by the caller's contract; the family determines
    // the structure.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// A socket address in the kernel's format.
struct Address {
    storage: libc::sockaddr_storage,
    length: socklen_t,
}

impl Address {
    fn empty() -> Address {
        // SAFETY: an all-zero sockaddr_storage is valid.
        let storage = unsafe { zeroed() };
        Address { storage, length: size_of::<libc::sockaddr_storage>() as socklen_t }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast::<libc::sockaddr>()
    }

    fn read(&self) -> io::Result<SocketAddr> {
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family determines the structure, and the storage is large enough for
                // each.
                let v4 = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family determines the structure, and the storage is large enough for
                // each.
                let v6 = unsafe { *(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
    }
}

impl From<&SocketAddr> for Address {
    fn from(address: &SocketAddr) -> Address {
        let mut result = Address::empty();
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: an all-zero sockaddr_in is valid.
                let mut raw: libc::sockaddr_in = unsafe { zeroed() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                result.length = size_of::<libc::sockaddr_in>() as socklen_t;
                // SAFETY: the storage is large enough and aligned for every socket address.
                unsafe { (&raw mut result.storage).cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                // SAFETY: an all-zero sockaddr_in6 is valid.
                let mut raw: libc::sockaddr_in6 = unsafe { zeroed() };
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_flowinfo = v6.flowinfo();
                raw.sin6_scope_id = v6.scope_id();
                result.length = size_of::<libc::sockaddr_in6>() as socklen_t;
                // SAFETY: the storage is large enough and aligned for every socket address.
                unsafe { (&raw mut result.storage).cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn tcp_pair() -> (OwnedFd, OwnedFd) {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = socket(&any, SocketType::Stream).unwrap();
        bind(&listener, &any).unwrap();
        listen(&listener, 1).unwrap();
        let address = local_address(&listener).unwrap();
        let client = socket(&address, SocketType::Stream).unwrap();
        connect(&client, &address, LIMIT).unwrap();
        (client, accept(listener.as_fd()).unwrap())
    }

    #[test]
    fn bytes_arrive_and_options_can_be_read() {
        let (client, server) = tcp_pair();
        assert_eq!(send(client.as_raw_fd(), b"hello", 0).unwrap(), 5);
        let mut buffer = [0; 5];
        assert_eq!(receive(server.as_raw_fd(), &mut buffer, WAIT_ALL).unwrap(), 5);
        assert_eq!(&buffer, b"hello");
        set_buffers(client.as_fd(), 100_000).unwrap();
        assert!(send_buffer(client.as_fd()).unwrap() >= 100_000);
        assert!(receive_buffer(client.as_fd()).unwrap() >= 100_000);
        let name = congestion(client.as_fd()).unwrap();
        set_congestion(client.as_fd(), &name).unwrap();
        let unknown = set_congestion(client.as_fd(), "no-such").unwrap_err();
        assert_eq!(unknown.raw_os_error(), Some(libc::ENOENT));
        assert!(max_segment(client.as_fd()).unwrap() > 500);
        assert!(route_mtu(client.as_fd(), true).unwrap() > 500);
        assert_eq!(retransmits(client.as_fd()).unwrap(), 0);
    }

    #[test]
    fn the_round_trip_of_a_tcp_connection_is_known_at_both_ends() {
        let (client, server) = tcp_pair();
        for end in [&client, &server] {
            let known = round_trip(end.as_fd()).unwrap().expect("the handshake is measured");
            assert!(known > Duration::ZERO && known < LIMIT, "{known:?}");
        }
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(round_trip(unix.as_fd()).is_err());
        let unconnected = socket(&"127.0.0.1:0".parse().unwrap(), SocketType::Stream).unwrap();
        assert_eq!(round_trip(unconnected.as_fd()).unwrap(), None);
    }

    #[test]
    fn receive_with_a_time_out_ends() {
        let (client, _server) = tcp_pair();
        set_timeouts(client.as_fd(), Duration::from_millis(5)).unwrap();
        let error = receive(client.as_raw_fd(), &mut [0], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn connection_without_listener_is_refused() {
        let any = "127.0.0.1:0".parse().unwrap();
        let bound = socket(&any, SocketType::Stream).unwrap();
        bind(&bound, &any).unwrap();
        let address = local_address(&bound).unwrap();
        let client = socket(&address, SocketType::Stream).unwrap();
        let error = connect(&client, &address, LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    proptest! {
        #[test]
        fn every_address_survives_conversion(
            v4 in any::<bool>(), bits in any::<u128>(), port in any::<u16>(), scope in any::<u32>(),
        ) {
            let address = if v4 {
                SocketAddrV4::new(Ipv4Addr::from(bits as u32), port).into()
            } else {
                SocketAddr::from(SocketAddrV6::new(Ipv6Addr::from(bits), port, 0, scope))
            };
            prop_assert_eq!(Address::from(&address).read().unwrap(), address);
        }
    }
}
