//! Sends the ledger to `nearmetal accel --stats`: the parent that prints the exit report gets the
//! ledger itself as soon as it is created. So nothing must be written at the end, and a program
//! that is killed is reported like any other.
//!
//! The parent listens on a datagram socket whose name is already removed. It is reached through the
//! parent's own descriptor in `/proc`, from every network namespace. Nothing of it remains when the
//! parent has ended.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::settings::Settings;

/// How long a stopped parent, which receives nothing, may delay this process.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends the parent a copy of the ledger's descriptor, if a report is wanted. Called once for each
/// ledger. If the parent has ended, no report is wanted, so errors are ignored.
pub fn send_ledger(ledger: BorrowedFd<'_>) {
    if let Some(path) = Settings::get().report {
        let _: rustix::io::Result<()> = send(path.to_bytes(), ledger);
    }
}

fn send(path: &[u8], ledger: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let address = SocketAddrUnix::new(path)?;
    let kind = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(SEND_TIMEOUT))?;
    connect(&socket, &address)?;
    let sent = nm_sys::unix::send_descriptor(std::os::fd::AsFd::as_fd(&socket), b"ledger", ledger);
    sent.map(drop).map_err(|_| rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn ledger_reaches_an_unnamed_socket() {
        let path = std::env::temp_dir().join(format!("nm-accel-report-{}", std::process::id()));
        let parent = UnixDatagram::bind(&path).unwrap();
        let place = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let place = rustix::fs::open(&path, place, rustix::fs::Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let through = format!("/proc/{}/fd/{}", std::process::id(), place.as_raw_fd());
        let ledger = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&ledger, b"counted").unwrap();
        send(through.as_bytes(), ledger.as_fd()).unwrap();
        let mut text = [0; 16];
        let (length, taken) = nm_sys::unix::receive_descriptor(parent.as_fd(), &mut text).unwrap();
        assert_eq!(&text[..length], b"ledger");
        let mut content = [0; 16];
        let read = rustix::io::pread(taken.unwrap(), &mut content, 0).unwrap();
        assert_eq!(&content[..read], b"counted");
        drop((parent, place));
        assert!(send(through.as_bytes(), ledger.as_fd()).is_err(), "the parent is gone");
    }
}
