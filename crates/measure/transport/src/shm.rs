//! Rings in shared memory between two processes of one host and one user.
//!
//! The end that connects makes the memory and passes it over a Unix socket, which both ends keep. A
//! hang-up of that socket shows that the other process has died. The memory is freed with its last
//! user.
//!
//! The listener's socket has no name. It is bound at a path in a private directory, both of which
//! are removed at once. It stays reachable through its owner's descriptor: the address `shm:PID/FD`
//! is `/proc/PID/fd/FD`. That works from every network namespace, and only processes of the same
//! user may follow it. No other program can take the name first, and a killed process leaves
//! nothing behind.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nm_model::setting::{SettingKind, SettingValue, Settings};
use nm_ring::layout::AREA_BYTES;
use nm_ring::memory::{REGION_BYTES, RegionMapping};
use nm_ring::{Endpoint, EndpointParts, EndpointRole, TransferError};
use nm_sys::private_folder::PrivateFolder;
use nm_sys::{socket, unix};

use crate::error::SystemError;
use crate::guest_memory::{self, GuestMemoryError};
use crate::transport::{CALL_TIMEOUT, Transport, TransportError};

/// Why shared memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SharedMemoryError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Connecting to the listener failed.
    #[error("connecting to {address} failed")]
    Connect {
        /// The listener's address.
        address: String,
        /// The error of the call.
        source: io::Error,
    },
    /// The memory of two guests cannot be used.
    #[error(transparent)]
    Guests(#[from] GuestMemoryError),
    /// The other process belongs to another user.
    #[error("the process at the other end of the shared memory belongs to another user")]
    OtherUser,
    /// The other end is of another version.
    #[error("the peer's hello is not of this version")]
    Hello(#[from] DecodeError),
}

/// Why a hello of the connecting end was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It has another length.
    #[error("a hello has 16 bytes, not {0}")]
    Length(usize),
    /// The magic number, which contains the version of the memory's layout, is another one.
    #[error("the magic number is wrong")]
    Magic,
    /// The region has another size.
    #[error("the region has {0} B, not {REGION_BYTES} B")]
    RegionBytes(u64),
}

const MAGIC: [u8; 8] = *b"nmshm 01";

/// The hello that the connecting end sends along with the memory.
mod field {
    use std::ops::Range;

    pub const MAGIC: Range<usize> = 0..8;
    pub const REGION_BYTES: Range<usize> = 8..16;
    pub const BYTES: usize = 16;
}

fn encode_hello(region_bytes: u64) -> [u8; field::BYTES] {
    let mut hello = [0; field::BYTES];
    hello[field::MAGIC].copy_from_slice(&MAGIC);
    hello[field::REGION_BYTES].copy_from_slice(&region_bytes.to_le_bytes());
    hello
}

fn check_hello(bytes: &[u8]) -> Result<(), DecodeError> {
    let Ok(hello) = <&[u8; field::BYTES]>::try_from(bytes) else {
        return Err(DecodeError::Length(bytes.len()));
    };
    if hello[field::MAGIC] != MAGIC {
        return Err(DecodeError::Magic);
    }
    let mut region_bytes = [0; 8];
    region_bytes.copy_from_slice(&hello[field::REGION_BYTES]);
    match u64::from_le_bytes(region_bytes) {
        bytes if bytes == REGION_BYTES as u64 => Ok(()),
        bytes => Err(DecodeError::RegionBytes(bytes)),
    }
}

