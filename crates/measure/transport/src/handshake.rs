//! The handshake over datagrams, where the kernel makes no connection.
//!
//! The end that connects repeats [`HandshakeMessage::Hello`] until the listener's
//! [`HandshakeMessage::HelloAck`] arrives; an end that has finished sends
//! [`HandshakeMessage::Close`]. No message of the probe has the length of a handshake message. So a
//! hot loop tells the two apart by length alone, and a late or duplicated one does no harm.
//!
//! A hello without the token of the task is not answered: an address that anybody can forge must
//! not make a listener send. After the handshake only datagrams of the peer are received.
//!
//! ```text
//!  0       8      9       25           length
//!  | magic | code | token | padding ... |
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use nm_model::agent::Token;
use nm_sys::clock::Deadline;
use nm_sys::{poll, socket};

use crate::error::SystemError;

/// Bytes that hold any handshake message.
pub const BYTES_MAX: usize = 32;

/// The shortest length that [`encode`] chooses.
const ENCODED_BYTES_MIN: usize = 28;

/// Pause between two hellos.
const HELLO_INTERVAL: Duration = Duration::from_millis(20);

const MAGIC: [u8; 8] = *b"nearmetl";

mod field {
    use std::ops::Range;

    pub const MAGIC: Range<usize> = 0..8;
    pub const CODE: usize = 8;
    pub const TOKEN: Range<usize> = 9..25;
    pub const END: usize = 25;
}

const _: () = assert!(field::END <= ENCODED_BYTES_MIN && ENCODED_BYTES_MIN < BYTES_MAX);

/// What a handshake message means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeMessage {
    /// From the end that connects, repeated until it is acknowledged.
    Hello(Token),
    /// From the listener: it has received a hello and is ready.
    HelloAck(Token),
    /// From an end that will send nothing more.
    Close,
}

impl HandshakeMessage {
    /// The code of the message, and its token if it has one.
    fn parts(self) -> (u8, Token) {
        match self {
            HandshakeMessage::Hello(token) => (b'h', token),
            HandshakeMessage::HelloAck(token) => (b'w', token),
            HandshakeMessage::Close => (b'b', Token::default()),
        }
    }
}

/// Why a datagram is not a handshake message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short for the fixed fields.
    #[error("a handshake message has at least 25 bytes, not {0}")]
    Length(usize),
    /// The magic number is not ours.
    #[error("the magic number of a handshake message is wrong")]
    Magic,
    /// The message code is unknown.
    #[error("the code {0} of a handshake message is unknown")]
    Code(u8),
}

/// Why a handshake did not complete.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The caller cancelled it.
    #[error("the handshake was cancelled")]
    Cancelled,
    /// The listener did not acknowledge any hello.
    #[error("no reply from {peer} within {limit:?}")]
    NoReply {
        /// The listener's address.
        peer: String,
        /// How long the handshake was tried.
        limit: Duration,
    },
}

/// Whom a listener takes for its peer.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    /// What its hello must carry.
    pub token: Token,
    /// Its address, where that is known.
    pub peer: Option<IpAddr>,
}

impl Admission {
    /// Whether the peer may have this address.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.peer.is_none_or(|peer| peer == source.to_canonical())
    }

    /// Whether a message that came from `source` is the peer's hello.
    pub fn is_hello(&self, message: HandshakeMessage, source: IpAddr) -> bool {
        message == HandshakeMessage::Hello(self.token) && self.allows(source)
    }
}

/// Writes a message whose length is none of `message_lengths` into `buffer` and returns it.
pub fn encode<'a>(
    message: HandshakeMessage,
    message_lengths: &[usize],
    buffer: &'a mut [u8; BYTES_MAX],
) -> &'a [u8] {
    // A probe has at most two kinds of message, so one of these lengths is free.
    let length = (ENCODED_BYTES_MIN..BYTES_MAX)
        .find(|length| !message_lengths.contains(length))
        .unwrap_or(BYTES_MAX);
    buffer[field::MAGIC].copy_from_slice(&MAGIC);
    let (code, token) = message.parts();
    buffer[field::CODE] = code;
    buffer[field::TOKEN].copy_from_slice(&token.0);
    &buffer[..length]
}

