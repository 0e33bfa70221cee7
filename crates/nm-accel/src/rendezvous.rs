//! How the two ends of a connection find each other (rendezvous): the accepting end listens on a
//! Unix socket named after the connection's addresses, and the connecting end sends it the memory.
//! Also registers each socket in the ledger, and queries the kernel's state of a connection.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::{sockaddr_storage, socklen_t};
use nm_ring::EndpointRole;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::ledger::{KernelReason, Ledger, SocketPhase, SocketRole};

use crate::calls::handover;
use crate::settings::Settings;
use crate::socket::{Phase, Socket};
use crate::{kernel, report, signals, table};

/// Version of the rendezvous protocol and of the region's layout.
const VERSION: u32 = 1;

/// Data calls after which a candidate without a peer moves to the kernel permanently.
const CALLS_MAX: u32 = 1 << 16;

/// State of a region that was offered and not accepted yet.
pub const OFFERED: u32 = 0;

/// State of a region that the accepting end has accepted.
const ACCEPTED: u32 = 1;

/// State of a region that the connecting end has withdrawn.
pub const WITHDRAWN: u32 = 2;

/// Time that a connected client has to send its memory.
const OFFER_TIMEOUT_NS: u64 = 20_000_000;

static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(ptr::null_mut());

/// Locked during a rendezvous, and while the process forks.
static RENDEZVOUS_LOCK: AtomicU32 = AtomicU32::new(0);

/// Creates the ledger. Called once, by the constructor.
pub fn prepare() {
    let mut name = [0_u8; 16];
    let length = program_name(&mut name);
    let program = std::str::from_utf8(&name[..length]).unwrap_or("");
    let hashes = Settings::get().to_text();
    let pid = table::owner_pid() as u32;
    let Ok((ledger, file)) = Ledger::create(pid, program, &hashes, boot_ns()) else { return };
    report::send_ledger(file.as_fd());
    table::protect(file.into_raw_fd());
    LEDGER.store(Box::into_raw(Box::new(ledger)), Ordering::Release);
}

/// The program's name, as the kernel stores it.
fn program_name(name: &mut [u8; 16]) -> usize {
    // SAFETY: the call writes at most 16 bytes.
    unsafe {
        let at = name.as_mut_ptr().addr();
        kernel::raw(libc::SYS_prctl, libc::PR_GET_NAME as usize, at, 0, 0, 0, 0)
    };
    name.iter().position(|&byte| byte == 0).unwrap_or(name.len())
}

fn boot_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is live.
    unsafe { kernel::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Prevents a rendezvous during a fork.
pub fn lock_for_fork() {
    for _ in 0..1_000_000 {
        let free = RENDEZVOUS_LOCK.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Allows a rendezvous again.
pub fn unlock() {
    RENDEZVOUS_LOCK.store(0, Ordering::Release);
}

/// In the child of a fork.
pub fn forked_child() {
    unlock();
}

/// Decodes an internet address; IPv4 mapped to IPv6 becomes IPv4.
pub fn parse_address(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let target = ptr::from_ref(storage);
    let (ip, port): (IpAddr, u16) = match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the storage holds an IPv4 address.
            let it = unsafe { &*target.cast::<libc::sockaddr_in>() };
            (Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr)).into(), it.sin_port)
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the storage holds an IPv6 address.
            let it = unsafe { &*target.cast::<libc::sockaddr_in6>() };
            (Ipv6Addr::from(it.sin6_addr.s6_addr).into(), it.sin6_port)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_be(port)))
}

fn socket_address(fd: c_int, peer: bool) -> Option<SocketAddr> {
    // SAFETY: all zero is a valid address storage.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    let target = (&raw mut storage).cast();
    // SAFETY: both are live and of the stated size.
    let result = unsafe {
        if peer {
            kernel::getpeername(fd, target, &raw mut length)
        } else {
            kernel::getsockname(fd, target, &raw mut length)
        }
    };
    if result == 0 { parse_address(&storage) } else { None }
}

