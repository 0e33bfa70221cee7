//! One trait, many ways to move bytes.
//!
//! [`Transport`] is what a probe's hot loop sees. A [`Listener`] and [`connect`] make the two ends
//! of a [`Connection`] for a stack; [`Connection::with`] then hands the probe a transport whose
//! protocol and way of waiting are fixed types, so that the loop is compiled for them and decides
//! nothing at run time. [`sim`] is a pair without a kernel, and [`wrap`] has middleware for any
//! transport.
//!
//! Addresses as text, which is what the two ends exchange over their control channel:
//! `127.0.0.1:4000` and `[::1]:4000` (TCP, also by AF_XDP, and UDP), `unix:@NAME` and `unix:/PATH`,
//! `mcast:GROUP:PORT/PORT` (to the listener / back), `xdp:10.0.0.1:4000` and `xdp:[fd00::1]:4000`,
//! and `shm:PID/FD` (shared memory by a descriptor of the listening process).

#![forbid(unsafe_code)]

pub mod address;
pub mod failure;
pub mod frame;
pub mod greeting;
pub mod link;
pub mod listen;
pub mod shm;
pub mod sim;
pub mod wait;
pub mod wrap;
pub mod xdp;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use nm_model::Doubt;

pub use link::{Connection, Visitor};
pub use listen::{Listener, Options, connect};

/// How long a call waits before it answers [`Fault::TimedOut`], so that its caller can look at its
/// own deadline and at whether the task was cancelled.
pub const SLICE: Duration = Duration::from_millis(100);

/// Why a call did not do what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing came, or there was no room, for [`SLICE`]. The same call with the same buffer may be
    /// repeated and goes on where it stopped.
    TimedOut,
    /// The peer has gone.
    Closed,
    /// An error of the system, by its number.
    System(i32),
}

impl Fault {
    /// The fault that an error of a socket call means.
    #[cold]
    pub fn of(error: &io::Error) -> Fault {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::WouldBlock | Kind::Interrupted | Kind::TimedOut => Fault::TimedOut,
            Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected => Fault::Closed,
            _ => Fault::System(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::TimedOut => f.write_str("nothing moved in time"),
            Fault::Closed => f.write_str("the peer has gone"),
            Fault::System(code) => io::Error::from_raw_os_error(*code).fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

/// One end of a connection between two endpoints.
///
/// A transport either carries a stream of bytes or datagrams ([`Transport::DATAGRAM`]); datagrams
/// may be lost, doubled or reordered. It is used by one thread at a time and waits in the way of
/// its stack's mode. After [`Fault::TimedOut`] from `send` or `receive`, only the same call with
/// the same buffer may follow in that direction.
pub trait Transport: Send {
    /// Whether messages keep their borders and may be lost.
    const DATAGRAM: bool;

    /// Sends a whole message.
    ///
    /// # Errors
    /// See [`Fault`]; [`Fault::TimedOut`] if the peer takes nothing.
    fn send(&mut self, message: &[u8]) -> Result<(), Fault>;

    /// Receives: on a stream exactly `buffer.len()` bytes, which must not be zero; else one
    /// datagram, cut to the buffer. Answers the number of bytes.
    ///
    /// # Errors
    /// See [`Fault`].
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault>;

    /// Receives what is there, at least a byte of a stream or one datagram; waits for it if need
    /// be.
    ///
    /// # Errors
    /// See [`Fault`].
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault>;

    /// Sends what there is room for without waiting: the number of bytes (datagrams go whole), or
    /// none if there is no room.
    ///
    /// # Errors
    /// See [`Fault`]; never [`Fault::TimedOut`].
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault>;

    /// Receives what is there without waiting: the number of bytes, or none if nothing is there.
    ///
    /// # Errors
    /// See [`Fault`]; never [`Fault::TimedOut`].
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault>;

    /// Waits, in the way of its mode, until something can be received or `limit` has passed. A
    /// spinning transport looks once and comes back. Answers whether a receive is worth trying.
    ///
    /// # Errors
    /// See [`Fault`].
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault>;

    /// Tells the peer that nothing more will come: the end of a stream, or a parting datagram of a
    /// length other than those in `lengths`, which the peer uses for its messages.
    fn end_sending(&mut self, lengths: &[usize]);

    /// Makes the system notice a datagram peer that has gone, which an idle receiver would not;
    /// `lengths` as in [`Transport::end_sending`]. Does nothing on a stream.
    ///
    /// # Errors
    /// [`Fault::Closed`] if it has.
    fn poke(&mut self, lengths: &[usize]) -> Result<(), Fault> {
        let _ = lengths;
        Ok(())
    }

    /// Segments sent again so far, where the transport knows.
    fn retransmits(&self) -> Option<u64> {
        None
    }

    /// The CPU on which the peer waited last, where the two share a machine and the transport can
    /// see it.
    fn peer_cpu(&self) -> Option<u32> {
        None
    }

    /// What the transport itself gives reason to doubt, such as frames that were dropped.
    fn doubts(&self) -> Vec<Doubt> {
        vec![]
    }

    /// Settings that explain a throughput, as they came to be: name to text.
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}
