//! One link: a stream, what was received, and the backlog to be written.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use nm_codec::{DecodeError, DecodeFault};
use nm_wire::Owner;
use thiserror::Error;

use super::receive_buffer::ReceiveBuffer;
use super::stream::{PEER_TIMEOUT, Stream};

/// Bytes that one call may read.
pub const READ_BYTES: usize = 256 << 10;

/// Space that a link keeps for its backlog while it has none, bytes.
const IDLE_BACKLOG_BYTES: usize = 64 << 10;

/// Largest backlog of a link that has no other limit, bytes: a link whose
/// peer reads so slowly that more piles up is closed.
pub const BACKLOG_BYTES_MAX: usize = 256 << 20;

/// Why a link cannot be used any more.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// The stream failed.
    #[error(transparent)]
    Io(io::Error),
    /// The peer's host has gone, or the peer does not read from a TCP connection.
    #[error("the peer has acknowledged nothing for {} s: its host is gone, or it does not read",
        PEER_TIMEOUT.as_secs())]
    PeerSilent,
    /// What was received is not a frame.
    #[error("received bytes that are not a frame: {0}")]
    Decode(#[from] DecodeError),
    /// The peer does not read.
    #[error("the peer does not read: its backlog is {backlog} bytes, more than {most}")]
    BacklogFull {
        /// Bytes that wait for it.
        backlog: usize,
        /// Bytes that may wait for it.
        most: usize,
    },
}

impl LinkError {
    /// Whether the peer is of another version, and always will be.
    pub fn is_other_version(&self) -> bool {
        let LinkError::Decode(DecodeError { fault, .. }) = self else { return false };
        matches!(fault, DecodeFault::OtherVersion { .. })
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        match error.kind() {
            ErrorKind::TimedOut => LinkError::PeerSilent,
            _ => LinkError::Io(error),
        }
    }
}

/// A link.
#[derive(Debug)]
pub struct Link {
    pub(super) stream: Stream,
    /// What was received.
    pub input: ReceiveBuffer,
    /// The backlog: what is to be written, in order.
    pub output: Vec<u8>,
    written: usize,
    /// Bytes written since the link was made.
    written_total: u64,
}

impl Link {
    /// A link over a stream.
    ///
    /// # Errors
    /// If the stream cannot be configured.
    pub fn new(stream: Stream) -> io::Result<Link> {
        stream.configure()?;
        Ok(Link {
            stream,
            input: ReceiveBuffer::default(),
            output: vec![],
            written: 0,
            written_total: 0,
        })
    }

    /// Bytes that the stream has taken since the link was made.
    pub fn written_total(&self) -> u64 {
        self.written_total
    }

    /// Latency of one way, ns: half of the smallest round trip that the kernel has measured on a
    /// TCP connection, at least 1; 0 if both ends are on one host, because the link is a Unix
    /// socket or shared memory; none if the kernel has measured nothing.
    pub fn latency_ns(&self) -> Option<u64> {
        self.stream.latency_ns()
    }

    /// Reads what is available, in one call.
    ///
    /// # Errors
    /// If the peer closed the stream, or it failed.
    pub fn receive(&mut self) -> Result<(), LinkError> {
        self.receive_most(READ_BYTES).map(drop)
    }

    /// As [`Link::receive`], but at most so many bytes, or as many as wait for the rest of their
    /// frame: a long frame is not copied for each small part of it. Whether it was as many as it
    /// may be, so that there may be more.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub fn receive_most(&mut self, bytes: usize) -> Result<bool, LinkError> {
        let most = bytes.max(self.input.waiting_bytes()).min(READ_BYTES);
        match self.stream.read(&mut self.input.free_space(READ_BYTES)[..most]) {
            Ok(0) => Err(LinkError::Closed),
            Ok(count) => {
                self.input.received(count);
                Ok(count == most)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much of the backlog as the stream takes; whether all of it was written.
    ///
    /// # Errors
    /// If the stream failed, or the backlog is too large.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        let mut output = std::mem::take(&mut self.output);
        let flushed = self.write(&mut output, BACKLOG_BYTES_MAX);
        self.output = output;
        flushed
    }

    /// As [`Link::flush`], with a backlog that is kept elsewhere, always the same one, of at most
    /// so many bytes.
    ///
    /// # Errors
    /// As [`Link::flush`].
    pub fn write(&mut self, backlog: &mut Vec<u8>, bytes_max: usize) -> Result<bool, LinkError> {
        while self.written < backlog.len() {
            match self.stream.write(&backlog[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    self.written_total += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.keep_backlog(backlog, bytes_max)?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        backlog.clear();
        self.written = 0;
        Ok(true)
    }

    /// Frees the space that a burst has taken; the bytes that are allocated: for the backlog, and
    /// for what has arrived of a frame.
    pub fn shrink(&mut self, backlog: &mut Vec<u8>) -> usize {
        if backlog.is_empty() && backlog.capacity() > IDLE_BACKLOG_BYTES {
            *backlog = vec![];
        }
        self.input.shrink(READ_BYTES);
        backlog.capacity() + self.input.allocated_bytes()
    }

    /// Takes the space of a spare buffer to read into, unless a part of a frame waits.
    pub fn borrow_input(&mut self, spare: &mut Vec<u8>) {
        self.input.borrow(spare);
    }

    /// Gives that space back.
    pub fn give_back_input(&mut self, spare: &mut Vec<u8>) {
        self.input.give_back(spare);
    }

    /// Who is at the other end, as far as the system says.
    ///
    /// # Errors
    /// The system's error.
    pub fn owner(&self) -> io::Result<Owner> {
        self.stream.owner()
    }

    /// Frees the space of what was written, once that is the larger part.
    fn keep_backlog(&mut self, output: &mut Vec<u8>, most: usize) -> Result<(), LinkError> {
        let backlog = output.len() - self.written;
        if backlog > most {
            return Err(LinkError::BacklogFull { backlog, most });
        }
        if self.written > backlog {
            output.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_wire::{CatchUp, Shape};
    use std::os::unix::net::UnixStream;

    #[test]
    fn frames_cross_a_slow_link_complete_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut from = Link::new(Stream::Unix(a)).unwrap();
        let mut to = Link::new(Stream::Unix(b)).unwrap();
        let (frames, mut received) = (2_000, 0);
        for seq in 0..frames {
            let shape = Shape { is_stamped: false, size_bytes: 100 + seq as usize * 7 };
            nm_wire::write_shaped(&CatchUp { cell: 3, index: seq }, shape, &mut from.output);
        }
        let mut is_flushed = from.flush().unwrap();
        assert!(!is_flushed, "more than the kernel takes");
        while received < frames {
            to.receive().unwrap();
            while let Some(frame) = to.input.next_frame().unwrap() {
                assert_eq!(frame.read(), Ok(CatchUp { cell: 3, index: received }));
                received += 1;
            }
            is_flushed = from.flush().unwrap();
        }
        assert!(is_flushed);
        from.output.extend_from_slice(&[9; 100]);
        from.flush().unwrap();
        drop(from);
        to.receive().unwrap();
        assert!(to.input.next_frame().is_err(), "no frame");
        assert!(matches!(to.receive(), Err(LinkError::Closed)));
    }
}
