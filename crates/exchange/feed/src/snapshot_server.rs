//! The server of snapshots: each client has a thread, which logs it in and writes the snapshot.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_doors::line::{Cut as _, Next};
use nm_doors::soup::packet::{self, Framer, LOGIN_REJECTED};
use nm_doors::soup::session::{LoginRequest, NOT_AUTHORISED};
use nm_exchange::limits::is_within_quota;
use nm_sys::clock::Deadline;
use nm_wire::Owner;

use crate::glimpse;
use crate::limits::{LOGIN_LIMIT_NS, SNAPSHOT_AGE_NS, SNAPSHOT_SILENCE_NS, SNAPSHOTS_MAX};
use crate::mold::Session;

/// Type of the packet that ends a session.
const END_OF_SESSION: u8 = b'Z';

/// Longest wait for a client before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// Somebody wants a snapshot: where it goes.
pub type Wanted = Sender<Arc<Vec<u8>>>;

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// To log in, and again to close its end after the snapshot.
    pub login: Duration,
    /// Without reading anything.
    pub silence: Duration,
}

impl Limits {
    /// Those outside tests.
    pub const STANDARD: Limits = Limits {
        login: Duration::from_nanos(LOGIN_LIMIT_NS),
        silence: Duration::from_nanos(SNAPSHOT_SILENCE_NS),
    };
}

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

/// How many clients each address has.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<BTreeMap<Owner, usize>>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client, unless its address has as many as are free.
    fn take(&self, owner: Owner) -> Option<Place> {
        let mut taken = self.lock();
        let (own, all) = (taken.get(&owner).copied().unwrap_or(0), taken.values().sum());
        if !is_within_quota(owner, (own, all), 1, SNAPSHOTS_MAX) {
            return None;
        }
        taken.insert(owner, own + 1);
        Some(Place { places: self.clone(), owner })
    }
}

/// The place of a client, until it is dropped.
struct Place {
    places: Places,
    owner: Owner,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        match taken.get_mut(&self.owner) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.owner)),
        }
    }
}

/// Serves clients until `stop`. The publisher gets `wanted`, and answers each.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(
    listener: TcpListener,
    (session, limits): (Session, Limits),
    wanted: SyncSender<Wanted>,
    stop: Arc<AtomicBool>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let places = Places::default();
    #[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
    let accept = move || {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, from)) = listener.accept() else {
                std::thread::sleep(WAIT);
                continue;
            };
            let Some(place) = places.take(Owner::of_address(from.ip())) else { continue };
            let wanted = wanted.clone();
            let serve = move || {
                // Who does not get all of it takes another one.
                let _ = serve(stream, &session, limits, &wanted);
                drop(place);
            };
            // Without a thread, the connection and its place end here.
            let _ = std::thread::Builder::new().name("snapshot".to_string()).spawn(serve);
        }
    };
    std::thread::Builder::new().name("snapshots".to_string()).spawn(accept).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "in a thread of its own")]
fn serve(
    mut stream: TcpStream,
    session: &Session,
    limits: Limits,
    wanted: &SyncSender<Wanted>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(limits.silence))?;
    let login = read_login(&mut stream, limits.login)?;
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
    let (deadline, mut rest) = (Deadline::after(limits.login), [0; 256]);
    while matches!(read_until(&mut stream, &mut rest, deadline), Ok(1..)) {}
    Ok(())
}

/// Reads what has come by a deadline. Single bytes do not put it off.
fn read_until(stream: &mut TcpStream, bytes: &mut [u8], deadline: Deadline) -> io::Result<usize> {
    let left = deadline.remaining();
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.read(bytes)
}

fn read_login(stream: &mut TcpStream, limit: Duration) -> io::Result<LoginRequest> {
    let (mut framer, mut bytes) = (Framer::default(), [0; 256]);
    let deadline = Deadline::after(limit);
    loop {
        let length = read_until(stream, &mut bytes, deadline)?;
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
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc::sync_channel;

    const SESSION: Session = *b"0000000001";

    /// A server whose publisher gives a snapshot of so many bytes, and where it is.
    fn server(limits: Limits, bytes: usize) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (want, wanted) = sync_channel::<Wanted>(0);
        start(listener, (SESSION, limits), want, Arc::default()).unwrap();
        std::thread::spawn(move || {
            let snapshot = Arc::new(vec![0; bytes]);
            for to in wanted {
                let _ = to.send(Arc::clone(&snapshot));
            }
        });
        address
    }

    fn client(server: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Whether the server has let a client in, whose login it gets now.
    fn is_served(mut stream: &TcpStream) -> bool {
        let mut first = [0; 3];
        // A connection that was closed takes the login, or not.
        let _ = stream.write_all(&glimpse::login());
        stream.read_exact(&mut first).is_ok() && first[2] == packet::LOGIN_ACCEPTED
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
    fn one_address_leaves_places_for_others() {
        let places = Places::default();
        let owner = |last| Owner::of_address([10, 0, 0, last].into());
        let taken: Vec<Place> = (0..SNAPSHOTS_MAX).map_while(|_| places.take(owner(1))).collect();
        assert_eq!(taken.len(), SNAPSHOTS_MAX / 2);
        let other = places.take(owner(2)).unwrap();
        assert!(places.take(owner(1)).is_none());
        drop((taken, other));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn snapshots_have_a_number_and_a_place_is_free_when_its_client_has_gone() {
        let server = server(Limits::STANDARD, 10);
        let waiting: Vec<TcpStream> = (0..SNAPSHOTS_MAX / 2).map(|_| client(server)).collect();
        assert!(!is_served(&client(server)), "all of its address are taken");
        assert!(is_served(&waiting[0]));
        drop(waiting);
        let deadline = Deadline::after(Duration::from_secs(30));
        while !is_served(&client(server)) {
            assert!(!deadline.passed(), "no place is free");
        }
    }

    /// Before, each byte gave it the whole time again.
    #[test]
    fn a_client_that_does_not_log_in_is_ended_however_often_it_sends() {
        let login = Duration::from_millis(300);
        let mut slow = client(server(Limits { login, ..Limits::STANDARD }, 10));
        slow.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let deadline = Deadline::after(Duration::from_secs(10));
        // The beginning of a packet that is longer than all it sends.
        let mut next = [4, 0, packet::DEBUG].into_iter().chain(std::iter::repeat(0));
        let is_open = |slow: &mut TcpStream| {
            let read = slow.read(&mut [0; 8]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        while is_open(&mut slow) {
            assert!(!deadline.passed(), "it is served for ever");
            let _ = slow.write_all(&[next.next().unwrap()]);
        }
    }

    #[test]
    fn a_client_that_reads_nothing_is_ended() {
        let silence = Duration::from_millis(300);
        let bytes = 32 << 20;
        let mut silent = client(server(Limits { silence, ..Limits::STANDARD }, bytes));
        assert!(is_served(&silent));
        std::thread::sleep(4 * silence);
        let mut all = vec![];
        // It ends before all of it, with an error or without.
        let _ = silent.read_to_end(&mut all);
        assert!(all.len() < bytes, "all of it was sent after {silence:?}");
    }
}