/// Registers a TCP socket that has just been connected or accepted.
pub fn register_socket(fd: c_int, role: SocketRole, peer: Option<SocketAddr>) {
    // SAFETY: set once, never freed.
    let Some(ledger) = (unsafe { LEDGER.load(Ordering::Acquire).as_ref() }) else { return };
    let tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    if !tcp || fd as usize >= table::DESCRIPTORS {
        return;
    }
    let Some(record) = ledger.claim(table::owner_pid() as u32, boot_ns()) else { return };
    let Some(socket) = table::claim() else { return };
    record.set_role(role);
    let local = socket_address(fd, false);
    if let (Some(local), Some(peer)) = (local, peer) {
        record.set_addresses(local, peer);
    }
    let reason = match fd {
        // The C library reads and writes its standard streams without calling this library.
        0..=2 => KernelReason::Stdio,
        _ => initial_kernel_reason(role, local, peer),
    };
    let phase = if reason == KernelReason::None {
        record.set_phase(SocketPhase::Candidate);
        Phase::Candidate
    } else {
        record.set_reason(reason, 0);
        record.set_phase(SocketPhase::Kernel);
        Phase::Kernel
    };
    socket.open(fd, record, phase);
    table::bind(fd, socket);
    crate::multiplex::socket_registered(fd, socket);
}

/// Why a new socket cannot be accelerated, as far as that is known at once.
fn initial_kernel_reason(
    role: SocketRole,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
) -> KernelReason {
    let settings = Settings::get();
    if !settings.enabled {
        return KernelReason::Disabled;
    }
    if let Some(reason) = handover::process_kernel_reason() {
        return reason;
    }
    let (Some(local), Some(peer)) = (local, peer) else { return KernelReason::ConnectionNotSeen };
    if !settings.policy.allows(local.port(), peer.port()) {
        return KernelReason::Policy;
    }
    let here = peer.ip().is_loopback() || peer.ip() == local.ip() || peer.ip().is_unspecified();
    match role {
        SocketRole::Unknown | SocketRole::Listener => KernelReason::ConnectionNotSeen,
        _ if here || settings.share.is_some() => KernelReason::None,
        _ => KernelReason::NotSameHost,
    }
}

/// After each successful data call of a candidate: looks for the peer at some of them.
#[inline]
pub fn after_data_call(socket: &'static Socket, fd: c_int) {
    let calls = socket.calls.fetch_add(1, Ordering::Relaxed) + 1;
    let after = Settings::get().after_calls.max(1);
    let due = calls >= after
        && (calls == after || calls.is_power_of_two() || calls.is_multiple_of(64) && calls <= 4096);
    if due || calls >= CALLS_MAX {
        try_rendezvous(socket, fd, calls);
    }
}

#[cold]
fn try_rendezvous(socket: &'static Socket, fd: c_int, calls: u32) {
    if socket.record().holders.load(Ordering::Acquire) != 1
        || RENDEZVOUS_LOCK.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    let errno = kernel::errno();
    {
        let _deferral = signals::defer_handlers();
        if calls >= CALLS_MAX {
            socket.move_to_kernel(KernelReason::PeerNotAccelerated);
        } else if let Some(_guard) = socket.enter(fd)
            && socket.phase() == Phase::Candidate
        {
            match check_eligibility(socket, fd) {
                Err((reason, detail)) => {
                    socket.record().set_reason(reason, detail);
                    socket.move_to_kernel(reason);
                }
                Ok(Some(address)) => connect_ends(socket, fd, &address),
                Ok(None) => {}
            }
        }
    }
    unlock();
    kernel::set_errno(errno);
}

fn connect_ends(socket: &'static Socket, fd: c_int, address: &RendezvousAddress) {
    debug_assert_eq!(RENDEZVOUS_LOCK.load(Ordering::Relaxed), 1, "one rendezvous at a time");
    socket.connection_token.store(address.token, Ordering::Relaxed);
    let result = match socket.record().role() {
        SocketRole::Server => accept_memory(socket, fd, address),
        SocketRole::Client => offer_memory(socket, address),
        _ => Err(KernelReason::ConnectionNotSeen),
    };
    if let Err(reason) = result {
        socket.move_to_kernel(reason);
    }
}

/// Options that only the kernel supports: level, name, largest value without effect.
const KERNEL_ONLY_OPTIONS: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
    (libc::IPPROTO_TCP, TCP_INQ, 0),
];

