//! The calls that move bytes: recv, send, read, write and their variants.
//!
//! Each looks its descriptor up and calls the kernel at once if the library does not manage it. A
//! candidate's calls also go to the kernel, and are counted; a joined socket's calls go to
//! [`crate::stream`].

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use nm_ring::ledger::KernelReason;

use super::control::{ControlSpace, tell_unread};
use super::handover;
use crate::socket::{Phase, Socket};
use crate::stream::{self, Request};
use crate::{blocking, fallback, inheritors, kernel, rendezvous, table, wait};

/// Longest vector that the kernel accepts, parts.
const PARTS_MAX: usize = 1024;

/// Flags of a receiving call that only the kernel supports.
const KERNEL_RECEIVE: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// Flags of a sending call that only the kernel supports.
const KERNEL_SEND: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Receives: from shared memory if the socket is joined, else by `raw`.
#[inline(always)]
fn receive(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    raw: impl Fn() -> isize,
) -> isize {
    if socket.is_joined()
        && flags & KERNEL_RECEIVE == 0
        && let Some(_guard) = table::enter(socket, fd)
        && socket.is_joined()
    {
        if socket.is_held() {
            inheritors::check(socket);
        }
        return stream::receive(Request { socket, fd, parts, flags }, raw);
    }
    receive_slow(socket, fd, flags, raw)
}

/// A call of the kernel that receives on a candidate, which a cancellation of the thread may end.
struct CandidateReceive {
    socket: &'static Socket,
    fd: c_int,
}

impl CandidateReceive {
    fn begin(socket: &'static Socket, fd: c_int) -> CandidateReceive {
        socket.begin_candidate_receive();
        CandidateReceive { socket, fd }
    }
}

impl Drop for CandidateReceive {
    fn drop(&mut self) {
        if let Some(_guard) = table::enter(self.socket, self.fd) {
            self.socket.end_candidate_receive(self.fd);
        }
    }
}

#[cold]
fn receive_slow(
    socket: &'static Socket,
    fd: c_int,
    flags: c_int,
    raw: impl Fn() -> isize,
) -> isize {
    if socket.phase() != Phase::Candidate || flags & KERNEL_RECEIVE != 0 {
        return count_received(socket, raw());
    }
    if socket.is_held() {
        inheritors::check(socket);
    }
    let receiving = CandidateReceive::begin(socket, fd);
    let result = raw();
    let errno = kernel::errno();
    drop(receiving);
    if result >= 0 && flags & libc::MSG_PEEK == 0 {
        count_received(socket, result);
        rendezvous::after_data_call(socket, fd, result as usize);
    }
    kernel::set_errno(errno);
    result
}

fn count_received(socket: &Socket, result: isize) -> isize {
    if result > 0 {
        let counters = &socket.record().incoming;
        counters.kernel_bytes.add(result as u64);
        counters.kernel_calls.add(1);
    }
    result
}

/// Sends: to shared memory if the socket is joined, else by `raw`.
#[inline]
fn transmit(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    raw: impl Fn() -> isize,
) -> isize {
    if socket.is_joined()
        && flags & KERNEL_SEND == 0
        && let Some(_guard) = table::enter(socket, fd)
        && socket.is_joined()
    {
        if socket.is_held() {
            inheritors::check(socket);
        }
        return stream::send(Request { socket, fd, parts, flags }, raw);
    }
    if socket.is_mapped() && !socket.is_joined() && flags & KERNEL_SEND == 0 {
        // The other end may have accepted the memory.
        rendezvous::before_data_call(socket, fd);
        if let Some(_guard) = table::enter(socket, fd)
            && socket.is_joined()
        {
            return stream::send(Request { socket, fd, parts, flags }, raw);
        }
    }
    if let [one] = parts
        && one.iov_len > stream::CHUNK_BYTES
        && socket.phase() == Phase::Candidate
        && flags & KERNEL_SEND == 0
        && !stream::has_send_timeout(fd)
    {
        return transmit_in_chunks(socket, fd, one, flags);
    }
    transmit_slow(socket, fd, flags, raw)
}

