//! How the two ends of a connection find each other (rendezvous). Also registers each socket in the
//! ledger.
//!
//! 1. The accepting end listens on a Unix socket named after the connection's addresses.
//! 2. The connecting end connects there, and proves that it holds its end of the TCP connection.
//! 3. The accepting end creates the memory, and sends it with its own proof.
//! 4. The connecting end checks that, accepts the memory, and joins; so does the other end then.
//!
//! The name can be guessed; without a proof nobody gets memory, and nobody's memory is taken: see
//! [`possession`](crate::possession).

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hasher};
use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{sockaddr_storage, socklen_t};
use nm_ring::EndpointRole;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::ledger::{
    KernelReason, Ledger, OTHER_USER_SEEN, REASON_OF_PEER, Record, SocketPhase, SocketRole,
};

use crate::lock::{Guard, Lock};
use crate::possession::{Proof, Statement};
use crate::settings::Settings;
use crate::socket::{Phase, Socket};
use crate::tcp_info::{ESTABLISHED, TcpInfo};
use crate::{
    fallback, io_uring, kernel, ledgers, memory_limit, multiplex, options, possession, process,
    report, short_lived, socket, table, tcp_sockets, wait, worth,
};

/// Version of the rendezvous protocol and of the region's layout.
const VERSION: u32 = 3;

/// Data calls after which a candidate without a peer moves to the kernel permanently.
const CALLS_MAX: u32 = 1 << 16;

/// Data calls after which an end that refuses no longer waits for the other one.
const REFUSAL_CALLS_MAX: u32 = 1 << 12;

/// State of a region that was offered and not accepted yet.
const OFFERED: u32 = 0;

/// State of a region that the connecting end has accepted.
const ACCEPTED: u32 = 1;

/// State of a region that the accepting end has withdrawn.
const WITHDRAWN: u32 = 2;

/// Time after which an end that was not answered begins anew, and withdraws its offer, ns.
const OFFER_NS: u64 = 2_000_000_000;

/// Time that a connected client has to send its proof.
const OFFER_TIMEOUT_NS: u64 = 20_000_000;

/// Held during a rendezvous, while the process forks, and while it begins a hold of a candidate.
static ATTEMPT: Lock<()> = Lock::new(());

/// Creates the ledger. Called once, by the constructor.
pub fn prepare() {
    let mut name = [0_u8; 16];
    let length = program_name(&mut name);
    let program = std::str::from_utf8(&name[..length]).unwrap_or("");
    let settings = Settings::get().to_text();
    let pid = process::owner_pid() as u32;
    let Ok((ledger, file)) = Ledger::create(pid, program, &settings, boot_ns()) else { return };
    report::send_ledger(file.as_fd());
    ledgers::add(ledger, table::protect(file.into_raw_fd()));
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
    // SAFETY: the time is live; libc asks the vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Before a fork: waits for the end of a rendezvous, and prevents another one.
pub fn before_fork() {
    ATTEMPT.acquire();
}

/// Prevents that a socket joins while the guard exists. None: this thread is joining one.
pub fn prevent() -> Option<Guard<'static, ()>> {
    ATTEMPT.lock()
}

/// In the parent, after [`before_fork`].
pub fn after_fork_in_parent() {
    ATTEMPT.release_if_held();
}

/// In the child of a fork.
pub fn forked_child() {
    ATTEMPT.reset();
    possession::forked_child();
    short_lived::forked_child();
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
    let Some(ledger) = ledgers::own() else { return };
    if fd as usize >= table::DESCRIPTORS {
        return;
    }
    if is_crowded(ledger) {
        return leave_out(ledger, fd);
    }
    let Some(record) = claim_record(ledger) else { return };
    let Some(socket) = table::claim() else { return };
    record.set_role(role);
    let mut local = if needs_local_address(peer) { socket_address(fd, false) } else { None };
    let reason = match fd {
        // The C library reads and writes its standard streams without calling this library.
        0..=2 => KernelReason::Stdio,
        _ => initial_kernel_reason(role, local, peer),
    };
    let phase = match reason {
        KernelReason::None => Phase::Candidate,
        // The other end may be accelerated, and is to learn the reason: see `refuse`.
        KernelReason::Policy | KernelReason::IoUring => Phase::Candidate,
        _ => Phase::Kernel,
    };
    if phase == Phase::Kernel && local.is_none() {
        local = socket_address(fd, false);
    }
    match (local, peer) {
        (Some(local), Some(peer)) => record.set_addresses(local, peer),
        (None, Some(peer)) => record.set_peer(peer),
        (_, None) => {}
    }
    if reason == KernelReason::None {
        record.set_phase(SocketPhase::Candidate);
    } else {
        record.set_reason(reason, 0);
        record.set_phase(SocketPhase::Kernel);
    }
    // Nothing was sent yet: this library counts all that is.
    record.end.kernel_sent.store(1, Ordering::Relaxed);
    socket.open(fd, record, phase);
    table::forget_inherited(fd);
    if Settings::get().has_default_after_calls() {
        socket.next_attempt.store(short_lived::first_attempt(), Ordering::Relaxed);
    }
    if table::get(fd).is_some() {
        // Its descriptor was closed without this library.
        multiplex::descriptor_closed(fd);
    }
    table::bind(fd, socket);
    multiplex::socket_registered(fd, socket);
    if table::is_short_of_descriptors(fd) {
        close_listeners();
    }
}

