//! A connection that is being made, without blocking.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::poll;
use socket2::{Domain, SockAddr, Socket, Type};

use super::address::Address;
use super::shm::ShmStream;
use super::stream::Stream;

/// `EINPROGRESS`: the system makes the connection meanwhile.
const IN_PROGRESS: i32 = 115;

/// Pause before a listener whose queue was full is asked again: it tells nobody when it has room.
const FULL_PAUSE: Duration = Duration::from_millis(2);

/// What is waited for.
#[derive(Debug)]
enum Stage {
    /// The other host's answer.
    Tcp(Socket),
    /// Nothing: a Unix socket is connected at once, or not at all.
    Unix(Socket),
    /// The memory that the other end hands over.
    Shm(UnixStream),
}

/// A connection that is being made. Dropping it gives it up.
#[derive(Debug)]
pub struct Connecting(Stage);

impl Connecting {
    /// Begins. That fails with [`ErrorKind::WouldBlock`] if the queue of a Unix socket is full.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(address: &Address) -> io::Result<Connecting> {
        let socket = |domain| {
            let socket = Socket::new(domain, Type::STREAM, None)?;
            socket.set_nonblocking(true).map(|()| socket)
        };
        Ok(Connecting(match address {
            Address::Tcp(address) => {
                let socket = socket(Domain::for_address(*address))?;
                match socket.connect(&SockAddr::from(*address)) {
                    Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => return Err(error),
                    _ => Stage::Tcp(socket),
                }
            }
            Address::Unix(path) => {
                let socket = socket(Domain::UNIX)?;
                socket.connect(&SockAddr::unix(path)?)?;
                Stage::Unix(socket)
            }
            Address::Shm(path) => {
                let socket = socket(Domain::UNIX)?;
                socket.connect(&SockAddr::unix(path)?)?;
                Stage::Shm(OwnedFd::from(socket).into())
            }
        }))
    }

    /// The stream, or this again if it is not connected yet.
    ///
    /// # Errors
    /// If the connection cannot be made.
    pub fn advance(self) -> io::Result<Result<Stream, Connecting>> {
        match self.0 {
            Stage::Tcp(socket) => {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    Ok(_) => Ok(Ok(Stream::Tcp(OwnedFd::from(socket).into()))),
                    Err(error) if error.kind() == ErrorKind::NotConnected => {
                        Ok(Err(Connecting(Stage::Tcp(socket))))
                    }
                    Err(error) => Err(error),
                }
            }
            Stage::Unix(socket) => Ok(Ok(Stream::Unix(OwnedFd::from(socket).into()))),
            Stage::Shm(socket) => match ShmStream::receive(&socket) {
                Ok(stream) => Ok(Ok(Stream::Shm(stream(socket)))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    Ok(Err(Connecting(Stage::Shm(socket))))
                }
                Err(error) => Err(error),
            },
        }
    }
}

impl Stream {
    /// Connects, for at most `limit`. The caller stands still meanwhile.
    ///
    /// # Errors
    /// The system's error; [`ErrorKind::TimedOut`] at the limit.
    #[expect(
        clippy::disallowed_methods,
        reason = "for programs that are no nodes, and threads of their own"
    )]
    pub fn connect(address: &Address, limit: Duration) -> io::Result<Stream> {
        let deadline = Deadline::after(limit);
        let mut begun = None;
        loop {
            let remaining = deadline.remaining();
            match begun.take().map_or_else(|| Connecting::begin(address), Ok) {
                Ok(connecting) => match connecting.advance()? {
                    Ok(stream) => return Ok(stream),
                    Err(connecting) => {
                        let fd = connecting.as_fd().as_raw_fd();
                        match connecting.0 {
                            Stage::Shm(_) => poll::readable(fd, remaining)?,
                            _ => poll::writable(fd, remaining)?,
                        };
                        begun = Some(connecting);
                    }
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(remaining.min(FULL_PAUSE));
                }
                Err(error) => return Err(error),
            }
            if remaining.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

impl AsFd for Connecting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Stage::Tcp(socket) | Stage::Unix(socket) => socket.as_fd(),
            Stage::Shm(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::full_queues::{full_listener, full_tcp_listener};
    use nm_sys::clock::monotonic_ns;
    use std::net::TcpListener;

    #[test]
    fn a_listener_whose_queue_is_full_is_given_up_at_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let (listener, _waiting) = full_listener(&path);
        for form in ["unix", "shm"] {
            let address: Address = format!("{form}:{}", path.display()).parse().unwrap();
            let refused = Connecting::begin(&address).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WouldBlock);
            let begun_ns = monotonic_ns();
            let given_up = Stream::connect(&address, Duration::from_millis(50)).unwrap_err();
            assert_eq!(given_up.kind(), ErrorKind::TimedOut);
            assert!(monotonic_ns() - begun_ns >= 50_000_000);
        }
        let (address, _silent, _waiting) = full_tcp_listener();
        let given_up = Stream::connect(&address, Duration::from_millis(50)).unwrap_err();
        assert_eq!(given_up.kind(), ErrorKind::TimedOut);
        let address = Address::Unix(path);
        thread::scope(|scope| {
            let connected = scope.spawn(|| Stream::connect(&address, Duration::from_secs(60)));
            listener.accept().unwrap();
            connected.join().unwrap().expect("there was room again");
        });
    }

    #[test]
    fn a_port_at_which_nobody_listens_is_refused() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = Stream::connect(&Address::Tcp(address), Duration::from_secs(60)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
