//! socket, connect, accept, shutdown, options and flags.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use nm_ring::conduit::READ_SHUT;
use nm_ring::ledger::{KernelReason, SocketRole};

use crate::next::next_functions;
use crate::socket::{Phase, Socket};
use crate::{
    blocking, children, fallback, kernel, options, process, rendezvous, table, tcp_sockets,
};

next_functions! {
    SOCKET: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int = c"socket";
}

/// Looks the C library's functions up, because the child of a fork must not.
pub fn prepare() {
    prepare_functions();
}

/// Registers a TCP socket, unless this process only borrows its parent's memory.
fn admit(fd: c_int, role: SocketRole, peer: Option<std::net::SocketAddr>) {
    if process::owner_pid() == 0 || process::is_borrower() {
        return;
    }
    let errno = kernel::errno();
    children::descriptor_opened(fd);
    rendezvous::register_socket(fd, role, peer);
    kernel::set_errno(errno);
}

/// Copies an address from the program's memory.
///
/// # Safety
/// `source` points to `length` live bytes.
unsafe fn copy(source: *const sockaddr, length: socklen_t) -> sockaddr_storage {
    // SAFETY: all zero is a valid address storage.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let bytes = (length as usize).min(size_of::<sockaddr_storage>());
    if !source.is_null() {
        // SAFETY: both are valid for `bytes` bytes.
        unsafe {
            ptr::copy_nonoverlapping(source.cast::<u8>(), (&raw mut storage).cast::<u8>(), bytes);
        }
    }
    storage
}

/// `socket(2)`: the kernel's own; its protocol is stored.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(real) = SOCKET.get() else { return kernel::fail(libc::ENOSYS) as c_int };
    // SAFETY: plain numbers, passed on unchanged.
    let fd = unsafe { real(domain, kind, protocol) };
    if fd >= 0 && !process::is_borrower() {
        table::forget_left_out(fd);
        tcp_sockets::created(fd, domain, kind, protocol);
    }
    fd
}

/// `connect(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's own arguments, passed on unchanged.
    let result = unsafe { blocking::connect(fd, address, length) };
    let begun = result == 0 || kernel::errno() == libc::EINPROGRESS;
    if !begun || address.is_null() || length < 2 {
        return result;
    }
    // SAFETY: the kernel has just read the same bytes.
    let storage = unsafe { copy(address, length) };
    match c_int::from(storage.ss_family) {
        libc::AF_INET | libc::AF_INET6 if table::get(fd).is_none_or(|it| !it.is_joined()) => {
            let peer = rendezvous::parse_address(&storage);
            if !rendezvous::is_registered(fd, peer) && is_tcp(fd) {
                admit(fd, SocketRole::Client, peer);
            }
        }
        libc::AF_UNSPEC => {
            // The connection is dissolved: the socket stays on the kernel, whatever it is used for
            // next.
            if let Some(socket) = table::get(fd) {
                fallback::move_to_kernel(socket, KernelReason::ConnectionNotSeen);
            }
        }
        _ => {}
    }
    result
}

/// `accept(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if process::is_restricted() {
        // SAFETY: the program's own arguments, passed on unchanged.
        return unsafe { blocking::accept(fd, address, length) };
    }
    // SAFETY: accept is accept4 without flags.
    unsafe { accept4(fd, address, length, 0) }
}

/// `accept4(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !address.is_null() && !length.is_null() {
        // SAFETY: the program's own variable: bytes that its buffer holds.
        let capacity = unsafe { *length };
        // SAFETY: the program's own arguments, passed on unchanged.
        let accepted = unsafe { blocking::accept4(fd, address, length, flags) };
        if accepted >= 0 {
            // SAFETY: the kernel has written the address's full length, and as much of the address
            // as the program's buffer holds.
            let peer = unsafe { complete_address(address, capacity, *length) };
            admit_accepted(fd, accepted, peer.as_ref());
        }
        return accepted;
    }
    // SAFETY: all zero is a valid address storage.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut size = size_of::<sockaddr_storage>() as socklen_t;
    let own_size = if address.is_null() { &raw mut size } else { length };
    let place = if address.is_null() { (&raw mut storage).cast() } else { address };
    // SAFETY: both are live and of the stated size, or the program's own arguments, of which the
    // length is null; the kernel rejects it.
    let accepted = unsafe { blocking::accept4(fd, place, own_size, flags) };
    if accepted >= 0 {
        admit_accepted(fd, accepted, Some(&storage));
    }
    accepted
}