/// A record for a new socket: that of a short connection that was closed some time ago, or another
/// one.
fn claim_record(ledger: &'static Ledger) -> Option<&'static Record> {
    let (pid, now_ns) = (process::owner_pid() as u32, boot_ns());
    short_lived::reusable_record()
        .and_then(|(record, generation)| ledger.reclaim(record, generation, pid, now_ns))
        .or_else(|| ledger.claim(pid, now_ns))
}

/// Whether the socket of a descriptor is registered for a connection to `peer` that nothing was
/// sent on yet: programs call `connect` again to learn how the first call, which did not block, has
/// ended.
pub fn is_registered(fd: c_int, peer: Option<SocketAddr>) -> bool {
    table::get(fd).is_some_and(|socket| {
        socket.phase() == Phase::Candidate
            && socket.is_client()
            && socket.calls.load(Ordering::Relaxed) == 0
            && peer.is_some_and(|peer| socket.record().has_peer(peer))
    })
}

/// Closes the sockets of all rendezvous, because the program may need the descriptors. Offers that
/// were sent can still be accepted.
#[cold]
fn close_listeners() {
    if let Some(_attempt) = ATTEMPT.try_lock() {
        table::for_each_socket(table::close_listener);
    }
}

/// Whether the own address of a new socket is asked for at once: a connection that is expected to
/// be short is not worth the system call.
fn needs_local_address(peer: Option<SocketAddr>) -> bool {
    !short_lived::is_expected() || peer.is_some_and(depends_on_local_address)
}

/// Whether a socket's own address decides if it can be accelerated.
fn depends_on_local_address(peer: SocketAddr) -> bool {
    !is_on_this_host(peer) || !Settings::get().policy.is_everything()
}

/// Whether the address of a connection's other end shows that it is on this host.
fn is_on_this_host(peer: SocketAddr) -> bool {
    peer.ip().is_loopback() || peer.ip().is_unspecified()
}

/// Whether a new socket is left to the kernel, as one of too many. What is left out costs its calls
/// one look at the table; so the first one of too many takes the others with it.
fn is_crowded(ledger: &'static Ledger) -> bool {
    let is_crowded =
        Settings::get().has_default_after_calls() && worth::is_beyond_a_crowd(table::connections());
    if !is_crowded {
        worth::set_left_crowd(false);
    } else if !worth::has_left_crowd() {
        leave_crowd(ledger);
    }
    is_crowded
}

/// Leaves a new socket to the kernel.
fn leave_out(ledger: &Ledger, fd: c_int) {
    if table::is_managed(fd) {
        // Its descriptor was closed without this library.
        multiplex::descriptor_closed(fd);
    }
    if table::leave_out(fd) {
        ledger.leave_out();
    }
}

/// Leaves all sockets that share no memory to the kernel.
#[cold]
fn leave_crowd(ledger: &'static Ledger) {
    // Another thread is about to join one: the next new socket tries again.
    let Some(_attempt) = ATTEMPT.try_lock() else { return };
    table::for_each_descriptor(|fd, socket| {
        // Another process that holds it could still join.
        let is_ours_alone = socket.descriptors.load(Ordering::Acquire) == 1
            && socket.record().holders.load(Ordering::Acquire) == 1;
        if !is_ours_alone || socket.is_mapped() || socket.is_joined() {
            return;
        }
        if socket.phase() == Phase::Candidate {
            fallback::move_to_kernel(socket, KernelReason::Crowded);
        }
        let is_unused = !socket.record().is_used();
        let has_left = multiplex::socket_left_out(fd) && table::leave_open_socket(fd, socket);
        // One that has transferred something stays in the list.
        if has_left && is_unused {
            ledger.leave_out();
        }
    });
    worth::set_left_crowd(true);
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
    if let Some(reason) = io_uring::kernel_reason() {
        return reason;
    }
    if worth::process_has_stopped() {
        return KernelReason::NotWorthIt;
    }
    let Some(peer) = peer else { return KernelReason::ConnectionNotSeen };
    let here = match local {
        Some(local) if !settings.policy.allows(local.port(), peer.port()) => {
            return KernelReason::Policy;
        }
        Some(local) => is_on_this_host(peer) || peer.ip() == local.ip(),
        None if depends_on_local_address(peer) => return KernelReason::ConnectionNotSeen,
        None => true,
    };
    match role {
        SocketRole::Unknown | SocketRole::Listener => KernelReason::ConnectionNotSeen,
        _ if here || settings.share.is_some() => KernelReason::None,
        _ => KernelReason::NotSameHost,
    }
}

/// Most data calls from one attempt to the next, which is a quarter of those made so far.
const ATTEMPT_CALLS_MAX: u32 = 256;

/// Data calls until a socket asks again that may not search now: about [`ATTEMPT_CALLS_MAX`], by
/// the lowest bits of the time. Two ends in one process make equal numbers of calls. If they asked
/// at the same ones, the same end would always find the time that is left, and the other one never.
fn put_off_calls(now_ns: u64) -> u32 {
    ATTEMPT_CALLS_MAX / 2 + now_ns as u32 % ATTEMPT_CALLS_MAX
}

/// A call that moved so many bytes counts as more than one.
const BYTES_PER_CALL: usize = 4096;

/// After each successful data call of a candidate, which moved `bytes`: looks for the peer at some
/// of them.
#[inline]
pub fn after_data_call(socket: &'static Socket, fd: c_int, bytes: usize) {
    let weight = 1 + (bytes / BYTES_PER_CALL) as u32;
    let calls = socket.calls.fetch_add(weight, Ordering::Relaxed).saturating_add(weight);
    let due = socket.next_attempt.load(Ordering::Relaxed).max(Settings::get().after_calls);
    if calls >= due {
        try_rendezvous(socket, fd, calls);
    }
}

#[cold]
fn try_rendezvous(socket: &'static Socket, fd: c_int, calls: u32) {
    // Another socket's attempt, or a fork: the next call tries again.
    let Some(attempt) = ATTEMPT.try_lock().filter(|attempt| may_join(attempt, socket)) else {
        return;
    };
    let (is_bounded, begun_ns) = (Settings::get().has_default_after_calls(), wait::now_ns());
    if is_bounded && !worth::may_search(begun_ns) {
        let pause = put_off_calls(begun_ns);
        socket.next_attempt.store(calls.saturating_add(pause), Ordering::Relaxed);
        if worth::is_one_of_a_crowd(table::connections()) && !socket.is_mapped() {
            let errno = kernel::errno();
            fallback::move_to_kernel(socket, KernelReason::Crowded);
            kernel::set_errno(errno);
        }
        return;
    }
    let errno = kernel::errno();
    let mut has_only_waited = false;
    {
        let pause = (calls / 4).clamp(1, ATTEMPT_CALLS_MAX);
        socket.next_attempt.store(calls.saturating_add(pause), Ordering::Relaxed);
        if calls >= CALLS_MAX {
            withdraw(socket, fd);
            let reason = match socket.record().reason_detail() {
                OTHER_USER_SEEN => KernelReason::PeerOfAnotherUser,
                _ => KernelReason::PeerNotAccelerated,
            };
            fallback::move_to_kernel(socket, reason);
        } else if let Some(_guard) = table::enter(socket, fd)
            && socket.phase() == Phase::Candidate
        {
            has_only_waited = is_waiting(socket);
            match check_eligibility(socket, fd) {
                _ if has_only_waited => {}
                Err((reason, _)) if socket.is_mapped() => {
                    send_refusal(socket.rendezvous_listener.load(Ordering::Relaxed), reason);
                    withdraw(socket, fd);
                    fallback::move_to_kernel(socket, reason);
                }
                Err((reason, detail)) => refuse(socket, fd, reason, detail),
                Ok(Some(address)) => connect_ends(&attempt, (socket, fd), &address),
                Ok(None) => {}
            }
        }
    }
    drop(attempt);
    // An end that waits looks at each call. If that counted, it would take the time that the other
    // end, in the same process, needs to answer.
    if !has_only_waited {
        worth::note_search(wait::now_ns().saturating_sub(begun_ns));
    }
    kernel::set_errno(errno);
}

/// Whether the socket may join now. Not while several processes hold it: the others would go on as
/// candidates, whose waits the peer does not see, and it would send to memory that they do not
/// read. The guard keeps this process from forking until the socket has joined.
fn may_join(_: &Guard<'_, ()>, socket: &Socket) -> bool {
    let holders = socket.record().holders.load(Ordering::Acquire);
    holders == 1 && !socket.is_held() && !process::is_restricted()
}

/// Takes an offer back that was not accepted; one that was is used.
fn withdraw(socket: &'static Socket, fd: c_int) {
    if socket.is_mapped() && socket.phase() == Phase::Candidate {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let offer = &socket.conduit().opened;
        if offer.compare_exchange(OFFERED, WITHDRAWN, order.0, order.1).is_err() {
            socket.join();
            note_join(socket);
            options::send_at_once(socket, fd);
        } else {
            socket.unmap_offer();
            table::close_memory_file(socket);
        }
    }
}

/// There is one attempt at a time in a process.
fn connect_ends(
    _: &Guard<'_, ()>,
    (socket, fd): (&'static Socket, c_int),
    address: &RendezvousAddress,
) {
    socket.connection_token.store(address.token, Ordering::Relaxed);
    let result = match socket.record().role() {
        SocketRole::Server => meet_client(socket, fd, address),
        SocketRole::Client => meet_server(socket, fd, address),
        _ => Err(Refusal::Own(KernelReason::ConnectionNotSeen)),
    };
    match result {
        Err(Refusal::Own(reason)) => refuse(socket, fd, reason, 0),
        Err(Refusal::Announced(reason)) => fallback::move_to_kernel(socket, reason),
        Err(Refusal::OfPeer(reason)) => {
            socket.record().set_reason(reason, REASON_OF_PEER);
            withdraw(socket, fd);
            fallback::move_to_kernel(socket, reason);
        }
        Ok(()) => {}
    }
}

/// Why a rendezvous will not come about.
enum Refusal {
    /// This end refuses.
    Own(KernelReason),
    /// This end refuses, and the other end knows it.
    Announced(KernelReason),
    /// The other end refuses.
    OfPeer(KernelReason),
}

/// Checks everything that may keep a socket on the kernel, and returns the address of the
/// rendezvous. None: not possible at the moment.
fn check_eligibility(
    socket: &Socket,
    fd: c_int,
) -> Result<Option<RendezvousAddress>, (KernelReason, u32)> {
    let ends = addresses(socket, fd);
    let own_first = |(client, server)| {
        if socket.is_client() { (client, server) } else { (server, client) }
    };
    if let Some((local, peer)) = ends.map(own_first) {
        socket.record().set_addresses(local, peer);
    }
    match socket.record().reason() {
        KernelReason::None => {}
        reason => return Err((reason, socket.record().reason_detail())),
    }
    let Some((client, server)) = ends else { return Ok(None) };
    let (local, peer) = own_first((client, server));
    let here = peer.ip().is_loopback() || peer.ip() == local.ip();
    if !here && Settings::get().share.is_none() {
        return Err((KernelReason::NotSameHost, 0));
    }
    if io_uring::is_in_use() {
        return Err((KernelReason::IoUring, 0));
    }
    if !tcp_sockets::is_tcp_by_kernel(fd) {
        return Err((KernelReason::UnsupportedCall, 0));
    }
    if let Some(option) = options::kernel_only_option_of(fd) {
        return Err((KernelReason::SocketOption, option));
    }
    options::learn(socket, fd);
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
    if socket.has_sends_past(fd) {
        return Err((KernelReason::SentPastLibrary, 0));
    }
    let is_nonblocking = flags & libc::O_NONBLOCK != 0;
    if is_nonblocking && !multiplex::is_registered(fd) && multiplex::has_unknown_set() {
        return Err((KernelReason::UnknownEpollSet, 0));
    }
    socket.set_nonblocking(is_nonblocking);
    socket.read_timeouts(fd);
    socket.read_memory_limit(fd);
    Ok(Some(RendezvousAddress::new(client, server, socket.is_client())))
}

/// Addresses of the two ends of a connection, the connecting one first.
fn addresses(socket: &Socket, fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    let (local, peer) = (socket_address(fd, false)?, socket_address(fd, true)?);
    Some(if socket.is_client() { (local, peer) } else { (peer, local) })
}

/// Address of a rendezvous.
struct RendezvousAddress {
    /// Part of the hash of the connection's addresses: the same at both ends.
    token: u64,
    storage: libc::sockaddr_un,
    length: socklen_t,
    /// Addresses of the connection.
    local: SocketAddr,
    peer: SocketAddr,
}

impl RendezvousAddress {
    /// It does not depend on the user: ends of two users that may not share memory learn why.
    fn new(client: SocketAddr, server: SocketAddr, is_client: bool) -> RendezvousAddress {
        let mut hashes = [0_u64; 2];
        for (seed, word) in hashes.iter_mut().enumerate() {
            let mut hasher = DefaultHasher::new();
            hasher.write_usize(seed);
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
        let (local, peer) = if is_client { (client, server) } else { (server, client) };
        RendezvousAddress {
            token: hashes[0],
            storage,
            length: (head + capacity - left) as socklen_t,
            local,
            peer,
        }
    }

    /// Whether the two ends may be in different network namespaces.
    fn is_path(&self) -> bool {
        self.storage.sun_path[0] != 0
    }

    fn as_sockaddr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// Removes a rendezvous socket from the shared folder.
    fn remove(&self) {
        if self.is_path() {
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

/// What an end sends: version, bytes of the region; with its proof, and the accepting end also with
/// the region's descriptor. Or [`REFUSED`] and a reason, without a descriptor.
type Message = [u32; 2];

/// First word of a message that refuses instead.
const REFUSED: u32 = u32::MAX;

/// The message of an end that does not refuse.
const GREETING: Message = [VERSION, CONDUIT_BYTES as u32];

/// Whether one more connection may be in memory.
fn has_room() -> bool {
    socket::mapped_regions() < memory_limit::joined_max()
}

/// The connecting end: if the other one listens, proves what it holds; then looks for the answer.
fn meet_server(
    socket: &'static Socket,
    fd: c_int,
    address: &RendezvousAddress,
) -> Result<(), Refusal> {
    if socket.rendezvous_listener.load(Ordering::Relaxed) >= 0 {
        return look_for_memory(socket, fd, address);
    }
    let Some(connection) = connect_to_peer(address) else { return Ok(()) };
    let unix = connection.as_raw_fd();
    if !is_trusted(unix) {
        return Err(Refusal::Own(KernelReason::PeerOfAnotherUser));
    }
    if !has_room() {
        return Err(Refusal::Own(KernelReason::TooManyJoined));
    }
    let number = possession::channel_number(unix, false)
        .map(|channel| possession::client_number(channel, possession::own_process()));
    let Some(statement) = number.and_then(|number| Statement::new(fd, number)) else {
        return Ok(());
    };
    if send_message(unix, GREETING, statement.as_fd(), None) {
        keep_statement(socket, fd, statement);
        socket.offered_at_ns.store(wait::now_ns(), Ordering::Relaxed);
        table::set_rendezvous_socket(socket, table::protect(connection.into_raw_fd()));
        attempt_again_soon(socket);
    } else {
        possession::withdraw(statement.as_fd().as_raw_fd(), fd);
    }
    Ok(())
}

/// Keeps a statement about `fd` until the rendezvous ends.
fn keep_statement(socket: &Socket, fd: c_int, statement: Statement) {
    let kept = table::protect(statement.into_descriptor().into_raw_fd());
    table::set_statement(socket, kept, fd);
}

/// The connecting end has proved what it holds: takes the memory, if it was sent and the other end
/// has proved the same.
fn look_for_memory(
    socket: &'static Socket,
    fd: c_int,
    address: &RendezvousAddress,
) -> Result<(), Refusal> {
    let unix = socket.rendezvous_listener.load(Ordering::Relaxed);
    let is_taken = match receive_message(unix) {
        Received::Message(message, _) if message[0] == REFUSED => {
            return Err(Refusal::OfPeer(reason_of(message)));
        }
        // Others have joined since this end has asked.
        Received::Message(..) if !has_room() => {
            return Err(Refusal::Own(KernelReason::TooManyJoined));
        }
        Received::Message(message, sent) => take_memory((socket, fd), address, message, sent),
        Received::End => false,
        Received::Nothing if is_unanswered(socket) => false,
        Received::Nothing => {
            attempt_again_soon(socket);
            return Ok(());
        }
    };
    if !is_taken {
        // The next attempt begins anew.
        table::close_listener(socket);
    }
    Ok(())
}

/// Whether this end has sent its proof, or memory, and the other end has not done anything yet.
fn is_waiting(socket: &Socket) -> bool {
    let connection = socket.rendezvous_listener.load(Ordering::Relaxed);
    let has_offered = socket.is_mapped();
    let is_waiting = connection >= 0
        && (has_offered || socket.is_client())
        && !(has_offered && socket.conduit().opened.load(Ordering::Acquire) != OFFERED)
        && kernel::events(connection) & !libc::POLLOUT == 0
        && !is_unanswered(socket);
    if is_waiting {
        attempt_again_soon(socket);
    }
    is_waiting
}

/// Whether the other end has left this one without an answer for too long.
fn is_unanswered(socket: &Socket) -> bool {
    let waited_ns = wait::now_ns().saturating_sub(socket.offered_at_ns.load(Ordering::Relaxed));
    waited_ns >= OFFER_NS
}

/// Joins with the memory that the accepting end has sent, if its proof is valid and so is the
/// memory.
fn take_memory(
    (socket, fd): (&'static Socket, c_int),
    address: &RendezvousAddress,
    message: Message,
    sent: Vec<OwnedFd>,
) -> bool {
    let unix = socket.rendezvous_listener.load(Ordering::Relaxed);
    let mut sent = sent.into_iter();
    let (Some(statement), Some(memory)) = (sent.next(), sent.next()) else { return false };
    let number = possession::channel_number(unix, false)
        .map(|channel| possession::server_number(channel, possession::peer_process(unix)));
    if message != GREETING || !is_proved(fd, address, &statement, sent.next().as_ref(), number) {
        return false;
    }
    let Ok(mapped) = ConduitMapping::open(&memory) else { return false };
    let order = (Ordering::AcqRel, Ordering::Relaxed);
    if mapped.opened.compare_exchange(OFFERED, ACCEPTED, order.0, order.1).is_err() {
        return false;
    }
    socket.map(mapped, EndpointRole::Opener);
    keep_memory_file(socket, fd, memory);
    join_accepted(socket, fd);
    true
}

/// Whether the maker of a statement holds the other end of the connection `fd`.
fn is_proved(
    fd: c_int,
    address: &RendezvousAddress,
    statement: &OwnedFd,
    asking: Option<&OwnedFd>,
    number: Option<u64>,
) -> bool {
    let asking = asking.filter(|_| address.is_path()).map(|asking| asking.as_fd());
    number.is_some_and(|number| {
        let proof = Proof { statement: statement.as_fd(), asking, number };
        proof.holds(fd, address.local, address.peer)
    })
}

/// The accepting end has offered memory: joins if it was accepted.
fn look_for_answer(socket: &'static Socket, fd: c_int) -> Result<(), Refusal> {
    let offer = &socket.conduit().opened;
    if offer.load(Ordering::Acquire) == OFFERED {
        let connection = socket.rendezvous_listener.load(Ordering::Relaxed);
        let is_over = match receive_message(connection) {
            Received::Message(message, _) if message[0] == REFUSED => {
                return Err(Refusal::OfPeer(reason_of(message)));
            }
            Received::End => true,
            _ => is_unanswered(socket),
        };
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if !is_over || offer.compare_exchange(OFFERED, WITHDRAWN, order.0, order.1).is_err() {
            attempt_again_soon(socket);
            return Ok(());
        }
        // The next attempt begins anew.
        table::close_listener(socket);
        socket.unmap_offer();
        table::close_memory_file(socket);
        return Ok(());
    }
    join_accepted(socket, fd);
    Ok(())
}

/// Joins with memory that the other end has accepted.
fn join_accepted(socket: &'static Socket, fd: c_int) {
    table::close_listener(socket);
    socket.join();
    note_join(socket);
    options::send_at_once(socket, fd);
    socket.publish_received(fd);
}

/// From here on it shows whether memory is worth it.
fn note_join(socket: &Socket) {
    socket.judged.begin(socket.record(), wait::tick_ns());
    worth::note_join(socket.record());
}

/// Before a data call of a candidate that has offered memory: joins if it was accepted meanwhile.
#[cold]
pub fn before_data_call(socket: &'static Socket, fd: c_int) {
    if let Some(attempt) = ATTEMPT.try_lock()
        && may_join(&attempt, socket)
        && let Some(_guard) = table::enter(socket, fd)
        && socket.phase() == Phase::Candidate
        && socket.is_mapped()
        && socket.conduit().opened.load(Ordering::Acquire) == ACCEPTED
    {
        join_accepted(socket, fd);
    }
}

/// The other end is about to answer: the next call looks.
fn attempt_again_soon(socket: &Socket) {
    let calls = socket.calls.load(Ordering::Relaxed);
    socket.next_attempt.store(calls.saturating_add(1), Ordering::Relaxed);
}

fn connect_to_peer(address: &RendezvousAddress) -> Option<OwnedFd> {
    let fd = unix_socket();
    if fd < 0 {
        return None;
    }
    // SAFETY: a descriptor that was just created, and that nothing else uses.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    let connected = table::is_affordable(fd)
        && possession::name_channel(fd)
        // SAFETY: the address is live and of the stated length.
        && unsafe { kernel::connect(fd, address.as_sockaddr(), address.length) } == 0;
    connected.then_some(connection)
}

/// Sends a message with a statement, and with the memory or without; false if that failed. Where
/// the other end may be in another network namespace it also gets a socket that asks this one.
fn send_message(
    unix: c_int,
    message: Message,
    statement: BorrowedFd<'_>,
    memory: Option<BorrowedFd<'_>>,
) -> bool {
    let asking = Settings::get().share.and_then(|_| possession::asking_socket());
    let mut all = [statement; 3];
    let mut count = 1;
    for more in [memory, asking.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        all[count] = more;
        count += 1;
    }
    let bytes: [u8; 8] = message_bytes(message);
    // SAFETY: the descriptor is open for the whole call.
    let unix = unsafe { BorrowedFd::borrow_raw(unix) };
    nm_sys::unix::send_descriptors(unix, &bytes, &all[..count]).is_ok()
}

/// Sends that this end refuses, and why.
fn send_refusal(unix: c_int, reason: KernelReason) {
    let bytes = message_bytes([REFUSED, reason as u32]);
    // SAFETY: the descriptor is open for the whole call.
    let unix = unsafe { BorrowedFd::borrow_raw(unix) };
    let _ = rustix::net::send(unix, &bytes, rustix::net::SendFlags::NOSIGNAL);
}

fn message_bytes(message: Message) -> [u8; 8] {
    let mut bytes = [0; 8];
    for (place, word) in bytes.chunks_exact_mut(4).zip(message) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// What has come from the other end.
enum Received {
    /// Nothing so far.
    Nothing,
    /// The other end has closed its socket, or has sent what is no message.
    End,
    /// A message with these descriptors.
    Message(Message, Vec<OwnedFd>),
}

/// Receives a message that is there already.
fn receive_message(unix: c_int) -> Received {
    let mut bytes = [0; 8];
    // SAFETY: the descriptor is open for the whole call.
    let unix = unsafe { BorrowedFd::borrow_raw(unix) };
    let mut received = nm_sys::unix::receive_descriptors(unix, &mut bytes);
    if received.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset) {
        // The other end has closed before it read everything: what it sent is still there.
        received = nm_sys::unix::receive_descriptors(unix, &mut bytes);
    }
    let (count, descriptors) = match received {
        Ok(received) => received,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
        Err(_) => return Received::End,
    };
    if count != bytes.len() {
        return Received::End;
    }
    let mut message = [0; 2];
    for (word, place) in message.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = place.try_into().map_or(0, u32::from_le_bytes);
    }
    Received::Message(message, descriptors)
}

/// The accepting end: listens, and offers memory to a client that has proved what it holds; then
/// looks for the answer.
fn meet_client(
    socket: &'static Socket,
    fd: c_int,
    address: &RendezvousAddress,
) -> Result<(), Refusal> {
    if socket.is_mapped() {
        return look_for_answer(socket, fd);
    }
    let Some(connection) = accept_peer(socket, address) else { return Ok(()) };
    let unix = connection.as_raw_fd();
    let mut readable = [libc::pollfd { fd: unix, events: libc::POLLIN, revents: 0 }];
    kernel::poll(&mut readable, Some(OFFER_TIMEOUT_NS));
    let Received::Message(message, sent) = receive_message(unix) else { return Ok(()) };
    if message[0] == REFUSED {
        return Err(Refusal::OfPeer(reason_of(message)));
    }
    let refusal = match () {
        () if message != GREETING => KernelReason::OtherVersion,
        () if !has_room() => KernelReason::TooManyJoined,
        () => KernelReason::None,
    };
    if refusal != KernelReason::None {
        send_refusal(unix, refusal);
        return Err(Refusal::Announced(refusal));
    }
    let channel = possession::channel_number(unix, true);
    let number =
        channel.map(|channel| possession::client_number(channel, possession::peer_process(unix)));
    let (Some(channel), [statement, ..]) = (channel, &sent[..]) else { return Ok(()) };
    if !is_proved(fd, address, statement, sent.get(1), number) {
        // A client that has withdrawn its statement may have said why.
        return match receive_message(unix) {
            Received::Message(message, _) if message[0] == REFUSED => {
                Err(Refusal::OfPeer(reason_of(message)))
            }
            _ => Ok(()),
        };
    }
    offer_memory((socket, fd), connection, channel)
}

/// Sends memory to a client that has proved what it holds.
fn offer_memory(
    (socket, fd): (&'static Socket, c_int),
    connection: OwnedFd,
    channel: u64,
) -> Result<(), Refusal> {
    let Ok((mapped, memory)) = ConduitMapping::new() else {
        send_refusal(connection.as_raw_fd(), KernelReason::OutOfResources);
        return Err(Refusal::Announced(KernelReason::OutOfResources));
    };
    let number = possession::server_number(channel, possession::own_process());
    let Some(statement) = Statement::new(fd, number) else { return Ok(()) };
    if send_message(connection.as_raw_fd(), GREETING, statement.as_fd(), Some(memory.as_fd())) {
        socket.map(mapped, EndpointRole::Creator);
        keep_memory_file(socket, fd, memory);
        socket.offered_at_ns.store(wait::now_ns(), Ordering::Relaxed);
        table::close_listener(socket);
        keep_statement(socket, fd, statement);
        table::set_rendezvous_socket(socket, table::protect(connection.into_raw_fd()));
        attempt_again_soon(socket);
    } else {
        possession::withdraw(statement.as_fd().as_raw_fd(), fd);
    }
    Ok(())
}

fn reason_of(message: Message) -> KernelReason {
    KernelReason::from_number(message[1]).unwrap_or(KernelReason::PeerNotAccelerated)
}

/// Keeps the file of the connection's memory, if programs that this one starts inherit the socket.
fn keep_memory_file(socket: &Socket, fd: c_int, memory: OwnedFd) {
    // SAFETY: reads the flags of a descriptor.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFD, 0) };
    if flags & libc::FD_CLOEXEC == 0 {
        socket.memory_file.store(table::protect_above_limit(memory), Ordering::Release);
    }
}

/// Accepts a connection of the peer at the rendezvous; listens there first if that was not done.
fn accept_peer(socket: &'static Socket, address: &RendezvousAddress) -> Option<OwnedFd> {
    let listener = socket.rendezvous_listener.load(Ordering::Relaxed);
    if listener < 0 {
        open_listener(socket, address);
        return None;
    }
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is wanted.
    let accepted = unsafe { kernel::accept4(listener, ptr::null_mut(), ptr::null_mut(), flags) };
    if accepted < 0 {
        return None;
    }
    // SAFETY: a descriptor that was just created, and that nothing else uses.
    let connection = unsafe { OwnedFd::from_raw_fd(accepted) };
    if !is_trusted(accepted) {
        socket.record().note_other_user();
        return None;
    }
    Some(connection)
}

/// Keeps the socket on the kernel because of `reason`, and announces it to the other end, so that
/// its report names the true reason. If the other end is not there yet, a later call tries again.
#[cold]
fn refuse(socket: &'static Socket, fd: c_int, reason: KernelReason, detail: u32) {
    socket.record().set_reason(reason, detail);
    socket.record().set_phase(SocketPhase::Kernel);
    let address = addresses(socket, fd)
        .map(|(client, server)| RendezvousAddress::new(client, server, socket.is_client()));
    let Some(address) = address else { return fallback::move_to_kernel(socket, reason) };
    if socket.is_client() && socket.rendezvous_listener.load(Ordering::Relaxed) >= 0 {
        send_refusal(socket.rendezvous_listener.load(Ordering::Relaxed), reason);
        return fallback::move_to_kernel(socket, reason);
    }
    let connection =
        if socket.is_client() { connect_to_peer(&address) } else { accept_peer(socket, &address) };
    if let Some(connection) = &connection {
        send_refusal(connection.as_raw_fd(), reason);
    }
    let given_up = socket.calls.load(Ordering::Relaxed) >= REFUSAL_CALLS_MAX;
    if connection.is_some() || given_up {
        fallback::move_to_kernel(socket, reason);
    }
}

/// The program has done something for which a socket must stay on the kernel. A candidate remains
/// one until the other end has learned the reason: see [`refuse`].
pub fn decline(socket: &'static Socket, reason: KernelReason, detail: u32) {
    {
        let attempt = ATTEMPT.try_lock();
        if attempt.is_some() && socket.phase() == Phase::Candidate && !socket.is_mapped() {
            socket.record().set_reason(reason, detail);
            socket.record().set_phase(SocketPhase::Kernel);
            return;
        }
    }
    fallback::move_to_kernel(socket, reason);
    socket.record().set_reason(reason, detail);
}

/// Listens for the peer at `address`. If that fails, a later call tries again.
fn open_listener(socket: &Socket, address: &RendezvousAddress) {
    let listener = unix_socket();
    if listener < 0 {
        return;
    }
    if !table::is_affordable(listener) {
        // SAFETY: a descriptor that was just created, and that nothing else uses.
        unsafe { kernel::close(listener) };
        return;
    }
    let listener = table::protect(listener);
    address.remove();
    // SAFETY: the address is live and of the stated length; `listen` takes no pointers.
    let is_listening = unsafe {
        kernel::bind(listener, address.as_sockaddr(), address.length) == 0
            && kernel::listen(listener, 4) == 0
    };
    if is_listening {
        table::set_rendezvous_socket(socket, listener);
    } else {
        table::close_library_descriptor(listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn both_ends_compute_the_same_rendezvous_address() {
        let [one, two] = ["127.0.0.1:5000", "127.0.0.1:80"].map(|it| it.parse().unwrap());
        let bytes =
            |address: &RendezvousAddress| address.storage.sun_path.map(i8::cast_unsigned).to_vec();
        let name = RendezvousAddress::new(one, two, true);
        assert_eq!(bytes(&name), bytes(&RendezvousAddress::new(one, two, false)));
        let other = RendezvousAddress::new(two, one, true);
        assert_ne!(bytes(&name), bytes(&other), "who connected counts");
        assert_eq!(bytes(&name)[0], 0, "no file");
    }
}
