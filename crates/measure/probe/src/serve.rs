//! The end that responds: to each request at once, in order, with the sequence number it came with.

use nm_transport::handshake::{self, HandshakeMessage};
use nm_transport::{CALL_TIMEOUT, Transport, TransportError};

use crate::control::Control;
use crate::error::ProbeError;

/// Timeouts without a request after which a keep-alive is sent to a datagram peer.
const TIMEOUTS_PER_KEEPALIVE: u64 = 5;

/// Idle time after which a datagram peer counts as gone, s.
const IDLE_S_MAX: u64 = 30;

/// Responds to requests of `request_bytes` with `response_bytes`, the first bytes echoed, until the
/// peer closes or dies, or the task is cancelled. Returns the number of requests.
///
/// # Errors
/// Those of the transport; that the peer closes is none.
pub fn serve<T: Transport>(
    transport: &mut T,
    request_bytes: usize,
    response_bytes: usize,
    control: &Control,
) -> Result<u64, ProbeError> {
    let message_lengths = [request_bytes, response_bytes];
    let mut buffer = vec![0; request_bytes.max(response_bytes).max(handshake::BYTES_MAX)];
    // A datagram is received with spare room, so that one of a wrong length is detected.
    let receive_bytes = if T::DATAGRAM { buffer.len() } else { request_bytes };
    let mut served = 0;
    let mut idle_timeouts = 0;
    loop {
        match transport.receive(&mut buffer[..receive_bytes]) {
            Ok(length) if !T::DATAGRAM || length == request_bytes => {
                match respond(transport, &buffer[..response_bytes], control) {
                    Ok(true) => {}
                    Ok(false) => return Ok(served),
                    Err(error) => return Err(ProbeError::transport("sending a response")(error)),
                }
                served += 1;
                idle_timeouts = 0;
            }
            Ok(length) => {
                if handshake::decode(&buffer[..length]) == Ok(HandshakeMessage::Close) {
                    return Ok(served);
                }
            }
            Err(TransportError::TimedOut) => {
                idle_timeouts += 1;
                if control.cancelled() || peer_is_gone(transport, &message_lengths, idle_timeouts) {
                    return Ok(served);
                }
            }
            Err(TransportError::Closed) => return Ok(served),
            Err(error) => return Err(ProbeError::transport("waiting for a request")(error)),
        }
    }
}

/// Sends a response; false if the peer has gone or the task was cancelled.
#[inline(always)]
fn respond<T: Transport>(
    transport: &mut T,
    response: &[u8],
    control: &Control,
) -> Result<bool, TransportError> {
    loop {
        match transport.send(response) {
            Ok(()) => return Ok(!control.cancelled()),
            Err(TransportError::TimedOut) if !control.cancelled() => {}
            Err(TransportError::TimedOut | TransportError::Closed) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Whether a datagram peer counts as gone after so many timeouts without a request.
#[cold]
fn peer_is_gone<T: Transport>(
    transport: &mut T,
    message_lengths: &[usize],
    idle_timeouts: u64,
) -> bool {
    if !T::DATAGRAM {
        return false;
    }
    let idle_ms = idle_timeouts * CALL_TIMEOUT.as_millis() as u64;
    let unreachable = idle_timeouts.is_multiple_of(TIMEOUTS_PER_KEEPALIVE)
        && transport.send_keepalive(message_lengths).is_err();
    unreachable || idle_ms > IDLE_S_MAX * 1_000
}