/// Sends a large call of a candidate chunk by chunk, so that the rest can go to memory if the
/// socket joins meanwhile.
#[cold]
fn transmit_in_chunks(socket: &'static Socket, fd: c_int, part: &iovec, flags: c_int) -> isize {
    let mut done = 0;
    loop {
        let start = part.iov_base.cast::<u8>().wrapping_add(done).cast::<c_void>();
        let left = part.iov_len - done;
        let rest = single_part(start, left);
        let bytes = left.min(stream::CHUNK_BYTES);
        // SAFETY: within the program's own buffer.
        let raw = |bytes| unsafe { kernel::sendto(fd, start, bytes, flags, ptr::null(), 0) };
        let is_last = bytes == left || socket.is_joined();
        let result = match is_last {
            true => transmit(socket, fd, &rest, flags, || raw(left)),
            false => transmit_slow(socket, fd, flags, || raw(bytes)),
        };
        done += result.max(0) as usize;
        if is_last || result < bytes as isize {
            return if done > 0 { done as isize } else { result };
        }
    }
}

#[cold]
pub(super) fn transmit_slow(
    socket: &'static Socket,
    fd: c_int,
    flags: c_int,
    raw: impl Fn() -> isize,
) -> isize {
    if flags & KERNEL_SEND != 0 {
        let urgent = flags & libc::MSG_OOB != 0;
        let reason = if urgent { KernelReason::UrgentData } else { KernelReason::UnsupportedCall };
        fallback::move_to_kernel(socket, reason);
    }
    if socket.phase() == Phase::Kernel {
        return count_sent(socket, raw());
    }
    if socket.is_held() {
        inheritors::check(socket);
    }
    let sending = socket.begin_kernel_send();
    let result = raw();
    let errno = kernel::errno();
    if result > 0
        && let Some(_guard) = table::enter(socket, fd)
    {
        socket.count_kernel_sent(result as usize);
    }
    drop(sending);
    if result >= 0 {
        count_sent(socket, result);
        rendezvous::after_data_call(socket, fd, result as usize);
    }
    kernel::set_errno(errno);
    result
}

fn count_sent(socket: &Socket, result: isize) -> isize {
    if result > 0 {
        let counters = &socket.record().outgoing;
        counters.kernel_bytes.add(result as u64);
        counters.kernel_calls.add(1);
    }
    result
}

/// The socket of `fd`, if the library manages it. The calls that ask are cancellation points; for
/// other descriptors libc's own call is one.
#[inline(always)]
pub(super) fn managed(fd: c_int) -> Option<&'static Socket> {
    let socket = table::get(fd)?;
    blocking::cancellation_point();
    Some(socket)
}

/// One buffer as a vector.
#[inline(always)]
pub(super) fn single_part(buffer: *const c_void, bytes: usize) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: bytes }]
}

/// A caller's vector; None if the kernel rejects its length.
///
/// # Safety
/// `vector` points to `count` live entries.
#[inline(always)]
unsafe fn parts<'a>(vector: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    if count > PARTS_MAX || vector.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees the entries, of which there is at least one.
    let parts = unsafe { slice::from_raw_parts(vector, count) };
    (stream::total(parts) <= isize::MAX as usize).then_some(parts)
}

/// `read(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::read(fd, buffer, bytes) };
    match managed(fd) {
        Some(socket) if bytes > 0 => receive(socket, fd, &single_part(buffer, bytes), 0, raw),
        _ => raw(),
    }
}

/// `write(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::write(fd, buffer, bytes) };
    match managed(fd) {
        Some(socket) => transmit(socket, fd, &single_part(buffer, bytes), 0, raw),
        None => raw(),
    }
}

/// `recv(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let raw = || {
        // SAFETY: the program's own arguments, passed on unchanged.
        unsafe { blocking::recvfrom(fd, buffer, bytes, flags, ptr::null_mut(), ptr::null_mut()) }
    };
    match managed(fd) {
        Some(socket) => receive(socket, fd, &single_part(buffer, bytes), flags, raw),
        None => raw(),
    }
}

/// `send(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::sendto(fd, buffer, bytes, flags, ptr::null(), 0) };
    match managed(fd) {
        Some(socket) => transmit(socket, fd, &single_part(buffer, bytes), flags, raw),
        None => raw(),
    }
}

