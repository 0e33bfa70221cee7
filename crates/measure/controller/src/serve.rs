//! The controller's end: takes agents in, and gives them to runs that ask at its socket.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::process::raise_file_limit;
use rustls::ServerConfig;
use thiserror::Error;

use crate::gate::{Gate, STRANGER_LIMIT};
use crate::hello::{self, Card, EntryToken, Refusal, Word};
use crate::link::{Link, LinkError};
use crate::local::{self, Answer, NAP, REQUEST_BYTES_MAX, Request};
use crate::registry::{Known, Registry, Taken};

/// Most runs at the controller's socket at once: two for each of 64 trials, and some that ask.
pub const RUNS_MAX: usize = 160;

/// How often the controller looks whether agents that wait are still there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long the controller waits for an agent before it answers; a run asks again.
const ABSENCE_LIMIT: Duration = Duration::from_secs(1);

/// How long a run may take to ask, and an agent to take a word.
const WORD_LIMIT: Duration = Duration::from_secs(5);

/// What a controller tells its user.
#[derive(Debug)]
pub enum Notice {
    /// An agent waits for work.
    Came(Known),
    /// An agent that waited has gone.
    Gone(String),
    /// Somebody was refused.
    Refused(IpAddr, String),
}

/// Why there is no controller.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The socket.
    #[error("cannot make the socket {}: {source}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another one has it.
    #[error("another controller is at {}; end it, or name another --socket", path.display())]
    Conflict {
        /// Where.
        path: PathBuf,
    },
    /// Threads.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A controller that listens.
pub struct Controller {
    agents: TcpListener,
    runs: UnixListener,
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<ServerConfig>,
    token: EntryToken,
    gate: Mutex<Gate>,
    registry: Mutex<Registry<Link>>,
    n_runs: AtomicUsize,
    notice: Box<dyn Fn(Notice) + Send + Sync>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread leaves either half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Listens for agents at `address` and for runs at `socket`.
    ///
    /// # Errors
    /// If it cannot.
    pub fn bind(
        address: SocketAddr,
        socket: &Path,
        config: ServerConfig,
        token: EntryToken,
        notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Controller, ServeError> {
        // An agent has a descriptor; without more of them fewer agents enter.
        let _ = raise_file_limit();
        let agents =
            TcpListener::bind(address).map_err(|source| ServeError::Listen { address, source })?;
        let runs = bind_socket(socket)?;
        let shared = Shared {
            config: Arc::new(config),
            token,
            gate: Mutex::default(),
            registry: Mutex::default(),
            n_runs: AtomicUsize::new(0),
            notice: Box::new(notice),
        };
        Ok(Controller { agents, runs, shared: Arc::new(shared) })
    }

    /// Where it listens for agents.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.agents.local_addr()
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn run(self) -> Result<(), ServeError> {
        let Controller { agents, runs, shared } = self;
        let of_runs = Arc::clone(&shared);
        spawn(move || of_runs.accept_runs(&runs)).map_err(ServeError::Thread)?;
        let of_look = Arc::clone(&shared);
        spawn(move || of_look.look_after_agents()).map_err(ServeError::Thread)?;
        shared.accept_agents(&agents);
        Ok(())
    }
}

/// Makes the socket of this user; one that a killed controller has left is replaced.
fn bind_socket(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Socket { path: path.to_path_buf(), source };
    if local::is_alive(path) {
        return Err(ServeError::Conflict { path: path.to_path_buf() });
    }
    let is_socket = |known: fs::Metadata| {
        use std::os::unix::fs::FileTypeExt;
        known.file_type().is_socket()
    };
    if fs::symlink_metadata(path).is_ok_and(is_socket) {
        fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(256 << 10).spawn(work).map(drop)
}

impl Shared {
    fn accept_agents(self: &Arc<Shared>, listener: &TcpListener) {
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                // A temporary condition, such as too many open files.
                thread::sleep(NAP);
                continue;
            };
            let seen = peer.ip().to_canonical();
            if !lock(&self.gate).admit(seen) {
                // Closed without a word: it costs nothing more.
                continue;
            }
            let shared = Arc::clone(self);
            let started = spawn(move || {
                let entered = shared.take_in(stream, seen);
                lock(&shared.gate).done(seen);
                match entered {
                    Ok(known) => (shared.notice)(Notice::Came(known)),
                    Err(why) => (shared.notice)(Notice::Refused(seen, why)),
                }
            });
            if started.is_err() {
                lock(&self.gate).done(seen);
            }
        }
    }

