//! A stream through shared memory between two nodes of one host and one user.
//!
//! The end that accepts a Unix socket creates the memory with a byte ring in each direction, and a
//! doorbell (eventfd) for each end. It hands them over. The socket stays open: it reports that the
//! peer has gone, however it ended. An end that goes to sleep announces that in the memory, and
//! only then its doorbell is rung: see [`super::LinkPoller`]. A full ring behaves as a full socket;
//! its writer's doorbell is rung when there is space.

use std::io::{self, ErrorKind, Read};
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nm_ring::EndpointRole;
use nm_ring::conduit::{Conduit, ConduitMapping};
use nm_ring::pipe::Pipe;
use nm_sys::poll::Waker;
use nm_sys::unix;

/// Capacity of the ring of one direction, bytes: a dozen of the longest messages. A page is
/// allocated when it is first used, so a direction that carries little takes little memory.
pub const SHM_RING_BYTES: usize = 1 << 20;

/// What is sent with the memory and the doorbells: a magic number with the version, and the size.
fn handshake() -> [u8; 16] {
    let mut handshake = *b"nmrings1________";
    handshake[8..].copy_from_slice(&(size_of::<Conduit<SHM_RING_BYTES>>() as u64).to_le_bytes());
    handshake
}

/// What an end and its poller share.
#[derive(Debug)]
pub(super) struct ShmRings {
    memory: ConduitMapping<SHM_RING_BYTES>,
    role: EndpointRole,
    /// Rung by the peer.
    pub(super) doorbell: Waker,
}

impl ShmRings {
    fn incoming(&self) -> &Pipe<SHM_RING_BYTES> {
        self.memory.incoming(self.role)
    }

    fn outgoing(&self) -> &Pipe<SHM_RING_BYTES> {
        self.memory.outgoing(self.role)
    }

    /// Whether there is something to read.
    pub(super) fn is_readable(&self) -> bool {
        self.incoming().readable() > 0
    }

    /// Announces that this end's reader sleeps, so that the peer rings the doorbell when it writes;
    /// false if there is something to read already, and then nothing is announced.
    pub(super) fn arm_doorbell(&self) -> bool {
        self.incoming().arm_reader();
        if self.is_readable() {
            self.incoming().disarm_reader();
            return false;
        }
        true
    }
}

/// One end.
#[derive(Debug)]
pub struct ShmStream {
    rings: Arc<ShmRings>,
    peer_doorbell: Waker,
    socket: UnixStream,
}

impl ShmStream {
    /// The end that has accepted a connection: creates the memory and hands it over.
    ///
    /// # Errors
    /// The system's error; [`ErrorKind::PermissionDenied`] for another user's process.
    pub fn accept(socket: UnixStream) -> io::Result<ShmStream> {
        check_user(&socket)?;
        let (memory, file) = ConduitMapping::new()?;
        let (doorbell, peer_doorbell) = (Waker::new()?, Waker::new()?);
        let descriptors = [file.as_fd(), peer_doorbell.as_fd(), doorbell.as_fd()];
        socket.set_nonblocking(true)?;
        unix::send_descriptors(socket.as_fd(), &handshake(), &descriptors)?;
        let rings = Arc::new(ShmRings { memory, role: EndpointRole::Creator, doorbell });
        Ok(ShmStream { rings, peer_doorbell, socket })
    }

    /// The end that has connected: takes what the other end hands over, which makes a stream of the
    /// socket.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if a non-blocking socket has nothing yet,
    /// [`ErrorKind::InvalidData`] if the peer is not a node of this version, and the system's
    /// error.
    pub fn receive(
        socket: &UnixStream,
    ) -> io::Result<impl FnOnce(UnixStream) -> ShmStream + use<>> {
        check_user(socket)?;
        let mut received = [0; 16];
        let (length, descriptors) = unix::receive_descriptors(socket.as_fd(), &mut received)?;
        let is_known = received[..length] == handshake();
        let Ok([file, doorbell, peer_doorbell]) = <[_; 3]>::try_from(descriptors).map_err(drop)
        else {
            return Err(invalid("the peer hands over no shared memory"));
        };
        if !is_known {
            return Err(invalid("the peer's shared memory has another version or size"));
        }
        let memory = ConduitMapping::open(file)?;
        let (role, doorbell) = (EndpointRole::Opener, doorbell.into());
        let rings = Arc::new(ShmRings { memory, role, doorbell });
        let peer_doorbell = peer_doorbell.into();
        Ok(move |socket| ShmStream { rings, peer_doorbell, socket })
    }

    /// What its poller needs.
    pub(super) fn rings(&self) -> &Arc<ShmRings> {
        &self.rings
    }

    /// Reads what is available; zero bytes once the peer has gone and all that it wrote is read.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing is available, and the system's error on the socket.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let pull = |bytes: &mut [u8]| {
            let count = self.rings.incoming().pull(bytes);
            if count > 0 && self.rings.incoming().take_writer_waiting() {
                self.peer_doorbell.wake();
            }
            count
        };
        let count = pull(bytes);
        if count > 0 {
            return Ok(count);
        }
        match (&self.socket).read(&mut [0]) {
            // What the peer wrote before it ended, but after the read above, comes first.
            Ok(0) => Ok(pull(bytes)),
            Ok(_) => Err(invalid("the peer sent data over the socket beside its shared memory")),
            Err(error) => Err(error),
        }
    }

    /// Writes as much as there is space for.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if there is no space; the doorbell is rung when there is.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let out = self.rings.outgoing();
        let mut count = out.push(bytes);
        if count == 0 {
            out.arm_writer();
            if out.writable() < Pipe::<SHM_RING_BYTES>::QUARTER_BYTES {
                return Err(ErrorKind::WouldBlock.into());
            }
            out.disarm_writer();
            count = out.push(bytes);
        }
        if out.take_reader_waiting() {
            self.peer_doorbell.wake();
        }
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }
}

impl AsFd for ShmStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn check_user(socket: &UnixStream) -> io::Result<()> {
    match unix::peer_is_same_user(socket.as_fd())? {
        true => Ok(()),
        false => {
            let message = "the process at the other end belongs to another user";
            Err(io::Error::new(ErrorKind::PermissionDenied, message))
        }
    }
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}