/// `recvfrom(2)`. TCP gives no address: its length becomes 0.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::recvfrom(fd, buffer, bytes, flags, address, length) };
    let Some(socket) = managed(fd) else { return raw() };
    let result = receive(socket, fd, &single_part(buffer, bytes), flags, raw);
    if result >= 0 && !address.is_null() && !length.is_null() {
        // SAFETY: the program's own variable.
        unsafe { *length = 0 };
    }
    result
}

/// `sendto(2)`. On a connected TCP socket the address is ignored.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::sendto(fd, buffer, bytes, flags, address, length) };
    match managed(fd) {
        Some(socket) => transmit(socket, fd, &single_part(buffer, bytes), flags, raw),
        None => raw(),
    }
}

/// `readv(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::readv(fd, vector, count) };
    let Some(socket) = managed(fd) else { return raw() };
    // SAFETY: the program's own vector.
    match unsafe { parts(vector, count as usize) } {
        Some(parts) if stream::total(parts) > 0 => receive(socket, fd, parts, 0, raw),
        _ => raw(),
    }
}

/// `writev(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::writev(fd, vector, count) };
    let Some(socket) = managed(fd) else { return raw() };
    // SAFETY: the program's own vector.
    match unsafe { parts(vector, count as usize) } {
        Some(parts) => transmit(socket, fd, parts, 0, raw),
        None => raw(),
    }
}

/// `preadv2(2)`: with the offset −1 it reads a socket as `readv` does.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::preadv2(fd, vector, count, offset, flags) };
    let Some(socket) = managed(fd) else { return raw() };
    let allowed = libc::RWF_NOWAIT | libc::RWF_HIPRI;
    if offset != -1 || flags & !allowed != 0 {
        return raw();
    }
    let wait = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: the program's own vector.
    match unsafe { parts(vector, count as usize) } {
        Some(parts) if stream::total(parts) > 0 => receive(socket, fd, parts, wait, raw),
        _ => raw(),
    }
}

/// `pwritev2(2)`: with the offset −1 it writes a socket as `writev` does.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::pwritev2(fd, vector, count, offset, flags) };
    let Some(socket) = managed(fd) else { return raw() };
    let allowed = libc::RWF_NOWAIT | libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC;
    if offset != -1 || flags & !allowed != 0 {
        return raw();
    }
    let wait = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: the program's own vector.
    match unsafe { parts(vector, count as usize) } {
        Some(parts) => transmit(socket, fd, parts, wait, raw),
        None => raw(),
    }
}

/// `recvmsg(2)`. What comes through memory has no address and no control messages.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    let by_kernel = Cell::new(false);
    let raw = || {
        // SAFETY: the program's own arguments, passed on unchanged.
        let result = unsafe { blocking::recvmsg(fd, message, flags) };
        by_kernel.set(result >= 0);
        result
    };
    let Some(socket) = managed(fd) else { return raw() };
    if message.is_null() || !socket.is_joined() && socket.phase() == Phase::Kernel {
        return raw();
    }
    // SAFETY: the program's own header and vector.
    let Some(parts) = (unsafe { parts((*message).msg_iov, (*message).msg_iovlen) }) else {
        return raw();
    };
    // SAFETY: the program's own header.
    let space = ControlSpace::of(unsafe { &*message });
    let result = receive(socket, fd, parts, flags, raw);
    if result < 0 {
        return result;
    }
    // SAFETY: the program's own header.
    let header = unsafe { &mut *message };
    // What the kernel received it has described itself.
    if !by_kernel.get() {
        header.msg_namelen = 0;
        header.msg_controllen = 0;
        header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    }
    if socket.is_joined() && flags & KERNEL_RECEIVE == 0 {
        // SAFETY: the program's own space.
        unsafe { tell_unread(socket, fd, header, space) };
    }
    result
}

/// `sendmsg(2)`.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { blocking::sendmsg(fd, message, flags) };
    if message.is_null() {
        return raw();
    }
    // SAFETY: the program's own header.
    let header = unsafe { &*message };
    let control = !header.msg_control.is_null() && header.msg_controllen > 0;
    if control && !handover::before_sendmsg(message) {
        return kernel::fail(libc::ECONNRESET);
    }
    let Some(socket) = managed(fd) else { return raw() };
    if control {
        fallback::move_to_kernel(socket, KernelReason::UnsupportedCall);
    }
    // SAFETY: the program's own vector.
    match unsafe { parts(header.msg_iov, header.msg_iovlen) } {
        Some(parts) => transmit(socket, fd, parts, flags, raw),
        None => raw(),
    }
}