    /// Takes a stranger in, or says why not.
    fn take_in(&self, stream: TcpStream, seen: IpAddr) -> Result<Known, String> {
        let deadline = Deadline::after(STRANGER_LIMIT);
        let said = || -> Result<(Link, Result<Card, Refusal>), LinkError> {
            let mut link = Link::server(stream, &self.config)?;
            let line = link.line(Some(deadline))?;
            Ok((link, hello::read(&line, &self.token)))
        };
        let (mut link, card) = said().map_err(|error| error.to_string())?;
        let entered = card.and_then(|card| {
            lock(&self.registry).check(&card, seen)?;
            Ok(card)
        });
        let word = match &entered {
            Ok(_) => Word::Welcome,
            Err(refusal) => Word::Refused(refusal.clone()),
        };
        send(&mut link, &word, deadline).map_err(|error| error.to_string())?;
        let card = entered.map_err(|refusal| refusal.to_string())?;
        let known = Known { card: card.clone(), seen, is_busy: false };
        lock(&self.registry).enter(card, seen, link).map_err(|refusal| refusal.to_string())?;
        Ok(known)
    }

    fn look_after_agents(&self) {
        loop {
            thread::sleep(LOOK_EVERY);
            let gone = lock(&self.registry).drop_gone(Link::is_gone);
            gone.into_iter().for_each(|name| (self.notice)(Notice::Gone(name)));
        }
    }

    fn accept_runs(self: &Arc<Shared>, listener: &UnixListener) {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(NAP);
                continue;
            };
            if self.n_runs.load(Ordering::Relaxed) >= RUNS_MAX || !is_of_this_user(&stream) {
                continue;
            }
            self.n_runs.fetch_add(1, Ordering::Relaxed);
            let shared = Arc::clone(self);
            let started = spawn(move || {
                // Whoever asked has gone, or sees the end of its stream.
                let _ = shared.serve_run(stream);
                shared.n_runs.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                self.n_runs.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn serve_run(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(WORD_LIMIT))?;
        stream.set_write_timeout(Some(WORD_LIMIT))?;
        let mut line = vec![];
        let input = BufReader::with_capacity(1, &stream);
        input.take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
        match serde_json::from_slice(&line)? {
            Request::List => answer(&stream, &Answer::Agents(lock(&self.registry).known())),
            Request::Open { agent } => match self.wait_for(&agent) {
                Ok((known, link, number)) => {
                    let opened = self.session(stream, known, link);
                    lock(&self.registry).leave(&agent, number);
                    opened
                }
                Err(why) => answer(&stream, &Answer::Failed(why)),
            },
        }
    }

    /// The agent for a session, as soon as it waits for one.
    fn wait_for(&self, name: &str) -> Result<(Known, Link, u64), String> {
        let deadline = Deadline::after(ABSENCE_LIMIT);
        loop {
            let taken = lock(&self.registry).take(name);
            let why = match taken {
                Taken::Agent(known, mut link, number) => {
                    if !link.is_gone() {
                        return Ok((known, link, number));
                    }
                    lock(&self.registry).leave(name, number);
                    continue;
                }
                Taken::Busy => "is in another session",
                Taken::Absent => "has not connected to the controller",
            };
            if deadline.passed() {
                return Err(format!("the agent of host {name} {why}"));
            }
            thread::sleep(NAP);
        }
    }

    fn session(&self, stream: UnixStream, known: Known, mut link: Link) -> io::Result<()> {
        let lost = |error: LinkError| io::Error::other(error.to_string());
        send(&mut link, &Word::Open, Deadline::after(WORD_LIMIT)).map_err(lost)?;
        answer(&stream, &Answer::Opened(Box::new(known)))?;
        link.relay(stream).map_err(lost)
    }
}

fn send(link: &mut Link, word: &Word, deadline: Deadline) -> Result<(), LinkError> {
    let line = serde_json::to_string(word).map_err(|_| LinkError::Protocol)?;
    link.send(&line, deadline)
}

fn answer(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// The mode of the socket says so too, but not between its creation and its change.
fn is_of_this_user(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}