/// Reads a datagram as a handshake message.
///
/// # Errors
/// The field that is wrong.
pub fn decode(datagram: &[u8]) -> Result<HandshakeMessage, DecodeError> {
    if datagram.len() < field::END {
        return Err(DecodeError::Length(datagram.len()));
    }
    if datagram[field::MAGIC] != MAGIC {
        return Err(DecodeError::Magic);
    }
    let mut token = Token::default();
    token.0.copy_from_slice(&datagram[field::TOKEN]);
    match datagram[field::CODE] {
        b'h' => Ok(HandshakeMessage::Hello(token)),
        b'w' => Ok(HandshakeMessage::HelloAck(token)),
        b'b' => Ok(HandshakeMessage::Close),
        code => Err(DecodeError::Code(code)),
    }
}

/// Sends a message on a connected socket. That it arrives is not certain.
///
/// # Errors
/// Those of the system call.
pub fn send(sender: RawFd, message: HandshakeMessage, message_lengths: &[usize]) -> io::Result<()> {
    let mut buffer = [0; BYTES_MAX];
    let datagram = encode(message, message_lengths, &mut buffer);
    socket::send(sender, datagram, socket::DONT_WAIT).map(|_| ())
}

/// Repeats the hello until the listener at `peer` acknowledges it.
///
/// # Errors
/// [`HandshakeError::NoReply`] after `limit`, and those of the system calls.
pub fn connect(
    (sender, receiver): (RawFd, RawFd),
    (peer, token): (&str, Token),
    message_lengths: &[usize],
    limit: Duration,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), HandshakeError> {
    let acknowledged = Ok(HandshakeMessage::HelloAck(token));
    let failed = SystemError::during(format!("connecting to {peer}"));
    let deadline = Deadline::after(limit);
    while !deadline.passed() {
        if cancelled() {
            return Err(HandshakeError::Cancelled);
        }
        send(sender, HandshakeMessage::Hello(token), message_lengths).map_err(&failed)?;
        let pause = Deadline::after(HELLO_INTERVAL);
        while !pause.passed() {
            if !poll::readable(receiver, pause.remaining()).map_err(&failed)? {
                continue;
            }
            let mut buffer = [0; BYTES_MAX];
            match socket::receive(receiver, &mut buffer, socket::DONT_WAIT) {
                Ok(length) if decode(&buffer[..length]) == acknowledged => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error).into()),
            }
        }
    }
    Err(HandshakeError::NoReply { peer: peer.to_string(), limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = HandshakeMessage> {
        let token = || any::<[u8; 16]>().prop_map(Token);
        prop_oneof![
            token().prop_map(HandshakeMessage::Hello),
            token().prop_map(HandshakeMessage::HelloAck),
            Just(HandshakeMessage::Close),
        ]
    }

    proptest! {
        #[test]
        fn message_round_trips_at_a_length_that_no_probe_message_has(
            lengths in proptest::collection::vec(0usize..40, 0..4), message in any_message(),
        ) {
            let mut buffer = [0; BYTES_MAX];
            let datagram = encode(message, &lengths, &mut buffer);
            prop_assert!(!lengths.contains(&datagram.len()));
            prop_assert_eq!(decode(datagram), Ok(message));
        }

        #[test]
        fn any_datagram_decodes_without_a_panic(
            datagram in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = decode(&datagram);
        }
    }

    #[test]
    fn decode_error_names_the_field() {
        let mut buffer = [0; BYTES_MAX];
        let hello = HandshakeMessage::Hello(Token::default());
        let mut datagram = encode(hello, &[], &mut buffer).to_vec();
        assert_eq!(decode(&datagram[..24]), Err(DecodeError::Length(24)));
        datagram[field::CODE] = b'x';
        assert_eq!(decode(&datagram), Err(DecodeError::Code(b'x')));
        datagram[0] = 0;
        assert_eq!(decode(&datagram), Err(DecodeError::Magic));
    }
}
