//! Links between clients and nodes: FIFO streams of frames over TCP, Unix sockets or shared memory,
//! non-blocking.
//!
//! A link reads what is available in one call, hands the frames on in place, and writes its backlog
//! in one call ([`Link::flush`]). Under load, many frames share a call.

mod address;
mod connecting;
mod connection;
#[cfg(test)]
pub mod full_queues;
mod poller;
mod receive_buffer;
mod shm;
mod stream;

pub use address::{Address, AddressError};
pub use connecting::Connecting;
pub use connection::{BACKLOG_BYTES_MAX, Link, LinkError, READ_BYTES};
pub use poller::LinkPoller;
pub use receive_buffer::ReceiveBuffer;
pub use shm::{SHM_RING_BYTES, ShmStream};
pub use stream::{Listener, Stream};