const TCP_INQ: c_int = 36;
const TCP_ULP: c_int = 31;

/// Whether only the kernel supports this value of this option.
pub fn needs_kernel(level: c_int, name: c_int, value: c_int) -> bool {
    let listed = |&&(its_level, its_name, _): &&(c_int, c_int, c_int)| {
        (its_level, its_name) == (level, name)
    };
    (level, name) == (libc::IPPROTO_TCP, TCP_ULP)
        || level == libc::SOL_SOCKET && matches!(name, 63..=65)
        || KERNEL_ONLY_OPTIONS.iter().find(listed).is_some_and(|&(_, _, harmless)| value > harmless)
}

/// The number under which the ledger stores an option.
pub fn option_number(level: c_int, name: c_int) -> u32 {
    (level as u32) << 16 | name as u32 & 0xffff
}

/// Checks everything that may keep a socket on the kernel, and returns the address of the
/// rendezvous. None: not possible at the moment.
fn check_eligibility(
    socket: &Socket,
    fd: c_int,
) -> Result<Option<RendezvousAddress>, (KernelReason, u32)> {
    let (Some(local), Some(peer)) = (socket_address(fd, false), socket_address(fd, true)) else {
        return Ok(None);
    };
    socket.record().set_addresses(local, peer);
    let here = peer.ip().is_loopback() || peer.ip() == local.ip();
    if !here && Settings::get().share.is_none() {
        return Err((KernelReason::NotSameHost, 0));
    }
    if handover::has_io_uring() {
        return Err((KernelReason::IoUring, 0));
    }
    for &(level, name, harmless) in KERNEL_ONLY_OPTIONS {
        if kernel::option(fd, level, name).is_some_and(|value| value > harmless) {
            return Err((KernelReason::SocketOption, option_number(level, name)));
        }
    }
    // SAFETY: reads the flags of a descriptor.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFL, 0) };
    if flags & libc::O_ASYNC != 0 {
        return Err((KernelReason::SignalDriven, 0));
    }
    match TcpInfo::read(fd) {
        Some(info) if info.state == ESTABLISHED => {}
        Some(_) => return Ok(None),
        None => return Err((KernelReason::UnsupportedCall, 0)),
    }
    socket.set_nonblocking(flags & libc::O_NONBLOCK != 0);
    socket.read_timeouts(fd);
    let (client, server) = match socket.record().role() {
        SocketRole::Server => (peer, local),
        _ => (local, peer),
    };
    Ok(Some(RendezvousAddress::new(client, server)))
}

/// Address of a rendezvous.
struct RendezvousAddress {
    /// Part of the hash of the connection's addresses: the same at both ends.
    token: u64,
    storage: libc::sockaddr_un,
    length: socklen_t,
}

impl RendezvousAddress {
    fn new(client: SocketAddr, server: SocketAddr) -> RendezvousAddress {
        let mut hashes = [0_u64; 2];
        for (seed, word) in hashes.iter_mut().enumerate() {
            let mut hasher = DefaultHasher::new();
            hasher.write_usize(seed);
            // Members of a group use one name whichever user they belong to.
            let user = rustix::process::geteuid().as_raw();
            hasher.write_u32(Settings::get().group.unwrap_or(user));
            for end in [client, server] {
                match end.ip() {
                    IpAddr::V4(ip) => hasher.write(&ip.octets()),
                    IpAddr::V6(ip) => hasher.write(&ip.octets()),
                }
                hasher.write_u16(end.port());
            }
            *word = hasher.finish();
        }
        // SAFETY: all zero is a valid unix address.
        let mut storage: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        storage.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let capacity = storage.sun_path.len();
        let target = (&raw mut storage.sun_path).cast::<u8>();
        // SAFETY: the path's bytes, borrowed from the address alone.
        let path = unsafe { std::slice::from_raw_parts_mut(target, capacity) };
        let mut rest = &mut path[..];
        // Two ends with the same address are in one network namespace, and abstract names are
        // private to a namespace: the same addresses in another namespace are another connection.
        let same_namespace = client.ip() == server.ip() || client.ip().is_loopback();
        let written = match Settings::get().share.filter(|_| !same_namespace) {
            None => {
                write!(rest, "\0nearmetal-accel/{VERSION}/{:016x}{:016x}", hashes[0], hashes[1])
            }
            Some(folder) => rest
                .write_all(folder.to_bytes())
                .and_then(|()| write!(rest, "/{:016x}{:016x}", hashes[0], hashes[1])),
        };
        let left = if written.is_ok() { rest.len() } else { capacity };
        let head = std::mem::offset_of!(libc::sockaddr_un, sun_path);
        RendezvousAddress {
            token: hashes[0],
            storage,
            length: (head + capacity - left) as socklen_t,
        }
    }

