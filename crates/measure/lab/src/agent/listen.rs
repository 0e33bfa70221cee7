//! The agent as a server on a TCP port, to be started by hand on one of two machines.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_model::{Answer, Failure, FailureKind};

use crate::agent::peer_filter::PeerFilter;
use crate::agent::serve::serve_remote;

/// Events of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// It listens on this address.
    Listening(SocketAddr),
    /// A controller has connected.
    Connected(SocketAddr),
    /// A second controller was refused.
    Refused(SocketAddr),
    /// A controller has disconnected, with the result of its session.
    Ended(SocketAddr, Result<(), Failure>),
}

/// Serves controllers on `bind`, one at a time: a second one is refused because the server is busy.
/// One that sends nothing for `idle_max` while no task is running is disconnected. With `once`,
/// returns when the first controller has disconnected; otherwise never.
///
/// # Errors
/// If it cannot listen there.
pub fn listen(
    bind: SocketAddr,
    once: bool,
    idle_max: Duration,
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
                Ok((stream, peer)) => (stream, canonical(peer)),
                Err(_) if ended.load(Ordering::Acquire) => return Ok(()),
                // A temporary condition, such as too many open files.
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
                let result = session(&stream, idle_max);
                busy.store(false, Ordering::Release);
                notice(Notice::Ended(peer, result));
                if once {
                    ended.store(true, Ordering::Release);
                    // Makes the accept call above fail, so that the loop ends.
                    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
                }
            });
        }
    })
}

/// The address as people write it: an IPv4 peer of a socket that listens on IPv6 has an IPv6
/// address that contains its own.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn session(stream: &TcpStream, idle_max: Duration) -> Result<(), Failure> {
    let io = |error: io::Error| {
        Failure::new(FailureKind::Peer, format!("the controller's connection failed: {error}"))
    };
    nm_sys::socket::set_for_agents(stream.as_fd()).map_err(io)?;
    let (own, peer) = (stream.local_addr().map_err(io)?, stream.peer_addr().map_err(io)?);
    let filter = PeerFilter::new(own.ip(), peer.ip());
    let input = stream.try_clone().map_err(io)?;
    let result = serve_remote(input, stream, Some(filter), Some(idle_max));
    // Ends the thread that reads requests.
    let _ = stream.shutdown(Shutdown::Both);
    result
}

fn refuse(mut stream: TcpStream) {
    let failure =
        Failure::new(FailureKind::NotAvailable, "the server is busy with another controller")
            .hint("try again when that one has finished");
    if let Ok(line) = serde_json::to_string(&Answer::Failed(failure)) {
        // A client that does not read must not block the server.
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = writeln!(stream, "{line}");
    }
}

fn bind_failure(bind: SocketAddr, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            Failure::new(FailureKind::AddressInUse, format!("{bind} is already in use"))
                .hint("stop the program that uses it, or give another port")
        }
        io::ErrorKind::AddrNotAvailable => Failure::new(
            FailureKind::BadRequest,
            format!("{} is not an address of this host", bind.ip()),
        )
        .hint("give one of its addresses, or 0.0.0.0 for all"),
        io::ErrorKind::PermissionDenied => {
            Failure::new(FailureKind::Permission, format!("no permission to listen on {bind}"))
                .hint("ports below 1024 are reserved for root; give another port")
        }
        _ => Failure::new(FailureKind::System, format!("cannot listen on {bind}: {error}")),
    }
}
