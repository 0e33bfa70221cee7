//! libc's second names of calls, which some programs and libraries use instead of the first. They
//! are those of glibc's own and those for 64-bit file offsets, which are the same on 64-bit
//! processors.

use std::ffi::{c_char, c_int, c_void};

use libc::{
    FILE, aiocb, fd_set, iovec, nfds_t, pid_t, pollfd, sigevent, sockaddr, socklen_t, timeval,
};

use super::{
    aio, data, descriptors, handover, poll, processes, select, sendfile, signals, sockets,
};

/// Declares second names: each calls the function of the first name in this library.
macro_rules! second_names {
    ($($name:ident = $module:ident::$first:ident
        ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// libc's second name of this call.
        ///
        /// # Safety
        /// As libc's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: both names have the same declaration, and the caller keeps to it.
            unsafe { $module::$first($($argument),*) }
        }
    )*};
}

second_names! {
    __read = data::read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
    __write = data::write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize;
    __send = data::send(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int) -> isize;
    __connect = sockets::connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    __poll = poll::poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select = select::select(count: c_int, readable: *mut fd_set, writable: *mut fd_set,
        except: *mut fd_set, timeout: *mut timeval) -> c_int;
    preadv64v2 = data::preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: i64,
        flags: c_int) -> isize;
    pwritev64v2 = data::pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: i64,
        flags: c_int) -> isize;
    sendfile64 = sendfile::sendfile(out: c_int, file: c_int, offset: *mut i64, bytes: usize)
        -> isize;
    __dup2 = descriptors::dup2(original: c_int, copy: c_int) -> c_int;
    fcntl64 = descriptors::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __fcntl = descriptors::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __close = descriptors::close(fd: c_int) -> c_int;
    _IO_fdopen = handover::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    __fork = processes::fork() -> pid_t;
    _IO_popen = processes::popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    __sigaction = signals::sigaction(signal: c_int, new: *const libc::sigaction,
        old: *mut libc::sigaction) -> c_int;
    lio_listio64 = aio::lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int,
        event: *mut sigevent) -> c_int;
}
