//! A stream through shared memory between two nodes of one host and one user.
//!
//! The end that accepts a Unix socket makes the memory, a pipe of bytes in each direction, and a
//! bell (eventfd) for each end, and hands them over. The socket stays as the lifeline: its end says
//! that the peer has gone, however it went. Who sleeps says so in the memory, and only then is its
//! bell rung: see [`super::LinkPoller`]. A full pipe is as a full socket; its writer's bell rings when
//! there is room.

use std::io::{self, ErrorKind, Read};
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nm_ring::EndpointRole;
use nm_ring::conduit::{Conduit, ConduitMapping};
use nm_ring::pipe::Pipe;
use nm_sys::poll::Waker;
use nm_sys::unix;

/// Bytes that may be on their way in one direction: a dozen of the longest messages. A page of it
/// takes memory when it is first used, so a direction that carries little takes little.
pub const SHM_RING_BYTES: usize = 1 << 20;

/// What comes with the memory and the bells: a mark with the version of what is said, and the size.
fn greeting() -> [u8; 16] {
    let mut greeting = *b"nmrings1________";
    greeting[8..].copy_from_slice(&(size_of::<Conduit<SHM_RING_BYTES>>() as u64).to_le_bytes());
    greeting
}

/// What an end and whoever watches it look at.
#[derive(Debug)]
pub(super) struct Core {
    memory: ConduitMapping<SHM_RING_BYTES>,
    role: EndpointRole,
    /// Rung by the peer.
    pub(super) bell: Waker,
}

impl Core {
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

    /// Says that this end's reader sleeps, so that the bell is rung for what comes; false if
    /// something came already, and then it does not sleep.
    pub(super) fn arm(&self) -> bool {
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
    core: Arc<Core>,
    peer_bell: Waker,
    lifeline: UnixStream,
}

impl ShmStream {
    /// The end that has accepted a connection: makes the memory and hands it over.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::PermissionDenied`] for another user's process.
    pub fn offer(lifeline: UnixStream) -> io::Result<ShmStream> {
        check_user(&lifeline)?;
        let (memory, file) = ConduitMapping::sparse()?;
        let (bell, peer_bell) = (Waker::new()?, Waker::new()?);
        let handed = [file.as_fd(), peer_bell.as_fd(), bell.as_fd()];
        unix::send_descriptors(lifeline.as_fd(), &greeting(), &handed)?;
        lifeline.set_nonblocking(true)?;
        let core = Arc::new(Core { memory, role: EndpointRole::Creator, bell });
        Ok(ShmStream { core, peer_bell, lifeline })
    }

    /// The end that has connected: waits `limit` at most for what the other one hands over.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::InvalidData`] if the peer is no node of this version.
    pub fn take(lifeline: UnixStream, limit: Duration) -> io::Result<ShmStream> {
        check_user(&lifeline)?;
        lifeline.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let mut said = [0; 16];
        let (length, descriptors) = unix::receive_descriptors(lifeline.as_fd(), &mut said)?;
        let known = said[..length] == greeting();
        let Ok([file, bell, peer_bell]) = <[_; 3]>::try_from(descriptors).map_err(drop) else {
            return Err(wrong("the peer hands over no shared memory"));
        };
        if !known {
            return Err(wrong("the peer's shared memory is laid out otherwise"));
        }
        lifeline.set_nonblocking(true)?;
        let memory = ConduitMapping::open_sparse(file)?;
        let core = Arc::new(Core { memory, role: EndpointRole::Opener, bell: bell.into() });
        Ok(ShmStream { core, peer_bell: peer_bell.into(), lifeline })
    }

    /// What is watched.
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Reads what is there; zero bytes once the peer has gone and all that it wrote is read.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing is there, and what the system says of the lifeline.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let pull = |bytes: &mut [u8]| {
            let count = self.core.incoming().pull(bytes);
            if count > 0 && self.core.incoming().take_writer_waiting() {
                self.peer_bell.wake();
            }
            count
        };
        let count = pull(bytes);
        if count > 0 {
            return Ok(count);
        }
        match (&self.lifeline).read(&mut [0]) {
            // What it wrote before its end, but after the look above, comes first.
            Ok(0) => Ok(pull(bytes)),
            Ok(_) => Err(wrong("the peer speaks beside its shared memory")),
            Err(error) => Err(error),
        }
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if there is no room; the bell rings when there is.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let out = self.core.outgoing();
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
            self.peer_bell.wake();
        }
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }
}

impl AsFd for ShmStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lifeline.as_fd()
    }
}

fn check_user(lifeline: &UnixStream) -> io::Result<()> {
    match unix::peer_is_same_user(lifeline.as_fd())? {
        true => Ok(()),
        false => {
            let message = "the process at the other end belongs to another user";
            Err(io::Error::new(ErrorKind::PermissionDenied, message))
        }
    }
}

fn wrong(message: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}
