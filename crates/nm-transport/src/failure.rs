//! Errors of sockets as sentences.

use std::fmt::Display;
use std::io;

use nm_model::{Failure, FailureKind};

use crate::Fault;

/// The failure that an error means while `doing` something, such as `connecting to ADDRESS`.
pub fn of(error: &io::Error, doing: impl Display) -> Failure {
    use io::ErrorKind as Kind;
    let failure = |kind, what: &str| Failure::new(kind, format!("{doing}: {what}"));
    match error.kind() {
        Kind::AddrInUse => failure(FailureKind::AddressInUse, "the address is taken")
            .hint("choose another port, or end the program that holds it (`ss -lnp` shows it)"),
        Kind::ConnectionRefused => failure(FailureKind::Peer, "nobody listens there")
            .hint("start the peer first, and check address and port"),
        Kind::NotFound if error.raw_os_error() == Some(libc::ENOENT) => {
            failure(FailureKind::Peer, "nobody listens there").hint("start the peer first")
        }
        Kind::TimedOut | Kind::WouldBlock => failure(FailureKind::Peer, "no answer in time")
            .hint("check that the peer's machine is up and no firewall is between"),
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => {
            failure(FailureKind::Peer, "the peer has gone")
        }
        Kind::HostUnreachable | Kind::NetworkUnreachable => {
            failure(FailureKind::Peer, "there is no way to it")
                .hint("check the address and the routes (`ip route get ADDRESS`)")
        }
        Kind::PermissionDenied => failure(FailureKind::Permission, "not permitted"),
        Kind::AddrNotAvailable => {
            failure(FailureKind::BadRequest, "this machine does not have that address")
                .hint("`ip address` lists those that it has")
        }
        _ => failure(FailureKind::System, &error.to_string()),
    }
}

/// The failure that a fault means while `doing` something.
pub fn of_fault(fault: Fault, doing: impl Display) -> Failure {
    match fault {
        Fault::TimedOut => of(&io::ErrorKind::TimedOut.into(), doing),
        Fault::Closed => of(&io::ErrorKind::BrokenPipe.into(), doing),
        Fault::System(code) => of(&io::Error::from_raw_os_error(code), doing),
    }
}

/// The failure of a task that was cancelled.
pub fn cancelled() -> Failure {
    Failure::new(FailureKind::Cancelled, "the task was cancelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind_and_sentence() {
        let failure = |code| of(&io::Error::from_raw_os_error(code), "listening on 127.0.0.1:1");
        for (code, kind) in [
            (libc::EADDRINUSE, FailureKind::AddressInUse),
            (libc::ECONNREFUSED, FailureKind::Peer),
            (libc::ETIMEDOUT, FailureKind::Peer),
            (libc::ECONNRESET, FailureKind::Peer),
            (libc::ENETUNREACH, FailureKind::Peer),
            (libc::EACCES, FailureKind::Permission),
            (libc::EPERM, FailureKind::Permission),
            (libc::EADDRNOTAVAIL, FailureKind::BadRequest),
            (libc::EMFILE, FailureKind::System),
        ] {
            assert_eq!(failure(code).kind, kind, "{code}");
        }
        let text = failure(libc::EADDRINUSE).message;
        assert_eq!(text, "listening on 127.0.0.1:1: the address is taken");
    }
}
