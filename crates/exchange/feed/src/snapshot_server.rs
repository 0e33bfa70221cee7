//! The server of snapshots: each client has a thread, which logs it in and writes the snapshot.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::time::Duration;

use nm_doors::line::{Cut as _, Next};
use nm_doors::soup::packet::{self, Framer, LOGIN_REJECTED};
use nm_doors::soup::session::{LoginRequest, NOT_AUTHORISED};

use crate::glimpse;
use crate::limits::{LOGIN_LIMIT_NS, SNAPSHOT_SILENCE_NS, SNAPSHOTS_MAX};
use crate::mold::Session;

/// Type of the packet that ends a session.
const END_OF_SESSION: u8 = b'Z';

/// Longest wait for a client before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// Somebody wants a snapshot: where it goes.
pub type Wanted = Sender<Arc<Vec<u8>>>;

/// Serves clients until `stop`. The publisher gets `wanted`, and answers each.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(
    listener: TcpListener,
    session: Session,
    wanted: SyncSender<Wanted>,
    stop: Arc<AtomicBool>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let clients = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(WAIT);
                continue;
            };
            if clients.load(Ordering::Relaxed) >= SNAPSHOTS_MAX {
                continue;
            }
            clients.fetch_add(1, Ordering::Relaxed);
            let (wanted, counted) = (wanted.clone(), Arc::clone(&clients));
            let serve = move || {
                // Who does not get all of it takes another one.
                let _ = serve(stream, &session, &wanted);
                counted.fetch_sub(1, Ordering::Relaxed);
            };
            let started = std::thread::Builder::new().name("snapshot".to_string()).spawn(serve);
            if started.is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::Builder::new().name("snapshots".to_string()).spawn(accept).map(drop)
}

fn serve(mut stream: TcpStream, session: &Session, wanted: &SyncSender<Wanted>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_nanos(LOGIN_LIMIT_NS)))?;
    stream.set_write_timeout(Some(Duration::from_nanos(SNAPSHOT_SILENCE_NS)))?;
    let login = read_login(&mut stream)?;
    let own = std::str::from_utf8(session).unwrap_or_default().trim();
    let is_own = login.session.is_empty() || login.session == own;
    if !is_own || login.next > 1 {
        return stream.write_all(&packet::packet(LOGIN_REJECTED, b"S"));
    }
    let (to, snapshot) = channel();
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    wanted.send(to).map_err(|_| gone(()))?;
    let snapshot = snapshot.recv().map_err(|_| gone(()))?;
    stream.write_all(&glimpse::accepted(session))?;
    stream.write_all(&snapshot)?;
    stream.write_all(&packet::packet(END_OF_SESSION, &[]))?;
    // What a client has sent meanwhile must not make the system drop what it has not read.
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut rest = [0; 256];
    while matches!(stream.read(&mut rest), Ok(1..)) {}
    Ok(())
}

fn read_login(stream: &mut TcpStream) -> io::Result<LoginRequest> {
    let (mut framer, mut bytes) = (Framer::default(), [0; 256]);
    loop {
        let length = stream.read(&mut bytes)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        framer.push(&bytes[..length]);
        match framer.next() {
            None | Some(Next::Ignored) => {}
            Some(Next::Message(packet)) => match LoginRequest::read(&packet) {
                Some(login) => return Ok(login),
                None if packet.kind == packet::DEBUG => {}
                None => break,
            },
            Some(Next::Fault(_)) => break,
        }
    }
    stream.write_all(&packet::packet(LOGIN_REJECTED, &[NOT_AUTHORISED]))?;
    Err(io::ErrorKind::InvalidData.into())
}
