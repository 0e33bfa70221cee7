//! Duplicating and closing descriptors: dup and its variants, fcntl, close, close_range.
//!
//! The library's own descriptors do not exist for the program: their use fails with EBADF, and
//! closing a range skips them.

use std::ffi::c_int;

use libc::{EBADF, F_DUPFD, F_DUPFD_CLOEXEC};
use nm_ring::ledger::KernelReason;

use crate::calls::sockets::fcntl_other;
use crate::next::next_functions;
use crate::process::{self, MemoryOwnership, memory_ownership};
use crate::socket::Socket;
use crate::{blocking, children, fallback, kernel, multiplex, table, tcp_sockets};

next_functions! {
    DUP2: unsafe extern "C" fn(c_int, c_int) -> c_int = c"dup2";
}

/// Looks up the C library's functions.
pub fn prepare() {
    prepare_functions();
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// `fd` is closed, or is about to be, or another one has taken its place.
#[inline]
fn closed(fd: c_int) {
    table::forget_inherited(fd);
    table::forget_left_out(fd);
    tcp_sockets::closed(fd);
    multiplex::descriptor_closed(fd);
}

fn bad_descriptor() -> c_int {
    kernel::fail(EBADF) as c_int
}

/// The socket that is about to be duplicated. To duplicate one that is inherited does not use it.
fn source_of(original: c_int) -> Option<&'static Socket> {
    if table::inherited_index(original).is_some() { None } else { table::get(original) }
}

/// Registers `copy`, a new descriptor of what `original` refers to.
fn copied(original: c_int, source: Option<&'static Socket>, copy: c_int) {
    if let Some(index) = table::inherited_index(original) {
        // The C library uses the standard streams without calling this library, and the copies of a
        // vfork child are not those of this process.
        if (0..=2).contains(&copy) || memory_ownership() == MemoryOwnership::Borrower {
            table::get(original);
        } else {
            children::descriptor_given(copy);
            table::bind_inherited(copy, index);
            return;
        }
    }
    let Some(socket) = source else {
        multiplex::descriptor_copied(original, copy);
        return;
    };
    if memory_ownership() == MemoryOwnership::Borrower {
        // A vfork child makes copies for the program that it executes. The table is its parent's
        // and cannot contain them, so the exec would not find the copy.
        fallback::move_to_kernel(socket, KernelReason::Exec);
        return;
    }
    if (0..=2).contains(&copy) {
        // The C library reads and writes the standard streams directly.
        fallback::move_to_kernel(socket, KernelReason::Stdio);
    }
    children::descriptor_given(copy);
    table::bind(copy, socket);
}

/// `int dup(int fd)`
///
/// # Safety
/// None beyond the C call's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if table::is_library_descriptor(fd) {
        return bad_descriptor();
    }
    let source = source_of(fd);
    // SAFETY: a plain number.
    let copy = unsafe { kernel::dup(fd) };
    if copy >= 0 {
        copied(fd, source, copy);
    }
    copy
}

/// dup2 and dup3 of two different descriptors.
fn dup_onto(original: c_int, copy: c_int, flags: c_int) -> c_int {
    if table::is_library_descriptor(original) || table::is_library_descriptor(copy) {
        return bad_descriptor();
    }
    let source = source_of(original);
    table::forget_inherited(copy);
    if table::get(copy).is_none() {
        // SAFETY: plain numbers.
        let result = unsafe { kernel::dup3(original, copy, flags) };
        if result >= 0 {
            closed(copy);
            copied(original, source, copy);
        }
        return result;
    }
    // The end of the socket under `copy` is published before the kernel closes it, so the call must
    // be certain to succeed. SAFETY: plain numbers.
    let valid = unsafe { kernel::fcntl(original, libc::F_GETFD, 0) } >= 0;
    if !valid || flags & !libc::O_CLOEXEC != 0 || memory_ownership() == MemoryOwnership::Borrower {
        // SAFETY: plain numbers.
        let result = unsafe { kernel::dup3(original, copy, flags) };
        if result >= 0 && source.is_some() {
            copied(original, source, copy);
        }
        return result;
    }
    let release = table::unbind(copy);
    closed(copy);
    // SAFETY: plain numbers.
    let result = unsafe { kernel::dup3(original, copy, flags) };
    if let Some(release) = release {
        release.finish();
    }
    if result >= 0 {
        copied(original, source, copy);
    }
    result
}

/// `int dup2(int original, int copy)`
///
/// # Safety
/// None beyond the C call's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(original: c_int, copy: c_int) -> c_int {
    if process::is_restricted()
        && let Some(real) = DUP2.get()
    {
        // SAFETY: plain numbers.
        return unsafe { real(original, copy) };
    }
    if original == copy {
        if table::is_library_descriptor(original) {
            return bad_descriptor();
        }
        // SAFETY: plain numbers; fails with EBADF as dup2 does.
        let flags = unsafe { kernel::fcntl(original, libc::F_GETFD, 0) };
        return if flags < 0 { -1 } else { copy };
    }
    dup_onto(original, copy, 0)
}

/// `int dup3(int original, int copy, int flags)`
///
/// # Safety
/// None beyond the C call's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(original: c_int, copy: c_int, flags: c_int) -> c_int {
    if original == copy {
        return kernel::fail(libc::EINVAL) as c_int;
    }
    dup_onto(original, copy, flags)
}

