//! Rings in shared memory between two processes of one host and one user.
//!
//! The end that connects makes the memory and hands it over a Unix socket, which both keep: its
//! hang-up tells that the other process has died. Everything is gone with its last user.
//!
//! The listener's socket has no name. It is bound at a path in a private folder, both of which are
//! removed at once, and stays reachable through its owner's descriptor: the address `shm:PID/FD` is
//! `/proc/PID/fd/FD`. That works from every network namespace, only processes of the same user may
//! follow it, nobody can take the name first, and a killed process leaves nothing behind.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nm_model::stack::{Mode, Stack};
use nm_model::{Failure, FailureKind};
use nm_ring::layout::AREA_BYTES;
use nm_ring::memory::{REGION_BYTES, RegionMapping};
use nm_ring::{Endpoint, EndpointParts, EndpointRole, TransferError};
use nm_sys::{socket, unix};

use crate::address::random_name;
use crate::{Fault, SLICE, Transport, failure};

/// What the end that connects sends along with the memory: a mark with the version of the layout,
/// and the region's size.
fn hello() -> [u8; 16] {
    let mut hello = *b"nmshm 01________";
    hello[8..].copy_from_slice(&(REGION_BYTES as u64).to_le_bytes());
    hello
}

/// Refuses a way of waiting that memory has not.
///
/// # Errors
/// [`FailureKind::NotAvailable`] for anything but blocking and spin.
pub fn check(stack: Stack) -> Result<(), Failure> {
    match stack.mode {
        Mode::Blocking | Mode::Spin => Ok(()),
        mode => Err(Failure::new(
            FailureKind::NotAvailable,
            format!("shared memory has no descriptor to wait for by {mode}"),
        )
        .hint("use shm-spin or shm-blocking")),
    }
}

