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
use crate::limits::{LOGIN_LIMIT_NS, SNAPSHOT_AGE_NS, SNAPSHOT_SILENCE_NS, SNAPSHOTS_MAX};
use crate::mold::Session;

/// Type of the packet that ends a session.
const END_OF_SESSION: u8 = b'Z';

/// Longest wait for a client before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// Somebody wants a snapshot: where it goes.
pub type Wanted = Sender<Arc<Vec<u8>>>;

/// The latest snapshot, which further clients get as well for a time.
#[derive(Debug, Default)]
pub struct Kept {
    made: Option<(u64, Arc<Vec<u8>>)>,
}

impl Kept {
    /// The snapshot of those who ask at a time, ns.
    pub fn get(&mut self, now_ns: u64, make: impl FnOnce() -> Vec<u8>) -> Arc<Vec<u8>> {
        let fresh = self.made.take().filter(|(made_ns, _)| now_ns < made_ns + SNAPSHOT_AGE_NS);
        let (_, bytes) = self.made.insert(fresh.unwrap_or_else(|| (now_ns, Arc::new(make()))));
        Arc::clone(bytes)
    }
}

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
    let patience = Patience {
        login: Duration::from_nanos(LOGIN_LIMIT_NS),
        silence: Duration::from_nanos(SNAPSHOT_SILENCE_NS),
    };
    start_with(listener, session, wanted, stop, patience)
}

/// How long clients may be silent.
#[derive(Debug, Clone, Copy)]
struct Patience {
    login: Duration,
    silence: Duration,
}

fn start_with(
    listener: TcpListener,
    session: Session,
    wanted: SyncSender<Wanted>,
    stop: Arc<AtomicBool>,
    patience: Patience,
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
                let _ = serve(stream, &session, &wanted, patience);
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

fn serve(
    mut stream: TcpStream,
    session: &Session,
    wanted: &SyncSender<Wanted>,
    patience: Patience,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience.login))?;
    stream.set_write_timeout(Some(patience.silence))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use nm_sys::clock::Moment;
    use std::net::SocketAddr;
    use std::sync::mpsc::sync_channel;

    const SESSION: Session = *b"0000000007";

    /// How long clients may be silent here.
    const LIMIT: Duration = Duration::from_secs(1);

    /// A server whose publisher gives everybody this snapshot.
    fn server(snapshot: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (to, wanted) = sync_channel::<Wanted>(0);
        let patience = Patience { login: LIMIT, silence: LIMIT };
        start_with(listener, SESSION, to, Arc::default(), patience).unwrap();
        let snapshot = Arc::new(snapshot);
        std::thread::spawn(move || {
            while let Ok(to) = wanted.recv() {
                let _ = to.send(Arc::clone(&snapshot));
            }
        });
        address
    }

    /// How long a connection lasts that sends nothing more, and how many bytes it gets.
    fn until_end(mut stream: TcpStream) -> (Duration, usize) {
        let begin = Moment::now();
        let mut bytes = vec![];
        let _ = stream.read_to_end(&mut bytes);
        (begin.elapsed(), bytes.len())
    }

    fn log_in(stream: &mut TcpStream) {
        let text = format!("{:<6}{:<10}{:>10}{:>20}", "a", "b", "", 1);
        // It may have no place, and be closed already.
        let _ = stream.write_all(&packet::packet(b'L', text.as_bytes()));
    }

    #[test]
    fn a_snapshot_is_given_to_others_as_well_for_a_time() {
        let mut kept = Kept::default();
        let mut made = 0;
        let get = |now_ns: u64| {
            let bytes = kept.get(now_ns, || {
                made += 1;
                vec![made]
            });
            bytes[0]
        };
        let times = [5, 5 + SNAPSHOT_AGE_NS - 1, 5 + SNAPSHOT_AGE_NS, 6 + SNAPSHOT_AGE_NS];
        assert_eq!(times.map(get), [1, 1, 2, 2]);
    }

    #[test]
    fn clients_that_are_silent_take_a_number_of_places_and_leave_them() {
        let address = server(vec![7; 100]);
        let silent: Vec<TcpStream> =
            (0..SNAPSHOTS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        // They have their places once all were accepted.
        std::thread::sleep(5 * WAIT);
        let (lasted, bytes) = until_end(TcpStream::connect(address).unwrap());
        assert!(bytes == 0 && lasted < Duration::from_secs(2), "{lasted:?}: closed at once");
        let (lasted, _) = until_end(silent.into_iter().next().unwrap());
        assert!(lasted < 10 * LIMIT, "{lasted:?}");
        std::thread::sleep(5 * WAIT);
        let mut client = TcpStream::connect(address).unwrap();
        log_in(&mut client);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(until_end(client).1 > 100, "there are places again");
    }

    #[test]
    fn clients_that_read_nothing_leave_their_places() {
        // More than the system keeps for a socket.
        let address = server(vec![7; 64 << 20]);
        let idle: Vec<TcpStream> = (0..SNAPSHOTS_MAX)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                log_in(&mut stream);
                stream
            })
            .collect();
        std::thread::sleep(5 * WAIT);
        assert_eq!(until_end(TcpStream::connect(address).unwrap()).1, 0, "no place is left");
        // A write ends after the limit with what the system took, and the last one with nothing.
        let begin = Moment::now();
        let mut is_served = false;
        while !is_served && begin.elapsed() < 30 * LIMIT {
            std::thread::sleep(LIMIT);
            let mut client = TcpStream::connect(address).unwrap();
            log_in(&mut client);
            let _ = client.shutdown(std::net::Shutdown::Write);
            is_served = until_end(client).1 > 64 << 20;
        }
        assert!(is_served, "their places are free");
        drop(idle);
    }
}