/// `int fcntl(int fd, int command, ...)`; the argument, if there is one, is one word.
///
/// # Safety
/// As fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if table::is_library_descriptor(fd) {
        return bad_descriptor();
    }
    if command != F_DUPFD && command != F_DUPFD_CLOEXEC {
        // SAFETY: the argument is what this command takes, which the caller guarantees.
        return unsafe { fcntl_other(fd, command, argument) };
    }
    let source = source_of(fd);
    // C passes an int: the upper half of the register is undefined.
    let lowest = argument as c_int as usize;
    // SAFETY: plain numbers.
    let copy = unsafe { kernel::fcntl(fd, command, lowest) };
    if copy >= 0 {
        copied(fd, source, copy);
    }
    copy
}

/// `int close(int fd)`
///
/// # Safety
/// As close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    table::forget_inherited(fd);
    if table::get(fd).is_none() {
        if table::is_library_descriptor(fd) {
            return bad_descriptor();
        }
        closed(fd);
        // SAFETY: the caller guarantees that it may be closed; it is not one of the library's.
        return unsafe { blocking::close(fd) };
    }
    blocking::cancellation_point();
    close_known(fd)
}

/// Closes a descriptor of the table. If it is the last one, the end is published in shared memory
/// first, and the last active call releases the memory.
fn close_known(fd: c_int) -> c_int {
    let mut release = None;
    if memory_ownership() == MemoryOwnership::Owner {
        release = table::unbind(fd);
        closed(fd);
    }
    // SAFETY: the program closes its own descriptor.
    let result = unsafe { kernel::close(fd) };
    if let Some(release) = release {
        let errno = kernel::errno();
        release.finish();
        kernel::set_errno(errno);
    }
    result
}

/// `int close_range(unsigned first, unsigned last, int flags)`
///
/// # Safety
/// As close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let unknown = flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) != 0;
    // SAFETY: the range contains no descriptor.
    let here = unsafe { kernel::close_range(u32::MAX, u32::MAX, 0) } == 0;
    // Marks descriptors only (the library's are marked already), has invalid arguments, or the
    // kernel does not have the call.
    if flags & CLOSE_RANGE_CLOEXEC != 0 || unknown || first > last || !here {
        // SAFETY: plain numbers.
        return unsafe { kernel::close_range(first, last, flags) };
    }
    if memory_ownership() == MemoryOwnership::Owner {
        close_known_in(first, last);
    }
    for_each_gap(first, last, |gap_first, gap_last| {
        // SAFETY: the program closes its own descriptors; ours are not among them.
        unsafe { kernel::close_range(gap_first, gap_last, flags) };
    });
    0
}

/// Closes the descriptors of the table and the epoll sets between `first` and `last`.
fn close_known_in(first: u32, last: u32) {
    table::for_each_descriptor(|fd, _| {
        if (first..=last).contains(&fd.cast_unsigned()) {
            close_known(fd);
        }
    });
    let end = last.min(table::DESCRIPTORS as u32 - 1);
    for fd in first..=end {
        closed(fd.cast_signed());
    }
}

/// Calls `visit` for each part of `first..=last` that has none of the library's descriptors.
fn for_each_gap(first: u32, last: u32, mut visit: impl FnMut(u32, u32)) {
    let mut from = first;
    loop {
        let own = c_int::try_from(from).ok().and_then(table::next_library_descriptor);
        let own = own.map(c_int::cast_unsigned).filter(|own| *own <= last);
        let Some(own) = own else {
            visit(from, last);
            return;
        };
        if own > from {
            visit(from, own - 1);
        }
        if own == last {
            return;
        }
        from = own + 1;
    }
}

/// `void closefrom(int lowest)`
///
/// # Safety
/// As closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(lowest: c_int) {
    let first = lowest.max(0).cast_unsigned();
    let errno = kernel::errno();
    // SAFETY: the program gives up its descriptors from here on.
    if unsafe { close_range(first, u32::MAX, 0) } == 0 {
        return;
    }
    // A kernel before 5.9: closes them one by one, up to the limit of descriptors.
    let limit = match kernel::descriptor_limit() {
        [0, _] => table::DESCRIPTORS as u64,
        [soft, _] => soft,
    };
    for fd in first..u32::try_from(limit).unwrap_or(u32::MAX).min(i32::MAX as u32) {
        // SAFETY: one of the descriptors that the program gives up.
        unsafe { close(fd.cast_signed()) };
    }
    kernel::set_errno(errno);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_range_skips_library_descriptors() {
        // SAFETY: plain numbers.
        let made = unsafe { libc::eventfd(0, 0) };
        let own = table::protect(made);
        assert!(own > 2 && table::is_library_descriptor(own));
        let number = own.cast_unsigned();
        let mut gaps = Vec::new();
        for_each_gap(number - 2, number + 2, |first, last| gaps.push((first, last)));
        let inside = |fd: u32| gaps.iter().any(|(first, last)| (*first..=*last).contains(&fd));
        assert!(!inside(number) && inside(number - 2) | table::is_library_descriptor(own - 2));
        let mut none = 0;
        for_each_gap(number, number, |_, _| none += 1);
        assert_eq!(none, 0);
        // SAFETY: plain numbers; all of them are to fail.
        unsafe {
            assert_eq!(close(own), -1);
            assert_eq!(kernel::errno(), EBADF);
            assert_eq!(dup(own), -1);
            assert_eq!(dup2(0, own), -1);
            assert_eq!(dup2(own, own), -1);
            assert_eq!(fcntl(own, libc::F_GETFD, 0), -1);
        }
        table::close_library_descriptor(own);
        assert!(!table::is_library_descriptor(own));
    }
}