/// `recvmmsg(2)`: message by message on a joined socket.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(_) = managed(fd).filter(|socket| socket.phase() != Phase::Kernel) else {
        // SAFETY: the program's own arguments, passed on unchanged.
        return unsafe { blocking::recvmmsg(fd, messages, count, flags, timeout) };
    };
    // SAFETY: the program's own variable, if it gives one.
    let limit = unsafe { timeout.as_ref() }.map(|time| super::poll::nanoseconds(*time));
    if limit == Some(None) {
        return kernel::fail(libc::EINVAL) as c_int;
    }
    let limit_ns = limit.flatten();
    let begun = wait::now_ns();
    let mut flags = flags;
    for index in 0..count.min(PARTS_MAX as u32) {
        // SAFETY: the program's own array of `count` entries.
        let message = unsafe { &mut *messages.add(index as usize) };
        // SAFETY: the program's own array of `count` entries, as just used.
        let result =
            unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if result < 0 {
            return if index == 0 { -1 } else { index as c_int };
        }
        message.msg_len = result as u32;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if limit_ns.is_some_and(|limit| wait::now_ns() - begun >= limit) {
            return index as c_int + 1;
        }
    }
    count.min(PARTS_MAX as u32) as c_int
}

/// `sendmmsg(2)`: message by message on a joined socket.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> c_int {
    let known = managed(fd).filter(|socket| socket.phase() != Phase::Kernel);
    if known.is_none() {
        for index in 0..if messages.is_null() { 0 } else { count.min(PARTS_MAX as u32) } {
            // SAFETY: the program's own array of `count` entries.
            let header = unsafe { &(*messages.add(index as usize)).msg_hdr };
            let control = !header.msg_control.is_null() && header.msg_controllen > 0;
            if control && !handover::before_sendmsg(header) {
                return kernel::fail(libc::ECONNRESET) as c_int;
            }
        }
        // SAFETY: the program's own arguments, passed on unchanged.
        return unsafe { blocking::sendmmsg(fd, messages, count, flags) };
    }
    for index in 0..count.min(PARTS_MAX as u32) {
        // SAFETY: the program's own array of `count` entries.
        let message = unsafe { &mut *messages.add(index as usize) };
        let wanted = message.msg_hdr.msg_iovlen;
        // SAFETY: the program's own array of `count` entries, as just used.
        let result = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        if result < 0 {
            return if index == 0 { -1 } else { index as c_int };
        }
        message.msg_len = result as u32;
        // SAFETY: the program's own array of `count` entries, as just used.
        let parts = unsafe { parts(message.msg_hdr.msg_iov, wanted) };
        if parts.is_some_and(|parts| stream::total(parts) > result as usize) {
            return index as c_int + 1;
        }
    }
    count.min(PARTS_MAX as u32) as c_int
}

unsafe extern "C" {
    /// Aborts the program because a checked call would have written past its buffer.
    fn __chk_fail() -> !;
}

/// `__read_chk`: `read` of a program that was compiled with bounds checks.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    capacity: usize,
) -> isize {
    if bytes > capacity {
        // SAFETY: aborts the program, as libc would.
        unsafe { __chk_fail() };
    }
    // SAFETY: the buffer has the capacity that was just checked.
    unsafe { read(fd, buffer, bytes) }
}

/// `__recv_chk`: `recv` of a program that was compiled with bounds checks.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    capacity: usize,
    flags: c_int,
) -> isize {
    if bytes > capacity {
        // SAFETY: aborts the program, as libc would.
        unsafe { __chk_fail() };
    }
    // SAFETY: the buffer has the capacity that was just checked, and the flags change nothing about
    // it.
    unsafe { recv(fd, buffer, bytes, flags) }
}

/// `__recvfrom_chk`: `recvfrom` of a program that was compiled with bounds checks.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    capacity: usize,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    if bytes > capacity {
        // SAFETY: aborts the program, as libc would.
        unsafe { __chk_fail() };
    }
    // SAFETY: the buffer has the capacity that was just checked; address and length are null or
    // live.
    unsafe { recvfrom(fd, buffer, bytes, flags, address, length) }
}