/// An address that the kernel has written to a program's buffer; none if the buffer was too short.
///
/// # Safety
/// `address` points to `capacity` live bytes.
unsafe fn complete_address(
    address: *const sockaddr,
    capacity: socklen_t,
    length: socklen_t,
) -> Option<sockaddr_storage> {
    // SAFETY: no more than the buffer holds is read.
    (length <= capacity).then(|| unsafe { copy(address, length) })
}

/// Registers a socket that `listener` has accepted. Without its peer's address the kernel is asked
/// for it.
fn admit_accepted(listener: c_int, fd: c_int, peer: Option<&sockaddr_storage>) {
    let asked;
    let peer = match peer {
        Some(peer) => peer,
        None => {
            asked = peer_address(fd);
            &asked
        }
    };
    if matches!(c_int::from(peer.ss_family), libc::AF_INET | libc::AF_INET6) && is_tcp(listener) {
        admit(fd, SocketRole::Server, rendezvous::parse_address(peer));
    }
}

fn is_tcp(fd: c_int) -> bool {
    let errno = kernel::errno();
    let is_tcp = tcp_sockets::is_tcp(fd);
    kernel::set_errno(errno);
    is_tcp
}

/// `getpeername(2)`; an address of no family if it fails.
fn peer_address(fd: c_int) -> sockaddr_storage {
    // SAFETY: all zero is a valid address storage.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut size = size_of::<sockaddr_storage>() as socklen_t;
    let errno = kernel::errno();
    // SAFETY: both are live and of the stated size.
    unsafe { kernel::getpeername(fd, (&raw mut storage).cast(), &raw mut size) };
    kernel::set_errno(errno);
    storage
}

/// `shutdown(2)`: the kernel sends its FIN; the peer receives what is in memory before it.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: no pointers.
    let raw = || unsafe { kernel::shutdown(fd, how) };
    if let Some(socket) = table::get(fd)
        && socket.is_joined()
        && let Some(_guard) = table::enter(socket, fd)
        && socket.is_joined()
        && (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how)
    {
        if how != libc::SHUT_RD {
            socket.shut_write(fd);
        }
        if how != libc::SHUT_WR {
            socket.own().set_flags(READ_SHUT);
        }
        let result = raw();
        socket.note_kernel_event();
        return result;
    }
    raw()
}

/// `setsockopt(2)`: the kernel's own, and remembered where it changes what we do.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let socket = table::get(fd).filter(|socket| socket.phase() != Phase::Kernel);
    let is_complete = !value.is_null() && length as usize >= size_of::<c_int>();
    // SAFETY: the program's own value of this length.
    let number = if is_complete { unsafe { value.cast::<c_int>().read_unaligned() } } else { 0 };
    if let Some(socket) = socket
        && options::needs_kernel(level, name, number)
    {
        rendezvous::decline(socket, KernelReason::SocketOption, options::number(level, name));
    }
    if let Some(socket) = socket
        && is_complete
        && options::keeps_cork(socket, level, name, number)
    {
        return 0;
    }
    let on: c_int = 1;
    let is_kept = socket.is_some_and(|socket| options::keeps_nodelay(socket, level, name, number));
    let value = if is_kept && !value.is_null() { (&raw const on).cast() } else { value };
    // SAFETY: the program's own arguments, passed on unchanged; or a value of at least the length
    // that the kernel reads.
    let result = unsafe { kernel::setsockopt(fd, level, name, value, length) };
    if let Some(socket) = socket
        && result == 0
    {
        options::was_set(socket, level, name, number);
        let is_limit = matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | 66 | 67);
        if level == libc::SOL_SOCKET && is_limit {
            socket.read_timeouts(fd);
        }
        if level == libc::SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) {
            socket.read_memory_limit(fd);
        }
    }
    result
}

