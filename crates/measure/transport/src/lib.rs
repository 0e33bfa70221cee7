//! One trait, many ways to move bytes.
//!
//! [`Transport`] is what a probe's hot loop sees. A [`Listener`] and [`connect()`] make the two
//! ends of a [`Connection`] for a stack. [`Connection::with`] then gives the probe a transport
//! whose protocol and way of waiting are fixed types. So the loop is compiled for them and decides
//! nothing at run time.
//!
//! The two ends exchange addresses as text over their control channel:
//!
//! - `127.0.0.1:4000` and `[::1]:4000` (TCP, also by AF_XDP, and UDP);
//! - `unix:@NAME` and `unix:/PATH`;
//! - `mcast:GROUP:PORT/PORT` (to the listener / back);
//! - `xdp:10.0.0.1:4000` and `xdp:[fd00::1]:4000`;
//! - `shm:PID/FD` (shared memory by a descriptor of the listening process).
//!
//! | module | what it does |
//! | --- | --- |
//! | `transport` | the trait, its errors, its call timeout |
//! | `listener`, `connect`, `connection` | make the two ends of a connection |
//! | `carrier` | the table of transports, one file each: how an end listens, connects and waits |
//! | `address`, `handshake`, `frame` | text and wire formats |
//! | `kernel`, `wait` | kernel sockets, one type for each way of waiting |
//! | `shm` | rings in shared memory |
//! | `xdp` | UDP and TCP over AF_XDP |
//! | `failure` | errors become sentences for people |
//! | `sim`, `wrap` (feature `test-support`) | a simulated transport; loss, delay and trace |

#![forbid(unsafe_code)]

pub mod address;
mod carrier;
pub mod connect;
pub mod connection;
pub mod connection_error;
pub mod error;
pub mod failure;
pub mod frame;
pub mod guest_memory;
pub mod handshake;
pub mod kernel;
pub mod listener;
pub mod shm;
#[cfg(any(test, feature = "test-support"))]
pub mod sim;
pub mod sockets;
pub mod transport;
pub mod wait;
#[cfg(any(test, feature = "test-support"))]
pub mod wrap;
pub mod xdp;

pub use connect::connect;
pub use connection::Connection;
pub use connection_error::ConnectionError;
pub use listener::Listener;
pub use sockets::Options;
pub use transport::{CALL_TIMEOUT, Transport, TransportError, Visitor};
