//! The stack of a test: bytes through a Unix socket, read in a loop. It shows what a transport
//! takes: this file, its line in the table of [`crate::carrier`], and its row in `nm_model`.

use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nm_model::stack::Stack;
use nm_sys::clock::Deadline;

use crate::address;
use crate::carrier::interface::{Destination, End, Listen, Patience};
use crate::connection_error::ConnectionError;
use crate::error::SystemError;
use crate::handshake::Admission;
use crate::sockets::Options;
use crate::transport::{CALL_TIMEOUT, Transport, TransportError, Visitor};

#[derive(Debug)]
pub(crate) struct Listener {
    name: String,
    socket: UnixListener,
}

#[derive(Debug)]
pub(crate) struct SampleEnd(UnixStream);

impl End for SampleEnd {
    fn with<V: Visitor>(self, _stack: Stack, visitor: V) -> Result<V::Output, ConnectionError> {
        Ok(visitor.visit(SampleTransport { stream: self.0, sent_bytes: 0, received_bytes: 0 }))
    }
}

impl Listen for Listener {
    type End = SampleEnd;

    fn bind(
        _stack: Stack,
        _address: &str,
        _options: &Options,
    ) -> Result<Listener, ConnectionError> {
        let failed = SystemError::during("listening by sample");
        let name = address::random_name();
        let socket = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        Ok(Listener { name, socket })
    }

    fn address(&self) -> String {
        format!("sample:{}", self.name)
    }

    fn accept(
        &self,
        _stack: Stack,
        _admission: &Admission,
        patience: &Patience<'_>,
    ) -> Result<(SampleEnd, String), ConnectionError> {
        let failed = SystemError::during(format!("listening on {}", self.address()));
        let deadline = Deadline::after(patience.limit);
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true).map_err(&failed)?;
                    return Ok((SampleEnd(stream), format!("the peer of {}", self.address())));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error).into()),
            }
            if (patience.cancelled)() {
                return Err(ConnectionError::Cancelled);
            }
            if deadline.passed() {
                let (address, limit) = (self.address(), patience.limit);
                return Err(ConnectionError::NoPeer { address, limit, strangers: 0 });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn connect(to: &Destination<'_>) -> Result<(SampleEnd, String), ConnectionError> {
        let failed = SystemError::during(format!("connecting to {}", to.address));
        let Some(name) = to.address.strip_prefix("sample:") else {
            let (address, protocol) = (to.address.to_string(), to.stack.protocol);
            return Err(ConnectionError::WrongAddress { address, protocol });
        };
        let stream = SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map_err(&failed)?;
        stream.set_nonblocking(true).map_err(&failed)?;
        Ok((SampleEnd(stream), to.address.to_string()))
    }
}

#[derive(Debug)]
struct SampleTransport {
    stream: UnixStream,
    /// Bytes of the current message that were sent before a call timed out.
    sent_bytes: usize,
    /// Bytes of the current message that were received before a call timed out.
    received_bytes: usize,
}

/// Repeats what moves no bytes until [`CALL_TIMEOUT`].
fn repeat(
    mut attempt: impl FnMut() -> Result<Option<usize>, TransportError>,
) -> Result<usize, TransportError> {
    let deadline = Deadline::after(CALL_TIMEOUT);
    loop {
        match attempt()? {
            Some(bytes) => return Ok(bytes),
            None if deadline.passed() => return Err(TransportError::TimedOut),
            None => std::hint::spin_loop(),
        }
    }
}

impl Transport for SampleTransport {
    const DATAGRAM: bool = false;

    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        while self.sent_bytes < message.len() {
            let rest = &message[self.sent_bytes..];
            self.sent_bytes += repeat(|| sent(&mut self.stream, rest))?;
        }
        self.sent_bytes = 0;
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        while self.received_bytes < buffer.len() {
            let rest = &mut buffer[self.received_bytes..];
            self.received_bytes += repeat(|| received(&mut self.stream, rest))?;
        }
        self.received_bytes = 0;
        Ok(buffer.len())
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        repeat(|| received(&mut self.stream, buffer))
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        sent(&mut self.stream, bytes)
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        received(&mut self.stream, buffer)
    }

    fn wait(&mut self, _limit: Duration) -> Result<bool, TransportError> {
        Ok(true)
    }

    fn end_sending(&mut self, _message_lengths: &[usize]) {
        // The peer may have gone already.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

fn sent(stream: &mut UnixStream, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
    match stream.write(bytes) {
        Ok(n_bytes) => Ok(Some(n_bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn received(stream: &mut UnixStream, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
    match stream.read(buffer) {
        Ok(0) => Err(TransportError::Closed),
        Ok(n_bytes) => Ok(Some(n_bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}
