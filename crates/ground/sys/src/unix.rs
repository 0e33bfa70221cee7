//! Unix sockets: listening, credentials of the peer, and passing descriptors.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};

/// Listens at a path, without blocking. A socket that a killed process of this user left there is
/// replaced; all else that is there stays.
///
/// # Errors
/// [`ErrorKind::AddrInUse`] if something is there that is not known to be such a socket, and those
/// of the system calls.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    remove_dead(path)?;
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes a socket of this user that no process has any more.
fn remove_dead(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let taken = |why: &str| Err(io::Error::new(ErrorKind::AddrInUse, why));
    if !found.file_type().is_socket() {
        return taken("there is something that is not a socket; remove it, or name another path");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return taken("the socket there belongs to another user; name another path");
    }
    match refuses_connections(path) {
        Ok(true) => std::fs::remove_file(path),
        Ok(false) => taken("another process listens there; end it, or name another path"),
        // Only a process that can ask knows that nobody is there.
        Err(error) => {
            let why = format!("a socket is there that may be in use: {error}");
            Err(io::Error::new(ErrorKind::AddrInUse, why))
        }
    }
}

/// Whether nobody listens at a socket. It does not wait for a listener whose queue is full.
fn refuses_connections(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        Ok(()) | Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `SO_PEERCRED`: whether the peer of a connected socket runs as the same user as this process.
///
/// # Errors
/// Those of the system call.
pub fn peer_is_same_user(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(socket_peercred(socket)?.uid == rustix::process::geteuid())
}

/// `SO_PEERCRED`: the user of the process at the other end of a connected socket, by number.
///
/// # Errors
/// Those of the system call.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(socket_peercred(socket)?.uid.as_raw())
}

/// `SO_PEERCRED`: the process at the other end of a connected socket, as it was when it listened or
/// connected; absent if it is in a process namespace that this process cannot see.
///
/// # Errors
/// Those of the system call.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `peer`, which has that size and whose
    // fields may have any value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(peer.pid).ok().filter(|pid| *pid != 0))
}

/// Most descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 4;

/// `sendmsg` with `SCM_RIGHTS`—Sends `bytes` together with a duplicate of a descriptor.
///
/// # Errors
/// Those of the system call.
pub fn send_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    send_descriptors(socket, bytes, &[descriptor])
}

/// As [`send_descriptor`], with up to [`DESCRIPTORS_MAX`] descriptors.
///
/// # Errors
/// Those of the system call; `EINVAL` for more descriptors.
pub fn send_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.len() <= DESCRIPTORS_MAX
        && control.push(SendAncillaryMessage::ScmRights(descriptors));
    if !fits {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// `recvmsg`—Receives bytes and the descriptor that was sent with them, if any. Further descriptors
/// are closed.
///
/// # Errors
/// Those of the system call; `EAGAIN` after the socket's time-out.
pub fn receive_descriptor(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let (bytes, descriptors) = receive_descriptors(socket, buffer)?;
    Ok((bytes, descriptors.into_iter().next()))
}

/// As [`receive_descriptor`], all of up to [`DESCRIPTORS_MAX`] descriptors.
///
/// # Errors
/// Those of the system call; `EAGAIN` after the socket's time-out.
pub fn receive_descriptors(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut all = vec![];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            all.extend(descriptors);
        }
    }
    Ok((received.bytes, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptor_is_passed() {
        let (a, b) = crate::socket::unix_pair().unwrap();
        assert!(peer_is_same_user(a.as_fd()).unwrap());
        assert_eq!(peer_process(a.as_fd()).unwrap(), Some(std::process::id()));
        let (inner, other) = crate::socket::unix_pair().unwrap();
        assert_eq!(send_descriptor(a.as_fd(), b"take", inner.as_fd()).unwrap(), 4);
        let mut buffer = [0; 8];
        let (length, taken) = receive_descriptor(b.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"take");
        crate::socket::send(taken.unwrap().as_raw_fd(), b"x", 0).unwrap();
        assert_eq!(crate::socket::receive(other.as_raw_fd(), &mut buffer, 0).unwrap(), 1);
    }

    #[test]
    fn only_a_dead_socket_of_ours_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let refused = |why: &str| {
            let before = std::fs::symlink_metadata(&path).unwrap().ino();
            let error = listen(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), before);
        };
        drop(listen(&path).unwrap());
        let live = listen(&path).unwrap();
        refused("another process listens there");
        // Nobody accepts: the queue becomes full, and a connection would block.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let address = SocketAddrUnix::new(&path).unwrap();
        let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::listen(&live, 1).unwrap();
        let waiting = [(); 3].map(|()| new());
        let connected = waiting.iter().map(|socket| connect(socket, &address).is_ok());
        assert!(connected.collect::<Vec<bool>>().contains(&false), "the queue is not full");
        refused("another process listens there");
        drop(live);
        std::fs::remove_file(&path).unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        refused("may be in use");
        drop(datagrams);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "valuable").unwrap();
        refused("not a socket");
        assert_eq!(std::fs::read(&path).unwrap(), b"valuable");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(scratch.path().join("other"), &path).unwrap();
        refused("not a socket");
        std::fs::remove_file(&path).unwrap();
        drop(listen(&path).unwrap());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65533), None).unwrap();
            refused("belongs to another user");
        }
    }

    #[test]
    fn several_descriptors_arrive_in_order() {
        let (a, b) = crate::socket::unix_pair().unwrap();
        let (one, one_end) = crate::socket::unix_pair().unwrap();
        let (two, two_end) = crate::socket::unix_pair().unwrap();
        send_descriptors(a.as_fd(), b"x", &[one.as_fd(), two.as_fd()]).unwrap();
        let (_, taken) = receive_descriptors(b.as_fd(), &mut [0; 8]).unwrap();
        assert_eq!(taken.len(), 2);
        for (taken, end, word) in [(&taken[0], &one_end, b"1"), (&taken[1], &two_end, b"2")] {
            crate::socket::send(taken.as_raw_fd(), word, 0).unwrap();
            let mut buffer = [0; 1];
            crate::socket::receive(end.as_raw_fd(), &mut buffer, 0).unwrap();
            assert_eq!(&buffer, word);
        }
        let many = [one.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send_descriptors(a.as_fd(), b"x", &many).is_err());
    }

    #[test]
    fn bytes_alone_carry_no_descriptor() {
        let (a, b) = crate::socket::unix_pair().unwrap();
        crate::socket::send(a.as_raw_fd(), b"x", 0).unwrap();
        let (length, descriptor) = receive_descriptor(b.as_fd(), &mut [0; 8]).unwrap();
        assert!(length == 1 && descriptor.is_none());
    }
}