    fn as_sockaddr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// Removes a rendezvous socket from the shared folder.
    fn remove(&self) {
        if self.storage.sun_path[0] != 0 {
            let path = self.storage.sun_path.as_ptr();
            // SAFETY: the path ends with a zero, because it is shorter than the field.
            unsafe { kernel::unlinkat(libc::AT_FDCWD, path, 0) };
        }
    }
}

fn unix_socket() -> c_int {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    unsafe { kernel::socket(libc::AF_UNIX, kind, 0) }
}

/// Whether the process at the other end of a unix socket may share memory with this one.
fn is_trusted(fd: c_int) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as socklen_t;
    let target = (&raw mut who).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: both are live and of the stated size.
    let result = unsafe { kernel::getsockopt(fd, level, name, target, &raw mut length) };
    result == 0
        && (who.uid == rustix::process::geteuid().as_raw()
            || Settings::get().group == Some(who.gid))
}

/// The connecting end: if the other one listens, offers it the memory.
fn offer_memory(socket: &'static Socket, address: &RendezvousAddress) -> Result<(), KernelReason> {
    let fd = unix_socket();
    if fd < 0 {
        return Ok(());
    }
    // SAFETY: a descriptor that was just created, and that nothing else uses.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the address is live and of the stated length.
    if unsafe { kernel::connect(fd, address.as_sockaddr(), address.length) } != 0 {
        return Ok(());
    }
    if !is_trusted(fd) {
        return Err(KernelReason::PeerOfAnotherUser);
    }
    let Ok((mapped, memory)) = ConduitMapping::new() else {
        return Err(KernelReason::OutOfResources);
    };
    let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
    // SAFETY: no pointers.
    let doorbells =
        unsafe { [kernel::eventfd(0, flags), kernel::eventfd(0, flags)] }.map(table::protect);
    if doorbells.iter().any(|&doorbell| doorbell < 0) {
        doorbells.into_iter().for_each(table::close_library_descriptor);
        return Err(KernelReason::OutOfResources);
    }
    let [own, peer] = doorbells;
    socket.join(mapped, EndpointRole::Creator, own, peer);
    let message = [VERSION, CONDUIT_BYTES as u32];
    if !send_descriptors(fd, &message, [memory.as_fd().as_raw(), own, peer]) {
        socket.leave_shared_memory(KernelReason::PeerNotAccelerated);
    }
    drop(connection);
    Ok(())
}

trait Raw {
    fn as_raw(&self) -> c_int;
}

impl Raw for std::os::fd::BorrowedFd<'_> {
    fn as_raw(&self) -> c_int {
        std::os::fd::AsRawFd::as_raw_fd(self)
    }
}

/// Space for a control message with three descriptors.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

const FDS_BYTES: u32 = 3 * size_of::<c_int>() as u32;

fn send_descriptors(fd: c_int, message: &[u32; 2], descriptors: [c_int; 3]) -> bool {
    let mut control = ControlBuffer([0; 64]);
    let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: 8 };
    // SAFETY: all zero is a valid message header.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: computes a size from a number.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(FDS_BYTES) } as _;
    // SAFETY: the control buffer is large enough for one header and three descriptors, and live.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(FDS_BYTES) as _;
        libc::CMSG_DATA(first).cast::<[c_int; 3]>().write_unaligned(descriptors);
        kernel::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) == 8
    }
}

