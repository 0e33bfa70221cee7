//! What a stranger sends where two processes meet to share memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::pipe::PIPE_BYTES;
use nm_ring::ledger::{Ledger, LedgerView};

/// Most descriptors in one message here: more than a receiver takes.
const SENT_MAX: usize = 10;

/// Descriptors below this number are counted.
const COUNTED_MAX: RawFd = 64;

/// Messages with any bytes and any descriptors (`SCM_RIGHTS`): the receiver takes one at most,
/// closes the others, and maps only memory of the right form.
pub fn rendezvous(bytes: &[u8]) {
    let Some((sender, receiver)) = pair() else { return };
    let kinds = kinds();
    let before = open_descriptors();
    let mut rest = bytes;
    while let [length, count, which, more @ ..] = rest {
        let length = usize::from(*length % 24).min(more.len());
        let (message, more) = more.split_at(length);
        let all = usize::from(*count) % (SENT_MAX + 1);
        let chosen = (0..all).map(|at| &kinds[(usize::from(*which) + at) % kinds.len()]);
        let chosen: Vec<RawFd> = chosen.map(AsRawFd::as_raw_fd).collect();
        send(&sender, message, &chosen);
        receive(&receiver, !chosen.is_empty());
        assert_eq!(open_descriptors(), before, "a descriptor was left open");
        rest = more;
    }
}

fn receive(receiver: &OwnedFd, may_have_descriptor: bool) {
    let mut buffer = [0; 8];
    let Ok((count, descriptor)) = nm_sys::unix::receive_descriptor(receiver.as_fd(), &mut buffer)
    else {
        return;
    };
    assert!(count <= buffer.len() && (may_have_descriptor || descriptor.is_none()));
    let Some(descriptor) = descriptor else { return };
    if let Ok(copy) = descriptor.try_clone() {
        let _ = LedgerView::open(copy).map(|view| view.records().count());
    }
    if let Ok(mapped) = ConduitMapping::<PIPE_BYTES>::open(descriptor) {
        // Memory that was accepted has its full size: reading the end of it does not fault.
        mapped.outgoing(nm_ring::EndpointRole::Opener).readable();
        mapped.incoming(nm_ring::EndpointRole::Opener).readable();
    }
}

/// Files of each kind that may come: memory that is right, and what is not.
fn kinds() -> Vec<OwnedFd> {
    let mut all: Vec<OwnedFd> = vec![];
    all.extend(ConduitMapping::<PIPE_BYTES>::new().ok().map(|(_, file)| file));
    all.extend(Ledger::create(1, "program", "", 1).ok().map(|(_, file)| file));
    all.extend(File::open("/dev/null").ok().map(OwnedFd::from));
    all.extend(File::open("/").ok().map(OwnedFd::from));
    for size_bytes in [0, 8, CONDUIT_BYTES] {
        // SAFETY: the name is a C string; the descriptor that is returned is new.
        let fd = unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: a descriptor that was just created, and that nothing else uses.
            let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            // Not sealed: its owner may cut it while it is mapped.
            let _ = file.set_len(size_bytes as u64);
            all.push(file.into());
        }
    }
    all
}

fn pair() -> Option<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the array takes the two descriptors.
    let result = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
    // SAFETY: the descriptors were just created, and nothing else uses them.
    (result == 0).then(|| fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })).map(<(_, _)>::from)
}

fn send(sender: &OwnedFd, message: &[u8], descriptors: &[RawFd]) {
    let mut control = [0_u64; 16];
    let bytes = size_of_val(descriptors) as u32;
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // SAFETY: all zero is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !descriptors.is_empty() {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: computes lengths only.
        let (space, length) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        assert!(space as usize <= size_of_val(&control));
        header.msg_controllen = space as _;
        // SAFETY: the control buffer has room for the header and all descriptors.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = length as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            ptr::copy_nonoverlapping(descriptors.as_ptr(), data, descriptors.len());
        }
    }
    // SAFETY: the header refers to memory that lives until the call returns.
    unsafe { libc::sendmsg(sender.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
}

fn open_descriptors() -> usize {
    // SAFETY: reads the flags of a descriptor, if there is one.
    (0..COUNTED_MAX).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count()
}
