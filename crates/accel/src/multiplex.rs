//! Readiness of sets that mix sockets in shared memory with descriptors of the kernel. This is the
//! common part of poll, select and epoll, and the hooks by which the rest of the crate reports
//! changes.
//!
//! The kernel's readiness is true for everybody who relies on the kernel
//! ([`Socket::rely_on_kernel`]). So a thread sleeps by its own call, with its own descriptors. What
//! is added here are the bytes that are in memory while nobody sleeps.
//!
//! | module       | what it contains                                                   |
//! | ------------ | ------------------------------------------------------------------ |
//! | `array`      | poll and select                                                    |
//! | `epoll_wait` | one wait for an epoll set                                          |
//! | `epoll_set`  | an epoll set: the threads and processes that use it                |
//! | `control`    | changes of its registrations                                       |
//! | `members`    | its registrations, by descriptor and by data                       |
//! | `activity`   | which of them are counted, active and watched                      |
//! | `member`     | one registration                                                   |
//! | `nested`     | sets in sets                                                       |
//! | `adopt`      | sets that this process has not created                             |
//! | `users`      | how many processes use a set                                       |

mod activity;
mod adopt;
pub mod array;
mod bits;
mod control;
mod epoll_set;
pub mod epoll_wait;
mod events;
mod kernel_list;
mod member;
mod members;
mod nested;
mod pacing;
mod payoff;
mod registered;
mod registry;
mod sets;
mod socket_ref;
mod spin;
mod users;
mod wait_socket;

pub use adopt::{adopt_if_unknown, has_unknown_set};
pub use epoll_set::EpollSet;
pub use registered::is_anywhere as is_registered;
pub use registry::get as set_of;
pub use sets::*;
