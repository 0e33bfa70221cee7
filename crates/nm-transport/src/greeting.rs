//! Greetings over datagrams: how two ends find each other where the kernel makes no connection.
//!
//! The end that connects says `hello` until the listener's `welcome` comes back; whoever is done
//! says `bye`. A greeting is a datagram with our mark in front and of a length that no message of
//! the probe has, so a hot loop tells the two apart by length alone, and one that comes late or
//! twice does no harm.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_sys::{poll, socket};

use crate::failure;

/// Bytes that hold any greeting.
pub const BYTES_MAX: usize = 32;

/// Shortest greeting: mark and word.
const BYTES_MIN: usize = 9;

/// Pause between two hellos.
const PAUSE: Duration = Duration::from_millis(20);

const MARK: [u8; 8] = *b"nearmetl";

/// What a greeting says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// From the end that connects.
    Hello = b'h' as isize,
    /// From the listener.
    Welcome = b'w' as isize,
    /// From whoever is done.
    Bye = b'b' as isize,
}

/// Writes a greeting whose length is none of `lengths` into `buffer` and answers it.
pub fn write<'a>(word: Word, lengths: &[usize], buffer: &'a mut [u8; BYTES_MAX]) -> &'a [u8] {
    // Of this many lengths one is free, unless a probe has more kinds of message than that.
    let length = (24..BYTES_MAX).find(|length| !lengths.contains(length)).unwrap_or(BYTES_MAX);
    buffer[..8].copy_from_slice(&MARK);
    buffer[8] = word as u8;
    &buffer[..length]
}

/// What `datagram` says, if it is a greeting.
pub fn read(datagram: &[u8]) -> Option<Word> {
    if datagram.len() < BYTES_MIN || datagram[..8] != MARK {
        return None;
    }
    [Word::Hello, Word::Welcome, Word::Bye].into_iter().find(|&word| word as u8 == datagram[8])
}

/// Says `word` on a connected socket; whether it arrives is not known.
pub fn say(sender: RawFd, word: Word, lengths: &[usize]) -> io::Result<()> {
    let mut buffer = [0; BYTES_MAX];
    socket::send(sender, write(word, lengths, &mut buffer), socket::DONT_WAIT).map(|_| ())
}

/// Says hello until the listener at `peer` welcomes us.
pub fn knock(
    (sender, receiver): (RawFd, RawFd),
    peer: &str,
    lengths: &[usize],
    limit: Duration,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let doing = || format!("connecting to {peer}");
    let deadline = Deadline::after(limit);
    while !deadline.passed() {
        if cancelled() {
            return Err(failure::cancelled());
        }
        say(sender, Word::Hello, lengths).map_err(|error| failure::of(&error, doing()))?;
        let pause = Deadline::after(PAUSE);
        while !pause.passed() {
            let ready = poll::readable(receiver, pause.remaining());
            if !ready.map_err(|error| failure::of(&error, doing()))? {
                continue;
            }
            let mut buffer = [0; BYTES_MAX];
            match socket::receive(receiver, &mut buffer, socket::DONT_WAIT) {
                Ok(length) if read(&buffer[..length]) == Some(Word::Welcome) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failure::of(&error, doing())),
            }
        }
    }
    Err(Failure::new(FailureKind::Peer, format!("{}: no answer in {limit:?}", doing()))
        .hint("check that the peer runs and that no firewall drops the datagrams"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greeting_has_no_message_length_and_reads_back(
            lengths in proptest::collection::vec(0usize..40, 0..4), which in 0usize..3,
        ) {
            let word = [Word::Hello, Word::Welcome, Word::Bye][which];
            let mut buffer = [0; BYTES_MAX];
            let greeting = write(word, &lengths, &mut buffer);
            prop_assert!(!lengths.contains(&greeting.len()));
            prop_assert_eq!(read(greeting), Some(word));
        }

        #[test]
        fn any_datagram_is_read_without_a_panic(
            datagram in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = read(&datagram);
        }
    }
}