/// `getsockopt(2)`: the kernel's own, but for values that this library keeps for the program.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's own arguments, passed on unchanged.
    let result = unsafe { kernel::getsockopt(fd, level, name, value, length) };
    if result == 0
        && let Some(socket) = table::get(fd).filter(|socket| socket.phase() != Phase::Kernel)
    {
        // SAFETY: the kernel has just written as many bytes to the value.
        unsafe {
            if options::is_off_for_program(socket, level, name) {
                ptr::write_bytes(value.cast::<u8>(), 0, *length as usize);
            } else if options::is_on_for_program(socket, level, name) {
                let on = c_int::from(true).to_ne_bytes();
                let bytes = (*length as usize).min(on.len());
                ptr::copy_nonoverlapping(on.as_ptr(), value.cast::<u8>(), bytes);
            }
        }
    }
    result
}

/// `ioctl(2)`: bytes in the pipe are included in `FIONREAD`. They are not in `TIOCOUTQ`, which
/// counts what has not reached the peer's host.
///
/// # Safety
/// As libc's function of this name, whose optional argument is one word.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { kernel::ioctl(fd, request as usize, argument) };
    let Some(socket) = table::get(fd).filter(|socket| socket.phase() != Phase::Kernel) else {
        return raw();
    };
    // The kernel uses the low half of the request only.
    match request as u32 as c_ulong {
        libc::FIONBIO => {
            let result = raw();
            if result == 0 {
                // SAFETY: the kernel has just read the same number.
                socket.set_nonblocking(
                    unsafe { ptr::with_exposed_provenance::<c_int>(argument).read_unaligned() }
                        != 0,
                );
            }
            result
        }
        libc::FIONCLEX => {
            before_inheritable(socket, fd);
            raw()
        }
        libc::FIOASYNC => {
            fallback::move_to_kernel(socket, KernelReason::SignalDriven);
            raw()
        }
        libc::FIONREAD => {
            let result = raw();
            if result == 0 {
                let number = ptr::with_exposed_provenance_mut::<c_int>(argument);
                let more = in_pipe(socket, fd);
                // SAFETY: the kernel has just written this number; it may be unaligned.
                unsafe { number.write_unaligned(number.read_unaligned().saturating_add(more)) };
            }
            result
        }
        _ => raw(),
    }
}

/// Bytes to be received from the pipe, which the kernel does not know.
fn in_pipe(socket: &'static Socket, fd: c_int) -> c_int {
    if !socket.is_joined() {
        return 0;
    }
    let Some(_guard) = table::enter(socket, fd).filter(|_| socket.is_joined()) else { return 0 };
    socket.incoming().readable() as c_int
}

/// `fcntl(2)` but for the commands that copy descriptors.
///
/// # Safety
/// As libc's function.
pub unsafe fn fcntl_other(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments, passed on unchanged. A wait for a file lock is a
    // cancellation point.
    let raw = || unsafe { blocking::fcntl(fd, command, argument) };
    // The flags of a descriptor are not the socket's: this is no use of one that is inherited.
    if matches!(command, libc::F_GETFD | libc::F_SETFD) && table::inherited_index(fd).is_some() {
        return raw();
    }
    let Some(socket) = table::get(fd).filter(|socket| socket.phase() != Phase::Kernel) else {
        return raw();
    };
    match command {
        libc::F_SETFL => {
            if argument as c_int & libc::O_ASYNC != 0 {
                fallback::move_to_kernel(socket, KernelReason::SignalDriven);
            }
            let result = raw();
            if result == 0 {
                socket.set_nonblocking(argument as c_int & libc::O_NONBLOCK != 0);
            }
            result
        }
        libc::F_SETFD => {
            if argument as c_int & libc::FD_CLOEXEC == 0 {
                before_inheritable(socket, fd);
            }
            raw()
        }
        libc::F_SETOWN | F_SETOWN_EX | F_SETSIG => {
            fallback::move_to_kernel(socket, KernelReason::SignalDriven);
            raw()
        }
        _ => raw(),
    }
}

/// The program asks that exec does not close `fd`, which it closes so far: it will give the socket
/// to another program on purpose.
fn before_inheritable(socket: &'static Socket, fd: c_int) {
    // SAFETY: a query of plain numbers.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFD, 0) };
    if flags < 0 || flags & libc::FD_CLOEXEC == 0 {
        return;
    }
    if process::is_borrower() {
        children::keep_on_kernel(socket);
    } else {
        children::descriptor_given(fd);
    }
}

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
