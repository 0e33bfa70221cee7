//! The end that answers: each request at once, in order, with the sequence number it came with.

use nm_model::Failure;
use nm_transport::greeting::{self, Word};
use nm_transport::{Fault, SLICE, Transport, failure};

use crate::control::Control;

/// Idle slices after which a datagram peer is poked, so that its death shows.
const IDLE_SLICES_POKE: u64 = 5;

/// Idle time after which a datagram peer counts as gone, s.
const IDLE_S_MAX: u64 = 30;

/// Answers requests of `request_bytes` with `response_bytes`, the first bytes echoed, until the
/// peer has gone, says goodbye, or the task is cancelled. Answers the number of requests.
///
/// # Errors
/// What the system says; a peer that goes is none.
pub fn serve<T: Transport>(
    transport: &mut T,
    request_bytes: usize,
    response_bytes: usize,
    control: &Control,
) -> Result<u64, Failure> {
    let lengths = [request_bytes, response_bytes];
    let mut buffer = vec![0; request_bytes.max(response_bytes).max(greeting::BYTES_MAX)];
    // A datagram is received with room to spare, so that one of a wrong length is seen as such.
    let window_bytes = if T::DATAGRAM { buffer.len() } else { request_bytes };
    let mut served = 0;
    let mut idle_slices = 0;
    loop {
        match transport.receive(&mut buffer[..window_bytes]) {
            Ok(length) if !T::DATAGRAM || length == request_bytes => {
                match answer(transport, &buffer[..response_bytes], control) {
                    Ok(true) => {}
                    Ok(false) => return Ok(served),
                    Err(fault) => return Err(failure::of_fault(fault, "answering")),
                }
                served += 1;
                idle_slices = 0;
            }
            Ok(length) => {
                if greeting::read(&buffer[..length]) == Some(Word::Bye) {
                    return Ok(served);
                }
            }
            Err(Fault::TimedOut) => {
                idle_slices += 1;
                if control.cancelled() || gone(transport, &lengths, idle_slices) {
                    return Ok(served);
                }
            }
            Err(Fault::Closed) => return Ok(served),
            Err(fault) => return Err(failure::of_fault(fault, "waiting for a request")),
        }
    }
}

/// Sends an answer; false if the peer has gone or the task was cancelled.
#[inline(always)]
fn answer<T: Transport>(
    transport: &mut T,
    response: &[u8],
    control: &Control,
) -> Result<bool, Fault> {
    loop {
        match transport.send(response) {
            Ok(()) => return Ok(!control.cancelled()),
            Err(Fault::TimedOut) if !control.cancelled() => {}
            Err(Fault::TimedOut | Fault::Closed) => return Ok(false),
            Err(fault) => return Err(fault),
        }
    }
}

/// Whether a datagram peer that has been silent for so long has gone.
#[cold]
fn gone<T: Transport>(transport: &mut T, lengths: &[usize], idle_slices: u64) -> bool {
    if !T::DATAGRAM {
        return false;
    }
    let idle_ms = idle_slices * SLICE.as_millis() as u64;
    let poked = idle_slices.is_multiple_of(IDLE_SLICES_POKE) && transport.poke(lengths).is_err();
    poked || idle_ms > IDLE_S_MAX * 1_000
}