fn receive_descriptors(fd: c_int, message: &mut [u32; 2]) -> Option<[OwnedFd; 3]> {
    let mut control = ControlBuffer([0; 64]);
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: 8 };
    // SAFETY: all zero is a valid message header.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    // SAFETY: the header's parts are live and of the stated sizes.
    let count = unsafe { kernel::recvmsg(fd, &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    if count < 0 {
        return None;
    }
    let mut received: [Option<OwnedFd>; 12] = [const { None }; 12];
    let mut total = 0;
    // SAFETY: the kernel filled the control buffer; its lengths are within it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if !first.is_null()
            && ((*first).cmsg_level, (*first).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
        {
            let bytes = (*first).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            for index in 0..(bytes / size_of::<c_int>()).min(received.len()) {
                let descriptor = libc::CMSG_DATA(first).cast::<c_int>().add(index).read_unaligned();
                received[index] = Some(OwnedFd::from_raw_fd(descriptor));
                total += 1;
            }
        }
    }
    let [first, second, third, ..] = received;
    let is_valid = count == 8 && total == 3 && header.msg_flags & libc::MSG_CTRUNC == 0;
    if is_valid { Some([first?, second?, third?]) } else { None }
}

/// The accepting end: listens, and accepts the memory if it was offered.
fn accept_memory(
    socket: &'static Socket,
    fd: c_int,
    address: &RendezvousAddress,
) -> Result<(), KernelReason> {
    let listener = socket.rendezvous_listener.load(Ordering::Relaxed);
    if listener < 0 {
        open_listener(socket, address);
        return Ok(());
    }
    // SAFETY: no pointers.
    let accepted = unsafe {
        kernel::accept4(
            listener,
            ptr::null_mut(),
            ptr::null_mut(),
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    };
    if accepted < 0 {
        return Ok(());
    }
    // SAFETY: a descriptor that was just created, and that nothing else uses.
    let _connection = unsafe { OwnedFd::from_raw_fd(accepted) };
    if !is_trusted(accepted) {
        return Ok(());
    }
    let mut wait = [libc::pollfd { fd: accepted, events: libc::POLLIN, revents: 0 }];
    kernel::poll(&mut wait, Some(OFFER_TIMEOUT_NS));
    let mut message = [0_u32; 2];
    let Some([memory, peer, own]) = receive_descriptors(accepted, &mut message) else {
        return Ok(());
    };
    if message != [VERSION, CONDUIT_BYTES as u32] {
        return Err(KernelReason::OtherVersion);
    }
    let Ok(mapped) = ConduitMapping::open(memory) else { return Ok(()) };
    // The connection must still be established: its addresses may be reused after that.
    if TcpInfo::read(fd).is_none_or(|info| info.state != ESTABLISHED) {
        return Ok(());
    }
    let order = (Ordering::AcqRel, Ordering::Relaxed);
    if mapped.opened.compare_exchange(OFFERED, ACCEPTED, order.0, order.1).is_err() {
        return Ok(());
    }
    let [own, peer] = [own, peer].map(|doorbell| {
        let doorbell = table::protect(doorbell.into_raw_fd());
        // A blocking doorbell would let the peer stop this process. SAFETY: sets flags of a
        // descriptor of ours.
        unsafe { kernel::fcntl(doorbell, libc::F_SETFL, libc::O_NONBLOCK as usize) };
        doorbell
    });
    socket.join(mapped, EndpointRole::Opener, own, peer);
    address.remove();
    close_listener(socket);
    Ok(())
}

/// Listens for the peer at `address`. If that fails, a later call tries again.
fn open_listener(socket: &Socket, address: &RendezvousAddress) {
    let listener = table::protect(unix_socket());
    if listener < 0 {
        return;
    }
    address.remove();
    // SAFETY: the address is live and of the stated length; `listen` takes no pointers.
    let is_listening = unsafe {
        kernel::bind(listener, address.as_sockaddr(), address.length) == 0
            && kernel::listen(listener, 4) == 0
    };
    if is_listening {
        socket.rendezvous_listener.store(listener, Ordering::Relaxed);
    } else {
        table::close_library_descriptor(listener);
    }
}

/// Closes the socket's rendezvous listener, if it has one.
pub fn close_listener(socket: &Socket) {
    let listener = socket.rendezvous_listener.swap(-1, Ordering::AcqRel);
    if listener < 0 {
        return;
    }
    if Settings::get().share.is_some() {
        // SAFETY: all zero is a valid unix address.
        let mut storage: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut length = size_of::<libc::sockaddr_un>() as socklen_t;
        let target = (&raw mut storage).cast();
        // SAFETY: both are live and of the stated size.
        unsafe { kernel::getsockname(listener, target, &raw mut length) };
        RendezvousAddress { token: 0, storage, length }.remove();
    }
    table::close_library_descriptor(listener);
}

const ESTABLISHED: u8 = 1;

/// States after the peer's FIN, which the kernel counts as a received byte.
const FIN_RECEIVED: [u8; 4] = [6, 8, 9, 11];

/// The kernel's state of a TCP connection: the first 17 words of `struct tcp_info`.
struct TcpInfo {
    state: u8,
    bytes_acked: u64,
    bytes_received: u64,
}

impl TcpInfo {
    fn read(fd: c_int) -> Option<TcpInfo> {
        let mut hashes = [0_u64; 17];
        let mut length = size_of_val(&hashes) as socklen_t;
        let target = hashes.as_mut_ptr().cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        // SAFETY: both are live and of the stated size.
        let result = unsafe { kernel::getsockopt(fd, level, name, target, &raw mut length) };
        let is_complete = result == 0 && length as usize == size_of_val(&hashes);
        is_complete.then(|| TcpInfo {
            state: hashes[0].to_ne_bytes()[0],
            bytes_acked: hashes[15],
            bytes_received: hashes[16],
        })
    }
}

/// Bytes that this end has sent through the kernel since the beginning, by the kernel's own count,
/// so that calls which bypass this library are included. None if the count kept changing.
pub fn sent_through_kernel(socket: &Socket, fd: c_int) -> Option<u64> {
    // The connecting end's SYN counts as an acknowledged byte.
    let syn = u64::from(socket.record().role() == SocketRole::Client);
    for _ in 0..16 {
        let before = TcpInfo::read(fd)?;
        let queued = kernel::ioctl_int(fd, libc::TIOCOUTQ as usize)?;
        let after = TcpInfo::read(fd)?;
        if before.bytes_acked == after.bytes_acked {
            return (after.bytes_acked + queued as u64).checked_sub(syn);
        }
    }
    None
}

/// Bytes that this end has received from the kernel since the beginning, and those that are unread
/// there.
pub fn received_through_kernel(fd: c_int) -> Option<(u64, u64)> {
    for _ in 0..16 {
        let before = TcpInfo::read(fd)?;
        let unread = kernel::ioctl_int(fd, libc::FIONREAD as usize)?;
        let after = TcpInfo::read(fd)?;
        if before.bytes_received == after.bytes_received && before.state == after.state {
            let fin = u64::from(FIN_RECEIVED.contains(&after.state));
            let received = after.bytes_received.saturating_sub(fin);
            return Some((received.saturating_sub(unread as u64), unread as u64));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn kernel_counts_match_the_programs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[1; 1000]).unwrap();
        server.read_exact(&mut [0; 300]).unwrap();
        assert_eq!(received_through_kernel(server.as_raw_fd()), Some((300, 700)));
        assert_eq!(received_through_kernel(client.as_raw_fd()), Some((0, 0)));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        // The peer's FIN must not count as a byte.
        server.read_exact(&mut [0; 700]).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        assert_eq!(received_through_kernel(server.as_raw_fd()), Some((1000, 0)));
    }

    #[test]
    fn both_ends_compute_the_same_rendezvous_address() {
        let [one, two] = ["127.0.0.1:5000", "127.0.0.1:80"].map(|it| it.parse().unwrap());
        let bytes =
            |address: &RendezvousAddress| address.storage.sun_path.map(i8::cast_unsigned).to_vec();
        let name = RendezvousAddress::new(one, two);
        assert_eq!(bytes(&name), bytes(&RendezvousAddress::new(one, two)));
        assert_ne!(bytes(&name), bytes(&RendezvousAddress::new(two, one)), "who connected counts");
        assert_eq!(bytes(&name)[0], 0, "no file");
    }

    #[test]
    fn options_that_need_the_kernel() {
        assert!(needs_kernel(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
        assert!(!needs_kernel(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1));
        assert!(!needs_kernel(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1));
        assert!(needs_kernel(libc::IPPROTO_TCP, TCP_ULP, 0));
    }
}
