//! What a probe's hot loop sees of a connection.

use std::io;
use std::time::Duration;

use nm_model::Doubt;
use nm_model::setting::Settings;

/// How long a call waits before it returns [`TransportError::TimedOut`], so that its caller can
/// check its own deadline and whether the task was cancelled.
pub const CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Why a call of a [`Transport`] failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Nothing arrived, or there was no room, for [`CALL_TIMEOUT`]. The same call with the same
    /// buffer may be repeated and continues where it stopped.
    #[error("no data moved before the timeout")]
    TimedOut,
    /// The peer has closed the connection or has died.
    #[error("the peer has gone")]
    Closed,
    /// An error of the system, by its number.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    System(i32),
}

impl From<&io::Error> for TransportError {
    #[cold]
    fn from(error: &io::Error) -> TransportError {
        use io::ErrorKind;
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut => {
                TransportError::TimedOut
            }
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected => TransportError::Closed,
            _ => TransportError::System(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

impl From<io::Error> for TransportError {
    #[cold]
    fn from(error: io::Error) -> TransportError {
        TransportError::from(&error)
    }
}

/// One end of a connection between two endpoints.
///
/// A transport carries either a stream of bytes or datagrams ([`Transport::DATAGRAM`]); datagrams
/// may be lost, duplicated or reordered. It is used by one thread at a time and waits in the way of
/// its stack's mode. After [`TransportError::TimedOut`] from `send` or `receive`, only the same
/// call with the same buffer may follow in that direction.
pub trait Transport: Send {
    /// Whether messages keep their boundaries and may be lost.
    const DATAGRAM: bool;

    /// Sends a complete message.
    ///
    /// # Errors
    /// See [`TransportError`]; [`TransportError::TimedOut`] if the peer reads nothing.
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError>;

    /// Receives and returns the number of bytes: on a stream exactly `buffer.len()` bytes, which
    /// must not be zero; else one datagram, truncated to the buffer.
    ///
    /// # Errors
    /// See [`TransportError`].
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError>;

    /// Receives what is available: at least one byte of a stream, or one datagram. Waits if nothing
    /// is.
    ///
    /// # Errors
    /// See [`TransportError`].
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError>;

    /// Sends as much as there is room for, without waiting. Returns the number of bytes (a datagram
    /// is sent completely), or none if there is no room.
    ///
    /// # Errors
    /// See [`TransportError`]; never [`TransportError::TimedOut`].
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError>;

    /// Receives what is available, without waiting. Returns the number of bytes, or none if nothing
    /// is available.
    ///
    /// # Errors
    /// See [`TransportError`]; never [`TransportError::TimedOut`].
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError>;

    /// Waits, in the way of its mode, until something can be received or `limit` has passed. A
    /// spinning transport checks once and returns. Returns whether a receive is worth trying.
    ///
    /// # Errors
    /// See [`TransportError`].
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError>;

    /// Tells the peer that nothing more will be sent: the end of a stream, or a close message whose
    /// length is not in `message_lengths`, the lengths of the probe's own messages.
    fn end_sending(&mut self, message_lengths: &[usize]);

    /// Sends a handshake message to a datagram peer, so that the system reports a peer that has
    /// gone, which an idle receiver would not notice. `message_lengths` as in
    /// [`Transport::end_sending`]. Does nothing on a stream.
    ///
    /// # Errors
    /// [`TransportError::Closed`] if the peer has gone.
    fn send_keepalive(&mut self, message_lengths: &[usize]) -> Result<(), TransportError> {
        let _ = message_lengths;
        Ok(())
    }

    /// Segments retransmitted so far, where the transport knows.
    fn retransmits(&self) -> Option<u64> {
        None
    }

    /// The CPU on which the peer waited last, where the two share a machine and the transport can
    /// see it.
    fn peer_cpu(&self) -> Option<u32> {
        None
    }

    /// The transport's own reasons to doubt a figure, such as dropped frames.
    fn doubts(&self) -> Vec<Doubt> {
        vec![]
    }

    /// The settings in effect that explain a figure.
    fn settings(&self) -> Settings {
        Settings::new()
    }
}

/// Work to do over a transport whose type is chosen at run time: a closure that is generic over the
/// transport.
pub trait Visitor {
    /// The result of the work.
    type Output;

    /// Does the work.
    fn visit<T: Transport>(self, transport: T) -> Self::Output;
}
