//! libc's second names of calls, which some programs and libraries use instead of the first.

use std::ffi::{c_int, c_void};

use libc::{fd_set, nfds_t, pollfd, sockaddr, socklen_t, timeval};

use super::{data, poll, select, sockets};

/// Declares second names: each calls the function of the first name in this library.
macro_rules! second_names {
    ($($name:ident = $module:ident::$first:ident
        ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// libc's second name of this call.
        ///
        /// # Safety
        /// As libc's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller guarantees the arguments, as the C function requires.
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
}
