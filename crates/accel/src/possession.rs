//! Proof that the process at the other end of a unix socket holds the other end of a TCP
//! connection. Names can be guessed and messages can be passed on; this cannot be forged, whatever
//! the two ends' users and process namespaces are.
//!
//! 1. An end states by an epoll set (a [`Statement`]) that holds its TCP socket, registered with a
//!    number. Only a process with a descriptor of the socket can register it, or change the number.
//!    Who receives the set can neither send nor receive by it; the kernel shows him the number and
//!    the socket's inode, in `/proc/self/fdinfo`.
//! 2. The kernel's own table of connections (`sock_diag`) says which inode the other end has.
//! 3. The number names the channel. It has the unix socket of the connecting end and the process
//!    that speaks. Only one socket of a network namespace can have that socket's random name. So a
//!    statement that a third process passes on speaks of another channel, and is worthless.
//!
//! Two network namespaces have two tables, and each end sends a socket that asks its own one. To
//! deceive another, a process must at least be able to make a network namespace.

use std::ffi::c_int;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{sockaddr_un, socklen_t};

use crate::kernel;

/// `SO_PEERPIDFD`: a descriptor of the peer's process (Linux 6.5).
const SO_PEERPIDFD: c_int = 77;

/// The file system of descriptors of processes, each of which has an inode of its own there (Linux
/// 6.9).
const PID_FILE_SYSTEM: libc::c_long = 0x5049_4446;

/// Netlink message type of requests about one connection, and of their answers.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Bytes of a request about one connection: header of netlink, question, both ends.
const QUESTION_BYTES: usize = 16 + 8 + 48;

/// Where an answer says the family of the connection, its state, and its inode.
const FAMILY_AT: usize = 16;
const STATE_AT: usize = 17;
const INODE_AT: usize = 84;

/// State of a socket that listens: the answer about a connection that is not there.
const LISTENING: u8 = 10;

/// Bytes that are read of a statement's description, which has a line for each registration.
const DESCRIPTION_BYTES: usize = 2048;

/// Name of the connecting end's unix socket, before its number.
const NAME: &[u8] = b"\0nearmetal-accel/channel/";

/// An end's statement that it holds a TCP socket.
pub struct Statement(OwnedFd);

