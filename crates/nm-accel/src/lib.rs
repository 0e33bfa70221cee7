//! The socket accelerator: a library that `nearmetal accel` loads into an unmodified program by
//! `LD_PRELOAD`. It replaces libc's socket calls. TCP connections between two such programs on one
//! host move from the kernel's TCP to two pipes in shared memory. The kernel's connection is made
//! first and stays open: it gives the connection its addresses and its lifetime, and everything can
//! fall back to it.
//!
//! | module             | what it contains                                                     |
//! | ------------------ | -------------------------------------------------------------------- |
//! | `calls`            | the functions of libc that are replaced                              |
//! | `blocking`         | libc's own blocking calls, which are cancellation points             |
//! | `table`            | which descriptors are sockets that the library manages               |
//! | `socket`           | one connection: its phase, its stages, its return to the kernel      |
//! | `rendezvous`       | how the two ends find each other and share memory                    |
//! | `stream`           | receiving and sending                                                |
//! | `exec_substitutes` | replacing a descriptor whose bytes an exec'd program could not read  |
//! | `wait`             | spinning and sleeping                                                |
//! | `multiplex`        | readiness for poll, select and epoll                                 |
//! | `signals`          | deliveries of signal handlers, for `EINTR`                           |
//! | `kernel`           | raw system calls                                                     |

// In the crate's own tests the functions are not exported, so the compiler sees no callers.
#![cfg_attr(test, allow(dead_code))]

mod blocking;
mod calls;
mod exec_substitutes;
mod kernel;
mod multiplex;
mod next;
mod policy;
mod rendezvous;
mod report;
mod settings;
mod signals;
mod socket;
mod stream;
mod table;
mod wait;

use std::ffi::c_int;

use socket::Phase;

/// Runs before the program's `main`, after its libraries are loaded.
extern "C" fn begin() {
    let errno = kernel::errno();
    table::take_ownership();
    wait::prepare();
    rendezvous::prepare();
    calls::processes::prepare();
    kernel::set_errno(errno);
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

/// Which way a descriptor's bytes go, for tests and tools: 0 unknown, 1 the kernel, 2 the kernel so
/// far, 3 shared memory in both directions, 4 shared memory in part.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn nearmetal_accel_state(fd: c_int) -> c_int {
    let Some(socket) = table::get(fd) else { return 0 };
    match socket.phase() {
        Phase::Kernel => 1,
        Phase::Candidate => 2,
        Phase::Joined => {
            socket.enter(fd).map_or(0, |_guard| if socket.is_fully_in_memory() { 3 } else { 4 })
        }
    }
}