/// A listening socket without a name, and the descriptor through which others reach it.
///
/// # Errors
/// What the system says where none of the folders for temporary files can be written.
pub fn listen() -> io::Result<(OwnedFd, OwnedFd)> {
    let folders = [
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some(std::env::temp_dir()),
        Some(PathBuf::from("/dev/shm")),
    ];
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in folders.into_iter().flatten() {
        match listen_in(&folder) {
            Ok(listening) => return Ok(listening),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_in(folder: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let private = folder.join(random_name());
    DirBuilder::new().mode(0o700).create(&private)?;
    let path = private.join("s");
    let bound = UnixListener::bind(&path).and_then(|listener| {
        let door = File::options().read(true).custom_flags(libc::O_PATH).open(&path)?;
        Ok((listener.into(), door.into()))
    });
    // The socket needs its path no more. Whatever cannot be removed does no harm.
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_dir(&private);
    bound
}

/// Takes in the peer behind an accepted socket: none if it is no peer of ours.
///
/// # Errors
/// [`FailureKind::Permission`] for another user's process, and what the system says.
pub fn welcome(socket: OwnedFd) -> Result<Option<EndpointParts>, Failure> {
    let failed = |error: io::Error| failure::of(&error, "taking over shared memory");
    check_user(socket.as_fd())?;
    socket::set_timeouts(socket.as_fd(), SLICE).map_err(failed)?;
    let mut said = [0; 16];
    let (length, descriptor) = match unix::receive_descriptor(socket.as_fd(), &mut said) {
        Ok(received) => received,
        Err(error) if Fault::of(&error) == Fault::TimedOut => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if length == 0 {
        return Ok(None);
    }
    if said[..length] != hello() {
        return Err(Failure::new(
            FailureKind::Peer,
            "the peer's shared memory is laid out otherwise",
        )
        .hint("run the same version of nearmetal at both ends"));
    }
    let Some(descriptor) = descriptor else { return Ok(None) };
    let memory = RegionMapping::open(descriptor).map_err(failed)?;
    Ok(Some(EndpointParts { memory, lifeline: socket, role: EndpointRole::Opener }))
}

/// Connects to the listener behind a descriptor of another process.
///
/// # Errors
/// A sentence, such as that nobody listens there.
pub fn connect(process: u32, descriptor: u32, address: &str) -> Result<EndpointParts, Failure> {
    let failed = |error: io::Error| {
        let failure = failure::of(&error, format!("connecting to {address} by shm"));
        match failure.kind {
            FailureKind::Permission => {
                failure.hint("both ends must run as one user, with the same capabilities")
            }
            FailureKind::Peer => failure.hint(
                "both ends must run on one host and see the same processes; between hosts use tcp \
                 or udp",
            ),
            _ => failure,
        }
    };
    let path = format!("/proc/{process}/fd/{descriptor}");
    let socket = OwnedFd::from(UnixStream::connect(path).map_err(failed)?);
    check_user(socket.as_fd())?;
    let memory = RegionMapping::new().map_err(failed)?;
    unix::send_descriptor(socket.as_fd(), &hello(), memory.descriptor()).map_err(failed)?;
    Ok(EndpointParts { memory, lifeline: socket, role: EndpointRole::Creator })
}

fn check_user(socket: BorrowedFd<'_>) -> Result<(), Failure> {
    match unix::peer_is_same_user(socket) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::new(
            FailureKind::Permission,
            "the process at the other end of the shared memory belongs to another user",
        )
        .hint("start both ends as the same user")),
        Err(error) => Err(failure::of(&error, "asking who is at the other end")),
    }
}

/// One end of shared memory as a transport of a stream.
#[derive(Debug)]
pub struct Shm<const SLEEPS: bool> {
    end: Endpoint<SLEEPS>,
    /// Bytes of the current message that have gone, after a call that timed out.
    sent: usize,
    /// Bytes of the current message that are there, after a call that timed out.
    filled: usize,
}

impl<const SLEEPS: bool> Shm<SLEEPS> {
    /// Takes over an end.
    pub fn new(parts: EndpointParts) -> Shm<SLEEPS> {
        Shm { end: Endpoint::new(parts), sent: 0, filled: 0 }
    }
}

#[cold]
fn fault(stop: TransferError) -> Fault {
    match stop {
        TransferError::TimedOut => Fault::TimedOut,
        TransferError::Closed => Fault::Closed,
    }
}

impl<const SLEEPS: bool> Transport for Shm<SLEEPS> {
    const DATAGRAM: bool = false;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Fault> {
        while self.sent < message.len() {
            self.sent += self.end.send(&message[self.sent..], SLICE).map_err(fault)?;
        }
        self.sent = 0;
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        while self.filled < buffer.len() {
            self.filled += self.end.receive(&mut buffer[self.filled..], SLICE).map_err(fault)?;
        }
        self.filled = 0;
        Ok(buffer.len())
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        self.end.receive(buffer, SLICE).map_err(fault)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let sent = self.end.try_send(bytes);
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.end.try_receive(buffer).map_err(fault)
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, Fault> {
        Ok(self.end.wait_readable(limit))
    }

    fn end_sending(&mut self, _lengths: &[usize]) {
        self.end.shut_write();
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.end.peer_cpu()
    }

    fn settings(&self) -> std::collections::BTreeMap<String, String> {
        [("ring".to_string(), format!("{AREA_BYTES} B"))].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Listener, Options};

    fn pair(mode: &str) -> (crate::Connection, crate::Connection) {
        let stack: Stack = format!("shm-{mode}").parse().unwrap();
        let options = Options::default();
        let listener = Listener::bind(stack, "127.0.0.1", &options).unwrap();
        let limit = Duration::from_secs(5);
        let connecting = crate::connect(stack, &listener.address(), "127.0.0.1", &options, limit);
        (listener.accept(&[], limit, &|| false).unwrap(), connecting.unwrap())
    }

    struct Say(&'static [u8]);

    impl crate::Visitor for Say {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            transport.send(self.0).unwrap();
            transport.end_sending(&[]);
            // Holds the end open until the other one has left.
            while transport.receive(&mut [0]) == Err(Fault::TimedOut) {}
        }
    }

    struct Hear(&'static [u8]);

    impl crate::Visitor for Hear {
        type Output = ();

        fn visit<T: Transport>(self, mut transport: T) {
            let mut buffer = vec![0; self.0.len()];
            while let Err(fault) = transport.receive(&mut buffer) {
                assert_eq!(fault, Fault::TimedOut);
            }
            assert_eq!(buffer, self.0);
            assert_eq!(transport.receive(&mut [0]), Err(Fault::Closed));
            assert_eq!(transport.try_receive(&mut [0]), Err(Fault::Closed));
        }
    }

    #[test]
    fn a_listener_without_a_name_is_reached_and_bytes_arrive() {
        for mode in ["blocking", "spin"] {
            let (server, client) = pair(mode);
            std::thread::scope(|scope| {
                scope.spawn(|| client.with(Say(b"over the rings")).unwrap());
                server.with(Hear(b"over the rings")).unwrap();
            });
        }
    }

    #[test]
    fn a_listener_leaves_no_file() {
        let folder = std::env::temp_dir().join(random_name());
        std::fs::create_dir(&folder).unwrap();
        let listening = listen_in(&folder).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "while it listens");
        drop(listening);
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn who_says_nothing_or_something_else_is_no_peer() {
        let (a, b) = socket::unix_pair().unwrap();
        assert!(welcome(b).unwrap().is_none(), "silent");
        drop(a);
        let (a, b) = socket::unix_pair().unwrap();
        drop(a);
        assert!(welcome(b).unwrap().is_none(), "gone");
        for (bytes, kind) in
            [(&b"GET / HTTP/1.1"[..], FailureKind::Peer), (&hello(), FailureKind::Peer)]
        {
            let (a, b) = socket::unix_pair().unwrap();
            let (other, _) = socket::unix_pair().unwrap();
            unix::send_descriptor(a.as_fd(), bytes, other.as_fd()).unwrap();
            let welcomed = welcome(b);
            assert!(welcomed.is_err(), "{kind}");
        }
    }

    #[test]
    fn other_ways_of_waiting_are_refused_in_a_sentence() {
        for &mode in Mode::ALL {
            let stack = Stack::new(nm_model::Protocol::Shm, mode);
            let bound = Listener::bind(stack, "127.0.0.1", &Options::default());
            assert_eq!(bound.is_ok(), matches!(mode, Mode::Blocking | Mode::Spin), "{mode}");
        }
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let failure = connect(u32::MAX, 1, "shm:4294967295/1").unwrap_err();
        assert_eq!(failure.kind, FailureKind::Peer);
        assert!(failure.hint.unwrap().contains("one host"));
        // A descriptor that is no listener of ours.
        let file = File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file) as u32;
        assert!(connect(std::process::id(), number, "shm:X").is_err());
    }
}
