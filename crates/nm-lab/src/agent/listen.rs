//! The agent as a server on a TCP port, for use by hand on two machines.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_model::{Answer, Failure, FailureKind};

use super::guard::Guard;
use super::serve::serve_guarded;

/// What a server tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// It listens here.
    Listening(SocketAddr),
    /// A controller has connected.
    Connected(SocketAddr),
    /// A second controller was sent away.
    Refused(SocketAddr),
    /// A controller has gone, and how.
    Ended(SocketAddr, Result<(), Failure>),
}

/// Serves controllers on `bind`, one at a time: a second one is told that the server is busy. With
/// `once`, returns when the first controller has gone; else runs on.
///
/// # Errors
/// If it cannot listen there.
pub fn listen(
    bind: SocketAddr,
    once: bool,
    notice: impl Fn(Notice) + Send + Sync,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(bind).map_err(|error| bind_failure(bind, &error))?;
    if let Ok(address) = listener.local_addr() {
        notice(Notice::Listening(address));
    }
    let busy = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(_) if ended.load(Ordering::Acquire) => return Ok(()),
                // Such as too many open files: of the moment, and no reason to end.
                Err(_) => {
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if busy.swap(true, Ordering::AcqRel) {
                refuse(stream);
                notice(Notice::Refused(peer));
                continue;
            }
            notice(Notice::Connected(peer));
            let (busy, ended, notice, listener) = (&busy, &ended, &notice, &listener);
            scope.spawn(move || {
                let result = session(&stream);
                busy.store(false, Ordering::Release);
                notice(Notice::Ended(peer, result));
                if once {
                    ended.store(true, Ordering::Release);
                    // Wakes the accept above, which then fails.
                    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
                }
            });
        }
    })
}

fn session(stream: &TcpStream) -> Result<(), Failure> {
    let io = |error: io::Error| {
        Failure::new(FailureKind::Peer, format!("the controller's connection is bad: {error}"))
    };
    notice_death(stream).map_err(io)?;
    let (own, peer) = (stream.local_addr().map_err(io)?, stream.peer_addr().map_err(io)?);
    let guard = Guard::new(own.ip(), peer.ip());
    let result = serve_guarded(stream.try_clone().map_err(io)?, stream, Some(guard));
    // Ends the thread that still reads.
    let _ = stream.shutdown(Shutdown::Both);
    result
}

/// Lets a control connection end when the other machine has gone without a word: after about half
/// a minute.
pub(super) fn notice_death(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

fn refuse(mut stream: TcpStream) {
    let failure =
        Failure::new(FailureKind::NotAvailable, "the server is busy with another controller")
            .hint("try again when that has ended");
    if let Ok(line) = serde_json::to_string(&Answer::Failed(failure)) {
        // One that does not read must not hold the server up.
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = writeln!(stream, "{line}");
    }
}

fn bind_failure(bind: SocketAddr, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            Failure::new(FailureKind::AddressInUse, format!("{bind} is in use already"))
                .hint("stop what uses it, or give another port")
        }
        io::ErrorKind::AddrNotAvailable => Failure::new(
            FailureKind::BadRequest,
            format!("{} is no address of this host", bind.ip()),
        )
        .hint("give one of its addresses, or 0.0.0.0 for all"),
        io::ErrorKind::PermissionDenied => {
            Failure::new(FailureKind::Permission, format!("no permission to listen on {bind}"))
                .hint("ports below 1024 are root's; give another port")
        }
        _ => Failure::new(FailureKind::System, format!("cannot listen on {bind}: {error}")),
    }
}