/// A listening socket without a name, and the descriptor through which others reach it.
///
/// # Errors
/// Those of the system calls, where no directory for temporary files can be written.
pub fn listen() -> io::Result<(OwnedFd, OwnedFd)> {
    let directories = [
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some(std::env::temp_dir()),
        Some(PathBuf::from("/dev/shm")),
    ];
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories.into_iter().flatten() {
        match listen_in(&directory) {
            Ok(listening) => return Ok(listening),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_in(directory: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let private = PrivateFolder::create(directory, "nearmetal-shm-").map_err(io::Error::other)?;
    let path = private.path().join("s");
    let listener = UnixListener::bind(&path)?;
    // When the folder is dropped, the socket no longer needs its path.
    let descriptor = File::options().read(true).custom_flags(libc::O_PATH).open(&path)?;
    Ok((listener.into(), descriptor.into()))
}

/// Takes the memory of the peer behind an accepted socket: none if it is not a peer of ours.
///
/// # Errors
/// [`SharedMemoryError::OtherUser`], [`SharedMemoryError::Hello`], and those of the system calls.
pub fn accept(socket: OwnedFd) -> Result<Option<EndpointParts>, SharedMemoryError> {
    let failed = SystemError::during("taking over shared memory");
    check_user(socket.as_fd())?;
    socket::set_timeouts(socket.as_fd(), CALL_TIMEOUT).map_err(&failed)?;
    let mut hello = [0; field::BYTES];
    let (length, descriptor) = match unix::receive_descriptor(socket.as_fd(), &mut hello) {
        Ok(received) => received,
        Err(error) if TransportError::from(&error) == TransportError::TimedOut => return Ok(None),
        Err(error) => return Err(failed(error).into()),
    };
    if length == 0 {
        return Ok(None);
    }
    check_hello(&hello[..length])?;
    let Some(descriptor) = descriptor else { return Ok(None) };
    let memory = RegionMapping::open(descriptor).map_err(&failed)?;
    Ok(Some(EndpointParts { memory, lifeline: socket.into(), role: EndpointRole::Opener }))
}

/// Connects to the listener behind a descriptor of another process.
///
/// # Errors
/// [`SharedMemoryError::Connect`], such as that nobody listens there, and
/// [`SharedMemoryError::OtherUser`].
pub fn connect(
    process: u32,
    descriptor: u32,
    address: &str,
) -> Result<EndpointParts, SharedMemoryError> {
    let failed = |source| SharedMemoryError::Connect { address: address.to_string(), source };
    let path = format!("/proc/{process}/fd/{descriptor}");
    let socket = OwnedFd::from(UnixStream::connect(path).map_err(failed)?);
    check_user(socket.as_fd())?;
    let memory = RegionMapping::new().map_err(failed)?;
    unix::send_descriptor(socket.as_fd(), &encode_hello(REGION_BYTES as u64), memory.descriptor())
        .map_err(failed)?;
    Ok(EndpointParts { memory, lifeline: socket.into(), role: EndpointRole::Creator })
}

fn check_user(socket: BorrowedFd<'_>) -> Result<(), SharedMemoryError> {
    match unix::peer_is_same_user(socket) {
        Ok(true) => Ok(()),
        Ok(false) => Err(SharedMemoryError::OtherUser),
        Err(error) => Err(SystemError::new("reading the peer's user", error).into()),
    }
}

/// One end of shared memory as a transport of a byte stream.
#[derive(Debug)]
pub struct SharedMemoryTransport<const SLEEPS: bool> {
    endpoint: Endpoint<SLEEPS>,
    /// Bytes of the current message that were sent before a call timed out.
    sent_bytes: usize,
    /// Bytes of the current message that were received before a call timed out.
    received_bytes: usize,
}

impl<const SLEEPS: bool> SharedMemoryTransport<SLEEPS> {
    /// A transport over one end of the memory.
    pub fn new(parts: EndpointParts) -> SharedMemoryTransport<SLEEPS> {
        SharedMemoryTransport { endpoint: Endpoint::new(parts), sent_bytes: 0, received_bytes: 0 }
    }
}

#[cold]
fn transport_error(error: TransferError) -> TransportError {
    match error {
        TransferError::TimedOut => TransportError::TimedOut,
        TransferError::Closed => TransportError::Closed,
    }
}

impl<const SLEEPS: bool> Transport for SharedMemoryTransport<SLEEPS> {
    const DATAGRAM: bool = false;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        while self.sent_bytes < message.len() {
            self.sent_bytes += self
                .endpoint
                .send(&message[self.sent_bytes..], CALL_TIMEOUT)
                .map_err(transport_error)?;
        }
        self.sent_bytes = 0;
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        while self.received_bytes < buffer.len() {
            self.received_bytes += self
                .endpoint
                .receive(&mut buffer[self.received_bytes..], CALL_TIMEOUT)
                .map_err(transport_error)?;
        }
        self.received_bytes = 0;
        Ok(buffer.len())
    }

    #[inline(always)]
    fn receive_some(&mut self, buffer: &mut [u8]) -> Result<usize, TransportError> {
        self.endpoint.receive(buffer, CALL_TIMEOUT).map_err(transport_error)
    }

    #[inline(always)]
    fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TransportError> {
        let sent = self.endpoint.try_send(bytes);
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    #[inline(always)]
    fn try_receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
        self.endpoint.try_receive(buffer).map_err(transport_error)
    }

    #[inline(always)]
    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        Ok(self.endpoint.wait_readable(limit))
    }

    fn end_sending(&mut self, _message_lengths: &[usize]) {
        self.endpoint.shut_write();
    }

    fn peer_cpu(&self) -> Option<u32> {
        self.endpoint.peer_cpu()
    }

    fn settings(&self) -> Settings {
        let ring = (SettingKind::Ring, SettingValue::Bytes(AREA_BYTES as u64));
        let memory = guest_memory::description()
            .map(|text| (SettingKind::GuestMemory, SettingValue::Text(text.to_string())));
        [Some(ring), memory].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn listener_leaves_no_file() {
        let directory = PrivateFolder::create(&std::env::temp_dir(), "nm-shm-test-").unwrap();
        let _listening = listen_in(directory.path()).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "while it listens");
    }

    #[test]
    fn silent_or_foreign_process_is_not_accepted() {
        let (a, b) = socket::unix_pair().unwrap();
        assert!(accept(b).unwrap().is_none(), "silent");
        drop(a);
        let (a, b) = socket::unix_pair().unwrap();
        drop(a);
        assert!(accept(b).unwrap().is_none(), "gone");
        // The second one has a good hello, but a descriptor that is not the memory.
        let hello = encode_hello(REGION_BYTES as u64);
        for bytes in [&b"GET / HTTP/1.1"[..], &hello] {
            let (a, b) = socket::unix_pair().unwrap();
            let (other, _) = socket::unix_pair().unwrap();
            unix::send_descriptor(a.as_fd(), bytes, other.as_fd()).unwrap();
            assert!(accept(b).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn hello_decode_error_names_the_field() {
        let mut hello = encode_hello(REGION_BYTES as u64);
        assert_eq!(check_hello(&hello), Ok(()));
        assert_eq!(check_hello(&hello[..9]), Err(DecodeError::Length(9)));
        hello[0] ^= 1;
        assert_eq!(check_hello(&hello), Err(DecodeError::Magic));
    }

    proptest! {
        #[test]
        fn hello_round_trips(region_bytes in any::<u64>()) {
            let checked = check_hello(&encode_hello(region_bytes));
            if region_bytes == REGION_BYTES as u64 {
                prop_assert_eq!(checked, Ok(()));
            } else {
                prop_assert_eq!(checked, Err(DecodeError::RegionBytes(region_bytes)));
            }
        }
    }
}