impl Statement {
    /// States it about `fd`, with a number.
    pub fn new(fd: c_int, number: u64) -> Option<Statement> {
        // SAFETY: no pointers.
        let set = unsafe { kernel::epoll_create1(libc::EPOLL_CLOEXEC) };
        let statement = Statement(owned(set)?);
        let mut event = libc::epoll_event { events: 0, u64: number };
        // SAFETY: the event is live for the call.
        let added = unsafe { kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        (added == 0).then_some(statement)
    }

    /// Takes it apart, for a caller that withdraws it by [`withdraw`].
    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Statement {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Withdraws a statement about `fd`, also for those who have received it.
pub fn withdraw(statement: c_int, fd: c_int) {
    // SAFETY: the call needs no event.
    unsafe { kernel::epoll_ctl(statement, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

/// Binds the connecting end's unix socket to a name that no other socket has.
pub fn name_channel(unix: c_int) -> bool {
    let mut number = [0_u8; 8];
    // SAFETY: the call writes at most eight bytes, which are live.
    let count = unsafe {
        kernel::raw(libc::SYS_getrandom, number.as_mut_ptr().addr(), number.len(), 0, 0, 0, 0)
    };
    if count != number.len() as isize {
        return false;
    }
    // SAFETY: all zero is a valid unix address.
    let mut address: sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut path = [0_u8; NAME.len() + 16];
    path[..NAME.len()].copy_from_slice(NAME);
    let _ = write!(&mut path[NAME.len()..], "{:016x}", u64::from_ne_bytes(number));
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    let length = (std::mem::offset_of!(sockaddr_un, sun_path) + path.len()) as socklen_t;
    // SAFETY: the address is live and of the stated length.
    unsafe { kernel::bind(unix, (&raw const address).cast(), length) == 0 }
}

/// The number in the name of the connecting end's unix socket: of this end, or of the peer.
pub fn channel_number(unix: c_int, of_peer: bool) -> Option<u64> {
    // SAFETY: all zero is a valid unix address.
    let mut address: sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = size_of::<sockaddr_un>() as socklen_t;
    let place = (&raw mut address).cast();
    // SAFETY: both are live and of the stated size.
    let result = unsafe {
        match of_peer {
            true => kernel::getpeername(unix, place, &raw mut length),
            false => kernel::getsockname(unix, place, &raw mut length),
        }
    };
    let bytes = (length as usize).checked_sub(std::mem::offset_of!(sockaddr_un, sun_path))?;
    if result != 0 || bytes != NAME.len() + 16 {
        return None;
    }
    let path = address.sun_path.map(|byte| byte.to_ne_bytes()[0]);
    let digits = path[..bytes].strip_prefix(NAME)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// What the connecting end states: the channel's number, and who speaks.
pub fn client_number(channel: u64, process: u64) -> u64 {
    channel ^ process
}

/// What the accepting end states.
pub fn server_number(channel: u64, process: u64) -> u64 {
    channel.rotate_left(32) ^ process
}

/// [`own_process`], or [`NOT_ASKED`].
static OWN_PROCESS: AtomicU64 = AtomicU64::new(NOT_ASKED);

const NOT_ASKED: u64 = u64::MAX;

/// In the child of a fork, which is another process.
pub fn forked_child() {
    OWN_PROCESS.store(NOT_ASKED, Ordering::Relaxed);
}

/// The inode of this process, which no other process has; 0 on a kernel that gives it none.
pub fn own_process() -> u64 {
    let known = OWN_PROCESS.load(Ordering::Relaxed);
    if known != NOT_ASKED {
        return known;
    }
    let pid = kernel::getpid() as usize;
    // SAFETY: plain numbers.
    let descriptor = unsafe { kernel::raw(libc::SYS_pidfd_open, pid, 0, 0, 0, 0, 0) as c_int };
    let inode = owned(descriptor)
        .filter(|it| {
            let system = rustix::fs::fstatfs(it);
            system.is_ok_and(|system| system.f_type as libc::c_long == PID_FILE_SYSTEM)
        })
        .map_or(0, inode_of_file);
    OWN_PROCESS.store(inode, Ordering::Relaxed);
    inode
}

/// The same of the process that has connected a unix socket, or listened for it.
pub fn peer_process(unix: c_int) -> u64 {
    if own_process() == 0 {
        return 0;
    }
    let descriptor = kernel::option(unix, libc::SOL_SOCKET, SO_PEERPIDFD);
    descriptor.and_then(owned).map_or(0, inode_of_file)
}

fn inode_of_file(file: OwnedFd) -> u64 {
    rustix::fs::fstat(&file).map_or(0, |stat| stat.st_ino)
}

/// A descriptor that a call has just created; none if it is an error.
fn owned(descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: a descriptor that was just created, and that nothing else uses.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A socket that asks the kernel about connections of this network namespace. Who has it can do
/// nothing else with it.
pub fn asking_socket() -> Option<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain numbers.
    owned(unsafe { kernel::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) })
}

/// Whether a descriptor of another process is such a socket.
fn asks_the_kernel(fd: c_int) -> bool {
    let option = |name| kernel::option(fd, libc::SOL_SOCKET, name);
    option(libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
        && option(libc::SO_PROTOCOL) == Some(libc::NETLINK_SOCK_DIAG)
}

/// The proof that a peer has sent.
pub struct Proof<'a> {
    /// Its statement.
    pub statement: BorrowedFd<'a>,
    /// Its socket that asks about connections, if it may be in another network namespace.
    pub asking: Option<BorrowedFd<'a>>,
    /// The number that the statement must have.
    pub number: u64,
}

impl Proof<'_> {
    /// Whether its maker holds the other end of the connection `fd`, which leads from `local` to
    /// `peer`.
    pub fn holds(&self, fd: c_int, local: SocketAddr, peer: SocketAddr) -> bool {
        let seed = self.number as u32;
        let device = kernel::option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).unwrap_or(0);
        let ask = |asking: &BorrowedFd<'_>| inode_of(asking, (peer, local), device as u32, seed);
        // The own table comes first: it tells the truth.
        let own = asking_socket();
        let inode = own.as_ref().and_then(|own| ask(&own.as_fd())).or_else(|| {
            self.asking.filter(|asking| asks_the_kernel(asking.as_raw_fd())).and_then(|it| ask(&it))
        });
        inode.is_some_and(|inode| self.states(fd, inode))
    }

    /// Whether the statement is about the socket with this inode, and has the number.
    fn states(&self, fd: c_int, inode: u64) -> bool {
        let set = self.statement.as_raw_fd();
        // Only an epoll set answers that it does not have this socket.
        // SAFETY: the call needs no event.
        let known =
            unsafe { kernel::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        if known == 0 || kernel::errno() != libc::ENOENT {
            return false;
        }
        let Some(device) = device_of_sockets(fd) else { return false };
        let mut buffer = [0_u8; DESCRIPTION_BYTES];
        let count = read_description(set, &mut buffer);
        let text = std::str::from_utf8(&buffer[..count]).unwrap_or("");
        text.lines().any(|line| is_about(line, device, inode, self.number))
    }
}

/// The device number that all sockets have, asked for `fd` at first.
fn device_of_sockets(fd: c_int) -> Option<u64> {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        // SAFETY: the descriptor is open for the whole call.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
        KNOWN.store(stat.st_dev, Ordering::Relaxed);
    }
    Some(KNOWN.load(Ordering::Relaxed))
}

/// Whether a line of an epoll set's description is about this socket, with this number:
/// `tfd: 4 events: 18 data: 4  pos:0 ino:75bbdc sdev:9`, numbers after the first in hexadecimal.
fn is_about(line: &str, device: u64, inode: u64, number: u64) -> bool {
    let Some(rest) = line.strip_prefix("tfd:") else { return false };
    let after = |key: &str| {
        let word = rest.split_once(key)?.1.split_whitespace().next()?;
        u64::from_str_radix(word, 16).ok()
    };
    after("data:") == Some(number) && after("ino:") == Some(inode) && after("sdev:") == Some(device)
}

/// Reads what the kernel says about a descriptor; returns how many bytes.
fn read_description(fd: c_int, buffer: &mut [u8]) -> usize {
    let mut path = [0_u8; 40];
    if write!(&mut path[..39], "/proc/self/fdinfo/{fd}").is_err() {
        return 0;
    }
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let here = libc::AT_FDCWD as isize as usize;
    // SAFETY: the path ends with a zero, and is live for the call.
    let file = unsafe { kernel::raw(libc::SYS_openat, here, path.as_ptr().addr(), flags, 0, 0, 0) };
    let Some(file) = owned(file as c_int) else { return 0 };
    let (at, bytes) = (buffer.as_mut_ptr().addr(), buffer.len());
    // SAFETY: the buffer is live and of the stated size.
    let count =
        unsafe { kernel::raw(libc::SYS_read, file.as_raw_fd() as usize, at, bytes, 0, 0, 0) };
    count.max(0) as usize
}

/// The inode of the socket of a connection, given its own address and its peer's; none if the
/// namespace of `asking` has no such connection.
fn inode_of(
    asking: &BorrowedFd<'_>,
    ends: (SocketAddr, SocketAddr),
    device: u32,
    seed: u32,
) -> Option<u64> {
    let question = question(ends, device, seed);
    // SAFETY: all zero is a valid netlink address, that of the kernel.
    let mut from: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
    from.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let mut length = size_of::<libc::sockaddr_nl>() as socklen_t;
    let (fd, bytes) = (asking.as_raw_fd(), question.as_ptr().cast());
    let address = (&raw mut from).cast();
    // SAFETY: the question and the address are live and of the stated sizes.
    let sent = unsafe { kernel::sendto(fd, bytes, QUESTION_BYTES, 0, address, length) };
    if sent != QUESTION_BYTES as isize {
        return None;
    }
    let mut answer = [0_u8; 256];
    let place = answer.as_mut_ptr().cast();
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: as above, and the answer.
    let count = unsafe {
        kernel::recvfrom(fd, place, answer.len(), flags, address.cast(), &raw mut length)
    };
    let is_of_kernel = from.nl_pid == 0;
    (is_of_kernel && count >= INODE_AT as isize + 4)
        .then(|| inode_in(&answer, ends, seed))
        .flatten()
}

/// The question about the connection with these ends.
fn question(
    (local, peer): (SocketAddr, SocketAddr),
    device: u32,
    seed: u32,
) -> [u8; QUESTION_BYTES] {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = [0; QUESTION_BYTES];
    bytes[..4].copy_from_slice(&(QUESTION_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes[8..12].copy_from_slice(&seed.to_ne_bytes());
    bytes[16] = family as u8;
    bytes[17] = libc::IPPROTO_TCP as u8;
    // All states.
    bytes[20..24].fill(0xff);
    bytes[24..26].copy_from_slice(&local.port().to_be_bytes());
    bytes[26..28].copy_from_slice(&peer.port().to_be_bytes());
    for (at, ip) in [(28, local.ip()), (44, peer.ip())] {
        match ip {
            IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[60..64].copy_from_slice(&device.to_ne_bytes());
    // Any socket with these ends.
    bytes[64..72].fill(0xff);
    bytes
}

/// The inode that an answer has, if it answers the question about these ends.
fn inode_in(answer: &[u8; 256], ends: (SocketAddr, SocketAddr), seed: u32) -> Option<u64> {
    let word = |at: usize| {
        u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]])
    };
    let end = |port_at: usize, at: usize| {
        let port = u16::from_be_bytes([answer[port_at], answer[port_at + 1]]);
        let mut octets = [0_u8; 16];
        octets.copy_from_slice(&answer[at..at + 16]);
        let ip: IpAddr = match c_int::from(answer[FAMILY_AT]) {
            libc::AF_INET => [octets[0], octets[1], octets[2], octets[3]].into(),
            _ => octets.into(),
        };
        SocketAddr::new(ip.to_canonical(), port)
    };
    let is_answer = u16::from_ne_bytes([answer[4], answer[5]]) == SOCK_DIAG_BY_FAMILY
        && word(8) == seed
        && answer[STATE_AT] != LISTENING
        && (end(20, 24), end(22, 40)) == ends;
    is_answer.then(|| u64::from(word(INODE_AT))).filter(|inode| *inode != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn statement_shows_possession_of_the_other_end_only() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let holds = |stated: c_int, number: u64| {
                let statement = Statement::new(stated, 77).unwrap();
                let proof = Proof { statement: statement.as_fd(), asking: None, number };
                let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
                proof.holds(server.as_raw_fd(), local, peer)
            };
            assert!(holds(client.as_raw_fd(), 77));
            assert!(!holds(client.as_raw_fd(), 78), "another channel");
            assert!(!holds(other.as_raw_fd(), 77), "another connection");
            assert!(!holds(server.as_raw_fd(), 77), "the own end");
            assert!(!holds(listener.as_raw_fd(), 77), "the listener");
        }
    }

    #[test]
    fn withdrawn_statement_proves_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let statement = Statement::new(client.as_raw_fd(), 5).unwrap();
        let copy = statement.as_fd().try_clone_to_owned().unwrap();
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        let proof = Proof { statement: copy.as_fd(), asking: None, number: 5 };
        assert!(proof.holds(server.as_raw_fd(), local, peer));
        withdraw(statement.into_descriptor().as_raw_fd(), client.as_raw_fd());
        assert!(!proof.holds(server.as_raw_fd(), local, peer));
    }

    #[test]
    fn files_whose_description_looks_alike_are_no_statement() {
        assert!(is_about("tfd: 4 events: 0 data: 5  pos:0 ino:ff sdev:9", 9, 255, 5));
        assert!(!is_about("name: tfd: 4 events: 0 data: 5  pos:0 ino:ff sdev:9", 9, 255, 5));
        assert!(!is_about("tfd: 4 events: 0 data: 15  pos:0 ino:ff sdev:9", 9, 255, 5));
    }

    #[test]
    fn process_has_an_inode_of_its_own_or_none() {
        let (one, two) = nm_sys::socket::unix_pair().unwrap();
        assert_eq!(peer_process(one.as_raw_fd()), own_process());
        assert_eq!(peer_process(two.as_raw_fd()), own_process());
    }
}
