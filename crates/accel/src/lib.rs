//! The socket accelerator: a library that `nearmetal accel` loads into an unmodified program by
//! `LD_PRELOAD`. It replaces libc's socket calls. TCP connections between two such programs on one
//! host move from the kernel's TCP to two pipes in shared memory. The kernel's connection is made
//! first and stays open: it gives the connection its addresses and its lifetime, and everything can
//! fall back to it.
//!
//! | module             | what it contains                                                     |
//! | ------------------ | -------------------------------------------------------------------- |
//! | `calls`            | the functions of libc that are replaced                              |
//! | `children`         | started programs that inherit sockets                                |
//! | `inherited`        | sockets that this program has inherited, and has not used yet        |
//! | `inheritors`       | holds for started programs that may use a socket                     |
//! | `exec_substitutes` | replacing a descriptor whose bytes an exec'd program could not read  |
//! | `stream`           | receiving and sending                                                |
//! | `rendezvous`       | how the two ends find each other and share memory                    |
//! | `memory_limit`     | how many connections the control group's memory allows               |
//! | `possession`       | proof that a process holds the other end of a connection             |
//! | `multiplex`        | readiness for poll, select and epoll                                 |
//! | `io_uring`         | whether the process uses io_uring                                    |
//! | `open_files`       | what the process's descriptors refer to                              |
//! | `options`          | socket options that memory cannot keep, or that it emulates          |
//! | `fallback`         | keeping a socket on the kernel, for a time or for good               |
//! | `table`            | which descriptors are sockets that the library manages               |
//! | `tcp_sockets`      | which descriptors are TCP sockets                                    |
//! | `socket`           | one connection: its phase, its memory, the counts of both directions |
//! | `system_call_filter` | programs that restrict their system calls                            |
//! | `ledgers`          | records of sockets, and the locks that started programs have on them |
//! | `coalescing`       | pauses of a receiver of many small messages                          |
//! | `contention`       | whether threads that share their CPU sleep or spin                   |
//! | `short_lived`      | whether the program's connections are short                          |
//! | `blocking`         | libc's own blocking calls, which are cancellation points             |
//! | `wait`             | spinning and sleeping                                                |
//! | `signals`          | deliveries of signal handlers, for `EINTR`                           |
//! | `process`          | which process this memory belongs to                                 |
//! | `tcp_info`         | the kernel's counts of a connection                                  |
//! | `kernel`           | raw system calls                                                     |
//!
//! Files import downward only: none imports a file that, directly or not, imports it.

// In the crate's own tests the functions are not exported, so the compiler sees no callers.
#![cfg_attr(test, allow(dead_code))]

mod attempts;
mod blocking;
mod c_library;
mod calls;
mod children;
mod coalescing;
mod contention;
mod environment;
mod exec_substitutes;
mod fallback;
mod inherited;
mod inheritors;
mod io_uring;
mod kernel;
mod ledgers;
mod lock;
mod memory_limit;
mod multiplex;
mod next;
mod open_files;
mod options;
mod peer_yields;
mod policy;
mod possession;
mod process;
mod program_file;
mod rendezvous;
mod report;
mod settings;
mod short_lived;
mod signals;
mod socket;
mod stream;
mod system_call_filter;
mod table;
mod tcp_info;
mod tcp_sockets;
mod wait;
mod worth;

use std::ffi::c_int;

use socket::Phase;

/// Runs before the program's `main`, after its libraries are loaded.
extern "C" fn begin() {
    let errno = kernel::errno();
    process::take_ownership();
    process::prepare_thread_count();
    wait::prepare();
    rendezvous::prepare();
    environment::prepare();
    calls::prepare();
    c_library::take_place();
    inherited::prepare();
    kernel::set_errno(errno);
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

/// Which way a descriptor's bytes go, for tests and tools: 0 unknown, 1 the kernel, 2 the kernel so
/// far, 3 shared memory in both directions, 4 shared memory that cannot be used now.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn nearmetal_accel_state(fd: c_int) -> c_int {
    let Some(socket) = table::get(fd) else { return 0 };
    match socket.phase() {
        Phase::Kernel => 1,
        Phase::Candidate => 2,
        Phase::Joined => {
            let Some(_guard) = table::enter(socket, fd) else { return 0 };
            match () {
                () if socket.is_held() => 1,
                () if socket.both_directions_are_known() => 3,
                () => 4,
            }
        }
    }
}
